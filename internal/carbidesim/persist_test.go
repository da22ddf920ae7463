package carbidesim

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/internal/files"
	"converge.dev/converge/providers/carbide/forge"
)

// furnish creates one of everything, and leaves some of it in transition.
func furnish(b *workbench) {
	b.tenant("acme")
	ok(b.CreateTenantKeyset(ctx, &forge.CreateTenantKeysetRequest{
		KeysetIdentifier: &forge.TenantKeysetIdentifier{OrganizationId: "acme", KeysetId: "ops"}, Version: "V1-T1",
		KeysetContent: &forge.TenantKeysetContent{PublicKeys: []*forge.TenantPublicKey{{PublicKey: "ssh-ed25519 AAAA", Comment: text("x")}}},
	}))
	ok(b.CreateNetworkSecurityGroup(ctx, &forge.CreateNetworkSecurityGroupRequest{
		Id: text("web"), TenantOrganizationId: "acme", Metadata: named("web"), NetworkSecurityGroupAttributes: ruleSet(permit("a", tcp), permit("", icmp)),
	}))
	if err := b.instanceType("gpu", "gpu", capability(forge.MachineCapabilityType_CAP_TYPE_CPU, "Xeon Platinum 8480C", 2)); err != nil {
		b.Fatal(err)
	}
	ok(b.CreateVpc(ctx, &forge.VpcCreationRequest{
		Id: vpcID(uid(1)), TenantOrganizationId: "acme", NetworkSecurityGroupId: text("web"),
		Metadata: &forge.Metadata{Name: "prod", Labels: []*forge.Label{label("env", text("prod")), label("bare", nil), label("other", text("x"))}},
	}))
	ok(b.CreateVpcPrefix(ctx, &forge.VpcPrefixCreationRequest{Id: prefixID(uid(3)), VpcId: vpcID(uid(1)), Prefix: "10.1.0.0/28"}))
	if err := b.segment(uid(2), uid(1), "10.0.0.0/29", "10.0.0.1"); err != nil {
		b.Fatal(err)
	}
	b.vpc(uid(0x10), ethernet)
	b.vpc(uid(4), ethernet)
	ok(b.DeleteVpc(ctx, &forge.VpcDeletionRequest{Id: vpcID(uid(4))})) // burns an id
	b.world.Advance(RealTiming.Tick)
	stockLibrary(b)
	host := b.hosts(&forge.MachineSearchConfig{})[0]
	c := config(viaSegment(uid(2)), virtual(viaPrefix(uid(3)), nil))
	c.Tenant.Hostname = text("node")
	b.allocate(uid(9), host, c)
	ok(b.peer(uid(0x11), uid(1), uid(0x10)))
	ok(b.ibPartition(uid(0x12), "acme", ""))
	ok(b.nvlinkPartition(uid(0x13), "acme", named("rack")))
	ok(b.spxPartition(uid(0x14), nil, nil))
	ok(b.spxPartition(uid(0x15), nil, nil))
	for _, err := range []error{b.endNVLinkPartition(uid(0x13)), b.endSpxPartition(uid(0x14))} {
		if err != nil {
			b.Fatal(err)
		}
	}
	ok(b.SetMaintenance(ctx, &forge.MaintenanceRequest{HostId: &forge.MachineId{Id: host}, Reference: text("OPS-1234")}))
	if err := b.promise(uid(10), "acme", "first", 0); err != nil {
		b.Fatal(err)
	}
	if err := b.addSKU(newSKU("dgx", "DGX H100")); err != nil {
		b.Fatal(err)
	}
	if err := b.expectMachine(uid(11), "0a:00:00:00:00:01"); err != nil {
		b.Fatal(err)
	}
	leaf := &forge.ExpectedSwitch{ExpectedSwitchId: wrapped(uid(12)), BmcMacAddress: "0a:00:00:00:00:02", BmcIpAddress: "10.0.0.1"}
	ok(b.AddExpectedSwitch(ctx, leaf))
	ok(b.UpdateExpectedSwitch(ctx, leaf))
	ok(b.AddExpectedPowerShelf(ctx, &forge.ExpectedPowerShelf{ExpectedPowerShelfId: wrapped(uid(13)), BmcMacAddress: "0a:00:00:00:00:03"}))
	ok(b.AddExpectedRack(ctx, &forge.ExpectedRack{RackId: &forge.RackId{Id: "rack-01"}, RackProfileId: &forge.RackProfileId{Id: "NVL72"}}))
	if err := b.world.Discover(leaf.BmcMacAddress); err != nil {
		b.Fatal(err)
	}
}

