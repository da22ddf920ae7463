package statetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"converge.dev/converge/schema"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

func runs(t *testing.T, kv state.KV, site string) {
	s := state.New(kv, site)
	ctx := t.Context()
	start := time.Date(2026, 11, 20, 9, 59, 59, 999e6, time.UTC)
	var ids []string
	for i := range 5 {
		ids = append(ids, state.NewRunID(start.Add(time.Duration(i)*time.Millisecond)))
	}
	if !slices.IsSorted(ids) || !strings.HasPrefix(ids[0], "20261120-095959.999-") {
		t.Errorf("the names are %q", ids)
	}
	ended := start.Add(time.Hour)
	began := []int{3, 0, 4, 1, 2} // whatever the clock says, which names them
	for _, i := range began {
		commit(t, kv, nil, []state.Op{s.PutRunOp(state.Run{
			ID: ids[i], Op: "apply", Status: state.RunPartial, Serial: 7, Started: start, Ended: &ended, Steps: 3, Done: i,
			Failed: record("a").Ref, Partial: []string{"x"},
		})})
	}
	all, err := s.Runs(ctx)
	if err != nil || len(all) != 5 {
		t.Fatalf("%d runs, %v", len(all), err)
	}
	for i, r := range all {
		if want := began[4-i]; r.ID != ids[want] || r.Done != want || !r.Ended.Equal(ended) || r.Failed != record("a").Ref {
			t.Errorf("place %d holds %+v", i, r)
		}
	}
	if whole, err := s.WholeRuns(ctx); err != nil || cmp.Diff(all, whole) != "" {
		t.Errorf("those that can be read: %+v, %v", whole, err)
	}
	if r, err := s.Run(ctx, ids[2]); err != nil || r.Done != 2 {
		t.Errorf("one run: %+v, %v", r, err)
	}
	if _, err := s.Run(ctx, "none"); !errors.Is(err, state.ErrNotFound) {
		t.Errorf("no run: %v", err)
	}

	if run, ok, err := s.Spent(ctx, "d1"); err != nil || ok || run != "" {
		t.Errorf("a fresh plan: %q, %t, %v", run, ok, err)
	}
	spend := func() error {
		_, err := s.Commit(ctx, []state.Guard{s.UnspentGuard("d1")}, []state.Op{s.SpentOp("d1", ids[0])})
		return err
	}
	if err := spend(); err != nil {
		t.Error(err)
	}
	if err := spend(); !errors.Is(err, state.ErrGuard) {
		t.Errorf("spent twice: %v", err)
	}
	if run, ok, err := s.Spent(ctx, "d1"); err != nil || !ok || run != ids[0] {
		t.Errorf("a spent plan: %q, %t, %v", run, ok, err)
	}

	var keys []string
	for _, seq := range []int64{0, 9, 10, 99, 1000000} {
		keys = append(keys, s.JournalKey(ids[0], seq))
	}
	fill(t, kv, keys)
	fill(t, kv, []string{s.JournalKey(ids[0]+"-other", 1)})
	var got []string
	items, err := s.List(ctx, s.JournalPrefix(ids[0]))
	for _, it := range items {
		got = append(got, it.Key)
	}
	if diff := cmp.Diff(keys, got); err != nil || diff != "" {
		t.Errorf("the journal: %v\n%s", err, diff)
	}
}

