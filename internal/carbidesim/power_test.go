package carbidesim

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/providers/carbide/forge"
)

func (b *workbench) power(host string) *forge.PowerOptions {
	b.Helper()
	got := ok(b.GetPowerOptions(ctx, &forge.PowerOptionRequest{MachineId: []*forge.MachineId{{Id: host}}})).Response
	if len(got) != 1 {
		b.Fatalf("%d answers about the power of %s", len(got), host)
	}
	return got[0]
}

func (b *workbench) want(host string, state forge.PowerState) error {
	return failed(b.UpdatePowerOption(ctx, &forge.PowerOptionUpdateRequest{MachineId: &forge.MachineId{Id: host}, PowerState: state}))
}

func (b *workbench) switchHost(host string, action forge.AdminPowerControlRequest_SystemPowerControl) error {
	return failed(b.AdminPowerControl(ctx, &forge.AdminPowerControlRequest{MachineId: &host, Action: action}))
}

func (b *workbench) maintain(host string, on bool) {
	b.Helper()
	r := &forge.MaintenanceRequest{HostId: &forge.MachineId{Id: host}, Operation: forge.MaintenanceOperation_Disable}
	if on {
		r.Operation, r.Reference = forge.MaintenanceOperation_Enable, text("power off")
	}
	ok(b.SetMaintenance(ctx, r))
}

const (
	isOn  = forge.PowerState_On
	isOff = forge.PowerState_Off
)

// The manager sees a change of a host at its next check, and turns on what is to be on.
func TestPowerIsSeenLate(t *testing.T) {
	b := start(t, Options{Hosts: Hosts{Count: 2}})
	host := b.hosts(&forge.MachineSearchConfig{})[0]
	expect := func(when string, desired, actual forge.PowerState) *forge.PowerOptions {
		t.Helper()
		p := b.power(host)
		if p.DesiredState != desired || p.ActualState != actual || p.HostId.Id != host {
			t.Errorf("%s the host is to be %s and is %s, want %s and %s", when, p.DesiredState, p.ActualState, desired, actual)
		}
		return p
	}
	first := expect("at first", isOn, isOn)
	b.refuses(b.want(host, isOff), codes.InvalidArgument, "Maintenance")
	b.refuses(b.want(host, isOn), codes.InvalidArgument, "already set")
	if err := b.switchHost(host, forge.AdminPowerControlRequest_ForceOff); err != nil {
		t.Fatal(err)
	}
	b.clock.pass(RealTiming.PowerPoll - 1)
	expect("before the manager looks", isOn, isOn)
	b.clock.pass(1)
	expect("when it has looked", isOn, isOff) // it turns it on again at once, and has not checked since
	b.clock.pass(RealTiming.PowerPoll)
	if p := expect("a round later", isOn, isOn); p.TriedTriggeringOnCounter != 1 {
		t.Errorf("the host was turned on %d times", p.TriedTriggeringOnCounter)
	}

	b.maintain(host, true)
	if err := b.want(host, isOff); err != nil {
		t.Fatal(err)
	}
	b.maintain(host, false) // only the change requires it
	p := expect("told to be off", isOff, isOn)
	if p.DesiredPowerStateVersion == first.DesiredPowerStateVersion {
		t.Error("the token did not move")
	}
	b.clock.pass(24 * time.Hour)
	expect("and nobody turns it off", isOff, isOn)
	if err := b.switchHost(host, forge.AdminPowerControlRequest_GracefulShutdown); err != nil {
		t.Fatal(err)
	}
	b.clock.pass(RealTiming.Shutdown + RealTiming.PowerPoll)
	expect("after it was asked to", isOff, isOff)
	b.clock.pass(24 * time.Hour)
	expect("it stays off", isOff, isOff)
	if err := b.want(host, isOn); err != nil {
		t.Fatal(err)
	}
	b.clock.pass(2 * RealTiming.PowerPoll)
	expect("and is turned on when told so", isOn, isOn)

	if err := b.world.Deafen(host, true); err != nil {
		t.Fatal(err)
	}
	b.maintain(host, true)
	if err := b.want(host, isOff); err != nil {
		t.Fatal(err)
	}
	if err := b.switchHost(host, forge.AdminPowerControlRequest_GracefulShutdown); err != nil {
		t.Fatal(err)
	}
	b.clock.pass(time.Hour)
	expect("a guest that does not listen", isOff, isOn)
	if err := b.switchHost(host, forge.AdminPowerControlRequest_ForceOff); err != nil {
		t.Fatal(err)
	}
	b.clock.pass(RealTiming.PowerPoll)
	expect("whose power is cut", isOff, isOff)

	// A request to shut down is forgotten when the host is restarted meanwhile.
	other := b.hosts(&forge.MachineSearchConfig{})[1]
	for _, action := range []forge.AdminPowerControlRequest_SystemPowerControl{forge.AdminPowerControlRequest_GracefulShutdown, forge.AdminPowerControlRequest_ForceRestart} {
		if err := b.switchHost(other, action); err != nil {
			t.Fatal(err)
		}
	}
	b.clock.pass(RealTiming.Shutdown)
	if b.world.Advance(0); b.world.site.machines.get(other).Power.Off {
		t.Error("the restarted host went off")
	}

	dpu := b.machine(host).AssociatedDpuMachineIds[0].Id
	b.refusals([]refusal{
		{"a DPU is to be off", b.want(dpu, isOff), codes.InvalidArgument, "host"},
		{"an unknown host", b.want(machineID('h', 's', 7, 7), isOff), codes.InvalidArgument, "host"},
		{"switch an unknown host", b.switchHost(machineID('h', 's', 7, 7), 0), codes.NotFound, "machine"},
		{"switch no id", b.switchHost("x", 0), codes.InvalidArgument, "machine id"},
		{"switch how", b.switchHost(host, 77), codes.InvalidArgument, "action"},
		{"no host", failed(b.AdminPowerControl(ctx, &forge.AdminPowerControlRequest{})), codes.InvalidArgument, "machine_id"},
	})
	if got := ok(b.GetPowerOptions(ctx, &forge.PowerOptionRequest{})).Response; len(got) != 2 {
		t.Errorf("%d hosts are watched, want all hosts and no DPU", len(got))
	}
}

