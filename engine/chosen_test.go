package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A chooser is a far side that creates things under ids of its own choice.
type chooser struct {
	providers.Kind
	tells bool  // its replies name them
	fails error // its reply after the first thing was created
	made  *int
}

func (c chooser) Create(ctx context.Context, call providers.Call) error {
	*c.made++
	id := fmt.Sprintf("chosen-%d", *c.made)
	if c.tells {
		call.Chose(id)
	}
	call.ID = id
	if err := c.Kind.Create(ctx, call); err != nil {
		return err
	}
	if *c.made == 1 {
		return c.fails
	}
	return nil
}

// site opens the world with a far side that chooses the ids of hosts.
func (c chooser) site(t *testing.T, marks bool) *enginetest.Site {
	s := enginetest.New()
	traits := fake.NodeTraits()
	traits.ID, traits.Mark, traits.IDsNotReusable, traits.EffectWithin = "", marks, true, gridLate
	s.World.Traits = map[string]providers.Traits{gridHost.Kind: traits, "far.guard": fake.NodeTraits()}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.World.Dump())
		}
	})
	return s
}

func (c chooser) engine(s *enginetest.Site) *engine.Engine {
	return s.Engine(func(o *engine.Options) {
		o.Parallelism = 1
		o.Open = func(context.Context, schema.Site, []providers.Need) (*providers.Set, error) {
			far := s.World.Provider("far", schema.ScopeSite)
			for i := range far.Kinds {
				if far.Kinds[i].Name == gridHost.Kind {
					c.Kind = far.Kinds[i].Kind
					far.Kinds[i].Kind = c
				}
			}
			return providers.NewSet(far)
		}
	})
}

// hosts counts the hosts of the world.
func hosts(s *enginetest.Site) int { return strings.Count(s.World.Dump(), `"chosen-`) }

// Promise 1 on a far side that chooses ids: what its reply names is what was created, and what is undone.
func TestFarSideChoosesIDs(t *testing.T) {
	lost := &providers.Error{Op: "create", Ref: gridHost, Class: providers.Unknown, Err: errors.New("no answer")}
	for _, c := range []struct {
		name         string
		tells, marks bool
		fails        error
	}{
		{"its answer names the id", true, true, nil},
		{"its answer names the id, and nothing is marked", true, false, nil},
		{"only the mark tells", false, true, nil},
		{"no answer, the mark tells", false, true, lost},
		{"the call fails after the answer", true, false, lost},
	} {
		for _, fails := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, fails %t", c.name, fails), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					far := chooser{tells: c.tells, fails: c.fails, made: new(int)}
					s := far.site(t, c.marks)
					before := s.World.Dump()
					doc := map[string]string{gridHost.String(): `{"size":1}`}
					if fails {
						doc[gridTrip] = `{"cidr":"10.0.0.0/8"}` // after the host, one at a time
						if err := s.World.Fail(fake.Fault{Op: "create", Ref: gridTrip, Class: providers.Invalid, Times: gridAlways}); err != nil {
							t.Fatal(err)
						}
					}
					e := far.engine(s)
					defer e.Close()
					p, err := e.Plan(t.Context(), s.Document(t, doc), plan.Options{})
					if err != nil {
						t.Fatal(err)
					}
					res, err := e.Apply(t.Context(), p, engine.ApplyOptions{Approve: p.Approval()})
					if err != nil {
						t.Fatal(err)
					}
					if *far.made == 0 {
						t.Fatal("no host was made")
					}
					if fails {
						if now := s.World.Dump(); res.Run.Status != state.RunReverted || hosts(s) != 0 {
							t.Fatalf("the run ended %s, and %d hosts are left:\n%s\nbefore:\n%s", res.Run.Status, hosts(s), now, before)
						}
						return
					}
					if res.Run.Status != state.RunApplied || hosts(s) != 1 {
						t.Fatalf("the run ended %s (%s), with %d hosts", res.Run.Status, res.Run.Message, hosts(s))
					}
					again, err := e.Plan(t.Context(), s.Document(t, doc), plan.Options{})
					if err != nil || !again.Empty() {
						t.Errorf("a second plan has %d steps (%v)", len(again.Steps), err)
					}
					if res, err := e.Rollback(t.Context(), "", engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunReverted || hosts(s) != 0 {
						t.Errorf("the rollback ended %s (%v), and %d hosts are left", res.Run.Status, err, hosts(s))
					}
				})
			})
		}
	}
}

// Where neither a reply nor a mark reveals it, a created thing cannot be found: the run does not claim to be reverted.
func TestChosenIDThatNobodyTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		far := chooser{made: new(int)}
		s := far.site(t, false)
		e := far.engine(s)
		defer e.Close()
		p, err := e.Plan(t.Context(), s.Document(t, map[string]string{gridHost.String(): `{"size":1}`}), plan.Options{})
		if err != nil {
			t.Fatal(err)
		}
		res, err := e.Apply(t.Context(), p, engine.ApplyOptions{Approve: p.Approval()})
		if err != nil || res.Run.Status != state.RunPartial || len(res.Differences) != 1 {
			t.Fatalf("the run ended %s with %v (%v)", res.Run.Status, res.Differences, err)
		}
	})
}
