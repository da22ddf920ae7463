package carbide

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/providers/carbide/spec"
)

// late bounds how long after our side gave up a call may still have its effect: the service ends a call when its
// client is gone, and its database transaction soon after.
const late = time.Minute

// The service has no call to delete a tenant. An empty one is inert, so that undoing its creation means forgetting it.
var tenantTraits = providers.Traits{
	ID:     "{name}",
	Create: providers.Conditional, Update: providers.Versioned, Delete: providers.Never,
	EffectWithin: late,
	UndoCreate:   providers.Exact, UndoUpdate: providers.Exact,
}

// tenantRefusals are codes with a special meaning.
var tenantRefusals = refusals{
	opUpdate: {
		codes.FailedPrecondition: providers.Busy, // the routing profile is fixed while there are VPCs
	},
}

type tenants struct{ *service }

func (tenants) known(id string) bool { return id != "" }

func (k tenants) list(ctx context.Context) ([]string, error) {
	r, err := k.FindTenantOrganizationIds(ctx, &forge.TenantSearchFilter{})
	return r.GetTenantOrganizationIds(), err
}

func (k tenants) get(ctx context.Context, ids []string) ([]*forge.Tenant, error) {
	r, err := k.FindTenantsByOrganizationIds(ctx, &forge.TenantByOrganizationIdsRequest{OrganizationIds: ids})
	return r.GetTenants(), err
}

func (tenants) thing(o *forge.Tenant) providers.Thing {
	s := spec.Tenant{DisplayName: unlessZero(o.GetMetadata().GetName()), RoutingProfile: unlessZero(o.GetRoutingProfileType())}
	return providers.Thing{
		ID: o.GetOrganizationId(), Name: o.GetOrganizationId(), Version: o.GetVersion(), Spec: s.Object(), Phase: providers.Ready,
	}
}

func (k tenants) create(ctx context.Context, c *call[spec.Tenant]) error {
	_, err := k.CreateTenant(ctx, &forge.CreateTenantRequest{
		OrganizationId:     c.ID,
		Metadata:           &forge.Metadata{Name: cmp.Or(value(c.want.DisplayName), c.ID)},
		RoutingProfileType: c.want.RoutingProfile,
	})
	return err
}

func (k tenants) update(ctx context.Context, c *call[spec.Tenant], now *forge.Tenant) error {
	metadata := &forge.Metadata{}
	if now.Metadata != nil {
		metadata = proto.CloneOf(now.Metadata)
	}
	metadata.Name = cmp.Or(value(c.want.DisplayName), c.ID)
	_, err := k.UpdateTenant(ctx, &forge.UpdateTenantRequest{
		OrganizationId:     c.ID,
		Metadata:           metadata,
		IfVersionMatch:     &now.Version,
		RoutingProfileType: c.want.RoutingProfile,
	})
	return err
}

func (tenants) delete(context.Context, *call[spec.Tenant]) error { return errNone }
