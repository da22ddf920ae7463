package ovs_test

import (
	"strings"
	"testing"
	"time"

	"converge.dev/converge/internal/ovstest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/ovs"
	"converge.dev/converge/schema"
)

// TestHealth: while a real ovsdb-server is away the provider says so, its calls have no effect and may be repeated, and
// once the server is back the provider notices by itself.
func TestHealth(t *testing.T) {
	s := ovstest.Start(t)
	p := open(t, ovs.Options{Endpoint: s.Endpoint})
	bridges := p.Kinds[0].Kind
	look := func() error {
		_, err := providers.Collect(bridges.List(t.Context()))
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
	if down := p.Health(t.Context()); down != nil {
		t.Errorf("while it is there: %v", down)
	}
	for range 2 {
		run(`kill -9 $(cat "$OVS_RUNDIR/ovsdb-server.pid")`)
		err := look()
		for err == nil { // it will die in a moment
			err = look()
		}
		if providers.ClassOf(err) != providers.Transient {
			t.Errorf("looking while it is away: %v", err)
		}
		if down := p.Health(t.Context()); down == nil {
			t.Errorf("while it is away: %v", down)
		}
		run(`ovsdb-server "$OVS_DBDIR/conf.db" --remote=punix:"$OVS_RUNDIR/db.sock" --pidfile --detach --no-chdir --log-file`)
		if down := p.Health(t.Context()); down != nil {
			t.Errorf("after it came back: %v", down)
		}
		if err := look(); err != nil {
			t.Errorf("looking after it came back: %v", err)
		}
	}
}

// TestHealthOfDaemon: an ovs-vswitchd that does not act on a request makes the health bad, also for a client that connects
// later. One without requests does not, and one that continues makes it good again.
func TestHealthOfDaemon(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newNode(t, s, ovs.Options{Settle: time.Second})
		n.must(n.create("ovs.bridge", "br0", aBridge))
		s.Freeze(t)
		n.look("ovs.bridge", "br0")
		if down := n.p.Health(t.Context()); down != nil {
			t.Errorf("while nobody wants anything of ovs-vswitchd: %v", down)
		}
		n.fails(n.update("ovs.bridge", "br0", schema.Object{"stp_enable": true}), providers.Unknown)
		down := n.p.Health(t.Context())
		for later := newNode(t, s, ovs.Options{Settle: time.Second}); down != nil && t.Context().Err() == nil; {
			later.look("ovs.bridge", "br0")
			if down := later.p.Health(t.Context()); down != nil {
				break
			}
		}
		if down == nil || !strings.Contains(down.Error(), "ovs-vswitchd is not applying changes") {
			t.Errorf("while ovs-vswitchd stands still: %v", down)
		}
		s.Thaw(t)
		s.Settle(t)
		if down := n.p.Health(t.Context()); down != nil {
			t.Errorf("after it went on: %v", down)
		}
	})
}
