package engine_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/remedy"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// The first apply remembers which server it changed. Another one, which shows nothing of what was created, is not planned for,
// not applied to, and shows no drift, until it is confirmed as the new one.
func TestAnotherServer(t *testing.T) {
	ctx := context.Background()
	s, other := enginetest.New(), enginetest.New()
	name, world := "fra1", s
	open := func(o *engine.Options) {
		o.Open = func(context.Context, schema.Site, []providers.Need) (*providers.Set, error) {
			p := world.World.Provider("far", schema.ScopeSite)
			p.Identity = func(context.Context) (string, error) { return name, nil }
			return providers.NewSet(p)
		}
	}
	with := func() *engine.Engine { e := s.Engine(open); t.Cleanup(func() { _ = e.Close() }); return e }
	doc := s.Document(t, map[string]string{"site/far.guard/g": `{"size": 1}`})
	p, err := with().Plan(ctx, doc, plan.Options{})
	if err != nil {
		t.Fatal(err)
	}

	name = "lab"
	var stale *engine.StaleError
	if _, err := with().Apply(ctx, p, engine.ApplyOptions{}); !errors.As(err, &stale) || !strings.Contains(err.Error(), "identifies itself as fra1, but lab answers") {
		t.Errorf("a plan for fra1 was applied to lab: %v", err)
	}
	name = "fra1"
	if _, err := with().Apply(ctx, p, engine.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}

	name, world = "lab", other
	p, err = with().Plan(ctx, doc, plan.Options{})
	if err != nil || !p.Empty() || len(p.Unknown) != 1 || !strings.Contains(p.Unknown[0].Error, "identifies itself as lab, but the recorded objects were created on fra1") {
		t.Fatalf("the plan for another server is %+v (%v)", p, err)
	}
	if r, err := with().Drift(ctx, schema.Site{Name: "test", ID: enginetest.SiteID}); err != nil || r.Complete || len(r.Drifted) > 0 {
		t.Errorf("the drift of another server is %+v (%v), want it to be unknown", r, err)
	}

	p, err = with().Plan(ctx, doc, plan.Options{AllowMissing: true})
	if err != nil || len(p.Steps) != 1 || len(p.Refusals) > 0 {
		t.Fatalf("the plan for the new server is %s (%v)", enginetest.Text(p), err)
	}
	if _, err := with().Apply(ctx, p, engine.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	if servers, err := s.Store.Servers(ctx); err != nil || len(servers) != 1 || servers[0].Identity != "lab" {
		t.Errorf("recorded are %+v (%v), want lab", servers, err)
	}
	if p, err = with().Plan(ctx, doc, plan.Options{}); err != nil || !p.Empty() || len(p.Unknown) > 0 {
		t.Errorf("the next plan is %s (%v), want none", enginetest.Text(p), err)
	}

	// The record of the server is unreadable: it is found and forgotten, and the next apply records it again.
	servers, err := s.Store.Servers(ctx)
	if err != nil || len(servers) != 1 {
		t.Fatalf("recorded are %+v (%v)", servers, err)
	}
	key := s.Store.Path() + "/server/" + servers[0].Scope + "/" + servers[0].Provider
	if _, err := s.Store.Commit(ctx, nil, []state.Op{{Key: key, Value: []byte("x")}}); err != nil {
		t.Fatal(err)
	}
	if _, err := with().Plan(ctx, doc, plan.Options{}); !errors.As(err, new(*state.DamagedError)) {
		t.Errorf("a plan on a damaged server: %v", err)
	}
	repairs, err := with().Repair(ctx, engine.RepairOptions{})
	if err != nil || len(repairs) != 1 || repairs[0].Key != key || repairs[0].Left {
		t.Errorf("repaired %+v (%v), want %s", repairs, err, key)
	}
	if servers, err := s.Store.Servers(ctx); err != nil || len(servers) > 0 {
		t.Errorf("recorded are %+v (%v), want none", servers, err)
	}
}

// A lone thing that is gone looks like an empty server as much as many do; only a server that identifies itself as the same one
// can show that it is gone by itself, and not when it was all that the site had.
func TestLoneThingGone(t *testing.T) {
	node := schema.Ref{Scope: "n1", Kind: "near.bridge", Name: "b"}
	for name, c := range map[string]struct {
		site, node string // how the servers identify themselves
		resources  map[string]string
		goes       []schema.Ref
		refused    string // a part of the reason; empty: it is created again
	}{
		"all of a site":                     {resources: map[string]string{node.String(): `{"mode": "a"}`}, goes: []schema.Ref{node}, refused: "the only recorded object of near in scope n1"},
		"all of a site, on the same server": {node: "N1", resources: map[string]string{node.String(): `{"mode": "a"}`}, goes: []schema.Ref{node}, refused: "the only recorded object of the site"},
		"one of a node":                     {resources: map[string]string{node.String(): `{"mode": "a"}`, "site/far.guard/g": `{}`}, goes: []schema.Ref{node}, refused: "the only recorded object of near in scope n1"},
		"one of the same node":              {node: "N1", resources: map[string]string{node.String(): `{"mode": "a"}`, "site/far.guard/g": `{}`}, goes: []schema.Ref{node}},
		"one of each of the same": {site: "S", node: "N1", resources: map[string]string{node.String(): `{"mode": "a"}`, "site/far.guard/g": `{}`},
			goes: []schema.Ref{node, {Scope: "site", Kind: "far.guard", Name: "g"}}, refused: "all 2 recorded objects of the site are gone"},
	} {
		t.Run(name, func(t *testing.T) {
			s := enginetest.New()
			called := func(o *engine.Options) {
				open := o.Open
				o.Open = func(ctx context.Context, site schema.Site, needs []providers.Need) (*providers.Set, error) {
					set, err := open(ctx, site, needs)
					for _, p := range set.All() {
						if id := map[string]string{"site": c.site, "n1": c.node}[p.Scope]; id != "" {
							p.Identity = func(context.Context) (string, error) { return id, nil }
						}
					}
					return set, err
				}
			}
			e := s.Engine(called)
			defer e.Close()
			doc := s.Document(t, c.resources)
			p, err := e.Plan(t.Context(), doc, plan.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := e.Apply(t.Context(), p, engine.ApplyOptions{}); err != nil {
				t.Fatal(err)
			}
			for _, ref := range c.goes {
				r, err := s.Store.Record(t.Context(), ref)
				if err != nil {
					t.Fatal(err)
				}
				if err := s.World.Remove(ref.Scope, ref.Kind, r.ID); err != nil {
					t.Fatal(err)
				}
			}
			p, err = e.Plan(t.Context(), doc, plan.Options{})
			switch {
			case err != nil:
				t.Fatal(err)
			case c.refused == "" && (len(p.Refusals) > 0 || len(p.Steps) != 1):
				t.Errorf("planned:\n%s", enginetest.Text(p))
			case c.refused != "" && (len(p.Refusals) != 1 || !strings.HasPrefix(p.Refusals[0].Reason, c.refused) || !slices.Contains(p.Refusals[0].Remedies[0].Do, remedy.Action{Verb: remedy.AllowMissing})):
				t.Errorf("planned:\n%s", enginetest.Text(p))
			}
			if p, err = e.Plan(t.Context(), doc, plan.Options{AllowMissing: true}); err != nil || len(p.Refusals) > 0 || len(p.Steps) != len(c.goes) {
				t.Errorf("asked to go on: %v\n%s", err, enginetest.Text(p))
			}
		})
	}
}
