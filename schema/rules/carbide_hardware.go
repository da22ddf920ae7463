package rules

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// The kinds of Carbide that describe hardware, and what is allocated of it.
const (
	carbideSKU             = "carbide.sku"
	carbideAllocation      = "carbide.compute_allocation"
	carbideExpectedMachine = "carbide.expected_machine"
	carbideExpectedSwitch  = "carbide.expected_switch"
	carbideExpectedShelf   = "carbide.expected_power_shelf"
)

// carbideHardwareRules continue carbideRules.
var carbideHardwareRules = []Rule{
	{"CV1141", "carbide-same-sku", "SKUs say the same", "No two SKUs say the same of the machines that belong to them", checkSameSKUs},
	{"CV1142", "carbide-allocation", "More instances than allocated", "A tenant has as many machines of a type allocated as it has instances", checkAllocations},
	{"CV1143", "carbide-serial-number", "Serial number is used twice", "A serial number belongs to one piece of hardware", checkSerialNumbers},
	{"CV1144", "carbide-expected", "Expected hardware contradicts itself", "The parts of what is expected fit each other", checkExpected},
	{"CV1145", "carbide-expected-address", "Address cannot be used", "An address of expected hardware is used once, and written in its usual form", checkExpectedAddresses},
}

func checkSameSKUs(st *Site, p *reporter) {
	first := make(firstWith[string])
	for r := range st.sound(carbideSKU) {
		if other := first.take(sameness(r), r); other != nil {
			p.report(r, nil, "It says the same as %s: the service looks at the chassis' model and architecture, at sums of sockets, threads and memory, at GPUs and disks by model, at InfiniBand devices, and at the TPM's version. Change one of these, or use one SKU.", other.Ref)
		}
	}
}

// sameness returns what the service compares in SKUs.
func sameness(r *Resource) string {
	var b strings.Builder
	chassis := objectOf(r.Spec["chassis"])
	fmt.Fprintf(&b, "%q %q\n", textOf(chassis, "model"), textOf(chassis, "architecture"))
	var sockets, threads, memory int64
	for _, e := range listOf(r.Spec, "cpus") {
		sockets, threads = sockets+intOf(objectOf(e), "count"), threads+intOf(objectOf(e), "thread_count")
	}
	for _, e := range listOf(r.Spec, "memory") {
		memory += intOf(objectOf(e), "capacity_mb") * intOf(objectOf(e), "count")
	}
	fmt.Fprintln(&b, sockets, threads, memory)
	for _, list := range []string{"gpus", "storage"} { // sorted by model
		for _, e := range listOf(r.Spec, list) {
			fmt.Fprintf(&b, "%s %q %d\n", list, textOf(objectOf(e), "model"), intOf(objectOf(e), "count"))
		}
	}
	for _, e := range listOf(r.Spec, "infiniband_devices") { // sorted
		m := objectOf(e)
		fmt.Fprintf(&b, "infiniband %q %q %d %v\n", textOf(m, "vendor"), textOf(m, "model"), intOf(m, "count"), listOf(m, "inactive_devices"))
	}
	if tpm := objectOf(r.Spec["tpm"]); tpm != nil {
		fmt.Fprintf(&b, "tpm %q\n", textOf(tpm, "version"))
	}
	return b.String()
}

// checkAllocations only warns, because it is unknown here whether the site enforces allocations.
func checkAllocations(st *Site, p *reporter) {
	type share struct{ tenant, instanceType string }
	of := func(r *Resource) share { return share{textOf(r.Spec, "tenant"), textOf(r.Spec, "instance_type")} }
	used := make(map[share]int64)
	for r := range st.sound(carbideInstance) {
		used[of(r)]++
	}
	total := make(map[share]int64)
	for r := range st.sound(carbideAllocation) {
		total[of(r)] += intOf(r.Spec, "count")
	}
	told := make(map[share]bool)
	for r := range st.sound(carbideAllocation) {
		if s := of(r); used[s] > total[s] && !told[s] {
			told[s] = true
			p.warn(r, []string{"count"}, "The tenant %s has %d machines of type %s allocated, and %d instances. A site may refuse those beyond.", s.tenant, total[s], s.instanceType, used[s])
		}
	}
}

// checkSerialNumbers only warns, because only the hardware itself decides whether two may have the same.
func checkSerialNumbers(st *Site, p *reporter) {
	for _, k := range []struct{ kind, field string }{
		{carbideExpectedMachine, "chassis_serial_number"}, {carbideExpectedSwitch, "switch_serial_number"}, {carbideExpectedShelf, "shelf_serial_number"},
	} {
		first := make(firstWith[string])
		for r := range st.sound(k.kind) {
			if other := first.take(textOf(r.Spec, k.field), r); other != nil {
				p.warn(r, []string{k.field}, "The serial number %s is that of %s too. The site could take one for the other.", textOf(r.Spec, k.field), other.Ref)
			}
		}
	}
}

func checkExpected(st *Site, p *reporter) {
	for r := range st.sound(carbideExpectedMachine) {
		primaries := 0
		for i, e := range listOf(r.Spec, "host_nics") {
			if !boolOf(objectOf(e), "primary") {
				continue
			}
			if primaries++; primaries > 1 {
				p.report(r, []string{"host_nics", strconv.Itoa(i), "primary"}, "Another interface is the one that the host boots from. Keep one.")
			}
		}
		seen := make(map[any]bool)
		for i, serial := range listOf(r.Spec, "fallback_dpu_serial_numbers") {
			if seen[serial] {
				p.report(r, []string{"fallback_dpu_serial_numbers", strconv.Itoa(i)}, "The serial number %v is there twice. Remove one.", serial)
			}
			seen[serial] = true
		}
	}
	for r := range st.sound(carbideExpectedSwitch) {
		if n := len(listOf(r.Spec, "nvos_mac_addresses")); r.Spec["nvos_ip_address"] != nil && n != 1 {
			p.report(r, []string{"nvos_ip_address"}, "The address is given to the interface with the one MAC address in nvos_mac_addresses; there are %d.", n)
		}
	}
}

func checkExpectedAddresses(st *Site, p *reporter) {
	first := make(firstWith[netip.Addr])
	check := func(r *Resource, m map[string]any, path ...string) {
		text := textOf(m, path[len(path)-1])
		ip, err := netip.ParseAddr(text)
		if err != nil {
			return
		}
		if ip.String() != text {
			p.report(r, path, "The service writes this address as %s, so it would differ for ever. Write it so.", ip)
		}
		if other := first.take(ip, r); other != nil {
			p.report(r, path, "The address %s belongs to %s already. Choose another.", ip, other.Ref)
		}
	}
	for _, kind := range []string{carbideExpectedMachine, carbideExpectedSwitch, carbideExpectedShelf} {
		for r := range st.sound(kind) {
			check(r, r.Spec, "bmc_ip_address")
			check(r, r.Spec, "nvos_ip_address")
			for i, e := range listOf(r.Spec, "host_nics") {
				check(r, objectOf(e), "host_nics", strconv.Itoa(i), "fixed_ip")
			}
		}
	}
}
