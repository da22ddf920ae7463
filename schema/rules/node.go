package rules

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"converge.dev/converge/schema"
)

// The kinds of the kernel of a node that rules refer to.
const (
	hostHugepages = "host.hugepages"
	pciFunction   = "pci.function"
	pciSRIOV      = "pci.sriov"
)

// nodeRules report what a node does not have enough of, or not as a domain needs it, where that is certain from the document alone. The
// kernel and libvirt would refuse it too, but only after much else was made.
var nodeRules = []Rule{
	{"CV1175", "node-hugepages", "Wrong or too few huge pages", "A domain in huge pages needs one pool on each of its NUMA nodes, and all that run need enough pages", checks{each{named(libvirtDomain), checkHugepages}, sharedPools}},
	{"CV1176", "node-virtual-functions", "Too few virtual functions", "There must be as many virtual functions as are bound to drivers", checks{sharedVirtualFunctions}},
	{"CV1177", "node-assigned-driver", "PCI function may not be assignable", "A PCI function that a running domain has must be bound to a driver of VFIO", checks{each{named(libvirtDomain), checkAssigned}}},
	{"CV1184", "node-virtual-function-attributes", "Wrong attributes of a virtual function", "Attributes are those of virtual functions that there are, and fit each other", checks{each{named(pciSRIOV), checkVFs}}},
}

// ignores reports whether a resource leaves one of some fields as it is: its value in the document says nothing then.
func ignores(r *Resource, fields ...string) bool {
	return slices.ContainsFunc(r.Lifecycle.Ignore, func(path string) bool { return slices.Contains(fields, path) })
}

// runs reports whether a domain is to run. One that is stopped may be declared with what it will only get later.
func runs(r *Resource) bool { return textOf(r.Spec, "state") != "stopped" && !ignores(r, "state") }

// poolOf reads the name of a pool of huge pages: its NUMA node, and the size of a page in bytes. Without one, a page is no bytes long.
func poolOf(name string) (node, page int64) {
	number, size, _ := strings.Cut(strings.TrimPrefix(name, "node"), "-")
	node, err := strconv.ParseInt(number, 10, 64)
	kibi, errSize := strconv.ParseInt(strings.TrimSuffix(size, "kB"), 10, 64)
	if err != nil || errSize != nil {
		return 0, 0
	}
	return node, kibi << 10
}

// checkHugepages checks a domain by itself: what its pools are, and whether they are large enough for it alone.
func checkHugepages(st *Site, r *Resource, p *reporter) {
	pools := listOf(r.Spec, "hugepages")
	if len(pools) == 0 || ignores(r, "hugepages", "numa_nodes", "memory") {
		return
	}
	at, memory := []string{"hugepages"}, intOf(r.Spec, "memory")
	var nodes []int64
	var page, count int64
	known := true
	for i, e := range pools {
		name, _ := e.(string)
		node, size := poolOf(name)
		if i > 0 && size != page {
			p.report(r, append(slices.Clip(at), strconv.Itoa(i)), "The page size of %s differs from that of %s. Name pools with pages of one size.", name, pools[0])
			return
		}
		page, nodes = size, append(nodes, node)
		if pool := st.target(r, hostHugepages, name); pool == nil || ignores(pool, "count") {
			known = false // of others
		} else {
			count += intOf(pool.Spec, "count")
		}
	}
	slices.Sort(nodes)
	var wanted []int64
	for _, n := range listOf(r.Spec, "numa_nodes") {
		n, _ := n.(int64)
		wanted = append(wanted, n)
	}
	slices.Sort(wanted)
	if page == 0 {
		return
	}
	pages := pagesOf(r, page)
	switch {
	case !slices.Equal(nodes, wanted):
		p.report(r, at, "The pools are on the NUMA nodes %v and numa_nodes is %v. Name one pool on each of numa_nodes.", nodes, wanted)
	case memory%page != 0:
		p.warn(r, []string{"memory"}, "The memory is not a multiple of the page size, %d bytes: QEMU rounds it up, or refuses it. Use %d.", page, pages*page)
	case known && runs(r) && pages > count && len(pools) > 1:
		p.report(r, []string{"memory"}, "The domain needs %d pages, and the pools that it names have %d in total. Raise their counts by %d in total, or use less memory.", pages, count, pages-count)
	case known && runs(r) && pages > count:
		p.report(r, []string{"memory"}, "The domain needs %d pages, and the pool that it names has %d. Raise its count by %d, or use less memory.", pages, count, pages-count)
	}
}

// pagesOf is how many pages the memory of a domain takes.
func pagesOf(r *Resource, page int64) int64 { return (intOf(r.Spec, "memory") + page - 1) / page }

