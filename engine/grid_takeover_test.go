package engine_test

import (
	"context"
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
	"converge.dev/converge/state/mem"
)

// gridQuarantine is how long nothing is deleted blindly after a takeover: the TTL of the lock, the longest call, and 5 s.
const gridQuarantine = state.DefaultTTL + gridLate + 5*time.Second

// F5: after a takeover from a holder that did not release the lock, a delete that the far side does not check waits, and
// observes again. What changed meanwhile, or belongs to others by now, is not deleted. A delete with a version, and one
// after an orderly handover, does not wait.
func TestTortureTakeover(t *testing.T) {
	type meanwhile struct {
		name  string
		act   gridAct // a minute after the takeover
		world string
	}
	cases := []meanwhile{
		{"nothing", "", "gone"}, {"its version moved", gridTouch, "gone"}, {"others removed it", gridVanish, "gone"},
		{"others changed it", gridEdit, "there"}, {"others replaced it", gridIntrude, "there"}, {"it changed hands", gridSeize, "there"},
	}
	var names []string
	for _, m := range cases {
		names = append(names, m.name)
	}
	cover := torture.Cover(t, "takeovers", append(names, "handover", "delete", "undo", "waited", "at once"))
	tried := 0
	for _, p := range gridProfiles() {
		for _, undo := range []bool{false, true} {
			for _, m := range append([]meanwhile{{"handover", "", "gone"}}, cases...) {
				blind := p.traits.Delete == providers.Blind
				if m.act != "" && (!blind || undo || m.act != gridEdit && m.act != gridTouch && m.act != gridVanish && p.traits.ID == "") {
					continue // without a wait there is no meanwhile; a run is undone whatever others changed of what it created
				}
				tried++
				t.Run(p.name+"/"+map[bool]string{false: "delete", true: "undo"}[undo]+"/"+m.name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						c := &gridCell{T: t, profile: p, method: gridMethod{"delete", false}, Site: enginetest.New()}
						c.World.Traits = map[string]providers.Traits{gridHost.Kind: p.traits, "far.guard": fake.NodeTraits()}
						without := c.Document(t, map[string]string{gridKeep: `{}`})
						c.apply(without, "the beginning")
						c.apply(c.Document(t, map[string]string{gridKeep: `{}`, gridHost.String(): `{"size":1,"labels":{"a":"b"}}`}), "the host")
						e := c.process(c.Store)
						defer e.Close()
						pl, err := e.Plan(context.Background(), without, plan.Options{})
						if err != nil {
							t.Fatal(err)
						}
						if m.name != "handover" { // a holder dies
							kv := c.KV.Connect(mem.Options{})
							lock, err := state.New(kv, "test").Lock(context.Background(), state.LockInfo{Who: "an earlier holder"}, state.LockOptions{})
							if err != nil {
								t.Fatal(err)
							}
							kv.Lapse()
							defer lock.Close()
						}
						begin := time.Now()
						var deleted time.Duration
						looks := 0 // since others acted
						c.World.Hook = func(op string, at fake.Moment, call providers.Call) {
							switch {
							case at != fake.Before:
							case op == "observe" && call.Ref.Kind == gridHost.Kind && time.Since(begin) > time.Minute:
								looks++
							case op == "delete":
								deleted = max(time.Since(begin), 1)
							}
						}
						if m.act != "" {
							time.AfterFunc(time.Minute, func() { c.act(m.act) })
						}
						var res engine.Result
						want := state.RunApplied
						if undo {
							res, err = e.Rollback(context.Background(), "", engine.ApplyOptions{})
							want = state.RunReverted
							cover.Reach("undo")
						} else {
							res, err = e.Apply(context.Background(), pl, engine.ApplyOptions{Approve: pl.Approval()})
							cover.Reach("delete")
						}
						if m.world == "there" {
							want = state.RunReverted // nothing was changed
						}
						if err != nil || res.Run.Status != want {
							t.Fatalf("ended %s, want %s: %v %v", res.Run.Status, want, res.Differences, err)
						}
						cover.Reach(m.name)
						is := "gone"
						if len(c.things()) > 0 {
							is = "there"
						}
						if is != m.world {
							t.Errorf("it is %s, want %s: %v", is, m.world, c.things())
						}
						called := m.world == "gone" && m.act != gridVanish
						switch {
						case (deleted > 0) != called:
							t.Errorf("delete was called after %s; it was to be called: %t", deleted, called)
						case called && blind && m.name != "handover":
							cover.Reach("waited")
							if deleted < gridQuarantine || deleted > gridQuarantine+time.Minute {
								t.Errorf("it was deleted %s after the takeover, want %s", deleted, gridQuarantine)
							}
							if looks == 0 {
								t.Error("it was deleted without another look")
							}
						case called:
							cover.Reach("at once")
							if deleted > time.Second {
								t.Errorf("it was deleted after %s, want at once", deleted)
							}
						}
					})
				})
			}
		}
	}
	torture.Report(t, "E", "F5: %d takeovers and handovers", tried)
}
