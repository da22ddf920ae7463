package carbide_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/test/bufconn"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

// timed runs a test with a site whose clock is the test's own, so that waiting takes no time.
func timed(t *testing.T, o carbidesim.Options, test func(s *site)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, o)
		server, err := carbidesim.NewServer(w, carbidesim.ServerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		l := bufconn.Listen(1 << 20)
		go server.Serve(l)
		p, err := carbide.Open(t.Context(), carbide.Options{
			Address: "127.0.0.1:1079", TLS: carbide.TLS{Mode: carbide.Off},
			Dial: func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) },
		})
		if err != nil {
			t.Fatal(err)
		}
		test(&site{t, w, p})
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		server.Stop()
		l.Close()
	})
}

// powered creates an instance and waits until it is ready.
func (s *site) powered(host string) providers.Call {
	s.Helper()
	s.make("vpc", "prod", schema.Object{"tenant": "acme"})
	s.make("vpc_prefix", "links", schema.Object{"vpc": id("vpc", "prod"), "prefix": "10.1.0.0/16"})
	c := s.make("instance", "web", schema.Object{
		"tenant": "acme", "machine": host, "os": map[string]any{"ipxe": "#!ipxe"},
		"interfaces": []any{map[string]any{"function": "physical", "device_instance": int64(0), "vpc_prefix": id("vpc_prefix", "links")}},
	})
	s.Advance(time.Hour)
	return c
}

func (s *site) update(noun, name, id string, changes schema.Object) error {
	s.Helper()
	return s.kind(noun).Update(s.Context(), s.change(noun, name, id, changes))
}

// reach changes an instance as the engine does: another update requests what is left once it is ready.
func (s *site) reach(name, id string, changes schema.Object) {
	s.Helper()
	for range 5 {
		if err := s.update("instance", name, id, changes); err != nil {
			s.Fatal(err)
		}
		th := s.see("instance", id)
		for deadline := time.Now().Add(time.Hour); th.Phase == providers.Pending && time.Now().Before(deadline); th = s.see("instance", id) {
			time.Sleep(5 * time.Second)
		}
		if th.Spec["power"] == changes["power"] {
			return
		}
	}
	s.Fatalf("it does not become %v", changes)
}

// TestPower: an instance is turned off and on, the guest is asked first, and the site is told so that it does not interfere.
func TestPower(t *testing.T) {
	host := hosts(t)[0]
	timed(t, carbidesim.Options{Hosts: lawHosts}, func(s *site) {
		c := s.powered(host)
		is := func(when, power string, phase providers.Phase) {
			s.Helper()
			th := s.see("instance", c.ID)
			if th.Spec["power"] != power || th.Phase != phase {
				s.Errorf("%s the instance is %v and %s (%s), want %s and %s", when, th.Spec["power"], th.Phase, th.Detail, power, phase)
			}
		}
		is("at first", "on", providers.Ready)
		began := time.Now()
		s.ResetCalls()
		s.reach("web", c.ID, schema.Object{"power": "off"})
		if n := s.Calls()["AdminPowerControl"]; n != 1 || time.Since(began) < carbidesim.RealTiming.Shutdown {
			s.Errorf("a guest that shuts down in time took %d calls and %s", n, time.Since(began))
		}
		is("off", "off", providers.Ready)
		if m := s.see("machine", host); m.Spec["maintenance"] != nil {
			s.Errorf("the maintenance that goes with it shows as somebody's wish: %v", m.Spec)
		}
		if n := s.Calls()["UpdateInstanceConfig"]; n != 0 {
			s.Errorf("a change of power alone wrote the configuration %d times", n)
		}
		time.Sleep(24 * time.Hour)
		is("a day later", "off", providers.Ready)

		s.class("to change what the site must do itself", s.update("instance", "web", c.ID, schema.Object{"interfaces": []any{
			map[string]any{"function": "physical", "device_instance": int64(0), "device": "other", "vpc_prefix": id("vpc_prefix", "links")},
		}}), invalid)
		if err := s.update("instance", "web", c.ID, schema.Object{"description": "asleep"}); err != nil {
			s.Errorf("words of an instance that is off: %v", err)
		}

		if err := s.update("instance", "web", c.ID, schema.Object{"power": "on", "labels": map[string]any{"a": "b"}}); err != nil {
			s.Fatal(err)
		}
		is("told to be on", "off", providers.Pending)
		time.Sleep(time.Hour)
		is("on again", "on", providers.Ready)
		if s.machine(host).MaintenanceReference != nil {
			s.Error("the maintenance stays")
		}
		if got := s.see("instance", c.ID).Spec["labels"]; got == nil {
			s.Error("what was to change beside was left")
		}
	})
}

// machine returns a machine as the service has it.
func (s *site) machine(host string) *forge.Machine {
	s.Helper()
	r, err := s.Stranger().FindMachinesByIds(s.Context(), &forge.MachinesByIdsRequest{MachineIds: []*forge.MachineId{{Id: host}}})
	if err != nil || len(r.Machines) != 1 {
		s.Fatalf("%d machines, %v", len(r.GetMachines()), err)
	}
	return r.Machines[0]
}

