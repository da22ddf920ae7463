package carbide

import (
	"context"
	"math"
	"strconv"
	"strings"
	"time"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/providers/carbide/spec"
)

var keysetTraits = providers.Traits{
	ID:     "{tenant}/{name}",
	Create: providers.Conditional, Update: providers.Versioned, Delete: providers.Blind,
	EffectWithin: late, DeleteUnchecked: true,
	UndoCreate: providers.Exact, UndoUpdate: providers.Exact, UndoDelete: providers.Exact,
}

type keysets struct{ *service }

func (keysets) known(id string) bool { return strings.Contains(id, "/") }

// keysetID returns the external id of a keyset; empty when the service reports only a part of it.
func keysetID(tenant, name string) string {
	if tenant == "" || name == "" {
		return ""
	}
	return tenant + "/" + name
}

func keysetIdentifier(id string) *forge.TenantKeysetIdentifier {
	tenant, name, _ := strings.Cut(id, "/")
	return &forge.TenantKeysetIdentifier{OrganizationId: tenant, KeysetId: name}
}

func (k keysets) list(ctx context.Context) ([]string, error) {
	r, err := k.FindTenantKeysetIds(ctx, &forge.TenantKeysetSearchFilter{})
	ids := make([]string, len(r.GetKeysetIds()))
	for i, id := range r.GetKeysetIds() {
		ids[i] = keysetID(id.GetOrganizationId(), id.GetKeysetId())
	}
	return ids, err
}

func (k keysets) get(ctx context.Context, ids []string) ([]*forge.TenantKeyset, error) {
	request := &forge.TenantKeysetsByIdsRequest{IncludeKeyData: true}
	for _, id := range ids {
		request.KeysetIds = append(request.KeysetIds, keysetIdentifier(id))
	}
	r, err := k.FindTenantKeysetsByIds(ctx, request)
	return r.GetKeyset(), err
}

func (keysets) thing(o *forge.TenantKeyset) providers.Thing {
	id := o.GetKeysetIdentifier()
	s := spec.TenantKeyset{Tenant: id.GetOrganizationId()}
	for _, p := range o.GetKeysetContent().GetPublicKeys() {
		s.Keys = append(s.Keys, keyText(p))
	}
	return providers.Thing{
		ID: keysetID(id.GetOrganizationId(), id.GetKeysetId()), Name: id.GetKeysetId(), Version: o.GetVersion(),
		Spec: s.Object(), Phase: providers.Ready,
	}
}

// keyText returns a key on one line. The comment may be inside the text or beside it.
func keyText(p *forge.TenantPublicKey) string {
	if p.GetComment() == "" || strings.Count(p.GetPublicKey(), " ") > 1 {
		return p.GetPublicKey()
	}
	return p.GetPublicKey() + " " + p.GetComment()
}

func (k keysets) create(ctx context.Context, c *call[spec.TenantKeyset]) error {
	made, err := k.CreateTenantKeyset(ctx, &forge.CreateTenantKeysetRequest{
		KeysetIdentifier: keysetIdentifier(c.ID),
		KeysetContent:    keysetContent(c, nil),
		Version:          nextVersion(""),
	})
	if at := made.GetKeyset().GetKeysetIdentifier(); at != nil {
		c.Chose(keysetID(at.GetOrganizationId(), at.GetKeysetId()))
	}
	return err
}

func (k keysets) update(ctx context.Context, c *call[spec.TenantKeyset], now *forge.TenantKeyset) error {
	_, err := k.UpdateTenantKeyset(ctx, &forge.UpdateTenantKeysetRequest{
		KeysetIdentifier: keysetIdentifier(c.ID),
		KeysetContent:    keysetContent(c, now.GetKeysetContent()),
		Version:          nextVersion(now.GetVersion()),
		IfVersionMatch:   &now.Version,
	})
	return err
}

func (k keysets) delete(ctx context.Context, c *call[spec.TenantKeyset]) error {
	_, err := k.DeleteTenantKeyset(ctx, &forge.DeleteTenantKeysetRequest{KeysetIdentifier: keysetIdentifier(c.ID)})
	return err
}

// keysetContent returns the desired keys, with existing ones as they are.
func keysetContent(c *call[spec.TenantKeyset], now *forge.TenantKeysetContent) *forge.TenantKeysetContent {
	if now == nil {
		now = &forge.TenantKeysetContent{}
	}
	have := make(map[string]*forge.TenantPublicKey, len(now.PublicKeys))
	for _, p := range now.PublicKeys {
		have[keyText(p)] = p
	}
	now.PublicKeys = nil
	for _, key := range c.want.Keys {
		p := have[key]
		if p == nil {
			p = &forge.TenantPublicKey{PublicKey: key}
		}
		now.PublicKeys = append(now.PublicKeys, p)
	}
	return now
}

// nextVersion returns the version after another, in the form that the service uses for other kinds:
// V<number>-T<microseconds>. For keysets this is the client's task.
func nextVersion(version string) string {
	return "V" + strconv.FormatInt(versionNumber(version)+1, 10) + "-T" + strconv.FormatInt(time.Now().UnixMicro(), 10)
}

// versionNumber returns the number in such a version; 0 when it is not of that form.
func versionNumber(version string) int64 {
	count, _, _ := strings.Cut(strings.TrimPrefix(version, "V"), "-T")
	n, err := strconv.ParseInt(count, 10, 64)
	if err != nil || n < 0 || n == math.MaxInt64 {
		return 0
	}
	return n
}
