package carbidesim

import (
	"testing"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/providers/carbide/forge"
)

func ibID(id string) *forge.IBPartitionId { return &forge.IBPartitionId{Value: id} }

// ibPartition creates a partition; an empty key requests none.
func (b *workbench) ibPartition(id, org, key string) (*forge.IBPartition, error) {
	r := &forge.IBPartitionCreationRequest{Id: ibID(id), Metadata: named("train"), Config: &forge.IBPartitionConfig{TenantOrganizationId: org}}
	if key != "" {
		r.Config.Pkey = &key
	}
	return b.CreateIBPartition(ctx, r)
}

// findIBPartition returns nil when there is none.
func (b *workbench) findIBPartition(id string) *forge.IBPartition {
	b.Helper()
	found := ok(b.FindIBPartitionsByIds(ctx, &forge.IBPartitionsByIdsRequest{IbPartitionIds: []*forge.IBPartitionId{ibID(id)}})).IbPartitions
	if len(found) == 0 {
		return nil
	}
	return found[0]
}

func (b *workbench) endIBPartition(id string) error {
	return failed(b.DeleteIBPartition(ctx, &forge.IBPartitionDeletionRequest{Id: ibID(id)}))
}

// attach puts an instance that uses partitions into the world.
func (b *workbench) attach(id string, c *forge.InstanceConfig) {
	b.Helper()
	c.Tenant = &forge.TenantConfig{TenantOrganizationId: "acme"}
	if err := b.world.transact(func() error {
		b.world.site.instances.put(id, &instance{Machine: machineID('h', 't', 1, 1), Config: keep(c)})
		return nil
	}); err != nil {
		b.Fatal(err)
	}
}

func (b *workbench) detach(id string) {
	b.Helper()
	if err := b.world.transact(func() error {
		b.world.site.instances.drop(id)
		return nil
	}); err != nil {
		b.Fatal(err)
	}
}

func onInfiniband(partition string) *forge.InstanceConfig {
	return &forge.InstanceConfig{Infiniband: &forge.InstanceInfinibandConfig{
		IbInterfaces: []*forge.InstanceIBInterfaceConfig{{Device: "mlx5", IbPartitionId: ibID(partition)}},
	}}
}

func TestIBPartitionLife(t *testing.T) {
	b := start(t, Options{})
	p := ok(b.ibPartition(uid(1), "acme", ""))
	if p.Config.Pkey != nil || p.Status.GetPkey() != "0x100" || p.Config.Name != "train" || p.Metadata.Name != "train" {
		t.Errorf("created: %v", p)
	}
	state := func() forge.TenantState { return b.findIBPartition(uid(1)).GetStatus().GetState() }
	expect := func(want forge.TenantState) {
		t.Helper()
		if got := state(); got != want {
			t.Errorf("the partition is %s, want %s", got, want)
		}
	}
	b.clock.pass(RealTiming.Tick - 1)
	expect(forge.TenantState_PROVISIONING)
	b.clock.pass(1)
	expect(forge.TenantState_READY)
	broken := forge.TenantState_FAILED
	if err := b.world.SetIBPartitionState(uid(1), &broken); err != nil {
		t.Fatal(err)
	}
	expect(forge.TenantState_FAILED)
	b.refuses(b.world.SetIBPartitionState(uid(9), &broken), codes.NotFound, "ib_partition")

	b.refusals([]refusal{
		{"id taken", failed(b.ibPartition(uid(1), "acme", "")), codes.Internal, "duplicate key"},
		{"delete", b.endIBPartition(uid(1)), codes.OK, ""},
		{"delete again", b.endIBPartition(uid(1)), codes.OK, ""},
		{"id still taken", failed(b.ibPartition(uid(1), "acme", "")), codes.Internal, "duplicate key"},
		{"unknown", b.endIBPartition(uid(9)), codes.NotFound, "ib_partition"},
		{"without an id", failed(b.DeleteIBPartition(ctx, &forge.IBPartitionDeletionRequest{})), codes.InvalidArgument, "id"},
	})
	expect(forge.TenantState_TERMINATING)
	find := func(f *forge.IBPartitionSearchFilter) int {
		return len(ok(b.FindIBPartitionIds(ctx, f)).IbPartitionIds)
	}
	if find(&forge.IBPartitionSearchFilter{}) != 1 {
		t.Error("a partition that is being deleted is not listed")
	}
	b.clock.pass(RealTiming.Tick - 1)
	b.refuses(b.endIBPartition(uid(1)), codes.OK, "") // which does not start again
	b.clock.pass(1)
	if b.findIBPartition(uid(1)) != nil {
		t.Error("the partition outlives its deletion")
	}
	b.refuses(b.endIBPartition(uid(1)), codes.NotFound, "ib_partition")
	if p = ok(b.ibPartition(uid(1), "acme", "")); p.Status.GetPkey() != "0x100" {
		t.Errorf("a deleted partition's key is not given again: %v", p)
	}
	ok(b.ibPartition(uid(2), "other", ""))
	for _, c := range []struct {
		filter *forge.IBPartitionSearchFilter
		want   int
	}{
		{&forge.IBPartitionSearchFilter{TenantOrgId: text("other")}, 1},
		{&forge.IBPartitionSearchFilter{Name: text("train")}, 2},
		{&forge.IBPartitionSearchFilter{Name: text("serve")}, 0},
	} {
		if got := find(c.filter); got != c.want {
			t.Errorf("%v finds %d partitions, want %d", c.filter, got, c.want)
		}
	}
}

