package carbide

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/providers/carbide/spec"
	"converge.dev/converge/schema"
)

// The site's copies of artifacts are lost when a definition changes, and are not there at once when it is changed back.
var operatingSystemTraits = providers.Traits{
	Create: providers.Conditional, Update: providers.Blind, Delete: providers.Blind,
	Burned: true, Orphans: true, Late: late, ReadyWithin: time.Hour,
	UndoCreate: providers.Exact, UndoUpdate: providers.Restart, UndoDelete: providers.Replace,
}

var (
	osTypes = enum[forge.OperatingSystemType]{
		{"ipxe", forge.OperatingSystemType_OS_TYPE_IPXE},
		{"template", forge.OperatingSystemType_OS_TYPE_TEMPLATED_IPXE},
		{"", forge.OperatingSystemType_OS_TYPE_UNSPECIFIED}, // not told
	}
	cacheStrategies = enum[forge.IpxeTemplateArtifactCacheStrategy]{
		{"as_needed", forge.IpxeTemplateArtifactCacheStrategy_CACHE_AS_NEEDED},
		{"local_only", forge.IpxeTemplateArtifactCacheStrategy_LOCAL_ONLY},
		{"cached_only", forge.IpxeTemplateArtifactCacheStrategy_CACHED_ONLY},
		{"remote_only", forge.IpxeTemplateArtifactCacheStrategy_REMOTE_ONLY},
	}
)

type operatingSystems struct {
	*service
	unhurried
	uuidKind
}

func (k operatingSystems) list(ctx context.Context) ([]string, error) {
	r, err := k.FindOperatingSystemIds(ctx, &forge.OperatingSystemSearchFilter{})
	return texts(r.GetIds()), err
}

func (k operatingSystems) get(ctx context.Context, ids []string) ([]*forge.OperatingSystem, error) {
	request := &forge.OperatingSystemsByIdsRequest{Ids: make([]*forge.OperatingSystemId, len(ids))}
	for i, id := range ids {
		request.Ids[i] = &forge.OperatingSystemId{Value: id}
	}
	r, err := k.FindOperatingSystemsByIds(ctx, request)
	return r.GetOperatingSystems(), err
}

func (operatingSystems) thing(o *forge.OperatingSystem) providers.Thing {
	spec := schema.Object{
		"type":               osTypes.word(o.GetType()),
		"active":             o.GetIsActive(),
		"allow_override":     o.GetAllowOverride(),
		"phone_home_enabled": o.GetPhoneHomeEnabled(),
	}
	put(spec, "tenant", o.GetTenantOrganizationId())
	put(spec, "description", o.GetDescription())
	put(spec, "script", o.GetIpxeScript())
	put(spec, "template", o.GetIpxeTemplateId().GetValue())
	put(spec, "user_data", o.GetUserData())
	putList(spec, "parameters", list(o.GetIpxeTemplateParameters(), func(p *forge.IpxeTemplateParameter) any { return readParameter(p) }))
	putList(spec, "artifacts", list(o.GetIpxeTemplateArtifacts(), func(a *forge.IpxeTemplateArtifact) any { return readArtifact(a) }))
	word := stateWords[o.GetStatus()]
	got := schema.Object{"state": word}
	put(got, "definition_hash", o.GetIpxeTemplateDefinitionHash())
	var copies []any
	var waits []string
	for _, a := range o.GetIpxeTemplateArtifacts() {
		switch url := a.GetCachedUrl(); {
		case url != "":
			copies = append(copies, map[string]any{"name": a.GetName(), "url": url})
		case a.GetCacheStrategy() == forge.IpxeTemplateArtifactCacheStrategy_CACHED_ONLY:
			waits = append(waits, a.GetName())
		}
	}
	putList(got, "copies", copies)
	phase, detail := phaseOf(o.GetStatus()), ""
	if phase != providers.Ready {
		detail = word
		if len(waits) > 0 {
			detail += ": the site has no copy yet of " + strings.Join(waits, ", ")
		}
	}
	return providers.Thing{ID: o.GetId().GetValue(), Name: o.GetName(), Spec: spec, Status: got, Phase: phase, Detail: detail}
}

func (k operatingSystems) create(ctx context.Context, c *call[spec.OperatingSystem]) error {
	request := &forge.CreateOperatingSystemRequest{
		Id:                   &forge.OperatingSystemId{Value: c.ID},
		Name:                 c.Called(),
		Description:          c.want.Description,
		TenantOrganizationId: c.want.Tenant,
		IsActive:             c.want.Active,
		AllowOverride:        c.want.AllowOverride,
		PhoneHomeEnabled:     c.want.PhoneHomeEnabled,
		UserData:             c.want.UserData,
		IpxeScript:           c.want.Script,
	}
	if id := value(c.want.Template); id != "" {
		request.IpxeTemplateId = &forge.IpxeTemplateId{Value: id}
		request.IpxeTemplateParameters, request.IpxeTemplateArtifacts = writeParameters(c.Want, nil), writeArtifacts(c.Want, nil)
	}
	made, err := k.CreateOperatingSystem(ctx, request)
	c.Chose(made.GetId().GetValue())
	return err
}

