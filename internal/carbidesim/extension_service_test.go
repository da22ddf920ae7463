package carbidesim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/providers/carbide/forge"
)

// pod returns a manifest with one container.
func pod(name string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec:\n  containers: [{name: %s, image: nvcr.io/x}]\n", name, name)
}

func podService(id, name string) *forge.CreateDpuExtensionServiceRequest {
	return &forge.CreateDpuExtensionServiceRequest{ServiceId: &id, ServiceName: name, TenantOrganizationId: "acme", Data: pod("a"), Description: text("first")}
}

func credential(password string) *forge.DpuExtensionServiceCredential {
	return &forge.DpuExtensionServiceCredential{RegistryUrl: "nvcr.io/x", Type: &forge.DpuExtensionServiceCredential_UsernamePassword{
		UsernamePassword: &forge.UsernamePassword{Username: "robot", Password: password},
	}}
}

func observed(configs ...*forge.DpuExtensionServiceObservabilityConfig) *forge.DpuExtensionServiceObservability {
	return &forge.DpuExtensionServiceObservability{Configs: configs}
}

func scrape(endpoint string) *forge.DpuExtensionServiceObservabilityConfig {
	return &forge.DpuExtensionServiceObservabilityConfig{Config: &forge.DpuExtensionServiceObservabilityConfig_Prometheus{
		Prometheus: &forge.DpuExtensionServiceObservabilityConfigPrometheus{Endpoint: endpoint, ScrapeIntervalSeconds: 30},
	}}
}

func logFile(path string) *forge.DpuExtensionServiceObservabilityConfig {
	return &forge.DpuExtensionServiceObservabilityConfig{Config: &forge.DpuExtensionServiceObservabilityConfig_Logging{
		Logging: &forge.DpuExtensionServiceObservabilityConfigLogging{Path: path},
	}}
}

func (b *workbench) service(id string) *forge.DpuExtensionService {
	b.Helper()
	found := ok(b.FindDpuExtensionServicesByIds(ctx, &forge.DpuExtensionServicesByIdsRequest{ServiceIds: []string{id}})).Services
	if len(found) != 1 {
		b.Fatalf("found %d services with id %s", len(found), id)
	}
	return found[0]
}

