package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A Fault is one way to break a cluster.
type Fault struct {
	Name string
	// Writable says that a majority can talk, and the client can talk to it, while the fault lasts.
	Writable bool
	// Lasting is how long the fault has to last at least, for faults that only then have an effect.
	Lasting time.Duration
	// Inject breaks the cluster. When it fails, the cluster can no longer be used.
	Inject func(ctx context.Context, c *Cluster) (Injected, error)
}

// Injected is a fault that is in effect.
type Injected struct {
	// Hit fails when the fault has not hurt anything yet.
	Hit func(context.Context) error
	// Heal ends the fault. It returns when all members can talk again, with the moment from which a majority could.
	Heal func(context.Context) (time.Time, error)
}

// long is longer than gRPC and TCP keep a silent connection, and than they first wait before they try a new one.
const long = 12 * time.Second

// Faults returns all faults. They are independent of each other; one at a time is injected.
func Faults() []Fault {
	return []Fault{
		{Name: "leader-killed", Writable: true, Inject: killed(leader)},
		{Name: "follower-killed", Writable: true, Inject: killed(follower)},
		{Name: "leader-paused", Writable: true, Inject: paused(leader)},
		{Name: "follower-paused", Writable: true, Lasting: long, Inject: paused(follower)},
		{Name: "leader-mute", Writable: true, Inject: filtered(func(m *Member, others []*Member) []rule {
			return []rule{cut(m.port, others[0].port), cut(m.port, others[1].port)} // it receives from its followers, and clients reach it
		})},
		{Name: "leader-deaf", Writable: true, Inject: filtered(func(m *Member, others []*Member) []rule {
			return []rule{cut(others[0].port, m.port), cut(others[1].port, m.port)}
		})},
		{Name: "leader-apart", Writable: true, Lasting: long, Inject: filtered(func(m *Member, others []*Member) []rule {
			return []rule{
				cut(m.port, others[0].port), cut(m.port, others[1].port), cut(others[0].port, m.port), cut(others[1].port, m.port),
			}
		})},
		{Name: "leader-unplugged", Writable: true, Lasting: long, Inject: leaderUnplugged},
		{Name: "client-unplugged", Lasting: long, Inject: clientUnplugged},
		{Name: "delay", Writable: true, Inject: delayed},
		{Name: "loss", Writable: true, Inject: filtered(func(*Member, []*Member) []rule { return []rule{lose(15)} })},
		{Name: "no-space", Inject: filled},
		{Name: "compaction", Writable: true, Inject: compacted},
		{Name: "leases-revoked", Writable: true, Inject: revoked},
		{Name: "member-replaced", Writable: true, Inject: replaced},
		{Name: "quorum-lost", Lasting: long, Inject: quorumLost},
	}
}

func leader(ctx context.Context, c *Cluster) (*Member, error)   { return c.Leader(ctx) }
func follower(ctx context.Context, c *Cluster) (*Member, error) { return c.follower(ctx) }

// atOnce is the Hit of a fault that needs no proof except that it was injected.
func atOnce(context.Context) error { return nil }

// killed ends a process without a warning, and starts it again with the data that it left.
func killed(which func(context.Context, *Cluster) (*Member, error)) func(context.Context, *Cluster) (Injected, error) {
	return func(ctx context.Context, c *Cluster) (Injected, error) {
		m, err := which(ctx, c)
		if err != nil {
			return Injected{}, err
		}
		return Injected{atOnce, func(ctx context.Context) (time.Time, error) { return time.Now(), m.start(ctx) }}, m.kill()
	}
}

