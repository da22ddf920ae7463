// Package cluster runs an etcd cluster that can be broken, for tests of what a site stores in it.
//
// # Words
//
// A [Cluster] is three members and the client, which is the process of the test. A [Member] is a process of its own: the
// test binary, started again, with the embedded library of etcd in it. Each member lives in its own network namespace, and
// all are connected to one bridge, so a member can be killed, stopped, unplugged or cut off in one direction as a host can.
// A [Fault] breaks a cluster in one way and heals it again.
//
// # Promises
//
// Names and addresses are unique to this process: several tests may run at once. Nothing remains when the process ends, in
// whatever way: a shell that waits for that removes the namespaces, and the kernel kills the members.
//
// It needs root, and the programs ip and nft. A test binary that uses it calls [Main] first in its TestMain.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"converge.dev/converge/internal/retry"
)

const (
	size = 3
	// patience is how long a cluster may take for what is requested, on a machine that is busy with other tests.
	patience = 60 * time.Second
)

// A Cluster is three members on one bridge.
type Cluster struct {
	Members []*Member

	net *network
}

// Start starts a cluster whose data are in dir, and waits until it has a leader. Close must be called.
func Start(ctx context.Context, dir string) (_ *Cluster, err error) {
	net, err := newNetwork(ctx)
	if err != nil {
		return nil, fmt.Errorf("start a cluster: %w", err)
	}
	c := &Cluster{net: net}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	var initial []string
	for i := range size {
		m := &Member{
			port:      i + 1,
			namespace: net.hosts[i],
			config:    config{Name: fmt.Sprint("m", i+1), Dir: filepath.Join(dir, fmt.Sprint("m", i+1)), Address: net.address(i + 1), State: "new"},
		}
		initial = append(initial, m.config.Name+"="+m.peerURL())
		c.Members = append(c.Members, m)
	}
	for _, m := range c.Members {
		m.config.Initial = strings.Join(initial, ",")
	}
	if err := startAll(ctx, c.Members); err != nil {
		return nil, err
	}
	_, err = c.Leader(ctx)
	return c, err
}

// startAll starts members at the same time, because one alone may wait for the others.
func startAll(ctx context.Context, members []*Member) error {
	var all errgroup.Group
	for _, m := range members {
		all.Go(func() error { return m.start(ctx) })
	}
	return all.Wait()
}

// Close kills the members and removes the network. It may be called more than once.
func (c *Cluster) Close() error {
	var errs []error
	for _, m := range c.Members {
		errs = append(errs, m.kill())
	}
	return errors.Join(append(errs, c.net.close())...)
}

// Endpoints returns the URLs of all members.
func (c *Cluster) Endpoints() []string {
	var urls []string
	for _, m := range c.Members {
		urls = append(urls, m.URL())
	}
	return urls
}

// Log returns the end of each member's output.
func (c *Cluster) Log() string {
	var b strings.Builder
	for _, m := range c.Members {
		text, _ := os.ReadFile(m.config.log())
		fmt.Fprintf(&b, "%s:\n%s\n", m.config.Name, text[max(0, len(text)-12000):])
	}
	return b.String()
}

// Leader returns the member that a majority follows.
func (c *Cluster) Leader(ctx context.Context) (*Member, error) {
	var found *Member
	err := until(ctx, "a leader", func(ctx context.Context) error {
		votes := map[uint64]int{}
		ids := map[uint64]*Member{}
		for _, m := range c.Members {
			if s, err := m.status(ctx); err == nil {
				votes[s.Leader]++
				ids[s.Header.MemberId] = m
			}
		}
		for id, n := range votes {
			if n > size/2 && ids[id] != nil {
				found = ids[id]
				return nil
			}
		}
		return fmt.Errorf("%d members answer, and they follow %v", len(ids), votes)
	})
	return found, err
}

// follower returns a member that is not the leader.
func (c *Cluster) follower(ctx context.Context) (*Member, error) {
	leader, err := c.Leader(ctx)
	if err != nil {
		return nil, err
	}
	return c.others(leader)[0], nil
}

func (c *Cluster) others(m *Member) []*Member {
	var others []*Member
	for _, o := range c.Members {
		if o != m {
			others = append(others, o)
		}
	}
	return others
}

