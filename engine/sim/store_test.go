package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// A kv is the connection of one process to the store. Everything that can go wrong with a store goes wrong here.
type kv struct {
	*mem.KV
	p *process
}

var errDown = errors.New("the store does not answer")

// enter waits while the process is stopped, and fails while it is dead or the store is away.
func (k *kv) enter(ctx context.Context, what string) error {
	p := k.p
	slept := time.Now().Before(p.until(&p.sleeps))
	if err := p.awake(); err != nil {
		return err
	}
	if slept && strings.HasPrefix(what, "get ") { // the goroutine that checks whether the lock still exists need not be the first to wake
		sleep(context.WithoutCancel(ctx), time.Millisecond)
	}
	if time.Now().Before(p.until(&p.down)) {
		sleep(ctx, p.s.pace(time.Second, "%s down %s %d", p.name, what, p.count("down "+what)))
		if err := p.awake(); err != nil {
			return err
		}
		return errDown
	}
	return ctx.Err()
}

func (k *kv) Get(ctx context.Context, key string) (state.Item, error) {
	if err := k.enter(ctx, "get "+key); err != nil {
		return state.Item{}, err
	}
	return k.KV.Get(ctx, key)
}

func (k *kv) List(ctx context.Context, prefix string) ([]state.Item, error) {
	if err := k.enter(ctx, "list "+prefix); err != nil {
		return nil, err
	}
	return k.KV.List(ctx, prefix)
}

func (k *kv) Lease(ctx context.Context, ttl time.Duration) (state.Lease, error) {
	if err := k.enter(ctx, "lease"); err != nil {
		return nil, err
	}
	return k.KV.Lease(ctx, ttl)
}

func (k *kv) Commit(ctx context.Context, guards []state.Guard, ops []state.Op) (int64, error) {
	p, s := k.p, k.p.s
	what := commitOf(ops)
	n := p.count(what)
	nth := fmt.Sprintf("%s %d", what, n)
	if err := k.enter(ctx, what); err != nil {
		if errors.Is(err, errDown) {
			err = fmt.Errorf("%w: %w", state.ErrUnknown, err)
		}
		return 0, err
	}
	if what == leaderCommit || p.parallelism == 1 { // otherwise a slow store makes results arrive at the same instant, and their order is random
		sleep(ctx, s.pace(20*time.Millisecond, "%s %s", p.name, nth))
	}
	unknown := func() (int64, error) { return 0, fmt.Errorf("%w: drawn", state.ErrUnknown) }
	fault := p.storeFaults[nth]
	if fault != "" {
		sleep(ctx, time.Nanosecond) // a step that can begin while the others write has begun by then, in every story of the seed
		s.reach(fault)
	}
	switch fault {
	case "die before commit":
		p.die()
		return unknown()
	case "commit lost":
		return unknown()
	case "stand still at commit":
		p.standStill()
		if err := p.awake(); err != nil {
			return 0, err
		}
	case "lease lapses":
		p.doom()
		k.KV.Lapse()
	case "store away", "quorum gone":
		d := s.pace(5*time.Second, "%s outage %s", p.name, nth)
		if fault == "quorum gone" {
			d += 40 * time.Second
			p.doom()
			k.KV.Pause() // what is not kept alive expires
		}
		p.set(&p.down, time.Now().Add(d))
		return unknown()
	case "stopped at commit":
		s.stop(n)
	}
	revision, err := k.KV.Commit(ctx, guards, ops)
	if err != nil {
		return 0, err // what a stopped process was about to write is not written
	}
	s.checkOutcomes(ops)
	if p.stillAfterIntent > 0 && slices.ContainsFunc(ops, func(op state.Op) bool { return strings.Contains(string(op.Value), `"kind":"intent"`) }) {
		p.standStillFor(p.stillAfterIntent)
		p.stillAfterIntent = 0
		_ = p.awake()
	}
	switch fault {
	case "die after commit":
		p.die()
		return unknown()
	case "commit unknown":
		return unknown()
	case "stand still after commit":
		p.standStill()
		if err := p.awake(); err != nil {
			return 0, err
		}
	case "lease lapses after":
		p.doom()
		k.KV.Lapse()
	}
	return revision, nil
}

// The commits of a process are counted in two rows: its record in the lock is written concurrently with its work, sometimes
// at the same instant, and which of the two is first is random.
const (
	workCommit   = "commit"
	leaderCommit = "leader commit"
)

// commitOf returns the row in which a commit counts.
func commitOf(ops []state.Op) string {
	if slices.ContainsFunc(ops, func(op state.Op) bool { return !strings.HasSuffix(op.Key, "/leader") }) {
		return workCommit
	}
	return leaderCommit
}

// checkOutcomes is W3: what is reported as done was observed after the last call.
func (s *sim) checkOutcomes(ops []state.Op) {
	for _, op := range ops {
		if !strings.Contains(op.Key, "/journal/") || op.Delete {
			continue
		}
		var rec journal.Record
		if json.Unmarshal(op.Value, &rec) != nil || rec.Kind != journal.Outcome || rec.Result != journal.Done {
			continue
		}
		if rec.Action != plan.Create && rec.Action != plan.Update && rec.Action != plan.Delete {
			continue
		}
		s.mu.Lock()
		at := target{rec.Ref.Scope, rec.Ref.Kind, rec.ExternalID}
		if s.changed[at] > s.looked[at] {
			s.wrong("W3: %s of %s is said to be done, and nobody looked after the last call", rec.Action, rec.Ref)
		}
		s.mu.Unlock()
	}
}

// stop sets a hold or a freeze, like an operator, and removes it after a while.
func (s *sim) stop(n int) {
	ctx := context.Background()
	scope := []string{schema.ScopeSite, "n1", "site/far.host/host0", "freeze"}[s.chance("stop %d", n)%4]
	var err error
	if scope == "freeze" {
		err = s.raw.SetFreeze(ctx, true, "somebody", "drawn")
		s.reach("frozen")
	} else {
		err = s.raw.Hold(ctx, scope, "somebody", "drawn")
		s.reach("held by hand")
	}
	if err != nil {
		s.t.Error(err)
	}
	s.log("somebody stops %s", scope)
	after := s.pace(3*time.Minute, "lift %d", n)
	s.wg.Go(func() {
		time.Sleep(after)
		if scope == "freeze" {
			err = s.raw.SetFreeze(ctx, false, "somebody", "")
		} else {
			err = s.raw.Release(ctx, scope, "somebody", "")
		}
		if err != nil {
			s.t.Error(err)
		}
		s.log("somebody lets go of %s", scope)
	})
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