// A timer of a partition that is gone does not affect another one with the same id.
func TestAnIBPartitionIsNotHurriedByItsPredecessor(t *testing.T) {
	b := start(t, Options{Timing: Timing{Tick: 100}})
	ok(b.ibPartition(uid(1), "acme", ""))
	b.clock.pass(60)
	if err := b.endIBPartition(uid(1)); err != nil {
		t.Fatal(err)
	}
	b.clock.pass(40) // it would be ready now
	if got := b.findIBPartition(uid(1)).GetStatus().GetState(); got != forge.TenantState_TERMINATING {
		t.Errorf("the deleted partition is %s", got)
	}
	b.clock.pass(60)
	ok(b.ibPartition(uid(1), "acme", ""))
	b.clock.pass(99)
	if got := b.findIBPartition(uid(1)).GetStatus().GetState(); got != forge.TenantState_PROVISIONING {
		t.Errorf("the new partition is %s", got)
	}
}

func TestIBPartitionKeys(t *testing.T) {
	b := start(t, Options{Rules: Rules{AutoPKeys: Range{0x10, 0x11}, RequestedPKeys: Range{0x20, 0x21}}})
	p := ok(b.ibPartition(uid(1), "acme", "0x0020"))
	if p.Config.GetPkey() != "0x20" || p.Status.GetPkey() != "0x20" {
		t.Errorf("the key asked for reads back as %q and %q", p.Config.GetPkey(), p.Status.GetPkey())
	}
	b.refusals([]refusal{
		{"taken", failed(b.ibPartition(uid(2), "acme", "0x20")), codes.Internal, "pkey"},
		{"from the other range", failed(b.ibPartition(uid(2), "acme", "0x11")), codes.Internal, "pkey"},
		{"no number", failed(b.ibPartition(uid(2), "acme", "key")), codes.InvalidArgument, "pkey"},
		{"too large", failed(b.ibPartition(uid(2), "acme", "0x10000")), codes.InvalidArgument, "pkey"},
	})
	ok(b.ibPartition(uid(2), "acme", "21")) // hexadecimal even without 0x
	ok(b.ibPartition(uid(3), "acme", ""))
	ok(b.ibPartition(uid(4), "acme", ""))
	b.refusals([]refusal{
		{"auto range empty", failed(b.ibPartition(uid(5), "acme", "")), codes.ResourceExhausted, "pkey"},
		{"requestable range empty", failed(b.ibPartition(uid(5), "acme", "0x20")), codes.ResourceExhausted, "pkey"},
	})
	if err := b.endIBPartition(uid(2)); err != nil {
		t.Fatal(err)
	}
	b.refuses(failed(b.ibPartition(uid(5), "acme", "0x21")), codes.ResourceExhausted, "pkey") // until it is gone
	b.clock.pass(RealTiming.Tick)
	ok(b.ibPartition(uid(5), "acme", "0x21"))

	bare := start(t, Options{Rules: Rules{NoInfiniband: true}})
	bare.refuses(failed(bare.ibPartition(uid(1), "acme", "")), codes.Internal, "not configured")
}

func TestIBPartitionAdmission(t *testing.T) {
	b := start(t, Options{Rules: Rules{MaxIBPartitions: 2}})
	create := func(m *forge.Metadata, c *forge.IBPartitionConfig) error {
		return failed(b.CreateIBPartition(ctx, &forge.IBPartitionCreationRequest{Metadata: m, Config: c}))
	}
	b.refusals([]refusal{
		{"no configuration", create(named("train"), nil), codes.InvalidArgument, "config"},
		{"no tenant", create(named("train"), &forge.IBPartitionConfig{}), codes.InvalidArgument, "organization"},
		{"bad tenant", create(named("train"), &forge.IBPartitionConfig{TenantOrganizationId: "a b"}), codes.InvalidArgument, "organization"},
		{"short name", create(named("x"), &forge.IBPartitionConfig{TenantOrganizationId: "acme"}), codes.InvalidArgument, "2 to 256"},
		{"no name", create(nil, &forge.IBPartitionConfig{TenantOrganizationId: "acme"}), codes.InvalidArgument, "2 to 256"},
		{"the old place of the name", create(nil, &forge.IBPartitionConfig{TenantOrganizationId: "acme", Name: "old"}), codes.OK, ""},
		{"the old place does not win", create(named("new"), &forge.IBPartitionConfig{TenantOrganizationId: "acme", Name: "x"}), codes.OK, ""},
		{"quota", failed(b.ibPartition(uid(1), "acme", "")), codes.InvalidArgument, "Maximum Limit"},
		{"quota of another tenant", failed(b.ibPartition(uid(1), "other", "")), codes.OK, ""},
	})
	id := ok(b.FindIBPartitionIds(ctx, &forge.IBPartitionSearchFilter{Name: text("old")})).IbPartitionIds
	if len(id) != 1 {
		t.Fatalf("%d partitions are called old", len(id))
	}
	if err := b.endIBPartition(id[0].Value); err != nil {
		t.Fatal(err)
	}
	b.refuses(failed(b.ibPartition(uid(2), "acme", "")), codes.InvalidArgument, "Maximum Limit") // what is being deleted counts
	b.clock.pass(RealTiming.Tick)
	ok(b.ibPartition(uid(2), "acme", ""))
}

