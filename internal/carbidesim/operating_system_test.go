package carbidesim

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers/carbide/forge"
)

const kernelInitrd = "c4b1d4f6-69ba-5f55-90cd-ab2acd002475"

func osID(id string) *forge.OperatingSystemId    { return &forge.OperatingSystemId{Value: id} }
func templateID(id string) *forge.IpxeTemplateId { return &forge.IpxeTemplateId{Value: id} }
func param(n, v string) *forge.IpxeTemplateParameter {
	return &forge.IpxeTemplateParameter{Name: n, Value: v}
}
func artifact(n, u string) *forge.IpxeTemplateArtifact {
	return &forge.IpxeTemplateArtifact{Name: n, Url: u}
}

func scriptEntry(id string) *forge.CreateOperatingSystemRequest {
	return &forge.CreateOperatingSystemRequest{
		Id: osID(id), Name: "rescue", TenantOrganizationId: "acme", IsActive: true,
		Description: text("for repairs"), UserData: text("#cloud-config"), IpxeScript: text("#!ipxe\nshell"),
	}
}

// templateEntry returns a valid entry, whose kernel has to come from a copy.
func templateEntry(id string) *forge.CreateOperatingSystemRequest {
	kernel := artifact("kernel", "https://images.example/vmlinuz")
	kernel.CacheStrategy, kernel.CachedUrl = forge.IpxeTemplateArtifactCacheStrategy_CACHED_ONLY, text("http://not/from/here")
	kernel.AuthType, kernel.AuthToken = text("bearer"), text("t0ken")
	return &forge.CreateOperatingSystemRequest{
		Id: osID(id), Name: "ubuntu", TenantOrganizationId: "acme", IsActive: true, IpxeTemplateId: templateID(kernelInitrd),
		IpxeTemplateArtifacts: []*forge.IpxeTemplateArtifact{kernel, artifact("Initrd", "https://images.example/initrd"), artifact("motd", "https://images.example/motd")},
	}
}

func (b *workbench) findOS(id string) *forge.OperatingSystem {
	b.Helper()
	found := ok(b.FindOperatingSystemsByIds(ctx, &forge.OperatingSystemsByIdsRequest{Ids: []*forge.OperatingSystemId{osID(id)}})).OperatingSystems
	if len(found) != 1 {
		b.Fatalf("found %d entries with id %s", len(found), id)
	}
	return found[0]
}

// stockLibrary creates one of each thing that instances may boot or run, and burns what can be burned.
func stockLibrary(b *workbench) {
	b.Helper()
	ok(b.CreateOperatingSystem(ctx, scriptEntry(uid(0x31))))
	filled := templateEntry(uid(0x32))
	filled.IpxeTemplateParameters = []*forge.IpxeTemplateParameter{param("kernel_params", "quiet")}
	ok(b.CreateOperatingSystem(ctx, filled))
	ok(b.CreateOperatingSystem(ctx, scriptEntry(uid(0x33))))
	ok(b.DeleteOperatingSystem(ctx, &forge.DeleteOperatingSystemRequest{Id: osID(uid(0x33))}))
	ok(b.CreateOsImage(ctx, image(uid(0x34))))
	service := podService(uid(0x35), "collector")
	service.Credential = credential("secret")
	ok(b.CreateDpuExtensionService(ctx, service))
	ok(b.CreateDpuExtensionService(ctx, podService(uid(0x36), "gone")))
	ok(b.DeleteDpuExtensionService(ctx, &forge.DeleteDpuExtensionServiceRequest{ServiceId: uid(0x36)}))
}

