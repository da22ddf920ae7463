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
)

// The site's copies of artifacts are lost when a definition changes, and are not restored at once when it is changed back.
var operatingSystemTraits = providers.Traits{
	Create: providers.Conditional, Update: providers.Blind, Delete: providers.Blind,
	IDsNotReusable: true, DeleteUnchecked: true, EffectWithin: late, ReadyWithin: time.Hour,
	UndoCreate: providers.Exact, UndoUpdate: providers.Restart, UndoDelete: providers.Replace,
}

var (
	osTypes = enum[forge.OperatingSystemType]{
		{"ipxe", forge.OperatingSystemType_OS_TYPE_IPXE},
		{"template", forge.OperatingSystemType_OS_TYPE_TEMPLATED_IPXE},
		{"", forge.OperatingSystemType_OS_TYPE_UNSPECIFIED}, // not reported
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
	changeableEarly
	uuidKind
}

func (k operatingSystems) list(ctx context.Context) ([]string, error) {
	r, err := k.FindOperatingSystemIds(ctx, &forge.OperatingSystemSearchFilter{})
	return texts(r.GetIds()), err
}

func (k operatingSystems) get(ctx context.Context, ids []string) ([]*forge.OperatingSystem, error) {
	r, err := k.FindOperatingSystemsByIds(ctx, &forge.OperatingSystemsByIdsRequest{Ids: wrapped(ids, func(id string) *forge.OperatingSystemId { return &forge.OperatingSystemId{Value: id} })})
	return r.GetOperatingSystems(), err
}

func readOperatingSystem(o *forge.OperatingSystem) spec.OperatingSystem {
	kind, active, override := osTypes.word(o.GetType()), o.GetIsActive(), o.GetAllowOverride()
	return spec.OperatingSystem{
		Tenant: o.GetTenantOrganizationId(), Type: &kind, Active: &active, AllowOverride: &override, PhoneHomeEnabled: o.GetPhoneHomeEnabled(),
		Description: unlessZero(o.GetDescription()), Script: unlessZero(o.GetIpxeScript()), Template: unlessZero(o.GetIpxeTemplateId().GetValue()),
		UserData: unlessZero(o.GetUserData()), Parameters: each(o.GetIpxeTemplateParameters(), readParameter),
		Artifacts: each(o.GetIpxeTemplateArtifacts(), readArtifact),
	}
}

func (operatingSystems) thing(o *forge.OperatingSystem) providers.Thing {
	s := readOperatingSystem(o)
	written := s.Object()
	if s.Tenant == "" { // the site's own belong to no tenant
		delete(written, "tenant")
	}
	word := stateWords[o.GetStatus()]
	got := spec.OperatingSystemStatus{State: &word, DefinitionHash: unlessZero(o.GetIpxeTemplateDefinitionHash())}
	var waits []string
	for _, a := range o.GetIpxeTemplateArtifacts() {
		name := a.GetName()
		switch url := a.GetCachedUrl(); {
		case url != "":
			got.Copies = append(got.Copies, spec.ArtifactCopy{Name: &name, URL: &url})
		case a.GetCacheStrategy() == forge.IpxeTemplateArtifactCacheStrategy_CACHED_ONLY:
			waits = append(waits, name)
		}
	}
	phase, detail := phaseOf(o.GetStatus()), ""
	if phase != providers.Ready {
		detail = word
		if len(waits) > 0 {
			detail += ": the site has no copy yet of " + strings.Join(waits, ", ")
		}
	}
	return providers.Thing{ID: o.GetId().GetValue(), Name: o.GetName(), Spec: written, Status: got.Object(), Phase: phase, Detail: detail}
}

func (k operatingSystems) create(ctx context.Context, c *call[spec.OperatingSystem]) error {
	request := &forge.CreateOperatingSystemRequest{
		Id:                   &forge.OperatingSystemId{Value: c.ID},
		Name:                 c.Called(),
		Description:          c.want.Description,
		TenantOrganizationId: c.want.Tenant,
		IsActive:             value(c.want.Active),
		AllowOverride:        value(c.want.AllowOverride),
		PhoneHomeEnabled:     c.want.PhoneHomeEnabled,
		UserData:             c.want.UserData,
		IpxeScript:           c.want.Script,
	}
	if id := value(c.want.Template); id != "" {
		request.IpxeTemplateId = &forge.IpxeTemplateId{Value: id}
		request.IpxeTemplateParameters, request.IpxeTemplateArtifacts = writeParameters(c.want.Parameters, nil), writeArtifacts(c.want.Artifacts, nil)
	}
	made, err := k.CreateOperatingSystem(ctx, request)
	c.Chose(made.GetId().GetValue())
	return err
}

// update sends only what differs, because the service keeps fields that are absent. That matters above all for artifacts:
// each time that they are sent, the site loses its copies of them.
func (k operatingSystems) update(ctx context.Context, c *call[spec.OperatingSystem], now *forge.OperatingSystem) error {
	have := readOperatingSystem(now)
	request := &forge.UpdateOperatingSystemRequest{Id: now.Id}
	needed := false
	differ := func(want, have any) bool {
		differs := asJSON(want) != asJSON(have)
		needed = needed || differs
		return differs
	}
	changed := func(want, have *string) *string { // the empty text clears a field
		if !differ(want, have) {
			return nil
		}
		s := value(want)
		return &s
	}
	switched := func(want, have *bool) *bool {
		if want == nil || !differ(want, have) {
			return nil
		}
		return want
	}
	if now.GetName() != c.Called() {
		name := c.Called()
		request.Name, needed = &name, true
	}
	request.Description, request.UserData = changed(c.want.Description, have.Description), changed(c.want.UserData, have.UserData)
	request.IsActive, request.AllowOverride = switched(c.want.Active, have.Active), switched(c.want.AllowOverride, have.AllowOverride)
	request.PhoneHomeEnabled = switched(&c.want.PhoneHomeEnabled, &have.PhoneHomeEnabled)
	if value(c.want.Script) != "" {
		request.IpxeScript = changed(c.want.Script, have.Script)
	}
	if id := value(c.want.Template); id != "" && differ(id, value(have.Template)) {
		request.IpxeTemplateId = &forge.IpxeTemplateId{Value: id}
	}
	if differ(c.want.Parameters, have.Parameters) {
		request.IpxeTemplateParameters = &forge.IpxeTemplateParameters{Items: writeParameters(c.want.Parameters, now.GetIpxeTemplateParameters())}
	}
	if items := writeArtifacts(c.want.Artifacts, now.GetIpxeTemplateArtifacts()); !slices.EqualFunc(sortedArtifacts(items), sortedArtifacts(now.GetIpxeTemplateArtifacts()), sameArtifact) {
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

func readParameter(p *forge.IpxeTemplateParameter) spec.TemplateParameter {
	return spec.TemplateParameter{Name: p.GetName(), Value: p.GetValue()}
}

// writeParameters changes parameters, none for a new entry, to the desired state.
func writeParameters(want []spec.TemplateParameter, now []*forge.IpxeTemplateParameter) []*forge.IpxeTemplateParameter {
	return renew(now, want, readParameter, func(w *spec.TemplateParameter, p *forge.IpxeTemplateParameter) {
		p.Name, p.Value = w.Name, w.Value
	}, func(w *spec.TemplateParameter) string { return w.Name })
}

func readArtifact(a *forge.IpxeTemplateArtifact) spec.TemplateArtifact {
	cache, token := cacheStrategies.word(a.GetCacheStrategy()), a.GetAuthToken() // reported in clear; the empty text means that there is none
	return spec.TemplateArtifact{
		Name: a.GetName(), URL: a.GetUrl(), Cache: &cache, Sha: unlessZero(a.GetSha()), AuthType: unlessZero(a.GetAuthType()), AuthToken: &token,
	}
}

// writeArtifacts changes artifacts, none for a new entry, to the desired state.
func writeArtifacts(want []spec.TemplateArtifact, now []*forge.IpxeTemplateArtifact) []*forge.IpxeTemplateArtifact {
	out := renew(now, want, readArtifact, func(w *spec.TemplateArtifact, a *forge.IpxeTemplateArtifact) {
		a.Name, a.Url, a.Sha = w.Name, w.URL, w.Sha
		a.AuthType, a.AuthToken = w.AuthType, unlessZero(value(w.AuthToken))
		a.CacheStrategy = cacheStrategies.value(value(w.Cache))
	}, func(w *spec.TemplateArtifact) string { return w.Name })
	for _, a := range out {
		a.CachedUrl = nil // the site's own business
	}
	return out
}

// sortedArtifacts returns artifacts by name, because their order does not matter.
func sortedArtifacts(artifacts []*forge.IpxeTemplateArtifact) []*forge.IpxeTemplateArtifact {
	return slices.SortedStableFunc(slices.Values(artifacts), func(a, b *forge.IpxeTemplateArtifact) int { return cmp.Compare(a.GetName(), b.GetName()) })
}

// sameArtifact reports whether two artifacts are equal, ignoring whether the site has a copy.
func sameArtifact(a, b *forge.IpxeTemplateArtifact) bool {
	return asJSON(readArtifact(a)) == asJSON(readArtifact(b))
}