func TestIBPartitionUpdate(t *testing.T) {
	b := start(t, Options{})
	before := ok(b.ibPartition(uid(1), "acme", "0x4000"))
	config := func(org, key string) *forge.IBPartitionConfig {
		c := &forge.IBPartitionConfig{TenantOrganizationId: org}
		if key != "" {
			c.Pkey = &key
		}
		return c
	}
	update := func(r *forge.IBPartitionUpdateRequest) error { return failed(b.UpdateIBPartition(ctx, r)) }
	m := &forge.Metadata{Name: "serve", Description: "d", Labels: []*forge.Label{label("env", text("prod"))}}
	acme := config("acme", "")
	b.refusals([]refusal{
		{"no id", update(&forge.IBPartitionUpdateRequest{Config: acme, Metadata: m}), codes.InvalidArgument, "id"},
		{"no configuration", update(&forge.IBPartitionUpdateRequest{Id: ibID(uid(1)), Metadata: m}), codes.InvalidArgument, "config"},
		{"no metadata", update(&forge.IBPartitionUpdateRequest{Id: ibID(uid(1)), Config: acme}), codes.InvalidArgument, "metadata"},
		{"unknown", update(&forge.IBPartitionUpdateRequest{Id: ibID(uid(9)), Config: acme, Metadata: m}), codes.NotFound, "ib_partition"},
		{"another tenant", update(&forge.IBPartitionUpdateRequest{Id: ibID(uid(1)), Config: config("other", ""), Metadata: m}), codes.InvalidArgument, "tenant"},
		{"another key", update(&forge.IBPartitionUpdateRequest{Id: ibID(uid(1)), Config: config("acme", "0x4001"), Metadata: m}), codes.InvalidArgument, "pkey"},
		{"the same key", update(&forge.IBPartitionUpdateRequest{Id: ibID(uid(1)), Config: config("acme", "0x4000"), Metadata: m, IfVersionMatch: &before.ConfigVersion}), codes.OK, ""},
	})
	after := b.findIBPartition(uid(1))
	if after.Metadata.Name != "serve" || after.Config.Name != "serve" || after.Metadata.Description != "d" || len(after.Metadata.Labels) != 1 {
		t.Errorf("updated: %v", after)
	}
	if after.ConfigVersion != before.ConfigVersion {
		t.Errorf("the token moved from %s to %s", before.ConfigVersion, after.ConfigVersion)
	}
}

func TestIBPartitionInUse(t *testing.T) {
	b := start(t, Options{})
	ok(b.ibPartition(uid(1), "acme", ""))
	b.clock.pass(RealTiming.Tick)
	b.attach(uid(9), onInfiniband(uid(1)))
	b.refuses(b.endIBPartition(uid(1)), codes.FailedPrecondition, "instances")
	if s := b.findIBPartition(uid(1)).Status; s.GetPartition() != "train" || s.Mtu == nil || s.RateLimit == nil || s.ServiceLevel == nil {
		t.Errorf("with ports the status is %v", s)
	}
	b.detach(uid(9))
	if s := b.findIBPartition(uid(1)).Status; s.Partition != nil || s.Mtu != nil {
		t.Errorf("without ports the status is %v", s)
	}
	if err := b.endIBPartition(uid(1)); err != nil {
		t.Fatal(err)
	}
	b.attach(uid(9), onInfiniband(uid(1))) // the service's mistake: nothing checks that it is being deleted
	b.clock.pass(10 * RealTiming.Tick)
	if b.findIBPartition(uid(1)) == nil {
		t.Error("the partition is gone although an instance refers to it")
	}
	b.detach(uid(9))
	b.clock.pass(RealTiming.Tick)
	if b.findIBPartition(uid(1)) != nil {
		t.Error("the partition outlives its last instance")
	}
}