func TestOperatingSystemIsAPatch(t *testing.T) {
	b := start(t, Options{})
	made := ok(b.CreateOperatingSystem(ctx, scriptEntry(uid(1))))
	if made.Type != forge.OperatingSystemType_OS_TYPE_IPXE || made.Status != forge.TenantState_READY || !made.IsActive || made.PhoneHomeEnabled {
		t.Errorf("made %v", made)
	}
	b.clock.pass(time.Second)
	got := ok(b.UpdateOperatingSystem(ctx, &forge.UpdateOperatingSystemRequest{Id: osID(uid(1))}))
	if got.Updated == made.Updated {
		t.Error("an update without content does not move the time")
	}
	got.Updated = made.Updated
	if !proto.Equal(got, made) {
		t.Errorf("what is absent was not kept: %v", got)
	}
	got = ok(b.UpdateOperatingSystem(ctx, &forge.UpdateOperatingSystemRequest{
		Id: osID(uid(1)), Name: text("other"), Description: text(""), UserData: text(""), IsActive: proto.Bool(false),
		AllowOverride: proto.Bool(true), PhoneHomeEnabled: proto.Bool(true), IpxeScript: text("#!ipxe\nexit"),
	}))
	if got.Name != "other" || got.GetDescription() != "" || got.GetUserData() != "" || got.IsActive || !got.AllowOverride || !got.PhoneHomeEnabled || got.GetIpxeScript() != "#!ipxe\nexit" {
		t.Errorf("changed to %v", got)
	}
	if !proto.Equal(got, b.findOS(uid(1))) {
		t.Error("the reply is not what is read")
	}
	both := scriptEntry(uid(2))
	both.IpxeTemplateId = templateID(kernelInitrd)
	if got := ok(b.CreateOperatingSystem(ctx, both)); got.IpxeTemplateId != nil || got.Type != forge.OperatingSystemType_OS_TYPE_IPXE {
		t.Errorf("with both variants: %v", got)
	}
}

