package fake_test

import (
	"context"
	"errors"
	"iter"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
)

// control opens a control of the world in a file.
func control(t *testing.T, path string) *fake.Control {
	t.Helper()
	c, err := fake.OpenControl(t.Context(), path, kinds)
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	return c
}

// served opens the world in a file and serves it.
func served(t *testing.T, path string) *fake.World {
	t.Helper()
	w := openWorld(t, path)
	must(t, w.Serve())
	return w
}

// both runs a test with a control of a world that another process has open, and with one that opens the world itself.
func both(t *testing.T, text string, test func(t *testing.T, c *fake.Control)) {
	t.Run("served", func(t *testing.T) {
		path := write(t, text)
		served(t, path)
		test(t, control(t, path))
	})
	t.Run("closed", func(t *testing.T) { test(t, control(t, write(t, text))) })
}

func world(t *testing.T, c *fake.Control) *fake.World {
	t.Helper()
	text, err := c.World(t.Context())
	must(t, err)
	w, err := fake.Parse(text, kinds)
	must(t, err)
	return w
}

// What a hand changes is changed, and everything else about the thing stays.
func TestControlChange(t *testing.T) {
	both(t, `{"things": {
	  "site": {
	    "lab.owner": {"o1": {"name": "acme", "spec": {}}},
	    "lab.net": {"42": {"name": "prod", "spec": {"owner": "o1", "labels": {"env": "prod", "tier": "1"}}, "status": {"vni": 7}}}},
	  "n1": {"lab.switch": {"s1": {"uid": "uid-of-s1", "phase": "failed", "detail": "broken", "spec": {"enabled": true, "attach": {"net": "42", "type": "hard"}}}}}}}`,
		func(t *testing.T, c *fake.Control) {
			must(t, c.Change(t.Context(), "n1", "lab.switch", "s1", schema.Object{"enabled": false, "attach": map[string]any{"net": nil}, "extra": []any{int64(1)}}))
			must(t, c.Change(t.Context(), "n1", "lab.switch", "new", schema.Object{"attach": map[string]any{"net": "42"}}))
			must(t, c.Change(t.Context(), schema.ScopeSite, "lab.net", "prod", schema.Object{"labels": map[string]any{"env": nil, "by": "hand"}})) // by its name
			w := world(t, c)
			s1, _ := look(t, of(t, w, node, "lab.switch"), "s1")
			want := schema.Object{"enabled": false, "attach": map[string]any{"type": "hard"}, "extra": []any{int64(1)}}
			if !s1.Spec.Equal(want) || s1.UID != "uid-of-s1" || s1.Phase != providers.Failed || s1.Detail != "broken" {
				t.Errorf("the changed switch is %+v", s1)
			}
			if made, ok := look(t, of(t, w, node, "lab.switch"), "new"); !ok || !made.Mark.IsZero() || made.UID == "" || made.Phase != providers.Ready ||
				!made.Spec.Equal(schema.Object{"attach": map[string]any{"net": "42", "type": "soft"}}) {
				t.Errorf("the new switch is %+v", made)
			}
			net, _ := look(t, of(t, w, schema.ScopeSite, "lab.net"), "42")
			if !net.Spec.Equal(schema.Object{"owner": "o1", "mode": "plain", "labels": map[string]any{"tier": "1", "by": "hand"}}) || net.Status["vni"] != int64(7) {
				t.Errorf("the changed net is %+v", net)
			}
			if _, ok := look(t, of(t, w, schema.ScopeSite, "lab.net"), "prod"); ok {
				t.Error("a thing was made whose id is the name of another")
			}
		})
}

// A change keeps the mark: the thing is still ours, and different.
func TestControlKeepsMark(t *testing.T) {
	w := fake.New(kinds)
	ours := providers.Mark{Site: "6f1c3c5e-4a4e-4f0e-9d53-0f1d3c6f7a10", Ref: schema.Ref{Scope: node, Kind: "lab.switch", Name: "s1"}, Incarnation: 1}
	must(t, w.Put(node, "lab.switch", providers.Thing{ID: "s1", Mark: ours, Spec: schema.Object{"enabled": true}}))
	before, _ := look(t, of(t, w, node, "lab.switch"), "s1")
	must(t, w.Change(node, "lab.switch", "s1", schema.Object{"enabled": false}))
	after, _ := look(t, of(t, w, node, "lab.switch"), "s1")
	if after.Mark != ours || after.UID != before.UID || after.Version == before.Version {
		t.Errorf("the thing was %+v and is %+v", before, after)
	}
	if before.Spec["enabled"] != true {
		t.Error("a thing that was observed before has changed")
	}
}

