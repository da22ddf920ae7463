package carbide_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

// A population is how a site gets many objects of a kind, and how many calls it takes to list them.
type population struct {
	kind  string
	as    string                         // what is particular to these objects; empty: nothing
	site  func(n int) carbidesim.Options // what the site has to be like; nil: as it is
	plant func(b *bed, n int) []string   // makes n objects and answers their ids
	once  int                            // calls for all objects together
	page  int                            // calls for each page, of as many ids as the site takes
	after int                            // calls for all objects that were found, where there are any
	why   string                         // required where it is not one call for the ids and one for each page
}

// populations has every kind that the provider serves.
var populations = []population{
	{kind: "tenant", once: 1, page: 1, plant: func(b *bed, n int) []string {
		return b.each(n, func(name string, _ int) (string, error) { return name, b.tenant(name) })
	}},
	{kind: "tenant_keyset", once: 1, page: 1, plant: func(b *bed, n int) []string {
		return b.each(n, func(name string, _ int) (string, error) {
			_, err := b.CreateTenantKeyset(b.Context(), &forge.CreateTenantKeysetRequest{
				KeysetIdentifier: &forge.TenantKeysetIdentifier{OrganizationId: "acme", KeysetId: name}, Version: "V1-T1",
				KeysetContent: &forge.TenantKeysetContent{PublicKeys: []*forge.TenantPublicKey{{PublicKey: "ssh-ed25519 AAAA " + name}}},
			})
			return "acme/" + name, err
		})
	}},
	{kind: "vpc", once: 1, page: 1, plant: func(b *bed, n int) []string {
		return b.each(n, func(name string, _ int) (string, error) { return b.vpc(name, "") })
	}},
	{kind: "vpc", as: "with security groups", once: 1, page: 2, why: "where a group is in force is told by another call, for a page of them", plant: func(b *bed, n int) []string {
		b.must(b.tenant("acme"))
		group, err := b.group("web")
		b.must(err)
		return b.each(n, func(name string, _ int) (string, error) { return b.vpc(name, group) })
	}},
	{kind: "vpc", as: "with a security group here and there", once: 1, page: 1, after: 1, why: "those of all pages that have a group are asked for together", plant: func(b *bed, n int) []string {
		b.must(b.tenant("acme"))
		group, err := b.group("web")
		b.must(err)
		return b.each(n, func(name string, i int) (string, error) {
			if i%150 == 0 {
				return b.vpc(name, group)
			}
			return b.vpc(name, "")
		})
	}},
	{kind: "vpc_prefix", once: 1, page: 1, plant: func(b *bed, n int) []string {
		vpc, err := b.vpc("prod", "")
		b.must(err)
		return b.each(n, func(name string, i int) (string, error) {
			id := id("vpc_prefix", name)
			_, err := b.CreateVpcPrefix(b.Context(), &forge.VpcPrefixCreationRequest{
				Id: &forge.VpcPrefixId{Value: id}, VpcId: &forge.VpcId{Value: vpc}, Metadata: described("vpc_prefix", name),
				Config: &forge.VpcPrefixConfig{Prefix: network(i)},
			})
			return id, err
		})
	}},
	{kind: "network_segment", once: 1, page: 1, plant: func(b *bed, n int) []string {
		vpc, err := b.vpc("prod", "")
		b.must(err)
		return b.each(n, func(name string, i int) (string, error) {
			id := id("network_segment", name)
			_, err := b.CreateNetworkSegment(b.Context(), &forge.NetworkSegmentCreationRequest{
				Id: &forge.NetworkSegmentId{Value: id}, Name: name, VpcId: &forge.VpcId{Value: vpc},
				Prefixes: []*forge.NetworkPrefix{{Prefix: network(i)}},
			})
			return id, err
		})
	}},
	{kind: "network_security_group", once: 1, page: 2, why: "who has a group is told by another call", plant: func(b *bed, n int) []string {
		b.must(b.tenant("acme"))
		return b.each(n, func(name string, _ int) (string, error) { return b.group(name) })
	}},
	{kind: "network_security_group", as: "in use", once: 1, page: 3, why: "who has a group is told by another call, and where it is in force by a third", plant: func(b *bed, n int) []string {
		b.must(b.tenant("acme"))
		return b.each(n, func(name string, _ int) (string, error) {
			id, err := b.group(name)
			b.must(err)
			_, err = b.vpc(name, id)
			return id, err
		})
	}},
	{kind: "instance_type", once: 1, page: 1, plant: func(b *bed, n int) []string {
		return b.each(n, func(name string, _ int) (string, error) { return b.instanceType(name) })
	}},
	{kind: "compute_allocation", once: 1, page: 1, plant: func(b *bed, n int) []string {
		b.must(b.tenant("acme"))
		types := b.each((n+99)/100, func(name string, _ int) (string, error) { return b.instanceType(name) })
		return b.each(n, func(name string, i int) (string, error) {
			id := id("compute_allocation", name)
			_, err := b.CreateComputeAllocation(b.Context(), &forge.CreateComputeAllocationRequest{
				Id: &forge.ComputeAllocationId{Value: id}, Metadata: described("compute_allocation", name), TenantOrganizationId: "acme",
				Attributes: &forge.ComputeAllocationAttributes{InstanceTypeId: types[i/100]},
			})
			return id, err
		})
	}},
	{kind: "instance", site: plainHosts, once: 1, page: 1, after: 1, why: "whether hosts are on is told by another call, once for all", plant: func(b *bed, n int) []string {
		return b.instances(n, "")
	}},
	{kind: "instance", as: "with security groups", site: plainHosts, once: 1, page: 2, after: 1, why: "whether hosts are on is told by another call, once for all, and where a group is in force by a third, for a page of them", plant: func(b *bed, n int) []string {
		b.must(b.tenant("acme"))
		group, err := b.group("web")
		b.must(err)
		return b.instances(n, group)
	}},
	{kind: "expected_machine", once: 2, why: "the service tells all at once: what was said in one call, what was found of it in another", plant: func(b *bed, n int) []string {
		return b.each(n, func(name string, i int) (string, error) {
			id := id("expected_machine", name)
			_, err := b.AddExpectedMachine(b.Context(), &forge.ExpectedMachine{
				Id: &forge.UUID{Value: id}, BmcMacAddress: mac(i), BmcUsername: "root", BmcPassword: "calvin", ChassisSerialNumber: name,
				Metadata: described("expected_machine", name),
			})
			return id, err
		})
	}},
	{kind: "expected_switch", once: 2, why: "as for expected machines", plant: func(b *bed, n int) []string {
		return b.each(n, func(name string, i int) (string, error) {
			id := id("expected_switch", name)
			_, err := b.AddExpectedSwitch(b.Context(), &forge.ExpectedSwitch{
				ExpectedSwitchId: &forge.UUID{Value: id}, BmcMacAddress: mac(i), BmcUsername: "root", BmcPassword: "calvin", SwitchSerialNumber: name,
				Metadata: described("expected_switch", name),
			})
			return id, err
		})
	}},
	{kind: "expected_power_shelf", once: 2, why: "as for expected machines", plant: func(b *bed, n int) []string {
		return b.each(n, func(name string, i int) (string, error) {
			id := id("expected_power_shelf", name)
			_, err := b.AddExpectedPowerShelf(b.Context(), &forge.ExpectedPowerShelf{
				ExpectedPowerShelfId: &forge.UUID{Value: id}, BmcMacAddress: mac(i), BmcUsername: "root", BmcPassword: "calvin", ShelfSerialNumber: name,
				Metadata: described("expected_power_shelf", name),
			})
			return id, err
		})
	}},
	{kind: "sku", once: 1, page: 1, plant: func(b *bed, n int) []string {
		return b.each(n, func(name string, _ int) (string, error) {
			_, err := b.CreateSku(b.Context(), &forge.SkuList{Skus: []*forge.Sku{{
				Id: name, SchemaVersion: 4, Components: &forge.SkuComponents{Chassis: &forge.SkuComponentChassis{Model: name, Architecture: "x86_64"}},
			}}})
			return name, err
		})
	}},
	{kind: "machine", once: 1, page: 1, site: func(n int) carbidesim.Options { return carbidesim.Options{Hosts: carbidesim.Hosts{Count: n}} }, plant: func(b *bed, n int) []string {
		return hostsOf(b.World) // which are there from the beginning, and their DPUs too
	}},
	{kind: "vpc_peering", once: 1, page: 1, site: func(int) carbidesim.Options {
		return carbidesim.Options{Rules: carbidesim.Rules{Peering: carbidesim.PeeringMixed}}
	}, plant: func(b *bed, n int) []string {
		var vpcs []string
		for len(vpcs)*(len(vpcs)-1)/2 < n {
			vpc, err := b.vpc(fmt.Sprintf("vpc-%03d", len(vpcs)), "")
			b.must(err)
			vpcs = append(vpcs, vpc)
		}
		one, two := 0, 0
		return b.each(n, func(name string, _ int) (string, error) {
			if two++; two == len(vpcs) {
				one++
				two = one + 1
			}
			id := id("vpc_peering", name)
			_, err := b.CreateVpcPeering(b.Context(), &forge.VpcPeeringCreationRequest{
				Id: &forge.VpcPeeringId{Value: id}, VpcId: &forge.VpcId{Value: vpcs[one]}, PeerVpcId: &forge.VpcId{Value: vpcs[two]},
			})
			return id, err
		})
	}},
	{kind: "ib_partition", once: 1, page: 1, plant: func(b *bed, n int) []string {
		return b.each(n, func(name string, i int) (string, error) {
			id := id("ib_partition", name)
			_, err := b.CreateIBPartition(b.Context(), &forge.IBPartitionCreationRequest{
				Id: &forge.IBPartitionId{Value: id}, Metadata: described("ib_partition", name),
				Config: &forge.IBPartitionConfig{TenantOrganizationId: fmt.Sprintf("tenant-%d", i/31)}, // none may have more
			})
			return id, err
		})
	}},
	{kind: "nvlink_logical_partition", once: 1, page: 1, plant: func(b *bed, n int) []string {
		return b.each(n, func(name string, _ int) (string, error) {
			id := id("nvlink_logical_partition", name)
			_, err := b.CreateNVLinkLogicalPartition(b.Context(), &forge.NVLinkLogicalPartitionCreationRequest{
				Id:     &forge.NVLinkLogicalPartitionId{Value: id},
				Config: &forge.NVLinkLogicalPartitionConfig{TenantOrganizationId: "acme", Metadata: &forge.Metadata{Name: name}},
			})
			return id, err
		})
	}},
	{kind: "spx_partition", once: 1, page: 1, plant: func(b *bed, n int) []string {
		return b.each(n, func(name string, _ int) (string, error) {
			id := id("spx_partition", name)
			_, err := b.CreateSpxPartition(b.Context(), &forge.SpxPartitionCreationRequest{
				Id: &forge.SpxPartitionId{Value: id}, TenantOrganizationId: "acme", Metadata: &forge.Metadata{Name: name},
			})
			return id, err
		})
	}},
	{kind: "operating_system", once: 1, page: 1, plant: func(b *bed, n int) []string {
		return b.each(n, func(name string, _ int) (string, error) {
			id := id("operating_system", name)
			_, err := b.CreateOperatingSystem(b.Context(), &forge.CreateOperatingSystemRequest{
				Id: &forge.OperatingSystemId{Value: id}, Name: name, TenantOrganizationId: "acme", IpxeScript: proto.String("#!ipxe"),
			})
			return id, err
		})
	}},
	{kind: "os_image", once: 1, why: "the service tells all at once, and has no ids to ask for", plant: func(b *bed, n int) []string {
		return b.each(n, func(name string, _ int) (string, error) {
			id := id("os_image", name)
			_, err := b.CreateOsImage(b.Context(), &forge.OsImageAttributes{
				Id: &forge.UUID{Value: id}, Name: &name, TenantOrganizationId: "acme", SourceUrl: "https://images.example/" + name, Digest: "sha256:aa",
			})
			return id, err
		})
	}},
	{kind: "dpu_extension_service", once: 1, page: 1, plant: func(b *bed, n int) []string {
		b.must(b.tenant("acme"))
		return b.each(n, func(name string, _ int) (string, error) {
			id := id("dpu_extension_service", name)
			_, err := b.CreateDpuExtensionService(b.Context(), &forge.CreateDpuExtensionServiceRequest{
				ServiceId: &id, ServiceName: name, TenantOrganizationId: "acme", Data: pod("a"),
			})
			return id, err
		})
	}},
}

