package carbidesim

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"converge.dev/converge/providers/carbide/forge"
)

func wrapped(id string) *forge.UUID { return &forge.UUID{Value: id} }

// expectMachine adds a machine, after a change of the request.
func (b *workbench) expectMachine(id, mac string, change ...func(*forge.ExpectedMachine)) error {
	m := &forge.ExpectedMachine{Id: wrapped(id), BmcMacAddress: mac, BmcUsername: "root", BmcPassword: "calvin", ChassisSerialNumber: "SN-1"}
	for _, f := range change {
		f(m)
	}
	return failed(b.AddExpectedMachine(ctx, m))
}

func (b *workbench) expectedMachine(id string) *forge.ExpectedMachine {
	b.Helper()
	for _, m := range ok(b.GetAllExpectedMachines(ctx, &emptypb.Empty{})).ExpectedMachines {
		if m.Id.Value == id {
			return m
		}
	}
	b.Fatalf("there is no expected machine %s", id)
	return nil
}

func TestExpectedMachines(t *testing.T) {
	b := start(t, Options{})
	const first, second = "0a:00:00:00:00:01", "0a:00:00:00:00:02"
	long := strings.Repeat("x", 33)
	nic := func(mac string, primary bool) *forge.ExpectedHostNic {
		return &forge.ExpectedHostNic{MacAddress: mac, Primary: &primary}
	}
	get := func(r *forge.ExpectedMachineRequest) error { return failed(b.GetExpectedMachine(ctx, r)) }
	remove := func(r *forge.ExpectedMachineRequest) error { return failed(b.DeleteExpectedMachine(ctx, r)) }
	b.refusals([]refusal{
		{"bad MAC", b.expectMachine(uid(1), "0a:00"), codes.Internal, "MAC"},
		{"bad id", b.expectMachine("one", first), codes.InvalidArgument, "invalid id"},
		{"empty id", b.expectMachine("", first), codes.InvalidArgument, "invalid id"},
		{"short serial", b.expectMachine(uid(1), first, func(m *forge.ExpectedMachine) { m.ChassisSerialNumber = "SN1" }), codes.InvalidArgument, "serial"},
		{"serial with a blank", b.expectMachine(uid(1), first, func(m *forge.ExpectedMachine) { m.ChassisSerialNumber = "SN 01" }), codes.InvalidArgument, "serial"},
		{"long serial", b.expectMachine(uid(1), first, func(m *forge.ExpectedMachine) { m.ChassisSerialNumber = long }), codes.Internal, "(32)"},
		{"longest serial", b.expectMachine(uid(1), first, func(m *forge.ExpectedMachine) { m.ChassisSerialNumber = strings.Repeat("x", 65) }), codes.InvalidArgument, "serial"},
		{"long user", b.expectMachine(uid(1), first, func(m *forge.ExpectedMachine) { m.BmcUsername = long[:17] }), codes.Internal, "(16)"},
		{"long password", b.expectMachine(uid(1), first, func(m *forge.ExpectedMachine) { m.BmcPassword = long[:21] }), codes.Internal, "(20)"},
		{"bad address", b.expectMachine(uid(1), first, func(m *forge.ExpectedMachine) { m.BmcIpAddress = text("ten") }), codes.InvalidArgument, "IP"},
		{"DPU twice", b.expectMachine(uid(1), first, func(m *forge.ExpectedMachine) { m.FallbackDpuSerialNumbers = []string{"a", "a"} }), codes.InvalidArgument, "duplicate"},
		{"two primaries", b.expectMachine(uid(1), first, func(m *forge.ExpectedMachine) {
			m.HostNics = []*forge.ExpectedHostNic{nic(first, true), nic(second, true)}
		}), codes.InvalidArgument, "primary"},
		{"name not ASCII", b.expectMachine(uid(1), first, func(m *forge.ExpectedMachine) { m.Metadata = named("é") }), codes.InvalidArgument, "ASCII"},
		{"first", b.expectMachine(uid(1), first), codes.OK, ""},
		{"MAC taken", b.expectMachine(uid(2), "0A-00-00-00-00-01"), codes.FailedPrecondition, "Duplicate MAC"},
		{"id taken", b.expectMachine(uid(1), second), codes.Internal, "duplicate key"},
		{"no name", b.expectMachine(uid(2), second, func(m *forge.ExpectedMachine) { m.Metadata = &forge.Metadata{} }), codes.OK, ""},

		{"get nothing", get(&forge.ExpectedMachineRequest{}), codes.InvalidArgument, "either id"},
		{"get by MAC", get(&forge.ExpectedMachineRequest{BmcMacAddress: first}), codes.OK, ""},
		{"get by another id and a MAC", get(&forge.ExpectedMachineRequest{Id: wrapped(uid(9)), BmcMacAddress: first}), codes.NotFound, "expected_machine"},
		{"delete nothing", remove(&forge.ExpectedMachineRequest{}), codes.InvalidArgument, "either id"},
		{"delete", remove(&forge.ExpectedMachineRequest{Id: wrapped(uid(2))}), codes.OK, ""},
		{"delete again", remove(&forge.ExpectedMachineRequest{Id: wrapped(uid(2))}), codes.NotFound, "expected_machine"},
		{"id again", b.expectMachine(uid(2), second), codes.OK, ""},
		{"delete by MAC", remove(&forge.ExpectedMachineRequest{BmcMacAddress: second}), codes.OK, ""},
	})
	if m := b.expectedMachine(uid(1)); m.BmcMacAddress != "0A:00:00:00:00:01" || m.BmcPassword != "calvin" || m.DefaultPauseIngestionAndPoweron == nil ||
		!m.GetIsDpfEnabled() || m.DpuMode != nil || m.BmcRetainCredentials != nil || m.HostLifecycleProfile != nil || m.Metadata.Name != "" {
		t.Errorf("read back %v", m)
	}
}