// paused stops a process. Its kernel still responds for it, so it looks like a slow one.
func paused(which func(context.Context, *Cluster) (*Member, error)) func(context.Context, *Cluster) (Injected, error) {
	return func(ctx context.Context, c *Cluster) (Injected, error) {
		m, err := which(ctx, c)
		if err != nil {
			return Injected{}, err
		}
		hit := func(context.Context) error {
			stopped, err := m.stopped()
			if err == nil && !stopped {
				err = fmt.Errorf("%s is not stopped", m)
			}
			return err
		}
		heal := func(ctx context.Context) (time.Time, error) { return time.Now(), m.signal(ctx, syscall.SIGCONT) }
		return Injected{hit, heal}, m.signal(ctx, syscall.SIGSTOP)
	}
}

// filtered drops packets by rules about the leader and the others.
func filtered(rules func(leader *Member, others []*Member) []rule) func(context.Context, *Cluster) (Injected, error) {
	return func(ctx context.Context, c *Cluster) (Injected, error) {
		m, err := c.Leader(ctx)
		if err != nil {
			return Injected{}, err
		}
		hit := func(ctx context.Context) error {
			n, err := c.net.dropped(ctx)
			if err == nil && n == 0 {
				err = errors.New("the bridge has dropped nothing")
			}
			return err
		}
		heal := func(ctx context.Context) (time.Time, error) { return time.Now(), c.net.unfilter(ctx) }
		return Injected{hit, heal}, c.net.filter(ctx, rules(m, c.others(m))...)
	}
}

// leaderUnplugged cuts the leader off from everything.
func leaderUnplugged(ctx context.Context, c *Cluster) (Injected, error) {
	m, err := c.Leader(ctx)
	if err != nil {
		return Injected{}, err
	}
	hit := func(ctx context.Context) error { return elsewhere(ctx, c, m) }
	heal := func(ctx context.Context) (time.Time, error) { return time.Now(), c.net.unplug(ctx, m.port, false) }
	return Injected{hit, heal}, c.net.unplug(ctx, m.port, true)
}

// elsewhere fails while no other member leads.
func elsewhere(ctx context.Context, c *Cluster, m *Member) error {
	for _, o := range c.others(m) {
		s, err := o.status(ctx)
		if err != nil {
			return err
		}
		if s.Leader == s.Header.MemberId {
			return nil
		}
	}
	return fmt.Errorf("no member other than %s leads", m)
}

// clientUnplugged cuts the client off; the members do not notice.
func clientUnplugged(ctx context.Context, c *Cluster) (Injected, error) {
	hit := func(ctx context.Context) error {
		if _, err := c.Members[0].status(ctx); err == nil {
			return errors.New("a member still answers")
		}
		return nil
	}
	heal := func(ctx context.Context) (time.Time, error) { return time.Now(), c.net.unplug(ctx, clientPlug, false) }
	return Injected{hit, heal}, c.net.unplug(ctx, clientPlug, true)
}

// delayed makes every path between members, and between members and the client, slow and uneven.
func delayed(ctx context.Context, c *Cluster) (Injected, error) {
	set := func(ctx context.Context, mean time.Duration) (late int, err error) {
		for _, m := range c.Members {
			n, err := m.slow(ctx, mean)
			if err != nil {
				return 0, err
			}
			late += n
		}
		return late, nil
	}
	const mean = 60 * time.Millisecond
	hit := func(ctx context.Context) error {
		late, err := set(ctx, mean)
		if err == nil && late == 0 {
			err = errors.New("nothing was delayed")
		}
		return err
	}
	heal := func(ctx context.Context) (time.Time, error) {
		_, err := set(ctx, 0)
		return time.Now(), err
	}
	_, err := set(ctx, mean)
	return Injected{hit, heal}, err
}

// ballast is the key that fills the members.
const ballast = "/ballast"