// TestPowerOfDeafGuest: the power of a guest that does not shut down is cut, after a while.
func TestPowerOfDeafGuest(t *testing.T) {
	host := hosts(t)[0]
	timed(t, carbidesim.Options{Hosts: lawHosts}, func(s *site) {
		c := s.powered(host)
		if err := s.Deafen(host, true); err != nil {
			s.Fatal(err)
		}
		began := time.Now()
		s.ResetCalls()
		s.reach("web", c.ID, schema.Object{"power": "off"})
		if n := s.Calls()["AdminPowerControl"]; n != 2 || time.Since(began) < 2*time.Minute {
			s.Errorf("it took %d calls and %s", n, time.Since(began))
		}
		if th := s.see("instance", c.ID); th.Phase != providers.Ready || th.Spec["power"] != "off" {
			s.Errorf("the instance is %s (%s), %v", th.Phase, th.Detail, th.Spec["power"])
		}
	})
}

// TestPowerOfGuestNobodyAsked: a host that is to be off and is on, because another client turned it on or told only the site, is
// not cut off: its guest is asked first.
func TestPowerOfGuestNobodyAsked(t *testing.T) {
	host := hosts(t)[0]
	timed(t, carbidesim.Options{Hosts: lawHosts}, func(s *site) {
		c := s.powered(host)
		s.reach("web", c.ID, schema.Object{"power": "off"})
		time.Sleep(24 * time.Hour)
		if _, err := s.Stranger().AdminPowerControl(s.Context(), &forge.AdminPowerControlRequest{MachineId: &host, Action: forge.AdminPowerControlRequest_On}); err != nil {
			s.Fatal(err)
		}
		time.Sleep(time.Hour)
		if th := s.see("instance", c.ID); th.Spec["power"] != "on" || th.Phase != providers.Ready || th.Detail == "" {
			s.Errorf("turned on by hand the instance is %v and %s (%s)", th.Spec["power"], th.Phase, th.Detail)
		}
		s.ResetCalls()
		began := time.Now()
		s.reach("web", c.ID, schema.Object{"power": "off"})
		if n := s.Calls()["AdminPowerControl"]; n != 1 || time.Since(began) < carbidesim.RealTiming.Shutdown {
			s.Errorf("it went off after %d calls and %s", n, time.Since(began))
		}
	})
}

// TestPowerOffLast: other changes are made before the host is turned off, and what cannot be turned off says so.
func TestPowerOffLast(t *testing.T) {
	host := hosts(t)[0]
	timed(t, carbidesim.Options{Hosts: lawHosts}, func(s *site) {
		c := s.powered(host)
		ports := schema.Clone(s.see("instance", c.ID).Spec["interfaces"]).([]any)
		ports = append(ports, map[string]any{"function": "virtual", "device_instance": int64(0), "virtual_function_id": int64(1), "vpc_prefix": id("vpc_prefix", "links")})
		s.reach("web", c.ID, schema.Object{"power": "off", "interfaces": ports})
		th := s.see("instance", c.ID)
		if th.Phase != providers.Ready || th.Spec["power"] != "off" || len(th.Spec["interfaces"].([]any)) != 2 {
			s.Errorf("the instance is %s (%s), %v", th.Phase, th.Detail, th.Spec)
		}
		// It is released although it is off: the site would not do that by itself.
		if err := s.kind("instance").Delete(s.Context(), c); err != nil {
			s.Fatal(err)
		}
		time.Sleep(time.Hour)
		if things, err := providers.Collect(s.kind("instance").List(s.Context())); err != nil || len(things) != 0 {
			s.Errorf("%d instances are left, %v", len(things), err)
		}
		if m := s.machine(host); m.MaintenanceReference != nil {
			s.Error("the maintenance stays, and with it nobody gets the host")
		}
	})
}

// TestPowerOfNewInstance: one that is to be off is turned off as soon as it is ready.
func TestPowerOfNewInstance(t *testing.T) {
	host := hosts(t)[0]
	timed(t, carbidesim.Options{Hosts: carbidesim.Hosts{Count: 12, WithoutDPU: 12}}, func(s *site) {
		c := s.make("instance", "web", schema.Object{
			"tenant": "acme", "machine": host, "auto_network": true, "os": map[string]any{"ipxe": "#!ipxe"}, "power": "off",
		})
		time.Sleep(time.Hour)
		if th := s.see("instance", c.ID); th.Phase != providers.Ready || th.Spec["power"] != "on" {
			s.Errorf("when it is made the instance is %s (%s), %v", th.Phase, th.Detail, th.Spec["power"])
		}
		s.reach("web", c.ID, schema.Object{"power": "off"})
		if th := s.see("instance", c.ID); th.Phase != providers.Ready || th.Spec["power"] != "off" {
			s.Errorf("the instance is %s (%s), %v", th.Phase, th.Detail, th.Spec["power"])
		}
	})
}

