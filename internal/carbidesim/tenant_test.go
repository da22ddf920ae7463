package carbidesim

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/providers/carbide/forge"
)

func TestTenants(t *testing.T) {
	b := start(t, Options{})
	create := func(org string, m *forge.Metadata, profile *string) error {
		return failed(b.CreateTenant(ctx, &forge.CreateTenantRequest{OrganizationId: org, Metadata: m, RoutingProfileType: profile}))
	}
	b.refusals([]refusal{
		{"first", create("acme", named("ACME"), nil), codes.OK, ""},
		{"second with the same id", create("acme", named("ACME"), nil), codes.Internal, "duplicate key"},
		{"illegal characters", create("ac me", named("ACME"), nil), codes.Internal, "violates"},
		{"no metadata", create("beta", nil, nil), codes.InvalidArgument, "metadata"},
		{"description", create("beta", &forge.Metadata{Name: "beta", Description: "x"}, nil), codes.InvalidArgument, "description"},
		{"labels", create("beta", &forge.Metadata{Name: "beta", Labels: []*forge.Label{label("a", nil)}}, nil), codes.InvalidArgument, "labels"},
		{"profile on a site without", create("beta", named("beta"), text("internal")), codes.NotFound, "RoutingProfile"},
	})
	if got := ok(b.FindTenant(ctx, &forge.FindTenantRequest{TenantOrganizationId: "beta"})); got.Tenant != nil {
		t.Errorf("an unknown tenant is %v", got.Tenant)
	}
	got := ok(b.FindTenant(ctx, &forge.FindTenantRequest{TenantOrganizationId: "acme"})).Tenant
	if got.OrganizationId != "acme" || got.Metadata.Name != "ACME" {
		t.Errorf("found %v", got)
	}
	updated := ok(b.UpdateTenant(ctx, &forge.UpdateTenantRequest{OrganizationId: "acme", Metadata: named("Acme"), IfVersionMatch: &got.Version})).Tenant
	if updated.Metadata.Name != "Acme" || updated.Version == got.Version {
		t.Errorf("updated %v", updated)
	}
	b.refuses(failed(b.UpdateTenant(ctx, &forge.UpdateTenantRequest{OrganizationId: "beta", Metadata: named("beta")})), codes.NotFound, "tenant")
	b.tenant("other")
	if ids := ok(b.FindTenantOrganizationIds(ctx, &forge.TenantSearchFilter{TenantOrganizationName: text("Acme")})).TenantOrganizationIds; len(ids) != 1 || ids[0] != "acme" {
		t.Errorf("tenants by name: %v", ids)
	}
}

func TestTenantProfileIsFixedWhileThereAreVpcs(t *testing.T) {
	b := start(t, Options{Rules: Rules{RoutingProfiles: profiles}})
	b.tenant("acme")
	update := func(profile *string) error {
		return failed(b.UpdateTenant(ctx, &forge.UpdateTenantRequest{OrganizationId: "acme", Metadata: named("acme"), RoutingProfileType: profile}))
	}
	got := ok(b.FindTenant(ctx, &forge.FindTenantRequest{TenantOrganizationId: "acme"})).Tenant
	if got.GetRoutingProfileType() != "internal" {
		t.Errorf("profile %q, want the site's default", got.GetRoutingProfileType())
	}
	b.vpc(uid(1), ethernet)
	b.refusals([]refusal{
		{"cleared", update(nil), codes.FailedPrecondition, "VPCs"},
		{"changed", update(text("external")), codes.FailedPrecondition, "VPCs"},
		{"unknown", update(text("secret")), codes.NotFound, "RoutingProfile"},
		{"sent again", update(text("internal")), codes.OK, ""},
	})
	ok(b.DeleteVpc(ctx, &forge.VpcDeletionRequest{Id: vpcID(uid(1))}))
	if err := update(nil); err != nil {
		t.Error(err)
	}
}

func TestKeysets(t *testing.T) {
	b := start(t, Options{})
	id := &forge.TenantKeysetIdentifier{OrganizationId: "acme", KeysetId: "ops team/1"}
	content := func(keys ...string) *forge.TenantKeysetContent {
		c := &forge.TenantKeysetContent{}
		for _, k := range keys {
			c.PublicKeys = append(c.PublicKeys, &forge.TenantPublicKey{PublicKey: k})
		}
		return c
	}
	find := func(withKeys bool) *forge.TenantKeyset {
		list := ok(b.FindTenantKeysetsByIds(ctx, &forge.TenantKeysetsByIdsRequest{KeysetIds: []*forge.TenantKeysetIdentifier{id}, IncludeKeyData: withKeys})).Keyset
		if len(list) != 1 {
			t.Fatalf("%d key sets", len(list))
		}
		return list[0]
	}
	// Neither the tenant nor any key has to exist, and the version is the client's.
	made := ok(b.CreateTenantKeyset(ctx, &forge.CreateTenantKeysetRequest{KeysetIdentifier: id, KeysetContent: content("ssh-ed25519 AAAA alice at home"), Version: "mine"})).Keyset
	if made.Version != "mine" || made.KeysetContent.PublicKeys[0].PublicKey != "ssh-ed25519 AAAA alice" {
		t.Errorf("created %v", made)
	}
	if got := find(false); len(got.KeysetContent.GetPublicKeys()) != 0 {
		t.Errorf("keys that were not asked for: %v", got)
	}
	if got := find(true); len(got.KeysetContent.PublicKeys) != 1 {
		t.Errorf("keys that were asked for: %v", got)
	}
	update := func(expected *string, version string) error {
		return failed(b.UpdateTenantKeyset(ctx, &forge.UpdateTenantKeysetRequest{KeysetIdentifier: id, KeysetContent: content("a b", "c"), Version: version, IfVersionMatch: expected}))
	}
	unknown := &forge.TenantKeysetIdentifier{OrganizationId: "acme", KeysetId: "dev"}
	b.refusals([]refusal{
		{"duplicate", failed(b.CreateTenantKeyset(ctx, &forge.CreateTenantKeysetRequest{KeysetIdentifier: id})), codes.Internal, "duplicate key"},
		{"no identifier", failed(b.CreateTenantKeyset(ctx, &forge.CreateTenantKeysetRequest{})), codes.InvalidArgument, "keyset_identifier"},
		{"stale", update(text("V1-T1"), "next"), codes.FailedPrecondition, "keyset"},
		{"long version", update(nil, strings.Repeat("x", 65)), codes.Internal, "too long"},
		{"expected", update(text("mine"), "next"), codes.OK, ""},
		{"unknown", failed(b.UpdateTenantKeyset(ctx, &forge.UpdateTenantKeysetRequest{KeysetIdentifier: unknown})), codes.NotFound, "keyset"},
	})
	if got := find(true); got.Version != "next" || len(got.KeysetContent.PublicKeys) != 2 {
		t.Errorf("updated %v", got)
	}
	if ids := ok(b.FindTenantKeysetIds(ctx, &forge.TenantKeysetSearchFilter{TenantOrgId: text("other")})).KeysetIds; len(ids) != 0 {
		t.Errorf("key sets of another tenant: %v", ids)
	}
	ok(b.DeleteTenantKeyset(ctx, &forge.DeleteTenantKeysetRequest{KeysetIdentifier: id}))
	b.refuses(failed(b.DeleteTenantKeyset(ctx, &forge.DeleteTenantKeysetRequest{KeysetIdentifier: id})), codes.NotFound, "keyset")
	ok(b.CreateTenantKeyset(ctx, &forge.CreateTenantKeysetRequest{KeysetIdentifier: id})) // hard delete: the id is free
}
