package ovs_test

import (
	"testing"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/ovs"
	"converge.dev/converge/providers/ovs/ovstest"
)

// TestHealth: while a real ovsdb-server is away the provider says so, its calls have no effect and may be made again, and
// once the server is back it finds that out by itself.
func TestHealth(t *testing.T) {
	s := ovstest.Start(t)
	p := open(t, ovs.Options{Endpoint: s.Endpoint})
	bridges := p.Kinds[0].Kind
	look := func() error {
		_, err := bridges.Observe(t.Context(), nil)
		return err
	}
	run := func(script string) {
		t.Helper()
		if out, err := s.Command(t, "sh", "-c", script).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", script, err, out)
		}
	}
	if err := look(); err != nil {
		t.Fatal(err)
	}
	if h := p.Health(t.Context()); h.Down != nil || h.Succeeded == 0 || h.Failed != 0 {
		t.Errorf("while it is there: %+v", h)
	}
	for range 2 {
		run(`kill -9 $(cat "$OVS_RUNDIR/ovsdb-server.pid")`)
		err := look()
		for err == nil { // it dies in a moment
			err = look()
		}
		if providers.ClassOf(err) != providers.Transient {
			t.Errorf("looking while it is away: %v", err)
		}
		if h := p.Health(t.Context()); h.Down == nil || h.Failed == 0 || h.Last == nil || h.LastAt.IsZero() {
			t.Errorf("while it is away: %+v", h)
		}
		run(`ovsdb-server "$OVS_DBDIR/conf.db" --remote=punix:"$OVS_RUNDIR/db.sock" --pidfile --detach --no-chdir --log-file`)
		if h := p.Health(t.Context()); h.Down != nil {
			t.Errorf("after it came back: %+v", h)
		}
		if err := look(); err != nil {
			t.Errorf("looking after it came back: %v", err)
		}
	}
}