func TestExtensionServiceVersions(t *testing.T) {
	b := start(t, Options{})
	b.tenant("acme")
	r := podService(uid(1), "Collector")
	r.Credential, r.Observability = credential("s3cret"), observed(scrape("localhost:9090"), logFile("/var/log/a"))
	first := ok(b.CreateDpuExtensionService(ctx, r))
	if first.VersionCtr != 1 || !first.LatestVersionInfo.HasCredential || len(first.LatestVersionInfo.Observability.Configs) != 2 || !strings.HasPrefix(first.LatestVersionInfo.Version, "V1-T") {
		t.Errorf("made %v", first)
	}
	if got := fmt.Sprint(first, b.service(uid(1))); strings.Contains(got, "s3cret") || strings.Contains(got, "robot") {
		t.Errorf("the credential is told: %s", got)
	}
	update := func(r *forge.UpdateDpuExtensionServiceRequest) *forge.DpuExtensionService {
		t.Helper()
		r.ServiceId = uid(1)
		b.clock.pass(time.Second)
		got := ok(b.UpdateDpuExtensionService(ctx, r))
		if now := b.service(uid(1)); now.VersionCtr != got.VersionCtr || now.LatestVersionInfo.Version != got.LatestVersionInfo.Version {
			t.Errorf("the reply is %v, read is %v", got, now)
		}
		return got
	}
	got := update(&forge.UpdateDpuExtensionServiceRequest{Description: text("")})
	if got.Description != "" || got.ServiceName != "Collector" || got.VersionCtr != 1 || got.Updated == first.Updated || len(got.ActiveVersions) != 1 {
		t.Errorf("a description made %v", got)
	}
	got = update(&forge.UpdateDpuExtensionServiceRequest{Data: pod("b"), Credential: credential("s3cret"), ServiceName: text("collector")})
	if got.VersionCtr != 2 || got.LatestVersionInfo.Data != pod("b") || got.LatestVersionInfo.Observability != nil || !got.LatestVersionInfo.HasCredential || got.ServiceName != "collector" {
		t.Errorf("other data made %v", got)
	}
	if len(got.ActiveVersions) != 2 || got.ActiveVersions[1] != first.ActiveVersions[0] || got.ActiveVersions[0] != got.LatestVersionInfo.Version {
		t.Errorf("versions %v", got.ActiveVersions)
	}
	got = update(&forge.UpdateDpuExtensionServiceRequest{Data: pod("b")}) // without its credential
	if got.VersionCtr != 3 || got.LatestVersionInfo.HasCredential {
		t.Errorf("no credential made %v", got)
	}
	infos := ok(b.GetDpuExtensionServiceVersionsInfo(ctx, &forge.GetDpuExtensionServiceVersionsInfoRequest{ServiceId: uid(1), Versions: []string{first.ActiveVersions[0], "V9-T9"}})).VersionInfos
	if len(infos) != 1 || infos[0].Data != pod("a") || len(infos[0].Observability.GetConfigs()) != 2 {
		t.Errorf("the first version is %v", infos)
	}
	if n := len(ok(b.GetDpuExtensionServiceVersionsInfo(ctx, &forge.GetDpuExtensionServiceVersionsInfoRequest{ServiceId: uid(9)})).VersionInfos); n != 0 {
		t.Errorf("%d versions of no service", n)
	}

	// Versions are deleted one by one; numbers are never reused, and the service is deleted with its last version.
	remove := func(versions ...string) {
		t.Helper()
		ok(b.DeleteDpuExtensionService(ctx, &forge.DeleteDpuExtensionServiceRequest{ServiceId: uid(1), Versions: versions}))
	}
	remove("V9-T9")
	remove(got.ActiveVersions[0])
	if now := b.service(uid(1)); now.LatestVersionInfo.Version != got.ActiveVersions[1] || now.VersionCtr != 3 {
		t.Errorf("without the newest: %v", now)
	}
	if got := update(&forge.UpdateDpuExtensionServiceRequest{Data: pod("c")}); !strings.HasPrefix(got.LatestVersionInfo.Version, "V4-") {
		t.Errorf("the next version is %s", got.LatestVersionInfo.Version)
	}
	remove(b.service(uid(1)).ActiveVersions...)
	if n := len(ok(b.FindDpuExtensionServiceIds(ctx, &forge.DpuExtensionServiceSearchFilter{})).ServiceIds); n != 0 {
		t.Errorf("%d services are left", n)
	}
}

