package carbidesim

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"converge.dev/converge/providers/carbide/forge"
)

func newSKU(id, model string, change ...func(*forge.SkuComponents)) *forge.Sku {
	c := &forge.SkuComponents{
		Chassis:           &forge.SkuComponentChassis{Vendor: "NVIDIA", Model: model, Architecture: "x86_64"},
		Cpus:              []*forge.SkuComponentCpu{{Vendor: "Intel", Model: "Xeon", ThreadCount: 112, Count: 2}},
		Gpus:              []*forge.SkuComponentGpu{{Model: "H100", Count: 8, TotalMemory: "80 GB"}},
		EthernetDevices:   []*forge.SkuComponentEthernetDevices{{Model: "ConnectX-6", Count: 2}},
		InfinibandDevices: []*forge.SkuComponentInfinibandDevices{{Model: "ConnectX-7", Count: 4, InactiveDevices: []uint32{1, 3}}},
		Storage:           []*forge.SkuComponentStorage{{Vendor: "Samsung", Model: "MZQL", Count: 8, CapacityMb: 3840000}},
		Memory:            []*forge.SkuComponentMemory{{MemoryType: "DDR5", CapacityMb: 1000, Count: 4}},
		Tpm:               &forge.SkuComponentTpm{Vendor: "IFX", Version: "2.0"},
	}
	for _, f := range change {
		f(c)
	}
	return &forge.Sku{Id: id, SchemaVersion: 4, Components: c}
}

func (b *workbench) addSKU(skus ...*forge.Sku) error {
	return failed(b.CreateSku(ctx, &forge.SkuList{Skus: skus}))
}

func (b *workbench) findSKU(id string) *forge.Sku {
	b.Helper()
	found := ok(b.FindSkusByIds(ctx, &forge.SkusByIdsRequest{Ids: []string{id}})).Skus
	if len(found) != 1 {
		b.Fatalf("found %d SKUs with id %s", len(found), id)
	}
	return found[0]
}

func TestSKUs(t *testing.T) {
	b := start(t, Options{Hosts: Hosts{Count: 1}})
	host := b.hosts(&forge.MachineSearchConfig{})[0]
	old := newSKU("old", "old")
	old.SchemaVersion = 3
	remove := func(ids ...string) error { return failed(b.DeleteSku(ctx, &forge.SkuIdList{Ids: ids})) }
	replace := func(k *forge.Sku) error { return failed(b.ReplaceSku(ctx, k)) }
	words := func(r *forge.SkuUpdateMetadataRequest) error { return failed(b.UpdateSkuMetadata(ctx, r)) }
	assign := func(machine, id string, force bool) error {
		return failed(b.AssignSkuToMachine(ctx, &forge.SkuMachinePair{MachineId: &forge.MachineId{Id: machine}, SkuId: id, Force: force}))
	}
	release := func(machine string) error {
		return failed(b.RemoveSkuAssociation(ctx, &forge.RemoveSkuRequest{MachineId: &forge.MachineId{Id: machine}}))
	}
	nowhere := machineID('h', 's', 7, 7)
	b.refusals([]refusal{
		{"older format", b.addSKU(old), codes.InvalidArgument, "version"},
		{"two, one refused", b.addSKU(newSKU("a", "a"), newSKU("b", "a")), codes.InvalidArgument, "matches SKU with ID: a"},
		{"two", b.addSKU(newSKU("a", "a"), newSKU("b", "b")), codes.OK, ""},
		{"the same again", b.addSKU(newSKU("a", "a")), codes.InvalidArgument, "matches SKU with ID: a"},
		{"id taken", b.addSKU(newSKU("a", "c")), codes.Internal, "duplicate key"},
		{"long id", b.addSKU(newSKU(strings.Repeat("x", 257), "c")), codes.Internal, "too long"},

		{"no words", words(&forge.SkuUpdateMetadataRequest{SkuId: "a"}), codes.Internal, "required"},
		{"words for an unknown one", words(&forge.SkuUpdateMetadataRequest{SkuId: "x", Description: text("x")}), codes.Internal, "no rows"},
		{"words", words(&forge.SkuUpdateMetadataRequest{SkuId: "a", Description: text("first"), DeviceType: text("gpu")}), codes.OK, ""},
		{"replace an unknown one", replace(newSKU("x", "x")), codes.Internal, "no rows"},
		{"replace by another's parts", replace(newSKU("a", "b")), codes.InvalidArgument, "matches SKU with ID: b"},
		{"replace by its own", replace(newSKU("b", "b")), codes.OK, ""},

		{"assign to an unknown machine", assign(nowhere, "a", false), codes.NotFound, "machine"},
		{"assign an unknown SKU", assign(host, "x", false), codes.NotFound, "SKU ID"},
		{"assign", assign(host, "a", false), codes.OK, ""},
		{"assign another", assign(host, "b", false), codes.FailedPrecondition, "already has a SKU"},
		{"delete a SKU in use", remove("a"), codes.InvalidArgument, "in use by 1 machines"},
		{"assign another by force", assign(host, "b", true), codes.OK, ""},
		{"release an unknown machine", release(nowhere), codes.NotFound, "machine"},
	})
	if m := b.machine(host); m.GetHwSku() != "b" {
		t.Errorf("the machine belongs to %q", m.GetHwSku())
	}
	if k := b.findSKU("b"); len(k.AssociatedMachineIds) != 1 || k.AssociatedMachineIds[0].Id != host {
		t.Errorf("the SKU has %v", k.AssociatedMachineIds)
	}
	if k := b.findSKU("a"); k.GetDescription() != "first" || k.GetDeviceType() != "gpu" {
		t.Errorf("read back %v", k)
	}
	b.vpc(uid(1), ethernet)
	ok(b.CreateVpcPrefix(ctx, &forge.VpcPrefixCreationRequest{Id: prefixID(uid(2)), VpcId: vpcID(uid(1)), Prefix: "10.0.0.0/24"}))
	b.refusals([]refusal{{"release", release(host), codes.OK, ""}})
	b.allocate(uid(3), host, onPrefix(uid(2)))
	b.refusals([]refusal{
		{"assign under an instance", assign(host, "a", false), codes.FailedPrecondition, "valid state"},
		{"release under an instance", release(host), codes.FailedPrecondition, "valid state"},
		{"delete none", remove(), codes.InvalidArgument, "does not exist"},
		{"delete an unknown one", remove("x"), codes.InvalidArgument, "SKU x does not exist"},
		{"delete two", remove("a", "b"), codes.Internal, "not implemented"},
		{"delete one and an unknown one", remove("a", "x"), codes.OK, ""},
		{"id again", b.addSKU(newSKU("a", "a")), codes.OK, ""},
	})
	if ids := ok(b.GetAllSkuIds(ctx, &emptypb.Empty{})).Ids; len(ids) != 2 {
		t.Errorf("SKUs %v", ids)
	}
}

