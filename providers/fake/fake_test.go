package fake_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
)

// Two kinds on the site and two on nodes, with every sort of field.
var kinds = schema.Kinds{
	"lab.owner": {Name: "lab.owner", Fields: []schema.Field{
		{Name: "title", Type: schema.String},
	}},
	"lab.net": {Name: "lab.net", Fields: []schema.Field{
		{Name: "labels", Type: schema.Map, Elem: &schema.Field{Type: schema.String}},
		{Name: "mode", Type: schema.String, Default: "plain"},
		{Name: "owner", Type: schema.String, Required: true, Immutable: true, Ref: "lab.owner"},
		{Name: "ports", Type: schema.List, Key: "name", Elem: &schema.Field{Type: schema.Struct, Fields: []schema.Field{
			{Name: "name", Type: schema.String, Required: true},
			{Name: "speed", Type: schema.Number, Default: int64(10)},
		}}},
		{Name: "vni", Type: schema.Int, Computed: true},
	}},
	"lab.switch": {Name: "lab.switch", Node: true, Fields: []schema.Field{
		{Name: "attach", Type: schema.Struct, Fields: []schema.Field{
			{Name: "net", Type: schema.String, Ref: "lab.net"},
			{Name: "type", Type: schema.String, Immutable: true, Default: "soft"},
		}},
		{Name: "enabled", Type: schema.Bool},
		{Name: "extra", Type: schema.Any},
	}},
	"lab.cable": {Name: "lab.cable", Node: true, Fields: []schema.Field{
		{Name: "ends", Type: schema.List, Set: true, Required: true, Elem: &schema.Field{Type: schema.String, Ref: "lab.switch"}},
	}},
}

const node = "n1"

func site(noun string) string { return providertest.ID("lab."+noun, "x") }

var siteCases = []providertest.Case{{
	Kind: "lab.owner", Name: "x",
	Want: schema.Object{"title": "Acme"}, Update: schema.Object{}, Invalid: schema.Object{"titel": "Acme"},
}, {
	Kind: "lab.net", Name: "x",
	Needs:   []providertest.Made{{Kind: "lab.owner", Name: "x", Spec: schema.Object{}}},
	Want:    schema.Object{"owner": site("owner"), "labels": map[string]any{"env": "prod"}},
	Update:  schema.Object{"owner": site("owner"), "ports": []any{map[string]any{"name": "a", "speed": 2.5}}},
	Invalid: schema.Object{"owner": site("owner"), "labels": map[string]any{"env": int64(1)}},
}}

var nodeCases = []providertest.Case{{
	Kind: "lab.switch", Name: "s1",
	Want:   schema.Object{"enabled": true, "attach": map[string]any{"type": "hard"}},
	Update: schema.Object{"enabled": false, "attach": map[string]any{"type": "hard"}, "extra": []any{int64(1), nil}},
}, {
	Kind: "lab.cable", Name: "c1",
	Needs: []providertest.Made{{Kind: "lab.switch", Name: "s1", Spec: schema.Object{}}, {Kind: "lab.switch", Name: "s2", Spec: schema.Object{}}},
	Want:  schema.Object{"ends": []any{"s1", "s2"}}, Update: schema.Object{"ends": []any{"s2"}},
}}

// The fake obeys the contract, in memory and in a file, on the site and on a node.
func TestLaws(t *testing.T) {
	for scope, cases := range map[string][]providertest.Case{schema.ScopeSite: siteCases, node: nodeCases} {
		open := func(t *testing.T, w *fake.World) providertest.World {
			return providertest.World{
				Provider: w.Provider("lab", scope), Dump: w.Dump, Advance: func() { must(t, w.Land()) },
				Meddle: func(kind, id string) {
					th, _ := look(t, of(t, w, scope, kind), id)
					th.Detail = "meddled"
					must(t, w.Put(scope, kind, th))
				},
			}
		}
		t.Run(scope+"/memory", func(t *testing.T) {
			providertest.Run(t, providertest.Suite{Kinds: kinds, Cases: cases, Open: func(t *testing.T) providertest.World {
				return open(t, fake.New(kinds))
			}})
		})
		t.Run(scope+"/file", func(t *testing.T) {
			providertest.Run(t, providertest.Suite{Kinds: kinds, Cases: cases, Open: func(t *testing.T) providertest.World {
				return open(t, openWorld(t, filepath.Join(t.TempDir(), "world.json")))
			}})
		})
	}
}

