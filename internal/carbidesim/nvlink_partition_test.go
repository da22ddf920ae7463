package carbidesim

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/providers/carbide/forge"
)

func nvlinkID(id string) *forge.NVLinkLogicalPartitionId {
	return &forge.NVLinkLogicalPartitionId{Value: id}
}

func (b *workbench) nvlinkPartition(id, org string, m *forge.Metadata) (*forge.NVLinkLogicalPartition, error) {
	return b.CreateNVLinkLogicalPartition(ctx, &forge.NVLinkLogicalPartitionCreationRequest{
		Id: nvlinkID(id), Config: &forge.NVLinkLogicalPartitionConfig{TenantOrganizationId: org, Metadata: m},
	})
}

// findNVLinkPartition returns nil when there is none.
func (b *workbench) findNVLinkPartition(id string) *forge.NVLinkLogicalPartition {
	b.Helper()
	found := ok(b.FindNVLinkLogicalPartitionsByIds(ctx, &forge.NVLinkLogicalPartitionsByIdsRequest{
		PartitionIds: []*forge.NVLinkLogicalPartitionId{nvlinkID(id)},
	})).Partitions
	if len(found) == 0 {
		return nil
	}
	return found[0]
}

func (b *workbench) endNVLinkPartition(id string) error {
	return failed(b.DeleteNVLinkLogicalPartition(ctx, &forge.NVLinkLogicalPartitionDeletionRequest{Id: nvlinkID(id)}))
}

func TestNVLinkPartitionDropsLabels(t *testing.T) {
	b := start(t, Options{})
	m := &forge.Metadata{Name: "rack", Description: "d", Labels: []*forge.Label{label("env", text("prod"))}}
	p := ok(b.nvlinkPartition(uid(1), "acme", m))
	if p.Status.State != forge.TenantState_READY || len(p.Config.Metadata.Labels) != 0 || p.Config.Metadata.Description != "d" {
		t.Errorf("created: %v", p)
	}
	twice := &forge.Metadata{Name: "rack", Labels: []*forge.Label{label("env", nil), label("env", nil)}}
	b.refusals([]refusal{
		{"id taken", failed(b.nvlinkPartition(uid(1), "acme", m)), codes.Internal, "duplicate key"},
		{"no configuration", failed(b.CreateNVLinkLogicalPartition(ctx, &forge.NVLinkLogicalPartitionCreationRequest{})), codes.InvalidArgument, "config"},
		{"no tenant", failed(b.nvlinkPartition(uid(2), "", m)), codes.InvalidArgument, "organization"},
		{"no metadata", failed(b.nvlinkPartition(uid(2), "acme", nil)), codes.InvalidArgument, "metadata"},
		{"short name", failed(b.nvlinkPartition(uid(2), "acme", named("x"))), codes.InvalidArgument, "2 to 256"},
		{"labels are checked all the same", failed(b.nvlinkPartition(uid(2), "acme", twice)), codes.InvalidArgument, "duplicate"},
	})
}

func TestNVLinkPartitionUpdate(t *testing.T) {
	b := start(t, Options{})
	before := ok(b.nvlinkPartition(uid(1), "acme", &forge.Metadata{Name: "rack", Description: "d"}))
	update := func(id *forge.NVLinkLogicalPartitionId, c *forge.NVLinkLogicalPartitionConfig) error {
		return failed(b.UpdateNVLinkLogicalPartition(ctx, &forge.NVLinkLogicalPartitionUpdateRequest{Id: id, Config: c, IfVersionMatch: &before.ConfigVersion}))
	}
	m := &forge.Metadata{Name: "pod", Description: "e", Labels: []*forge.Label{label("env", nil)}}
	b.refusals([]refusal{
		{"no id", update(nil, &forge.NVLinkLogicalPartitionConfig{TenantOrganizationId: "acme", Metadata: m}), codes.InvalidArgument, "id"},
		{"no configuration", update(nvlinkID(uid(1)), nil), codes.InvalidArgument, "config"},
		{"no metadata", update(nvlinkID(uid(1)), &forge.NVLinkLogicalPartitionConfig{TenantOrganizationId: "acme"}), codes.InvalidArgument, "metadata"},
		{"another tenant", update(nvlinkID(uid(1)), &forge.NVLinkLogicalPartitionConfig{TenantOrganizationId: "other", Metadata: m}), codes.InvalidArgument, "tenant"},
		{"unknown", update(nvlinkID(uid(9)), &forge.NVLinkLogicalPartitionConfig{TenantOrganizationId: "acme", Metadata: m}), codes.NotFound, "logical_partition"},
		{"all well", update(nvlinkID(uid(1)), &forge.NVLinkLogicalPartitionConfig{TenantOrganizationId: "acme", Metadata: m}), codes.OK, ""},
	})
	after := b.findNVLinkPartition(uid(1))
	if got := after.Config.Metadata; got.Name != "pod" || got.Description != "e" || len(got.Labels) != 0 {
		t.Errorf("updated: %v", got)
	}
	if after.ConfigVersion != before.ConfigVersion {
		t.Errorf("the token moved from %s to %s", before.ConfigVersion, after.ConfigVersion)
	}
}