// An update replaces some fields and keeps others.
func TestExpectedMachinesAreUpdated(t *testing.T) {
	b := start(t, Options{})
	const first, second, third = "0a:00:00:00:00:01", "0a:00:00:00:00:02", "0a:00:00:00:00:03"
	yes := proto.Bool(true)
	for i, mac := range []string{first, second} {
		err := b.expectMachine(uid(byte(i+1)), mac, func(m *forge.ExpectedMachine) {
			m.BmcRetainCredentials, m.DefaultPauseIngestionAndPoweron, m.IsDpfEnabled = yes, yes, proto.Bool(false)
			m.DpuMode, m.HostLifecycleProfile = forge.DpuMode_NO_DPU.Enum(), &forge.HostLifecycleProfile{DisableLockdown: yes}
			m.SkuId, m.RackId, m.BmcIpAddress, m.Metadata = text("dgx"), &forge.RackId{Id: "r1"}, text("10.0.0.9"), named("gpu")
		})
		if err != nil {
			t.Fatal(err) // adding reserves no address
		}
	}
	if m := b.expectedMachine(uid(1)); !m.GetBmcRetainCredentials() || m.GetDpuMode() != forge.DpuMode_NO_DPU || m.GetBmcIpAddress() != "10.0.0.9" || m.GetSkuId() != "dgx" {
		t.Errorf("read back %v", m)
	}
	update := func(id *forge.UUID, mac, ip string, nics ...*forge.ExpectedHostNic) error {
		return failed(b.UpdateExpectedMachine(ctx, &forge.ExpectedMachine{Id: id, BmcMacAddress: mac, ChassisSerialNumber: "x", BmcIpAddress: &ip, HostNics: nics}))
	}
	b.refusals([]refusal{
		{"no MAC", update(wrapped(uid(1)), "", ""), codes.Internal, "MAC"},
		{"unknown", update(wrapped(uid(9)), third, ""), codes.NotFound, "expected_machine"},
		{"by another MAC", update(nil, third, ""), codes.NotFound, "expected_machine"},
		{"bad fixed address", update(wrapped(uid(1)), first, "", &forge.ExpectedHostNic{MacAddress: third, FixedIp: text("ten")}), codes.InvalidArgument, "address"},
		{"reserve", update(wrapped(uid(1)), first, "10.0.0.9"), codes.OK, ""},
		{"another's address", update(wrapped(uid(2)), second, "10.0.0.9"), codes.FailedPrecondition, "another interface"},
		{"its own again", update(wrapped(uid(1)), first, "10.0.0.10"), codes.OK, ""},
		{"by MAC", update(nil, first, ""), codes.OK, ""},
		{"the address stays with the interface", update(wrapped(uid(2)), second, "10.0.0.9"), codes.FailedPrecondition, "another interface"},
	})
	m := b.expectedMachine(uid(1))
	if !m.GetBmcRetainCredentials() || !m.GetDefaultPauseIngestionAndPoweron() || m.IsDpfEnabled == nil || *m.IsDpfEnabled || !m.GetHostLifecycleProfile().GetDisableLockdown() {
		t.Errorf("what was absent did not stay: %v", m)
	}
	if m.DpuMode != nil || m.SkuId != nil || m.RackId != nil || m.BmcIpAddress != nil || m.Metadata.Name != "" || m.BmcPassword != "" || m.ChassisSerialNumber != "x" {
		t.Errorf("what was absent stayed: %v", m)
	}
	if m := b.expectedMachine(uid(2)); m.Metadata.Name != "gpu" {
		t.Errorf("a refused update left %v", m)
	}
}

