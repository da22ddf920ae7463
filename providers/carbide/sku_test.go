package carbide_test

import (
	"strings"
	"testing"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/schema"
)

// administrators opens a site in which we may do everything.
func administrators(t testing.TB, o carbidesim.Options) *site {
	w := newWorld(t, o)
	p := connectAs(t, w, nil)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return &site{t, w, p}
}

func skuOf(model string) schema.Object {
	return schema.Object{
		"chassis": map[string]any{"model": model, "architecture": "x86_64"},
		"gpus":    []any{map[string]any{"model": "H100", "count": int64(8)}, map[string]any{"model": "L4", "count": int64(1)}},
	}
}

// TestSKUWords: machines are checked again only when the parts of their SKU change.
func TestSKUWords(t *testing.T) {
	s := administrators(t, carbidesim.Options{})
	c := s.make("sku", "dgx", skuOf("DGX H100"))
	gpus := skuOf("")["gpus"].([]any)
	for _, step := range []struct {
		what           string
		changes        schema.Object
		words, replace int
	}{
		{"a description", schema.Object{"description": "eight"}, 1, 0},
		{"a device type, and the parts in another order", schema.Object{"device_type": "gpu", "gpus": []any{gpus[1], gpus[0]}}, 1, 0},
		{"no description", schema.Object{"description": nil}, 1, 0},
		{"no device type", schema.Object{"device_type": nil}, 0, 1},
		{"other parts", schema.Object{"gpus": nil}, 0, 1},
	} {
		u := s.change("sku", "dgx", c.ID, step.changes)
		s.ResetCalls()
		if err := s.kind("sku").Update(t.Context(), u); err != nil {
			t.Fatal(err)
		}
		if calls := s.Calls(); calls["UpdateSkuMetadata"] != step.words || calls["ReplaceSku"] != step.replace {
			t.Errorf("%s took %v", step.what, calls)
		}
		got := s.see("sku", c.ID).Spec
		for field, v := range step.changes {
			if _, there := got[field]; there != (v != nil) {
				t.Errorf("after %s the SKU is %v", step.what, got)
			}
		}
	}
}

// TestSKURole: a site agent reads SKUs, and is told why it may not change them; it may change what does not affect them.
func TestSKURole(t *testing.T) {
	hosts := hosts(t)
	everybody := administrators(t, carbidesim.Options{Hosts: lawHosts})
	agent := &site{t, everybody.World, connect(t, everybody.World)}
	defer agent.Provider.Close()
	everybody.make("sku", "dgx", skuOf("DGX H100"))

	refused := func(what string, err error) {
		t.Helper()
		agent.class(what, err, denied)
		if err != nil && !strings.Contains(err.Error(), "ForgeAdminCLI") {
			t.Errorf("%s: the error does not name the role: %v", what, err)
		}
	}
	c := call("sku", "other")
	c.ID, c.Want = "other", skuOf("other")
	refused("making a SKU", agent.kind("sku").Create(t.Context(), c))
	refused("changing one", agent.kind("sku").Update(t.Context(), agent.change("sku", "dgx", "dgx", schema.Object{"description": "x"})))
	refused("replacing one", agent.kind("sku").Update(t.Context(), agent.change("sku", "dgx", "dgx", skuOf("x"))))
	c.ID = "dgx"
	refused("deleting one", agent.kind("sku").Delete(t.Context(), c))

	update := func(s *site, changes schema.Object) error {
		return s.kind("machine").Update(t.Context(), s.change("machine", hosts[0], hosts[0], changes))
	}
	refused("a machine's first SKU", update(agent, schema.Object{"sku": "dgx", "description": "both"}))
	if th := agent.see("machine", hosts[0]); th.Spec["description"] != nil {
		t.Errorf("a part of the refused change was made: %v", th.Spec)
	}
	if err := update(everybody, schema.Object{"sku": "dgx"}); err != nil {
		t.Fatal(err)
	}
	refused("no SKU for a machine", update(agent, schema.Object{"sku": nil}))
	if err := update(agent, schema.Object{"description": "in the corner"}); err != nil {
		t.Errorf("a change that does not touch the SKU: %v", err)
	}
}

// TestMachineSKU: a machine moves from one SKU to another, and a SKU with machines stays.
func TestMachineSKU(t *testing.T) {
	hosts := hosts(t)
	s := administrators(t, carbidesim.Options{Hosts: lawHosts})
	s.make("sku", "dgx", skuOf("DGX H100"))
	s.make("sku", "hgx", skuOf("HGX H100"))
	for _, sku := range []any{"dgx", "hgx", nil, "dgx"} {
		if err := s.kind("machine").Update(t.Context(), s.change("machine", hosts[0], hosts[0], schema.Object{"sku": sku})); err != nil {
			t.Fatal(err)
		}
		if got := s.see("machine", hosts[0]).Spec["sku"]; got != sku {
			t.Errorf("the machine belongs to %v, want %v", got, sku)
		}
	}
	if got, _ := s.see("sku", "dgx").Status["machines"].([]any); len(got) != 1 || got[0] != hosts[0] {
		t.Errorf("the SKU has the machines %v", got)
	}
	c := call("sku", "dgx")
	c.ID = "dgx"
	s.class("deleting a SKU with machines", s.kind("sku").Delete(t.Context(), c), busy)
	s.class("an unknown SKU", s.kind("machine").Update(t.Context(), s.change("machine", hosts[1], hosts[1], schema.Object{"sku": "none"})), absent)
	c = call("sku", "twin")
	c.ID, c.Want = "twin", skuOf("DGX H100")
	s.class("a SKU that says the same as another", s.kind("sku").Create(t.Context(), c), invalid)

	// An instance holds its host.
	s.make("vpc", "prod", schema.Object{"tenant": "acme"})
	s.make("vpc_prefix", "links", schema.Object{"vpc": id("vpc", "prod"), "prefix": "10.1.0.0/16"})
	s.make("instance", "web", schema.Object{
		"tenant": "acme", "machine": hosts[0], "os": map[string]any{"ipxe": "#!ipxe"},
		"interfaces": []any{map[string]any{"function": "physical", "device_instance": int64(0), "vpc_prefix": id("vpc_prefix", "links")}},
	})
	s.class("another SKU under an instance", s.kind("machine").Update(t.Context(), s.change("machine", hosts[0], hosts[0], schema.Object{"sku": "hgx"})), busy)
}
