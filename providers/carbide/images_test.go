package carbide_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/carbidetest"
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

// cached sets where the site has copies, like its own cache.
func (s *site) cached(id string, names ...string) {
	s.Helper()
	r := &forge.UpdateOperatingSystemIpxeTemplateArtifactRequest{Id: &forge.OperatingSystemId{Value: id}}
	for _, name := range names {
		r.Updates = append(r.Updates, &forge.IpxeTemplateArtifactUpdateRequest{Name: name, CachedUrl: proto.String("http://copy/" + name)})
	}
	if _, err := s.Stranger().UpdateOperatingSystemCachableIpxeTemplateArtifacts(s.Context(), r); err != nil {
		s.Fatal(err)
	}
}

// counted changes a thing and returns how many calls that took.
func (s *site) counted(noun, name string, changes schema.Object) (map[string]int, error) {
	s.Helper()
	c := s.change(noun, name, id(noun, name), changes)
	s.ResetCalls()
	err := s.kind(noun).Update(s.Context(), c)
	return s.Calls(), err
}

// TestOperatingSystemWaits: an entry is not ready before the site has the copies that it needs, says which it lacks, and
// keeps them through every unrelated update.
func TestOperatingSystemWaits(t *testing.T) {
	s := newSite(t, carbidesim.Options{})
	want := carbidetest.Template("kernel_params", "quiet")
	for _, a := range want["artifacts"].([]any) {
		a.(map[string]any)["cache"] = "cached_only"
	}
	c := s.make("operating_system", "ubuntu", want)
	check := func(phase providers.Phase, detail string, copies int) {
		t.Helper()
		th := s.see("operating_system", c.ID)
		if n, _ := th.Status["copies"].([]any); th.Phase != phase || th.Detail != detail || len(n) != copies {
			t.Errorf("the entry is %s, %q, with %d copies, want %s, %q and %d", th.Phase, th.Detail, len(n), phase, detail, copies)
		}
	}
	must := func(changes schema.Object) {
		t.Helper()
		if _, err := s.counted("operating_system", "ubuntu", changes); err != nil {
			t.Fatal(err)
		}
	}
	check(providers.Pending, "provisioning: the site has no copy yet of kernel, initrd", 0)
	s.cached(c.ID, "kernel")
	check(providers.Pending, "provisioning: the site has no copy yet of initrd", 1)
	s.cached(c.ID, "initrd")
	check(providers.Ready, "", 2)

	artifacts := want["artifacts"].([]any)
	must(schema.Object{"description": "x", "active": false, "artifacts": []any{artifacts[1], artifacts[0]}})
	check(providers.Ready, "", 2)
	must(schema.Object{"parameters": []any{map[string]any{"name": "kernel_params", "value": "debug"}}})
	check(providers.Pending, "provisioning: the site has no copy yet of kernel, initrd", 0)

	// A refusal of what waits is about the values.
	_, err := s.counted("operating_system", "ubuntu", schema.Object{"parameters": nil})
	s.class("an update without a parameter that the template needs", err, invalid)
	must(schema.Object{"artifacts": []any{
		map[string]any{"name": "kernel", "url": "https://images.example/other", "cache": "remote_only"}, artifacts[1],
	}})
	check(providers.Pending, "provisioning: the site has no copy yet of initrd", 0)
}

// TestOperatingSystemPatch: an update sends what differs, clears what is to be unset, and makes no call when nothing differs.
func TestOperatingSystemPatch(t *testing.T) {
	s := newSite(t, carbidesim.Options{})
	s.make("operating_system", "rescue", schema.Object{
		"tenant": "acme", "type": "ipxe", "script": "#!ipxe", "user_data": "#cloud-config", "description": "for repairs", "active": true,
	})
	for _, step := range []struct {
		changes schema.Object
		calls   int
	}{
		{schema.Object{}, 0},
		{schema.Object{"description": nil, "user_data": nil}, 1},
		{schema.Object{"description": nil, "active": nil}, 0}, // an unstated switch keeps its value
		{schema.Object{"script": "#!ipxe\nshell", "allow_override": true}, 1},
	} {
		calls, err := s.counted("operating_system", "rescue", step.changes)
		if err != nil || calls["UpdateOperatingSystem"] != step.calls {
			t.Errorf("%v took %v, %v", step.changes, calls, err)
		}
	}
	want := schema.Object{
		"tenant": "acme", "type": "ipxe", "script": "#!ipxe\nshell", "active": true, "allow_override": true, "phone_home_enabled": false,
	}
	if th := s.see("operating_system", id("operating_system", "rescue")); th.Spec.Digest() != want.Digest() || th.Name != "rescue" || !th.Mark.IsZero() {
		t.Errorf("the entry is %s %v, want %v", th.Name, th.Spec, want)
	}
	stranger := &forge.UpdateOperatingSystemRequest{Id: &forge.OperatingSystemId{Value: id("operating_system", "rescue")}, Name: proto.String("theirs")}
	if _, err := s.Stranger().UpdateOperatingSystem(t.Context(), stranger); err != nil {
		t.Fatal(err)
	}
	if calls, err := s.counted("operating_system", "rescue", schema.Object{}); err != nil || calls["UpdateOperatingSystem"] != 1 {
		t.Errorf("another name took %v, %v", calls, err)
	}
	if th := s.see("operating_system", id("operating_system", "rescue")); th.Name != "rescue" {
		t.Errorf("the entry is called %s", th.Name)
	}
}