// What was found is linked by the BMC's MAC address.
func TestExpectedMachinesAreFound(t *testing.T) {
	b := start(t, Options{Hosts: Hosts{Count: 2}})
	host := b.hosts(&forge.MachineSearchConfig{})[0]
	mac := b.world.BMC(host)
	for i, mac := range []string{strings.ToLower(mac), "0a:00:00:00:00:01"} {
		if err := b.expectMachine(uid(byte(i+1)), mac); err != nil {
			t.Fatal(err)
		}
	}
	found := map[string]*forge.LinkedExpectedMachine{}
	for _, l := range ok(b.GetAllExpectedMachinesLinked(ctx, &emptypb.Empty{})).ExpectedMachines {
		found[l.ExpectedMachineId.Value] = l
	}
	if l := found[uid(1)]; l.GetMachineId().GetId() != host || l.BmcMacAddress != mac || l.GetExploredEndpointAddress() == "" || l.InterfaceId == nil {
		t.Errorf("the machine %s is linked as %v", host, l)
	}
	if l := found[uid(2)]; l == nil || l.MachineId != nil || l.InterfaceId != nil {
		t.Errorf("one that is not there is linked as %v", l)
	}
}

func TestExpectedSwitches(t *testing.T) {
	b := start(t, Options{})
	const first, second, third = "0a:00:00:00:00:01", "0a:00:00:00:00:02", "0a:00:00:00:00:03"
	long := strings.Repeat("x", 65)
	add := func(id, mac string, change ...func(*forge.ExpectedSwitch)) error {
		m := &forge.ExpectedSwitch{ExpectedSwitchId: wrapped(id), BmcMacAddress: mac}
		for _, f := range change {
			f(m)
		}
		return failed(b.AddExpectedSwitch(ctx, m))
	}
	update := func(m *forge.ExpectedSwitch) error { return failed(b.UpdateExpectedSwitch(ctx, m)) }
	remove := func(id *forge.UUID, mac string) error {
		return failed(b.DeleteExpectedSwitch(ctx, &forge.ExpectedSwitchRequest{ExpectedSwitchId: id, BmcMacAddress: mac}))
	}
	read := func(id string) *forge.ExpectedSwitch {
		return ok(b.GetExpectedSwitch(ctx, &forge.ExpectedSwitchRequest{ExpectedSwitchId: wrapped(id)}))
	}
	odd := &forge.Metadata{Name: "é", Labels: []*forge.Label{label("", text(""))}}
	b.refusals([]refusal{
		{"bad MAC", add(uid(1), ""), codes.InvalidArgument, "MAC"},
		{"bad id", add("one", first), codes.InvalidArgument, "invalid id"},
		{"empty id", add("", first), codes.InvalidArgument, "invalid id"},
		{"bad NVOS MAC", add(uid(1), first, func(m *forge.ExpectedSwitch) { m.NvosMacAddresses = []string{"x"} }), codes.InvalidArgument, "MAC"},
		{"bad NVOS address", add(uid(1), first, func(m *forge.ExpectedSwitch) { m.NvosIpAddress = text("ten") }), codes.InvalidArgument, "nvos_ip_address"},
		{"NVOS address for nobody", add(uid(1), first, func(m *forge.ExpectedSwitch) { m.NvosIpAddress = text("10.0.0.1") }), codes.InvalidArgument, "exactly one"},
		{"label twice", add(uid(1), first, func(m *forge.ExpectedSwitch) {
			m.Metadata = &forge.Metadata{Labels: []*forge.Label{label("a", nil), label("a", nil)}}
		}), codes.InvalidArgument, "duplicate label"},
		{"long serial", add(uid(1), first, func(m *forge.ExpectedSwitch) { m.SwitchSerialNumber = long[:33] }), codes.Internal, "(32)"},
		{"long user", add(uid(1), first, func(m *forge.ExpectedSwitch) { m.BmcUsername = long[:17] }), codes.Internal, "(16)"},
		{"long password", add(uid(1), first, func(m *forge.ExpectedSwitch) { m.BmcPassword = long[:17] }), codes.Internal, "(16)"},
		{"long NVOS user", add(uid(1), first, func(m *forge.ExpectedSwitch) { m.NvosUsername = &long }), codes.Internal, "(64)"},
		{"long NVOS password", add(uid(1), first, func(m *forge.ExpectedSwitch) { m.NvosPassword = &long }), codes.Internal, "(64)"},
		{"long rack", add(uid(1), first, func(m *forge.ExpectedSwitch) { m.RackId = &forge.RackId{Id: long} }), codes.Internal, "(64)"},
		{"first", add(uid(1), first, func(m *forge.ExpectedSwitch) {
			m.BmcIpAddress, m.NvosIpAddress, m.NvosMacAddresses, m.Metadata = "ten", text("2001:DB8::1"), []string{third}, odd
			m.BmcRetainCredentials, m.BmcPassword, m.NvosPassword = proto.Bool(true), "calvin", text("nvos")
			m.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 21, protowire.BytesType), "of the older generation"))
		}), codes.OK, ""},
		{"MAC taken", add(uid(2), first), codes.Internal, "Duplicate MAC"},
		{"id taken", add(uid(1), second), codes.Internal, "duplicate key"},
		{"second", add(uid(2), second), codes.OK, ""},
		{"get nothing", failed(b.GetExpectedSwitch(ctx, &forge.ExpectedSwitchRequest{})), codes.InvalidArgument, "either id"},
	})
	if m := read(uid(1)); m.BmcMacAddress != "0A:00:00:00:00:01" || m.BmcIpAddress != "" || m.GetNvosIpAddress() != "2001:db8::1" || m.BmcPassword != "calvin" ||
		m.GetNvosPassword() != "nvos" || m.Metadata.Name != "é" || m.Metadata.Labels[0].Value != nil || !m.GetBmcRetainCredentials() || len(m.ProtoReflect().GetUnknown()) > 0 {
		t.Errorf("read back %v", m)
	}
	b.refusals([]refusal{
		{"update with an id alone", update(&forge.ExpectedSwitch{ExpectedSwitchId: wrapped(uid(1))}), codes.InvalidArgument, "MAC"},
		{"update an unknown one", update(&forge.ExpectedSwitch{BmcMacAddress: third}), codes.NotFound, "expected_switch"},
		{"reserve", update(&forge.ExpectedSwitch{ExpectedSwitchId: wrapped(uid(1)), BmcMacAddress: first, BmcIpAddress: "10.0.0.1"}), codes.OK, ""},
		{"another's address", update(&forge.ExpectedSwitch{BmcMacAddress: second, BmcIpAddress: "10.0.0.1"}), codes.FailedPrecondition, "another interface"},
		{"another's address for NVOS", update(&forge.ExpectedSwitch{
			BmcMacAddress: second, NvosMacAddresses: []string{third}, NvosIpAddress: text("10.0.0.1"),
		}), codes.FailedPrecondition, "another interface"},
	})
	if m := read(uid(1)); !m.GetBmcRetainCredentials() || m.BmcPassword != "" || m.NvosPassword != nil || len(m.NvosMacAddresses) > 0 || m.Metadata.Name != "" || m.BmcIpAddress != "10.0.0.1" {
		t.Errorf("after an update %v", m)
	}
	if err := b.world.Discover(first); err != nil {
		t.Fatal(err)
	}
	for _, l := range ok(b.GetAllExpectedSwitchesLinked(ctx, &emptypb.Empty{})).ExpectedSwitches {
		if found := l.ExpectedSwitchId.Value == uid(1); found != (l.SwitchId != nil) || found != (l.GetExploredEndpointAddress() == "10.0.0.1") {
			t.Errorf("linked %v", l)
		}
	}
	b.refusals([]refusal{
		{"delete nothing", remove(nil, ""), codes.InvalidArgument, "either id"},
		{"delete one that was found", remove(wrapped(uid(1)), ""), codes.Internal, "constraint"},
		{"delete by MAC", remove(nil, second), codes.OK, ""},
		{"delete again", remove(nil, second), codes.NotFound, "expected_switch"},
		{"id again", add(uid(2), second), codes.OK, ""},
	})
	if all := ok(b.GetAllExpectedSwitches(ctx, &emptypb.Empty{})).ExpectedSwitches; len(all) != 2 {
		t.Errorf("%d switches", len(all))
	}
}