func TestOperatingSystemRefusals(t *testing.T) {
	b := start(t, Options{})
	ok(b.CreateOperatingSystem(ctx, scriptEntry(uid(1))))
	with := func(change func(*forge.CreateOperatingSystemRequest)) error {
		r := templateEntry(uid(9))
		r.IpxeTemplateParameters = []*forge.IpxeTemplateParameter{param("Kernel_Params", "quiet"), param("splash", "1")}
		change(r)
		return failed(b.CreateOperatingSystem(ctx, r))
	}
	params := func(p ...*forge.IpxeTemplateParameter) error {
		return with(func(r *forge.CreateOperatingSystemRequest) { r.IpxeTemplateParameters = p })
	}
	artifacts := func(a ...*forge.IpxeTemplateArtifact) error {
		return with(func(r *forge.CreateOperatingSystemRequest) { r.IpxeTemplateArtifacts = a })
	}
	quiet, kernel, initrd := param("kernel_params", "quiet"), artifact("kernel", "https://k"), artifact("initrd", "https://i")
	update := func(r *forge.UpdateOperatingSystemRequest) error {
		return failed(b.UpdateOperatingSystem(ctx, r))
	}
	b.refusals([]refusal{
		{"no variant", failed(b.CreateOperatingSystem(ctx, &forge.CreateOperatingSystemRequest{})), codes.InvalidArgument, "variant"},
		{"no name", with(func(r *forge.CreateOperatingSystemRequest) { r.Name = "" }), codes.InvalidArgument, "name"},
		{"no tenant", with(func(r *forge.CreateOperatingSystemRequest) { r.TenantOrganizationId = "" }), codes.InvalidArgument, "tenant"},
		{"taken id", with(func(r *forge.CreateOperatingSystemRequest) { r.Id = osID(uid(1)) }), codes.Internal, "duplicate key"},
		{"unknown template", with(func(r *forge.CreateOperatingSystemRequest) { r.IpxeTemplateId = templateID(uid(7)) }), codes.InvalidArgument, "Template not found"},
		{"blank parameter", params(quiet, param(" ", "x")), codes.InvalidArgument, "name must not be empty"},
		{"missing parameter", params(param("kernel_params", "")), codes.InvalidArgument, "kernel_params"},
		{"reserved parameter", params(quiet, param("Base_URL", "x")), codes.InvalidArgument, "Reserved"},
		{"parameter called extra", params(quiet, param("EXTRA", "x")), codes.InvalidArgument, "Reserved"},
		{"artifact called extra", artifacts(kernel, initrd, artifact("extra", "https://x")), codes.InvalidArgument, "Reserved"},
		{"missing artifact", artifacts(kernel), codes.InvalidArgument, "Artifact not found: initrd"},
		{"blank artifact", artifacts(kernel, initrd, artifact("", "https://x")), codes.InvalidArgument, "name must not be empty"},
		{"artifact without url", artifacts(kernel, artifact("initrd", " ")), codes.InvalidArgument, "url must not be empty"},
		{"no slot for more", with(func(r *forge.CreateOperatingSystemRequest) {
			r.IpxeTemplateId = templateID("a7850943-e3cd-5e9a-93ca-9e12f52939cc")
			r.IpxeTemplateArtifacts = append(r.IpxeTemplateArtifacts, artifact("install_iso", "https://iso"))
		}), codes.InvalidArgument, "extra"},
		{"script to template", update(&forge.UpdateOperatingSystemRequest{Id: osID(uid(1)), IpxeTemplateId: templateID(kernelInitrd)}), codes.InvalidArgument, "cannot switch"},
		{"update without id", update(&forge.UpdateOperatingSystemRequest{}), codes.InvalidArgument, "id"},
		{"unknown update", update(&forge.UpdateOperatingSystemRequest{Id: osID(uid(8))}), codes.NotFound, "operating system"},
		{"unknown delete", failed(b.DeleteOperatingSystem(ctx, &forge.DeleteOperatingSystemRequest{Id: osID(uid(8))})), codes.NotFound, "operating system"},
		{"good", with(func(*forge.CreateOperatingSystemRequest) {}), codes.OK, ""},
		{"template to script", update(&forge.UpdateOperatingSystemRequest{Id: osID(uid(9)), IpxeScript: text("#!ipxe")}), codes.InvalidArgument, "cannot switch"},
		{"cleared parameters", update(&forge.UpdateOperatingSystemRequest{Id: osID(uid(9)), IpxeTemplateParameters: &forge.IpxeTemplateParameters{}}), codes.InvalidArgument, "kernel_params"},
		{"another template", update(&forge.UpdateOperatingSystemRequest{Id: osID(uid(9)), IpxeTemplateId: templateID("5c7cfa88-6003-5ac0-b4c0-201eb5b28153")}), codes.OK, ""},
		{"unknown template", failed(b.GetIpxeTemplate(ctx, &forge.GetIpxeTemplateRequest{Id: templateID(uid(7))})), codes.NotFound, "template"},
	})
	if got := b.findOS(uid(9)); len(got.IpxeTemplateParameters) != 2 || len(got.IpxeTemplateArtifacts) != 3 || got.IpxeTemplateArtifacts[0].GetAuthToken() != "t0ken" {
		t.Errorf("an update of the template alone left %v", got)
	}
	ok(b.DeleteOperatingSystem(ctx, &forge.DeleteOperatingSystemRequest{Id: osID(uid(1))}))
	b.refusals([]refusal{
		{"second delete", failed(b.DeleteOperatingSystem(ctx, &forge.DeleteOperatingSystemRequest{Id: osID(uid(1))})), codes.NotFound, ""},
		{"burned id", failed(b.CreateOperatingSystem(ctx, scriptEntry(uid(1)))), codes.Internal, "duplicate key"},
	})
}