// plant makes n objects of a kind and answers their ids.
func plant(t testing.TB, w *carbidesim.World, kind string, n int) []string {
	t.Helper()
	for _, p := range populations {
		if p.kind == kind {
			return p.plant(&bed{t, w, w.Stranger()}, n)
		}
	}
	t.Fatalf("there is no population of kind %s", kind)
	return nil
}

// A bed is where objects are planted, by calls that do not go over the wire.
type bed struct {
	testing.TB
	*carbidesim.World
	forge.ForgeClient
}

func (b *bed) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// each makes n objects, each with a name of its own, and answers their ids.
func (b *bed) each(n int, plant func(name string, i int) (id string, err error)) []string {
	b.Helper()
	ids := make([]string, n)
	for i := range ids {
		id, err := plant(fmt.Sprintf("n-%05d", i), i)
		b.must(err)
		ids[i] = id
	}
	return ids
}

func (b *bed) tenant(name string) error {
	_, err := b.CreateTenant(b.Context(), &forge.CreateTenantRequest{OrganizationId: name, Metadata: &forge.Metadata{Name: name}})
	return err
}

func (b *bed) vpc(name, group string) (string, error) {
	id := id("vpc", name)
	r := &forge.VpcCreationRequest{Id: &forge.VpcId{Value: id}, TenantOrganizationId: "acme", Metadata: described("vpc", name)}
	if group != "" {
		r.NetworkSecurityGroupId = &group
	}
	_, err := b.CreateVpc(b.Context(), r)
	return id, err
}