func TestExpectedPowerShelves(t *testing.T) {
	b := start(t, Options{})
	const first, second, third = "0a:00:00:00:00:01", "0a:00:00:00:00:02", "0a:00:00:00:00:03"
	long := strings.Repeat("x", 256)
	add := func(id, mac string, change ...func(*forge.ExpectedPowerShelf)) error {
		m := &forge.ExpectedPowerShelf{ExpectedPowerShelfId: wrapped(id), BmcMacAddress: mac, ShelfSerialNumber: "PS-1"}
		for _, f := range change {
			f(m)
		}
		return failed(b.AddExpectedPowerShelf(ctx, m))
	}
	update := func(m *forge.ExpectedPowerShelf) error { return failed(b.UpdateExpectedPowerShelf(ctx, m)) }
	remove := func(id *forge.UUID, mac string) error {
		return failed(b.DeleteExpectedPowerShelf(ctx, &forge.ExpectedPowerShelfRequest{ExpectedPowerShelfId: id, BmcMacAddress: mac}))
	}
	b.refusals([]refusal{
		{"bad MAC", add(uid(1), "x"), codes.InvalidArgument, "MAC"},
		{"empty id", add("", first), codes.InvalidArgument, "invalid id"},
		{"long password", add(uid(1), first, func(m *forge.ExpectedPowerShelf) { m.BmcPassword = long }), codes.Internal, "(255)"},
		{"first", add(uid(1), first, func(m *forge.ExpectedPowerShelf) {
			m.BmcPassword, m.BmcRetainCredentials, m.BmcIpAddress = long[:255], proto.Bool(true), "10.0.0.1"
		}), codes.OK, ""},
		{"MAC taken", add(uid(2), first), codes.Internal, "Duplicate MAC"},
		{"id taken", add(uid(1), second), codes.Internal, "duplicate key"},
		{"the same serial", add(uid(2), second), codes.OK, ""},
		{"update an unknown one", update(&forge.ExpectedPowerShelf{BmcMacAddress: third}), codes.NotFound, "expected_power_shelf"},
		{"update", update(&forge.ExpectedPowerShelf{ExpectedPowerShelfId: wrapped(uid(1)), BmcMacAddress: first, BmcIpAddress: "10.0.0.1", ShelfSerialNumber: "PS-1"}), codes.OK, ""},
		{"another's address", update(&forge.ExpectedPowerShelf{BmcMacAddress: second, BmcIpAddress: "10.0.0.1"}), codes.FailedPrecondition, "another interface"},
	})
	if m := ok(b.GetExpectedPowerShelf(ctx, &forge.ExpectedPowerShelfRequest{BmcMacAddress: first})); !m.GetBmcRetainCredentials() || m.BmcPassword != "" {
		t.Errorf("after an update %v", m)
	}
	if err := b.world.Discover(first); err != nil {
		t.Fatal(err)
	}
	for _, l := range ok(b.GetAllExpectedPowerShelvesLinked(ctx, &emptypb.Empty{})).ExpectedPowerShelves {
		if l.PowerShelfId == nil { // both have the serial number of that one
			t.Errorf("linked %v", l)
		}
	}
	b.refusals([]refusal{
		{"delete one that was found", remove(wrapped(uid(1)), ""), codes.Internal, "constraint"},
		{"delete", remove(wrapped(uid(2)), ""), codes.OK, ""},
		{"delete again", remove(wrapped(uid(2)), ""), codes.NotFound, "expected_power_shelf"},
	})
	if all := ok(b.GetAllExpectedPowerShelves(ctx, &emptypb.Empty{})).ExpectedPowerShelves; len(all) != 1 {
		t.Errorf("%d shelves", len(all))
	}
}

