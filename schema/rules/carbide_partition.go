package rules

import "strconv"

// The kinds of Carbide that join and partition networks.
const (
	carbidePeering      = "carbide.vpc_peering"
	carbideIBPartition  = "carbide.ib_partition"
	carbideSPXPartition = "carbide.spx_partition"
)

var sharedPeerings = &sharing{
	of: named(carbidePeering),
	keys: func(_ *Site, r *Resource, has func(k key, path ...string)) {
		var pair key
		names := listOf(r.Spec, "vpcs") // sorted
		if len(names) != len(pair) {
			return
		}
		for i, name := range names {
			pair[i], _ = name.(string)
		}
		has(pair, "vpcs")
	},
	check: func(_ *Site, r *Resource, path []string, k key, shared []*Resource, n int, p *reporter) {
		if n > 0 {
			p.report(r, path, "The VPCs %s and %s are already peered by %s; a pair can be peered only once, in either order. Remove one of the two.", k[0], k[1], shared[0].Ref)
		}
	},
}

var sharedPartitionNumbers = &sharing{
	of: named(carbideIBPartition, carbideSPXPartition),
	keys: func(_ *Site, r *Resource, has func(k key, path ...string)) {
		if pkey := textOf(r.Spec, "pkey"); pkey != "" {
			has(key{pkey, "partition key"}, "pkey")
		}
		if vni := intOf(r.Spec, "vni"); vni != 0 {
			has(key{strconv.FormatInt(vni, 10), "VNI"}, "vni")
		}
	},
	check: func(_ *Site, r *Resource, path []string, k key, shared []*Resource, n int, p *reporter) {
		if n > 0 {
			p.report(r, path, "The %s %s is already used by %s. Choose another, or omit it and the site chooses one.", k[1], k[0], shared[0].Ref)
		}
	},
}
