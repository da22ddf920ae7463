package carbidesim

import (
	"math"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers/carbide/forge"
)

func imageUUID(id string) *forge.UUID { return &forge.UUID{Value: id} }

func image(id string) *forge.OsImageAttributes {
	return &forge.OsImageAttributes{
		Id: imageUUID(id), SourceUrl: "https://images.example/a.qcow2", Digest: "sha256:a", TenantOrganizationId: "acme",
		Name: text("a"), Description: text("first"), AuthType: text("bearer"), AuthToken: text("t0ken"), RootfsId: text("r"),
		Capacity: proto.Uint64(1 << 30), CreateVolume: true,
	}
}

func TestOsImage(t *testing.T) {
	b := start(t, Options{Rules: Rules{OSImages: []string{uid(9)}}})
	made := ok(b.CreateOsImage(ctx, image(strings.ToUpper(uid(0xa)))))
	if made.Status != forge.OsImageStatus_ImageReady || made.Attributes.CreateVolume || made.Attributes.GetAuthToken() != "t0ken" || made.Attributes.Id.Value != uid(0xa) {
		t.Errorf("made %v", made)
	}
	none := image(uid(2))
	none.Capacity = proto.Uint64(0)
	if got := ok(b.CreateOsImage(ctx, none)); got.Attributes.Capacity != nil {
		t.Errorf("capacity 0 reads back as %d", got.Attributes.GetCapacity())
	}
	all := ok(b.ListOsImage(ctx, &forge.ListOsImageRequest{})).Images
	mine := ok(b.ListOsImage(ctx, &forge.ListOsImageRequest{TenantOrganizationId: text("acme")})).Images
	if len(all) != 3 || len(mine) != 2 {
		t.Errorf("%d images, %d of the tenant", len(all), len(mine))
	}
	a := proto.CloneOf(made.Attributes)
	a.Name, a.Description, a.AuthType, a.AuthToken, a.BootDisk, a.BootfsId, a.EfifsId = text("b"), nil, nil, nil, text("/dev/sda"), text("x"), text("y")
	got := ok(b.UpdateOsImage(ctx, a))
	if !proto.Equal(got.Attributes, a) || got.ModifiedAt == nil || !proto.Equal(got, ok(b.GetOsImage(ctx, imageUUID(uid(0xa))))) {
		t.Errorf("changed to %v", got)
	}
	ok(b.DeleteOsImage(ctx, &forge.DeleteOsImageRequest{Id: imageUUID(uid(0xa)), TenantOrganizationId: "acme"}))
	ok(b.CreateOsImage(ctx, image(uid(0xa)))) // deleted permanently
}

func TestOsImageRefusals(t *testing.T) {
	b := start(t, Options{})
	made := ok(b.CreateOsImage(ctx, image(uid(1)))).Attributes
	create := func(change func(*forge.OsImageAttributes)) error {
		r := image(uid(2))
		change(r)
		return failed(b.CreateOsImage(ctx, r))
	}
	update := func(change func(*forge.OsImageAttributes)) error {
		r := proto.CloneOf(made)
		change(r)
		return failed(b.UpdateOsImage(ctx, r))
	}
	remove := func(id, tenant string) error {
		return failed(b.DeleteOsImage(ctx, &forge.DeleteOsImageRequest{Id: imageUUID(id), TenantOrganizationId: tenant}))
	}
	b.refusals([]refusal{
		{"no id", create(func(r *forge.OsImageAttributes) { r.Id = nil }), codes.InvalidArgument, "id"},
		{"empty id", create(func(r *forge.OsImageAttributes) { r.Id.Value = "" }), codes.InvalidArgument, "UUID"},
		{"malformed id", create(func(r *forge.OsImageAttributes) { r.Id.Value = "x" }), codes.InvalidArgument, "UUID"},
		{"taken id", create(func(r *forge.OsImageAttributes) { r.Id.Value = uid(1) }), codes.Internal, "duplicate key"},
		{"no url", create(func(r *forge.OsImageAttributes) { r.SourceUrl = "" }), codes.InvalidArgument, "url"},
		{"no digest", create(func(r *forge.OsImageAttributes) { r.Digest = "" }), codes.InvalidArgument, "digest"},
		{"bad tenant", create(func(r *forge.OsImageAttributes) { r.TenantOrganizationId = "a b" }), codes.InvalidArgument, "organization"},
		{"long name", create(func(r *forge.OsImageAttributes) { r.Name = text(strings.Repeat("n", 65)) }), codes.Internal, "value too long"},
		{"much capacity", create(func(r *forge.OsImageAttributes) { r.Capacity = proto.Uint64(math.MaxUint64) }), codes.Internal, "out of range"},
		{"volume", update(func(r *forge.OsImageAttributes) { r.CreateVolume = true }), codes.InvalidArgument, "read-only"},
		{"url", update(func(r *forge.OsImageAttributes) { r.SourceUrl = "https://b" }), codes.InvalidArgument, "read-only"},
		{"digest", update(func(r *forge.OsImageAttributes) { r.Digest = "b" }), codes.InvalidArgument, "read-only"},
		{"tenant", update(func(r *forge.OsImageAttributes) { r.TenantOrganizationId = "other" }), codes.InvalidArgument, "read-only"},
		{"rootfs", update(func(r *forge.OsImageAttributes) { r.RootfsId = nil }), codes.InvalidArgument, "read-only"},
		{"rootfs label", update(func(r *forge.OsImageAttributes) { r.RootfsLabel = text("l") }), codes.InvalidArgument, "read-only"},
		{"capacity", update(func(r *forge.OsImageAttributes) { r.Capacity = nil }), codes.InvalidArgument, "read-only"},
		{"unknown update", update(func(r *forge.OsImageAttributes) { r.Id.Value = uid(7) }), codes.Internal, "no rows"},
		{"unknown get", failed(b.GetOsImage(ctx, imageUUID(uid(7)))), codes.Internal, "no rows"},
		{"unknown delete", remove(uid(7), "acme"), codes.Internal, "no rows"},
		{"delete of another tenant's", remove(uid(1), "other"), codes.InvalidArgument, "mismatch"},
		{"delete without tenant", remove(uid(1), ""), codes.InvalidArgument, "organization"},
		{"list of a bad tenant", failed(b.ListOsImage(ctx, &forge.ListOsImageRequest{TenantOrganizationId: text("")})), codes.InvalidArgument, "organization"},
	})
	if err := b.world.SetImageStatus(uid(1), forge.OsImageStatus_ImageInProgress, "copying"); err != nil {
		t.Fatal(err)
	}
	if got := ok(b.GetOsImage(ctx, imageUUID(uid(1)))); got.GetStatusMessage() != "copying" {
		t.Errorf("message %q", got.GetStatusMessage())
	}
	b.refuses(remove(uid(1), "acme"), codes.FailedPrecondition, "busy")
	if b.world.SetImageStatus(uid(7), forge.OsImageStatus_ImageFailed, "") == nil {
		t.Error("an image that is not there has a status")
	}
}
