package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	carbide "converge.dev/converge/providers/carbide/spec"
	ovs "converge.dev/converge/providers/ovs/spec"
	"converge.dev/converge/schema"
)

// An object is what is generated for a kind.
type object interface {
	Read(schema.Object) error
	Object() schema.Object
}

// TestReadAndWrite: what is read is written, and nothing else.
func TestReadAndWrite(t *testing.T) {
	for name, c := range map[string]struct {
		into object
		o    schema.Object
	}{
		"all there": {&carbide.Instance{}, schema.Object{
			"tenant": "acme", "keysets": []any{"a", "b"}, "labels": map[string]any{"x": "y"}, "auto_network": false, "power": "off",
			"os":         map[string]any{"ipxe": "chain", "phone_home_enabled": true, "run_provisioning_instructions_on_every_boot": false},
			"interfaces": []any{map[string]any{"function": "virtual", "device_instance": int64(0), "anycast_prefixes": []any{}, "ipv6": map[string]any{"vpc_prefix": "p"}}},
			"nvlink":     []any{},
		}},
		"nothing that may be absent": {&ovs.Mirror{}, schema.Object{"bridge": "br"}},
		"a secret":                   {&carbide.OSImage{}, schema.Object{"tenant": "t", "source_url": "u", "digest": "d", "auth_token": "secret"}},
		"numbers":                    {&ovs.Port{}, schema.Object{"bridge": "br", "tag": int64(0), "trunks": []any{int64(1), int64(2)}}},
	} {
		if err := c.into.Read(c.o); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := c.into.Object()
		for field, v := range got {
			if _, stated := c.o[field]; !stated && v == false { // a field with a default is always present
				delete(got, field)
			}
		}
		if d := cmp.Diff(c.o, got); d != "" {
			t.Errorf("%s (-read +written):\n%s", name, d)
		}
	}
}

// TestReadRefuses: what does not fit is not treated as absent.
func TestReadRefuses(t *testing.T) {
	for want, c := range map[string]struct {
		into object
		o    schema.Object
	}{
		"colour":              {&ovs.Bridge{}, schema.Object{"colour": "red"}},
		"tag is a string":     {&ovs.Port{}, schema.Object{"bridge": "br", "tag": "7"}},
		"trunks is a":         {&ovs.Port{}, schema.Object{"bridge": "br", "trunks": []any{"7"}}},
		"interfaces is a":     {&carbide.Instance{}, schema.Object{"interfaces": []any{"eth0"}}},
		"labels.x is a":       {&carbide.VPC{}, schema.Object{"labels": map[string]any{"x": int64(1)}}},
		"unknown field speed": {&ovs.Port{}, schema.Object{"interface": map[string]any{"speed": int64(1)}}},
		"tenant is a bool":    {&carbide.VPC{}, schema.Object{"tenant": true}},
	} {
		if err := c.into.Read(c.o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", c.o, err, want)
		}
	}
	// Fields that only the planner reads, and a sealed secret, are not mistakes.
	if err := new(carbide.Instance).Read(schema.Object{"placement": map[string]any{}}); err != nil {
		t.Error(err)
	}
	var sealed carbide.OSImage
	if err := sealed.Read(schema.Object{"auth_token": map[string]any{"digest": "x"}}); err != nil || sealed.AuthToken != nil {
		t.Errorf("%v, %v", sealed.AuthToken, err)
	}
}
