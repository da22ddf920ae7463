package carbidesim

import (
	"context"
	"strings"

	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers/carbide/forge"
)

// keyset is a group of SSH keys, keyed by "organization/keyset id". The client chooses its version.
type keyset struct {
	Organization string      `json:"organization"`
	ID           string      `json:"id"`
	Keys         []publicKey `json:"keys,omitempty"`
	Version      string      `json:"version"`
}

type publicKey struct {
	Text    string  `json:"text"`
	Comment *string `json:"comment,omitempty"`
}

// CreateTenantKeyset stores a key set under an id and a version chosen by the client.
func (s *site) CreateTenantKeyset(_ context.Context, r *forge.CreateTenantKeysetRequest) (*forge.CreateTenantKeysetResponse, error) {
	key, err := keysetKey(r.KeysetIdentifier)
	if err != nil {
		return nil, err
	}
	if s.keysets.get(key) != nil {
		return nil, duplicate("tenant_keysets_pkey")
	}
	k, err := readKeyset(r.KeysetIdentifier, r.KeysetContent, r.Version)
	if err != nil {
		return nil, err
	}
	s.keysets.put(key, k)
	return &forge.CreateTenantKeysetResponse{Keyset: k.wire(true)}, nil
}

// FindTenantKeysetIds filters by organization.
func (s *site) FindTenantKeysetIds(_ context.Context, r *forge.TenantKeysetSearchFilter) (*forge.TenantKeysetIdList, error) {
	pass := func(k *keyset) bool { return is(r.TenantOrgId, k.Organization) }
	return &forge.TenantKeysetIdList{
		KeysetIds: where(s.keysets, pass, func(key string) *forge.TenantKeysetIdentifier { return s.keysets.get(key).identifier() }),
	}, nil
}

// FindTenantKeysetsByIds omits the keys unless they are requested.
func (s *site) FindTenantKeysetsByIds(_ context.Context, r *forge.TenantKeysetsByIdsRequest) (*forge.TenantKeySetList, error) {
	if err := s.page(len(r.KeysetIds)); err != nil {
		return nil, err
	}
	keys := make([]string, len(r.KeysetIds))
	for i, id := range r.KeysetIds {
		keys[i] = id.OrganizationId + "/" + id.KeysetId
	}
	return &forge.TenantKeySetList{
		Keyset: each(s.keysets, keys, func(_ string, k *keyset) *forge.TenantKeyset { return k.wire(r.IncludeKeyData) }),
	}, nil
}

// UpdateTenantKeyset replaces keys and version.
func (s *site) UpdateTenantKeyset(_ context.Context, r *forge.UpdateTenantKeysetRequest) (*forge.UpdateTenantKeysetResponse, error) {
	key, err := keysetKey(r.KeysetIdentifier)
	if err != nil {
		return nil, err
	}
	have := s.keysets.get(key)
	if have == nil {
		return nil, notFound("keyset", key)
	}
	if r.IfVersionMatch != nil && *r.IfVersionMatch != have.Version {
		return nil, stale("keyset", *r.IfVersionMatch)
	}
	k, err := readKeyset(r.KeysetIdentifier, r.KeysetContent, r.Version)
	if err != nil {
		return nil, err
	}
	s.keysets.put(key, k)
	return &forge.UpdateTenantKeysetResponse{}, nil
}

// DeleteTenantKeyset does not check whether an instance uses the keys.
func (s *site) DeleteTenantKeyset(_ context.Context, r *forge.DeleteTenantKeysetRequest) (*forge.DeleteTenantKeysetResponse, error) {
	key, err := keysetKey(r.KeysetIdentifier)
	if err != nil {
		return nil, err
	}
	if s.keysets.get(key) == nil {
		return nil, notFound("keyset", key)
	}
	s.keysets.drop(key)
	return &forge.DeleteTenantKeysetResponse{}, nil
}

func keysetKey(id *forge.TenantKeysetIdentifier) (string, error) {
	if id == nil {
		return "", missing("keyset_identifier")
	}
	if !validOrganization(id.OrganizationId) {
		return "", invalid("invalid organization id %q", id.OrganizationId)
	}
	return id.OrganizationId + "/" + id.KeysetId, nil
}

func readKeyset(id *forge.TenantKeysetIdentifier, content *forge.TenantKeysetContent, version string) (*keyset, error) {
	if err := tooLong(version, 64); err != nil {
		return nil, err
	}
	k := &keyset{Organization: id.OrganizationId, ID: id.KeysetId, Version: version}
	for _, p := range content.GetPublicKeys() {
		// Stored as algorithm, key and comment; everything from the comment's second word on is lost.
		words := strings.Split(p.PublicKey, " ")
		k.Keys = append(k.Keys, publicKey{strings.Join(words[:min(3, len(words))], " "), p.Comment})
	}
	return k, nil
}

func (k *keyset) identifier() *forge.TenantKeysetIdentifier {
	return &forge.TenantKeysetIdentifier{OrganizationId: k.Organization, KeysetId: k.ID}
}

func (k *keyset) wire(withKeys bool) *forge.TenantKeyset {
	out := &forge.TenantKeyset{
		KeysetIdentifier: k.identifier(),
		KeysetContent:    &forge.TenantKeysetContent{},
		Version:          k.Version,
	}
	if withKeys {
		for _, p := range k.Keys {
			w := &forge.TenantPublicKey{PublicKey: p.Text}
			if p.Comment != nil {
				w.Comment = proto.String(*p.Comment)
			}
			out.KeysetContent.PublicKeys = append(out.KeysetContent.PublicKeys, w)
		}
	}
	return out
}