// What the world does not know is refused, and changes nothing.
func TestControlRefuses(t *testing.T) {
	both(t, `{"things": {"site": {"lab.owner": {"1": {"name": "twin", "spec": {}}, "2": {"name": "twin", "spec": {}}}}, "n1": {"lab.switch": {"s1": {"spec": {}}}}}}`,
		func(t *testing.T, c *fake.Control) {
			before, err := c.World(t.Context())
			must(t, err)
			put := func(scope, kind, id string, spec schema.Object) func(context.Context) error {
				return func(ctx context.Context) error { return c.Change(ctx, scope, kind, id, spec) }
			}
			remove := func(scope, kind, id string) func(context.Context) error {
				return func(ctx context.Context) error { return c.Remove(ctx, scope, kind, id) }
			}
			for says, do := range map[string]func(context.Context) error{
				"site/lab.thing x: unknown kind lab.thing":                                 put("site", "lab.thing", "x", schema.Object{}),
				"n1/lab.owner x: the kind does not exist in scope n1":                      put("n1", "lab.owner", "x", schema.Object{}),
				"n1/lab.switch s1: unknown field enabeld":                                  put("n1", "lab.switch", "s1", schema.Object{"enabeld": true}),
				"n1/lab.switch s1: enabled is string, want bool":                           put("n1", "lab.switch", "s1", schema.Object{"enabled": "yes"}),
				"n1/lab.cable c1: ends is missing":                                         put("n1", "lab.cable", "c1", schema.Object{}),
				"n1/lab.switch : the id is empty":                                          put("n1", "lab.switch", "", schema.Object{}),
				"site/lab.owner twin: 2 things have this name: choose one by its id: 1, 2": put("site", "lab.owner", "twin", schema.Object{"title": "x"}),
				"n1/lab.switch s2 does not exist":                                          remove("n1", "lab.switch", "s2"),
				"site/lab.switch s1: the kind does not exist in scope site":                remove("site", "lab.switch", "s1"),
				`fault: op is "explode", want observe, create, update, delete or any`:      func(ctx context.Context) error { return c.Fail(ctx, fake.Fault{Op: "explode"}) },
			} {
				if err := do(t.Context()); err == nil || err.Error() != says {
					t.Errorf("the error is %v, want %s", err, says)
				}
			}
			if after, err := c.World(t.Context()); err != nil || string(after) != string(before) {
				t.Errorf("the world is now\n%s(%v), and was\n%s", after, err, before)
			}
		})
}

func TestControlRemove(t *testing.T) {
	both(t, `{"things": {"site": {"lab.owner": {"1": {"name": "acme", "spec": {}}}}, "n1": {"lab.switch": {"s1": {"spec": {}}}}}}`,
		func(t *testing.T, c *fake.Control) {
			must(t, c.Remove(t.Context(), node, "lab.switch", "s1"))
			must(t, c.Remove(t.Context(), schema.ScopeSite, "lab.owner", "acme"))
			if scopes := world(t, c).Scopes(); len(scopes) != 0 {
				t.Errorf("there are things left in %q", scopes)
			}
		})
}

// Faults can be injected, listed with how often they have matched, and ended.
func TestControlFaults(t *testing.T) {
	both(t, `{"things": {}}`, func(t *testing.T, c *fake.Control) {
		if faults, err := c.Faults(t.Context()); err != nil || len(faults) != 0 {
			t.Errorf("the faults are %+v, %v", faults, err)
		}
		f, err := fake.ParseFault([]byte(`{"op": "update", "ref": "lab.switch", "effect": "late", "delay": "1.5s"}`))
		must(t, err)
		must(t, c.Fail(t.Context(), f))
		faults, err := c.Faults(t.Context())
		must(t, err)
		if len(faults) != 1 || faults[0] != f || f.Delay != fake.Duration(1500*time.Millisecond) || f.Class != providers.Unknown {
			t.Errorf("the faults are %+v, want %+v", faults, f)
		}
		must(t, c.Mend(t.Context()))
		if faults, err := c.Faults(t.Context()); err != nil || len(faults) != 0 {
			t.Errorf("the faults are %+v, %v", faults, err)
		}
	})
	for _, text := range []string{`{"op": "update", "reff": "lab.switch"}`, `{"op": "update", "op": "create"}`, `{"op": "update"} {}`, `null`, `{}`} {
		if f, err := fake.ParseFault([]byte(text)); err == nil {
			t.Errorf("%s is the fault %+v", text, f)
		}
	}
}

// A change through the socket is in the world of the process that serves it, at once, and who watches is told.
func TestControlIsSeen(t *testing.T) {
	path := write(t, byHand)
	w := served(t, path)
	p := w.Provider("lab", node)
	watch := p.Kinds[slices.IndexFunc(p.Kinds, func(k providers.Served) bool { return k.Name == "lab.switch" })].Watch
	next, stop := iter.Pull2(watch(t.Context()))
	defer stop()
	_, err, _ := next() // the first event says that anything may have changed
	must(t, err)
	c := control(t, path)
	must(t, c.Change(t.Context(), node, "lab.switch", "s1", schema.Object{"enabled": true}))
	if ids, err, _ := next(); err != nil || !slices.Equal(ids, []string{"s1"}) {
		t.Errorf("who watches is told of %q, %v", ids, err)
	}
	if s1, _ := look(t, of(t, w, node, "lab.switch"), "s1"); s1.Spec["enabled"] != true {
		t.Errorf("the switch is %+v", s1)
	}
	must(t, c.Fail(t.Context(), fake.Fault{Op: "observe", Ref: "lab.switch", Class: providers.Denied}))
	_, err = of(t, w, node, "lab.switch").Get(t.Context(), []string{"s1"})
	wantClass(t, err, providers.Denied)
}