// The service's messages are from its source, crates/api/src/handlers/expected_rack.rs.
func TestExpectedRacks(t *testing.T) {
	b := start(t, Options{Rules: Rules{RackProfiles: []string{"NVL72", "NVL36"}}})
	long := strings.Repeat("x", 128)
	rack := func(id, profile string, m *forge.Metadata) *forge.ExpectedRack {
		return &forge.ExpectedRack{RackId: &forge.RackId{Id: id}, RackProfileId: &forge.RackProfileId{Id: profile}, Metadata: m}
	}
	add := func(id, profile string, m *forge.Metadata) error {
		return failed(b.AddExpectedRack(ctx, rack(id, profile, m)))
	}
	update := func(id, profile string, m *forge.Metadata) error {
		return failed(b.UpdateExpectedRack(ctx, rack(id, profile, m)))
	}
	remove := func(id string) error {
		return failed(b.DeleteExpectedRack(ctx, &forge.ExpectedRackRequest{RackId: id}))
	}
	b.refusals([]refusal{
		{"no profile", failed(b.AddExpectedRack(ctx, &forge.ExpectedRack{RackId: &forge.RackId{Id: "rack-01"}})), codes.InvalidArgument, "rack_profile_id is required"},
		{"an empty profile", add("rack-01", "", nil), codes.InvalidArgument, "rack_profile_id is required"},
		{"an unknown profile", add("rack-01", "NVL144", nil), codes.InvalidArgument, `Must be one of: ["NVL72" "NVL36"]`},
		{"a key twice", add("rack-01", "NVL72", &forge.Metadata{Labels: []*forge.Label{label("a", nil), label("a", nil)}}), codes.InvalidArgument, "duplicate"},
		{"a long id", add(long+"x", "NVL72", nil), codes.Internal, "(128)"},
		{"a long name", add("rack-01", "NVL72", named(long+long+"x")), codes.Internal, "(256)"},
		{"the longest id", add(long, "NVL72", nil), codes.OK, ""},
		{"the id is taken", add(long, "NVL36", nil), codes.FailedPrecondition, "already exists"},
		{"update", update(long, "NVL36", named("second")), codes.OK, ""},
		{"update to an unknown profile", update(long, "NVL144", nil), codes.InvalidArgument, "Unknown rack_profile_id"},
		{"update an unknown one", update("rack-02", "NVL72", nil), codes.NotFound, "expected_rack"},
	})
	got := ok(b.GetExpectedRack(ctx, &forge.ExpectedRackRequest{RackId: long}))
	if got.RackId.Id != long || got.RackProfileId.Id != "NVL36" || got.Metadata.Name != "second" {
		t.Errorf("after an update %v", got)
	}
	b.refusals([]refusal{
		{"an unknown one", failed(b.GetExpectedRack(ctx, &forge.ExpectedRackRequest{RackId: "rack-02"})), codes.NotFound, "expected_rack"},
		{"delete an unknown one", remove("rack-02"), codes.NotFound, "expected_rack"},
		{"delete", remove(long), codes.OK, ""},
	})
	if all := ok(b.GetAllExpectedRacks(ctx, &emptypb.Empty{})).ExpectedRacks; len(all) != 0 {
		t.Errorf("left are %v", all)
	}
}