// The site does nothing with a host that is to be off, and makes up for it afterwards.
func TestNothingHappensToAHostThatIsToBeOff(t *testing.T) {
	b, hosts := withNetwork(t, 2)
	b.allocate(uid(9), hosts[0], onPrefix(uid(3)))
	state := func() forge.TenantState {
		t.Helper()
		i := b.findInstance(uid(9))
		if i == nil {
			return forge.TenantState_TERMINATED
		}
		return i.Status.Tenant.State
	}
	off := func() {
		t.Helper()
		b.maintain(hosts[0], true)
		if err := b.want(hosts[0], isOff); err != nil {
			t.Fatal(err)
		}
	}
	on := func() {
		t.Helper()
		if err := b.want(hosts[0], isOn); err != nil {
			t.Fatal(err)
		}
		b.maintain(hosts[0], false)
		b.clock.pass(time.Second)
	}
	off()
	b.clock.pass(24 * time.Hour)
	if state() != forge.TenantState_PROVISIONING {
		t.Errorf("state %s", state())
	}
	on()
	if state() != forge.TenantState_READY {
		t.Errorf("state %s, on again", state())
	}
	off()
	ok(b.ReleaseInstance(ctx, &forge.InstanceReleaseRequest{Id: instanceID(uid(9))}))
	b.clock.pass(24 * time.Hour)
	if state() != forge.TenantState_TERMINATING {
		t.Errorf("state %s", state())
	}
	on()
	if state() != forge.TenantState_TERMINATED {
		t.Errorf("state %s, on again", state())
	}
	off()
	b.clock.pass(24 * time.Hour)
	if got := b.machine(hosts[0]).State; got != hostCleaning {
		t.Errorf("host is %s", got)
	}
	on()
	if got := b.machine(hosts[0]).State; got != hostReady {
		t.Errorf("host is %s, on again", got)
	}
}

func TestNoPowerManager(t *testing.T) {
	b := start(t, Options{Hosts: Hosts{Count: 1}, Rules: Rules{NoPowerManager: true}})
	host := b.hosts(&forge.MachineSearchConfig{})[0]
	if got := ok(b.GetPowerOptions(ctx, &forge.PowerOptionRequest{})).Response; len(got) != 0 {
		t.Errorf("somebody watches: %v", got)
	}
	b.refuses(b.want(host, isOff), codes.InvalidArgument, "host")
	if err := b.switchHost(host, forge.AdminPowerControlRequest_ForceOff); err != nil {
		t.Fatal(err)
	}
	b.clock.pass(24 * time.Hour)
	if b.world.Advance(0); !b.world.site.machines.get(host).Power.Off {
		t.Error("somebody turned the host on")
	}
}

func TestWhoMaySwitchHosts(t *testing.T) {
	for role, may := range map[Role]bool{SiteAgent: false, LaterSiteAgent: true, ForgeAdminCLI: true, Flow: true, Health: false} {
		if role.may("AdminPowerControl") != may {
			t.Errorf("may %s switch hosts: %v, want %v", role, !may, may)
		}
	}
	if !LaterSiteAgent.may("CreateVpc") {
		t.Error("the later site agent may do less than the earlier one")
	}
}
