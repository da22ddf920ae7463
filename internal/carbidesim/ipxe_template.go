package carbidesim

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"converge.dev/converge/providers/carbide/forge"
)

// extra is the place in a template for parameters that it does not name.
const extra = "extra"

var reserved = []string{"base_url", "console"}

// ipxeTemplates are some of those that every site has. Their ids are the real ones; their text is our own.
var ipxeTemplates = []*forge.IpxeTemplate{
	publicTemplate("ddbf83c0-a753-5fde-96c1-6b74e9c9db10", "raw-ipxe", "A script of one's own", "{{ipxe}}", []string{"ipxe"}),
	publicTemplate("ea756ddd-add3-5e42-a202-44bfc2d5aac2", "qcow-image", "An image for all architectures",
		"chain {{base_url}}/imager console={{console}} image_url={{image_url}} {{extra}}", []string{"image_url"}),
	publicTemplate("5c7cfa88-6003-5ac0-b4c0-201eb5b28153", "kernel-only", "A kernel without initrd",
		"kernel {{kernel}} {{kernel_params}} {{extra}}", []string{"kernel_params"}, "kernel"),
	publicTemplate("c4b1d4f6-69ba-5f55-90cd-ab2acd002475", "kernel-initrd", "A kernel and its initrd",
		"kernel {{kernel}} {{kernel_params}} {{extra}}\ninitrd {{initrd}}", []string{"kernel_params"}, "kernel", "initrd"),
	publicTemplate("a7850943-e3cd-5e9a-93ca-9e12f52939cc", "ubuntu-autoinstall", "The installer of Ubuntu",
		"kernel {{kernel}} url={{install_iso}} console={{console}}\ninitrd {{initrd}}", nil, "install_iso", "kernel", "initrd"),
	{
		Id: &forge.IpxeTemplateId{Value: "2d2e5533-b2dc-5d7a-9754-bb85ff7dc33b"}, Name: "ipxe-shell",
		Description: "A shell, for looking around", Template: "#!ipxe\nshell\n",
	},
}

func publicTemplate(id, name, description, body string, params []string, artifacts ...string) *forge.IpxeTemplate {
	return &forge.IpxeTemplate{
		Id: &forge.IpxeTemplateId{Value: id}, Name: name, Description: description, Template: "#!ipxe\n" + body + "\nboot\n",
		RequiredParams: params, ReservedParams: reserved, RequiredArtifacts: artifacts, Scope: forge.IpxeTemplateScope_PUBLIC,
	}
}

// ListIpxeTemplates returns all templates, including those for the site's own use.
func (s *site) ListIpxeTemplates(context.Context, *forge.ListIpxeTemplatesRequest) (*forge.IpxeTemplateList, error) {
	return &forge.IpxeTemplateList{Templates: ipxeTemplates}, nil
}

// GetIpxeTemplate returns one.
func (s *site) GetIpxeTemplate(_ context.Context, r *forge.GetIpxeTemplateRequest) (*forge.IpxeTemplate, error) {
	if r.Id == nil {
		return nil, missing("id")
	}
	if t := ipxeTemplate(r.Id.Value); t != nil {
		return t, nil
	}
	return nil, notFound("ipxe template", r.Id.Value)
}

// ipxeTemplate returns nil when there is none.
func ipxeTemplate(id string) *forge.IpxeTemplate {
	i := slices.IndexFunc(ipxeTemplates, func(t *forge.IpxeTemplate) bool { return t.Id.Value == id })
	if i < 0 {
		return nil
	}
	return ipxeTemplates[i]
}

// checkDefinition checks the values that fill a template. Names are case-insensitive, and each occurrence counts.
func checkDefinition(o *forge.OperatingSystem) error {
	params, artifacts := map[string]int{}, map[string]int{}
	for i, p := range o.IpxeTemplateParameters {
		if strings.TrimSpace(p.Name) == "" {
			return invalid("ipxe_template_parameters[%d]: name must not be empty", i)
		}
		if p.Value != "" {
			params[strings.ToLower(p.Name)]++
		}
	}
	for i, a := range o.IpxeTemplateArtifacts {
		if strings.TrimSpace(a.Name) == "" {
			return invalid("ipxe_template_artifacts[%d]: name must not be empty", i)
		}
		if strings.TrimSpace(a.Url) == "" {
			return invalid("ipxe_template_artifacts[%d] '%s': url must not be empty", i, a.Name)
		}
		if strings.EqualFold(a.Name, extra) {
			return invalid("Reserved parameter found in OS definition: %s", a.Name)
		}
		artifacts[strings.ToLower(a.Name)]++
	}
	t := ipxeTemplate(o.IpxeTemplateId.Value)
	if t == nil {
		return invalid("Template not found: %s", o.IpxeTemplateId.Value)
	}
	named := func(list []string, name string) bool {
		return slices.ContainsFunc(list, func(s string) bool { return strings.EqualFold(s, name) })
	}
	for _, p := range o.IpxeTemplateParameters {
		switch {
		case strings.EqualFold(p.Name, extra) || named(t.ReservedParams, p.Name):
			return invalid("Reserved parameter found in OS definition: %s", p.Name)
		case !named(t.RequiredParams, p.Name) && !strings.Contains(t.Template, "{{"+extra+"}}"):
			return invalid("Optional parameters provided but {{extra}} not in template")
		}
	}
	for name, needed := range counts(t.RequiredParams) {
		if have := params[name] + artifacts[name]; have < needed {
			return invalid("Required parameter missing or empty: %s (need %d occurrences, have %d)", name, needed, have)
		}
	}
	for name, needed := range counts(t.RequiredArtifacts) {
		if artifacts[name] < needed {
			return invalid("Artifact not found: %s (need %d occurrences, have %d)", name, needed, artifacts[name])
		}
	}
	return nil
}

func counts(names []string) map[string]int {
	out := map[string]int{}
	for _, n := range names {
		out[strings.ToLower(n)]++
	}
	return out
}

// definitionHash distinguishes definitions, regardless of order and of how artifacts are cached.
func definitionHash(o *forge.OperatingSystem) string {
	h := sha256.New()
	write := func(texts ...string) {
		for _, t := range texts {
			h.Write([]byte(t))
		}
	}
	write(o.IpxeTemplateId.Value)
	params := slices.SortedFunc(slices.Values(o.IpxeTemplateParameters), func(a, b *forge.IpxeTemplateParameter) int {
		return cmp.Or(strings.Compare(strings.ToLower(a.Name), strings.ToLower(b.Name)), strings.Compare(a.Value, b.Value))
	})
	for _, p := range params {
		write(strings.ToLower(p.Name), p.Value)
	}
	artifacts := slices.SortedFunc(slices.Values(o.IpxeTemplateArtifacts), func(a, b *forge.IpxeTemplateArtifact) int {
		return cmp.Or(strings.Compare(strings.ToLower(a.Name), strings.ToLower(b.Name)), strings.Compare(a.Url, b.Url))
	})
	for _, a := range artifacts {
		write(strings.ToLower(a.Name), a.Url, a.GetSha(), a.GetAuthType(), a.GetAuthToken())
	}
	return hex.EncodeToString(h.Sum(nil))
}
