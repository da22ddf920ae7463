package carbidesim

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"converge.dev/converge/providers/carbide/forge"
)

// answer is how a call is refused, or codes.OK.
type answer struct {
	code codes.Code
	text string
}

var (
	fine   = answer{codes.OK, ""}
	theRow = answer{codes.Internal, "duplicate key"}
	itIs   = answer{codes.FailedPrecondition, "already exists"}
)

// obey runs a law over kinds, each on a stage of its own. Every kind must be in the law's table or among those that the law
// does not concern.
func obey[W any](t *testing.T, o Options, table map[string]W, others string, law func(b *workbench, s subject, want W)) {
	t.Helper()
	kinds := subjects()
	concerned := slices.Concat(slices.Collect(maps.Keys(table)), strings.Fields(others))
	slices.Sort(concerned)
	if all := slices.Sorted(maps.Keys(kinds)); !slices.Equal(concerned, all) {
		t.Errorf("the law speaks of\n%v, the kinds are\n%v", concerned, all)
	}
	for kind, want := range table {
		t.Run(kind, func(t *testing.T) { law(onStage(t, o), kinds[kind], want) })
	}
}

// How an id is refused that is in use, or was until its thing was deleted. Tenants and machines cannot be deleted.
func TestEveryIDIsTakenOnce(t *testing.T) {
	type refusals struct{ live, deleted answer }
	obey(t, Options{}, map[string]refusals{
		"tenant":                   {theRow, answer{}},
		"tenant_keyset":            {theRow, fine},
		"vpc":                      {theRow, theRow},
		"vpc_prefix":               {theRow, fine},
		"vpc_peering":              {itIs, fine},
		"network_segment":          {theRow, fine},
		"network_security_group":   {itIs, theRow},
		"ib_partition":             {theRow, fine},
		"nvlink_logical_partition": {theRow, fine},
		"spx_partition":            {theRow, theRow},
		"operating_system":         {theRow, theRow},
		"os_image":                 {theRow, fine},
		"instance_type":            {itIs, itIs},
		"compute_allocation":       {itIs, theRow},
		"instance":                 {theRow, fine},
		"dpu_extension_service":    {theRow, theRow},
		"sku":                      {theRow, fine},
		"expected_machine":         {theRow, fine},
		"expected_switch":          {theRow, fine},
		"expected_power_shelf":     {theRow, fine},
		"expected_rack":            {itIs, fine},
	}, "machine", func(b *workbench, s subject, want refusals) {
		id := s.begin(b, named("first"))
		b.refuses(s.create(b, id, 2, named("second")), want.live.code, want.live.text)
		if s.remove == nil {
			return
		}
		if err := s.remove(b, id); err != nil {
			b.Fatal(err)
		}
		if s.gone > 0 { // the row exists until then
			b.refuses(s.create(b, id, 2, named("second")), theRow.code, theRow.text)
			b.world.Advance(s.gone)
		}
		if slices.Contains(s.list(b), id) {
			b.Error("what was deleted is listed")
		}
		b.refuses(s.create(b, id, 2, named("second")), want.deleted.code, want.deleted.text)
	})
}

