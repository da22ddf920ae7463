package engine_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/state"
)

// gridBatch is how many things are in progress at the same time when one fault affects them all.
const gridBatch = 12

// Half a batch: many calls are in progress at the same time, and all replies are lost; the odd ones had no effect, the even
// ones had. Once replies arrive again the run continues, where that can be known; when in the end one step is refused, all
// of it is undone, and what cannot be known is named and held.
func TestTortureHalfABatch(t *testing.T) {
	var names []string
	for _, p := range gridProfiles() {
		for _, verb := range []string{"create", "update", "delete"} {
			names = append(names, p.name+" "+verb+" once", p.name+" "+verb+" for good")
		}
	}
	cover := torture.Cover(t, "batches", names)
	for _, p := range gridProfiles() {
		for _, verb := range []string{"create", "update", "delete"} {
			for _, often := range []string{"once", "for good"} {
				t.Run(strings.ReplaceAll(p.name+"/"+verb+"/"+often, " ", "-"), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						c := &gridCell{T: t, profile: p, Site: enginetest.New()}
						c.World.Traits = map[string]providers.Traits{gridHost.Kind: p.traits, "far.guard": fake.NodeTraits()}
						c.batch(verb, often)
						cover.Reach(p.name + " " + verb + " " + often)
					})
				})
			}
		}
	}
	torture.Report(t, "E", "half a batch: %d batches of %d calls under way at the same time", len(names), gridBatch)
}

func (c *gridCell) batch(verb, often string) {
	first, last := map[string]string{gridKeep: `{}`}, map[string]string{gridKeep: `{}`}
	for i := range gridBatch {
		ref := fmt.Sprintf("site/far.host/h%02d", i)
		if verb != "create" {
			first[ref] = `{"size":1}`
		}
		if verb != "delete" {
			last[ref] = `{"size":2}`
		}
	}
	c.apply(c.Document(c, first), "the beginning")
	before := c.things()
	times := 1
	if often == "for good" {
		times = gridAlways
	}
	for i := range gridBatch {
		f := fake.Fault{Op: verb, Ref: fmt.Sprintf("site/far.host/h%02d", i), Class: providers.Unknown, Times: times, Effect: fake.EffectAfter}
		if i%2 == 1 {
			f.Effect = fake.EffectBefore
		}
		if i == gridBatch-1 && often == "for good" {
			f.Class = providers.Invalid
		}
		if err := c.World.Fail(f); err != nil {
			c.Fatal(err)
		}
	}
	var mu sync.Mutex
	flying, most := 0, 0
	together := make(chan struct{}) // closed when all calls are in progress
	c.World.Hook = func(op string, at fake.Moment, call providers.Call) {
		if op != verb || call.Ref.Kind != gridHost.Kind || at != fake.Before {
			return
		}
		mu.Lock()
		if flying++; flying == gridBatch {
			most = gridBatch
			close(together)
		}
		mu.Unlock()
		<-together
	}
	e := c.Engine(c.options(c.Store, gridBatch))
	defer e.Close()
	p, err := e.Plan(context.Background(), c.Document(c, last), plan.Options{})
	if err != nil {
		c.Fatal(err)
	}
	res, err := e.Apply(context.Background(), p, engine.ApplyOptions{Approve: p.Approval()})
	if err != nil {
		c.Fatal(err)
	}
	if most != gridBatch {
		c.Fatalf("%d calls were under way at the same time", flying)
	}
	c.World.Hook = nil
	traits := c.profile.traits
	guess := verb == "create" && traits.Create == providers.Blind  // the outcome of the odd ones cannot be known
	forward := verb == "delete" && !traits.UndoDelete.Reversible() // a delete without return is not undone
	status, holds := state.RunApplied, ""
	switch {
	case guess, forward && often == "for good":
		status, holds = state.RunPartial, "serial+site"
	case often == "for good":
		status, holds = state.RunReverted, "serial+site" // more than a fifth of the wave failed
	}
	if res.Run.Status != status || enginetest.Holds(c.T, c.Store) != holds {
		c.Errorf("ended %s with the holds %q, want %s and %q: %s %v", res.Run.Status, enginetest.Holds(c.T, c.Store), status, holds, res.Run.Message, res.Differences)
	}
	c.sizes(verb, status, guess || forward, before)
	if status == state.RunPartial {
		var named []string
		for _, d := range res.Differences {
			named = append(named, d.Ref.Name)
		}
		var odd []string
		for i := 1; i < gridBatch; i += 2 {
			if !(guess && often == "for good" && i == gridBatch-1) { // that one was certainly refused
				odd = append(odd, fmt.Sprintf("h%02d", i))
			}
		}
		if !slices.Equal(named, odd) {
			c.Errorf("the differences name %v, want %v", named, odd)
		}
	}
	// All late effects have come, the far side is well: what is left to do is done, each thing once.
	c.mend()
	time.Sleep(gridLate)
	if res.Run.Status == state.RunPartial && !guess {
		if res, err = c.resume(); err != nil || res.Run.Status != state.RunApplied {
			c.Fatal(res.Run.Status, res.Differences, err)
		}
	}
	c.Release(c)
	if got := c.apply(c.Document(c, last), "again"); got != state.RunApplied {
		c.Errorf("applied again it ended %s", got)
	}
	c.sizes(verb, state.RunApplied, false, before)
	if p := c.Site.Plan(c, c.Document(c, last), plan.Options{}); !p.Empty() || len(p.Unmanaged) > 0 {
		c.Errorf("something is left:\n%s", enginetest.Text(p))
	}
}

// sizes compares the world with what a run of that status leaves: all things as wanted, all as before, or when half of it
// permanently failed, the odd ones as before.
func (c *gridCell) sizes(verb string, status state.RunStatus, half bool, before map[string]gridThing) {
	c.Helper()
	now := c.things()
	count, wanted := len(now), 0
	for _, th := range now {
		if fmt.Sprint(th.Spec["size"]) == "2" {
			wanted++
		}
	}
	want := map[string][2]int{"create": {gridBatch, gridBatch}, "update": {gridBatch, gridBatch}, "delete": {0, 0}}[verb]
	switch {
	case status == state.RunApplied:
	case half && verb == "delete":
		want = [2]int{gridBatch / 2, 0}
	default:
		want = [2]int{len(before), 0}
	}
	if count != want[0] || wanted != want[1] {
		c.Errorf("there are %d things, %d of them as wanted; want %v: %v", count, wanted, want, now)
	}
}