// TestTokens: tokens that the far side returns are observed, and the empty text means that it has none.
func TestTokens(t *testing.T) {
	s := newSite(t, carbidesim.Options{})
	s.make("os_image", "golden", schema.Object{"tenant": "acme", "source_url": "https://a", "digest": "a", "auth_token": "t0ken"})
	s.make("os_image", "open", schema.Object{"tenant": "acme", "source_url": "https://a", "digest": "a", "auth_token": ""})
	s.make("operating_system", "ubuntu", carbidetest.Template("kernel_params", "quiet"))
	for name, want := range map[string]string{"golden": "t0ken", "open": ""} {
		if got := s.see("os_image", id("os_image", name)).Spec["auth_token"]; got != want {
			t.Errorf("the token of %s is %q, want %q", name, got, want)
		}
	}
	r, err := s.Stranger().ListOsImage(t.Context(), &forge.ListOsImageRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range r.Images {
		if i.Attributes.GetName() == "open" && i.Attributes.AuthToken != nil {
			t.Error("an empty token was sent")
		}
	}
	for i, a := range s.see("operating_system", id("operating_system", "ubuntu")).Spec["artifacts"].([]any) {
		if want, got := []string{"t0ken", ""}[i], a.(map[string]any)["auth_token"]; got != want {
			t.Errorf("the token of artifact %d is %q, want %q", i, got, want)
		}
	}
}

// TestImagesAreListed: one call observes all images, or any number of them; another is made for missing ones, and none for an
// empty list of ids.
func TestImagesAreListed(t *testing.T) {
	s := newSite(t, carbidesim.Options{Rules: carbidesim.Rules{MaxFindByIDs: 2}})
	var ids []string
	for i := range 7 {
		name := fmt.Sprintf("image-%d", i)
		ids = append(ids, s.make("os_image", name, schema.Object{"tenant": "acme", "source_url": "https://a", "digest": name}).ID)
	}
	for _, c := range []struct {
		ids           []string
		things, calls int
	}{{nil, 7, 1}, {ids[:5], 5, 1}, {[]string{ids[0], id("os_image", "none")}, 1, 2}, {[]string{}, 0, 0}, {[]string{"x"}, 0, 0}} {
		s.ResetCalls()
		things, err := providertest.Of(s.kind("os_image"))(t.Context(), c.ids)
		if err != nil || len(things) != c.things || s.Calls()["ListOsImage"] != c.calls || len(s.Calls()) != min(c.calls, 1) {
			t.Errorf("%d ids gave %d things with calls %v, %v", len(c.ids), len(things), s.Calls(), err)
		}
	}
}

// TestImage: an update sends immutable fields as stored; the list determines presence; a delete names the tenant.
func TestImage(t *testing.T) {
	s := newSite(t, carbidesim.Options{})
	stranger := s.Stranger()
	_, err := stranger.CreateOsImage(t.Context(), &forge.OsImageAttributes{
		Id: &forge.UUID{Value: id("os_image", "golden")}, SourceUrl: "https://a", Digest: "a", TenantOrganizationId: "acme",
		CreateVolume: true, Capacity: proto.Uint64(0), RootfsId: proto.String("r"),
	})
	if err != nil {
		t.Fatal(err)
	}
	th := s.see("os_image", id("os_image", "golden"))
	if th.Name != th.ID || th.Spec["create_volume"] != nil || th.Spec["capacity"] != nil || th.Phase != providers.Ready || th.Status["state"] != "ready" {
		t.Errorf("the image is %+v", th)
	}
	if calls, err := s.counted("os_image", "golden", schema.Object{"description": "mine"}); err != nil || calls["UpdateOsImage"] != 1 {
		t.Errorf("%v, %v", calls, err)
	}
	if calls, err := s.counted("os_image", "golden", schema.Object{}); err != nil || calls["UpdateOsImage"] != 0 {
		t.Errorf("an update of nothing: %v, %v", calls, err)
	}
	for status, phase := range map[forge.OsImageStatus]providers.Phase{
		forge.OsImageStatus_ImageInProgress: providers.Pending, forge.OsImageStatus_ImageUninitialized: providers.Pending,
		forge.OsImageStatus_ImageFailed: providers.Failed, forge.OsImageStatus_ImageDisabled: providers.Ready,
	} {
		if err := s.SetImageStatus(th.ID, status, "so it is"); err != nil {
			t.Fatal(err)
		}
		got := s.see("os_image", th.ID)
		if got.Phase != phase || (phase != providers.Ready) != strings.HasSuffix(got.Detail, ": so it is") {
			t.Errorf("an image that is %s is %s, %q", status, got.Phase, got.Detail)
		}
	}
	if err := s.SetImageStatus(th.ID, forge.OsImageStatus_ImageReady, ""); err != nil {
		t.Fatal(err)
	}
	c := call("os_image", "golden") // by a caller that never saw it
	s.ResetCalls()
	if err := s.kind("os_image").Delete(t.Context(), c); err != nil || s.Calls()["DeleteOsImage"] != 1 {
		t.Errorf("delete: %v, %v", err, s.Calls())
	}
	s.ResetCalls()
	if err := s.kind("os_image").Delete(t.Context(), c); err != nil || s.Calls()["DeleteOsImage"] != 0 {
		t.Errorf("a second delete: %v, %v", err, s.Calls())
	}
}

// withCredential returns the spec of a service that logs in to its registry.
func withCredential(manifest, password string) schema.Object {
	return schema.Object{
		"tenant": "acme", "manifest": manifest,
		"registry": "nvcr.io/x", "registry_username": "robot", "registry_password": password,
	}
}

// stored returns what the service has, as another client sees it.
func (s *site) stored(name string) *forge.DpuExtensionService {
	s.Helper()
	r, err := s.Stranger().FindDpuExtensionServicesByIds(s.Context(), &forge.DpuExtensionServicesByIdsRequest{ServiceIds: []string{id("dpu_extension_service", name)}})
	if err != nil || len(r.Services) != 1 {
		s.Fatalf("%d services, %v", len(r.GetServices()), err)
	}
	return r.Services[0]
}

// TestExtensionServiceVersions: which updates create a version, with what, and which are refused instead.
func TestExtensionServiceVersions(t *testing.T) {
	log := []any{map[string]any{"logging": map[string]any{"path": "/var/log/a"}}}
	all := func(o schema.Object, more ...any) schema.Object {
		o = o.Clone()
		for i := 0; i < len(more); i += 2 {
			o[more[i].(string)] = more[i+1]
		}
		return o
	}
	none := schema.Object{"registry": nil, "registry_username": nil, "registry_password": nil}
	plain := schema.Object{"tenant": "acme", "manifest": carbidetest.Pod("a")}
	secret := withCredential(carbidetest.Pod("a"), "s3cret")
	for _, c := range []struct {
		name          string
		made, changes schema.Object
		calls         int
		versions      int32 // created
		class         providers.Class
		words         string
	}{
		{"nothing", plain, schema.Object{}, 0, 0, success, ""},
		{"the same credential", secret, secret, 1, 0, success, ""},
		{"a description", plain, schema.Object{"description": "x"}, 1, 0, success, ""},
		{"a description beside a credential", secret, all(secret, "description", "x"), 2, 0, success, ""},
		{"another manifest", plain, schema.Object{"manifest": carbidetest.Pod("b"), "description": "x"}, 1, 1, success, ""},
		{"another manifest beside a credential", secret, all(secret, "manifest", carbidetest.Pod("b")), 1, 1, success, ""},
		{"another password", secret, withCredential(carbidetest.Pod("a"), "other"), 1, 1, success, ""},
		{"a first credential", plain, secret, 1, 1, success, ""},
		{"no credential any more", secret, none, 1, 1, success, ""},
		{"manifest and observability", plain, schema.Object{"manifest": carbidetest.Pod("b"), "observability": log}, 1, 1, success, ""},
		{"observability alone", plain, schema.Object{"observability": log}, 0, 0, invalid, "only together"},
		{"observability beside a credential", secret, all(secret, "observability", log), 1, 0, invalid, "only together"},
		{"another manifest without the credential", secret, all(none, "manifest", carbidetest.Pod("b")), 0, 0, invalid, "would lose it"},
		{"a description without the credential", secret, all(none, "description", "x"), 0, 0, invalid, "would lose it"},
		{"the manifest in another form", plain, schema.Object{"manifest": "# a pod\n" + carbidetest.Pod("a")}, 1, 0, invalid, "No changes"},
		{"half a credential", plain, schema.Object{"registry": "nvcr.io/x"}, 0, 0, invalid, "registry"},
		{"a long password", plain, withCredential(carbidetest.Pod("a"), strings.Repeat("x", 256)), 0, 0, invalid, "registry"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t, carbidesim.Options{})
			s.make("tenant", "acme", schema.Object{})
			s.make("dpu_extension_service", "svc", c.made)
			before := s.stored("svc")
			calls, err := s.counted("dpu_extension_service", "svc", c.changes)
			after := s.stored("svc")
			if n := calls["UpdateDpuExtensionService"]; n != c.calls || after.VersionCtr-before.VersionCtr != c.versions {
				t.Errorf("%d calls made %d versions, want %d and %d", n, after.VersionCtr-before.VersionCtr, c.calls, c.versions)
			}
			if c.class != success {
				s.class("the update", err, c.class)
				if err != nil && !strings.Contains(err.Error(), c.words) {
					t.Errorf("the refusal is %q, want it to say %q", err, c.words)
				}
				if after.Updated != before.Updated {
					t.Error("a refused update changed the service")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if want, ok := c.changes["manifest"]; ok && after.LatestVersionInfo.Data != want {
				t.Errorf("the manifest is %q", after.LatestVersionInfo.Data)
			}
			if want, ok := c.changes["description"]; ok && after.Description != want {
				t.Errorf("the description is %q", after.Description)
			}
			if c.versions == 0 && after.LatestVersionInfo.HasCredential != before.LatestVersionInfo.HasCredential {
				t.Error("the credential came or went without a version")
			}
			if len(after.ActiveVersions) != int(1+c.versions) {
				t.Errorf("the versions are %v", after.ActiveVersions)
			}
		})
	}
}

// TestExtensionServiceObserved: a credential that is set is left out, and one that is not is the empty text; our token
// also changes with what does not change the service's own.
func TestExtensionServiceObserved(t *testing.T) {
	var logged strings.Builder
	s := newSite(t, carbidesim.Options{})
	s.make("tenant", "acme", schema.Object{})
	s.make("dpu_extension_service", "svc", withCredential(carbidetest.Pod("a"), "s3cret"))
	first := s.see("dpu_extension_service", id("dpu_extension_service", "svc"))
	for _, field := range []string{"registry", "registry_username", "registry_password"} {
		if v, told := first.Spec[field]; told {
			t.Errorf("%s of a credential that is set is %q", field, v)
		}
	}
	if _, err := s.counted("dpu_extension_service", "svc", schema.Object{}); err != nil { // nothing else: the credential is removed
		t.Fatal(err)
	}
	second := s.see("dpu_extension_service", first.ID)
	for _, field := range []string{"registry", "registry_username", "registry_password"} {
		if v, told := second.Spec[field]; !told || v != "" {
			t.Errorf("%s of no credential is %v", field, v)
		}
	}
	versions := second.Status["active_versions"].([]any)
	if len(versions) != 2 || versions[0] != second.Status["version"] || versions[1] != first.Status["version"] {
		t.Errorf("the versions are %v", second.Status)
	}
	c := s.change("dpu_extension_service", "svc", first.ID, schema.Object{"description": "mine"})
	theirs := &forge.UpdateDpuExtensionServiceRequest{ServiceId: first.ID, Description: proto.String("theirs")}
	if _, err := s.Stranger().UpdateDpuExtensionService(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	s.class("an update over somebody's description", s.kind("dpu_extension_service").Update(t.Context(), c), conflict)
	fmt.Fprint(&logged, slog.AnyValue(first), s.Objects())
	if strings.Contains(logged.String(), "s3cret") {
		t.Error("the password is told")
	}
}

// TestExtensionServiceNames: the name of a deleted service is refused, with the reason, as long as the service is of that
// generation.
func TestExtensionServiceNames(t *testing.T) {
	for _, free := range []bool{false, true} {
		s := newSite(t, carbidesim.Options{Rules: carbidesim.Rules{FreeServiceNames: free}})
		s.make("tenant", "acme", schema.Object{})
		c := s.make("dpu_extension_service", "Collector", schema.Object{"tenant": "acme", "manifest": carbidetest.Pod("a")})
		if err := s.kind("dpu_extension_service").Delete(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		again := call("dpu_extension_service", "collector")
		again.Want = c.Want
		switch err := s.kind("dpu_extension_service").Create(t.Context(), again); {
		case free && err != nil:
			t.Error(err)
		case !free:
			s.class("a create under the name of a deleted service", err, exists)
			if !strings.Contains(fmt.Sprint(err), "perhaps by a deleted service") {
				t.Errorf("the refusal is %v", err)
			}
		}
	}
}

// TestLibraryUnsupported: an older site has no library, and says so; it still has images and services.
func TestLibraryUnsupported(t *testing.T) {
	s := newSite(t, carbidesim.Options{Old: true})
	for _, ids := range [][]string{nil, {id("operating_system", "x")}} {
		_, err := providertest.Of(s.kind("operating_system"))(t.Context(), ids)
		s.class("observe", err, unsupported)
	}
	c := call("operating_system", "x")
	c.Want = schema.Object{"tenant": "acme", "script": "#!ipxe"}
	s.class("create", s.kind("operating_system").Create(t.Context(), c), unsupported)
	for _, noun := range []string{"os_image", "dpu_extension_service"} {
		if _, err := providers.Collect(s.kind(noun).List(t.Context())); err != nil {
			t.Error(err)
		}
	}
}

// TestImageFaults: the meaning of codes for kinds without a token, and where the far side's own codes say little.
func TestImageFaults(t *testing.T) {
	spec := map[string]schema.Object{
		"operating_system":      {"tenant": "acme", "type": "ipxe", "script": "#!ipxe"},
		"os_image":              {"tenant": "acme", "source_url": "https://a", "digest": "a"},
		"dpu_extension_service": {"tenant": "acme", "manifest": carbidetest.Pod("a")},
	}
	methods := map[string]string{"operating_system": "OperatingSystem", "os_image": "OsImage", "dpu_extension_service": "DpuExtensionService"}
	for noun, want := range spec {
		s := newSite(t, carbidesim.Options{})
		s.make("tenant", "acme", schema.Object{})
		n := 0
		try := func(verb string, effect carbidesim.Effect, code codes.Code, class providers.Class) {
			t.Helper()
			n++
			c := call(noun, fmt.Sprintf("thing-%d", n))
			c.Want = want
			if verb != "Create" {
				c = s.make(noun, c.Ref.Name, want)
				c.Have = s.see(noun, c.ID).Spec
				c.Want = c.Have.Clone()
				c.Want["description"] = "changed"
				if noun == "dpu_extension_service" {
					c.Version = s.see(noun, c.ID).Version
				}
			}
			if err := s.Inject(carbidesim.Fault{Method: verb + methods[noun], Effect: effect, Code: code}); err != nil {
				t.Fatal(err)
			}
			var err error
			switch verb {
			case "Create":
				err = s.kind(noun).Create(t.Context(), c)
			case "Update":
				err = s.kind(noun).Update(t.Context(), c)
			case "Delete":
				err = s.kind(noun).Delete(t.Context(), c)
			}
			if len(s.Faults()) != 0 {
				t.Errorf("%s of %s: the fault did not strike", verb, noun)
			}
			if class == success {
				if err != nil {
					t.Errorf("%s of %s with %s %s its effect failed: %v", verb, noun, code, effect, err)
				}
				return
			}
			s.class(fmt.Sprintf("%s of %s with %s %s its effect", verb, noun, code, effect), err, class)
		}
		try("Create", carbidesim.Before, codes.Unavailable, unknown)
		try("Create", carbidesim.After, codes.Internal, exists)
		try("Delete", carbidesim.Before, codes.Internal, busy)
		try("Delete", carbidesim.After, codes.Internal, success)
		try("Delete", carbidesim.Before, codes.Unavailable, unknown)
		try("Update", carbidesim.Before, codes.PermissionDenied, denied)
		if noun == "dpu_extension_service" {
			try("Update", carbidesim.Before, codes.Internal, busy)
			try("Update", carbidesim.After, codes.Internal, conflict)
		} else {
			try("Update", carbidesim.Before, codes.Internal, unknown) // no token shows whether it had an effect
			try("Update", carbidesim.After, codes.Internal, unknown)
		}
	}
}
