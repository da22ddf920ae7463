package carbidesim

import (
	"context"
	"math"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers/carbide/forge"
)

// osImage is an image that instances may boot. Its token is stored, and returned, in plain text.
type osImage struct {
	kept[*forge.OsImage] // as it reads back
}

func (s *site) keepImage(i *forge.OsImage) *forge.OsImage {
	s.osImages.put(i.Attributes.Id.Value, &osImage{keep(i)})
	return i
}

// CreateOsImage creates an image under an id of the client's choice. It is ready at once.
func (s *site) CreateOsImage(_ context.Context, r *forge.OsImageAttributes) (*forge.OsImage, error) {
	a, err := readImage(r)
	if err != nil {
		return nil, err
	}
	if a.SourceUrl == "" || a.Digest == "" {
		return nil, invalid("os_image url or digest is empty")
	}
	if err := fitsImage(a); err != nil {
		return nil, err
	}
	if s.osImages.get(a.Id.Value) != nil {
		return nil, duplicate("os_images_pkey")
	}
	a.CreateVolume = false // there is no column for it
	if a.GetCapacity() == 0 {
		a.Capacity = nil
	}
	return s.keepImage(&forge.OsImage{Attributes: a, Status: forge.OsImageStatus_ImageReady, CreatedAt: proto.String(s.stamp())}), nil
}

// UpdateOsImage replaces the attributes. Those that cannot change must be as stored, which is not always how they were
// sent.
func (s *site) UpdateOsImage(_ context.Context, r *forge.OsImageAttributes) (*forge.OsImage, error) {
	a, err := readImage(r)
	if err != nil {
		return nil, err
	}
	have, err := s.findImage(a.Id.Value)
	if err != nil {
		return nil, err
	}
	old := have.Attributes
	if a.SourceUrl != old.SourceUrl || a.Digest != old.Digest || a.TenantOrganizationId != old.TenantOrganizationId ||
		a.CreateVolume != old.CreateVolume || !same(a.RootfsId, old.RootfsId) || !same(a.RootfsLabel, old.RootfsLabel) ||
		!same(a.Capacity, old.Capacity) {
		return nil, invalid("os_image update read-only attributes changed")
	}
	if err := fitsImage(a); err != nil {
		return nil, err
	}
	i := proto.CloneOf(have)
	i.Attributes, i.ModifiedAt = a, proto.String(s.stamp())
	return s.keepImage(i), nil
}

// DeleteOsImage deletes permanently, and does not check whether an instance boots the image.
func (s *site) DeleteOsImage(_ context.Context, r *forge.DeleteOsImageRequest) (*forge.DeleteOsImageResponse, error) {
	id, err := imageID(r.Id)
	if err != nil {
		return nil, err
	}
	if !validOrganization(r.TenantOrganizationId) {
		return nil, invalid("invalid organization id %q", r.TenantOrganizationId)
	}
	have, err := s.findImage(id)
	switch {
	case err != nil:
		return nil, err
	case have.Attributes.TenantOrganizationId != r.TenantOrganizationId:
		return nil, invalid("os image tenant mismatch")
	case have.Status == forge.OsImageStatus_ImageInProgress:
		return nil, precondition("os image busy")
	}
	s.osImages.drop(id)
	return &forge.DeleteOsImageResponse{}, nil
}

// GetOsImage returns one image.
func (s *site) GetOsImage(_ context.Context, r *forge.UUID) (*forge.OsImage, error) {
	id, err := imageID(r)
	if err != nil {
		return nil, err
	}
	return s.findImage(id)
}

// ListOsImage returns all images, or those of a tenant.
func (s *site) ListOsImage(_ context.Context, r *forge.ListOsImageRequest) (*forge.ListOsImageResponse, error) {
	if r.TenantOrganizationId != nil && !validOrganization(*r.TenantOrganizationId) {
		return nil, invalid("invalid organization id %q", *r.TenantOrganizationId)
	}
	pass := func(i *osImage) bool { return is(r.TenantOrganizationId, i.message.Attributes.TenantOrganizationId) }
	return &forge.ListOsImageResponse{
		Images: where(s.osImages, pass, func(id string) *forge.OsImage { return s.osImages.get(id).message }),
	}, nil
}

// findImage fails as the database does when it has no such row.
func (s *site) findImage(id string) (*forge.OsImage, error) {
	if i := s.osImages.get(id); i != nil {
		return i.message, nil
	}
	return nil, internal("Database Error: no rows returned by a query that expected to return at least one row")
}

// imageID reads an id that the service's handlers check, and not its decoder.
func imageID(id *forge.UUID) (string, error) {
	if id == nil {
		return "", invalid("os image id missing")
	}
	u, err := uuid.Parse(id.Value)
	if err != nil {
		return "", invalid("invalid UUID %q", id.Value)
	}
	return u.String(), nil
}

// readImage checks what the service itself checks.
func readImage(r *forge.OsImageAttributes) (*forge.OsImageAttributes, error) {
	id, err := imageID(r.Id)
	if err != nil {
		return nil, err
	}
	if !validOrganization(r.TenantOrganizationId) {
		return nil, invalid("invalid organization id %q", r.TenantOrganizationId)
	}
	a := proto.CloneOf(r)
	a.Id = &forge.UUID{Value: id}
	return a, nil
}

// fitsImage checks what the database checks.
func fitsImage(a *forge.OsImageAttributes) error {
	for _, text := range []string{a.GetName(), a.GetBootDisk()} {
		if err := tooLong(text, 64); err != nil {
			return err
		}
	}
	if a.GetCapacity() > math.MaxInt64 {
		return internal("Database Error: value out of range")
	}
	return nil
}