func (b *bed) group(name string) (string, error) {
	id := id("network_security_group", name)
	_, err := b.CreateNetworkSecurityGroup(b.Context(), &forge.CreateNetworkSecurityGroupRequest{
		Id: &id, TenantOrganizationId: "acme", Metadata: described("network_security_group", name),
	})
	return id, err
}

func (b *bed) instanceType(name string) (string, error) {
	id := id("instance_type", name)
	_, err := b.CreateInstanceType(b.Context(), &forge.CreateInstanceTypeRequest{Id: &id, Metadata: described("instance_type", name)})
	return id, err
}

// instances puts an instance on each host.
func (b *bed) instances(n int, group string) []string {
	hosts := hostsOf(b.World)
	return b.each(n, func(name string, i int) (string, error) {
		id := id("instance", name)
		config := &forge.InstanceConfig{
			Tenant:  &forge.TenantConfig{TenantOrganizationId: "acme"},
			Os:      &forge.InstanceOperatingSystemConfig{Variant: &forge.InstanceOperatingSystemConfig_Ipxe{Ipxe: &forge.InlineIpxe{IpxeScript: "#!ipxe"}}},
			Network: &forge.InstanceNetworkConfig{Auto: true},
		}
		if group != "" {
			config.NetworkSecurityGroupId = &group
		}
		_, err := b.AllocateInstance(b.Context(), &forge.InstanceAllocationRequest{
			InstanceId: &forge.InstanceId{Value: id}, MachineId: &forge.MachineId{Id: hosts[i]}, Metadata: described("instance", name), Config: config,
		})
		return id, err
	})
}

// plainHosts is a site with n hosts that have no DPU, so that an instance needs no network of its own.
func plainHosts(n int) carbidesim.Options {
	return carbidesim.Options{Hosts: carbidesim.Hosts{Count: n, WithoutDPU: n}}
}

// described is metadata as ours is: with labels, one of which is our mark.
func described(kind, name string) *forge.Metadata {
	ref := schema.Ref{Scope: schema.ScopeSite, Kind: "carbide." + kind, Name: name}
	mark := providers.Mark{Site: "6f1c3c5e-4a4e-4f0e-9d53-0f1d3c6f7a10", Ref: ref, Incarnation: 1}.String()
	return &forge.Metadata{Name: name, Description: "number " + name, Labels: []*forge.Label{
		{Key: "env", Value: proto.String("production")}, {Key: "owner", Value: &name}, {Key: providers.MarkKey, Value: &mark},
	}}
}

// network is the i-th of many that do not overlap.
func network(i int) string { return fmt.Sprintf("10.%d.%d.0/24", i/256, i%256) }

// mac is the i-th of many hardware addresses.
func mac(i int) string {
	return strings.ToUpper(fmt.Sprintf("0a:00:00:%02x:%02x:%02x", i>>16, i>>8&0xff, i&0xff))
}