// sharedPools checks the domains that run in the pages of one pool. How those with several pools spread their memory is libvirt's
// choice, so they are not counted.
var sharedPools = &sharing{
	of: named(libvirtDomain, hostHugepages),
	keys: func(_ *Site, r *Resource, has func(k key, path ...string)) {
		switch pools := listOf(r.Spec, "hugepages"); {
		case r.Ref.Kind == hostHugepages:
			has(key{r.Ref.Name, r.Ref.Scope})
		case len(pools) == 1 && runs(r) && !ignores(r, "hugepages", "memory"):
			name, _ := pools[0].(string)
			has(key{name, r.Ref.Scope}, "memory")
		}
	},
	check: func(st *Site, _ *Resource, _ []string, k key, shared []*Resource, n int, p *reporter) {
		pool := st.index[schema.Ref{Scope: k[1], Kind: hostHugepages, Name: k[0]}]
		_, page := poolOf(k[0])
		if n > 0 || pool == nil || !pool.sound || ignores(pool, "count") || page == 0 {
			return // once for each pool that is declared
		}
		count, needed := intOf(pool.Spec, "count"), int64(0)
		var last *Resource // which does not fit, beside those before
		for _, r := range shared {
			if r == pool || pagesOf(r, page) > count {
				continue // that one is reported by itself
			}
			needed += pagesOf(r, page)
			if last == nil && needed > count {
				last = r
			}
		}
		if last != nil {
			p.report(last, []string{"memory"}, "The domains that run in %s need %d pages, and it has %d. Raise its count by %d, or stop domains.", pool.Ref, needed, count, needed-count)
		}
	},
}

var sharedVirtualFunctions = &sharing{
	of: named(pciFunction, pciSRIOV),
	keys: func(_ *Site, r *Resource, has func(k key, path ...string)) {
		if r.Ref.Kind == pciSRIOV {
			has(key{r.Ref.Name, r.Ref.Scope})
		} else if of := textOf(r.Spec, "physical_function"); of != "" {
			has(key{of, r.Ref.Scope}, "physical_function")
		}
	},
	check: func(st *Site, r *Resource, path []string, k key, shared []*Resource, n int, p *reporter) {
		made := st.index[schema.Ref{Scope: k[1], Kind: pciSRIOV, Name: k[0]}]
		if made == nil || !made.sound || r == made || ignores(made, "num_vfs") {
			return
		}
		// Functions come before what makes them in the order of refs, so the first of them are those that there are.
		if count := intOf(made.Spec, "num_vfs"); int64(n) >= count {
			p.report(r, path, "The num_vfs of %s is %d, and %d of its virtual functions are declared. Raise num_vfs, which replaces them all, or remove this one.", made.Ref, count, len(shared)-1)
		}
	},
}

// checkVFs checks what a network card is to enforce for virtual functions.
func checkVFs(_ *Site, r *Resource, p *reporter) {
	if ignores(r, "num_vfs", "vfs") {
		return
	}
	vfs, _ := r.Spec["vfs"].(map[string]any)
	for _, number := range slices.Sorted(maps.Keys(vfs)) {
		vf := objectOf(vfs[number])
		if n, err := strconv.ParseInt(number, 10, 64); err == nil && n >= intOf(r.Spec, "num_vfs") {
			p.report(r, []string{"vfs", number}, "Virtual functions are numbered from 0, so of %d none has the number %s. Raise num_vfs, which replaces them all, or remove this one.", intOf(r.Spec, "num_vfs"), number)
			continue
		}
		for _, needs := range []string{"qos", "vlan_protocol"} {
			if _, stated := vf[needs]; stated && intOf(vf, "vlan") == 0 {
				p.report(r, []string{"vfs", number, needs}, "Frames have %s only in a VLAN, and there is none. State vlan, or remove %[1]s.", needs)
			}
		}
		if low, high := intOf(vf, "min_tx_rate"), intOf(vf, "max_tx_rate"); high > 0 && low > high {
			p.report(r, []string{"vfs", number, "min_tx_rate"}, "The guaranteed rate, %d Mbit/s, is above the maximum rate, %d. Lower it.", low, high)
		}
	}
}

// checkAssigned warns of drivers that are none of VFIO by their names, which is what libvirt takes without further ado. Some vendors
// have drivers that are both.
func checkAssigned(st *Site, r *Resource, p *reporter) {
	if !runs(r) {
		return
	}
	for i, e := range listOf(r.Spec, "hostdevs") {
		f := st.target(r, pciFunction, objectOf(e)["address"])
		if f == nil || ignores(f, "driver") {
			continue // of others, or said elsewhere
		}
		if driver := textOf(f.Spec, "driver"); !strings.Contains(driver, "vfio") {
			p.warn(r, []string{"hostdevs", strconv.Itoa(i), "address"}, "The driver of %s is %s. A domain can only have a function whose driver is one of VFIO: set it to vfio-pci, unless %[2]s is one, too.", f.Ref, driver)
		}
	}
}
