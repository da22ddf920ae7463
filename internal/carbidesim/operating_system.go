package carbidesim

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers/carbide/forge"
)

// operatingSystem is an entry of the site's library: an iPXE script, or a template with its values.
type operatingSystem struct {
	kept[*forge.OperatingSystem] // as it reads back
}

func (s *site) keepOS(o *forge.OperatingSystem) *forge.OperatingSystem {
	s.operatingSystems.put(o.Id.Value, &operatingSystem{keep(o)})
	return o
}

// CreateOperatingSystem creates an entry of one variant, which is permanent. A script takes precedence over a template.
func (s *site) CreateOperatingSystem(_ context.Context, r *forge.CreateOperatingSystemRequest) (*forge.OperatingSystem, error) {
	o := &forge.OperatingSystem{
		Name: r.Name, Description: r.Description, TenantOrganizationId: r.TenantOrganizationId,
		Status: forge.TenantState_READY, IsActive: r.IsActive, AllowOverride: r.AllowOverride,
		PhoneHomeEnabled: r.PhoneHomeEnabled, UserData: r.UserData,
		Created: s.stamp(), Updated: s.stamp(),
	}
	switch {
	case r.IpxeScript != nil:
		o.Type, o.IpxeScript = forge.OperatingSystemType_OS_TYPE_IPXE, r.IpxeScript
	case r.IpxeTemplateId != nil:
		o.Type, o.IpxeTemplateId = forge.OperatingSystemType_OS_TYPE_TEMPLATED_IPXE, r.IpxeTemplateId
		o.IpxeTemplateParameters, o.IpxeTemplateArtifacts = r.IpxeTemplateParameters, uncached(r.IpxeTemplateArtifacts)
		if err := checkDefinition(o); err != nil {
			return nil, err
		}
		o.IpxeTemplateDefinitionHash, o.Status = proto.String(definitionHash(o)), readiness(o.IpxeTemplateArtifacts)
	default:
		return nil, invalid("exactly one OS variant must be specified: ipxe_script or ipxe_template_id")
	}
	if o.Name == "" {
		return nil, missing("name")
	}
	if o.TenantOrganizationId == "" && !s.later { // from v2.0 on an entry need not have a tenant
		return nil, missing("tenant_organization_id")
	}
	o.Id = &forge.OperatingSystemId{Value: s.chosen(r.Id.GetValue())}
	if s.operatingSystems.get(o.Id.Value) != nil || s.isBurned("operating system", o.Id.Value) {
		return nil, duplicate("operating_systems_pkey")
	}
	return s.keepOS(o), nil
}

// UpdateOperatingSystem changes what the request has; a list that is present and empty is cleared. Artifacts in the request,
// and all of them when the definition changes, lose the site's copies.
func (s *site) UpdateOperatingSystem(_ context.Context, r *forge.UpdateOperatingSystemRequest) (*forge.OperatingSystem, error) {
	have, err := s.findOS(r.Id)
	if err != nil {
		return nil, err
	}
	switch {
	case have.IpxeScript != nil && r.IpxeTemplateId != nil:
		return nil, invalid("cannot switch from ipxe_script variant to ipxe_template_id variant")
	case have.IpxeTemplateId != nil && r.IpxeScript != nil:
		return nil, invalid("cannot switch from ipxe_template_id variant to ipxe_script variant")
	}
	o := proto.CloneOf(have)
	o.Updated = s.stamp()
	o.Description, o.UserData = cmp.Or(r.Description, o.Description), cmp.Or(r.UserData, o.UserData)
	o.IpxeScript, o.IpxeTemplateId = cmp.Or(r.IpxeScript, o.IpxeScript), cmp.Or(r.IpxeTemplateId, o.IpxeTemplateId)
	change(&o.Name, r.Name)
	change(&o.IsActive, r.IsActive)
	change(&o.AllowOverride, r.AllowOverride)
	change(&o.PhoneHomeEnabled, r.PhoneHomeEnabled)
	if r.IpxeTemplateParameters != nil {
		o.IpxeTemplateParameters = r.IpxeTemplateParameters.Items
	}
	if r.IpxeTemplateArtifacts != nil {
		o.IpxeTemplateArtifacts = uncached(r.IpxeTemplateArtifacts.Items)
	}
	switch {
	case r.IpxeTemplateDefinitionHash != nil: // trusted as it is
		o.IpxeTemplateDefinitionHash = r.IpxeTemplateDefinitionHash
	case o.IpxeTemplateId != nil:
		if err := checkDefinition(o); err != nil {
			return nil, err
		}
		o.IpxeTemplateDefinitionHash = proto.String(definitionHash(o))
	}
	another := o.GetIpxeTemplateDefinitionHash() != have.GetIpxeTemplateDefinitionHash()
	if another {
		o.IpxeTemplateArtifacts = uncached(o.IpxeTemplateArtifacts)
	}
	if another || r.IpxeTemplateArtifacts != nil {
		o.Status = readiness(o.IpxeTemplateArtifacts)
	}
	return s.keepOS(o), nil
}

