package carbidesim

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"converge.dev/converge/providers/carbide/forge"
)

// tenant is keyed by its organization id. No call deletes one.
type tenant struct {
	Name    string  `json:"name"`
	Profile *string `json:"profile,omitempty"`
	Version token   `json:"version"`
}

// CreateTenant creates a tenant. Only the database notices an invalid organization id.
func (s *site) CreateTenant(_ context.Context, r *forge.CreateTenantRequest) (*forge.CreateTenantResponse, error) {
	m, err := tenantMetadata(r.Metadata)
	if err != nil {
		return nil, err
	}
	profile := r.RoutingProfileType
	if err := s.checkProfile(profile); err != nil {
		return nil, err
	}
	if !validOrganization(r.OrganizationId) {
		return nil, violation("tenants_organization_id_check")
	}
	if s.tenants.get(r.OrganizationId) != nil {
		return nil, duplicate("tenants_pkey")
	}
	if profile == nil && len(s.rules.RoutingProfiles) > 0 {
		profile = &s.rules.RoutingProfiles[0].Name
	}
	t := &tenant{Name: m.Name, Profile: profile, Version: firstToken(s.now)}
	s.tenants.put(r.OrganizationId, t)
	return &forge.CreateTenantResponse{Tenant: t.wire(r.OrganizationId)}, nil
}

// FindTenant returns an empty response when there is no such tenant.
func (s *site) FindTenant(_ context.Context, r *forge.FindTenantRequest) (*forge.FindTenantResponse, error) {
	out := &forge.FindTenantResponse{}
	if t := s.tenants.get(r.TenantOrganizationId); t != nil {
		out.Tenant = t.wire(r.TenantOrganizationId)
	}
	return out, nil
}

// UpdateTenant replaces name and routing profile; an absent profile is cleared.
func (s *site) UpdateTenant(_ context.Context, r *forge.UpdateTenantRequest) (*forge.UpdateTenantResponse, error) {
	m, err := tenantMetadata(r.Metadata)
	if err != nil {
		return nil, err
	}
	have := s.tenants.get(r.OrganizationId)
	if have == nil {
		return nil, notFound("tenant", r.OrganizationId)
	}
	if err := expect("tenant", have.Version, r.IfVersionMatch, codes.Internal); err != nil {
		return nil, err
	}
	if err := s.checkProfile(r.RoutingProfileType); err != nil {
		return nil, err
	}
	if !same(have.Profile, r.RoutingProfileType) && len(s.vpcsByOrg.of(r.OrganizationId)) > 0 {
		return nil, precondition("the routing profile of tenant %s cannot change while it has VPCs", r.OrganizationId)
	}
	t := &tenant{Name: m.Name, Profile: r.RoutingProfileType, Version: have.Version.next(s.now)}
	s.tenants.put(r.OrganizationId, t)
	return &forge.UpdateTenantResponse{Tenant: t.wire(r.OrganizationId)}, nil
}

// FindTenantOrganizationIds filters by exact name.
func (s *site) FindTenantOrganizationIds(_ context.Context, r *forge.TenantSearchFilter) (*forge.TenantOrganizationIdList, error) {
	pass := func(t *tenant) bool { return is(r.TenantOrganizationName, t.Name) }
	return &forge.TenantOrganizationIdList{
		TenantOrganizationIds: where(s.tenants, pass, func(id string) string { return id }),
	}, nil
}

// FindTenantsByOrganizationIds returns the tenants that exist.
func (s *site) FindTenantsByOrganizationIds(_ context.Context, r *forge.TenantByOrganizationIdsRequest) (*forge.TenantList, error) {
	if err := s.page(len(r.OrganizationIds)); err != nil {
		return nil, err
	}
	return &forge.TenantList{
		Tenants: each(s.tenants, r.OrganizationIds, func(id string, t *tenant) *forge.Tenant { return t.wire(id) }),
	}, nil
}

func (t *tenant) wire(id string) *forge.Tenant {
	return &forge.Tenant{
		OrganizationId:     id,
		Metadata:           &forge.Metadata{Name: t.Name},
		Version:            t.Version.String(),
		RoutingProfileType: t.Profile,
	}
}

// tenantMetadata accepts only a name.
func tenantMetadata(in *forge.Metadata) (metadata, error) {
	m, err := requiredMetadata(in)
	if err == nil && (m.Description != "" || len(m.Labels) > 0) {
		err = invalid("a tenant has neither description nor labels")
	}
	return m, err
}

func (s *site) checkProfile(name *string) error {
	if name != nil && s.profile(*name) == nil {
		return status.Errorf(codes.NotFound, "RoutingProfile not found: %s", *name)
	}
	return nil
}

// profile returns a configured routing profile, or nil.
func (s *site) profile(name string) *RoutingProfile {
	i := slices.IndexFunc(s.rules.RoutingProfiles, func(p RoutingProfile) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	return &s.rules.RoutingProfiles[i]
}

func same[T comparable](a, b *T) bool {
	return a == b || a != nil && b != nil && *a == *b
}
