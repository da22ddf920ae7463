package fake_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
)

// Each verb with each effect: what the caller gets, what exists then, and what exists once everything has landed.
func TestFaultGrid(t *testing.T) {
	const before, after, gone = "ready false", "ready true", "absent"
	for _, c := range []struct {
		op               string
		effect           fake.Effect
		class            providers.Class // empty: the verb succeeds
		now, then, again string          // right away, after Land, after the same call again
	}{
		{"create", fake.EffectBefore, providers.Transient, gone, gone, after},
		{"create", fake.EffectAfter, providers.Unknown, after, after, after},
		{"create", fake.EffectLate, providers.Unknown, gone, after, after},
		{"create", fake.EffectSlow, "", "pending true", after, after},
		{"create", fake.EffectFailed, "", "failed true", "failed true", "failed true"},
		{"update", fake.EffectBefore, providers.Transient, before, before, after},
		{"update", fake.EffectAfter, providers.Unknown, after, after, after},
		{"update", fake.EffectLate, providers.Unknown, before, after, after},
		{"update", fake.EffectSlow, "", "pending true", after, after},
		{"update", fake.EffectFailed, "", "failed true", "failed true", after},
		{"delete", fake.EffectBefore, providers.Transient, before, before, gone},
		{"delete", fake.EffectAfter, providers.Unknown, gone, gone, gone},
		{"delete", fake.EffectLate, providers.Unknown, before, gone, gone},
		{"delete", fake.EffectSlow, "", "leaving false", gone, gone},
		{"delete", fake.EffectFailed, "", "failed false", "failed false", gone},
	} {
		for _, kept := range []string{"memory", "file"} {
			t.Run(fmt.Sprintf("%s %s in %s", c.op, c.effect, kept), func(t *testing.T) {
				w := fake.New(kinds)
				path := filepath.Join(t.TempDir(), "world.json")
				if kept == "file" {
					w = openWorld(t, path)
				}
				if c.op != "create" {
					must(t, w.Put(node, "lab.switch", providers.Thing{ID: "s1", Spec: schema.Object{"enabled": false}}))
				}
				must(t, w.Fail(fake.Fault{Op: c.op, Ref: "*/lab.switch/s1", Effect: c.effect, Message: "as declared", Delay: fake.Duration(delayOf(c.effect))}))
				switches := of(t, w, node, "lab.switch")
				do := func() error {
					call := call("lab.switch", "s1", schema.Object{"enabled": true})
					th, _ := look(t, switches, "s1")
					call.Version = th.Version
					switch c.op {
					case "create":
						return switches.Create(t.Context(), call)
					case "update":
						return switches.Update(t.Context(), call)
					}
					return switches.Delete(t.Context(), call)
				}
				check := func(when, want string) {
					t.Helper()
					got := gone
					if th, ok := look(t, switches, "s1"); ok {
						got = fmt.Sprint(th.Phase, " ", th.Spec["enabled"])
					}
					if got != want {
						t.Errorf("%s it is %s, want %s", when, got, want)
					}
				}

				err := do()
				if c.class != "" {
					wantClass(t, err, c.class)
				} else {
					must(t, err)
				}
				check("right away", c.now)
				if kept == "file" { // what is in progress outlives the process
					must(t, w.Close())
					w = openWorld(t, path)
					switches = of(t, w, node, "lab.switch")
					check("opened again", c.now)
				}
				must(t, w.Land())
				check("then", c.then)
				err = do()
				if c.op == "create" && c.then != gone {
					wantClass(t, err, providers.Exists)
				} else if c.op == "update" || c.op == "delete" || c.then == gone {
					must(t, err)
				}
				check("after the same call again", c.again)
			})
		}
	}
}

// delayOf returns a long delay where something is to be in progress.
func delayOf(e fake.Effect) time.Duration {
	if e == fake.EffectLate || e == fake.EffectSlow {
		return time.Hour
	}
	return 0
}