// What is not kept does not read back, and what is not compared does not distinguish SKUs.
func TestSKUsAreTheSame(t *testing.T) {
	b := start(t, Options{})
	if err := b.addSKU(newSKU("first", "m")); err != nil {
		t.Fatal(err)
	}
	c := b.findSKU("first").Components
	if len(c.EthernetDevices) != 0 || c.Storage[0].Vendor != "" || c.Storage[0].CapacityMb != 0 || c.Chassis.Vendor != "NVIDIA" || c.Tpm.Vendor != "IFX" {
		t.Errorf("read back %v", c)
	}
	same := map[string]func(*forge.SkuComponents){
		"makers": func(c *forge.SkuComponents) {
			c.Chassis.Vendor, c.Cpus[0].Vendor, c.Gpus[0].Vendor, c.Tpm.Vendor = "x", "x", "x", "x"
		},
		"model of a CPU":    func(c *forge.SkuComponents) { c.Cpus[0].Model = "EPYC" },
		"memory of a GPU":   func(c *forge.SkuComponents) { c.Gpus[0].TotalMemory = "x" },
		"Ethernet":          func(c *forge.SkuComponents) { c.EthernetDevices = nil },
		"size of a disk":    func(c *forge.SkuComponents) { c.Storage[0].CapacityMb = 1 },
		"modules of memory": func(c *forge.SkuComponents) { c.Memory[0].CapacityMb, c.Memory[0].Count = 2000, 2 },
		"CPUs apart": func(c *forge.SkuComponents) {
			c.Cpus = []*forge.SkuComponentCpu{{ThreadCount: 100, Count: 1}, {ThreadCount: 12, Count: 1}}
		},
	}
	for what, change := range same {
		b.refusals([]refusal{{what, b.addSKU(newSKU("other", "m", change)), codes.InvalidArgument, "matches SKU with ID: first"}})
	}
	other := map[string]func(*forge.SkuComponents){
		"architecture":     func(c *forge.SkuComponents) { c.Chassis.Architecture = "aarch64" },
		"sockets":          func(c *forge.SkuComponents) { c.Cpus[0].Count = 1 },
		"threads":          func(c *forge.SkuComponents) { c.Cpus[0].ThreadCount = 1 },
		"number of GPUs":   func(c *forge.SkuComponents) { c.Gpus[0].Count = 4 },
		"another GPU":      func(c *forge.SkuComponents) { c.Gpus = append(c.Gpus, &forge.SkuComponentGpu{Model: "L4", Count: 1}) },
		"maker of IB":      func(c *forge.SkuComponents) { c.InfinibandDevices[0].Vendor = "x" },
		"inactive devices": func(c *forge.SkuComponents) { c.InfinibandDevices[0].InactiveDevices = []uint32{3, 1} },
		"number of disks":  func(c *forge.SkuComponents) { c.Storage[0].Count = 1 },
		"memory":           func(c *forge.SkuComponents) { c.Memory[0].Count = 5 },
		"version of TPM":   func(c *forge.SkuComponents) { c.Tpm.Version = "1.2" },
		"no TPM":           func(c *forge.SkuComponents) { c.Tpm = nil },
	}
	for what, change := range other {
		if err := b.addSKU(newSKU(what, "m", change)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	// Replacing removes what is left out.
	ok(b.UpdateSkuMetadata(ctx, &forge.SkuUpdateMetadataRequest{SkuId: "first", Description: text("x"), DeviceType: text("x")}))
	created := b.findSKU("first").Created
	got := ok(b.ReplaceSku(ctx, &forge.Sku{Id: "first", SchemaVersion: 4}))
	if got.GetDescription() != "" || got.Description == nil || got.DeviceType != nil || got.Components.Chassis == nil || !proto.Equal(got.Created, created) {
		t.Errorf("after replacement %v", got)
	}
}
