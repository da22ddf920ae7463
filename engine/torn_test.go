package engine_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/state"
)

// A verdict is what an operation on a damaged store must do.
type verdict string

const (
	refuse verdict = "refuse" // fail with an error that names the damaged key, and leave the world as it is
	goOn   verdict = "go on"  // end as it would have without the damage, with the world right
	either verdict = "either" // one of the two, as far as the run had come; what the error names is how the site differs
)

// The operations of a next process: it continues the open run, undoes the run, or applies a document.
const (
	opResume   = "resume"
	opRollback = "rollback"
	opApply    = "apply"
)

// verdicts say what each kind of key must do when its value is spoiled: torn, flipped, exchanged with another key's, or
// a copy of another key's. A kind that an operation does not read cannot stop it.
var verdicts = map[string]map[string]verdict{
	"journal record":       {opResume: refuse, opRollback: refuse, opApply: goOn},
	"journal head":         {opResume: refuse, opRollback: refuse, opApply: goOn},
	"run":                  {opResume: refuse, opRollback: refuse, opApply: refuse},
	"plan":                 {opResume: refuse, opRollback: refuse, opApply: goOn},
	"resource":             {opResume: refuse, opRollback: refuse, opApply: refuse},
	"epoch":                {opResume: refuse, opRollback: refuse, opApply: refuse},
	"leader":               {opResume: refuse, opRollback: refuse, opApply: refuse},
	"other run":            {opResume: refuse, opRollback: refuse, opApply: refuse},
	"other journal record": {opResume: goOn, opRollback: goOn, opApply: goOn},
	"other journal head":   {opResume: goOn, opRollback: goOn, opApply: goOn},
	"other plan":           {opResume: goOn, opRollback: goOn, opApply: goOn},
	"document head":        {opResume: goOn, opRollback: goOn, opApply: refuse},
	"document log":         {opResume: goOn, opRollback: goOn, opApply: goOn}, // read only by history; see reads
	"document chunk":       {opResume: goOn, opRollback: goOn, opApply: goOn}, // read only by show; see reads
	"spent":                {opResume: goOn, opRollback: goOn, opApply: goOn},
	"audit":                {opResume: goOn, opRollback: goOn, opApply: goOn},
}

// lost says what must follow when a key is missing. A kind that is not here must be refused. A value that may be absent can
// be lost unnoticed: a resource that is not recorded is found by its mark, and an unknown run can no longer be undone, but
// its effects are observed.
var lost = map[string]map[string]verdict{
	"run":                  {opApply: goOn},
	"other run":            {opResume: goOn, opRollback: goOn, opApply: goOn},
	"resource":             {opResume: goOn, opRollback: either, opApply: goOn},
	"epoch":                {opResume: goOn, opRollback: goOn, opApply: goOn}, // rises above that of every run
	"leader":               {opResume: goOn, opRollback: goOn, opApply: goOn},
	"document head":        {opResume: goOn, opRollback: goOn, opApply: goOn},
	"journal record":       {opApply: goOn},
	"journal head":         {opApply: goOn},
	"plan":                 {opApply: goOn},
	"other journal record": verdicts["other journal record"],
	"other journal head":   verdicts["other journal head"],
	"other plan":           verdicts["other plan"],
	"document log":         verdicts["document log"],
	"document chunk":       verdicts["document chunk"],
	"spent":                verdicts["spent"],
	"audit":                verdicts["audit"],
}

// rolledBack says what must follow when a key holds an earlier value. Only the head of a journal reveals it, by the records
// that it does not know; all other values are intact, and were once true. The world is observed before it is changed, so
// that the site is right in the end all the same.
var rolledBack = map[string]map[string]verdict{
	"journal head":  {opResume: refuse, opRollback: refuse, opApply: goOn},
	"run":           {opResume: goOn, opRollback: goOn, opApply: goOn}, // but see seems
	"other run":     {opResume: goOn, opRollback: goOn, opApply: goOn},
	"resource":      {opResume: goOn, opRollback: either, opApply: goOn},
	"epoch":         {opResume: goOn, opRollback: goOn, opApply: goOn}, // rises above that of every run
	"document head": {opResume: goOn, opRollback: goOn, opApply: goOn},
}

