package rules

import (
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

// nodeRules report what a node does not have enough of, or not as a domain needs it. The kernel and libvirt would refuse it too, but
// only after much else was made.
var nodeRules = []Rule{
	{"CV1175", "node-hugepages", "Wrong or too few huge pages", "A domain in huge pages needs one pool on each of its NUMA nodes, and all that run need enough pages", checks{each{named(libvirtDomain), checkHugepages}, sharedPools}},
	{"CV1176", "node-virtual-functions", "Too few virtual functions", "There must be as many virtual functions as are bound to drivers", checks{sharedVirtualFunctions}},
	{"CV1177", "node-assigned-driver", "PCI function cannot be assigned", "A PCI function that a domain has must be bound to vfio-pci, or to a variant of it", checks{each{named(libvirtDomain), checkAssigned}}},
}

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
	if len(pools) == 0 {
		return
	}
	at, memory := []string{"hugepages"}, intOf(r.Spec, "memory")
	var nodes []int64
	var page, bytes int64
	known := true
	for i, e := range pools {
		name, _ := e.(string)
		node, size := poolOf(name)
		if i > 0 && size != page {
			p.report(r, append(slices.Clip(at), strconv.Itoa(i)), "The page size of %s differs from that of %s. Name pools with pages of one size.", name, pools[0])
			return
		}
		page, nodes = size, append(nodes, node)
		if pool := st.target(r, hostHugepages, name); pool == nil {
			known = false // of others
		} else {
			bytes += intOf(pool.Spec, "count") * size
		}
	}
	slices.Sort(nodes)
	var wanted []int64
	for _, n := range listOf(r.Spec, "numa_nodes") {
		n, _ := n.(int64)
		wanted = append(wanted, n)
	}
	slices.Sort(wanted)
	switch {
	case page == 0:
	case !slices.Equal(nodes, wanted):
		p.report(r, at, "The pools are on the NUMA nodes %v and numa_nodes is %v. Name one pool on each of numa_nodes.", nodes, wanted)
	case memory%page != 0:
		p.report(r, []string{"memory"}, "The memory is not a multiple of the page size, %d bytes. Use %d or %d.", page, memory/page*page, (memory/page+1)*page)
	case known && memory > bytes:
		p.report(r, []string{"memory"}, "The domain needs %d pages, and the pools that it names have %d. Raise their counts by %d together, or use less memory.", memory/page, bytes/page, (memory-bytes)/page)
	}
}

// sharedPools checks the domains that run in the pages of one pool. How those with several pools spread their memory is libvirt's
// choice, so they are not counted.
var sharedPools = &sharing{
	of: named(libvirtDomain, hostHugepages),
	keys: func(_ *Site, r *Resource, has func(k key, path ...string)) {
		switch pools := listOf(r.Spec, "hugepages"); {
		case r.Ref.Kind == hostHugepages:
			has(key{r.Ref.Name, r.Ref.Scope})
		case len(pools) == 1 && textOf(r.Spec, "state") != "stopped":
			name, _ := pools[0].(string)
			has(key{name, r.Ref.Scope}, "memory")
		}
	},
	check: func(st *Site, _ *Resource, _ []string, k key, shared []*Resource, n int, p *reporter) {
		pool := st.index[schema.Ref{Scope: k[1], Kind: hostHugepages, Name: k[0]}]
		_, page := poolOf(k[0])
		if n > 0 || pool == nil || !pool.sound || page == 0 {
			return // once for each pool that is declared
		}
		count := intOf(pool.Spec, "count")
		needed := int64(0)
		for _, r := range shared {
			pages := (intOf(r.Spec, "memory") + page - 1) / page
			if pages > count {
				continue // said of that domain by itself
			}
			if needed += pages; needed > count && r.Ref.Kind == libvirtDomain {
				p.report(r, []string{"memory"}, "With this domain, those that run in %s need %d pages, and it has %d. Raise its count by %d, or stop a domain.", pool.Ref, needed, count, needed-count)
				return
			}
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
		if made == nil || !made.sound || r == made {
			return
		}
		// Functions come before what makes them in the order of refs, so the first of them are those that there are.
		if count := intOf(made.Spec, "num_vfs"); int64(n) >= count {
			p.report(r, path, "%s makes %d virtual functions, and this is one more. Raise its num_vfs to %d, or remove one.", made.Ref, count, len(shared)-1)
		}
	},
}

// checkAssigned checks the drivers of a domain's functions. Variants of vfio-pci for certain devices, such as mlx5_vfio_pci, have it
// in their names.
func checkAssigned(st *Site, r *Resource, p *reporter) {
	for i, e := range listOf(r.Spec, "hostdevs") {
		f := st.target(r, pciFunction, objectOf(e)["address"])
		if f == nil {
			continue // of others, or said elsewhere
		}
		if driver := textOf(f.Spec, "driver"); !strings.Contains(driver, "vfio") {
			p.report(r, []string{"hostdevs", strconv.Itoa(i), "address"}, "The driver of %s is %s, and a domain can only have a function whose driver is vfio-pci. Set its driver to vfio-pci.", f.Ref, driver)
		}
	}
}
