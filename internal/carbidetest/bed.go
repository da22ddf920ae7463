package carbidetest

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

// Plant makes n objects of a kind in a world and returns their ids.
func Plant(t testing.TB, w *carbidesim.World, noun string, n int) []string {
	t.Helper()
	for _, k := range Kinds() {
		if k.Noun == noun {
			return k.Populations[0].In(t, w, n)
		}
	}
	t.Fatalf("there is no kind %s", noun)
	return nil
}

// In makes n objects in a world and returns their ids.
func (p *Population) In(t testing.TB, w *carbidesim.World, n int) []string {
	return p.Plant(&Bed{t, w, w.Stranger()}, n)
}

// A Bed is where objects are planted, by calls that do not go over the wire.
type Bed struct {
	testing.TB
	*carbidesim.World
	forge.ForgeClient
}

func (b *Bed) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// each makes n objects, each with its own name, and returns their ids.
func (b *Bed) each(n int, plant func(name string, i int) (id string, err error)) []string {
	b.Helper()
	ids := make([]string, n)
	for i := range ids {
		id, err := plant(fmt.Sprintf("n-%05d", i), i)
		b.must(err)
		ids[i] = id
	}
	return ids
}

func (b *Bed) tenant(name string) error {
	_, err := b.CreateTenant(b.Context(), &forge.CreateTenantRequest{OrganizationId: name, Metadata: &forge.Metadata{Name: name}})
	return err
}

func (b *Bed) vpc(name, group string) (string, error) {
	id := ID("vpc", name)
	r := &forge.VpcCreationRequest{Id: &forge.VpcId{Value: id}, TenantOrganizationId: "acme", Metadata: described("vpc", name)}
	if group != "" {
		r.NetworkSecurityGroupId = &group
	}
	_, err := b.CreateVpc(b.Context(), r)
	return id, err
}

func (b *Bed) group(name string) (string, error) {
	id := ID("network_security_group", name)
	_, err := b.CreateNetworkSecurityGroup(b.Context(), &forge.CreateNetworkSecurityGroupRequest{
		Id: &id, TenantOrganizationId: "acme", Metadata: described("network_security_group", name),
	})
	return id, err
}

func (b *Bed) instanceType(name string) (string, error) {
	id := ID("instance_type", name)
	_, err := b.CreateInstanceType(b.Context(), &forge.CreateInstanceTypeRequest{Id: &id, Metadata: described("instance_type", name)})
	return id, err
}

// instances puts an instance on each host.
func (b *Bed) instances(n int, group string) []string {
	hosts := Hosts(b.World)
	return b.each(n, func(name string, i int) (string, error) {
		id := ID("instance", name)
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

// plainHosts returns a site with n hosts that have no DPU, so that an instance needs no network of its own.
func plainHosts(n int) carbidesim.Options {
	return carbidesim.Options{Hosts: carbidesim.Hosts{Count: n, WithoutDPU: n}}
}

// described returns metadata like ours: with labels, one of which is our mark.
func described(kind, name string) *forge.Metadata {
	ref := schema.Ref{Scope: schema.ScopeSite, Kind: "carbide." + kind, Name: name}
	mark := providers.Mark{Site: "6f1c3c5e-4a4e-4f0e-9d53-0f1d3c6f7a10", Ref: ref, Incarnation: 1}.String()
	return &forge.Metadata{Name: name, Description: "number " + name, Labels: []*forge.Label{
		{Key: "env", Value: proto.String("production")}, {Key: "owner", Value: &name}, {Key: providers.MarkKey, Value: &mark},
	}}
}

// network returns the i-th of many networks that do not overlap.
func network(i int) string { return fmt.Sprintf("10.%d.%d.0/24", i/256, i%256) }

// mac returns the i-th of many hardware addresses.
func mac(i int) string {
	return strings.ToUpper(fmt.Sprintf("0a:00:00:%02x:%02x:%02x", i>>16, i>>8&0xff, i&0xff))
}
