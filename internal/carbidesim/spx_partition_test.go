package carbidesim

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/providers/carbide/forge"
)

func spxID(id string) *forge.SpxPartitionId { return &forge.SpxPartitionId{Value: id} }

func (b *workbench) spxPartition(id string, m *forge.Metadata, vni *uint32) (*forge.SpxPartition, error) {
	return b.CreateSpxPartition(ctx, &forge.SpxPartitionCreationRequest{Id: spxID(id), Metadata: m, TenantOrganizationId: "acme", Vni: vni})
}

func (b *workbench) endSpxPartition(id string) error {
	return failed(b.DeleteSpxPartition(ctx, &forge.SpxPartitionDeletionRequest{Id: spxID(id)}))
}

func (b *workbench) spxPartitions(f *forge.SpxPartitionSearchFilter) int {
	return len(ok(b.FindSpxPartitionIds(ctx, f)).SpxPartitionIds)
}

func TestSpxPartition(t *testing.T) {
	b := start(t, Options{})
	m := &forge.Metadata{Name: "east", Description: "d", Labels: []*forge.Label{label("env", text("prod"))}}
	p := ok(b.spxPartition(uid(1), m, nil))
	if p.Metadata.Name != "east" || p.Metadata.Description != "d" || len(p.Metadata.Labels) != 0 || p.TenantOrganizationId != "acme" || p.Vni == 0 {
		t.Errorf("created: %v", p)
	}
	b.refusals([]refusal{
		{"no name", failed(b.spxPartition(uid(2), &forge.Metadata{}, nil)), codes.OK, ""},
		{"no metadata", failed(b.spxPartition(uid(3), nil, nil)), codes.OK, ""},
		{"long name", failed(b.spxPartition(uid(4), named(strings.Repeat("x", 257)), nil)), codes.InvalidArgument, "0 to 256"},
		{"no tenant", failed(b.CreateSpxPartition(ctx, &forge.SpxPartitionCreationRequest{})), codes.InvalidArgument, "tenant_organization_id"},
		{"id taken", failed(b.spxPartition(uid(1), m, nil)), codes.Internal, "duplicate key"},
		{"by label", failed(b.FindSpxPartitionIds(ctx, &forge.SpxPartitionSearchFilter{Label: label("env", nil)})), codes.Unimplemented, "label"},
	})
	for _, c := range []struct {
		filter *forge.SpxPartitionSearchFilter
		want   int
	}{
		{&forge.SpxPartitionSearchFilter{}, 3},
		{&forge.SpxPartitionSearchFilter{Name: text("east")}, 1},
		{&forge.SpxPartitionSearchFilter{Name: text("")}, 2},
		{&forge.SpxPartitionSearchFilter{TenantOrgId: text("other")}, 0},
	} {
		if got := b.spxPartitions(c.filter); got != c.want {
			t.Errorf("%v finds %d partitions, want %d", c.filter, got, c.want)
		}
	}
}

func TestSpxPartitionNumbersAreTheirOwn(t *testing.T) {
	b := start(t, Options{Rules: Rules{
		AutoSPXVNIs: Range{100, 101}, RequestedSPXVNIs: Range{200, 200}, AutoVNIs: Range{100, 101}, RequestedVNIs: Range{200, 200},
	}})
	number := func(n uint32) *uint32 { return &n }
	ok(b.CreateVpc(ctx, &forge.VpcCreationRequest{Vni: number(200)}))
	ok(b.CreateVpc(ctx, &forge.VpcCreationRequest{}))
	if p := ok(b.spxPartition(uid(1), nil, nil)); p.Vni != 100 {
		t.Errorf("VNI %d, want the first", p.Vni)
	}
	b.refuses(failed(b.spxPartition(uid(2), nil, number(101))), codes.FailedPrecondition, "VNI")
	if p := ok(b.spxPartition(uid(2), nil, number(200))); p.Vni != 200 {
		t.Errorf("VNI %d, want the one asked for", p.Vni)
	}
	ok(b.spxPartition(uid(3), nil, nil))
	b.refusals([]refusal{
		{"auto range empty", failed(b.spxPartition(uid(4), nil, nil)), codes.ResourceExhausted, "dpa-vni"},
		{"requestable range empty", failed(b.spxPartition(uid(4), nil, number(200))), codes.ResourceExhausted, "dpa-vni"},
	})
}

func TestSpxPartitionDeletion(t *testing.T) {
	b := start(t, Options{Rules: Rules{AutoSPXVNIs: Range{100, 101}}})
	ok(b.spxPartition(uid(1), named("east"), nil))
	b.refusals([]refusal{
		{"unknown", b.endSpxPartition(uid(9)), codes.Internal, ""},
		{"without an id", failed(b.DeleteSpxPartition(ctx, &forge.SpxPartitionDeletionRequest{})), codes.InvalidArgument, "id"},
		{"delete", b.endSpxPartition(uid(1)), codes.OK, ""},
		{"same id again", failed(b.spxPartition(uid(1), nil, nil)), codes.Internal, "duplicate key"},
	})
	if b.spxPartitions(&forge.SpxPartitionSearchFilter{}) != 0 || strings.Contains(string(b.world.Dump()), uid(1)) {
		t.Error("the deleted partition is listed")
	}
	r := ok(b.FindSpxPartitionsByIds(ctx, &forge.SpxPartitionsByIdsRequest{SpxPartitionIds: []*forge.SpxPartitionId{spxID(uid(1))}}))
	if len(r.SpxPartitions) != 1 {
		t.Error("by its id the deleted partition is not found, as the real service finds it")
	}

	// The number is given out again, and a second delete takes it away from its new holder.
	if p := ok(b.spxPartition(uid(2), nil, nil)); p.Vni != 100 {
		t.Errorf("VNI %d, want the one that was freed", p.Vni)
	}
	if err := b.endSpxPartition(uid(1)); err != nil {
		t.Errorf("a second delete: %v", err)
	}
	if p := ok(b.spxPartition(uid(3), nil, nil)); p.Vni != 100 {
		t.Errorf("VNI %d, want the one that was freed twice", p.Vni)
	}
	if b.spxPartitions(&forge.SpxPartitionSearchFilter{}) != 2 {
		t.Error("the holders of the number are not both there")
	}
}