// The socket is for the owner alone, goes with the world, and takes the place of one that a killed process left, but of nothing else.
func TestServe(t *testing.T) {
	path := write(t, byHand)
	socket := path + ".sock"
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	must(t, err)
	stale.SetUnlinkOnClose(false)
	must(t, stale.Close())

	w := served(t, path)
	info, err := os.Stat(socket)
	must(t, err)
	must(t, w.Serve())
	if again, err := os.Stat(socket); err != nil || !os.SameFile(info, again) {
		t.Errorf("a world that is served already got another socket: %v", err)
	}
	if info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("the socket has mode %v", info.Mode())
	}
	c := control(t, path)
	must(t, c.Change(t.Context(), node, "lab.switch", "s1", schema.Object{"enabled": true}))
	must(t, w.Close())
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket of a closed world: %v", err)
	}
	if err := c.Change(t.Context(), node, "lab.switch", "s1", schema.Object{"enabled": false}); err == nil {
		t.Error("a closed world was changed")
	}
	if err := w.Serve(); err == nil {
		t.Error("a closed world is served")
	}
	w = openWorld(t, path)
	if s1, _ := look(t, of(t, w, node, "lab.switch"), "s1"); s1.Spec["enabled"] != true {
		t.Errorf("what was acknowledged is not in the file: %+v", s1)
	}
	must(t, os.WriteFile(socket, []byte("precious"), 0o600))
	if err := w.Serve(); err == nil || !strings.Contains(err.Error(), socket+" is ") {
		t.Errorf("instead of a file it serves: %v", err)
	}
	if read(t, socket) != "precious" {
		t.Error("a file was replaced")
	}

	if err := fake.New(kinds).Serve(); err == nil {
		t.Error("a world in memory is served")
	}
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 100)+".json")
	if err := openWorld(t, long).Serve(); err == nil || !strings.Contains(err.Error(), "move the world to a shorter path") {
		t.Errorf("a path that is too long gave %v", err)
	}
}

// A world that another process has open without serving it cannot be changed, and the error says where it would have to answer.
func TestControlUnreachable(t *testing.T) {
	path := write(t, byHand)
	openWorld(t, path)
	_, err := fake.OpenControl(t.Context(), path, kinds)
	var unreached *fake.UnreachableError
	if !errors.As(err, &unreached) || unreached.Path != path || unreached.Socket != path+".sock" || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the error is %v", err)
	}
	must(t, os.WriteFile(path+"2", []byte("{"), 0o600))
	if c, err := fake.OpenControl(t.Context(), path+"2", kinds); err == nil || c != nil || errors.As(err, &unreached) {
		t.Errorf("a broken world gave %v, %v", c, err)
	}
}

// The server takes known fields only, each once, and nothing after them.
func TestServeIsStrict(t *testing.T) {
	path := write(t, byHand)
	w := served(t, path)
	before := w.Snapshot()
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path+".sock")
	}}}
	defer client.CloseIdleConnections()
	for _, c := range []struct{ path, body string }{
		{"/change", `{"scope": "n1", "kind": "lab.switch", "id": "s1", "spec": {"enabled": true}, "mark": "x"}`},
		{"/change", `{"scope": "n1", "kind": "lab.switch", "id": "s1", "spec": {"enabled": true}} {}`},
		{"/change", `{"scope": "n1", "kind": "lab.switch", "id": "s1", "id": "s2", "spec": {"enabled": true}}`},
		{"/change", `{"scope": "n1", "kind": "lab.switch", "id": "s1", "spec": [true]}`},
		{"/change", `{"scope": "n1", "kind": "lab.switch", "id": "s1", "spec": {"extra": "` + strings.Repeat("x", 5<<20) + `"}}`},
		{"/change", ``},
		{"/remove", `{"scope": "n1", "kind": "lab.switch", "id": "s1", "force": true}`},
		{"/faults", `{"op": "update", "reff": "lab.switch"}`},
	} {
		answer, err := client.Post("http://world"+c.path, "application/json", strings.NewReader(c.body))
		must(t, err)
		answer.Body.Close()
		if answer.StatusCode != http.StatusUnprocessableEntity {
			t.Errorf("%s %.100s: %s", c.path, c.body, answer.Status)
		}
	}
	if after := w.Snapshot(); after != before {
		t.Errorf("the world has changed:\n%s", after)
	}
}
