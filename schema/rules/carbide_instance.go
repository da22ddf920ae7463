package rules

import (
	"net/netip"
	"slices"
	"strconv"

	"converge.dev/converge/schema"
)

func checkVPCTenants(st *Site, r *Resource, p *reporter) {
	checkTenant(r, []string{"network_security_group"}, st.target(r, carbideSecurityGroup, r.Spec["network_security_group"]), p)
}

func checkInstanceTenants(st *Site, r *Resource, p *reporter) {
	checkTenant(r, []string{"network_security_group"}, st.target(r, carbideSecurityGroup, r.Spec["network_security_group"]), p)
	for i, name := range listOf(r.Spec, "keysets") {
		checkTenant(r, []string{"keysets", strconv.Itoa(i)}, st.target(r, carbideKeyset, name), p)
	}
	checkTenant(r, []string{"auto_vpc"}, st.target(r, carbideVPC, r.Spec["auto_vpc"]), p)
	st.eachPartition(r, func(path []string, on *Resource) { checkTenant(r, path, on, p) })
	st.eachAttachment(r, func(path []string, _ map[string]any, on *Resource) {
		if on != nil {
			checkTenant(r, path, st.target(on, carbideVPC, on.Spec["vpc"]), p)
		}
	})
}

// checkTenant checks that r belongs to the same tenant as a resource that it uses; nil when that is not sound.
func checkTenant(r *Resource, path []string, used *Resource, p *reporter) {
	if used == nil {
		return
	}
	tenant := textOf(r.Spec, "tenant")
	if other := textOf(used.Spec, "tenant"); other != tenant {
		p.report(r, path, "This resource belongs to tenant %s, but %s belongs to %s. Use one of the same tenant.", tenant, used.Ref, other)
	}
}

// eachAttachment visits what the interfaces of an instance are attached to: a segment or a VPC prefix, nil when it is
// not sound. Path is that of the field which names it, m the object that contains the field.
func (st *Site) eachAttachment(r *Resource, visit func(path []string, m map[string]any, on *Resource)) {
	for i, e := range listOf(r.Spec, "interfaces") {
		m := objectOf(e)
		at := []string{"interfaces", strconv.Itoa(i)}
		if m["segment"] != nil {
			visit(slices.Concat(at, []string{"segment"}), m, st.target(r, carbideSegment, m["segment"]))
		}
		if m["vpc_prefix"] != nil {
			visit(slices.Concat(at, []string{"vpc_prefix"}), m, st.target(r, carbidePrefix, m["vpc_prefix"]))
		}
		if v6 := objectOf(m["ipv6"]); v6 != nil {
			visit(slices.Concat(at, []string{"ipv6", "vpc_prefix"}), v6, st.target(r, carbidePrefix, v6["vpc_prefix"]))
		}
	}
}

// sharedMachines compares an instance with the machine that it names, and with others that name the same.
var sharedMachines = &sharing{
	of: named(carbideInstance, carbideMachine),
	keys: func(_ *Site, r *Resource, has func(k key, path ...string)) {
		if r.Ref.Kind == carbideMachine {
			has(key{r.Ref.Name})
		} else if id := textOf(r.Spec, "machine"); id != "" { // otherwise the planner chooses one
			has(key{id}, "machine")
		}
	},
	check: func(st *Site, r *Resource, path []string, k key, shared []*Resource, n int, p *reporter) {
		if r.Ref.Kind == carbideMachine {
			return
		}
		if n > 0 {
			p.report(r, path, "The machine is already used by %s, and it can run only one instance at a time. Choose another machine.", shared[0].Ref)
		}
		machine := st.index[schema.Ref{Scope: schema.ScopeSite, Kind: carbideMachine, Name: k[0]}]
		want := textOf(r.Spec, "instance_type")
		if machine == nil || !machine.sound || want == "" {
			return
		}
		if have := textOf(machine.Spec, "instance_type"); have != want {
			p.report(r, []string{"instance_type"}, "The instance needs a machine of type %q, but %s is declared with type %q. Choose another machine or type.", want, machine.Ref, have)
		}
	},
}

var sharedHostnames = &sharing{
	of: named(carbideInstance),
	keys: func(_ *Site, r *Resource, has func(k key, path ...string)) {
		if name := textOf(r.Spec, "hostname"); name != "" {
			has(key{name, textOf(r.Spec, "tenant")}, "hostname")
		}
	},
	check: taken("The host name %s is already used by %s of the same tenant. Choose another."),
}

func checkInstanceOS(_ *Site, r *Resource, p *reporter) {
	os := objectOf(r.Spec["os"])
	var given []string
	for _, name := range []string{"ipxe", "os_image", "operating_system"} {
		if os[name] != nil {
			given = append(given, name)
		}
	}
	switch {
	case len(given) == 0:
		p.report(r, []string{"os"}, "The instance has no boot source. Set one of ipxe, os_image and operating_system.")
	case len(given) > 1:
		p.report(r, []string{"os", given[1]}, "Both %s and %s set the boot source. Keep one.", given[0], given[1])
	}
	if n := len(listOf(r.Spec, "keysets")); n > 10 {
		p.report(r, []string{"keysets"}, "There are %d keysets; the service accepts at most 10. Merge some.", n)
	}
}

