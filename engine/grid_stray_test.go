package engine_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// gridStrays returns the ids that a drift check reports as strays.
func gridStrays(t *testing.T, c *gridCell) []string {
	t.Helper()
	e := c.process(c.Store)
	defer e.Close()
	r, err := e.Drift(context.Background(), schema.Site{Name: "test", ID: enginetest.SiteID})
	if err != nil {
		t.Fatal(err)
	}
	ids := []string{}
	for _, f := range r.Strays {
		ids = append(ids, f.ID)
	}
	return ids
}

// gridSweep removes what was given up, and returns the ids that were deleted, in order, and how long that took.
func gridSweep(t *testing.T, c *gridCell, want state.RunStatus) (deleted []string, took time.Duration) {
	t.Helper()
	e := c.process(c.Store)
	defer e.Close()
	p, err := e.Plan(context.Background(), &schema.Document{Site: schema.Site{Name: "test", ID: enginetest.SiteID}}, plan.Options{Sweep: true, Unlimited: true})
	if err != nil {
		t.Fatal(err)
	}
	c.World.Hook = func(op string, at fake.Moment, call providers.Call) {
		if op != "observe" && at == fake.Before {
			deleted = append(deleted, op+" "+call.ID)
		}
	}
	defer func() { c.World.Hook = nil }()
	begin := time.Now()
	res, err := e.Apply(context.Background(), p, engine.ApplyOptions{Approve: p.Approval()})
	if err != nil || res.Run.Status != want {
		t.Fatalf("the sweep ended %s, want %s: %v %v\n%s", res.Run.Status, want, res.Differences, err, enginetest.Text(p))
	}
	slices.Sort(deleted)
	return deleted, time.Since(begin)
}