// How a second delete is answered, and a delete of what never existed.
func TestEveryDeleteIsRepeated(t *testing.T) {
	absent := func(kind string) answer { return answer{codes.NotFound, kind + " not found"} }
	noRow := answer{codes.Internal, "no rows"}
	type answers struct{ again, unknown answer }
	both := func(a answer) answers { return answers{a, a} }
	obey(t, Options{}, map[string]answers{
		"tenant_keyset":            both(absent("keyset")),
		"vpc":                      both(absent("vpc")),
		"vpc_prefix":               both(absent("vpc_prefix")),
		"vpc_peering":              both(noRow),
		"network_segment":          {fine, absent("network segment")},
		"network_security_group":   both(absent("NetworkSecurityGroup")),
		"ib_partition":             {fine, absent("ib_partition")},
		"nvlink_logical_partition": {fine, absent("logical_partition")},
		"spx_partition":            {fine, noRow},
		"operating_system":         both(answer{codes.NotFound, "operating system"}),
		"os_image":                 both(noRow),
		"instance_type":            both(fine),
		"compute_allocation":       both(fine),
		"instance":                 {fine, absent("instance")},
		"dpu_extension_service":    both(absent("extension_service")),
		"sku":                      both(answer{codes.InvalidArgument, "does not exist"}),
		"expected_machine":         both(absent("expected_machine")),
		"expected_switch":          both(absent("expected_switch")),
		"expected_power_shelf":     both(absent("expected_power_shelf")),
		"expected_rack":            both(absent("expected_rack")),
	}, "machine tenant", func(b *workbench, s subject, want answers) {
		id := s.begin(b, named("first"))
		if err := s.remove(b, id); err != nil {
			b.Fatal(err)
		}
		b.refuses(s.remove(b, id), want.again.code, want.again.text)
		b.refuses(s.remove(b, uid(9)), want.unknown.code, want.unknown.text)
		b.world.Advance(s.gone)
		if s.gone > 0 {
			b.refuses(s.remove(b, id), want.unknown.code, want.unknown.text)
		}
	})
}

// limits are how many ids a call by ids accepts.
type limits struct{ none, many answer }

// A list has no pages, whatever the limit; a call by ids has a limit, and leaves out unknown ids.
func TestEveryListIsWhole(t *testing.T) {
	page := limits{answer{codes.InvalidArgument, "at least one"}, answer{codes.InvalidArgument, "at most 2"}}
	obey(t, Options{Rules: Rules{MaxFindByIDs: 2}}, map[string]limits{
		"tenant":                   page,
		"tenant_keyset":            page,
		"vpc":                      page,
		"vpc_prefix":               {fine, page.many},
		"vpc_peering":              {},
		"network_segment":          page,
		"network_security_group":   page,
		"ib_partition":             page,
		"nvlink_logical_partition": page,
		"spx_partition":            page,
		"operating_system":         {},
		"os_image":                 {}, // nothing is found by ids
		"instance_type":            page,
		"compute_allocation":       page,
		"instance":                 page,
		"machine":                  page,
		"dpu_extension_service":    {},
		"sku":                      page,
		"expected_machine":         {}, // nothing is found by ids
		"expected_switch":          {},
		"expected_power_shelf":     {},
		"expected_rack":            {},
	}, "", func(b *workbench, s subject, want limits) {
		var ids []string
		unknown := uid(9)
		for n := 1; s.create != nil && n <= 3; n++ {
			ids = append(ids, uid(byte(n)))
			if err := s.create(b, ids[n-1], n, named("thing-"+string('0'+byte(n)))); err != nil {
				b.Fatal(err)
			}
		}
		listed := s.list(b)
		if s.create == nil {
			ids, unknown = slices.Clone(listed[:3]), machineID('h', 's', 99, 0)
		}
		for _, id := range ids {
			if !slices.Contains(listed, id) {
				b.Errorf("%s is not in the list %v", id, listed)
			}
		}
		if s.find == nil {
			return
		}
		_, none := s.find(b)
		_, many := s.find(b, ids...)
		b.refuses(none, want.none.code, want.none.text)
		b.refuses(many, want.many.code, want.many.text)
		found, err := s.find(b, unknown, ids[1])
		if err != nil || len(found) != 1 || found[0].id != ids[1] {
			b.Errorf("a known id and an unknown one found %v, %v", found, err)
		}
	})
}