// damages are the kinds of damage.
var damages = []string{"torn", "emptied", "flipped", "swapped with its like", "swapped with another kind", "copied over", "doubled", "missing", "older", "journals exchanged"}

// A harm is one damage of a store.
type harm struct {
	what  string
	keys  []string
	store map[string][]byte
	want  map[string]verdict // by operation
	named bool               // the error must name a key
}

// harmed damages one key of a moment; ok is false when this damage is not possible there.
func (tr *trace) harmed(t *testing.T, rng *rand.Rand, what string, at int, key string) (h harm, ok bool) {
	t.Helper()
	m := tr.moments[at]
	value, kind := m.store[key], tr.kindOf(m, key)
	h = harm{what: what, keys: []string{key}, store: maps.Clone(m.store), want: maps.Clone(verdicts[kind]), named: true}
	// partner draws another key of the same kind, or of another one.
	partner := func(like bool) (string, bool) {
		base := strings.TrimPrefix(kind, "other ")
		var keys []string
		for _, k := range slices.Sorted(maps.Keys(m.store)) {
			other := tr.kindOf(m, k)
			if other != "" && k != key && (strings.TrimPrefix(other, "other ") == base) == like && !bytes.Equal(m.store[k], value) {
				keys = append(keys, k)
			}
		}
		if len(keys) == 0 {
			return "", false
		}
		return keys[rng.IntN(len(keys))], true
	}
	switch what {
	case "torn":
		if len(value) < 2 {
			return h, false
		}
		h.store[key] = value[:1+rng.IntN(len(value)-1)]
	case "emptied":
		h.store[key] = nil
	case "flipped":
		bent := slices.Clone(value)
		bent[rng.IntN(len(bent))] ^= 1 << rng.IntN(8)
		h.store[key] = bent
	case "swapped with its like", "swapped with another kind":
		with, found := partner(what == "swapped with its like")
		if !found {
			return h, false
		}
		h.store[key], h.store[with] = h.store[with], h.store[key]
		h.keys = append(h.keys, with)
		for op, v := range verdicts[tr.kindOf(m, with)] {
			if v == refuse {
				h.want[op] = refuse
			}
		}
	case "copied over":
		with, found := partner(true)
		if !found {
			return h, false
		}
		h.store[key] = m.store[with]
	case "doubled":
		twin := map[string]string{
			"journal record": fmt.Sprintf("/converge/test/journal/%s/%010d", tr.run, 900),
			"resource":       "/converge/test/resource/site/far.net/twin",
			"run":            "/converge/test/run/" + tr.run + "-twin",
			"plan":           "/converge/test/blob/" + strings.Repeat("0", 64),
		}[kind]
		if twin == "" {
			return h, false
		}
		h.store[twin], h.keys = value, []string{twin}
		switch kind {
		case "plan":
			h.want = verdicts["other plan"]
		}
	case "missing":
		delete(h.store, key)
		for op := range h.want {
			h.want[op] = refuse
			if v, known := lost[kind][op]; known {
				h.want[op] = v
			}
		}
		h.named = kind != "run" // what is missing is not known by name
		if kind == "journal record" {
			h.keys = append(h.keys, after(m, key)) // the gap shows there
		}
	case "older":
		var old []byte
		for i := at - 1; i >= 0 && old == nil; i-- {
			if v, was := tr.moments[i].store[key]; was && !bytes.Equal(v, value) {
				old = v
			}
		}
		if old == nil || rolledBack[kind] == nil {
			return h, false
		}
		h.store[key], h.want = old, rolledBack[kind]
		if kind == "run" {
			h.want = seems(t, old)
			h.keys = append(h.keys, "run "+tr.run+" is still open", "there is no run to resume")
		}
	case "journals exchanged":
		mine := "/converge/test/journal/" + tr.run + "/"
		if !strings.HasPrefix(key, mine) || tr.run == "" {
			return h, false
		}
		theirs := ""
		for k := range m.store {
			if strings.HasPrefix(k, "/converge/test/journal/") && !strings.HasPrefix(k, mine) {
				theirs = k[:strings.LastIndex(k, "/")+1]
			}
		}
		h.keys = nil
		for k, v := range m.store {
			for _, pair := range [][2]string{{mine, theirs}, {theirs, mine}} {
				if rest, found := strings.CutPrefix(k, pair[0]); found {
					if _, both := m.store[pair[1]+rest]; !both {
						delete(h.store, k)
					}
					h.store[pair[1]+rest] = v
					h.keys = append(h.keys, pair[1]+rest)
				}
			}
		}
		h.want = verdicts["journal record"]
	}
	return h, true
}