// update sends what differs, for the service keeps what it is not told. Artifacts above all: each time that they are sent
// the site loses its copies of them.
func (k operatingSystems) update(ctx context.Context, c *call[spec.OperatingSystem], now *forge.OperatingSystem) error {
	have := k.thing(now).Spec
	request := &forge.UpdateOperatingSystemRequest{Id: now.Id}
	needed := false
	differ := func(field string) bool {
		differs := (schema.Object{field: c.Want[field]}).Digest() != (schema.Object{field: have[field]}).Digest()
		needed = needed || differs
		return differs
	}
	changed := func(field string) *string { // the empty text clears
		if !differ(field) {
			return nil
		}
		s := text(c.Want, field)
		return &s
	}
	switched := func(field string) *bool {
		if _, stated := c.Want[field]; !stated || !differ(field) {
			return nil
		}
		b := truth(c.Want, field)
		return &b
	}
	if now.GetName() != c.Called() {
		name := c.Called()
		request.Name, needed = &name, true
	}
	request.Description, request.UserData = changed("description"), changed("user_data")
	request.IsActive, request.AllowOverride, request.PhoneHomeEnabled = switched("active"), switched("allow_override"), switched("phone_home_enabled")
	if value(c.want.Script) != "" {
		request.IpxeScript = changed("script")
	}
	if id := value(c.want.Template); id != "" && differ("template") {
		request.IpxeTemplateId = &forge.IpxeTemplateId{Value: id}
	}
	if differ("parameters") {
		request.IpxeTemplateParameters = &forge.IpxeTemplateParameters{Items: writeParameters(c.Want, now.GetIpxeTemplateParameters())}
	}
	if items := writeArtifacts(c.Want, now.GetIpxeTemplateArtifacts()); !slices.EqualFunc(sortedArtifacts(items), sortedArtifacts(now.GetIpxeTemplateArtifacts()), sameArtifact) {
		request.IpxeTemplateArtifacts, needed = &forge.IpxeTemplateArtifacts{Items: items}, true
	}
	if !needed {
		return nil
	}
	_, err := k.UpdateOperatingSystem(ctx, request)
	return err
}

func (k operatingSystems) delete(ctx context.Context, c *call[spec.OperatingSystem]) error {
	_, err := k.DeleteOperatingSystem(ctx, &forge.DeleteOperatingSystemRequest{Id: &forge.OperatingSystemId{Value: c.ID}})
	return err
}

func readParameter(p *forge.IpxeTemplateParameter) map[string]any {
	return map[string]any{"name": p.GetName(), "value": p.GetValue()}
}

// writeParameters changes parameters, of which a new entry has none, to what is wanted.
func writeParameters(spec schema.Object, now []*forge.IpxeTemplateParameter) []*forge.IpxeTemplateParameter {
	return renewMaps(now, structs(spec, "parameters"), readParameter, func(o map[string]any, p *forge.IpxeTemplateParameter) {
		p.Name, p.Value = text(o, "name"), text(o, "value")
	}, "name")
}

func readArtifact(a *forge.IpxeTemplateArtifact) map[string]any {
	o := map[string]any{
		"name": a.GetName(), "url": a.GetUrl(), "cache": cacheStrategies.word(a.GetCacheStrategy()),
		"auth_token": a.GetAuthToken(), // told in clear; the empty text says that there is none
	}
	put(o, "sha", a.GetSha())
	put(o, "auth_type", a.GetAuthType())
	return o
}

// writeArtifacts changes artifacts, of which a new entry has none, to what is wanted.
func writeArtifacts(spec schema.Object, now []*forge.IpxeTemplateArtifact) []*forge.IpxeTemplateArtifact {
	out := renewMaps(now, structs(spec, "artifacts"), readArtifact, func(o map[string]any, a *forge.IpxeTemplateArtifact) {
		a.Name, a.Url, a.Sha = text(o, "name"), text(o, "url"), optional(o, "sha")
		a.AuthType, a.AuthToken = optional(o, "auth_type"), optional(o, "auth_token")
		a.CacheStrategy = cacheStrategies.value(o["cache"])
	}, "name")
	for _, a := range out {
		a.CachedUrl = nil // the site's own business
	}
	return out
}

// sortedArtifacts are artifacts by name, for their order means nothing.
func sortedArtifacts(artifacts []*forge.IpxeTemplateArtifact) []*forge.IpxeTemplateArtifact {
	return slices.SortedStableFunc(slices.Values(artifacts), func(a, b *forge.IpxeTemplateArtifact) int { return cmp.Compare(a.GetName(), b.GetName()) })
}

// sameArtifact leaves aside whether the site has a copy.
func sameArtifact(a, b *forge.IpxeTemplateArtifact) bool {
	return schema.Object(readArtifact(a)).Digest() == schema.Object(readArtifact(b)).Digest()
}