// The fake has the traits that it is told to have.
func TestLawsOfOtherTraits(t *testing.T) {
	blind := fake.NodeTraits()
	blind.Mark, blind.IDsNotReusable, blind.UndoDelete = false, true, providers.NoUndo
	blind.Update, blind.Delete = providers.Blind, providers.Blind
	fixed := fake.NodeTraits()
	fixed.Create, fixed.Delete = providers.Never, providers.Never
	slow := fake.NodeTraits()
	slow.ReadyWithin, slow.GoneWithin = time.Minute, time.Minute

	for name, traits := range map[string]providers.Traits{"blind": blind, "fixed": fixed, "slow": slow} {
		t.Run(name, func(t *testing.T) {
			open := func(t *testing.T) providertest.World {
				w := fake.New(schema.Kinds{"lab.switch": kinds["lab.switch"]})
				w.Traits = map[string]providers.Traits{"lab.switch": traits}
				if traits.Create == providers.Never {
					must(t, w.Put(node, "lab.switch", providers.Thing{ID: "s1", Spec: nodeCases[0].Want}))
				}
				for _, op := range []string{"create", "update", "delete"} {
					if name == "slow" {
						must(t, w.Fail(fake.Fault{Op: op, Times: -1, Effect: fake.EffectSlow, Delay: fake.Duration(time.Hour)}))
					}
				}
				return providertest.World{Provider: w.Provider("lab", node), Dump: w.Dump, Advance: func() { must(t, w.Land()) }}
			}
			providertest.Run(t, providertest.Suite{Open: open, Cases: nodeCases[:1]})
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openWorld(t *testing.T, path string) *fake.World {
	t.Helper()
	w, err := fake.Open(path, kinds)
	must(t, err)
	t.Cleanup(func() { must(t, w.Close()) })
	return w
}

// of returns a kind as the world serves it.
func of(t *testing.T, w *fake.World, scope, kind string) providers.Kind {
	t.Helper()
	set, err := providers.NewSet(w.Provider("lab", scope))
	must(t, err)
	served, _, ok := set.Find(scope, kind)
	if !ok {
		t.Fatalf("%s is not served in %s", kind, scope)
	}
	return served.Kind
}

func call(kind, name string, want schema.Object) providers.Call {
	ref := schema.Ref{Scope: node, Kind: kind, Name: name}
	return providers.Call{Ref: ref, ID: name, Want: want, Mark: providers.Mark{Site: providertest.Site, Ref: ref, Incarnation: 1}}
}

// look returns the one thing with the id, and whether it is there.
func look(t *testing.T, k providers.Kind, id string) (providers.Thing, bool) {
	t.Helper()
	things, err := k.Get(t.Context(), []string{id})
	must(t, err)
	if len(things) == 0 {
		return providers.Thing{}, false
	}
	return things[0], true
}

func wantClass(t *testing.T, err error, want providers.Class) {
	t.Helper()
	if err == nil || providers.ClassOf(err) != want {
		t.Errorf("error is %v of class %s, want class %s", err, providers.ClassOf(err), want)
	}
}

// What is sent wrongly, or in the wrong order, is refused and leaves no trace.
func TestRefusals(t *testing.T) {
	w := fake.New(kinds)
	switches, cables := of(t, w, node, "lab.switch"), of(t, w, node, "lab.cable")
	must(t, switches.Create(t.Context(), call("lab.switch", "s1", schema.Object{"attach": map[string]any{}})))
	must(t, cables.Create(t.Context(), call("lab.cable", "c1", schema.Object{"ends": []any{"s1"}})))
	before := w.Snapshot()

	update := call("lab.switch", "s1", schema.Object{"attach": map[string]any{"type": "hard"}})
	th, _ := look(t, switches, "s1")
	update.Version = th.Version
	remove := call("lab.switch", "s1", nil)
	remove.Version = th.Version
	nameless := call("lab.switch", "s2", schema.Object{})
	nameless.ID = ""
	for _, c := range []struct {
		name  string
		do    func(ctx context.Context, c providers.Call) error
		call  providers.Call
		class providers.Class
		says  string
	}{
		{"unknown field", switches.Create, call("lab.switch", "s2", schema.Object{"speed": int64(1)}), providers.Invalid, "unknown field speed"},
		{"unknown nested field", switches.Create, call("lab.switch", "s2", schema.Object{"attach": map[string]any{"to": "x"}}), providers.Invalid, "attach: unknown field to"},
		{"wrong type", switches.Create, call("lab.switch", "s2", schema.Object{"enabled": "yes"}), providers.Invalid, "enabled is string, want bool"},
		{"object for a scalar", switches.Create, call("lab.switch", "s2", schema.Object{"enabled": map[string]any{}}), providers.Invalid, "enabled is object, want bool"},
		{"wrong element", cables.Create, call("lab.cable", "c2", schema.Object{"ends": []any{"s1", int64(2)}}), providers.Invalid, "ends.1 is int, want string"},
		{"missing field", cables.Create, call("lab.cable", "c2", schema.Object{}), providers.Invalid, "ends is missing"},
		{"no id", switches.Create, nameless, providers.Invalid, "id is empty"},
		{"dangling", cables.Create, call("lab.cable", "c2", schema.Object{"ends": []any{"s1", "s9"}}), providers.Absent, "n1/lab.switch s9"},
		{"in use", switches.Delete, remove, providers.Invalid, "n1/lab.cable c1 refers to it"},
		{"immutable", switches.Update, update, providers.Invalid, "attach.type cannot be changed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.do(t.Context(), c.call)
			wantClass(t, err, c.class)
			if err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("error is %v, want it to say %q", err, c.says)
			}
			if got := w.Snapshot(); got != before {
				t.Errorf("the world is\n%s\nwant\n%s", got, before)
			}
		})
	}
}

// A computed field cannot be set, but the world can have it in the status.
func TestComputed(t *testing.T) {
	w := fake.New(kinds)
	must(t, w.Put(schema.ScopeSite, "lab.owner", providers.Thing{ID: "o"}))
	nets := of(t, w, schema.ScopeSite, "lab.net")
	ref := schema.Ref{Scope: schema.ScopeSite, Kind: "lab.net", Name: "n"}
	wantClass(t, nets.Create(t.Context(), providers.Call{Ref: ref, ID: "n", Want: schema.Object{"owner": "o", "vni": int64(1)}}), providers.Invalid)
	must(t, w.Put(schema.ScopeSite, "lab.net", providers.Thing{ID: "n", Spec: schema.Object{"owner": "o"}, Status: schema.Object{"vni": int64(7)}}))
	th, _ := look(t, nets, "n")
	if th.Status["vni"] != int64(7) || th.Spec["mode"] != "plain" {
		t.Errorf("the thing has status %v and spec %v, want vni 7 and the default mode", th.Status, th.Spec)
	}
	if err := w.Put(schema.ScopeSite, "lab.net", providers.Thing{ID: "n2", Spec: schema.Object{"owner": "o"}, Status: schema.Object{"mode": "x"}}); err == nil {
		t.Error("a settable field was put into the status")
	}
}

// What is unset gets its default, also when it is no longer set.
func TestDefaults(t *testing.T) {
	w := fake.New(kinds)
	must(t, w.Put(schema.ScopeSite, "lab.owner", providers.Thing{ID: "o"}))
	nets := of(t, w, schema.ScopeSite, "lab.net")
	c := providers.Call{Ref: schema.Ref{Scope: schema.ScopeSite, Kind: "lab.net", Name: "n"}, ID: "n", Want: schema.Object{"owner": "o"}}
	must(t, nets.Create(t.Context(), c))
	for _, mode := range []any{"plain", "fancy", "plain"} {
		if mode == "fancy" {
			c.Want["mode"] = mode
		} else {
			delete(c.Want, "mode")
		}
		th, _ := look(t, nets, "n")
		c.Version = th.Version
		must(t, nets.Update(t.Context(), c))
		if th, _ = look(t, nets, "n"); th.Spec["mode"] != mode {
			t.Errorf("mode is %v, want %v", th.Spec["mode"], mode)
		}
	}
	must(t, w.Put(schema.ScopeSite, "lab.net", providers.Thing{ID: "n2", Spec: schema.Object{"owner": "o", "ports": []any{map[string]any{"name": "a"}}}}))
	th, _ := look(t, nets, "n2")
	if got := fmt.Sprint(th.Spec["ports"]); got != "[map[name:a speed:10]]" {
		t.Errorf("the ports are %s, want one with the default speed", got)
	}
}

// An id that is requested twice is reported once.
func TestAskedTwice(t *testing.T) {
	w := fake.New(kinds)
	must(t, w.Put(node, "lab.switch", providers.Thing{ID: "s1"}))
	things, err := of(t, w, node, "lab.switch").Get(t.Context(), []string{"s1", "s1"})
	must(t, err)
	if len(things) != 1 {
		t.Errorf("%d things are reported, want 1", len(things))
	}
}

// A thing on a node may refer to a thing of the site, which then cannot be deleted.
func TestReferenceFromNodeToSite(t *testing.T) {
	w := fake.New(kinds)
	must(t, w.Put(schema.ScopeSite, "lab.owner", providers.Thing{ID: "o"}))
	must(t, w.Put(schema.ScopeSite, "lab.net", providers.Thing{ID: "net", Spec: schema.Object{"owner": "o"}}))
	must(t, of(t, w, node, "lab.switch").Create(t.Context(), call("lab.switch", "s1", schema.Object{"attach": map[string]any{"net": "net"}})))
	nets := of(t, w, schema.ScopeSite, "lab.net")
	th, _ := look(t, nets, "net")
	remove := providers.Call{Ref: schema.Ref{Scope: schema.ScopeSite, Kind: "lab.net", Name: "net"}, ID: "net", Version: th.Version}
	wantClass(t, nets.Delete(t.Context(), remove), providers.Invalid)
	must(t, w.Remove(node, "lab.switch", "s1"))
	must(t, nets.Delete(t.Context(), remove))
}

// Another client's change changes the version, so that ours is refused.
func TestThirdParty(t *testing.T) {
	w := fake.New(kinds)
	switches := of(t, w, node, "lab.switch")
	must(t, switches.Create(t.Context(), call("lab.switch", "s1", schema.Object{})))
	th, _ := look(t, switches, "s1")
	must(t, w.Put(node, "lab.switch", providers.Thing{ID: "s1", Name: "s1", Spec: schema.Object{"enabled": true}}))
	c := call("lab.switch", "s1", schema.Object{})
	c.Version = th.Version
	wantClass(t, switches.Update(t.Context(), c), providers.Conflict)
	must(t, w.Remove(node, "lab.switch", "s1"))
	if _, ok := look(t, switches, "s1"); ok {
		t.Error("the removed thing is still there")
	}
	must(t, w.Remove(node, "lab.switch", "s1"))
	for what, err := range map[string]error{
		"kind":  w.Put(node, "lab.lamp", providers.Thing{ID: "x"}),
		"scope": w.Put(schema.ScopeSite, "lab.switch", providers.Thing{ID: "x"}),
		"field": w.Put(node, "lab.switch", providers.Thing{ID: "x", Spec: schema.Object{"speed": true}}),
		"phase": w.Put(node, "lab.switch", providers.Thing{ID: "x", Phase: "sleepy"}),
		"id":    w.Put(node, "lab.switch", providers.Thing{}),
	} {
		if err == nil {
			t.Errorf("a thing of a wrong %s was put into the world", what)
		}
	}
}

// A change and its undo leave the same dump, although versions and burned ids have advanced.
func TestDumpProvesRevert(t *testing.T) {
	w := fake.New(kinds)
	owners := of(t, w, schema.ScopeSite, "lab.owner")
	must(t, w.Put(schema.ScopeSite, "lab.owner", providers.Thing{ID: "a", Spec: schema.Object{"title": "A"}}))
	dump, snapshot := w.Dump(), w.Snapshot()

	ref := func(name string) schema.Ref {
		return schema.Ref{Scope: schema.ScopeSite, Kind: "lab.owner", Name: name}
	}
	must(t, owners.Create(t.Context(), providers.Call{Ref: ref("b"), ID: "b"}))
	for _, title := range []string{"changed", "A"} {
		th, _ := look(t, owners, "a")
		must(t, owners.Update(t.Context(), providers.Call{Ref: ref("a"), ID: "a", Version: th.Version, Want: schema.Object{"title": title}}))
		if w.Dump() == dump {
			t.Error("the dump does not show the change")
		}
	}
	th, _ := look(t, owners, "b")
	must(t, owners.Delete(t.Context(), providers.Call{Ref: ref("b"), ID: "b", Version: th.Version}))
	if got := w.Dump(); got != dump {
		t.Errorf("the dump is\n%s\nwant\n%s", got, dump)
	}
	if w.Snapshot() == snapshot {
		t.Error("the snapshot shows neither versions nor burned ids")
	}
	wantClass(t, owners.Create(t.Context(), providers.Call{Ref: ref("b"), ID: "b"}), providers.Exists)
}

// The hook sees each call before and after its effect, and the log the request.
func TestHookAndLog(t *testing.T) {
	w := fake.New(kinds)
	switches := of(t, w, node, "lab.switch")
	var mu sync.Mutex
	var seen []string
	w.Hook = func(op string, at fake.Moment, c providers.Call) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, fmt.Sprintf("%s %s %s things %d", at, op, c.Ref.Name, strings.Count(w.Dump(), `"spec"`)))
	}
	must(t, switches.Create(t.Context(), call("lab.switch", "s1", schema.Object{})))
	_, err := providers.Collect(switches.List(t.Context()))
	must(t, err)
	wantClass(t, switches.Create(t.Context(), call("lab.switch", "s1", schema.Object{})), providers.Exists)
	want := []string{
		"before create s1 things 0", "after create s1 things 1",
		"before observe  things 1", "after observe  things 1",
		"before create s1 things 1", "after create s1 things 1",
	}
	if !slices.Equal(seen, want) {
		t.Errorf("the hook saw %q, want %q", seen, want)
	}
	if c, o := w.Count("create"), w.Count("observe"); c != 2 || o != 1 {
		t.Errorf("%d creates and %d observations were counted, want 2 and 1", c, o)
	}
	log := w.Log()
	if len(log) != 2 || log[0].Err != nil || providers.ClassOf(log[1].Err) != providers.Exists || log[0].Call.ID != "s1" {
		t.Errorf("the log is %v, want a create of s1 that worked and one that did not", log)
	}
}

