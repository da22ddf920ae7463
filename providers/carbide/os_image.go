package carbide

import (
	"cmp"
	"context"
	"math"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/providers/carbide/spec"
)

var osImageTraits = providers.Traits{
	Create: providers.Conditional, Update: providers.Blind, Delete: providers.Blind,
	EffectWithin: late, DeleteUnchecked: true,
	UndoCreate: providers.Exact, UndoUpdate: providers.Exact, UndoDelete: providers.Exact,
}

var imageStates = enum[forge.OsImageStatus]{
	{"uninitialized", forge.OsImageStatus_ImageUninitialized},
	{"in_progress", forge.OsImageStatus_ImageInProgress},
	{"failed", forge.OsImageStatus_ImageFailed},
	{"ready", forge.OsImageStatus_ImageReady},
	{"disabled", forge.OsImageStatus_ImageDisabled},
}

// osImageRefusals are codes with a special meaning.
var osImageRefusals = refusals{
	opDelete: {
		codes.FailedPrecondition: providers.Busy, // it is being copied
	},
}

// The service can return a single image, but fails in the same way on a missing one as on anything else. So the list
// decides which images exist.
type osImages struct {
	*service
	changeableEarly
	uuidKind
}

func (k osImages) all(ctx context.Context) ([]*forge.OsImage, error) {
	r, err := k.ListOsImage(ctx, &forge.ListOsImageRequest{})
	return r.GetImages(), err
}

// thing leaves out create_volume: the service stores nothing for it, and always reports the same value.
func (osImages) thing(o *forge.OsImage) providers.Thing {
	a := o.GetAttributes()
	token := a.GetAuthToken() // reported in clear; the empty text means that there is none
	s := spec.OSImage{
		Tenant: a.GetTenantOrganizationId(), SourceURL: a.GetSourceUrl(), Digest: a.GetDigest(), AuthToken: &token,
		Description: unlessZero(a.GetDescription()), AuthType: unlessZero(a.GetAuthType()), RootfsID: unlessZero(a.GetRootfsId()),
		RootfsLabel: unlessZero(a.GetRootfsLabel()), BootDisk: unlessZero(a.GetBootDisk()),
		Capacity: unlessZero(int64(min(a.GetCapacity(), math.MaxInt64))), BootfsID: unlessZero(a.GetBootfsId()), EfifsID: unlessZero(a.GetEfifsId()),
	}
	word := imageStates.word(o.GetStatus())
	t := providers.Thing{
		ID: a.GetId().GetValue(), Name: cmp.Or(a.GetName(), a.GetId().GetValue()),
		Spec: s.Object(), Status: (&spec.OSImageStatus{State: &word}).Object(), Phase: providers.Ready,
	}
	switch o.GetStatus() {
	case forge.OsImageStatus_ImageFailed:
		t.Phase = providers.Failed
	case forge.OsImageStatus_ImageUninitialized, forge.OsImageStatus_ImageInProgress:
		t.Phase = providers.Pending
	}
	if t.Phase != providers.Ready {
		t.Detail = strings.TrimSuffix(word+": "+o.GetStatusMessage(), ": ")
	}
	return t
}

func (k osImages) create(ctx context.Context, c *call[spec.OSImage]) error {
	a := &forge.OsImageAttributes{
		Id:                   &forge.UUID{Value: c.ID},
		TenantOrganizationId: c.want.Tenant,
		SourceUrl:            c.want.SourceURL,
		Digest:               c.want.Digest,
		RootfsId:             c.want.RootfsID,
		RootfsLabel:          c.want.RootfsLabel,
	}
	if n := value(c.want.Capacity); n > 0 {
		a.Capacity = proto.Uint64(uint64(n))
	}
	writeImage(c, a)
	made, err := k.CreateOsImage(ctx, a)
	c.Chose(made.GetAttributes().GetId().GetValue())
	return err
}

// update sends back immutable fields as the service stores them: it refuses anything else, even the values of the create.
func (k osImages) update(ctx context.Context, c *call[spec.OSImage], now *forge.OsImage) error {
	a := proto.CloneOf(now.GetAttributes())
	writeImage(c, a)
	if proto.Equal(a, now.GetAttributes()) {
		return nil
	}
	_, err := k.UpdateOsImage(ctx, a)
	return err
}

// delete must name the tenant of the image, and looks it up when the caller did not observe it.
func (k osImages) delete(ctx context.Context, c *call[spec.OSImage]) error {
	tenant := c.have.Tenant
	if tenant == "" {
		all, err := k.all(ctx)
		if err != nil {
			return unsentError{err}
		}
		for _, o := range all {
			if o.GetAttributes().GetId().GetValue() == c.ID {
				tenant = o.GetAttributes().GetTenantOrganizationId()
			}
		}
		if tenant == "" {
			return nil
		}
	}
	_, err := k.DeleteOsImage(ctx, &forge.DeleteOsImageRequest{Id: &forge.UUID{Value: c.ID}, TenantOrganizationId: tenant})
	return err
}

// writeImage changes what may change.
func writeImage(c *call[spec.OSImage], a *forge.OsImageAttributes) {
	a.Name = proto.String(c.Called())
	a.Description = c.want.Description
	a.AuthType, a.AuthToken = c.want.AuthType, unlessZero(value(c.want.AuthToken))
	a.BootDisk, a.BootfsId, a.EfifsId = c.want.BootDisk, c.want.BootfsID, c.want.EfifsID
}
