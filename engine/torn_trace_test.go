package engine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// A moment is the state right after a commit, if the process died then.
type moment struct {
	store map[string][]byte
	world string // as in the world's file, with its things, burned ids and versions
}

// A trace is the history of one run, commit by commit.
type trace struct {
	kind    string
	desired map[string]string // the document
	start   string            // the world before the run
	exact   bool              // every step can be undone exactly
	run     string
	moments []moment
	kept    int64 // sites that still differed from the document because a lost record had explained a field
}

// Kinds of traces.
const (
	traceApplied     = "applied"
	traceReverted    = "reverted"
	tracePartial     = "partial"
	traceInterrupted = "interrupted"
	traceResumed     = "resumed"
	traceRolledBack  = "rolled back"
	traceToStep      = "rolled back to a step"
)

var traceKinds = []string{traceApplied, traceReverted, tracePartial, traceInterrupted, traceResumed, traceRolledBack, traceToStep}

// anySite draws a document by number.
var anySite = rapid.Custom(func(t *rapid.T) map[string]string { return site(t, "") })

// record makes a trace of a random plan. It is reproducible from the seed.
func record(t *testing.T, kind string, seed int) *trace {
	t.Helper()
	for ; ; seed += 1000 {
		if tr := tryRecord(t, kind, seed); tr != nil {
			return tr
		}
	}
}