// The other calls that take ids have the limit too.
func TestLimitsOfOtherCalls(t *testing.T) {
	b := start(t, Options{Rules: Rules{MaxFindByIDs: 2}, Hosts: Hosts{Count: 3}})
	if err := b.instanceType("gpu", "gpu"); err != nil {
		t.Fatal(err)
	}
	attachments := func(ids ...string) error {
		return failed(b.GetNetworkSecurityGroupAttachments(ctx, &forge.GetNetworkSecurityGroupAttachmentsRequest{NetworkSecurityGroupIds: ids}))
	}
	propagation := func(vpcs, instances []string) error {
		return failed(b.GetNetworkSecurityGroupPropagationStatus(ctx, &forge.GetNetworkSecurityGroupPropagationStatusRequest{VpcIds: vpcs, InstanceIds: instances}))
	}
	b.refusals([]refusal{
		{"attachments of nothing", attachments(), codes.InvalidArgument, "at least one"},
		{"attachments of many", attachments("a", "b", "c"), codes.InvalidArgument, "at most 2"},
		{"attachments of what is unknown", attachments("a", "b"), codes.OK, ""},
		{"propagation, both together", propagation([]string{uid(1), uid(2)}, []string{uid(3)}), codes.InvalidArgument, "at most 2"},
		{"propagation, unknown", propagation([]string{uid(1)}, []string{uid(3)}), codes.OK, ""},
		{"machines of a type", b.associate("gpu", b.hosts(&forge.MachineSearchConfig{})...), codes.InvalidArgument, "at most 2"},
	})
}

// Where names must be unique, and among what.
func TestNamesAreTakenOnce(t *testing.T) {
	b := onStage(t, Options{})
	b.tenant("other")
	service := func(id, org, name string) error {
		r := podService(id, name)
		r.TenantOrganizationId = org
		return failed(b.CreateDpuExtensionService(ctx, r))
	}
	promise := func(id, org, name string) error {
		return failed(b.CreateComputeAllocation(ctx, &forge.CreateComputeAllocationRequest{
			Id: allocationID(id), TenantOrganizationId: org, Metadata: named(name), Attributes: &forge.ComputeAllocationAttributes{InstanceTypeId: "offer"},
		}))
	}
	rename := func(id, name string) error {
		return failed(b.UpdateNetworkSecurityGroup(ctx, &forge.UpdateNetworkSecurityGroupRequest{Id: id, TenantOrganizationId: "acme", Metadata: named(name)}))
	}
	b.refusals([]refusal{
		{"group", b.group("a", "acme", "web"), codes.OK, ""},
		{"group, taken", b.group("b", "acme", "web"), codes.FailedPrecondition, "already exists: web"},
		{"group, another tenant's", b.group("b", "other", "db"), codes.OK, ""},
		{"group, its name again in the first", b.group("c", "acme", "db"), codes.OK, ""},
		{"group, renamed to another tenant's", func() error { b.group("d", "other", "lb"); return rename("a", "lb") }(), codes.FailedPrecondition, "already exists: lb"},
		{"type", b.instanceType("a", "gpu"), codes.OK, ""},
		{"type, taken", b.instanceType("b", "gpu"), codes.FailedPrecondition, "already exists: gpu"},
		{"allocation", promise(uid(1), "acme", "first"), codes.OK, ""},
		{"allocation, taken", promise(uid(2), "acme", "first"), codes.FailedPrecondition, "already exists: first"},
		{"allocation, another tenant's", promise(uid(2), "other", "first"), codes.OK, ""},
		{"service", service(uid(3), "acme", "agent"), codes.OK, ""},
		{"service, taken in another case", service(uid(4), "acme", "AGENT"), codes.FailedPrecondition, "already exists"},
		{"service, another tenant's", service(uid(4), "other", "agent"), codes.OK, ""},
		{"service deleted", failed(b.DeleteDpuExtensionService(ctx, &forge.DeleteDpuExtensionServiceRequest{ServiceId: uid(3)})), codes.OK, ""},
		{"service, taken for ever", service(uid(5), "acme", "Agent"), codes.FailedPrecondition, "already exists"},
		{"VPC", failed(b.CreateVpc(ctx, &forge.VpcCreationRequest{Metadata: named("net")})), codes.OK, ""}, // all of the stage's have this name
	})
}