// What is in progress also ends by the clock.
func TestDue(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	w := fake.New(kinds)
	w.Now = func() time.Time { return now }
	must(t, w.Fail(fake.Fault{Op: "create", Ref: "*/*/late", Effect: fake.EffectLate, Delay: fake.Duration(time.Minute)}))
	must(t, w.Fail(fake.Fault{Op: "create", Ref: "*/*/slow", Effect: fake.EffectSlow, Delay: fake.Duration(time.Minute)}))
	switches := of(t, w, node, "lab.switch")
	wantClass(t, switches.Create(t.Context(), call("lab.switch", "late", schema.Object{})), providers.Unknown)
	must(t, switches.Create(t.Context(), call("lab.switch", "slow", schema.Object{})))

	for _, step := range []struct {
		pass time.Duration
		late bool
		slow providers.Phase
	}{{0, false, providers.Pending}, {59 * time.Second, false, providers.Pending}, {time.Second, true, providers.Ready}} {
		now = now.Add(step.pass)
		_, late := look(t, switches, "late")
		slow, _ := look(t, switches, "slow")
		if late != step.late || slow.Phase != step.slow {
			t.Errorf("after %s more the late thing is there: %t, the slow one %s; want %t and %s", step.pass, late, slow.Phase, step.late, step.slow)
		}
	}
}

// An id is burned when its thing is gone, even when that takes time.
func TestBurnedWhenGone(t *testing.T) {
	w := fake.New(kinds)
	must(t, w.Put(schema.ScopeSite, "lab.owner", providers.Thing{ID: "o"}))
	must(t, w.Fail(fake.Fault{Op: "delete", Effect: fake.EffectSlow, Delay: fake.Duration(time.Hour)}))
	owners := of(t, w, schema.ScopeSite, "lab.owner")
	th, _ := look(t, owners, "o")
	c := providers.Call{Ref: schema.Ref{Scope: schema.ScopeSite, Kind: "lab.owner", Name: "o"}, ID: "o", Version: th.Version}
	must(t, owners.Delete(t.Context(), c))
	must(t, w.Land())
	if _, ok := look(t, owners, "o"); ok {
		t.Error("the deleted thing is still there")
	}
	wantClass(t, owners.Create(t.Context(), c), providers.Exists)
}

// A late effect is checked when it comes: it does not break what has happened meanwhile.
func TestLateIsChecked(t *testing.T) {
	w := fake.New(kinds)
	for _, op := range []string{"create", "delete"} {
		must(t, w.Fail(fake.Fault{Op: op, Effect: fake.EffectLate, Delay: fake.Duration(time.Hour)}))
	}
	switches := of(t, w, node, "lab.switch")
	first := call("lab.switch", "s1", schema.Object{"enabled": false})
	wantClass(t, switches.Create(t.Context(), first), providers.Unknown)
	first.Want = schema.Object{"enabled": true}
	must(t, switches.Create(t.Context(), first))
	must(t, w.Land())
	th, _ := look(t, switches, "s1")
	if th.Spec["enabled"] != true {
		t.Error("a late create replaced a thing with the same id")
	}

	first.Version = th.Version
	wantClass(t, switches.Delete(t.Context(), first), providers.Unknown)
	must(t, switches.Update(t.Context(), first))
	must(t, w.Land())
	if _, ok := look(t, switches, "s1"); !ok {
		t.Error("a late delete removed a thing that had changed")
	}
}

// What refers to a thing that is not ready, or in deletion, has to wait.
func TestNotReady(t *testing.T) {
	w := fake.New(kinds)
	for _, op := range []string{"create", "delete"} {
		must(t, w.Fail(fake.Fault{Op: op, Times: -1, Effect: fake.EffectSlow, Delay: fake.Duration(time.Hour)}))
	}
	switches, cables := of(t, w, node, "lab.switch"), of(t, w, node, "lab.cable")
	cable := call("lab.cable", "c1", schema.Object{"ends": []any{"s1"}})
	must(t, switches.Create(t.Context(), call("lab.switch", "s1", schema.Object{})))
	wantClass(t, cables.Create(t.Context(), cable), providers.Busy)
	must(t, w.Land())
	must(t, cables.Create(t.Context(), cable))
	must(t, w.Land())

	th, _ := look(t, cables, "c1")
	cable.Version = th.Version
	must(t, cables.Delete(t.Context(), cable))
	sw := call("lab.switch", "s1", nil)
	th, _ = look(t, switches, "s1")
	sw.Version = th.Version
	wantClass(t, switches.Delete(t.Context(), sw), providers.Busy)
	must(t, w.Land())
	must(t, switches.Delete(t.Context(), sw))
	wantClass(t, cables.Create(t.Context(), call("lab.cable", "c2", schema.Object{"ends": []any{"s1"}})), providers.Absent)
}