// names reports whether an error names one of the damaged keys.
func (h harm) names(err error) bool {
	return slices.ContainsFunc(h.keys, func(key string) bool { return strings.Contains(err.Error(), key) })
}

// L, W4, W8: whatever the last commit of a process was, and whatever happened to one or two values of the store, the next process
// does what it would have done without the damage, or names the damaged key and leaves the world alone; and once the value is
// repaired, it does. Nothing is created twice.
func TestTortureTornState(t *testing.T) {
	traces, toStep := torture.Scale(6, 30, 2000), torture.Scale(1, 5, 330)
	var kinds []string
	for kind := range verdicts {
		kinds = append(kinds, kind)
	}
	covered := []*torture.Coverage{
		torture.Cover(t, "kinds of traces", traceKinds),
		torture.Cover(t, "kinds of keys", kinds),
		torture.Cover(t, "kinds of damage", damages),
		torture.Cover(t, "verdicts", []string{"refuse resume", "refuse rollback", "refuse apply", "go on resume", "go on rollback", "go on apply", "either rollback"}),
	}
	ends := torture.Cover(t, "ends after a crash", []string{"applied", "reverted", "rolled-back"})
	var prefixes, cases, kept atomic.Int64
	begin := time.Now()
	t.Run("traces", func(t *testing.T) {
		for i := range traces + toStep {
			kind := traceKinds[i%(len(traceKinds)-1)]
			if i >= traces { // after the others, so that each of these stays the same
				kind = traceToStep
			}
			t.Run(fmt.Sprintf("%d %s", i, kind), func(t *testing.T) {
				t.Parallel()
				tr := record(t, kind, i)
				covered[0].Reach(tr.kind)
				rng := rand.New(rand.NewPCG(1, uint64(i)))
				prefixes.Add(tr.crashes(t, ends))
				// One moment in the middle and the last one; every key there, with random damages.
				for _, at := range []int{2 + rng.IntN(len(tr.moments)-3), len(tr.moments) - 1} {
					cases.Add(tr.harms(t, rng, at, covered))
				}
				kept.Add(tr.kept)
			})
		}
	})
	torture.Report(t, "L", "%d traces, %d crashes after a commit, %d damaged stores in %s; %s; %s; %s; ends after a crash: %s; 0 things twice; %d sites kept a field that a lost record had explained",
		traces+toStep, prefixes.Load(), cases.Load(), time.Since(begin).Round(time.Second), covered[1], covered[2], covered[3], ends, kept.Load())
}

// crashes makes the process die after each commit, with the world as it was then, and as it was right before the next.
func (tr *trace) crashes(t *testing.T, ends *torture.Coverage) (n int64) {
	t.Helper()
	for at := 0; at < len(tr.moments); at += torture.Scale(4, 1, 1) {
		m := tr.moments[at]
		worlds := []string{m.world}
		if at+1 < len(tr.moments) && tr.moments[at+1].world != m.world {
			worlds = append(worlds, tr.moments[at+1].world)
		}
		for v, world := range worlds {
			s := revive(t, withoutLock(m.store), world)
			for _, op := range tr.operations(t, m)[:1] {
				got := tr.do(t, s, op)
				var held *engine.HeldError
				if op == opApply && errors.As(got.err, &held) { // the revision is held, as it must be
					s.Release(t)
					got = tr.do(t, s, op)
				}
				name := fmt.Sprintf("%s run, %d of %d commits, world %d: %s", tr.kind, at, len(tr.moments), v, op)
				if got.err != nil {
					t.Errorf("%s: %v", name, got.err)
				} else if got.status != state.RunApplied && got.status != state.RunReverted && (got.status != state.RunRolledBack || tr.kind != traceToStep) {
					t.Errorf("%s: ended %q", name, got.status)
				} else {
					ends.Reach(string(got.status))
				}
				if wrong := tr.right(t, s, op, got, nil); wrong != "" {
					t.Errorf("%s: %s", name, wrong)
				}
				n++
			}
		}
	}
	return n
}