// change takes over a value that is present.
func change[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}

// DeleteOperatingSystem deletes softly. It does not check whether an instance boots the entry.
func (s *site) DeleteOperatingSystem(_ context.Context, r *forge.DeleteOperatingSystemRequest) (*forge.DeleteOperatingSystemResponse, error) {
	if _, err := s.findOS(r.Id); err != nil {
		return nil, err
	}
	s.operatingSystems.drop(r.Id.Value)
	s.burn("operating system", r.Id.Value)
	return &forge.DeleteOperatingSystemResponse{}, nil
}

func (s *site) findOS(id *forge.OperatingSystemId) (*forge.OperatingSystem, error) {
	if id == nil {
		return nil, missing("id")
	}
	if o := s.operatingSystems.get(id.Value); o != nil {
		return o.message, nil
	}
	return nil, status.Errorf(codes.NotFound, "operating system %s not found", id.Value)
}

// FindOperatingSystemIds filters by tenant; the ids are ordered by name.
func (s *site) FindOperatingSystemIds(_ context.Context, r *forge.OperatingSystemSearchFilter) (*forge.OperatingSystemIdList, error) {
	pass := func(o *operatingSystem) bool { return is(r.TenantOrganizationId, o.message.TenantOrganizationId) }
	ids := where(s.operatingSystems, pass, func(id string) *forge.OperatingSystemId { return &forge.OperatingSystemId{Value: id} })
	name := func(id *forge.OperatingSystemId) string { return s.operatingSystems.get(id.Value).message.Name }
	slices.SortFunc(ids, func(a, b *forge.OperatingSystemId) int { return strings.Compare(name(a), name(b)) })
	return &forge.OperatingSystemIdList{Ids: ids}, nil
}

// FindOperatingSystemsByIds takes any number of ids.
func (s *site) FindOperatingSystemsByIds(_ context.Context, r *forge.OperatingSystemsByIdsRequest) (*forge.OperatingSystemList, error) {
	return &forge.OperatingSystemList{
		OperatingSystems: each(s.operatingSystems, texts(r.Ids), func(_ string, o *operatingSystem) *forge.OperatingSystem { return o.message }),
	}, nil
}

// GetOperatingSystemCachableIpxeTemplateArtifacts returns what the site may want to copy.
func (s *site) GetOperatingSystemCachableIpxeTemplateArtifacts(_ context.Context, r *forge.GetOperatingSystemCachableIpxeTemplateArtifactsRequest) (*forge.IpxeTemplateArtifactList, error) {
	o, err := s.findOS(r.Id)
	if err != nil {
		return nil, err
	}
	return &forge.IpxeTemplateArtifactList{Artifacts: o.IpxeTemplateArtifacts}, nil
}

// UpdateOperatingSystemCachableIpxeTemplateArtifacts sets where the copies of artifacts are, and is the only way to set it.
// Each update applies to the first artifact of its name that no other update has taken.
func (s *site) UpdateOperatingSystemCachableIpxeTemplateArtifacts(_ context.Context, r *forge.UpdateOperatingSystemIpxeTemplateArtifactRequest) (*forge.IpxeTemplateArtifactList, error) {
	have, err := s.findOS(r.Id)
	if err != nil {
		return nil, err
	}
	o := proto.CloneOf(have)
	taken := make([]bool, len(o.IpxeTemplateArtifacts))
	for _, u := range r.Updates {
		i := 0
		for i < len(taken) && (taken[i] || !strings.EqualFold(o.IpxeTemplateArtifacts[i].Name, u.Name)) {
			i++
		}
		if i == len(taken) {
			return nil, status.Errorf(codes.NotFound, "artifact '%s' not found (or already matched) in operating system %s", u.Name, r.Id.Value)
		}
		o.IpxeTemplateArtifacts[i].CachedUrl, taken[i] = u.CachedUrl, true
	}
	o.Status, o.Updated = readiness(o.IpxeTemplateArtifacts), s.stamp()
	return &forge.IpxeTemplateArtifactList{Artifacts: s.keepOS(o).IpxeTemplateArtifacts}, nil
}

// uncached copies artifacts without the fields about the site's copies of them.
func uncached(artifacts []*forge.IpxeTemplateArtifact) []*forge.IpxeTemplateArtifact {
	out := make([]*forge.IpxeTemplateArtifact, len(artifacts))
	for i, a := range artifacts {
		out[i] = proto.CloneOf(a)
		out[i].CachedUrl = nil
	}
	return out
}

// readiness returns the state of an entry with these artifacts: those that must come from a copy need one.
func readiness(artifacts []*forge.IpxeTemplateArtifact) forge.TenantState {
	for _, a := range artifacts {
		if a.CacheStrategy == forge.IpxeTemplateArtifactCacheStrategy_CACHED_ONLY && a.GetCachedUrl() == "" {
			return forge.TenantState_PROVISIONING
		}
	}
	return forge.TenantState_READY
}

// stamp returns the time as the service writes it into texts.
func (s *site) stamp() string { return s.now.UTC().Format(time.RFC3339Nano) }
