package carbidesim

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers/carbide/forge"
)

// extensionService is a pod that instances may run on their DPUs. What it runs is versioned, and instances pin a version;
// the newest comes first.
type extensionService struct {
	Organization string           `json:"organization"`
	Name         string           `json:"name"`
	Description  string           `json:"description,omitempty"`
	Counter      int32            `json:"counter"` // versions ever created; also the token
	Versions     []serviceVersion `json:"versions"`
	Created      time.Time        `json:"created"`
	Updated      time.Time        `json:"updated"`
}

type serviceVersion struct {
	Version       token                                          `json:"version"`
	Data          string                                         `json:"data"`
	Credential    *kept[*forge.DpuExtensionServiceCredential]    `json:"credential,omitempty"` // never returned to any client
	Observability *kept[*forge.DpuExtensionServiceObservability] `json:"observability,omitempty"`
	Created       time.Time                                      `json:"created"`
}

// serviceName returns the key under which a name is taken in an organization.
func serviceName(organization, name string) string {
	return organization + "/" + strings.ToLower(name)
}

// CreateDpuExtensionService creates a service with its first version.
func (s *site) CreateDpuExtensionService(_ context.Context, r *forge.CreateDpuExtensionServiceRequest) (*forge.DpuExtensionService, error) {
	id := ""
	if r.ServiceId != nil {
		var err error
		if id, err = serviceID(*r.ServiceId); err != nil {
			return nil, err
		}
	}
	if !validOrganization(r.TenantOrganizationId) {
		return nil, invalid("invalid organization id %q", r.TenantOrganizationId)
	}
	if r.ServiceName == "" {
		return nil, missing("service_name")
	}
	if err := checkServiceType(r.ServiceType); err != nil {
		return nil, err
	}
	v, err := s.serviceVersion(r.Data, r.Credential, r.Observability)
	if err != nil {
		return nil, err
	}
	service := &extensionService{
		Organization: r.TenantOrganizationId, Name: r.ServiceName, Description: r.GetDescription(),
		Created: s.now, Updated: s.now,
	}
	service.issue(v, s.now)
	if err := service.fits(); err != nil {
		return nil, err
	}
	id = s.chosen(id)
	if s.extensionServices.get(id) != nil || s.isBurned("extension service", id) {
		return nil, duplicate("extension_services_pkey")
	}
	if err := s.freeServiceName(service); err != nil {
		return nil, err
	}
	if s.tenants.get(r.TenantOrganizationId) == nil {
		return nil, violation("extension_services_tenant_organization_id_fkey")
	}
	s.extensionServices.put(id, service)
	return service.wire(id), nil
}

// UpdateDpuExtensionService changes name and description, which does not change the token, or creates another version from
// the request. A change of observability alone creates no version.
func (s *site) UpdateDpuExtensionService(_ context.Context, r *forge.UpdateDpuExtensionServiceRequest) (*forge.DpuExtensionService, error) {
	id, err := serviceID(r.ServiceId)
	if err != nil {
		return nil, err
	}
	if r.ServiceName != nil && *r.ServiceName == "" {
		return nil, invalid("service_name cannot be empty")
	}
	have := s.extensionServices.get(id)
	if have == nil {
		return nil, notFound("extension_service", id)
	}
	if r.IfVersionCtrMatch != nil && *r.IfVersionCtrMatch != have.Counter {
		return nil, precondition("An object of type ExtensionService was intended to be modified did not have the expected version %d", *r.IfVersionCtrMatch)
	}
	service := *have
	service.Name, service.Updated = cmp.Or(r.GetServiceName(), have.Name), s.now
	change(&service.Description, r.Description)
	if described := r.ServiceName != nil || r.Description != nil; !described || r.Data != "" || r.Credential != nil || r.Observability != nil {
		v, err := s.serviceVersion(r.Data, r.Credential, nil)
		if err != nil {
			return nil, err
		}
		if have.Versions[0].means(v) {
			return nil, invalid("No changes to data or credential from latest version")
		}
		if v, err = s.serviceVersion(r.Data, r.Credential, r.Observability); err != nil {
			return nil, err
		}
		service.issue(v, s.now)
	}
	if err := service.fits(); err != nil {
		return nil, err
	}
	if serviceName(service.Organization, service.Name) != serviceName(have.Organization, have.Name) {
		if err := s.freeServiceName(&service); err != nil {
			return nil, err
		}
	}
	s.extensionServices.put(id, &service)
	return service.wire(id), nil
}

