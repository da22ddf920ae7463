package engine_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
)

// An inventory reports each change once, at an increasing revision. What could not be observed is not gone; what is gone is reported
// for thirty days, and after that a client that asks for the changes since then is told to start again.
func TestInventory(t *testing.T) {
	s, now := enginetest.New(), time.Unix(1_700_000_000, 0)
	e := s.Engine(func(o *engine.Options) { o.Now = func() time.Time { return now } })
	defer e.Close()
	put := func(name string, size int64) {
		t.Helper()
		if err := s.World.Put(schema.ScopeSite, "far.guard", providers.Thing{ID: name, Name: name, Spec: schema.Object{"size": size}, Phase: providers.Ready}); err != nil {
			t.Fatal(err)
		}
	}
	gone := func(name string) {
		t.Helper()
		if err := s.World.Remove(schema.ScopeSite, "far.guard", name); err != nil {
			t.Fatal(err)
		}
	}
	site := schema.Site{Name: "test", ID: enginetest.SiteID}
	ask := func(since int64) string {
		t.Helper()
		inv, err := e.Inventory(t.Context(), site, []providers.Need{{Scope: schema.ScopeSite, Provider: "far"}}, since)
		if err != nil {
			return err.Error()
		}
		said := []string{fmt.Sprint(inv.Revision)}
		for _, i := range inv.Items {
			word := string(i.Health)
			if i.Deleted != nil {
				word = "gone"
			}
			said = append(said, fmt.Sprintf("%s@%d %s", i.ID, i.Revision, word))
		}
		return strings.Join(said, ", ")
	}
	want := func(since int64, says string) {
		t.Helper()
		if got := ask(since); got != says && !strings.HasPrefix(got, says+":") && !strings.HasPrefix(got, says+";") {
			t.Errorf("since %d: %s, want %s", since, got, says)
		}
	}
	want(0, "0")
	put("a", 1)
	put("b", 1)
	want(0, "1, a@1 ok, b@1 ok")
	want(1, "1")
	put("b", 2)
	put("c", 1)
	want(1, "2, b@2 ok, c@2 ok")
	gone("b")
	want(2, "3, b@3 gone")
	want(0, "3, a@1 ok, b@3 gone, c@2 ok")

	if err := s.World.Fail(fake.Fault{Op: "observe", Ref: "far.guard", Times: -1}); err != nil {
		t.Fatal(err)
	}
	want(0, "3, a@1 unknown, b@3 gone, c@2 unknown")
	gone("c")
	want(3, "3")
	if err := s.World.Mend(); err != nil {
		t.Fatal(err)
	}
	want(3, "4, c@4 gone")
	put("c", 7)
	want(4, "5, c@5 ok")
	want(6, "revision 6 is newer than the newest, which is 5")
	now = now.Add(29 * 24 * time.Hour)
	want(2, "5, b@3 gone, c@5 ok")
	now = now.Add(2 * 24 * time.Hour)
	want(3, "6, c@5 ok")
	want(0, "6, a@1 ok, c@5 ok")
	want(2, "changes since revision 2 are no longer known: deletions are reported for 30 days")
}