// S3: what bears our mark and is not recorded is reported as stray; a sweep removes only those incarnations that were given
// up, and after a takeover only when nothing can be in progress any more.
func TestTortureStrays(t *testing.T) {
	cover := torture.Cover(t, "strays", []string{"given up", "given up, gone", "unknown resource", "same incarnation", "later incarnation", "another site", "unmarked", "natural key", "only what is gone", "changed meanwhile"})
	in := func(name string, profile string, f func(t *testing.T, c *gridCell)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				i := slices.IndexFunc(gridProfiles(), func(p gridProfile) bool { return p.name == profile })
				c := &gridCell{T: t, profile: gridProfiles()[i], Site: enginetest.New()}
				c.World.Traits = map[string]providers.Traits{gridHost.Kind: c.profile.traits, "far.guard": fake.NodeTraits()}
				f(t, c)
			})
		})
	}
	put := func(t *testing.T, c *gridCell, id, name, site string, incarnation int) {
		t.Helper()
		th := providers.Thing{ID: id, Name: id, Spec: schema.Object{"size": int64(1)}}
		if incarnation > 0 {
			th.Mark = providers.Mark{Site: site, Ref: schema.Ref{Scope: gridHost.Scope, Kind: gridHost.Kind, Name: name}, Incarnation: incarnation}
		}
		if err := c.World.Put(gridHost.Scope, gridHost.Kind, th); err != nil {
			t.Fatal(err)
		}
	}
	// dies lets a holder of the lock die.
	dies := func(t *testing.T, c *gridCell) {
		kv := c.KV.Connect(mem.Options{})
		lock, err := state.New(kv, "test").Lock(context.Background(), state.LockInfo{Who: "an earlier holder"}, state.LockOptions{})
		if err != nil {
			t.Fatal(err)
		}
		kv.Lapse()
		t.Cleanup(func() { lock.Close() })
	}
	// second brings about a host x whose incarnation is 2, and a host y that is permanently gone.
	second := func(t *testing.T, c *gridCell) {
		const y = "site/far.host/y"
		c.Converge(t, c.Document(t, map[string]string{gridKeep: `{}`, gridHost.String(): `{"size":1}`, y: `{"size":1}`}))
		c.Converge(t, c.Document(t, map[string]string{gridKeep: `{}`}))
		c.Converge(t, c.Document(t, map[string]string{gridKeep: `{}`, gridHost.String(): `{"size":1}`}))
		if n := c.incarnation(); n != 2 {
			t.Fatalf("x has incarnation %d, want 2", n)
		}
	}
	const other = "0c5b6f1e-0000-4000-8000-000000000000"
	for _, after := range []string{"handover", "takeover"} {
		in("all after a "+after, "carbide", func(t *testing.T, c *gridCell) {
			second(t, c)
			for _, th := range []struct {
				id, name, site string
				incarnation    int
				what           string
			}{
				{"1-old", "x", enginetest.SiteID, 1, "given up"}, {"2-gone", "y", enginetest.SiteID, 1, "given up, gone"},
				{"3-unknown", "z", enginetest.SiteID, 1, "unknown resource"}, {"4-same", "x", enginetest.SiteID, 2, "same incarnation"},
				{"5-later", "x", enginetest.SiteID, 3, "later incarnation"}, {"6-other", "x", other, 1, "another site"}, {"7-plain", "", "", 0, "unmarked"},
			} {
				put(t, c, th.id, th.name, th.site, th.incarnation)
				cover.Reach(th.what)
			}
			if got, want := gridStrays(t, c), []string{"1-old", "2-gone", "3-unknown", "4-same", "5-later"}; !slices.Equal(got, want) {
				t.Errorf("the strays are %v, want %v", got, want)
			}
			if after == "takeover" {
				dies(t, c)
			}
			deleted, took := gridSweep(t, c, state.RunApplied)
			if want := []string{"delete 1-old", "delete 2-gone"}; !slices.Equal(deleted, want) {
				t.Errorf("the sweep calls %v, want %v", deleted, want)
			}
			if waited := took >= gridQuarantine; waited != (after == "takeover") {
				t.Errorf("the sweep took %s", took)
			}
			if got, want := gridStrays(t, c), []string{"3-unknown", "4-same", "5-later"}; !slices.Equal(got, want) {
				t.Errorf("after the sweep the strays are %v, want %v", got, want)
			}
			if n := c.incarnation(); n != 2 {
				t.Errorf("after the sweep x has incarnation %d", n)
			}
		})
	}
	in("what changed meanwhile is not swept", "carbide", func(t *testing.T, c *gridCell) {
		second(t, c)
		put(t, c, "1-old", "x", enginetest.SiteID, 1)
		dies(t, c)
		time.AfterFunc(time.Minute, func() { put(t, c, "1-old", "x", other, 1) })
		deleted, _ := gridSweep(t, c, state.RunReverted)
		if len(deleted) > 0 {
			t.Errorf("the sweep calls %v although it belongs to another site by now", deleted)
		}
		cover.Reach("changed meanwhile")
	})
	in("a natural key is not swept", "ovs", func(t *testing.T, c *gridCell) {
		c.Converge(t, c.Document(t, map[string]string{gridKeep: `{}`, gridHost.String(): `{"size":1}`}))
		put(t, c, "old", "old", enginetest.SiteID, 1)
		if got := gridStrays(t, c); !slices.Equal(got, []string{"old"}) {
			t.Errorf("the strays are %v", got)
		}
		if deleted, _ := gridSweep(t, c, state.RunApplied); len(deleted) > 0 {
			t.Errorf("the sweep calls %v: a name can be anybody's", deleted)
		}
		cover.Reach("natural key")
	})
	in("where nothing lives any more", "carbide", func(t *testing.T, c *gridCell) {
		second(t, c)
		c.Converge(t, c.Document(t, map[string]string{gridKeep: `{}`}))
		put(t, c, "1-old", "x", enginetest.SiteID, 1)
		if got := gridStrays(t, c); !slices.Equal(got, []string{"1-old"}) {
			t.Errorf("the strays are %v, want 1-old", got)
		}
		if deleted, _ := gridSweep(t, c, state.RunApplied); !slices.Equal(deleted, []string{"delete 1-old"}) {
			t.Errorf("the sweep calls %v", deleted)
		}
		cover.Reach("only what is gone")
	})
	torture.Report(t, "E", "S3: strays: %s", cover)
}
