package rules

// The kinds of Carbide that join and partition networks.
const (
	carbidePeering      = "carbide.vpc_peering"
	carbideIBPartition  = "carbide.ib_partition"
	carbideSPXPartition = "carbide.spx_partition"
)

func checkPeerings(st *Site, p *reporter) {
	first := make(firstWith[[2]string])
	for r := range st.sound(carbidePeering) {
		var pair [2]string
		names := listOf(r.Spec, "vpcs") // sorted
		if len(names) != len(pair) {
			continue
		}
		for i, name := range names {
			pair[i], _ = name.(string)
		}
		if other := first.take(pair, r); other != nil {
			p.report(r, []string{"vpcs"}, "The VPCs %s and %s are peered by %s already, and a pair is peered once, whatever the order. Remove one of the two.", pair[0], pair[1], other.Ref)
		}
	}
}

func checkPartitionNumbers(st *Site, p *reporter) {
	keys := make(firstWith[string])
	for r := range st.sound(carbideIBPartition) {
		key := textOf(r.Spec, "pkey")
		if key == "" {
			continue
		}
		if other := keys.take(key, r); other != nil {
			p.report(r, []string{"pkey"}, "The partition key %s belongs to %s already. Choose another, or leave it out and the site chooses.", key, other.Ref)
		}
	}
	numbers := make(firstWith[int64])
	for r := range st.sound(carbideSPXPartition) {
		vni := intOf(r.Spec, "vni")
		if vni == 0 {
			continue
		}
		if other := numbers.take(vni, r); other != nil {
			p.report(r, []string{"vni"}, "The VNI %d belongs to %s already. Choose another, or leave it out and the site chooses.", vni, other.Ref)
		}
	}
}
