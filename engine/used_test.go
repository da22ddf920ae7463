package engine_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// use makes and removes the first incarnations of a resource, of which the store knows nothing.
func use(t *testing.T, s *enginetest.Site, ref schema.Ref, incarnations int) {
	t.Helper()
	far := s.World.Provider("far", ref.Scope)
	for _, k := range far.Kinds {
		for n := 1; n <= incarnations && k.Name == ref.Kind; n++ {
			c := providers.Call{Ref: ref, ID: plan.ExternalID(enginetest.SiteID, k.Traits, ref, n, nil), Want: schema.Object{}}
			if err := k.Kind.Create(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			made, err := k.Kind.Get(t.Context(), []string{c.ID})
			if err != nil || len(made) != 1 {
				t.Fatal(made, err)
			}
			c.Have, c.Version = made[0].Spec, made[0].Version
			if err := k.Kind.Delete(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// S2: an id that is used up is no try and costs no pause; however many they are, a step passes over a bounded number, says why it
// ends, and the next run goes on from there.
func TestUsedIDsAreNoTries(t *testing.T) {
	ref := schema.Ref{Scope: schema.ScopeSite, Kind: "far.net", Name: "n"}
	for _, c := range []struct{ used, runs int }{{12, 1}, {99, 1}, {100, 2}, {250, 3}} {
		t.Run(fmt.Sprint(c.used), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := enginetest.New()
				use(t, s, ref, c.used)
				e := s.Engine(func(o *engine.Options) { o.Retry.Base, o.Retry.Cap = time.Minute, time.Minute })
				defer e.Close()
				doc, began := s.Document(t, map[string]string{ref.String(): `{}`}), time.Now()
				for run := 1; run <= c.runs; run++ {
					p, err := e.Plan(context.Background(), doc, plan.Options{})
					if err != nil {
						t.Fatal(err)
					}
					res, err := e.Apply(context.Background(), p, engine.ApplyOptions{})
					want := state.RunReverted
					if run == c.runs {
						want = state.RunApplied
					}
					if err != nil || res.Run.Status != want || run < c.runs && !strings.Contains(res.Run.Message, "100 consecutive ids were reported as taken") {
						t.Fatalf("run %d ended %s: %s, %v", run, res.Run.Status, res.Run.Message, err)
					}
					s.Release(t)
				}
				if took := time.Since(began); took > time.Minute {
					t.Errorf("it took %s", took)
				}
				if rec, err := s.Store.Record(t.Context(), ref); err != nil || rec.Incarnation != c.used+1 {
					t.Errorf("recorded is incarnation %d, want %d: %v", rec.Incarnation, c.used+1, err)
				}
			})
		})
	}
}

// An answer that is lost while used ids are passed over is settled as ever: the thing exists once.
func TestLostAnswerAmongUsedIDs(t *testing.T) {
	ref := schema.Ref{Scope: schema.ScopeSite, Kind: "far.net", Name: "n"}
	for nth := 1; nth <= 5; nth++ {
		for _, effect := range []fake.Effect{fake.EffectBefore, fake.EffectAfter} {
			s := enginetest.New()
			use(t, s, ref, 3)
			if err := s.World.Fail(fake.Fault{Op: "create", Ref: ref.String(), Class: providers.Unknown, Nth: nth, Effect: effect}); err != nil {
				t.Fatal(err)
			}
			s.Converge(t, s.Document(t, map[string]string{ref.String(): `{}`}))
			if n := strings.Count(s.World.Dump(), `"name": "n"`); n != 1 {
				t.Errorf("answer %d lost, %s its effect: there are %d of it", nth, effect, n)
			}
		}
	}
}