func TestExtensionServiceRefusals(t *testing.T) {
	b := start(t, Options{})
	b.tenant("acme")
	b.tenant("other")
	ok(b.CreateDpuExtensionService(ctx, podService(uid(1), "collector")))
	create := func(change func(*forge.CreateDpuExtensionServiceRequest)) error {
		r := podService(uid(2), "second")
		change(r)
		return failed(b.CreateDpuExtensionService(ctx, r))
	}
	data := func(text string) error {
		return create(func(r *forge.CreateDpuExtensionServiceRequest) { r.Data = text })
	}
	login := func(change func(*forge.DpuExtensionServiceCredential)) error {
		return create(func(r *forge.CreateDpuExtensionServiceRequest) {
			r.Credential = credential("x")
			change(r.Credential)
		})
	}
	watch := func(o *forge.DpuExtensionServiceObservability) error {
		return create(func(r *forge.CreateDpuExtensionServiceRequest) { r.Observability = o })
	}
	update := func(r *forge.UpdateDpuExtensionServiceRequest) error {
		r.ServiceId = uid(1)
		return failed(b.UpdateDpuExtensionService(ctx, r))
	}
	named := scrape("localhost:1")
	named.Name = text(strings.Repeat("n", 65))
	wrong, stale := int32(7), forge.DpuExtensionServiceType(3)
	b.refusals([]refusal{
		{"malformed id", create(func(r *forge.CreateDpuExtensionServiceRequest) { r.ServiceId = text("x") }), codes.InvalidArgument, "UUID"},
		{"taken id", create(func(r *forge.CreateDpuExtensionServiceRequest) { r.ServiceId = text(uid(1)) }), codes.Internal, "duplicate key"},
		{"no name", create(func(r *forge.CreateDpuExtensionServiceRequest) { r.ServiceName = "" }), codes.InvalidArgument, "service_name"},
		{"long name", create(func(r *forge.CreateDpuExtensionServiceRequest) { r.ServiceName = strings.Repeat("n", 65) }), codes.Internal, "value too long"},
		{"taken name", create(func(r *forge.CreateDpuExtensionServiceRequest) { r.ServiceName = "COLLECTOR" }), codes.FailedPrecondition, "already exists"},
		{"long description", create(func(r *forge.CreateDpuExtensionServiceRequest) { r.Description = text(strings.Repeat("é", 257)) }), codes.Internal, "value too long"},
		{"bad tenant", create(func(r *forge.CreateDpuExtensionServiceRequest) { r.TenantOrganizationId = "" }), codes.InvalidArgument, "organization"},
		{"unknown tenant", create(func(r *forge.CreateDpuExtensionServiceRequest) { r.TenantOrganizationId = "nobody" }), codes.Internal, "violates"},
		{"another type", create(func(r *forge.CreateDpuExtensionServiceRequest) { r.ServiceType = stale }), codes.InvalidArgument, "service_type"},
		{"no data", data(""), codes.InvalidArgument, "empty"},
		{"much data", data(pod("a") + "#" + strings.Repeat("x", 64<<10)), codes.InvalidArgument, "maximum size"},
		{"no YAML", data("a: b: c"), codes.InvalidArgument, "Invalid pod spec file"},
		{"two documents", data(pod("a") + "---\n" + pod("b")), codes.InvalidArgument, "more than one"},
		{"a list", data("[]"), codes.InvalidArgument, "mapping"},
		{"no apiVersion", data(strings.Replace(pod("a"), "apiVersion: v1\n", "", 1)), codes.InvalidArgument, "apiVersion"},
		{"another kind", data(strings.Replace(pod("a"), "Pod", "Job", 1)), codes.InvalidArgument, "kind: Pod"},
		{"no name of the pod", data(strings.Replace(pod("a"), "{name: a}", "{}", 1)), codes.InvalidArgument, "metadata.name"},
		{"no list of containers", data("{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: a}}"), codes.InvalidArgument, "must be an array"},
		{"no containers", data("{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: []}}"), codes.InvalidArgument, "at least one container"},
		{"no login", login(func(c *forge.DpuExtensionServiceCredential) { c.Type = nil }), codes.InvalidArgument, "credential type"},
		{"no user", login(func(c *forge.DpuExtensionServiceCredential) { c.GetUsernamePassword().Username = "" }), codes.InvalidArgument, "username"},
		{"long password", login(func(c *forge.DpuExtensionServiceCredential) {
			c.GetUsernamePassword().Password = strings.Repeat("p", 256)
		}), codes.InvalidArgument, "password"},
		{"no registry", login(func(c *forge.DpuExtensionServiceCredential) { c.RegistryUrl = "" }), codes.InvalidArgument, "registry"},
		{"much to watch", watch(observed(slices.Repeat([]*forge.DpuExtensionServiceObservabilityConfig{logFile("/a")}, 21)...)), codes.InvalidArgument, "limit of 20"},
		{"nothing to watch", watch(observed(&forge.DpuExtensionServiceObservabilityConfig{})), codes.InvalidArgument, "config"},
		{"long name to watch", watch(observed(named)), codes.InvalidArgument, "name"},
		{"endpoint", watch(observed(scrape("a.b:1"))), codes.InvalidArgument, "endpoint"},
		{"long endpoint", watch(observed(scrape(strings.Repeat("a", 129)))), codes.InvalidArgument, "endpoint"},
		{"path", watch(observed(logFile("/a b"))), codes.InvalidArgument, "path"},
		{"good", watch(observed(slices.Repeat([]*forge.DpuExtensionServiceObservabilityConfig{logFile("/a")}, 20)...)), codes.OK, ""},
		{"the same name elsewhere", create(func(r *forge.CreateDpuExtensionServiceRequest) {
			*r.ServiceId, r.ServiceName, r.TenantOrganizationId = uid(3), "collector", "other"
		}), codes.OK, ""},

		{"an update of nothing", update(&forge.UpdateDpuExtensionServiceRequest{}), codes.InvalidArgument, "empty data"},
		{"an empty name", update(&forge.UpdateDpuExtensionServiceRequest{ServiceName: text("")}), codes.InvalidArgument, "service_name"},
		{"observability alone", update(&forge.UpdateDpuExtensionServiceRequest{Observability: observed(logFile("/a"))}), codes.InvalidArgument, "empty data"},
		{"observability with the same data", update(&forge.UpdateDpuExtensionServiceRequest{Data: pod("a"), Observability: observed(logFile("/a"))}), codes.InvalidArgument, "No changes"},
		{"the same, written in another way", update(&forge.UpdateDpuExtensionServiceRequest{Data: "# a pod\n" + pod("a")}), codes.InvalidArgument, "No changes"},
		{"bad data", update(&forge.UpdateDpuExtensionServiceRequest{Data: "[]"}), codes.InvalidArgument, "mapping"},
		{"bad observability", update(&forge.UpdateDpuExtensionServiceRequest{Data: pod("b"), Observability: observed(scrape("/"))}), codes.InvalidArgument, "endpoint"},
		{"stale token", update(&forge.UpdateDpuExtensionServiceRequest{Description: text("x"), IfVersionCtrMatch: &wrong}), codes.FailedPrecondition, "ExtensionService"},
		{"taken name", update(&forge.UpdateDpuExtensionServiceRequest{ServiceName: text("Second")}), codes.FailedPrecondition, "already exists"},
		{"unknown", failed(b.UpdateDpuExtensionService(ctx, &forge.UpdateDpuExtensionServiceRequest{ServiceId: uid(9), Description: text("x")})), codes.NotFound, "extension_service"},
		{"unknown delete", failed(b.DeleteDpuExtensionService(ctx, &forge.DeleteDpuExtensionServiceRequest{ServiceId: uid(9)})), codes.NotFound, "extension_service"},
		{"bad version", failed(b.DeleteDpuExtensionService(ctx, &forge.DeleteDpuExtensionServiceRequest{ServiceId: uid(1), Versions: []string{"1"}})), codes.InvalidArgument, "version"},
		{"bad version to read", failed(b.GetDpuExtensionServiceVersionsInfo(ctx, &forge.GetDpuExtensionServiceVersionsInfoRequest{ServiceId: uid(1), Versions: []string{"1"}})), codes.InvalidArgument, "version"},
		{"malformed id to find", failed(b.FindDpuExtensionServicesByIds(ctx, &forge.DpuExtensionServicesByIdsRequest{ServiceIds: []string{"x"}})), codes.InvalidArgument, "UUID"},
		{"users of none", failed(b.FindInstancesByDpuExtensionService(ctx, &forge.FindInstancesByDpuExtensionServiceRequest{ServiceId: uid(9)})), codes.NotFound, "extension_service"},
	})
	if got := b.service(uid(1)); got.VersionCtr != 1 || got.Description != "first" {
		t.Errorf("refused updates made %v", got)
	}
}