// An entry with an artifact that has to come from a copy waits for the copy, and loses it with every new definition.
func TestOperatingSystemWaitsForCopies(t *testing.T) {
	b := start(t, Options{})
	r := templateEntry(uid(1))
	r.IpxeTemplateParameters = []*forge.IpxeTemplateParameter{param("kernel_params", "quiet")}
	made := ok(b.CreateOperatingSystem(ctx, r))
	if made.Status != forge.TenantState_PROVISIONING || made.IpxeTemplateArtifacts[0].CachedUrl != nil {
		t.Errorf("made %v", made)
	}
	cache := func(updates ...*forge.IpxeTemplateArtifactUpdateRequest) error {
		return failed(b.UpdateOperatingSystemCachableIpxeTemplateArtifacts(ctx, &forge.UpdateOperatingSystemIpxeTemplateArtifactRequest{Id: osID(uid(1)), Updates: updates}))
	}
	one := func(name, url string) *forge.IpxeTemplateArtifactUpdateRequest {
		return &forge.IpxeTemplateArtifactUpdateRequest{Name: name, CachedUrl: &url}
	}
	state := func(want forge.TenantState) {
		t.Helper()
		if got := b.findOS(uid(1)); got.Status != want {
			t.Errorf("status %s, want %s", got.Status, want)
		}
	}
	b.refusals([]refusal{
		{"unknown artifact", cache(one("iso", "http://x")), codes.NotFound, "iso"},
		{"twice", cache(one("kernel", "http://x"), one("kernel", "http://y")), codes.NotFound, "already matched"},
		{"one that may be copied", cache(one("initrd", "http://x")), codes.OK, ""},
	})
	state(forge.TenantState_PROVISIONING)
	b.refuses(cache(one("KERNEL", "http://copy")), codes.OK, "")
	state(forge.TenantState_READY)
	got := ok(b.GetOperatingSystemCachableIpxeTemplateArtifacts(ctx, &forge.GetOperatingSystemCachableIpxeTemplateArtifactsRequest{Id: osID(uid(1))})).Artifacts
	if len(got) != 3 || got[0].GetCachedUrl() != "http://copy" {
		t.Errorf("artifacts %v", got)
	}
	update := func(r *forge.UpdateOperatingSystemRequest) *forge.OperatingSystem {
		r.Id = osID(uid(1))
		return ok(b.UpdateOperatingSystem(ctx, r))
	}
	if got := update(&forge.UpdateOperatingSystemRequest{Name: text("same"), IpxeTemplateParameters: &forge.IpxeTemplateParameters{Items: r.IpxeTemplateParameters}}); got.Status != forge.TenantState_READY {
		t.Errorf("the same definition: %v", got)
	}
	if got := update(&forge.UpdateOperatingSystemRequest{IpxeTemplateArtifacts: &forge.IpxeTemplateArtifacts{Items: got}}); got.Status != forge.TenantState_PROVISIONING || got.IpxeTemplateArtifacts[0].CachedUrl != nil {
		t.Errorf("the same artifacts again: %v", got)
	}
	b.refuses(cache(one("kernel", "http://copy")), codes.OK, "")
	if got := update(&forge.UpdateOperatingSystemRequest{IpxeTemplateParameters: &forge.IpxeTemplateParameters{Items: []*forge.IpxeTemplateParameter{param("kernel_params", "debug")}}}); got.Status != forge.TenantState_PROVISIONING {
		t.Errorf("another definition: %v", got)
	}
	b.refuses(cache(one("kernel", "http://copy")), codes.OK, "")
	state(forge.TenantState_READY)
	b.refuses(cache(&forge.IpxeTemplateArtifactUpdateRequest{Name: "kernel"}), codes.OK, "")
	state(forge.TenantState_PROVISIONING)
	hash := b.findOS(uid(1)).GetIpxeTemplateDefinitionHash()
	if got := update(&forge.UpdateOperatingSystemRequest{IpxeTemplateParameters: &forge.IpxeTemplateParameters{}, IpxeTemplateDefinitionHash: &hash}); len(got.IpxeTemplateParameters) != 0 {
		t.Errorf("a hash of the caller's is not believed: %v", got)
	}
}

