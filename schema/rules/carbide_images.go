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
	{"CV1171", "carbide-os-type", "Operating system is inconsistent", "An operating system must have the fields that its type needs, and none of the other type", checks{each{named(carbideOS), checkOSTypes}}},
	{"CV1172", "carbide-service-name", "Service name is used twice", "An extension service's name must be unique within a tenant, ignoring case", checks{sharedServiceNames}},
	{"CV1173", "carbide-service-manifest", "Manifest is not a pod", "An extension service's manifest must be a pod with a name and a container", checks{each{named(carbideService), checkManifest}}},
	{"CV1174", "carbide-service-parts", "Service is inconsistent", "An extension service must have a complete credential or none, and one way to collect each item", checks{each{named(carbideService), checkServiceParts}}},
}

func checkOSTypes(_ *Site, r *Resource, p *reporter) {
	needs := map[string]string{"ipxe": "script", "template": "template"}
	of := map[string]string{"script": "ipxe", "template": "template", "parameters": "template", "artifacts": "template"}
	sort := textOf(r.Spec, "type")
	if need := needs[sort]; r.Spec[need] == nil {
		p.report(r, nil, "An operating system of type %q needs a %s. Add it, or change the type.", sort, need)
	}
	for _, field := range []string{"script", "template", "parameters", "artifacts"} {
		if r.Spec[field] != nil && of[field] != sort {
			p.report(r, []string{field}, "Only an operating system of type %q can have %s; this one is %q. Remove it, or change the type.", of[field], field, sort)
		}
	}
	for _, field := range []string{"parameters", "artifacts"} {
		for i, e := range listOf(r.Spec, field) {
			if strings.EqualFold(textOf(objectOf(e), "name"), "extra") {
				p.report(r, []string{field, strconv.Itoa(i), "name"}, "The name extra is reserved by the service as the placeholder for parameters that a template does not name. Use the name of the parameter you mean.")
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
			p.report(r, nil, "The service ignores case, so this is the same name as that of %s, of the same tenant. Choose another.", shared[0].Ref)
		}
	},
}

// maxManifest is how many bytes of a manifest the service accepts.
const maxManifest = 64 << 10

func checkManifest(_ *Site, r *Resource, p *reporter) {
	text := textOf(r.Spec, "manifest")
	if len(text) > maxManifest {
		p.report(r, []string{"manifest"}, "The manifest has %d bytes; the service accepts at most %d. Shorten it.", len(text), maxManifest)
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
		return "This is not a pod manifest in YAML or JSON. Write apiVersion, kind, metadata and spec."
	case !errors.Is(d.Decode(&rest), io.EOF):
		return "The manifest contains more than one document. It must be a single pod."
	case pod.Version == nil:
		return "The manifest has no apiVersion. Add apiVersion: v1."
	case pod.Kind != "Pod":
		return "The manifest is not of kind Pod, the only kind that the service accepts. Write kind: Pod."
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
		p.report(r, []string{given[0]}, "The credential has no %s. Set all three parts, or none.", strings.Join(lacking, " and no "))
	}
	all := listOf(r.Spec, "observability")
	if n := len(all); n > maxObservability {
		p.report(r, []string{"observability"}, "There are %d items to collect; the service accepts at most %d. Remove some.", n, maxObservability)
	}
	for i, e := range all {
		path := []string{"observability", strconv.Itoa(i)}
		switch m := objectOf(e); {
		case m["prometheus"] == nil && m["logging"] == nil:
			p.report(r, path, "Nothing specifies how this is collected. Set prometheus or logging.")
		case m["prometheus"] != nil && m["logging"] != nil:
			p.report(r, path, "Both prometheus and logging specify how this is collected. Split it into two entries.")
		}
	}
}
