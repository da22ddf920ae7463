package carbidesim

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/providers/carbide/forge"
)

func TestVersionTellsSettingsWhenAsked(t *testing.T) {
	b := start(t, Options{Rules: Rules{SiteName: "fra1", MaxFindByIDs: 7, FabricPrefixes: prefixList("10.0.0.0/8")}})
	bare := ok(b.Version(ctx, &forge.VersionRequest{}))
	if bare.RuntimeConfig != nil || bare.BuildVersion == "" {
		t.Errorf("without display_config: %v", bare)
	}
	c := ok(b.Version(ctx, &forge.VersionRequest{DisplayConfig: true})).RuntimeConfig
	if c.MaxFindByIds != 7 || c.GetSitename() != "fra1" || len(c.SiteFabricPrefixes) != 1 || c.SiteFabricPrefixes[0] != "10.0.0.0/8" {
		t.Errorf("with display_config: %v", c)
	}
}

// Ids that are plain texts are read by the methods, and refused differently from those in wrappers.
func TestIDsAsPlainText(t *testing.T) {
	b := start(t, Options{})
	b.refuses(failed(b.RemoveMachineInstanceTypeAssociation(ctx, &forge.RemoveMachineInstanceTypeAssociationRequest{MachineId: "host-1"})), codes.InvalidArgument, "machine id")
	// The same id in another spelling is the same id.
	b.vpc(strings.ToUpper(uid(0xab)), ethernet)
	if got := b.findVpc(uid(0xab)).Id.Value; got != uid(0xab) {
		t.Errorf("id reads back as %s", got)
	}
}

func TestAnIDIsGivenToWhatHasNone(t *testing.T) {
	b := start(t, Options{})
	v := ok(b.CreateVpc(ctx, &forge.VpcCreationRequest{}))
	if v.Id.Value == "00000000-0000-0000-0000-000000000000" || len(v.Id.Value) != 36 {
		t.Errorf("no wrapper made id %s", v.Id.Value)
	}
}

func TestWhatIsNotModelledIsRefused(t *testing.T) {
	b := start(t, Options{Unimplemented: []string{"FindVpcIds"}})
	b.refusals([]refusal{
		{"method without rules", failed(b.ValidateTenantPublicKey(ctx, &forge.ValidateTenantPublicKeyRequest{})), codes.Unimplemented, ""},
		{"method of a newer site", failed(b.FindVpcIds(ctx, &forge.VpcSearchFilter{})), codes.Unimplemented, "FindVpcIds"},
		{"filter without rules", failed(b.FindMachineIds(ctx, &forge.MachineSearchConfig{MnnvlOnly: true})), codes.Unimplemented, "NVLink"},
	})
}

// A call that fails changes nothing, however far it got.
func TestAFailedCallChangesNothing(t *testing.T) {
	b := start(t, Options{Hosts: Hosts{Count: 2}})
	hosts := b.hosts(&forge.MachineSearchConfig{})
	b.vpc(uid(1), ethernet)
	ok(b.CreateVpcPrefix(ctx, &forge.VpcPrefixCreationRequest{Id: prefixID(uid(2)), VpcId: vpcID(uid(1)), Prefix: "10.0.0.0/31"}))
	before := string(b.world.Dump())
	both := &forge.BatchInstanceAllocationRequest{}
	for _, h := range hosts { // the second one finds no free link network
		both.InstanceRequests = append(both.InstanceRequests, &forge.InstanceAllocationRequest{
			MachineId: &forge.MachineId{Id: h}, Config: onPrefix(uid(2)),
		})
	}
	b.refuses(failed(b.AllocateInstances(ctx, both)), codes.Internal, "no free link network")
	if after := string(b.world.Dump()); after != before {
		t.Errorf("half a batch is left:\n%s", after)
	}
	ok(b.AllocateInstances(ctx, &forge.BatchInstanceAllocationRequest{InstanceRequests: both.InstanceRequests[:1]}))
}

