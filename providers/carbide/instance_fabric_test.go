package carbide_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/carbidetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

const (
	superNIC = "MT43244 BlueField-3 SuperNIC"
)

// onFabrics returns a ready instance, beside partitions and a service of its tenant.
func onFabrics(t *testing.T, host string) (*site, providers.Call) {
	s := newSite(t, carbidesim.Options{Hosts: lawHosts, Timing: lawTiming})
	s.make("tenant", "acme", schema.Object{})
	s.make("ib_partition", "train", schema.Object{"tenant": "acme"})
	s.make("nvlink_logical_partition", "rack", schema.Object{"tenant": "acme"})
	s.make("spx_partition", "spx", schema.Object{"tenant": "acme"})
	s.make("dpu_extension_service", "agent", schema.Object{"tenant": "acme", "manifest": manifest("one")})
	return s, s.powered(host)
}

func manifest(image string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: agent}\nspec: {containers: [{name: a, image: " + image + "}]}"
}

// TestFabrics: all sections are written and read back, a removed section is gone, and the rest stays.
func TestFabrics(t *testing.T) {
	s, c := onFabrics(t, hosts(t)[0])
	port := func(instance int64) map[string]any {
		return map[string]any{"ib_partition": id("ib_partition", "train"), "device": carbidetest.ConnectX, "device_instance": instance}
	}
	spx := func(instance int64, kind string) map[string]any {
		return map[string]any{"device": superNIC, "device_instance": instance, "spx_partition": id("spx_partition", "spx"), "type": kind}
	}
	all := schema.Object{
		"infiniband":             []any{port(1), port(0)},
		"nvlink":                 []any{map[string]any{"gpu": int64(0), "logical_partition": id("nvlink_logical_partition", "rack")}, map[string]any{"gpu": int64(1)}},
		"spx":                    []any{spx(1, "physical"), spx(0, "ovn")},
		"dpu_extension_services": []any{map[string]any{"service": id("dpu_extension_service", "agent"), "version": int64(1)}},
	}
	change := func(what string, changes schema.Object) providers.Thing {
		t.Helper()
		u := s.change("instance", "web", c.ID, changes)
		if err := s.kind("instance").Update(t.Context(), u); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if th := s.see("instance", c.ID); th.Phase != providers.Pending {
			t.Errorf("%s: the instance is %s at once", what, th.Phase)
		}
		s.Advance(time.Hour)
		th := s.see("instance", c.ID)
		if th.Spec.Digest() != u.Want.Digest() || th.Phase != providers.Ready {
			t.Errorf("%s: the instance is %s and\n%v, want\n%v", what, th.Phase, th.Spec, u.Want)
		}
		return th
	}
	th := change("all", all)
	for _, field := range []string{"infiniband_status", "nvlink_status", "spx_status", "dpu_extension_service_status"} {
		if l, _ := th.Status[field].([]any); len(l) == 0 {
			t.Errorf("%s is %v", field, th.Status[field])
		}
	}
	if got := th.Status["dpu_extension_service_status"].([]any)[0].(map[string]any); got["status"] != "running" || got["version"] != int64(1) {
		t.Errorf("the service is %v", got)
	}
	change("a newer version of the service", func() schema.Object {
		if err := s.update("dpu_extension_service", "agent", id("dpu_extension_service", "agent"), schema.Object{"manifest": manifest("two")}); err != nil {
			t.Fatal(err)
		}
		return schema.Object{"dpu_extension_services": []any{map[string]any{"service": id("dpu_extension_service", "agent"), "version": int64(2)}}}
	}())
	change("one section less", schema.Object{"nvlink": nil})
	s.class("a version that is not there", s.update("instance", "web", c.ID, schema.Object{
		"dpu_extension_services": []any{map[string]any{"service": id("dpu_extension_service", "agent"), "version": int64(9)}},
	}), absent)
	s.class("a partition that is not there", s.update("instance", "web", c.ID, schema.Object{
		"infiniband": []any{map[string]any{"ib_partition": id("ib_partition", "gone"), "device": carbidetest.ConnectX, "device_instance": int64(0)}},
	}), invalid)
	s.class("to delete what is used", s.kind("ib_partition").Delete(t.Context(), call("ib_partition", "train")), busy)
	th = change("none", schema.Object{"infiniband": nil, "spx": nil, "dpu_extension_services": nil})
	for field := range all {
		if th.Spec[field] != nil {
			t.Errorf("%s is %v", field, th.Spec[field])
		}
	}
}