func withoutLock(store map[string][]byte) map[string][]byte {
	m := maps.Clone(store)
	delete(m, "/converge/test/leader")
	return m
}

// harms damages the keys of a moment one after the other.
func (tr *trace) harms(t *testing.T, rng *rand.Rand, at int, covered []*torture.Coverage) (n int64) {
	t.Helper()
	m := tr.moments[at]
	perKind := map[string]int{}
	keys := slices.SortedFunc(maps.Keys(m.store), func(a, b string) int { // reproducible, as far as names do not depend on the time
		return cmp.Or(strings.Compare(tr.kindOf(m, a), tr.kindOf(m, b)), strings.Compare(a, b))
	})
	rng.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	for _, key := range keys {
		kind := tr.kindOf(m, key)
		if perKind[kind]++; kind == "" || perKind[kind] > 4 {
			continue
		}
		for _, i := range rng.Perm(len(damages))[:torture.Scale(2, 5, 5)] {
			d, ok := tr.harmed(t, rng, damages[i], at, key)
			if !ok {
				continue
			}
			if kind != "leader" && !slices.ContainsFunc(d.keys, func(k string) bool { return strings.HasSuffix(k, "/leader") }) {
				d.store = withoutLock(d.store)
			} else if d.what != "missing" && !d.spoils(m, "/converge/test/leader") {
				continue
			}
			covered[1].Reach(kind)
			covered[2].Reach(d.what)
			for _, op := range tr.operations(t, m) {
				covered[3].Reach(string(d.want[op]) + " " + op)
				tr.suffer(t, m, kind, d, op)
				n++
			}
		}
	}
	return n
}