func TestTheOlderGeneration(t *testing.T) {
	b := start(t, Options{Old: true, Hosts: Hosts{Count: 1}})
	r := &forge.VpcCreationRequest{Id: vpcID(uid(1)), TenantOrganizationId: "acme",
		Metadata: &forge.Metadata{Name: "prod", Labels: []*forge.Label{label("env", text("prod"))}}}
	b.refuses(failed(b.CreateVpc(ctx, r)), codes.InvalidArgument, "name")
	forge.SetLegacyName(r, "prod")
	ok(b.CreateVpc(ctx, r))
	v := b.findVpc(uid(1))
	if forge.LegacyName(v) != "prod" || v.Metadata.Name != "" || len(v.Metadata.Labels) != 1 {
		t.Errorf("VPC reads back as %v", v)
	}
	flat := forge.VpcVirtualizationType_FLAT
	r = &forge.VpcCreationRequest{NetworkVirtualizationType: &flat}
	forge.SetLegacyName(r, "flat")
	b.refuses(failed(b.CreateVpc(ctx, r)), codes.InvalidArgument, "type")

	if err := b.segment(uid(2), uid(1), "10.0.0.0/24", "10.0.0.1"); err != nil {
		t.Fatal(err)
	}
	n := b.findSegment(uid(2))
	//lint:ignore SA1019 the flat fields are all that the older generation has
	if n.Config != nil || n.Status != nil || n.Metadata != nil || n.Name != "subnet" || n.VpcId.GetValue() != uid(1) || len(n.Prefixes) != 1 {
		t.Errorf("segment reads back as %v", n)
	}

	b.refuses(failed(b.FindSpxPartitionIds(ctx, &forge.SpxPartitionSearchFilter{})), codes.Unimplemented, "FindSpxPartitionIds")

	p := &forge.VpcPrefixCreationRequest{Id: prefixID(uid(3)), VpcId: vpcID(uid(1)), Prefix: "10.1.0.0/24"}
	forge.SetLegacyName(p, "links")
	if got := ok(b.CreateVpcPrefix(ctx, p)); forge.LegacyName(got) != "links" {
		t.Errorf("VPC prefix reads back as %v", got)
	}
	config := onPrefix(uid(3))
	config.Os = &forge.InstanceOperatingSystemConfig{Variant: &forge.InstanceOperatingSystemConfig_OperatingSystemId{OperatingSystemId: &forge.OperatingSystemId{Value: uid(4)}}}
	host := &forge.MachineId{Id: b.hosts(&forge.MachineSearchConfig{})[0]}
	b.refuses(failed(b.AllocateInstance(ctx, &forge.InstanceAllocationRequest{MachineId: host, Config: config})), codes.InvalidArgument, "variant")
	i := ok(b.AllocateInstance(ctx, &forge.InstanceAllocationRequest{MachineId: host, Config: onPrefix(uid(3))}))
	if i.Status.SpxStatus != nil {
		t.Errorf("instance has a field of the newer generation: %v", i.Status)
	}
}

// The table of newer methods agrees with the facts about the two generations, and a server of the older one has none of them.
func TestNewMethodsAreThoseOfTheTable(t *testing.T) {
	for method, m := range readFacts(t).Methods {
		if absent := m.Rest == "absent"; absent != slices.Contains(newMethods, method) {
			t.Errorf("%s: the older generation is said to be %q", method, m.Rest)
		}
	}
	b := start(t, Options{Old: true})
	b.refuses(failed(b.FindSpxPartitionIds(ctx, &forge.SpxPartitionSearchFilter{})), codes.Unimplemented, "")
	b.refuses(failed(b.FindOperatingSystemIds(ctx, &forge.OperatingSystemSearchFilter{})), codes.Unimplemented, "FindOperatingSystemIds")
	ok(b.ListOsImage(ctx, &forge.ListOsImageRequest{}))
}

// The table of newer fields agrees with the facts about the two generations.
func TestNewerFieldsAreThoseOfTheTable(t *testing.T) {
	for name, numbers := range newer {
		m := newMessage(newMessageNamed(t, name).ProtoReflect().Descriptor()).ProtoReflect()
		for _, number := range numbers {
			if m.Descriptor().Fields().ByNumber(number) == nil {
				t.Errorf("%s has no field %d", name, number)
			}
		}
	}
	want := map[string]bool{"forge.InstanceOperatingSystemConfig 4": true} // the older message has another name
	for message, fields := range readDifferences(t) {
		if message == "forge.OperatingSystem" {
			continue // another message of the same name: no method of the older generation uses this one
		}
		for _, number := range fields {
			want[fmt.Sprint(message, " ", number)] = true
		}
	}
	for name, numbers := range newer {
		for _, number := range numbers {
			if key := fmt.Sprint(name, " ", number); !want[key] {
				t.Errorf("%s is not newer", key)
			} else {
				delete(want, key)
			}
		}
	}
	for key := range want {
		t.Errorf("%s is newer and not in our list", key)
	}
}

func TestEqualCallsGiveEqualWorlds(t *testing.T) {
	run := func(seed uint64) string {
		b := start(t, Options{Seed: seed, Hosts: Hosts{Count: 4, WithoutDPU: 1, Unhealthy: 1, Maintenance: 1}})
		ok(b.CreateVpc(ctx, &forge.VpcCreationRequest{Metadata: named("prod")}))
		return string(b.world.Dump())
	}
	if a, b := run(1), run(1); a != b {
		t.Errorf("the same calls gave\n%s\nand\n%s", a, b)
	}
	if run(1) == run(2) {
		t.Error("another seed gives the same ids")
	}
}
