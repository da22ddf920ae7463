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

var expectedKinds = []string{carbideExpectedMachine, carbideExpectedSwitch, carbideExpectedShelf}

// carbideHardwareRules continue carbideRules.
var carbideHardwareRules = []Rule{
	{"CV1141", "carbide-same-sku", "SKUs are indistinguishable", "No two SKUs may describe the same machines", checks{sameSKUs}},
	{"CV1142", "carbide-allocation", "More instances than allocated", "A tenant should have as many machines of a type allocated as it has instances", checks{allocations}},
	{"CV1143", "carbide-serial-number", "Serial number is used twice", "A serial number should belong to only one piece of hardware", checks{sharedSerialNumbers}},
	{"CV1144", "carbide-expected", "Expected hardware contradicts itself", "The parts of expected hardware must be consistent", checks{each{named(carbideExpectedMachine), checkExpectedMachine}, each{named(carbideExpectedSwitch), checkExpectedSwitch}}},
	{"CV1145", "carbide-expected-address", "Address cannot be used", "An address of expected hardware must be used only once, and written in canonical form", checks{each{named(expectedKinds...), checkExpectedAddresses}, sharedExpectedAddresses}},
}

var sameSKUs = &sharing{
	of:   named(carbideSKU),
	keys: func(_ *Site, r *Resource, has func(k key, path ...string)) { has(key{sameness(r)}) },
	check: func(_ *Site, r *Resource, _ []string, _ key, shared []*Resource, n int, p *reporter) {
		if n > 0 {
			p.report(r, nil, "The service cannot tell this SKU from %s: it compares the chassis' model and architecture, the sums of sockets, threads and memory, GPUs and disks by model, InfiniBand devices, and the TPM version. Change one of these, or use one SKU.", shared[0].Ref)
		}
	},
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

// allocations only warns, because it is unknown here whether the site enforces them.
var allocations = &sharing{
	of: named(carbideAllocation, carbideInstance),
	keys: func(_ *Site, r *Resource, has func(k key, path ...string)) {
		has(key{textOf(r.Spec, "tenant"), textOf(r.Spec, "instance_type")}, "count")
	},
	check: func(_ *Site, r *Resource, path []string, k key, shared []*Resource, n int, p *reporter) {
		if n > 0 || r.Ref.Kind != carbideAllocation { // allocations come before instances: the first speaks for all
			return
		}
		var used, total int64
		for _, r := range shared {
			if r.Ref.Kind == carbideInstance {
				used++
			} else {
				total += intOf(r.Spec, "count")
			}
		}
		if used > total {
			p.warn(r, path, "The tenant %s has %d machines of type %s allocated, but %d instances. A site may refuse the excess.", k[0], total, k[1], used)
		}
	},
}

// sharedSerialNumbers only warns, because only the hardware itself decides whether two may have the same.
var sharedSerialNumbers = &sharing{
	of: named(expectedKinds...),
	keys: func(_ *Site, r *Resource, has func(k key, path ...string)) {
		for _, field := range []string{"chassis_serial_number", "switch_serial_number", "shelf_serial_number"} {
			if serial := textOf(r.Spec, field); serial != "" {
				has(key{serial, r.Ref.Kind}, field)
			}
		}
	},
	check: func(_ *Site, r *Resource, path []string, k key, shared []*Resource, n int, p *reporter) {
		if n > 0 {
			p.warn(r, path, "The serial number %s is also used by %s. The site could mistake one for the other.", k[0], shared[0].Ref)
		}
	},
}

func checkExpectedMachine(_ *Site, r *Resource, p *reporter) {
	primaries := 0
	for i, e := range listOf(r.Spec, "host_nics") {
		if !boolOf(objectOf(e), "primary") {
			continue
		}
		if primaries++; primaries > 1 {
			p.report(r, []string{"host_nics", strconv.Itoa(i), "primary"}, "The host already boots from another interface that is primary. Keep one.")
		}
	}
	seen := make(map[any]bool)
	for i, serial := range listOf(r.Spec, "fallback_dpu_serial_numbers") {
		if seen[serial] {
			p.report(r, []string{"fallback_dpu_serial_numbers", strconv.Itoa(i)}, "The serial number %v is listed twice. Remove one.", serial)
		}
		seen[serial] = true
	}
}

func checkExpectedSwitch(_ *Site, r *Resource, p *reporter) {
	if n := len(listOf(r.Spec, "nvos_mac_addresses")); r.Spec["nvos_ip_address"] != nil && n != 1 {
		p.report(r, []string{"nvos_ip_address"}, "The field nvos_ip_address needs exactly one MAC address in nvos_mac_addresses; there are %d.", n)
	}
}

// eachExpectedAddress visits the addresses of expected hardware, as they are written.
func eachExpectedAddress(r *Resource, visit func(ip netip.Addr, text string, path ...string)) {
	at := func(m map[string]any, path ...string) {
		text := textOf(m, path[len(path)-1])
		if ip, err := netip.ParseAddr(text); err == nil {
			visit(ip, text, path...)
		}
	}
	at(r.Spec, "bmc_ip_address")
	at(r.Spec, "nvos_ip_address")
	for i, e := range listOf(r.Spec, "host_nics") {
		at(objectOf(e), "host_nics", strconv.Itoa(i), "fixed_ip")
	}
}

func checkExpectedAddresses(_ *Site, r *Resource, p *reporter) {
	eachExpectedAddress(r, func(ip netip.Addr, text string, path ...string) {
		if ip.String() != text {
			p.report(r, path, "The service stores this address as %s, so it would always differ. Write it that way.", ip)
		}
	})
}

var sharedExpectedAddresses = &sharing{
	of: named(expectedKinds...),
	keys: func(_ *Site, r *Resource, has func(k key, path ...string)) {
		eachExpectedAddress(r, func(ip netip.Addr, _ string, path ...string) { has(key{ip.String()}, path...) })
	},
	check: taken("The address %s is already used by %s. Choose another."),
}