// Faults hit the calls that they select, as often as they say.
func TestFaultChoice(t *testing.T) {
	for _, c := range []struct {
		ref        string
		nth, times int
		want       string // of the creates s1 s2 s3 on n1 and s1 on n2: x fails
	}{
		{"", 0, 0, "x..."},
		{"", 2, 0, ".x.."},
		{"", 2, 2, ".xx."},
		{"", 0, -1, "xxxx"},
		{"n1/lab.switch/s2", 0, 0, ".x.."},
		{"n1/lab.switch/s2", 2, 0, "...."},
		{"*/lab.switch/s1", 0, -1, "x..x"},
		{"n2/*/*", 0, 0, "...x"},
		{"lab.switch", 4, 0, "...x"},
		{"lab.*", 3, 0, "..x."},
		{"lab.cable", 0, -1, "...."},
	} {
		w := fake.New(kinds)
		must(t, w.Fail(fake.Fault{Op: "create", Ref: c.ref, Nth: c.nth, Times: c.times, Class: providers.Denied}))
		got := ""
		for _, at := range [][2]string{{"n1", "s1"}, {"n1", "s2"}, {"n1", "s3"}, {"n2", "s1"}} {
			call := call("lab.switch", at[1], schema.Object{})
			call.Ref.Scope = at[0]
			switch err := of(t, w, at[0], "lab.switch").Create(t.Context(), call); {
			case err == nil:
				got += "."
			case providers.ClassOf(err) == providers.Denied:
				got += "x"
			default:
				t.Errorf("%+v: %v", c, err)
			}
		}
		if got != c.want {
			t.Errorf("ref %q, nth %d, times %d: %s, want %s", c.ref, c.nth, c.times, got, c.want)
		}
	}
}

// A fault of observation with a name hits the observations that would show the thing.
func TestFaultOfObservation(t *testing.T) {
	w := fake.New(kinds)
	for _, id := range []string{"s1", "s2"} {
		must(t, w.Put(node, "lab.switch", providers.Thing{ID: id}))
	}
	must(t, w.Fail(fake.Fault{Op: "observe", Ref: "n1/lab.switch/s1", Times: -1, Class: providers.Denied, Message: "hidden"}))
	switches := of(t, w, node, "lab.switch")
	for _, c := range []struct {
		ids []string
		hit bool
	}{{nil, true}, {[]string{"s1"}, true}, {[]string{"s2"}, false}, {[]string{"s2", "s1"}, true}} {
		_, err := providertest.Of(switches)(t.Context(), c.ids)
		if c.hit {
			wantClass(t, err, providers.Denied)
		} else {
			must(t, err)
		}
	}
}

// Faults that make no sense are refused.
func TestFaultRefused(t *testing.T) {
	for _, f := range []fake.Fault{
		{Op: "erase"},
		{Op: "create", Effect: "never"},
		{Op: "observe", Effect: fake.EffectAfter},
		{Op: "create", Class: "odd"},
		{Op: "create", Ref: "n1/lab.switch"},
		{Op: "create", Ref: "[/x/y"},
		{Op: "create", Nth: -1},
		{Op: "create", Every: -1},
		{Op: "create", Effect: fake.EffectStale},
		{Op: "any", Effect: fake.EffectAfter},
		{Op: "create", Delay: -1},
	} {
		if err := fake.New(kinds).Fail(f); err == nil {
			t.Errorf("%+v was accepted", f)
		}
	}
}