// Consistent waits until every member locally holds the same keys, and fails when they do not. Meanwhile nothing but
// expiring leases may write.
func (c *Cluster) Consistent(ctx context.Context) error {
	return until(ctx, "the same keys in every member", func(ctx context.Context) error {
		var first map[string]*clientv3.GetResponse
		for _, m := range c.Members {
			have, err := m.everything(ctx)
			if err != nil {
				return err
			}
			if first == nil {
				first = map[string]*clientv3.GetResponse{c.Members[0].config.Name: have}
				continue
			}
			if err := same(first[c.Members[0].config.Name], have); err != nil {
				return fmt.Errorf("%s and %s: %w", c.Members[0].config.Name, m.config.Name, err)
			}
		}
		return nil
	})
}

// Compact drops the history of the keys up to now.
func (c *Cluster) Compact(ctx context.Context) error {
	err := adminFor(ctx, patience, c.Members, func(ctx context.Context, client *clientv3.Client) error {
		now, err := client.Get(ctx, "\x00", clientv3.WithCountOnly())
		if err != nil {
			return err
		}
		_, err = client.Compact(ctx, now.Header.Revision, clientv3.WithCompactPhysical())
		if errors.Is(err, rpctypes.ErrCompacted) {
			return nil // by an earlier call whose reply was lost
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	return nil
}

func same(a, b *clientv3.GetResponse) error {
	if a.Header.Revision != b.Header.Revision || len(a.Kvs) != len(b.Kvs) {
		return fmt.Errorf("%d keys at revision %d, and %d keys at revision %d", len(a.Kvs), a.Header.Revision, len(b.Kvs), b.Header.Revision)
	}
	for i, x := range a.Kvs {
		if y := b.Kvs[i]; x.String() != y.String() {
			return fmt.Errorf("%s differs: revisions %d and %d", x.Key, x.ModRevision, y.ModRevision)
		}
	}
	return nil
}

// admin calls do with a new client of the members: one that waits before it reconnects after a fault would be of no use.
func admin(ctx context.Context, members []*Member, do func(context.Context, *clientv3.Client) error) error {
	return adminFor(ctx, 5*time.Second, members, do)
}

// adminFor does the same for what may take longer.
func adminFor(ctx context.Context, limit time.Duration, members []*Member, do func(context.Context, *clientv3.Client) error) error {
	var urls []string
	for _, m := range members {
		urls = append(urls, m.URL())
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: urls, DialTimeout: time.Second, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return do(ctx, client)
}

func (m *Member) status(ctx context.Context) (s *clientv3.StatusResponse, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err = admin(ctx, []*Member{m}, func(ctx context.Context, client *clientv3.Client) error {
		s, err = client.Status(ctx, m.URL())
		return err
	})
	return s, err
}

// everything reads what the member itself holds, without asking the others.
func (m *Member) everything(ctx context.Context) (r *clientv3.GetResponse, err error) {
	err = admin(ctx, []*Member{m}, func(ctx context.Context, client *clientv3.Client) error {
		r, err = client.Get(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithSerializable())
		return err
	})
	return r, err
}

// id returns the id by which the members know each other.
func (m *Member) id(ctx context.Context) (uint64, error) {
	s, err := m.status(ctx)
	if err != nil {
		return 0, err
	}
	return s.Header.MemberId, nil
}

// full reports whether a member has raised the alarm that its space is used up.
func full(ctx context.Context, members []*Member) (yes bool, err error) {
	err = admin(ctx, members, func(ctx context.Context, client *clientv3.Client) error {
		r, err := client.AlarmList(ctx)
		if err != nil {
			return err
		}
		for _, a := range r.Alarms {
			yes = yes || a.Alarm == etcdserverpb.AlarmType_NOSPACE
		}
		return nil
	})
	return yes, err
}

// until retries until it succeeds, and returns the last failure when that takes too long.
func until(ctx context.Context, what string, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var last error // except that of the try during which the time ran out: it says nothing
	err := retry.Policy{First: 20 * time.Millisecond}.Do(ctx, func() (over bool, _ error) {
		err := try(ctx)
		if err != nil && (last == nil || ctx.Err() == nil) {
			last = err
		}
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("wait for %s: %w", what, last)
	}
	return nil
}
