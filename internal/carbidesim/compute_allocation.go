package carbidesim

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/providers/carbide/forge"
)

// allocation promises a tenant a number of machines of a type.
type allocation struct {
	Organization string    `json:"organization"`
	Type         string    `json:"type"`
	Count        uint32    `json:"count"`
	Metadata     metadata  `json:"metadata"`
	Version      token     `json:"version"`
	Created      time.Time `json:"created"`
	CreatedBy    *string   `json:"createdBy,omitempty"`
	UpdatedBy    *string   `json:"updatedBy,omitempty"`
}

// Enforcement says how allocations are enforced when an instance of a type is created, or a machine leaves it. Instances
// that name no type are never held to one.
type Enforcement string

// Enforcements.
const (
	WarnOnly         Enforcement = ""                   // nothing is refused
	EnforceIfPresent Enforcement = "enforce_if_present" // a tenant with an allocation is held to it
	EnforceAlways    Enforcement = "always"             // a tenant without one is refused
)

// holds reports whether allocations are enforced, given whether there are some.
func (e Enforcement) holds(some bool) bool {
	return e == EnforceAlways || e == EnforceIfPresent && some
}

const largestAllocation = 100_000

// CreateComputeAllocation allocates machines that exist and are not promised to any tenant.
func (s *site) CreateComputeAllocation(_ context.Context, r *forge.CreateComputeAllocationRequest) (*forge.CreateComputeAllocationResponse, error) {
	a, err := readAllocation(r.Attributes, r.Metadata, r.TenantOrganizationId)
	if err != nil {
		return nil, err
	}
	id := s.chosen(r.Id.GetValue())
	total, _ := s.allocated("", a.Type)
	if err := s.covers(a.Type, total+a.Count); err != nil {
		return nil, err
	}
	if s.allocations.get(id) != nil || s.allocationNamed(a, "") {
		return nil, alreadyExists("ComputeAllocation", a.Metadata.Name)
	}
	if s.isBurned("compute allocation", id) {
		return nil, duplicate("compute_allocations_pkey")
	}
	if err := tooLong(a.Metadata.Description, 256); err != nil {
		return nil, err
	}
	if s.tenants.get(a.Organization) == nil {
		return nil, violation("compute_allocations_tenant_organization_id_fkey")
	}
	if s.instanceTypes.get(a.Type) == nil {
		return nil, violation("compute_allocations_instance_type_id_fkey")
	}
	a.Version, a.Created, a.CreatedBy = firstToken(s.now), s.now, r.CreatedBy
	s.allocations.put(id, a)
	return &forge.CreateComputeAllocationResponse{Allocation: a.wire(id)}, nil
}

// UpdateComputeAllocation replaces metadata and count. The type only has to match; the token is checked last.
func (s *site) UpdateComputeAllocation(_ context.Context, r *forge.UpdateComputeAllocationRequest) (*forge.UpdateComputeAllocationResponse, error) {
	if r.Id == nil {
		return nil, missing("id")
	}
	a, err := readAllocation(r.Attributes, r.Metadata, r.TenantOrganizationId)
	if err != nil {
		return nil, err
	}
	id := r.Id.Value
	have := s.allocations.get(id)
	switch {
	case have == nil || have.Organization != a.Organization:
		return nil, notFound("ComputeAllocation", a.Metadata.Name+" for tenant org `"+a.Organization+"`")
	case have.Type != a.Type:
		return nil, invalid("requested ComputeAllocation record '%s' is not associated with requested InstanceTypeId '%s'", id, a.Type)
	case a.Count > have.Count:
		total, _ := s.allocated("", a.Type)
		err = s.covers(a.Type, total+a.Count-have.Count)
	case a.Count < have.Count:
		err = s.leaves(have, have.Count-a.Count)
	}
	if err != nil {
		return nil, err
	}
	if err := expect("ComputeAllocation", have.Version, r.IfVersionMatch, codes.Internal); err != nil {
		return nil, err
	}
	if s.allocationNamed(a, id) {
		return nil, alreadyExists("ComputeAllocation", a.Metadata.Name)
	}
	if err := tooLong(a.Metadata.Description, 256); err != nil {
		return nil, err
	}
	a.Version, a.Created, a.CreatedBy, a.UpdatedBy = have.Version.next(s.now), have.Created, have.CreatedBy, r.UpdatedBy
	s.allocations.put(id, a)
	return &forge.UpdateComputeAllocationResponse{Allocation: a.wire(id)}, nil
}

// DeleteComputeAllocation deletes softly, unless the tenant uses it. One that does not exist, or is another tenant's, counts
// as deleted.
func (s *site) DeleteComputeAllocation(_ context.Context, r *forge.DeleteComputeAllocationRequest) (*forge.DeleteComputeAllocationResponse, error) {
	if r.Id == nil {
		return nil, missing("id")
	}
	if !validOrganization(r.TenantOrganizationId) {
		return nil, invalid("invalid tenant organization id %q", r.TenantOrganizationId)
	}
	id := r.Id.Value
	if a := s.allocations.get(id); a != nil && a.Organization == r.TenantOrganizationId {
		if err := s.leaves(a, a.Count); err != nil {
			return nil, err
		}
		s.allocations.drop(id)
		s.burn("compute allocation", id)
	}
	return &forge.DeleteComputeAllocationResponse{}, nil
}