// DeleteDpuExtensionService deletes versions softly, all when none is named, and with the last one the service. It ignores
// those that do not exist.
func (s *site) DeleteDpuExtensionService(_ context.Context, r *forge.DeleteDpuExtensionServiceRequest) (*forge.DeleteDpuExtensionServiceResponse, error) {
	id, err := serviceID(r.ServiceId)
	if err != nil {
		return nil, err
	}
	for _, v := range r.Versions {
		if _, err := parseToken(v); err != nil {
			return nil, invalid("%v", err)
		}
	}
	have := s.extensionServices.get(id)
	if have == nil {
		return nil, notFound("extension_service", id)
	}
	goes := func(v string) bool { return len(r.Versions) == 0 || slices.Contains(r.Versions, v) }
	for i := range s.instancesByService.of(id) {
		if goes(s.instances.get(i).serviceVersion(id)) && s.instances.get(i).State != forge.TenantState_TERMINATING {
			return nil, precondition("One or more extension service version is in use by instances; detach before deleting")
		}
	}
	service := *have
	service.Updated = s.now
	service.Versions = slices.DeleteFunc(slices.Clone(have.Versions), func(v serviceVersion) bool { return goes(v.Version.String()) })
	switch len(service.Versions) {
	case len(have.Versions):
	case 0:
		s.extensionServices.drop(id)
		s.burn("extension service", id)
		if !s.rules.FreeServiceNames {
			s.burn("extension service name", serviceName(have.Organization, have.Name))
		}
	default:
		s.extensionServices.put(id, &service)
	}
	return &forge.DeleteDpuExtensionServiceResponse{}, nil
}

// FindDpuExtensionServiceIds filters by type, name in any case, and tenant; the newest come first.
func (s *site) FindDpuExtensionServiceIds(_ context.Context, r *forge.DpuExtensionServiceSearchFilter) (*forge.DpuExtensionServiceIdList, error) {
	if r.TenantOrganizationId != nil && !validOrganization(*r.TenantOrganizationId) {
		return nil, invalid("invalid organization id %q", *r.TenantOrganizationId)
	}
	if err := checkServiceType(r.GetServiceType()); err != nil {
		return nil, err
	}
	pass := func(e *extensionService) bool {
		return is(r.TenantOrganizationId, e.Organization) && (r.Name == nil || strings.EqualFold(*r.Name, e.Name))
	}
	ids := where(s.extensionServices, pass, func(id string) string { return id })
	slices.SortFunc(ids, func(a, b string) int {
		return cmp.Or(s.extensionServices.get(b).Created.Compare(s.extensionServices.get(a).Created), strings.Compare(a, b))
	})
	return &forge.DpuExtensionServiceIdList{ServiceIds: ids}, nil
}

// FindDpuExtensionServicesByIds takes any number of ids.
func (s *site) FindDpuExtensionServicesByIds(_ context.Context, r *forge.DpuExtensionServicesByIdsRequest) (*forge.DpuExtensionServiceList, error) {
	ids := make([]string, len(r.ServiceIds))
	for i, text := range r.ServiceIds {
		id, err := serviceID(text)
		if err != nil {
			return nil, err
		}
		ids[i] = id
	}
	return &forge.DpuExtensionServiceList{
		Services: each(s.extensionServices, ids, func(id string, e *extensionService) *forge.DpuExtensionService { return e.wire(id) }),
	}, nil
}

// GetDpuExtensionServiceVersionsInfo returns versions, all when none is named; none for a service that does not exist.
func (s *site) GetDpuExtensionServiceVersionsInfo(_ context.Context, r *forge.GetDpuExtensionServiceVersionsInfoRequest) (*forge.DpuExtensionServiceVersionInfoList, error) {
	for _, v := range r.Versions {
		if _, err := parseToken(v); err != nil {
			return nil, invalid("%v", err)
		}
	}
	id, err := serviceID(r.ServiceId)
	if err != nil {
		return nil, err
	}
	out := &forge.DpuExtensionServiceVersionInfoList{}
	if have := s.extensionServices.get(id); have != nil {
		for _, v := range have.Versions {
			if len(r.Versions) == 0 || slices.Contains(r.Versions, v.Version.String()) {
				out.VersionInfos = append(out.VersionInfos, v.wire())
			}
		}
	}
	return out, nil
}

