package rules

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The kinds of Carbide that instances boot from, and that run beside them.
const (
	carbideOS      = "carbide.operating_system"
	carbideService = "carbide.dpu_extension_service"
)

// carbideImageRules are the rules for what instances boot and what runs on their DPUs.
var carbideImageRules = []Rule{
	{"CV1171", "carbide-os-type", "Operating system is not clear", "An operating system has what its type asks for, and nothing of the other", checks{each{named(carbideOS), checkOSTypes}}},
	{"CV1172", "carbide-service-name", "Name of a service is used twice", "An extension service's name is used once in a tenant, upper and lower case being the same", checks{sharedServiceNames}},
	{"CV1173", "carbide-service-manifest", "Manifest is not that of a pod", "An extension service's manifest is a pod with a name and a container", checks{each{named(carbideService), checkManifest}}},
	{"CV1174", "carbide-service-parts", "Parts of a service do not fit", "An extension service has a whole credential or none, and collects each thing in one way", checks{each{named(carbideService), checkServiceParts}}},
}

func checkOSTypes(_ *Site, r *Resource, p *reporter) {
	needs := map[string]string{"ipxe": "script", "template": "template"}
	of := map[string]string{"script": "ipxe", "template": "template", "parameters": "template", "artifacts": "template"}
	sort := textOf(r.Spec, "type")
	if need := needs[sort]; r.Spec[need] == nil {
		p.report(r, nil, "An operating system of type %q needs a %s. Add it, or write another type.", sort, need)
	}
	for _, field := range []string{"script", "template", "parameters", "artifacts"} {
		if r.Spec[field] != nil && of[field] != sort {
			p.report(r, []string{field}, "Only an operating system of type %q has %s; this one is %q. Remove one of the two.", of[field], field, sort)
		}
	}
	for _, field := range []string{"parameters", "artifacts"} {
		for i, e := range listOf(r.Spec, field) {
			if strings.EqualFold(textOf(objectOf(e), "name"), "extra") {
				p.report(r, []string{field, strconv.Itoa(i), "name"}, "The name extra is the service's own, for the place of parameters that a template does not name. Write the parameter that you mean.")
			}
		}
	}
}

var sharedServiceNames = &sharing{
	of: named(carbideService),
	keys: func(_ *Site, r *Resource, has func(k key, path ...string)) {
		has(key{strings.ToLower(r.Ref.Name), textOf(r.Spec, "tenant")})
	},
	check: func(_ *Site, r *Resource, _ []string, _ key, shared []*Resource, n int, p *reporter) {
		if n > 0 {
			p.report(r, nil, "To the service this is the same name as that of %s, of the same tenant: upper and lower case do not count. Choose another.", shared[0].Ref)
		}
	},
}

// maxManifest is how many bytes of a manifest the service accepts.
const maxManifest = 64 << 10

func checkManifest(_ *Site, r *Resource, p *reporter) {
	text := textOf(r.Spec, "manifest")
	if len(text) > maxManifest {
		p.report(r, []string{"manifest"}, "The manifest has %d bytes, the service takes %d. Shorten it.", len(text), maxManifest)
	} else if wrong := wrongManifest(text); wrong != "" {
		p.report(r, []string{"manifest"}, "%s", wrong)
	}
}

// wrongManifest returns what the service would refuse in a manifest; "" when it is valid.
func wrongManifest(text string) string {
	var pod struct {
		Version  any `yaml:"apiVersion"`
		Kind     any `yaml:"kind"`
		Metadata struct {
			Name any `yaml:"name"`
		} `yaml:"metadata"`
		Spec struct {
			Containers []yaml.Node `yaml:"containers"`
		} `yaml:"spec"`
	}
	d := yaml.NewDecoder(bytes.NewReader([]byte(text)))
	var rest yaml.Node
	switch {
	case d.Decode(&pod) != nil:
		return "This is no manifest of a pod in YAML or JSON. Write apiVersion, kind, metadata and spec."
	case !errors.Is(d.Decode(&rest), io.EOF):
		return "There is more than one document. The manifest is one pod."
	case pod.Version == nil:
		return "The manifest has no apiVersion. Add apiVersion: v1."
	case pod.Kind != "Pod":
		return "The manifest is not of kind Pod, and the service takes no other. Write kind: Pod."
	case pod.Metadata.Name == nil:
		return "The pod has no name. Add metadata: {name: ...}."
	case len(pod.Spec.Containers) == 0:
		return "The pod has no container. Add one to spec.containers."
	}
	return ""
}

// maxObservability is how many things the service collects from a pod.
const maxObservability = 20

func checkServiceParts(_ *Site, r *Resource, p *reporter) {
	var given, lacking []string
	for _, field := range []string{"registry", "registry_username", "registry_password"} {
		if r.Spec[field] != nil {
			given = append(given, field)
		} else {
			lacking = append(lacking, field)
		}
	}
	if len(given) > 0 && len(lacking) > 0 {
		p.report(r, []string{given[0]}, "The credential has no %s. Give all three of its parts, or none.", strings.Join(lacking, " and no "))
	}
	all := listOf(r.Spec, "observability")
	if n := len(all); n > maxObservability {
		p.report(r, []string{"observability"}, "There are %d things to collect, the service takes %d. Remove some.", n, maxObservability)
	}
	for i, e := range all {
		path := []string{"observability", strconv.Itoa(i)}
		switch m := objectOf(e); {
		case m["prometheus"] == nil && m["logging"] == nil:
			p.report(r, path, "Nothing says how this is collected. Give prometheus or logging.")
		case m["prometheus"] != nil && m["logging"] != nil:
			p.report(r, path, "Both prometheus and logging say how this is collected. Make two of it.")
		}
	}
}