// tryRecord returns nil when the plan of the seed is too small for a trace of the kind.
func tryRecord(t *testing.T, kind string, seed int) *trace {
	t.Helper()
	s := enginetest.New()
	ctx := context.Background()
	// The site was held and released once, so that there is an audit log.
	for _, err := range []error{s.Store.Hold(ctx, "n1", "ada", "maintenance"), s.Store.Release(ctx, "n1", "ada", "done")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s.Converge(t, s.Document(t, anySite.Example(2*seed)))
	tr := &trace{kind: kind, desired: anySite.Example(2*seed + 1), start: s.World.Dump()}
	p := s.Plan(t, s.Document(t, tr.desired), plan.Options{Unlimited: true, AllowMissing: true})
	tr.exact = p.NoReturn == len(p.Steps)
	keep, _ := p.Whole(len(p.Steps) / 2)
	exact := kind != traceRolledBack && kind != traceToStep || tr.exact
	if len(p.Steps) < 5 || p.NoReturn < 4 || len(p.Refusals) > 0 || !exact || (kind == traceToStep && keep == 0) {
		return nil
	}
	var mu sync.Mutex
	look := func() {
		mu.Lock()
		defer mu.Unlock()
		items, err := s.KV.List(ctx, "/")
		if err != nil {
			t.Error(err)
		}
		m := moment{store: make(map[string][]byte, len(items)), world: s.World.Snapshot()}
		for _, it := range items {
			m.store[it.Key] = it.Value
		}
		tr.moments = append(tr.moments, m)
	}
	look()
	kv := s.KV.Connect(mem.Options{Fault: func(c mem.Call) error {
		if c.Name == "commit" && c.Done {
			look()
		}
		return nil
	}})
	// One step at a time: then at most one effect lies between two commits.
	e := s.Engine(func(o *engine.Options) { o.Store, o.Parallelism = state.New(kv, "test"), 1 })
	defer e.Close()
	o := engine.ApplyOptions{Approve: p.Approval()}
	last := p.Steps[p.NoReturn-1]
	switch kind {
	case tracePartial:
		undo := p.Steps[0]
		nth := 1
		if undo.Action == plan.Update {
			nth = 2
		}
		fail(t, s, fake.Fault{Op: string(undo.Inverse()), Ref: undo.Ref.String(), Nth: nth, Times: 1, Class: providers.Invalid})
		fallthrough
	case traceReverted:
		if !slices.Contains([]plan.Action{plan.Create, plan.Update, plan.Delete}, last.Action) || last.Ref == p.Steps[0].Ref {
			return nil
		}
		fail(t, s, fake.Fault{Op: string(last.Action), Ref: last.Ref.String(), Class: providers.Invalid})
	case traceInterrupted, traceResumed:
		interrupt := make(chan struct{})
		o.Interrupt = interrupt
		var n int
		s.World.Hook = func(op string, at fake.Moment, _ providers.Call) {
			if op != "observe" && at == fake.Before {
				if n++; n == 2 {
					close(interrupt)
				}
			}
		}
	}
	res, err := e.Apply(ctx, p, o)
	s.World.Hook = nil
	tr.run = res.Run.ID
	want := map[string]state.RunStatus{traceApplied: state.RunApplied, traceReverted: state.RunReverted, tracePartial: state.RunPartial,
		traceInterrupted: state.RunOpen, traceResumed: state.RunOpen, traceRolledBack: state.RunApplied, traceToStep: state.RunApplied}[kind]
	if err != nil && !errors.Is(err, engine.ErrInterrupted) {
		t.Fatalf("%s, seed %d: %v", kind, seed, err)
	}
	if res.Run.Status != want {
		return nil // the step could be left out, or the world tolerated the fault
	}
	switch kind {
	case traceResumed:
		res, err = e.Resume(ctx, tr.run, engine.ApplyOptions{})
	case traceRolledBack:
		res, err = e.Rollback(ctx, tr.run, engine.ApplyOptions{})
	case traceToStep:
		res, err = e.Rollback(ctx, tr.run, engine.ApplyOptions{Keep: keep})
	}
	if err != nil && !errors.Is(err, engine.ErrInterrupted) || kind == traceToStep && res.Run.Kept != keep {
		t.Fatalf("%s, seed %d: %s, %v", kind, seed, res.Run.Stands(), err)
	}
	look()
	return tr
}

func fail(t *testing.T, s *enginetest.Site, f fake.Fault) {
	t.Helper()
	if err := s.World.Fail(f); err != nil {
		t.Fatal(err)
	}
}

// revive recreates the site of a moment, with the world of another, including all late effects. Nothing fails there.
func revive(t *testing.T, store map[string][]byte, world string) *enginetest.Site {
	t.Helper()
	s := enginetest.New()
	var content map[string]any
	if err := json.Unmarshal([]byte(world), &content); err != nil {
		t.Fatal(err)
	}
	delete(content, "faults")
	text, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	if s.World, err = fake.Parse(text, s.Kinds); err != nil {
		t.Fatal(err)
	}
	put(t, s, store)
	return s
}

// put makes the store hold exactly these values. A lock is not among them: the lease of a dead process expires.
func put(t *testing.T, s *enginetest.Site, store map[string][]byte) {
	t.Helper()
	have, err := s.KV.List(context.Background(), "/")
	if err != nil {
		t.Fatal(err)
	}
	var ops []state.Op
	for _, it := range have {
		if v, ok := store[it.Key]; !ok {
			ops = append(ops, state.Op{Key: it.Key, Delete: true})
		} else if bytes.Equal(v, it.Value) {
			continue
		}
	}
	for key, v := range store {
		ops = append(ops, state.Op{Key: key, Value: v})
	}
	for part := range slices.Chunk(ops, state.MaxOps) {
		if _, err := s.KV.Commit(context.Background(), nil, part); err != nil {
			t.Fatal(err)
		}
	}
}

// An end is how an operation ended.
type end struct {
	status  state.RunStatus
	err     error
	touched bool // the world is not as before
}

// do carries out one operation, as a process of its own.
func (tr *trace) do(t *testing.T, s *enginetest.Site, op string) (got end) {
	t.Helper()
	before := s.World.Dump()
	e := s.Engine(func(o *engine.Options) { o.Parallelism = 3 })
	defer e.Close()
	defer func() {
		if p := recover(); p != nil {
			t.Errorf("%s of a %s run panicked: %v", op, tr.kind, p)
			got.err = fmt.Errorf("panic: %v", p)
		}
		got.touched = s.World.Dump() != before
	}()
	ctx := context.Background()
	var res engine.Result
	var err error
	switch op {
	case opResume:
		res, err = e.Resume(ctx, "", engine.ApplyOptions{OnFailure: apply.Rollback})
	case opRollback:
		res, err = e.Rollback(ctx, tr.run, engine.ApplyOptions{})
	case opApply:
		var p *plan.Plan
		if p, err = e.Plan(ctx, s.Document(t, tr.desired), plan.Options{Unlimited: true, AllowMissing: true}); err == nil {
			res, err = e.Apply(ctx, p, engine.ApplyOptions{Approve: p.Approval()})
		}
	}
	return end{status: res.Run.Status, err: err}
}

// operations returns what a next process may do at a moment.
func (tr *trace) operations(t *testing.T, m moment) []string {
	t.Helper()
	text, known := m.store["/converge/test/run/"+tr.run]
	if !known {
		return []string{opApply}
	}
	var run state.Run
	if err := json.Unmarshal(text, &run); err != nil {
		t.Fatal(err)
	}
	var ops []string
	switch run.Status {
	case state.RunOpen, state.RunPartial:
		ops = []string{opResume}
	default:
		ops = []string{opApply}
	}
	if tr.exact && run.Status != state.RunReverted {
		ops = append(ops, opRollback)
	}
	return ops
}

// right returns how the site is not as it must be in the end; "" when it is. A thing whose record is forgotten, and that no
// document wants any more, is reported and left alone.
func (tr *trace) right(t *testing.T, s *enginetest.Site, op string, got end, forgotten []string) string {
	t.Helper()
	s.Release(t)
	if op == opRollback {
		if now := s.World.Dump(); now != tr.start {
			return "the world is not as before the run:\n" + lines(tr.start, now)
		}
		return ""
	}
	// Whatever the end was, a next apply converges, and then nothing is left to do and nothing exists twice.
	for range 3 {
		p := s.Plan(t, s.Document(t, tr.desired), plan.Options{Unlimited: true, AllowMissing: true})
		strays := slices.DeleteFunc(p.Unmanaged, func(f plan.Unmanaged) bool {
			return slices.Contains(forgotten, "/converge/test/resource/"+f.Scope+"/"+f.Kind+"/"+f.Name)
		})
		if p.Empty() && len(strays) == 0 {
			return ""
		}
		if next := tr.do(t, s, opApply); next.err != nil {
			return fmt.Sprintf("after %s ended %s: %v", op, got.status, next.err)
		}
	}
	return "it does not converge:\n" + enginetest.Text(s.Plan(t, s.Document(t, tr.desired), plan.Options{Unlimited: true, AllowMissing: true}))
}

// lines returns the lines that only one of two texts has.
func lines(before, after string) string {
	count := map[string]int{}
	for _, l := range strings.Split(before, "\n") {
		count["- "+l]++
	}
	for _, l := range strings.Split(after, "\n") {
		if count["- "+l]--; count["- "+l] < 0 {
			count["- "+l] = 0
			count["+ "+l]++
		}
	}
	maps.DeleteFunc(count, func(_ string, n int) bool { return n == 0 })
	return strings.Join(slices.Sorted(maps.Keys(count)), "\n")
}

// kindOf returns the kind of a key; "" for what is never read as a value.
func (tr *trace) kindOf(m moment, key string) string {
	rest, _ := strings.CutPrefix(key, "/converge/test/")
	first, after, _ := strings.Cut(rest, "/")
	other := func(mine bool, kind string) string {
		if mine {
			return kind
		}
		return "other " + kind
	}
	switch first {
	case "journal":
		kind := "journal record"
		if strings.HasSuffix(after, "/head") {
			kind = "journal head"
		}
		return other(strings.HasPrefix(after, tr.run+"/") && tr.run != "", kind)
	case "run":
		return other(after == tr.run, "run")
	case "blob":
		var run state.Run
		_ = json.Unmarshal(m.store["/converge/test/run/"+tr.run], &run) // of a moment before the run: there is none
		return other(slices.Contains(run.Body, after), "plan")
	case "document":
		switch word, _, _ := strings.Cut(after, "/"); word {
		case "head", "log", "chunk":
			return "document " + word
		}
	case "resource", "epoch", "leader", "spent", "audit":
		return first
	}
	return ""
}

// seems returns what must follow when a run has an earlier state.
func seems(t *testing.T, old []byte) map[string]verdict {
	t.Helper()
	var run state.Run
	if err := json.Unmarshal(old, &run); err != nil {
		t.Fatal(err)
	}
	want := maps.Clone(rolledBack["run"])
	switch run.Status {
	case state.RunOpen:
		want[opApply] = refuse // it seems to be open
	case state.RunApplied, state.RunReverted, state.RunRolledBack:
		want[opResume] = refuse // there seems to be nothing to resume
	}
	return want
}

// after returns the key of the record, or the head, that follows a record.
func after(m moment, key string) string {
	keys := slices.Sorted(maps.Keys(m.store))
	return keys[slices.Index(keys, key)+1]
}
