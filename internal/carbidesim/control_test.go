package carbidesim

import (
	"bytes"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/providers/carbide/forge"
)

// A new socket replaces neither that of another running site nor a file that is not a socket.
func TestControlTakesNothingAway(t *testing.T) {
	b := start(t, Options{})
	path := filepath.Join(t.TempDir(), "control")
	s, err := NewServer(b.world, ServerOptions{Control: path})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewServer(b.world, ServerOptions{Control: path}); !errors.Is(err, ErrInUse) {
		t.Errorf("a second site on one socket: %v", err)
	}
	c := NewControl(path)
	defer c.Close()
	if got := ok(c.World(ctx, false)); !bytes.Equal(got, b.world.Dump()) {
		t.Errorf("world %s", got)
	}
	s.Stop()
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := NewServer(b.world, ServerOptions{Control: path}); err == nil {
		t.Error("a file is taken for a socket")
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "precious" {
		t.Errorf("the file is now %q, %v", text, err)
	}
}

func TestControl(t *testing.T) {
	b := start(t, Options{Hosts: Hosts{Count: 1}, Rules: Rules{Peering: PeeringMixed}})
	furnish(b)
	socket := filepath.Join(t.TempDir(), "control")
	if l, err := net.Listen("unix", socket); err == nil { // as left behind by a killed process
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		l.Close()
	}
	s, err := NewServer(b.world, ServerOptions{Control: socket})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v", info.Mode(), err)
	}
	c := NewControl(socket)
	defer c.Close()
	if got := ok(c.World(ctx, false)); !bytes.Equal(got, b.world.Dump()) {
		t.Errorf("world %s", got)
	}
	if got := ok(c.World(ctx, true)); !bytes.Equal(got, b.world.DumpAll()) {
		t.Errorf("full world %s", got)
	}
	if got := ok(c.Calls(ctx)); got["CreateTenant"] != 1 {
		t.Errorf("calls %v", got)
	}

	want := Fault{Method: "CreateVpc", Match: "x", Nth: 2, Every: 1, Times: 3, Effect: Slow, Code: codes.Internal, Delay: time.Second}
	for _, err := range []error{c.ResetCalls(ctx), c.Inject(ctx, want)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := ok(c.Faults(ctx)); len(got) != 1 || got[0] != want {
		t.Errorf("faults %+v", got)
	}
	if err := c.ClearFaults(ctx); err != nil {
		t.Fatal(err)
	}
	if got := b.world.Faults(); len(got) != 0 {
		t.Errorf("faults %+v", got)
	}
	if got := b.world.Calls(); len(got) != 0 {
		t.Errorf("calls %v", got)
	}

	ok(c.Call(ctx, "CreateVpc", []byte(`{"id": {"value": "`+uid(7)+`"}, "metadata": {"name": "drift"}}`)))
	if got := b.findVpc(uid(7)).Metadata.Name; got != "drift" {
		t.Errorf("the stranger's VPC is %s", got)
	}
	b.refusals([]refusal{
		{"refused call", failed(c.Call(ctx, "DeleteVpc", []byte(`{"id": {"value": "`+uid(8)+`"}}`))), codes.NotFound, "vpc not found"},
		{"malformed request", failed(c.Call(ctx, "DeleteVpc", []byte(`{`))), codes.InvalidArgument, ""},
		{"unknown method", failed(c.Call(ctx, "EraseVpc", []byte(`{}`))), codes.Unimplemented, "EraseVpc"},
		{"unknown instance", c.PhoneHome(ctx, uid(8)), codes.NotFound, "instance"},
		{"unknown fault", c.Inject(ctx, Fault{Method: "*", Effect: "odd"}), codes.Unknown, "effect"},
	})
	state := func() string { return b.findInstance(uid(9)).Status.Tenant.State.String() }
	if err := c.Advance(ctx, RealTiming.Provision); err != nil || state() != "READY" {
		t.Errorf("after a while the instance is %s: %v", state(), err)
	}
	if err := c.SetInstanceState(ctx, uid(9), "FAILED"); err != nil || state() != "FAILED" {
		t.Errorf("instance is %s: %v", state(), err)
	}
	if err := c.SetInstanceState(ctx, uid(9), ""); err != nil || state() != "READY" {
		t.Errorf("instance is %s: %v", state(), err)
	}
	if err := c.SetInstanceState(ctx, uid(9), "SAD"); err == nil || !strings.Contains(err.Error(), "SAD") {
		t.Errorf("an unknown state: %v", err)
	}
	if err := c.LeaveBehind(ctx, uid(9), true); err != nil || b.world.site.instances.get(uid(9)).Behind.IsZero() {
		t.Errorf("the instance is not left behind: %v", err)
	}
	host := b.findInstance(uid(9)).MachineId.Id
	if err := c.Deafen(ctx, host, true); err != nil || !b.world.site.machines.get(host).Power.Deaf {
		t.Errorf("the guest listens: %v", err)
	}
	if err := c.SetAlerts(ctx, host, map[string][]string{"Fire": {"PreventInstanceDeletion"}}); err != nil {
		t.Fatal(err)
	}
	b.refuses(failed(b.ReleaseInstance(ctx, &forge.InstanceReleaseRequest{Id: instanceID(uid(9))})), codes.InvalidArgument, "deletion")
}