func TestNVLinkPartitionDeletion(t *testing.T) {
	for _, without := range []bool{false, true} {
		b := start(t, Options{Rules: Rules{NoNVLink: without}})
		ok(b.nvlinkPartition(uid(1), "acme", named("rack")))
		b.refusals([]refusal{
			{"unknown", b.endNVLinkPartition(uid(9)), codes.NotFound, "logical_partition"},
			{"without an id", failed(b.DeleteNVLinkLogicalPartition(ctx, &forge.NVLinkLogicalPartitionDeletionRequest{})), codes.InvalidArgument, "id"},
			{"delete", b.endNVLinkPartition(uid(1)), codes.OK, ""},
			{"delete again", b.endNVLinkPartition(uid(1)), codes.OK, ""},
		})
		b.clock.pass(RealTiming.Purge - 1)
		check := func() {
			t.Helper()
			p := b.findNVLinkPartition(uid(1))
			if p.GetStatus().GetState() != forge.TenantState_TERMINATING {
				t.Errorf("the deleted partition is %v", p)
			}
			if ids := ok(b.FindNVLinkLogicalPartitionIds(ctx, &forge.NVLinkLogicalPartitionSearchFilter{Name: text("rack")})).PartitionIds; len(ids) != 1 {
				t.Error("the deleted partition is not listed")
			}
			if ids := ok(b.FindNVLinkLogicalPartitionIds(ctx, &forge.NVLinkLogicalPartitionSearchFilter{Name: text("pod")})).PartitionIds; len(ids) != 0 {
				t.Errorf("by another name there are %v", ids)
			}
			b.refuses(failed(b.nvlinkPartition(uid(1), "acme", named("rack"))), codes.Internal, "duplicate key")
		}
		check()
		if without {
			b.clock.pass(1000 * time.Hour)
			check()
			continue
		}
		b.clock.pass(1)
		b.refuses(b.endNVLinkPartition(uid(1)), codes.NotFound, "logical_partition")
		ok(b.nvlinkPartition(uid(1), "acme", named("rack")))
	}
}

func TestNVLinkPartitionInUse(t *testing.T) {
	b := start(t, Options{Hosts: Hosts{Count: 1}})
	b.vpc(uid(1), ethernet)
	if err := b.segment(uid(2), uid(1), "10.0.0.0/24", "10.0.0.1"); err != nil {
		t.Fatal(err)
	}
	ok(b.nvlinkPartition(uid(3), "acme", named("rack")))
	c := config(viaSegment(uid(2)))
	c.Nvlink = &forge.InstanceNVLinkConfig{GpuConfigs: []*forge.InstanceNVLinkGpuConfig{{LogicalPartitionId: nvlinkID(uid(3))}}}
	b.clock.pass(RealTiming.Tick)
	b.allocate(uid(9), b.hosts(&forge.MachineSearchConfig{})[0], c)
	b.refuses(b.endNVLinkPartition(uid(3)), codes.InvalidArgument, "instance")
	ok(b.ReleaseInstance(ctx, &forge.InstanceReleaseRequest{Id: instanceID(uid(9))}))
	b.refuses(b.endNVLinkPartition(uid(3)), codes.InvalidArgument, "instance") // until the instance is gone
	b.clock.pass(RealTiming.Release)
	if err := b.endNVLinkPartition(uid(3)); err != nil {
		t.Error(err)
	}
}