// TestPowerRefused: impossible requests are refused before anything is done.
func TestPowerRefused(t *testing.T) {
	ids := hosts(t)
	instance := schema.Object{
		"tenant": "acme", "machine": ids[0], "auto_network": true, "os": map[string]any{"ipxe": "#!ipxe"},
	}
	bare := carbidesim.Hosts{Count: 12, WithoutDPU: 12}

	s := newSite(t, carbidesim.Options{Hosts: bare, Timing: lawTiming})
	c := call("instance", "web")
	s.make("instance", "web", instance)
	s.class("while it is made", s.update("instance", "web", c.ID, schema.Object{"power": "off"}), busy)
	s.Advance(time.Hour)
	before := string(s.Dump())
	err := s.update("instance", "web", c.ID, schema.Object{"power": "off"})
	s.class("as a site agent of today", err, denied)
	if err != nil && !strings.Contains(err.Error(), "administrator") {
		t.Errorf("nothing says who may: %v", err)
	}
	if after := string(s.Dump()); after != before {
		t.Error("a refused change of power has left something")
	}

	// A site agent may only have it turned on again.
	s.maintain(ids[0])
	if _, err := s.Stranger().UpdatePowerOption(t.Context(), &forge.PowerOptionUpdateRequest{MachineId: &forge.MachineId{Id: ids[0]}, PowerState: forge.PowerState_Off}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Stranger().AdminPowerControl(t.Context(), &forge.AdminPowerControlRequest{MachineId: &ids[0], Action: forge.AdminPowerControlRequest_ForceOff}); err != nil {
		t.Fatal(err)
	}
	if th := s.see("instance", c.ID); th.Spec["power"] != "off" {
		t.Errorf("the instance is %v", th.Spec["power"])
	}
	if err := s.update("instance", "web", c.ID, schema.Object{"power": "on"}); err != nil {
		t.Error(err)
	}
	s.Advance(time.Hour)
	if th := s.see("instance", c.ID); th.Spec["power"] != "on" || th.Phase != providers.Ready {
		t.Errorf("the instance is %v and %s (%s)", th.Spec["power"], th.Phase, th.Detail)
	}
	if s.machine(ids[0]).GetMaintenanceReference() != "TICKET-7" {
		t.Error("somebody's maintenance is gone")
	}

	for what, o := range map[string]carbidesim.Options{
		"without a power manager": {Hosts: bare, Timing: lawTiming, Rules: carbidesim.Rules{NoPowerManager: true}},
		"without the call":        {Hosts: bare, Timing: lawTiming, Unimplemented: []string{"GetPowerOptions"}},
	} {
		s := newSite(t, o)
		c := s.make("instance", "web", instance)
		s.Advance(time.Hour)
		if th := s.see("instance", c.ID); th.Spec["power"] != nil || th.Phase != providers.Ready {
			t.Errorf("%s the instance is %v and %s", what, th.Spec["power"], th.Phase)
		}
		s.class(what, s.update("instance", "web", c.ID, schema.Object{"power": "off"}), unsupported)
		c = call("instance", "new")
		c.Want = instance.Clone()
		c.Want["power"], c.Want["machine"] = "on", ids[1]
		s.class(what, s.kind("instance").Create(t.Context(), c), unsupported)
	}
}

func (s *site) maintain(host string) {
	s.Helper()
	reference := "TICKET-7"
	_, err := s.Stranger().SetMaintenance(s.Context(), &forge.MaintenanceRequest{HostId: &forge.MachineId{Id: host}, Reference: &reference})
	if err != nil {
		s.Fatal(err)
	}
}

// TestPowerHalfway: a change of power that stops in between is of unknown outcome, and the next one finishes it.
func TestPowerHalfway(t *testing.T) {
	host := hosts(t)[0]
	for _, method := range []string{"SetMaintenance", "UpdatePowerOption"} {
		timed(t, carbidesim.Options{Hosts: lawHosts}, func(s *site) {
			c := s.powered(host)
			u := s.change("instance", "web", c.ID, schema.Object{"power": "off"})
			if err := s.Inject(carbidesim.Fault{Method: method, Nth: 1, Effect: carbidesim.Before, Code: codes.InvalidArgument}); err != nil {
				s.Fatal(err)
			}
			s.class(method, s.kind("instance").Update(s.Context(), u), unknown)
			s.ClearFaults()
			time.Sleep(time.Hour)
			s.reach("web", c.ID, schema.Object{"power": "off"})
			if th := s.see("instance", c.ID); th.Spec["power"] != "off" || th.Phase != providers.Ready {
				s.Errorf("after %s the instance is %v and %s (%s)", method, th.Spec["power"], th.Phase, th.Detail)
			}
		})
	}
}