// The name of a deleted service stays taken, unless the site has a later version.
func TestExtensionServiceNames(t *testing.T) {
	for _, free := range []bool{false, true} {
		b := start(t, Options{Rules: Rules{FreeServiceNames: free}})
		b.tenant("acme")
		ok(b.CreateDpuExtensionService(ctx, podService(uid(1), "collector")))
		ok(b.DeleteDpuExtensionService(ctx, &forge.DeleteDpuExtensionServiceRequest{ServiceId: uid(1)}))
		b.refuses(failed(b.CreateDpuExtensionService(ctx, podService(uid(1), "other"))), codes.Internal, "duplicate key")
		want := codes.FailedPrecondition
		if free {
			want = codes.OK
		}
		b.refuses(failed(b.CreateDpuExtensionService(ctx, podService(uid(2), "Collector"))), want, "")
	}
}

func TestExtensionServiceLists(t *testing.T) {
	b := start(t, Options{Rules: Rules{MaxFindByIDs: 1}})
	b.tenant("acme")
	for i, name := range []string{"a", "b", "c"} {
		ok(b.CreateDpuExtensionService(ctx, podService(uid(byte(i)), name)))
		b.clock.pass(time.Second)
	}
	ids := ok(b.FindDpuExtensionServiceIds(ctx, &forge.DpuExtensionServiceSearchFilter{TenantOrganizationId: text("acme")})).ServiceIds
	if want := []string{uid(2), uid(1), uid(0)}; !slices.Equal(ids, want) {
		t.Errorf("ids %v, want the newest first: %v", ids, want)
	}
	if got := ok(b.FindDpuExtensionServiceIds(ctx, &forge.DpuExtensionServiceSearchFilter{Name: text("B")})).ServiceIds; !slices.Equal(got, []string{uid(1)}) {
		t.Errorf("by name: %v", got)
	}
	if n := len(ok(b.FindDpuExtensionServicesByIds(ctx, &forge.DpuExtensionServicesByIdsRequest{ServiceIds: append(ids, uid(9))})).Services); n != 3 {
		t.Errorf("%d services in one call", n)
	}
	ok(b.FindDpuExtensionServicesByIds(ctx, &forge.DpuExtensionServicesByIdsRequest{}))
}

