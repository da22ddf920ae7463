package carbidesim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"

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

func TestMalformedIDsDoNotPassTheDecoder(t *testing.T) {
	b := start(t, Options{Hosts: Hosts{Count: 1}})
	host := b.hosts(&forge.MachineSearchConfig{})[0]
	b.refusals([]refusal{
		{"VPC id", failed(b.DeleteVpc(ctx, &forge.VpcDeletionRequest{Id: vpcID("prod")})), codes.Internal, "decode"},
		{"id in a list", failed(b.FindVpcsByIds(ctx, &forge.VpcsByIdsRequest{VpcIds: []*forge.VpcId{vpcID(uid(1)), vpcID("2")}})), codes.Internal, "decode"},
		{"id deep inside", failed(b.AllocateInstances(ctx, &forge.BatchInstanceAllocationRequest{InstanceRequests: []*forge.InstanceAllocationRequest{{
			Config: &forge.InstanceConfig{Network: &forge.InstanceNetworkConfig{Interfaces: []*forge.InstanceInterfaceConfig{{NetworkSegmentId: segmentID("x")}}}},
		}}})), codes.Internal, "decode"},
		{"machine id", failed(b.FindMachinesByIds(ctx, &forge.MachinesByIdsRequest{MachineIds: []*forge.MachineId{{Id: host[:58]}}})), codes.Internal, "decode"},
		{"request is the id", failed(b.FindInstanceByMachineID(ctx, &forge.MachineId{Id: "host-1"})), codes.Internal, "decode"},
		{"machine id as plain text", failed(b.RemoveMachineInstanceTypeAssociation(ctx, &forge.RemoveMachineInstanceTypeAssociationRequest{MachineId: "host-1"})), codes.InvalidArgument, "machine id"},
	})
	// The same id in another spelling is the same id.
	b.vpc(strings.ToUpper(uid(0xab)), ethernet)
	if got := b.findVpc(uid(0xab)).Id.Value; got != uid(0xab) {
		t.Errorf("id reads back as %s", got)
	}
}

func TestAnEmptyWrapperIsTheNilUUID(t *testing.T) {
	b := start(t, Options{})
	v := ok(b.CreateVpc(ctx, &forge.VpcCreationRequest{Id: &forge.VpcId{}}))
	if v.Id.Value != "00000000-0000-0000-0000-000000000000" {
		t.Errorf("an empty wrapper made id %s", v.Id.Value)
	}
	v = ok(b.CreateVpc(ctx, &forge.VpcCreationRequest{}))
	if v.Id.Value == "00000000-0000-0000-0000-000000000000" || len(v.Id.Value) != 36 {
		t.Errorf("no wrapper made id %s", v.Id.Value)
	}
}

