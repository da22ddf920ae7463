package engine_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/survey"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// What may be shown of each thing is recorded with its revision, and stays while the thing is not observed; of what is gone there is
// nothing. What an older version has recorded without it is recorded anew, once.
func TestInventoryShown(t *testing.T) {
	s := enginetest.New()
	site, needs := schema.Site{Name: "test", ID: enginetest.SiteID}, []providers.Need{{Scope: schema.ScopeSite, Provider: "far"}}
	put := func(id string, size int64) {
		t.Helper()
		if err := s.World.Put(schema.ScopeSite, "far.guard", providers.Thing{ID: id, Name: id, Spec: schema.Object{"size": size}, Detail: "canary", Phase: providers.Ready}); err != nil {
			t.Fatal(err)
		}
	}
	take := func(shown func(survey.Item) survey.Item) {
		t.Helper()
		e := s.Engine(func(o *engine.Options) { o.Shown = shown })
		defer e.Close()
		if _, err := e.Inventory(t.Context(), site, needs, 0); err != nil {
			t.Fatal(err)
		}
	}
	masked := func(i survey.Item) survey.Item {
		i.Detail = ""
		return i
	}
	recorded := func(since int64, after survey.Cursor, limit int) string {
		t.Helper()
		stored, err := s.Store.Inventory(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		inv, more, err := survey.Recorded(site, stored, since, after, limit)
		if err != nil {
			return err.Error()
		}
		body, err := json.Marshal(inv)
		if err != nil || strings.Contains(string(body), "canary") {
			t.Errorf("%v: %s", err, body)
		}
		said := []string{fmt.Sprint(inv.Revision)}
		for _, i := range inv.Items {
			said = append(said, fmt.Sprintf("%s@%d %s %v %t", i.ID, i.Revision, i.Health, i.Spec["size"], i.Deleted != nil))
		}
		if more {
			said = append(said, "more")
		}
		return strings.Join(said, ", ")
	}
	want := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	put("a", 1)
	put("b", 1)
	take(nil) // an older version
	want(recorded(0, survey.Cursor{}, 9), "1, a@1  <nil> false, b@1  <nil> false")
	take(masked)
	want(recorded(0, survey.Cursor{}, 9), "2, a@2 warn 1 false, b@2 warn 1 false")
	take(masked)
	put("b", 2)
	put("c", 3)
	take(masked)
	want(recorded(0, survey.Cursor{}, 9), "3, a@2 warn 1 false, b@3 warn 2 false, c@3 warn 3 false")
	want(recorded(2, survey.Cursor{}, 9), "3, b@3 warn 2 false, c@3 warn 3 false")
	want(recorded(3, survey.Cursor{}, 9), "3")
	at := schema.Place{Scope: schema.ScopeSite, Kind: "far.guard"}
	want(recorded(0, survey.Cursor{}, 2), "3, a@2 warn 1 false, b@3 warn 2 false, more")
	want(recorded(0, survey.Cursor{Place: at, ID: "b"}, 2), "3, c@3 warn 3 false")
	want(recorded(0, survey.Cursor{Place: schema.Place{Scope: schema.ScopeSite, Kind: "far.h"}}, 2), "3")
	want(recorded(0, survey.Cursor{Place: schema.Place{Scope: "a"}}, 1), "3, a@2 warn 1 false, more")
	if got := recorded(4, survey.Cursor{}, 2); !strings.Contains(got, "newer than the newest") {
		t.Error(got)
	}
	if err := s.World.Fail(fake.Fault{Op: "observe", Ref: "far.guard", Times: -1}); err != nil {
		t.Fatal(err)
	}
	take(masked)
	want(recorded(0, survey.Cursor{}, 1), "3, a@2 warn 1 false, more")
	if err := s.World.Mend(); err != nil {
		t.Fatal(err)
	}
	if err := s.World.Remove(schema.ScopeSite, "far.guard", "b"); err != nil {
		t.Fatal(err)
	}
	take(masked)
	want(recorded(3, survey.Cursor{}, 9), "4, b@4  <nil> true")

	stored, err := s.Store.Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stored.Places = []state.InventoryPlace{{Place: at, Items: []state.InventoryItem{{ID: "x", Revision: 1, Shown: []byte("{")}}}}
	if _, _, err := survey.Recorded(site, stored, 0, survey.Cursor{}, 9); err == nil || !strings.Contains(err.Error(), "far.guard x of site") {
		t.Errorf("what cannot be read is shown: %v", err)
	}
}
