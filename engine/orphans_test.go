package engine_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// orphaning returns a site whose far side deletes nets whether or not they are in use.
func orphaning(t *testing.T) (*enginetest.Site, *schema.Document) {
	s := enginetest.New()
	nets, hosts := fake.SiteTraits(), fake.SiteTraits()
	nets.DeleteUnchecked, hosts.GoneWithin = true, time.Minute
	s.World.Traits = map[string]providers.Traits{"far.net": nets, "far.host": hosts}
	s.Converge(t, s.Document(t, map[string]string{"site/far.net/n": `{"cidr": "10.0.0.0/24"}`, "site/far.guard/g": `{}`}))
	return s, s.Document(t, map[string]string{"site/far.guard/g": `{}`})
}

// A host moves in between the plan and the delete: the net stays.
func TestDeleteProvesThatNothingRefersToIt(t *testing.T) {
	s, without := orphaning(t)
	p := s.Plan(t, without, plan.Options{})
	if len(p.Refusals) > 0 || len(p.Steps) != 1 {
		t.Fatalf("an empty net is not to be deleted:\n%s", enginetest.Text(p))
	}
	tenant := providers.Thing{ID: "theirs", Name: "theirs", Spec: schema.Object{"net": p.Steps[0].ExternalID}}
	if err := s.World.Put("site", "far.host", tenant); err != nil {
		t.Fatal(err)
	}
	res, err := s.Apply(p, engine.ApplyOptions{})
	if err != nil || res.Run.Status != state.RunReverted || !strings.Contains(res.Run.Message, "far.host theirs") {
		t.Fatalf("the run ended %s: %s (%v); want it reverted because of theirs", res.Run.Status, res.Run.Message, err)
	}
	thingOf(t, s, "site", "far.net", p.Steps[0].ExternalID)
	if p := s.Plan(t, without, plan.Options{}); len(p.Refusals) != 1 {
		t.Errorf("it is seen now, and not refused:\n%s", enginetest.Text(p))
	}
}

// What is in deletion is waited for.
func TestDeleteWaitsForWhatIsLeaving(t *testing.T) {
	s, without := orphaning(t)
	p := s.Plan(t, without, plan.Options{})
	tenant := providers.Thing{ID: "theirs", Name: "theirs", Spec: schema.Object{"net": p.Steps[0].ExternalID}}
	if err := s.World.Put("site", "far.host", tenant); err != nil {
		t.Fatal(err)
	}
	if err := s.World.Fail(fake.Fault{Op: "delete", Effect: fake.EffectSlow, Delay: fake.Duration(100 * time.Millisecond)}); err != nil {
		t.Fatal(err)
	}
	set, err := providers.NewSet(s.World.Provider("far", schema.ScopeSite))
	if err != nil {
		t.Fatal(err)
	}
	hosts, _, _ := set.Find(schema.ScopeSite, "far.host")
	if err := hosts.Kind.Delete(t.Context(), providers.Call{Ref: schema.Ref{Scope: "site", Kind: "far.host", Name: "theirs"}, ID: "theirs", Version: thingOf(t, s, "site", "far.host", "theirs").Version}); err != nil {
		t.Fatal(err)
	}
	res, err := s.Apply(s.Plan(t, without, plan.Options{}), engine.ApplyOptions{})
	if err != nil || res.Run.Status != state.RunApplied {
		t.Fatal(res, err)
	}
	if !slices.ContainsFunc(s.Events(), func(e event.Event) bool {
		progress, ok := e.(event.StepProgress)
		return ok && progress.Step.Ref.Kind == "far.net" && progress.Phase == event.Waiting
	}) {
		t.Error("the net did not wait for the host")
	}
}
