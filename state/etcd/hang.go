package etcd

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"converge.dev/converge/internal/retry"
)

// hangs is how long a call waits before all members are checked for an answer, and how long they have for that.
const hangs = time.Second

var errHung = errors.New("the etcd member stopped answering")

// members are the endpoints of a cluster; those that hang are not used.
type members struct {
	all    []string
	config clientv3.Config           // of a client of any member
	set    func(endpoints ...string) // tells the client library which ones to use

	mu       sync.Mutex
	live     []string
	watching sync.WaitGroup
}

// anew is how calls that may be made twice are repeated.
var anew = retry.Policy{First: 10 * time.Millisecond, Cap: hangs}

// insist repeats a call that may be made twice until a member answers: again when one hangs, and when the error is one of pass.
func (kv *kv) insist(ctx context.Context, call func(context.Context) error, pass ...error) (err error) {
	_ = anew.Do(ctx, func() (over bool, _ error) {
		var hung bool
		hung, err = kv.try(ctx, call)
		return !hung && !slices.ContainsFunc(pass, func(p error) bool { return errors.Is(err, p) }), nil
	})
	return err // of the call, even when it timed out during a pause
}

// try makes one call. A member that hangs keeps its connections, because its kernel answers for it, and gRPC takes 15
// seconds to give them up; a member that has lost its leader without knowing it yet still answers gRPC, but nothing
// else. So a call that takes long is a reason to check the members; when one that was in use does not answer, the call
// is given up and hung is true: it may be made again, and goes to another member.
func (kv *kv) try(ctx context.Context, call func(context.Context) error) (hung bool, err error) {
	if kv.members == nil {
		return false, call(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	var looking sync.WaitGroup
	looking.Go(func() {
		timer := time.NewTimer(hangs)
		defer timer.Stop()
		before := kv.members.inUse()
		for {
			select {
			case <-timer.C:
			case <-ended:
				return
			}
			if kv.members.look(ctx, kv.life); !slices.Equal(before, kv.members.inUse()) {
				cancel(errHung)
				return
			}
			timer.Reset(hangs)
		}
	})
	err = call(ctx)
	close(ended)
	hung = context.Cause(ctx) == errHung
	cancel(nil)
	looking.Wait()
	return hung && err != nil, err
}

func (m *members) inUse() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.live
}

// look checks all members, and stops using those that do not answer, unless none do.
func (m *members) look(ctx, life context.Context) {
	live := m.answering(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	if ctx.Err() != nil || len(live) == 0 || len(m.live) < len(m.all) || len(live) == len(m.all) {
		return
	}
	m.live = live
	m.set(live...)
	m.watching.Go(func() { m.wait(life) })
}

// wait uses all members again once all of them answer.
func (m *members) wait(life context.Context) {
	tick := time.NewTicker(hangs)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-life.Done():
			return
		}
		live := m.answering(life)
		m.mu.Lock()
		if len(live) > 0 && !slices.Equal(live, m.live) {
			m.live = live
			m.set(live...)
		}
		done := len(m.live) == len(m.all)
		m.mu.Unlock()
		if done {
			return
		}
	}
}

// answering returns the members that answer promptly.
func (m *members) answering(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, hangs)
	defer cancel()
	ok := make([]bool, len(m.all))
	var probes sync.WaitGroup
	for i, e := range m.all {
		probes.Go(func() { ok[i] = m.answers(ctx, e) })
	}
	probes.Wait()
	var live []string
	for i, e := range m.all {
		if ok[i] {
			live = append(live, e)
		}
	}
	return live
}

// answers reports whether one member answers a linearizable read. A refused read is an answer too.
func (m *members) answers(ctx context.Context, endpoint string) bool {
	if probe(ctx, endpoint, m.config.TLS) != nil { // detects most failures at once
		return false
	}
	config := m.config
	config.Endpoints, config.Context = []string{endpoint}, ctx
	client, err := clientv3.New(config)
	if err != nil {
		return refused(err)
	}
	defer client.Close()
	return ask(ctx, client) == nil
}

// ask makes a read. Its result does not matter, nor a refusal.
func ask(ctx context.Context, client *clientv3.Client) error {
	_, err := client.Get(clientv3.WithRequireLeader(ctx), "/converge/", clientv3.WithKeysOnly())
	if err != nil && refused(err) {
		return nil
	}
	return err
}
