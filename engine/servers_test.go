package engine_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/enginetest"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// The first apply remembers which server it changed. Another one, which shows nothing of what was made, is not planned for,
// not applied to, and shows no drift, until somebody says that it is the one from now on.
func TestAnotherServer(t *testing.T) {
	ctx := context.Background()
	s, other := enginetest.New(), enginetest.New()
	name, world := "fra1", s
	open := func(o *engine.Options) {
		o.Open = func(context.Context, schema.Site, []engine.Need) (*providers.Set, error) {
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
	if _, err := with().Apply(ctx, p, engine.ApplyOptions{}); !errors.As(err, &stale) || !strings.Contains(err.Error(), "calls itself fra1, and lab answers") {
		t.Errorf("a plan for fra1 was applied to lab: %v", err)
	}
	name = "fra1"
	if _, err := with().Apply(ctx, p, engine.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}

	name, world = "lab", other
	p, err = with().Plan(ctx, doc, plan.Options{})
	if err != nil || !p.Empty() || len(p.Unknown) != 1 || !strings.Contains(p.Unknown[0].Error, "calls itself lab, and what is recorded was made on fra1") {
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
}