func stops(t *testing.T, kv state.KV, site string) {
	s := state.New(kv, site)
	ctx := t.Context()
	onNode := schema.Ref{Scope: "gpu-01", Kind: "ovs.bridge", Name: "br0"}
	onSite := record("a").Ref
	before, err := s.Stops(ctx)
	if err != nil {
		t.Fatal(err)
	}
	free := func(ref schema.Ref) bool {
		now, err := s.Stops(ctx)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Commit(ctx, before.Guard(nil, ref, ""), nil)
		if err != nil && !errors.Is(err, state.ErrGuard) {
			t.Fatal(err)
		}
		if on := now.On(ref, ""); (len(on) == 0) != (err == nil) {
			t.Errorf("what stops %s is %v, and guards from before it was set say %v", ref, on, err)
		}
		return err == nil
	}
	held := func(scope string) state.Hold { return state.Hold{Scope: scope, By: "ann"} }
	for name, c := range map[string]struct {
		set, end     state.Op
		node, onsite bool // still free
	}{
		"site":     {s.HoldOp(held("site")), s.ReleaseOp(held("site")), false, false},
		"node":     {s.HoldOp(held("gpu-01")), s.ReleaseOp(held("gpu-01")), false, true},
		"resource": {s.HoldOp(held(onSite.String())), s.ReleaseOp(held(onSite.String())), true, false},
		"other":    {s.HoldOp(held("gpu-02")), s.ReleaseOp(held("gpu-02")), true, true},
		"freeze":   {s.FreezeOp(state.Hold{Reason: "stop"}), s.ThawOp(), false, false},
	} {
		commit(t, kv, nil, []state.Op{c.set})
		if got := free(onNode); got != c.node {
			t.Errorf("%s: a thing of the node is free: %t", name, got)
		}
		if got := free(onSite); got != c.onsite {
			t.Errorf("%s: a thing of the site is free: %t", name, got)
		}
		commit(t, kv, nil, []state.Op{c.end})
		if !free(onNode) || !free(onSite) {
			t.Errorf("%s: not free afterwards", name)
		}
	}
	h := state.Hold{Scope: onNode.String(), Reason: "3 failed runs", Run: "r1", At: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	commit(t, kv, nil, []state.Op{s.HoldOp(h), s.FreezeOp(h)})
	if got, err := s.Holds(ctx); err != nil || cmp.Diff([]state.Hold{h}, got) != "" {
		t.Errorf("holds: %+v, %v", got, err)
	}
	frozen := h
	frozen.Scope = state.FrozenScope
	if got, err := s.Frozen(ctx); err != nil || cmp.Diff(&frozen, got) != "" {
		t.Errorf("freeze: %+v, %v", got, err)
	}
	commit(t, kv, nil, []state.Op{s.ThawOp()})
	if got, err := s.Frozen(ctx); err != nil || got != nil {
		t.Errorf("no freeze: %+v, %v", got, err)
	}
	// The run that set a hold continues under it, until another hold is set: that one stands beside it, and stays when the
	// run's is settled.
	own, err := s.Stops(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if on := own.On(onNode, "r1"); len(on) != 0 {
		t.Errorf("its own hold stops the run: %v", on)
	}
	if on := own.On(onNode, "r2"); len(on) != 1 {
		t.Errorf("another's hold does not stop a run: %v", on)
	}
	if _, err := s.Commit(ctx, own.Guard(nil, onNode, "r1"), nil); err != nil {
		t.Errorf("under its own hold: %v", err)
	}
	if err := s.Hold(ctx, onNode.String(), "ann", "not now"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(ctx, own.Guard(nil, onNode, "r1"), nil); !errors.Is(err, state.ErrGuard) {
		t.Errorf("under another's hold: %v", err)
	}
	two, err := s.Holds(ctx)
	if err != nil || len(two) != 2 || two[0].By != "ann" || two[1].Run != "r1" {
		t.Errorf("a hold by hand beside that of a run: %+v, %v", two, err)
	}
	commit(t, kv, nil, []state.Op{s.ReleaseOp(h)})
	if got, err := s.Holds(ctx); err != nil || len(got) != 1 || got[0].Reason != "not now" {
		t.Errorf("the hold by hand after the run has settled its own: %+v, %v", got, err)
	}
	commit(t, kv, nil, []state.Op{s.HoldOp(h)})
	if err := s.Release(ctx, onNode.String(), "ann", "now"); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Holds(ctx); err != nil || len(got) != 0 {
		t.Errorf("after the scope was released: %+v, %v", got, err)
	}
	for _, scope := range []string{schema.ScopeSite, "gpu-01", state.SerialScope(3)} {
		both := []state.Hold{held(scope), {Scope: scope, Run: "r1"}}
		commit(t, kv, nil, []state.Op{s.HoldOp(both[1]), s.HoldOp(both[0])})
		if got, err := s.Holds(ctx); err != nil || cmp.Diff(both, got) != "" {
			t.Errorf("both holds of %s: %+v, %v", scope, got, err)
		}
		commit(t, kv, nil, []state.Op{s.ReleaseOp(both[0]), s.ReleaseOp(both[1])})
	}
	// What is unreadable stops too.
	put(t, kv, s.Path()+"/hold/gpu-09", "now")
	put(t, kv, s.Path()+"/freeze", "now")
	x, err := s.Stops(ctx)
	if err != nil || x.Freeze == nil || len(x.On(schema.Ref{Scope: "gpu-09", Kind: "ovs.bridge", Name: "b"}, "")) != 2 {
		t.Errorf("unreadable stops: %+v, %v", x, err)
	}
	// Forced actions are logged.
	for _, err := range []error{
		s.Release(ctx, "gpu-09", "ann", "mended"), s.SetFreeze(ctx, true, "bob", "fire"), s.SetFreeze(ctx, false, "bob", "out"),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	// What was read and has changed since is not replaced, released or ended.
	empty, err := s.Stops(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{s.Hold(ctx, "gpu-02", "ann", "mine"), s.SetFreeze(ctx, true, "ann", "mine")} {
		if err != nil {
			t.Error(err)
		}
	}
	theirs := held("gpu-02")
	for what, err := range map[string]error{
		"a hold": empty.SetHold(ctx, "gpu-02", "bob", "no"), "a release": empty.ReleaseHeld(ctx, theirs, "bob", "no"),
		"a freeze": empty.SetFreeze(ctx, true, "bob", "no"), "a thaw": empty.SetFreeze(ctx, false, "bob", "no"),
	} {
		if !errors.Is(err, state.ErrGuard) {
			t.Errorf("%s over what was not seen: %v", what, err)
		}
	}
	seen, err := s.Stops(ctx)
	if err != nil || len(seen.Holds) != 1 || seen.Holds[0].Reason != "mine" || seen.Freeze == nil || seen.Freeze.Reason != "mine" {
		t.Errorf("it was done: %+v, %v", seen, err)
	}
	for _, err := range []error{seen.SetHold(ctx, "gpu-02", "bob", "his"), seen.SetFreeze(ctx, false, "bob", "out")} {
		if err != nil {
			t.Error(err)
		}
	}
	for _, scope := range []string{"", "run:gpu-02", "serial:3", "a b", "a\x1bb", "a\u202eb", "\xff", "run:site/a.b/c", "site/a.b", "/a.b/c", strings.Repeat("x", 513)} {
		if err := s.Hold(ctx, scope, "ann", "x"); !errors.Is(err, state.ErrInvalid) {
			t.Errorf("hold %q: %v", scope, err)
		}
	}
	for _, scope := range []string{"site", "gpu-02", "site/a.b/c", "gpu-02/host.link/aa:bb"} {
		if err := state.CheckScope(scope); err != nil {
			t.Error(err)
		}
	}
	var did []string
	audits, err := s.Audits(ctx)
	for _, a := range audits {
		did = append(did, a.Action)
	}
	if want := []string{"hold", "release", "release", "freeze", "thaw", "hold", "freeze", "hold", "thaw"}; err != nil || !slices.Equal(did, want) {
		t.Errorf("the log says %v, %v; want %v", did, err, want)
	}
}

func publish(t *testing.T, kv state.KV, site string) {
	s := state.New(kv, site)
	for _, key := range []string{"status", "drift/latest"} {
		if _, err := s.Published(t.Context(), key); !errors.Is(err, state.ErrNotFound) {
			t.Errorf("nothing at %s: %v", key, err)
		}
		if err := s.Publish(t.Context(), key, []byte(`{"a":1}`)); err != nil {
			t.Error(err)
		}
		if body, err := s.Published(t.Context(), key); err != nil || string(body) != `{"a":1}` {
			t.Errorf("%s: %s, %v", key, body, err)
		}
	}
	for key, body := range map[string]string{"leader": "{}", "drift": "{}", "status": "{"} {
		if err := s.Publish(t.Context(), key, []byte(body)); !errors.Is(err, state.ErrInvalid) {
			t.Errorf("publish %s at %s: %v", body, key, err)
		}
	}
}

var asking = state.LockInfo{Operation: "apply", Who: "ann@host", PID: 123, Version: "1.2.3", Info: "plans"}

func take(t *testing.T, s *state.Store) *state.Lock {
	t.Helper()
	l, err := s.Lock(t.Context(), asking, state.LockOptions{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// lock: one holder at a time, the next one learns who it is, and the epoch rises with each.
func lock(t *testing.T, kv state.KV, site string) {
	one, two := state.New(kv, site), state.New(kv, site)
	ctx := t.Context()
	if info, err := two.LockInfo(ctx); err != nil || info != nil {
		t.Errorf("nobody's lock: %+v, %v", info, err)
	}
	l := take(t, one)
	info := l.Info()
	if info.ID == "" || info.Created.IsZero() || info.Epoch != l.Epoch() || l.Epoch() != 1 || info.Who != "ann@host" {
		t.Errorf("the lock says %+v, epoch %d", info, l.Epoch())
	}
	if err := l.Describe(ctx, "r1", "step 3 of 40"); err != nil {
		t.Error(err)
	}
	_, err := two.Lock(ctx, asking, state.LockOptions{TTL: ttl})
	var locked *state.LockedError
	if !errors.As(err, &locked) {
		t.Fatalf("a second holder: %v", err)
	}
	info.Run, info.Info = "r1", "step 3 of 40"
	if diff := cmp.Diff(info, locked.Info); diff != "" {
		t.Errorf("the second one was told\n%s", diff)
	}
	for _, line := range []string{"Lock Info:\n", "\n  ID:        " + info.ID, "\n  Path:      /converge/" + site, "\n  Operation: apply",
		"\n  Who:       ann@host (PID 123)", "\n  Version:   1.2.3", "\n  Created:   20", "\n  Info:      step 3 of 40"} {
		if !strings.Contains(err.Error(), line) {
			t.Errorf("%q is missing in\n%s", line, err)
		}
	}
	if _, err := l.Commit(ctx, nil, []state.Op{one.RecordOp(record("a"))}); err != nil {
		t.Errorf("a commit of the holder after all that: %v", err)
	}
	work := l.Context(ctx)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	<-work.Done()
	if cause := context.Cause(work); !errors.Is(cause, state.ErrFenced) {
		t.Errorf("work under a lock that was given back ended with %v", cause)
	}
	if _, err := l.Commit(ctx, nil, []state.Op{one.RecordOp(record("b"))}); !errors.Is(err, state.ErrFenced) {
		t.Errorf("a commit after the lock was given back: %v", err)
	}
	for epoch := int64(2); epoch < 5; epoch++ {
		l := take(t, two)
		if l.Epoch() != epoch {
			t.Errorf("epoch %d, want %d", l.Epoch(), epoch)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

// lockWait: a waiting process learns for which holder it waits, and gets the lock when it is free.
func lockWait(t *testing.T, kv state.KV, site string) {
	s := state.New(kv, site)
	held := take(t, s)
	told := make(chan state.LockInfo, 10)
	got := make(chan error)
	go func() {
		l, err := s.Lock(t.Context(), asking, state.LockOptions{TTL: ttl, Wait: time.Minute, OnWait: func(i state.LockInfo) { told <- i }})
		if err == nil && l.Epoch() != 2 {
			err = fmt.Errorf("epoch %d", l.Epoch())
		}
		if err == nil {
			err = l.Close()
		}
		got <- err
	}()
	if i := <-told; i.ID != held.Info().ID {
		t.Errorf("told of %+v", i)
	}
	if err := held.Describe(t.Context(), "", "almost done"); err != nil {
		t.Error(err)
	}
	if i := <-told; i.Info != "almost done" {
		t.Errorf("told of %+v", i)
	}
	if err := held.Close(); err != nil {
		t.Error(err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	take(t, s)
	_, err := s.Lock(ctx, asking, state.LockOptions{TTL: ttl, Wait: time.Minute, OnWait: func(state.LockInfo) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a wait that was cancelled: %v", err)
	}
}

// lockGuards: a failed guard of the caller is not a lost lock.
func lockGuards(t *testing.T, kv state.KV, site string) {
	s := state.New(kv, site)
	l := take(t, s)
	op := s.RecordOp(record("a"))
	if _, err := l.Commit(t.Context(), []state.Guard{{Key: op.Key}}, []state.Op{op}); err != nil {
		t.Fatal(err)
	}
	_, err := l.Commit(t.Context(), []state.Guard{{Key: op.Key}}, []state.Op{s.ForgetOp(record("a").Ref)})
	if !errors.Is(err, state.ErrGuard) || errors.Is(err, state.ErrFenced) {
		t.Errorf("got %v, want ErrGuard alone", err)
	}
	if err := l.Context(t.Context()).Err(); err != nil {
		t.Errorf("the lock ended with %v", err)
	}
	if _, err := s.Record(t.Context(), record("a").Ref); err != nil {
		t.Errorf("the record went with a guard that did not hold: %v", err)
	}
	ops := make([]state.Op, state.MaxOps)
	for i := range ops {
		ops[i] = s.RecordOp(record(fmt.Sprint("b", i)))
	}
	if _, err := l.Commit(t.Context(), nil, ops); err != nil {
		t.Errorf("the most operations: %v", err)
	}
}

// forceUnlock proves F6: the old holder can no longer write, the epoch is higher, and the log knows why.
func forceUnlock(t *testing.T, kv state.KV, site string) {
	s := state.New(kv, site)
	ctx := t.Context()
	if err := s.ForceUnlock(ctx, "x", "bob", "why not"); !errors.Is(err, state.ErrNotFound) {
		t.Errorf("nobody's lock: %v", err)
	}
	old := take(t, s)
	work := old.Context(ctx)
	if err := s.ForceUnlock(ctx, "wrong", "bob", "typo"); err == nil || !strings.Contains(err.Error(), old.Info().ID) {
		t.Errorf("a wrong id: %v, want the right one named", err)
	}
	if err := s.ForceUnlock(ctx, old.Info().ID, "bob@host", "its machine burned"); err != nil {
		t.Fatal(err)
	}
	if _, err := old.Commit(ctx, nil, []state.Op{s.RecordOp(record("a"))}); !errors.Is(err, state.ErrFenced) {
		t.Errorf("the old holder writes: %v", err)
	}
	<-work.Done()
	if cause := context.Cause(work); !errors.Is(cause, state.ErrFenced) {
		t.Errorf("the old holder's work ended with %v", cause)
	}
	next := take(t, s)
	if next.Epoch() != old.Epoch()+2 {
		t.Errorf("epoch %d after %d and a force-unlock", next.Epoch(), old.Epoch())
	}
	if err := old.Describe(ctx, "", "still here"); !errors.Is(err, state.ErrFenced) {
		t.Errorf("the old holder describes: %v", err)
	}
	_ = old.Close()
	if _, err := next.Commit(ctx, nil, []state.Op{s.RecordOp(record("b"))}); err != nil {
		t.Errorf("the new holder, after the old one went: %v", err)
	}
	if _, err := s.Record(ctx, record("a").Ref); !errors.Is(err, state.ErrNotFound) {
		t.Errorf("the old holder's record: %v", err)
	}
	audits, err := s.Audits(ctx)
	if err != nil || len(audits) != 1 {
		t.Fatalf("%d entries in the log, %v", len(audits), err)
	}
	a := audits[0]
	if a.By != "bob@host" || a.Reason != "its machine burned" || a.Action != "force-unlock" || a.Epoch != 2 || a.Lock.ID != old.Info().ID {
		t.Errorf("the log says %+v", a)
	}
}

// audits: entries come in the order in which they were written, also those of one second, and of clocks that were set back.
func audits(t *testing.T, kv state.KV, site string) {
	s := state.New(kv, site)
	at := time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)
	var want []string
	for i := range 8 {
		want = append(want, fmt.Sprint(i))
		entry := state.Audit{At: at, By: "ann@host", Action: "token", Scope: fmt.Sprint(i)}
		if i >= 4 {
			entry.At = at.Add(-time.Duration(i) * time.Hour)
		}
		commit(t, kv, nil, []state.Op{s.AuditOp(entry)})
	}
	var got []string
	all, err := s.Audits(t.Context())
	for _, a := range all {
		got = append(got, a.Scope)
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("the log has %v, %v; want %v", got, err, want)
	}
}

// epochRaised: F6: raising the epoch fences the holder, even when the holder's own key is untouched.
func epochRaised(t *testing.T, kv state.KV, site string) {
	ctx := t.Context()
	backup := mem.New(mem.Options{})
	s, other := state.New(kv, site), state.New(backup, site)
	l := take(t, s)
	if _, err := s.Restored(ctx, "ann", "the disk was lost"); !errors.As(err, new(*state.LockedError)) {
		t.Errorf("a restore under a holder: %v", err)
	}
	raised, err := other.Restored(ctx, "ann", "the disk was lost")
	if err != nil || raised != 1000 {
		t.Fatalf("epoch %d, %v", raised, err)
	}
	it, err := backup.Get(ctx, other.Path()+"/epoch")
	if err != nil {
		t.Fatal(err)
	}
	put(t, kv, s.Path()+"/epoch", string(it.Value))
	if _, err := l.Commit(ctx, nil, []state.Op{s.RecordOp(record("a"))}); !errors.Is(err, state.ErrFenced) {
		t.Errorf("got %v, want ErrFenced", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	remove(t, kv, s.Path()+"/leader")
	if next := take(t, s); next.Epoch() != 1001 {
		t.Errorf("epoch %d after it was raised to 1000", next.Epoch())
	}
	if hs, err := other.Holds(ctx); err != nil || len(hs) != 1 || hs[0].Scope != "site" {
		t.Errorf("after a restore %v is held, %v", hs, err)
	}
	if a, err := other.Amended(ctx); err != nil || a.Epoch != 1000 || a.Action != "restored" {
		t.Errorf("the change of the records is noted as %+v, %v", a, err)
	}
	if as, err := other.Audits(ctx); err != nil || len(as) != 1 || as[0].Action != "restored" || as[0].Epoch != 1000 {
		t.Errorf("the log says %+v, %v", as, err)
	}
}

// quarantine: F5: a holder that follows one which did not release the lock waits before it deletes blindly; one that
// follows in order does not.
func quarantine(t *testing.T, kv state.KV, site string) {
	s := state.New(kv, site)
	first := take(t, s)
	if q := first.Quarantine(time.Minute); !q.IsZero() {
		t.Errorf("the first holder waits until %v", q)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := take(t, s)
	if q := second.Quarantine(time.Minute); !q.IsZero() {
		t.Errorf("after a holder that gave the lock back, it waits until %v", q)
	}
	if err := s.ForceUnlock(t.Context(), second.Info().ID, "bob", "gone"); err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	third := take(t, s)
	if rest := third.Quarantine(time.Minute).Sub(before); rest < ttl+time.Minute+5*time.Second {
		t.Errorf("after a forced unlock it waits for %v", rest)
	}
}
