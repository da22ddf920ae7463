package rules

import (
	"fmt"
	"strconv"
)

// checkInstanceScripts reports entries of the library that are scripts: the service stores in an instance the script instead
// of the entry, so that the document and the site would differ for ever.
func checkInstanceScripts(st *Site, r *Resource, p *reporter) {
	os := objectOf(r.Spec["os"])
	if os["operating_system"] == nil {
		return
	}
	entry := st.target(r, carbideOS, os["operating_system"])
	if entry != nil && textOf(entry.Spec, "type") == "ipxe" {
		p.report(r, []string{"os", "operating_system"}, "%s is a plain iPXE script. The service stores the script in the instance, not the entry, so the instance would never match this document. Put the script in os.ipxe, or base the entry on a template.", entry.Ref)
	}
}

// A fabricSection is a list of an instance whose elements are identified by some of their fields. That GPUs are identified by
// their number is in the schema.
type fabricSection struct {
	field string
	what  string // an element, for people
	by    []string
}

var fabricSections = []fabricSection{
	{"infiniband", "port", []string{"device", "device_instance"}},
	{"spx", "port", []string{"device", "device_instance"}},
	{"dpu_extension_services", "service", []string{"service"}},
}

func checkInstanceFabrics(_ *Site, r *Resource, p *reporter) {
	for _, section := range fabricSections {
		seen := make(map[string]bool)
		for i, e := range listOf(r.Spec, section.field) {
			name := ""
			for _, field := range section.by {
				name += fmt.Sprint(" ", objectOf(e)[field])
			}
			if seen[name] {
				p.report(r, []string{section.field, strconv.Itoa(i)}, "The %s%s is already listed. Remove one of the two.", section.what, name)
			}
			seen[name] = true
		}
	}
	if boolOf(r.Spec, "auto_network") && len(listOf(r.Spec, "dpu_extension_services")) > 0 {
		p.report(r, []string{"dpu_extension_services"}, "Services run on managed DPUs, but auto_network is for hosts without one. Remove one of the two.")
	}
}

// eachPartition visits the partitions of an instance's ports that must belong to its tenant, nil where one is not sound.
// The service does not check the tenant of an NVLink partition.
func (st *Site) eachPartition(r *Resource, visit func(path []string, on *Resource)) {
	for _, s := range []struct{ section, field, kind string }{
		{"infiniband", "ib_partition", carbideIBPartition},
		{"spx", "spx_partition", carbideSPXPartition},
	} {
		for i, e := range listOf(r.Spec, s.section) {
			if name := objectOf(e)[s.field]; name != nil {
				visit([]string{s.section, strconv.Itoa(i), s.field}, st.target(r, s.kind, name))
			}
		}
	}
}