// FindInstancesByDpuExtensionService returns which instances have a service, or one version of it.
func (s *site) FindInstancesByDpuExtensionService(_ context.Context, r *forge.FindInstancesByDpuExtensionServiceRequest) (*forge.FindInstancesByDpuExtensionServiceResponse, error) {
	id, err := serviceID(r.ServiceId)
	if err != nil {
		return nil, err
	}
	if r.Version != nil {
		if _, err := parseToken(*r.Version); err != nil {
			return nil, invalid("%v", err)
		}
	}
	if s.extensionServices.get(id) == nil {
		return nil, notFound("extension_service", id)
	}
	out := &forge.FindInstancesByDpuExtensionServiceResponse{}
	for _, i := range sortedKeys(s.instancesByService.of(id)) {
		if v := s.instances.get(i).serviceVersion(id); is(r.Version, v) {
			out.Instances = append(out.Instances, &forge.InstanceDpuExtensionServiceInfo{InstanceId: i, ServiceId: id, Version: v})
		}
	}
	return out, nil
}

// services checks the services that an instance requests: each once, in a version that exists. The owner of the service
// does not matter.
func (s *site) services(in *forge.InstanceDpuExtensionServicesConfig) (*forge.InstanceDpuExtensionServicesConfig, error) {
	if len(in.GetServiceConfigs()) == 0 {
		return nil, nil
	}
	out := &forge.InstanceDpuExtensionServicesConfig{}
	seen := map[string]bool{}
	for _, c := range in.ServiceConfigs {
		id, err := serviceID(c.ServiceId)
		if err != nil {
			return nil, err
		}
		if _, err := parseToken(c.Version); err != nil {
			return nil, invalid("%v", err)
		}
		if seen[id] {
			return nil, invalid("extension service %s is given twice", id)
		}
		seen[id] = true
		have := s.extensionServices.get(id)
		if have == nil || !slices.ContainsFunc(have.Versions, func(v serviceVersion) bool { return v.Version.String() == c.Version }) {
			return nil, precondition("ExtensionService %s has no version %s", id, c.Version)
		}
		out.ServiceConfigs = append(out.ServiceConfigs, &forge.InstanceDpuExtensionServiceConfig{ServiceId: id, Version: c.Version})
	}
	return out, nil
}

// serviceIDs returns the services that an instance has.
func (i *instance) serviceIDs() []string {
	var ids []string
	for _, c := range i.config().GetDpuExtensionServices().GetServiceConfigs() {
		ids = append(ids, c.ServiceId)
	}
	return ids
}

// serviceVersion returns the version of a service that an instance has, or "".
func (i *instance) serviceVersion(id string) string {
	for _, c := range i.config().GetDpuExtensionServices().GetServiceConfigs() {
		if c.ServiceId == id {
			return c.Version
		}
	}
	return ""
}

func (s *site) freeServiceName(e *extensionService) error {
	key := serviceName(e.Organization, e.Name)
	if len(s.servicesByName.of(key)) > 0 || s.isBurned("extension service name", key) {
		return alreadyExists("extension_service", "kubernetes_pod:"+e.Name)
	}
	return nil
}

// issue makes a version the newest.
func (e *extensionService) issue(v serviceVersion, now time.Time) {
	e.Counter++
	v.Version, v.Created = token{uint64(e.Counter), now.UnixMicro()}, now
	e.Versions = slices.Concat([]serviceVersion{v}, e.Versions)
}

// fits checks what the database checks.
func (e *extensionService) fits() error {
	for n, text := range map[int]string{64: e.Name, 256: e.Description} {
		if err := tooLong(text, n); err != nil {
			return err
		}
	}
	return nil
}

func (e *extensionService) wire(id string) *forge.DpuExtensionService {
	out := &forge.DpuExtensionService{
		ServiceId: id, ServiceName: e.Name, TenantOrganizationId: e.Organization, Description: e.Description,
		VersionCtr: e.Counter, LatestVersionInfo: e.Versions[0].wire(),
		Created: utc(e.Created), Updated: utc(e.Updated),
	}
	for _, v := range e.Versions {
		out.ActiveVersions = append(out.ActiveVersions, v.Version.String())
	}
	return out
}

func (v serviceVersion) wire() *forge.DpuExtensionServiceVersionInfo {
	out := &forge.DpuExtensionServiceVersionInfo{
		Version: v.Version.String(), Data: v.Data, HasCredential: v.Credential != nil, Created: utc(v.Created),
	}
	if v.Observability != nil {
		out.Observability = proto.CloneOf(v.Observability.message)
	}
	return out
}

func utc(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.999999 UTC") }

func serviceID(text string) (string, error) {
	id, err := uuid.Parse(text)
	if err != nil {
		return "", invalid("invalid UUID %q for ExtensionServiceId", text)
	}
	return id.String(), nil
}

func checkServiceType(t forge.DpuExtensionServiceType) error {
	if t != forge.DpuExtensionServiceType_KUBERNETES_POD {
		return invalid("Invalid service_type")
	}
	return nil
}