// filled uses up the space of the members, with several writers, as happens in practice: so some writes are in progress
// when space runs out.
func filled(ctx context.Context, c *Cluster) (Injected, error) {
	var writers errgroup.Group
	for i := range 4 {
		writers.Go(func() error {
			return adminFor(ctx, patience, c.Members, func(ctx context.Context, client *clientv3.Client) error {
				body := strings.Repeat("x", 1<<20)
				for ctx.Err() == nil {
					if _, err := client.Put(ctx, fmt.Sprint(ballast, i), body); errors.Is(err, rpctypes.ErrNoSpace) {
						return nil
					}
				}
				return fmt.Errorf("fill the members: %w", ctx.Err())
			})
		})
	}
	hit := func(ctx context.Context) error {
		yes, err := full(ctx, c.Members)
		if err == nil && !yes {
			err = errors.New("no member reports that it is full")
		}
		return err
	}
	heal := func(ctx context.Context) (time.Time, error) {
		at, err := c.makeRoom(ctx)
		if err == nil {
			go attend(ctx, slices.Clone(c.Members)) // a later fault may replace one
		}
		return at, err
	}
	return Injected{hit, heal}, writers.Wait()
}

// attend clears the alarm whenever it is raised again, as an attentive operator does: a write that was refused before there
// was room may raise it late, and nothing else would clear it. It returns when ctx is done.
func attend(ctx context.Context, members []*Member) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		_ = admin(ctx, members, func(ctx context.Context, client *clientv3.Client) error {
			r, err := client.AlarmList(ctx)
			if err == nil && len(r.Alarms) > 0 {
				_, err = client.AlarmDisarm(ctx, &clientv3.AlarmMember{})
			}
			return err
		})
	}
}

// makeRoom does what an operator does for a full cluster.
func (c *Cluster) makeRoom(ctx context.Context) (at time.Time, err error) {
	err = adminFor(ctx, patience, c.Members, func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.Delete(ctx, ballast, clientv3.WithPrefix())
		return err
	})
	if err != nil {
		return at, fmt.Errorf("delete: %w", err)
	}
	if err := c.Compact(ctx); err != nil {
		return at, err
	}
	for _, m := range c.Members {
		// A member that lags drops the history later than the one that was asked to. Until then it stays full, and writes to it
		// raise the alarm again.
		err := until(ctx, fmt.Sprint(m, " to have room"), func(ctx context.Context) error {
			return adminFor(ctx, patience/6, []*Member{m}, func(ctx context.Context, client *clientv3.Client) error {
				if _, err := client.Defragment(ctx, m.URL()); err != nil {
					return fmt.Errorf("request it: %w", err)
				}
				s, err := client.Status(ctx, m.URL())
				if err == nil && s.DbSize > quotaBytes/2 {
					err = fmt.Errorf("%d of %d bytes are in use", s.DbSize, quotaBytes)
				}
				return err
			})
		})
		if err != nil {
			return at, fmt.Errorf("defragment: %w", err)
		}
	}
	// A write in progress may raise the alarm once more; see attend for one that is later still.
	err = until(ctx, "the alarm to clear", func(ctx context.Context) error {
		at = time.Now()
		return admin(ctx, c.Members, func(ctx context.Context, client *clientv3.Client) error {
			if _, err := client.AlarmDisarm(ctx, &clientv3.AlarmMember{}); err != nil {
				return err
			}
			r, err := client.AlarmList(ctx)
			if err == nil && len(r.Alarms) > 0 {
				err = fmt.Errorf("%v", r.Alarms)
			}
			return err
		})
	})
	return at, err
}

// compacted drops the history that readers still need, again and again.
func compacted(ctx context.Context, c *Cluster) (Injected, error) {
	ctx, stop := context.WithCancel(ctx)
	var work errgroup.Group
	missed := make(chan struct{}, 1)
	work.Go(func() error {
		client, err := clientv3.New(clientv3.Config{Endpoints: c.Endpoints(), Logger: zap.NewNop()})
		if err != nil {
			return err
		}
		defer client.Close()
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return nil
			}
			r, err := client.Get(ctx, "\x00")
			if err != nil {
				continue
			}
			if _, err := client.Compact(ctx, r.Header.Revision); err != nil {
				continue
			}
			// A client that has just read a first page cannot read the second one.
			if _, err := client.Get(ctx, "\x00", clientv3.WithRev(r.Header.Revision-1)); errors.Is(err, rpctypes.ErrCompacted) {
				select {
				case missed <- struct{}{}:
				default:
				}
			}
		}
	})
	hit := func(context.Context) error {
		select {
		case <-missed:
			return nil
		default:
			return errors.New("no read came too late")
		}
	}
	heal := func(context.Context) (time.Time, error) {
		stop()
		return time.Now(), work.Wait()
	}
	return Injected{hit, heal}, nil
}