func TestTheFileBringsTheWorldBack(t *testing.T) {
	o := Options{File: filepath.Join(t.TempDir(), "world.json"), Seed: 3, Rules: Rules{Peering: PeeringMixed}, Hosts: Hosts{Count: 3, Unhealthy: 1}}
	b := start(t, o)
	furnish(b)
	if err := b.world.Close(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(o.File); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("file: %v, %v", info.Mode(), err)
	}
	o.Seed = 4 // the file takes precedence
	o.Hosts = Hosts{Count: 99}
	again := start(t, o)
	if want, got := string(b.world.DumpAll()), string(again.world.DumpAll()); got != want {
		t.Errorf("restored\n%s\nwant\n%s", got, want)
	}
	if !bytes.Equal(b.world.Dump(), again.world.Dump()) {
		t.Error("the live worlds differ")
	}

	// Indexes, timers, burned ids and generated ids continue where they were.
	again.refusals([]refusal{
		{"burned id", failed(again.CreateVpc(ctx, &forge.VpcCreationRequest{Id: vpcID(uid(4))})), codes.Internal, "duplicate key"},
		{"burned entry", failed(again.CreateOperatingSystem(ctx, scriptEntry(uid(0x33)))), codes.Internal, "duplicate key"},
		{"burned service name", failed(again.CreateDpuExtensionService(ctx, podService(uid(0x37), "GONE"))), codes.FailedPrecondition, "already exists"},
		{"the credential is kept", failed(again.UpdateDpuExtensionService(ctx, &forge.UpdateDpuExtensionServiceRequest{
			ServiceId: uid(0x35), Data: pod("a"), Credential: credential("secret"),
		})), codes.InvalidArgument, "No changes"},
		{"overlap", again.segment(uid(5), uid(1), "10.0.0.0/30", "10.0.0.1"), codes.InvalidArgument, "overlaps"},
		{"pair peered", failed(again.peer(uid(0x20), uid(0x10), uid(1))), codes.FailedPrecondition, "already exists"},
		{"deleted partition", failed(again.spxPartition(uid(0x14), nil, nil)), codes.Internal, "duplicate key"},
		{"group in use", failed(again.DeleteNetworkSecurityGroup(ctx, &forge.DeleteNetworkSecurityGroupRequest{Id: "web", TenantOrganizationId: "acme"})), codes.FailedPrecondition, "attached"},
	})
	again.clock.pass(RealTiming.Provision)
	if full := string(again.world.DumpAll()); strings.Contains(full, "instance ready") {
		t.Error("the full dump shows a timer that is over")
	}
	if got := again.findInstance(uid(9)).Status.Tenant.State; got != forge.TenantState_READY {
		t.Errorf("instance is %s after the restart", got)
	}
	a, c := ok(b.CreateVpc(ctx, &forge.VpcCreationRequest{})), ok(again.CreateVpc(ctx, &forge.VpcCreationRequest{}))
	if a.Id.Value != c.Id.Value || a.Status.GetVni() != c.Status.GetVni() {
		t.Errorf("the restored world gives %v, the other %v", c, a)
	}
	if err := again.world.Close(); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(o.File + ".*"); len(left) != 0 {
		t.Errorf("temporary files are left: %v", left)
	}
}

// A site that is killed has lost nothing that it has confirmed.
func TestTheFileHasWhatWasAnswered(t *testing.T) {
	o := Options{File: filepath.Join(t.TempDir(), "world.json")}
	b := start(t, o)
	b.tenant("acme")
	for i := range byte(5) {
		b.vpc(uid(i), ethernet)
		kept, err := os.ReadFile(o.File)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(kept, []byte(uid(i))) {
			t.Errorf("the file does not have the VPC %s", uid(i))
		}
	}
}

func TestAFileThatCannotBeWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nowhere", "world.json")
	if _, err := New(Options{File: path}); err == nil || !strings.Contains(err.Error(), "keep the simulated site in "+path) {
		t.Errorf("%v", err)
	}
}

func TestADamagedFileIsNotReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "world.json")
	for _, content := range []string{"{", `{"format": 99}`} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := New(Options{File: path}); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("file %s: %v", content, err)
		}
		if b, _ := os.ReadFile(path); string(b) != content {
			t.Errorf("file %s became %s", content, b)
		}
	}
}

func TestCloseReportsWhatCouldNotBeWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	w, err := New(Options{File: filepath.Join(dir, "world.json")})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for range 2 { // closing again returns the same
		if w.Close() == nil {
			t.Error("a world that could not be written was closed without a word")
		}
	}
}

func TestDumpIsTheSameAfterAChangeIsUndone(t *testing.T) {
	b := start(t, Options{Hosts: Hosts{Count: 2}, Rules: Rules{Peering: PeeringMixed}})
	furnish(b)
	before := b.world.Dump()
	for range 20 {
		if !bytes.Equal(before, b.world.Dump()) {
			t.Fatal("two dumps of the same world differ")
		}
	}
	full := string(b.world.DumpAll())
	v := b.findVpc(uid(1))
	ok(b.UpdateVpc(ctx, &forge.VpcUpdateRequest{Id: v.Id, Metadata: named("other")}))
	if bytes.Equal(before, b.world.Dump()) {
		t.Error("a change does not show")
	}
	b.clock.pass(time.Second)
	ok(b.UpdateVpc(ctx, &forge.VpcUpdateRequest{Id: v.Id, Metadata: v.Metadata, NetworkSecurityGroupId: v.NetworkSecurityGroupId}))
	for _, r := range []*forge.UpdateDpuExtensionServiceRequest{{Data: pod("z"), Credential: credential("secret")}, {Data: pod("a"), Credential: credential("secret")}} {
		r.ServiceId = uid(0x35)
		ok(b.UpdateDpuExtensionService(ctx, r))
	}
	ok(b.UpdateOperatingSystem(ctx, &forge.UpdateOperatingSystemRequest{Id: osID(uid(0x31)), Name: text("rescue")}))
	b.vpc(uid(0x20), ethernet)
	ok(b.DeleteVpc(ctx, &forge.VpcDeletionRequest{Id: vpcID(uid(0x20))}))
	if after := b.world.Dump(); !bytes.Equal(before, after) {
		t.Errorf("after undoing:\n%s\nbefore:\n%s", after, before)
	}
	if string(b.world.DumpAll()) == full {
		t.Error("the full dump has no tokens and burned ids")
	}
	for _, word := range []string{"created", `"version"`, "T17"} {
		if strings.Contains(string(before), word) {
			t.Errorf("the dump has %s", word)
		}
	}
}

func TestObjects(t *testing.T) {
	b := start(t, Options{Hosts: Hosts{Count: 2}, Rules: Rules{Peering: PeeringMixed}})
	furnish(b)
	count := map[string]int{}
	for _, o := range b.world.Objects() {
		count[o.Kind]++
		if o.ID == "" || o.Message == nil {
			t.Errorf("object %v", o)
		}
	}
	want := map[string]int{
		"instance": 1, "instance_type": 1, "machine": 4, "network_security_group": 1, "network_segment": 3,
		"tenant": 1, "tenant_keyset": 1, "vpc": 2, "vpc_peering": 1, "vpc_prefix": 1,
		"ib_partition": 1, "nvlink_logical_partition": 1, "spx_partition": 1,
		"operating_system": 2, "os_image": 1, "dpu_extension_service": 1,
		"compute_allocation": 1, "sku": 1, "expected_machine": 1, "expected_switch": 1, "expected_power_shelf": 1, "expected_rack": 1,
	}
	for kind, n := range want {
		if count[kind] != n {
			t.Errorf("%d of kind %s, want %d", count[kind], kind, n)
		}
	}
	if len(count) != len(want) {
		t.Errorf("kinds %v", count)
	}
}

// Two worlds cannot use the same file: the second would overwrite what the first has written.
func TestFileIsOfOneWorld(t *testing.T) {
	o := Options{File: filepath.Join(t.TempDir(), "world.json")}
	first, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := New(o); !errors.Is(err, files.ErrInUse) || !strings.Contains(err.Error(), o.File) {
		t.Errorf("a second world: %v, %v", second, err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	next, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := next.Close(); err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(filepath.Dir(o.File))
	if err != nil || len(left) != 1 {
		t.Errorf("left are %v, %v", left, err)
	}
}