func TestOperatingSystemLists(t *testing.T) {
	b := start(t, Options{Rules: Rules{MaxFindByIDs: 1, OperatingSystems: []OperatingSystem{{ID: uid(5)}}}})
	for i, name := range []string{"c", "a", "b"} {
		r := scriptEntry(uid(byte(i + 1)))
		r.Name = name
		ok(b.CreateOperatingSystem(ctx, r))
	}
	ids := texts(ok(b.FindOperatingSystemIds(ctx, &forge.OperatingSystemSearchFilter{TenantOrganizationId: text("acme")})).Ids)
	if want := []string{uid(2), uid(3), uid(1)}; !slices.Equal(ids, want) {
		t.Errorf("ids %v, want %v", ids, want)
	}
	all := ok(b.FindOperatingSystemIds(ctx, &forge.OperatingSystemSearchFilter{})).Ids
	if got := ok(b.FindOperatingSystemsByIds(ctx, &forge.OperatingSystemsByIdsRequest{Ids: append(all, osID(uid(9)))})).OperatingSystems; len(all) != 4 || len(got) != 4 {
		t.Errorf("%d ids, %d entries", len(all), len(got))
	}
	ok(b.FindOperatingSystemsByIds(ctx, &forge.OperatingSystemsByIdsRequest{}))
	scopes := map[forge.IpxeTemplateScope]int{}
	for _, tmpl := range ok(b.ListIpxeTemplates(ctx, &forge.ListIpxeTemplatesRequest{})).Templates {
		scopes[tmpl.Scope]++
		if got := ok(b.GetIpxeTemplate(ctx, &forge.GetIpxeTemplateRequest{Id: tmpl.Id})); !proto.Equal(got, tmpl) {
			t.Errorf("template %v", got)
		}
	}
	if scopes[forge.IpxeTemplateScope_PUBLIC] < 3 || scopes[forge.IpxeTemplateScope_INTERNAL] == 0 {
		t.Errorf("templates %v", scopes)
	}
}

// Instances boot from the library: entries that exist, are active and ready. A delete does not check for instances.
func TestInstancesBootFromTheLibrary(t *testing.T) {
	b := start(t, Options{Hosts: Hosts{Count: 3}})
	b.tenant("acme")
	b.vpc(uid(1), ethernet)
	ok(b.CreateVpcPrefix(ctx, &forge.VpcPrefixCreationRequest{Id: prefixID(uid(3)), VpcId: vpcID(uid(1)), Prefix: "10.1.0.0/28"}))
	stockLibrary(b)
	hosts := b.hosts(&forge.MachineSearchConfig{})
	boot := func(os *forge.InstanceOperatingSystemConfig) error {
		c := onPrefix(uid(3))
		c.Os = os
		return failed(b.AllocateInstance(ctx, &forge.InstanceAllocationRequest{MachineId: &forge.MachineId{Id: hosts[0]}, InstanceId: instanceID(uid(0x10)), Config: c}))
	}
	entry := func(id string) *forge.InstanceOperatingSystemConfig {
		return &forge.InstanceOperatingSystemConfig{Variant: &forge.InstanceOperatingSystemConfig_OperatingSystemId{OperatingSystemId: osID(id)}}
	}
	picture := func(id string) *forge.InstanceOperatingSystemConfig {
		return &forge.InstanceOperatingSystemConfig{Variant: &forge.InstanceOperatingSystemConfig_OsImageId{OsImageId: &forge.UUID{Value: id}}}
	}
	ok(b.UpdateOperatingSystem(ctx, &forge.UpdateOperatingSystemRequest{Id: osID(uid(0x31)), IsActive: proto.Bool(false)}))
	b.refusals([]refusal{
		{"inactive", boot(entry(uid(0x31))), codes.FailedPrecondition, "active"},
		{"not ready", boot(entry(uid(0x32))), codes.FailedPrecondition, "ready"},
		{"deleted", boot(entry(uid(0x33))), codes.FailedPrecondition, "exist"},
		{"unknown image", boot(picture(uid(0x77))), codes.FailedPrecondition, "image"},
		{"malformed image", boot(picture("x")), codes.InvalidArgument, "UUID"},
		{"image", boot(picture(uid(0x34))), codes.OK, ""},
	})
	ok(b.DeleteOsImage(ctx, &forge.DeleteOsImageRequest{Id: &forge.UUID{Value: uid(0x34)}, TenantOrganizationId: "acme"}))
	ok(b.UpdateOperatingSystemCachableIpxeTemplateArtifacts(ctx, &forge.UpdateOperatingSystemIpxeTemplateArtifactRequest{
		Id: osID(uid(0x32)), Updates: []*forge.IpxeTemplateArtifactUpdateRequest{{Name: "kernel", CachedUrl: text("http://copy")}},
	}))
	c := onPrefix(uid(3))
	c.Os = entry(uid(0x32))
	b.allocate(uid(0x11), hosts[1], c)
	ok(b.DeleteOperatingSystem(ctx, &forge.DeleteOperatingSystemRequest{Id: osID(uid(0x32))}))
}