// A version that an instance has cannot be deleted.
func TestExtensionServiceInUse(t *testing.T) {
	b, hosts := withNetwork(t, 1)
	b.tenant("acme")
	service := ok(b.CreateDpuExtensionService(ctx, podService(uid(0x31), "collector")))
	with := func(version string) *forge.InstanceConfig {
		c := onPrefix(uid(3))
		c.DpuExtensionServices = &forge.InstanceDpuExtensionServicesConfig{ServiceConfigs: []*forge.InstanceDpuExtensionServiceConfig{{ServiceId: uid(0x31), Version: version}}}
		return c
	}
	allocate := func(c *forge.InstanceConfig) error {
		return failed(b.AllocateInstance(ctx, &forge.InstanceAllocationRequest{MachineId: &forge.MachineId{Id: hosts[0]}, Config: c}))
	}
	twice := with(service.LatestVersionInfo.Version)
	twice.DpuExtensionServices.ServiceConfigs = slices.Repeat(twice.DpuExtensionServices.ServiceConfigs, 2)
	b.refusals([]refusal{
		{"unknown version", allocate(with("V9-T9")), codes.FailedPrecondition, "ExtensionService"},
		{"bad version", allocate(with("9")), codes.InvalidArgument, "version"},
		{"twice", allocate(twice), codes.InvalidArgument, "twice"},
	})
	b.allocate(uid(0x10), hosts[0], with(service.LatestVersionInfo.Version))
	users := ok(b.FindInstancesByDpuExtensionService(ctx, &forge.FindInstancesByDpuExtensionServiceRequest{ServiceId: uid(0x31)})).Instances
	if len(users) != 1 || users[0].InstanceId != uid(0x10) || users[0].Version != service.LatestVersionInfo.Version {
		t.Errorf("users %v", users)
	}
	ok(b.UpdateDpuExtensionService(ctx, &forge.UpdateDpuExtensionServiceRequest{ServiceId: uid(0x31), Data: pod("b")}))
	remove := func(versions ...string) error {
		return failed(b.DeleteDpuExtensionService(ctx, &forge.DeleteDpuExtensionServiceRequest{ServiceId: uid(0x31), Versions: versions}))
	}
	b.refusals([]refusal{
		{"all", remove(), codes.FailedPrecondition, "in use"},
		{"the one", remove(service.LatestVersionInfo.Version), codes.FailedPrecondition, "in use"},
		{"the other", remove(b.service(uid(0x31)).LatestVersionInfo.Version), codes.OK, ""},
	})
	ok(b.ReleaseInstance(ctx, &forge.InstanceReleaseRequest{Id: instanceID(uid(0x10))}))
	b.refuses(remove(), codes.OK, "") // an instance in deletion prevents nothing
}