// revoked ends all leases, as an operator may, and as a fast clock on the leader does.
func revoked(ctx context.Context, c *Cluster) (Injected, error) {
	ended := 0
	all := func(ctx context.Context) error {
		return admin(ctx, c.Members, func(ctx context.Context, client *clientv3.Client) error {
			r, err := client.Leases(ctx)
			if err != nil {
				return err
			}
			for _, l := range r.Leases {
				if _, err := client.Revoke(ctx, l.ID); err == nil {
					ended++
				}
			}
			return nil
		})
	}
	hit := func(ctx context.Context) error {
		if err := all(ctx); err != nil {
			return err
		}
		if ended == 0 {
			return errors.New("there was no lease")
		}
		return nil
	}
	return Injected{hit, func(context.Context) (time.Time, error) { return time.Now(), nil }}, all(ctx)
}

// replaced removes a follower permanently and puts a new member without data in its place.
func replaced(ctx context.Context, c *Cluster) (Injected, error) {
	m, err := c.follower(ctx)
	if err != nil {
		return Injected{}, err
	}
	old, err := m.id(ctx)
	if err != nil {
		return Injected{}, err
	}
	others := c.others(m)
	// etcd refuses while it is not sure that the others have been up for a while.
	err = until(ctx, m.Name+" to be removed", func(ctx context.Context) error {
		return admin(ctx, others, func(ctx context.Context, client *clientv3.Client) error {
			_, err := client.MemberRemove(ctx, old)
			if errors.Is(err, rpctypes.ErrMemberNotFound) {
				return nil // the reply to an earlier try was lost
			}
			return err
		})
	})
	if err != nil {
		return Injected{}, err
	}
	if err := m.kill(); err != nil {
		return Injected{}, err
	}
	if err := os.RemoveAll(m.Dir); err != nil {
		return Injected{}, err
	}
	heal := func(ctx context.Context) (time.Time, error) {
		at := time.Now()
		err := until(ctx, m.Name+" to be added", func(ctx context.Context) error {
			return admin(ctx, others, func(ctx context.Context, client *clientv3.Client) error {
				_, err := client.MemberAdd(ctx, []string{m.peerURL()})
				if errors.Is(err, rpctypes.ErrPeerURLExist) {
					return nil
				}
				return err
			})
		})
		if err != nil {
			return at, err
		}
		m.State = "existing"
		if err := m.start(ctx); err != nil {
			return at, err
		}
		now, err := m.id(ctx)
		if err == nil && now == old {
			err = fmt.Errorf("%s still has the id %x", m, old)
		}
		return at, err
	}
	return Injected{atOnce, heal}, nil
}

// quorumLost kills two of three, and starts them again.
func quorumLost(ctx context.Context, c *Cluster) (Injected, error) {
	m, err := c.Leader(ctx)
	if err != nil {
		return Injected{}, err
	}
	two := []*Member{m, c.others(m)[0]}
	heal := func(ctx context.Context) (time.Time, error) {
		var all errgroup.Group
		for _, m := range two {
			all.Go(func() error { return m.listen(ctx) })
		}
		if err := all.Wait(); err != nil {
			return time.Time{}, err
		}
		at := time.Now()
		for _, m := range two {
			if _, err := m.expect(ctx, "ready"); err != nil {
				return at, err
			}
		}
		return at, nil
	}
	return Injected{atOnce, heal}, errors.Join(two[0].kill(), two[1].kill())
}