func TestUnknownFieldsDoNoHarm(t *testing.T) {
	b := start(t, Options{})
	r := &forge.VpcCreationRequest{Id: vpcID(uid(1)), Metadata: named("prod")}
	forge.SetLegacyName(r, "other") // what an older client sends; today's server skips it
	r.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(r.ProtoReflect().GetUnknown(), 999, protowire.VarintType), 1))
	ok(b.CreateVpc(ctx, r))
	got := b.findVpc(uid(1))
	if got.Metadata.Name != "prod" || len(got.ProtoReflect().GetUnknown()) != 0 {
		t.Errorf("read back %v", got)
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

// Every Find…ByIds takes 1 to max ids, leaves out what it does not know, and Find…Ids has no pages.
func TestFindPattern(t *testing.T) {
	b := start(t, Options{Rules: Rules{MaxFindByIDs: 3}, Hosts: Hosts{Count: 5}})
	hosts := b.hosts(&forge.MachineSearchConfig{})
	if len(hosts) != 5 {
		t.Fatalf("%d hosts in a list without pages", len(hosts))
	}
	ids := func(n int) (out []string) {
		for i := range n {
			out = append(out, uid(byte(i)))
		}
		return out
	}
	finds := map[string]func(n int) (int, error){
		"tenant": func(n int) (int, error) {
			r, err := b.FindTenantsByOrganizationIds(ctx, &forge.TenantByOrganizationIdsRequest{OrganizationIds: ids(n)})
			return len(r.GetTenants()), err
		},
		"keyset": func(n int) (int, error) {
			q := &forge.TenantKeysetsByIdsRequest{}
			for _, id := range ids(n) {
				q.KeysetIds = append(q.KeysetIds, &forge.TenantKeysetIdentifier{OrganizationId: "acme", KeysetId: id})
			}
			r, err := b.FindTenantKeysetsByIds(ctx, q)
			return len(r.GetKeyset()), err
		},
		"vpc": func(n int) (int, error) {
			q := &forge.VpcsByIdsRequest{}
			for _, id := range ids(n) {
				q.VpcIds = append(q.VpcIds, vpcID(id))
			}
			r, err := b.FindVpcsByIds(ctx, q)
			return len(r.GetVpcs()), err
		},
		"segment": func(n int) (int, error) {
			q := &forge.NetworkSegmentsByIdsRequest{}
			for _, id := range ids(n) {
				q.NetworkSegmentsIds = append(q.NetworkSegmentsIds, segmentID(id))
			}
			r, err := b.FindNetworkSegmentsByIds(ctx, q)
			return len(r.GetNetworkSegments()), err
		},
		"security group": func(n int) (int, error) {
			r, err := b.FindNetworkSecurityGroupsByIds(ctx, &forge.FindNetworkSecurityGroupsByIdsRequest{NetworkSecurityGroupIds: ids(n)})
			return len(r.GetNetworkSecurityGroups()), err
		},
		"attachments": func(n int) (int, error) {
			r, err := b.GetNetworkSecurityGroupAttachments(ctx, &forge.GetNetworkSecurityGroupAttachmentsRequest{NetworkSecurityGroupIds: ids(n)})
			return len(r.GetAttachments()), err
		},
		"instance type": func(n int) (int, error) {
			r, err := b.FindInstanceTypesByIds(ctx, &forge.FindInstanceTypesByIdsRequest{InstanceTypeIds: ids(n)})
			return len(r.GetInstanceTypes()), err
		},
		"compute allocation": func(n int) (int, error) {
			q := &forge.FindComputeAllocationsByIdsRequest{}
			for _, id := range ids(n) {
				q.Ids = append(q.Ids, allocationID(id))
			}
			r, err := b.FindComputeAllocationsByIds(ctx, q)
			return len(r.GetAllocations()), err
		},
		"SKU": func(n int) (int, error) {
			r, err := b.FindSkusByIds(ctx, &forge.SkusByIdsRequest{Ids: ids(n)})
			return len(r.GetSkus()), err
		},
		"instance": func(n int) (int, error) {
			q := &forge.InstancesByIdsRequest{}
			for _, id := range ids(n) {
				q.InstanceIds = append(q.InstanceIds, instanceID(id))
			}
			r, err := b.FindInstancesByIds(ctx, q)
			return len(r.GetInstances()), err
		},
		"machine": func(n int) (int, error) {
			q := &forge.MachinesByIdsRequest{}
			for i := range n {
				q.MachineIds = append(q.MachineIds, &forge.MachineId{Id: machineID('h', 's', 99, i)})
			}
			r, err := b.FindMachinesByIds(ctx, q)
			return len(r.GetMachines()), err
		},
		"InfiniBand partition": func(n int) (int, error) {
			q := &forge.IBPartitionsByIdsRequest{}
			for _, id := range ids(n) {
				q.IbPartitionIds = append(q.IbPartitionIds, ibID(id))
			}
			r, err := b.FindIBPartitionsByIds(ctx, q)
			return len(r.GetIbPartitions()), err
		},
		"NVLink logical partition": func(n int) (int, error) {
			q := &forge.NVLinkLogicalPartitionsByIdsRequest{}
			for _, id := range ids(n) {
				q.PartitionIds = append(q.PartitionIds, nvlinkID(id))
			}
			r, err := b.FindNVLinkLogicalPartitionsByIds(ctx, q)
			return len(r.GetPartitions()), err
		},
		"Spectrum-X partition": func(n int) (int, error) {
			q := &forge.SpxPartitionsByIdsRequest{}
			for _, id := range ids(n) {
				q.SpxPartitionIds = append(q.SpxPartitionIds, spxID(id))
			}
			r, err := b.FindSpxPartitionsByIds(ctx, q)
			return len(r.GetSpxPartitions()), err
		},
	}
	for kind, find := range finds {
		_, none := find(0)
		_, many := find(4)
		b.refusals([]refusal{
			{kind + ": no ids", none, codes.InvalidArgument, "at least one"},
			{kind + ": too many ids", many, codes.InvalidArgument, "at most 3"},
		})
		if n, err := find(3); n != 0 || err != nil {
			t.Errorf("%s: three unknown ids gave %d objects and %v", kind, n, err)
		}
	}
	// The one exception takes an empty list; its limit is the same.
	if r, err := b.GetVpcPrefixes(ctx, &forge.VpcPrefixGetRequest{}); err != nil || len(r.VpcPrefixes) != 0 {
		t.Errorf("no VPC prefix ids: %v, %v", r, err)
	}
	four := []*forge.VpcPrefixId{prefixID(uid(1)), prefixID(uid(2)), prefixID(uid(3)), prefixID(uid(4))}
	b.refuses(failed(b.GetVpcPrefixes(ctx, &forge.VpcPrefixGetRequest{VpcPrefixIds: four})), codes.InvalidArgument, "at most 3")
}

func TestMetadataRules(t *testing.T) {
	b := start(t, Options{})
	labels := func(n int) (out []*forge.Label) {
		for i := range n {
			out = append(out, label(fmt.Sprint("key", i), nil))
		}
		return out
	}
	create := func(m *forge.Metadata) error { return failed(b.CreateVpc(ctx, &forge.VpcCreationRequest{Metadata: m})) }
	long := strings.Repeat("x", 256)
	b.refusals([]refusal{
		{"shortest name", create(named("ab")), codes.OK, ""},
		{"longest name", create(named(long)), codes.OK, ""},
		{"ten labels", create(&forge.Metadata{Name: "ten", Labels: labels(10)}), codes.OK, ""},
		{"description may be any text", create(&forge.Metadata{Name: "ok", Description: strings.Repeat("é", 512)}), codes.OK, ""},
		{"longest key and value", create(&forge.Metadata{Name: "ok", Labels: []*forge.Label{label(long[1:], text(long[1:]))}}), codes.OK, ""},

		{"name of one byte", create(named("a")), codes.InvalidArgument, "2 to 256"},
		{"no name", create(&forge.Metadata{}), codes.InvalidArgument, "2 to 256"},
		{"long name", create(named(long + "x")), codes.InvalidArgument, "2 to 256"},
		{"name not ASCII", create(named("prodé")), codes.InvalidArgument, "ASCII"},
		{"long description", create(&forge.Metadata{Name: "ok", Description: strings.Repeat("x", 1025)}), codes.InvalidArgument, "1024"},
		{"eleven labels", create(&forge.Metadata{Name: "ok", Labels: labels(11)}), codes.InvalidArgument, "10 labels"},
		{"duplicate key", create(&forge.Metadata{Name: "ok", Labels: []*forge.Label{label("a", nil), label("a", text("x"))}}), codes.InvalidArgument, "duplicate"},
		{"empty key", create(&forge.Metadata{Name: "ok", Labels: []*forge.Label{label("", nil)}}), codes.InvalidArgument, "key"},
		{"long key", create(&forge.Metadata{Name: "ok", Labels: []*forge.Label{label(long, nil)}}), codes.InvalidArgument, "key"},
		{"key not ASCII", create(&forge.Metadata{Name: "ok", Labels: []*forge.Label{label("é", nil)}}), codes.InvalidArgument, "ASCII"},
		{"long value", create(&forge.Metadata{Name: "ok", Labels: []*forge.Label{label("a", text(long))}}), codes.InvalidArgument, "255"},
	})
}

func TestLabelsAreAMap(t *testing.T) {
	b := start(t, Options{})
	r := &forge.VpcCreationRequest{Id: vpcID(uid(1)), Metadata: named("prod")}
	for i := range 8 {
		r.Metadata.Labels = append(r.Metadata.Labels, label(fmt.Sprint("key", i), text("")))
	}
	ok(b.CreateVpc(ctx, r))
	orders := map[string]bool{}
	for range 50 {
		order := ""
		for _, l := range b.findVpc(uid(1)).Metadata.Labels {
			order += l.Key
			if l.Value != nil {
				t.Fatalf("an empty value reads back as %q, not as absent", *l.Value)
			}
		}
		orders[order] = true
	}
	if len(orders) < 2 {
		t.Error("labels always come in the same order")
	}
}

func TestTokens(t *testing.T) {
	b := start(t, Options{})
	v := b.vpc(uid(1), ethernet)
	first, err := parseToken(v.Version)
	if err != nil || first != (token{1, b.clock.now.UnixMicro()}) {
		t.Fatalf("first token %s: %v", v.Version, err)
	}
	b.clock.pass(time.Second)
	update := func(token *string) (*forge.VpcUpdateResult, error) {
		return b.UpdateVpc(ctx, &forge.VpcUpdateRequest{Id: vpcID(uid(1)), IfVersionMatch: token, Metadata: named("prod")})
	}
	second := ok(update(text("  " + v.Version + " "))).Vpc.Version
	if want := (token{2, b.clock.now.UnixMicro()}).String(); second != want {
		t.Errorf("second token %s, want %s", second, want)
	}
	b.refusals([]refusal{
		{"stale", failed(update(&v.Version)), codes.FailedPrecondition, "type vpc was intended to be modified did not have the expected version " + v.Version},
		{"same number, other time", failed(update(text("V2-T5"))), codes.FailedPrecondition, "vpc"},
		{"no dash", failed(update(text("V2"))), codes.InvalidArgument, "version"},
		{"two dashes", failed(update(text("V2-T5-6"))), codes.InvalidArgument, "version"},
		{"number zero", failed(update(text("V0-T5"))), codes.InvalidArgument, "version"},
		{"empty", failed(update(text(""))), codes.InvalidArgument, "version"},
	})
}

// Which code a malformed or stale token gets, and under what name, differs from kind to kind.
func TestTokensPerKind(t *testing.T) {
	b := start(t, Options{Hosts: Hosts{Count: 1}})
	b.tenant("acme")
	ok(b.CreateNetworkSecurityGroup(ctx, &forge.CreateNetworkSecurityGroupRequest{
		Id: text("web"), TenantOrganizationId: "acme", Metadata: named("web"),
	}))
	ok(b.CreateInstanceType(ctx, &forge.CreateInstanceTypeRequest{Id: text("gpu"), Metadata: named("gpu")}))
	ok(b.ibPartition(uid(1), "acme", ""))
	ok(b.nvlinkPartition(uid(2), "acme", named("rack")))
	host := b.hosts(&forge.MachineSearchConfig{})[0]
	updates := map[string]func(token *string) error{
		"tenant": func(token *string) error {
			return failed(b.UpdateTenant(ctx, &forge.UpdateTenantRequest{OrganizationId: "acme", Metadata: named("acme"), IfVersionMatch: token}))
		},
		"NetworkSecurityGroup": func(token *string) error {
			return failed(b.UpdateNetworkSecurityGroup(ctx, &forge.UpdateNetworkSecurityGroupRequest{Id: "web", TenantOrganizationId: "acme", Metadata: named("web"), IfVersionMatch: token}))
		},
		"InstanceType": func(token *string) error {
			return failed(b.UpdateInstanceType(ctx, &forge.UpdateInstanceTypeRequest{Id: "gpu", Metadata: named("gpu"), IfVersionMatch: token}))
		},
		"machine": func(token *string) error {
			return failed(b.UpdateMachineMetadata(ctx, &forge.MachineMetadataUpdateRequest{MachineId: &forge.MachineId{Id: host}, Metadata: named("host"), IfVersionMatch: token}))
		},
	}
	updates["IBPartition"] = func(token *string) error {
		return failed(b.UpdateIBPartition(ctx, &forge.IBPartitionUpdateRequest{
			Id: ibID(uid(1)), Config: &forge.IBPartitionConfig{TenantOrganizationId: "acme"}, Metadata: named("train"), IfVersionMatch: token,
		}))
	}
	updates["LogicalPartition"] = func(token *string) error {
		return failed(b.UpdateNVLinkLogicalPartition(ctx, &forge.NVLinkLogicalPartitionUpdateRequest{
			Id: nvlinkID(uid(2)), Config: &forge.NVLinkLogicalPartitionConfig{TenantOrganizationId: "acme", Metadata: named("rack")}, IfVersionMatch: token,
		}))
	}
	for kind, update := range updates {
		b.refusals([]refusal{
			{kind + " malformed", update(text("7")), codes.Internal, "version"},
			{kind + " stale", update(text("V9-T9")), codes.FailedPrecondition, "type " + kind + " "},
			{kind + " without", update(nil), codes.OK, ""},
		})
	}
}

// A call that fails changes nothing, however far it came.
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

// The table of newer methods is what the facts about the two generations say, and a server of the older one has none.
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

// The table of newer fields is what the facts about the two generations say.
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
			continue // another message of the same name: no method of the older generation speaks of this one
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