// TestBootAlone: what is booted changes by its own call, at any time, and together with other things by one call.
func TestBootAlone(t *testing.T) {
	s, c := onFabrics(t, hosts(t)[0])
	boots := func(script string) map[string]any {
		os := schema.Clone(s.see("instance", c.ID).Spec["os"]).(map[string]any)
		os["ipxe"] = script
		return os
	}
	update := func(what string, changes schema.Object, os, config int) {
		t.Helper()
		u := s.change("instance", "web", c.ID, changes)
		s.ResetCalls()
		if err := s.kind("instance").Update(t.Context(), u); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if calls := s.Calls(); calls["UpdateInstanceOperatingSystem"] != os || calls["UpdateInstanceConfig"] != config {
			t.Errorf("%s took %v", what, calls)
		}
		th := s.see("instance", c.ID)
		if th.Spec.Digest() != u.Want.Digest() {
			t.Errorf("%s: the instance is\n%v, want\n%v", what, th.Spec, u.Want)
		}
		if (os+config > 0) != (th.Version != u.Version) {
			t.Errorf("%s: the version went from %s to %s", what, u.Version, th.Version)
		}
	}
	update("nothing", nil, 0, 0)
	update("what is booted", schema.Object{"os": boots("#!ipxe one")}, 1, 0)
	if th := s.see("instance", c.ID); th.Phase != providers.Ready {
		t.Errorf("the instance is %s (%s)", th.Phase, th.Detail)
	}
	ports := schema.Clone(s.see("instance", c.ID).Spec["interfaces"]).([]any)
	more := append(ports, map[string]any{"function": "virtual", "device_instance": int64(0), "virtual_function_id": int64(1), "vpc_prefix": id("vpc_prefix", "links")})
	update("both", schema.Object{"os": boots("#!ipxe two"), "interfaces": more}, 0, 1)
	s.class("another change meanwhile", s.update("instance", "web", c.ID, schema.Object{"interfaces": ports}), busy)
	update("what is booted, meanwhile", schema.Object{"os": boots("#!ipxe three")}, 1, 0)
	s.Advance(time.Hour)
	update("words", schema.Object{"description": "words"}, 0, 1)

	stale := s.change("instance", "web", c.ID, schema.Object{"os": boots("#!ipxe four")})
	update("first", schema.Object{"os": boots("#!ipxe five")}, 1, 0)
	s.class("a stale change", s.kind("instance").Update(t.Context(), stale), conflict)
	if err := s.Inject(carbidesim.Fault{Method: "UpdateInstanceOperatingSystem", Effect: carbidesim.Before, Code: codes.FailedPrecondition}); err != nil {
		t.Fatal(err)
	}
	s.class("one that is refused", s.update("instance", "web", c.ID, schema.Object{"os": boots("#!ipxe six")}), absent)

	// An administrator may not make that call, and makes the other one.
	if err := s.Inject(carbidesim.Fault{Method: "UpdateInstanceOperatingSystem", Effect: carbidesim.Before, Code: codes.PermissionDenied}); err != nil {
		t.Fatal(err)
	}
	update("as an administrator", schema.Object{"os": boots("#!ipxe seven")}, 1, 1)
	if err := s.kind("instance").Delete(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Stranger().UpdateInstanceOperatingSystem(t.Context(), &forge.InstanceOperatingSystemUpdateRequest{
		InstanceId: &forge.InstanceId{Value: c.ID}, Os: &forge.InstanceOperatingSystemConfig{Variant: &forge.InstanceOperatingSystemConfig_Ipxe{Ipxe: &forge.InlineIpxe{IpxeScript: "#!ipxe"}}},
	}); err == nil {
		t.Error("an instance that is given back can boot something else")
	}
}