// FindComputeAllocationIds filters by exact name, tenant and type.
func (s *site) FindComputeAllocationIds(_ context.Context, r *forge.FindComputeAllocationIdsRequest) (*forge.FindComputeAllocationIdsResponse, error) {
	pass := func(a *allocation) bool {
		return is(r.Name, a.Metadata.Name) && is(r.TenantOrganizationId, a.Organization) && is(r.InstanceTypeId, a.Type)
	}
	return &forge.FindComputeAllocationIdsResponse{
		Ids: where(s.allocations, pass, func(id string) *forge.ComputeAllocationId { return &forge.ComputeAllocationId{Value: id} }),
	}, nil
}

// FindComputeAllocationsByIds returns the allocations that exist.
func (s *site) FindComputeAllocationsByIds(_ context.Context, r *forge.FindComputeAllocationsByIdsRequest) (*forge.FindComputeAllocationsByIdsResponse, error) {
	if err := s.page(len(r.Ids)); err != nil {
		return nil, err
	}
	return &forge.FindComputeAllocationsByIdsResponse{
		Allocations: each(s.allocations, texts(r.Ids), func(id string, a *allocation) *forge.ComputeAllocation { return a.wire(id) }),
	}, nil
}

func readAllocation(in *forge.ComputeAllocationAttributes, meta *forge.Metadata, organization string) (*allocation, error) {
	switch {
	case in == nil:
		return nil, missing("attributes")
	case in.Count > largestAllocation:
		return nil, invalid("count exceeds max allocation size of %d", largestAllocation)
	case in.InstanceTypeId == "":
		return nil, invalid("invalid instance type id %q", in.InstanceTypeId)
	case !validOrganization(organization):
		return nil, invalid("invalid tenant organization id %q", organization)
	}
	m, err := requiredMetadata(meta)
	return &allocation{Organization: organization, Type: in.InstanceTypeId, Count: in.Count, Metadata: m}, err
}

// allocated sums the machines of a type that are promised to a tenant, or to all tenants. It reports whether there is any
// promise.
func (s *site) allocated(organization, instanceType string) (total uint32, some bool) {
	for id := range s.allocationsByType.of(instanceType) {
		if a := s.allocations.get(id); organization == "" || a.Organization == organization {
			total, some = total+a.Count, true
		}
	}
	return total, some
}

// covers checks that there are as many machines of a type as would be promised.
func (s *site) covers(instanceType string, total uint32) error {
	if machines := len(s.machinesByType.of(instanceType)); machines < int(total) {
		return precondition("requested allocation would increase allocation count (%d) above associated machines count (%d)", total, machines)
	}
	return nil
}

// leaves checks that a tenant keeps what its instances use when an allocation is reduced.
func (s *site) leaves(a *allocation, less uint32) error {
	total, _ := s.allocated(a.Organization, a.Type)
	if used := s.used(a.Organization, a.Type); used > int(total-less) {
		return precondition("requested change would decrease allocation count (%d) below existing instances count (%d)", total-less, used)
	}
	return nil
}

// used counts the instances of a type that a tenant has.
func (s *site) used(organization, instanceType string) int {
	return len(s.instancesByType.of(organization + "/" + instanceType))
}

// admit checks that a tenant may have one more instance of a type.
func (s *site) admit(organization, instanceType string) error {
	total, some := s.allocated(organization, instanceType)
	if s.used(organization, instanceType)+1 > int(total) && s.rules.Allocations.holds(some) {
		return precondition("request to allocate instance would exceed current tenant allocation limit")
	}
	return nil
}

// allocationNamed reports whether another allocation of the tenant has the name.
func (s *site) allocationNamed(a *allocation, id string) bool {
	for other := range s.allocationsByName.of(a.name()) {
		if other != id {
			return true
		}
	}
	return false
}

// name returns what must be unique.
func (a *allocation) name() string { return a.Organization + "/" + a.Metadata.Name }

func (a *allocation) wire(id string) *forge.ComputeAllocation {
	return &forge.ComputeAllocation{
		Id:                   &forge.ComputeAllocationId{Value: id},
		TenantOrganizationId: a.Organization,
		Attributes:           &forge.ComputeAllocationAttributes{InstanceTypeId: a.Type, Count: a.Count},
		Version:              a.Version.String(),
		Metadata:             a.Metadata.wire(),
		CreatedAt:            optional(a.Created.UTC().Format("2006-01-02 15:04:05.999999 UTC")),
		CreatedBy:            a.CreatedBy,
		UpdatedBy:            a.UpdatedBy,
	}
}