// What the service lets a client delete although it is in use. The user stays as it is.
func TestDeletedAlthoughUsed(t *testing.T) {
	b, hosts := withNetwork(t, 2)
	b.tenant("acme")
	stockLibrary(b)
	ok(b.CreateTenantKeyset(ctx, &forge.CreateTenantKeysetRequest{KeysetIdentifier: keysetOf("ops")}))
	ok(b.CreateOperatingSystem(ctx, func() *forge.CreateOperatingSystemRequest {
		r := templateEntry(uid(0x41)) // reads back by its id, unlike a script
		r.IpxeTemplateParameters = []*forge.IpxeTemplateParameter{param("kernel_params", "quiet")}
		r.IpxeTemplateArtifacts[0].CacheStrategy = 0
		return r
	}()))
	boots := map[byte]*forge.InstanceOperatingSystemConfig{
		0x10: {Variant: &forge.InstanceOperatingSystemConfig_OperatingSystemId{OperatingSystemId: osID(uid(0x41))}},
		0x11: {Variant: &forge.InstanceOperatingSystemConfig_OsImageId{OsImageId: imageUUID(uid(0x34))}},
	}
	for n, os := range boots {
		c := onPrefix(uid(3))
		c.Os, c.Tenant.TenantKeysetIds = os, []string{"ops"}
		b.allocate(uid(n), hosts[n-0x10], c)
	}
	b.refusals([]refusal{
		{"operating system", failed(b.DeleteOperatingSystem(ctx, &forge.DeleteOperatingSystemRequest{Id: osID(uid(0x41))})), codes.OK, ""},
		{"image", failed(b.DeleteOsImage(ctx, &forge.DeleteOsImageRequest{Id: imageUUID(uid(0x34)), TenantOrganizationId: "acme"})), codes.OK, ""},
		{"key set", failed(b.DeleteTenantKeyset(ctx, &forge.DeleteTenantKeysetRequest{KeysetIdentifier: keysetOf("ops")})), codes.OK, ""},
		{"VPC", failed(b.DeleteVpc(ctx, &forge.VpcDeletionRequest{Id: vpcID(uid(1))})), codes.OK, ""},
	})
	for n := range boots {
		i := b.findInstance(uid(n))
		if i == nil || i.Config.Tenant.TenantKeysetIds[0] != "ops" || len(i.Status.Network.Interfaces) != 1 {
			t.Errorf("the instance is now %v", i)
		}
	}
	if i := b.findInstance(uid(0x10)); i.Config.Os.GetOperatingSystemId().GetValue() != uid(0x41) {
		t.Errorf("it boots %v", i.Config.Os)
	}
	if i := b.findInstance(uid(0x11)); i.Config.Os.GetOsImageId().GetValue() != uid(0x34) {
		t.Errorf("it boots %v", i.Config.Os)
	}
}

// What a stranger has created exists, and what it has deleted does not.
func TestStrangersChangeTheWorld(t *testing.T) {
	b := onStage(t, Options{})
	mine := *b
	mine.ForgeClient = b.world.Stranger()
	for kind, s := range subjects() {
		if s.create == nil {
			continue
		}
		m := named("drift-" + kind)
		if err := s.create(&mine, uid(1), 1, m); err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		if !slices.Contains(s.list(b), uid(1)) {
			t.Errorf("%s: a stranger's is not listed", kind)
		}
		if s.remove == nil {
			continue
		}
		if err := s.remove(&mine, uid(1)); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		b.world.Advance(s.gone)
		if slices.Contains(s.list(b), uid(1)) {
			t.Errorf("%s: what a stranger has deleted is listed", kind)
		}
	}
	if status.Code(failed(b.DeleteVpc(ctx, &forge.VpcDeletionRequest{Id: vpcID(uid(1))}))) != codes.NotFound {
		t.Error("a stranger's delete is not one")
	}
}