// Every nth call fails, and a fault of any verb counts all verbs together.
func TestFaultRhythm(t *testing.T) {
	for _, c := range []struct {
		fault fake.Fault
		want  string // of look, create, look, update, look, delete: x fails
	}{
		{fake.Fault{Op: "any", Times: -1}, "xxxxxx"},
		{fake.Fault{Op: "any", Every: 2, Times: -1}, "x.x.x."},
		{fake.Fault{Op: "any", Every: 3, Nth: 2, Times: -1}, ".x..x."},
		{fake.Fault{Op: "any", Every: 2, Times: 2}, "x.x..."},
		{fake.Fault{Op: "observe", Every: 2, Nth: 2, Times: -1}, "..x..."},
		{fake.Fault{Op: "any", Ref: "lab.cable", Times: -1}, "......"},
	} {
		w := fake.New(kinds)
		switches := of(t, w, node, "lab.switch")
		must(t, w.Put(node, "lab.switch", providers.Thing{ID: "s1"}))
		must(t, w.Fail(c.fault))
		got := ""
		told := func(err error) {
			if providers.ClassOf(err) == providers.Transient {
				got += "x"
			} else {
				got += "."
			}
		}
		for _, verb := range []func() error{
			func() error { return switches.Create(t.Context(), call("lab.switch", "s2", schema.Object{})) },
			func() error { return switches.Update(t.Context(), call("lab.switch", "s1", schema.Object{})) },
			func() error { return switches.Delete(t.Context(), call("lab.switch", "s1", nil)) },
		} {
			_, err := providers.Collect(switches.List(t.Context()))
			told(err)
			told(verb())
		}
		if got != c.want {
			t.Errorf("%+v: %s, want %s", c.fault, got, c.want)
		}
		must(t, w.Mend())
		if _, err := providers.Collect(switches.List(t.Context())); err != nil {
			t.Errorf("%+v is not mended: %v", c.fault, err)
		}
	}
}

// A list that lags shows a change only after some observations, and only of an eventual kind.
func TestStaleList(t *testing.T) {
	for _, eventual := range []bool{true, false} {
		w := fake.New(kinds)
		traits := fake.NodeTraits()
		traits.Eventual = eventual
		w.Traits = map[string]providers.Traits{"lab.switch": traits}
		switches := of(t, w, node, "lab.switch")
		must(t, w.Put(node, "lab.switch", providers.Thing{ID: "old", Spec: schema.Object{"enabled": false}}))
		must(t, w.Fail(fake.Fault{Op: "observe", Effect: fake.EffectStale, Times: 2}))
		looks := func(ids []string) (got []string) {
			for range 3 {
				things, err := providertest.Of(switches)(t.Context(), ids)
				must(t, err)
				seen := ""
				for _, th := range things {
					seen += fmt.Sprint(th.ID, " ", th.Spec["enabled"], ";")
				}
				got = append(got, seen)
			}
			return got
		}
		for _, c := range []struct {
			what      string
			change    func() error
			ids       []string
			was, then string
		}{
			{"nothing changed", func() error { return nil }, nil, "old false;", "old false;"},
			{"created", func() error {
				return switches.Create(t.Context(), call("lab.switch", "new", schema.Object{"enabled": true}))
			}, nil, "old false;", "new true;old false;"},
			{"updated", func() error {
				th, _ := look(t, switches, "new") // shown as it is now
				c := call("lab.switch", "new", schema.Object{"enabled": false})
				c.Version = th.Version
				return switches.Update(t.Context(), c)
			}, []string{"new"}, "new true;", "new false;"},
			{"deleted", func() error {
				th, _ := look(t, switches, "new")
				c := call("lab.switch", "new", nil)
				c.Version = th.Version
				return switches.Delete(t.Context(), c)
			}, nil, "new false;old false;", "old false;"},
		} {
			must(t, c.change())
			want := []string{c.was, c.was, c.then}
			if !eventual {
				want = []string{c.then, c.then, c.then}
			}
			if got := looks(c.ids); !slices.Equal(got, want) {
				t.Errorf("%s, eventual %t: the looks show %q, want %q", c.what, eventual, got, want)
			}
		}
	}
}