// A hold or a freeze stops even when its value is damaged: it was set for a reason. A missing one is undetectable; a release
// leaves nothing else behind.
func TestTortureDamagedStopStops(t *testing.T) {
	scopes := []string{"site", "n1", "n1/near.port/p0", "serial:1", "run:site", "run:n1", "run:serial:1", "freeze"} // as their keys have them
	covered := torture.Cover(t, "stops", scopes)
	cases := 0
	for _, scope := range scopes {
		s := enginetest.New()
		ctx := context.Background()
		d := s.Document(t, base)
		s.Converge(t, d)
		p := s.Plan(t, s.Document(t, twelve), plan.Options{})
		if strings.HasSuffix(scope, "serial:1") { // the newest revision, and a plan that would try it again
			if err := s.World.Remove("n1", "near.port", "p0"); err != nil {
				t.Fatal(err)
			}
			p = s.Plan(t, d, plan.Options{})
		}
		before := s.World.Dump()
		key := "/converge/test/hold/" + scope
		says := strings.TrimPrefix(scope, "run:") + " is on hold"
		err := errors.Join(s.Store.Hold(ctx, "elsewhere", "ada", "maintenance"), s.Store.Release(ctx, "elsewhere", "ada", "")) // for the audit log
		h := state.Hold{Scope: scope, Reason: "maintenance", By: "ada"}
		if of, run := strings.CutPrefix(scope, "run:"); run {
			h = state.Hold{Scope: of, Reason: "a run before"}
		}
		if scope == "freeze" {
			key, says = "/converge/test/freeze", "the site is frozen" // whoever set the freeze, and whatever the value
			err = errors.Join(err, s.Store.SetFreeze(ctx, true, "ada", "maintenance"))
		} else {
			_, herr := s.KV.Commit(ctx, nil, []state.Op{s.Store.HoldOp(h)})
			err = errors.Join(err, herr)
		}
		// One that belongs to a run, which would not stop that run.
		_, herr := s.KV.Commit(ctx, nil, []state.Op{s.Store.HoldOp(state.Hold{Scope: "elsewhere", Reason: "a run", Run: "r"})})
		it, gerr := s.KV.Get(ctx, key)
		other, oerr := s.KV.Get(ctx, "/converge/test/hold/run:elsewhere")
		audits, lerr := s.KV.List(ctx, "/converge/test/audit/")
		if err := errors.Join(err, herr, gerr, oerr, lerr); err != nil {
			t.Fatal(err)
		}
		if it.Modified == 0 || other.Modified == 0 {
			t.Fatalf("%s: there is nothing to damage", key)
		}
		values := map[string][]byte{"whole": it.Value, "emptied": nil, "copied over": other.Value, "an audit": audits[0].Value}
		for n := 1; n < len(it.Value); n += 7 {
			values[fmt.Sprint("torn at ", n)] = it.Value[:n]
			bent := slices.Clone(it.Value)
			bent[n] ^= 1 << (n % 8)
			values[fmt.Sprint("flipped at ", n)] = bent
		}
		for what, v := range values {
			if _, err := s.KV.Commit(ctx, nil, []state.Op{{Key: key, Value: v}}); err != nil {
				t.Fatal(err)
			}
			_, err := s.Apply(p, engine.ApplyOptions{})
			var held *engine.HeldError
			switch {
			case !errors.As(err, &held):
				t.Errorf("%s, %s: not held: %v", scope, what, err)
			case what != "whole" && !strings.Contains(err.Error(), says):
				t.Errorf("%s, %s: the error does not say %s: %v", scope, what, says, err)
			}
			if s.World.Dump() != before {
				t.Fatalf("%s, %s: the world was changed", scope, what)
			}
			cases++
		}
		covered.Reach(scope)
		s.Release(t)
		if err := s.Store.SetFreeze(ctx, false, "ada", "done"); err != nil {
			t.Fatal(err)
		}
		if res, err := s.Apply(p, engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunApplied {
			t.Errorf("%s: after its release: %s, %v", scope, res.Run.Status, err)
		}
	}
	torture.Report(t, "L", "%d damaged holds and freezes: each stopped; %s", cases, covered)
}

// Damage in the middle of a journal does not hide what is intact: the error of an undo names the record, and a repaired record
// lets the undo succeed with the world as it was.
func TestTortureUndoSaysWhyNot(t *testing.T) {
	s := enginetest.New()
	ctx := context.Background()
	s.Converge(t, s.Document(t, base))
	before := s.World.Dump()
	res, err := s.Apply(s.Plan(t, s.Document(t, twelve), plan.Options{}), engine.ApplyOptions{})
	if err != nil || res.Run.Status != state.RunApplied {
		t.Fatal(res.Run.Status, err)
	}
	log, err := journal.Read(ctx, s.Store, res.Run.ID)
	if err != nil {
		t.Fatal(err)
	}
	applied, outcomes := s.World.Dump(), 0
	rollback := func() error {
		e := s.Engine(nil)
		defer e.Close()
		_, err := e.Rollback(ctx, res.Run.ID, engine.ApplyOptions{})
		return err
	}
	for _, rec := range log.Records {
		if rec.Kind != journal.Outcome {
			continue
		}
		outcomes++
		key := s.Store.JournalKey(res.Run.ID, rec.Seq)
		it, err := s.KV.Get(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		// The most tempting damage: it claims that nothing was changed, so that there would be nothing to undo.
		lie := bytes.Replace(it.Value, []byte(`"result":"done"`), []byte(`"result":"refused"`), 1)
		if bytes.Equal(lie, it.Value) {
			t.Fatalf("%s is not an outcome: %s", key, it.Value)
		}
		put := func(v []byte) {
			if _, err := s.KV.Commit(ctx, nil, []state.Op{{Key: key, Value: v}}); err != nil {
				t.Fatal(err)
			}
		}
		put(lie)
		err = rollback()
		// The record after it reveals the damage too; either name leads there.
		if err == nil || !strings.Contains(err.Error(), key) && !strings.Contains(err.Error(), s.Store.JournalKey(res.Run.ID, rec.Seq+1)) {
			t.Errorf("%s: the undo does not say why not: %v", key, err)
		}
		if s.World.Dump() != applied {
			t.Fatalf("%s: the world was changed", key)
		}
		put(it.Value)
	}
	if err := rollback(); err != nil {
		t.Fatal(err)
	}
	if now := s.World.Dump(); now != before {
		t.Errorf("the world is not as before:\n%s", now)
	}
	torture.Report(t, "L", "%d outcomes of a journal that lied: no undo followed them; with the last one mended, all was undone", outcomes)
}