func checkInterfaces(_ *Site, r *Resource, p *reporter) {
	interfaces := listOf(r.Spec, "interfaces")
	switch auto := boolOf(r.Spec, "auto_network"); {
	case auto && len(interfaces) > 0:
		p.report(r, []string{"interfaces"}, "With auto_network, the site chooses the interfaces. Remove these, or auto_network.")
	case !auto && len(interfaces) == 0:
		p.report(r, nil, "The instance has no network. Add interfaces, or set auto_network: true if the host has no managed DPU.")
	}
	if !boolOf(r.Spec, "auto_network") && r.Spec["auto_vpc"] != nil {
		p.report(r, []string{"auto_vpc"}, "Only an instance with auto_network joins a VPC as a whole; others join through their interfaces. Remove this, or set auto_network: true.")
	}
	checkInterfacesOf(r, interfaces, p)
}

// checkInterfacesOf checks the interfaces of one instance.
func checkInterfacesOf(r *Resource, interfaces []any, p *reporter) {
	type device struct {
		model  string
		number int64
	}
	physical := make(map[device]bool)
	segments := make(map[string]bool)
	functions := make(map[int64]bool)
	for i, e := range interfaces {
		m := objectOf(e)
		at := func(names ...string) []string { return slices.Concat([]string{"interfaces", strconv.Itoa(i)}, names) }
		segment, prefix := textOf(m, "segment"), textOf(m, "vpc_prefix")
		switch {
		case segment == "" && prefix == "":
			p.report(r, at(), "The interface is not attached to anything. Set segment or vpc_prefix.")
		case segment != "" && prefix != "":
			p.report(r, at("vpc_prefix"), "The interface is attached to both a segment and a VPC prefix. Keep one.")
		case segment != "" && segments[segment]:
			p.report(r, at("segment"), "Another interface of the instance is already attached to the segment %s. Attach this one elsewhere.", segment)
		}
		segments[segment] = true
		if segment != "" && m["ip_address"] != nil {
			p.report(r, at("ip_address"), "An address can only be requested from a vpc_prefix. Remove it, or use a VPC prefix.")
		}
		id, numbered := m["virtual_function_id"].(int64)
		if textOf(m, "function") == "physical" {
			d := device{textOf(m, "device"), intOf(m, "device_instance")}
			if physical[d] {
				p.report(r, at(), "Another interface is already the physical function of the same device. Use another device or device_instance, or make this one virtual.")
			}
			physical[d] = true
			if numbered {
				p.report(r, at("virtual_function_id"), "A physical function has no virtual_function_id. Remove it, or set function: \"virtual\".")
			}
			continue
		}
		switch {
		case !numbered:
			p.report(r, at(), "A virtual function needs a virtual_function_id from 0 to 15.")
		case functions[id]:
			p.report(r, at("virtual_function_id"), "Another interface of the instance is already virtual function %d. Choose another number.", id)
		}
		functions[id] = numbered
	}
}

// eachAddress visits the addresses that an instance asks for, each with the prefix from which.
func (st *Site) eachAddress(r *Resource, visit func(path []string, ip netip.Addr, on *Resource)) {
	st.eachAttachment(r, func(path []string, m map[string]any, on *Resource) {
		ip, err := netip.ParseAddr(textOf(m, "ip_address"))
		if err != nil || on == nil || on.Ref.Kind != carbidePrefix {
			return
		}
		path[len(path)-1] = "ip_address"
		visit(path, ip, on)
	})
}

func checkAddresses(st *Site, r *Resource, p *reporter) {
	st.eachAddress(r, func(path []string, ip netip.Addr, on *Resource) {
		prefix, err := netip.ParsePrefix(textOf(on.Spec, "prefix"))
		if err == nil && !prefix.Contains(ip) {
			p.report(r, path, "The address %s is not in %s of %s.", ip, prefix, on.Ref)
		}
		if bytes := ip.AsSlice(); bytes[len(bytes)-1]%2 == 0 {
			p.report(r, path, "The address %s is the switch end of its link network. Request the odd address, %s.", ip, ip.Next())
		}
	})
}

// sharedAddresses compares the addresses of instances, within a VPC, with each other and with the gateways of segments.
var sharedAddresses = &sharing{
	of: named(carbideInstance, carbideSegment),
	keys: func(st *Site, r *Resource, has func(k key, path ...string)) {
		if r.Ref.Kind == carbideInstance {
			st.eachAddress(r, func(path []string, ip netip.Addr, on *Resource) {
				has(key{ip.String(), textOf(on.Spec, "vpc")}, path...)
			})
			return
		}
		for _, e := range listOf(r.Spec, "prefixes") {
			if ip, err := netip.ParseAddr(textOf(objectOf(e), "gateway")); err == nil {
				has(key{ip.String(), textOf(r.Spec, "vpc")})
			}
		}
	},
	check: func(_ *Site, r *Resource, path []string, k key, shared []*Resource, n int, p *reporter) {
		other := shared[len(shared)-1] // segments come after instances
		if other.Ref.Kind != carbideSegment {
			other = shared[0]
		}
		if r.Ref.Kind == carbideInstance && (n > 0 || other.Ref.Kind == carbideSegment) {
			p.report(r, path, "The address %s is already used by %s. Choose another, or omit it and the site chooses one.", k[0], other.Ref)
		}
	},
}