// A call whose context ends while the hook holds it has no effect.
func TestCancelledInHook(t *testing.T) {
	w := fake.New(kinds)
	ctx, cancel := context.WithCancel(t.Context())
	w.Hook = func(_ string, at fake.Moment, _ providers.Call) {
		if at == fake.Before {
			cancel()
		}
	}
	before := w.Dump()
	wantClass(t, of(t, w, node, "lab.switch").Create(ctx, call("lab.switch", "s1", schema.Object{})), providers.Transient)
	if w.Dump() != before {
		t.Error("the cancelled call had an effect")
	}
}

// A closed world answers nothing.
func TestClosed(t *testing.T) {
	w := fake.New(kinds)
	switches := of(t, w, node, "lab.switch")
	must(t, w.Close())
	wantClass(t, switches.Create(t.Context(), call("lab.switch", "s1", schema.Object{})), providers.Transient)
	_, err := providers.Collect(switches.List(t.Context()))
	wantClass(t, err, providers.Transient)
	must(t, w.Close())
}

// A slow answer takes its time, and is given up with the context.
func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := fake.New(kinds)
		for _, op := range []string{"create", "observe"} {
			must(t, w.Fail(fake.Fault{Op: op, Times: -1, Delay: fake.Duration(time.Minute)}))
		}
		switches := of(t, w, node, "lab.switch")
		for limit, want := range map[time.Duration]time.Duration{time.Hour: time.Minute, time.Second: time.Second} {
			for op, do := range map[string]func(context.Context) error{
				"create": func(ctx context.Context) error {
					return switches.Create(ctx, call("lab.switch", "s1", schema.Object{}))
				},
				"observe": func(ctx context.Context) error { _, err := providers.Collect(switches.List(ctx)); return err },
			} {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				start := time.Now()
				wantClass(t, do(ctx), providers.Transient)
				if took := time.Since(start); took != want {
					t.Errorf("%s with a limit of %s took %s, want %s", op, limit, took, want)
				}
				cancel()
			}
		}
	})
}
