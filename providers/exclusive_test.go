package providers_test

import (
	"testing"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// What the far side gives to only one: everywhere or within something, in any case, and in any order.
func TestClaims(t *testing.T) {
	for _, c := range []struct {
		what     string
		of       providers.Exclusive
		a, b     schema.Object
		excludes bool
	}{
		{"a name", providers.Exclusive{Field: "{name}"}, schema.Object{"tenant": "x"}, schema.Object{"tenant": "y"}, false},
		{"a value", providers.Exclusive{Field: "vni"}, schema.Object{"vni": int64(1)}, schema.Object{"vni": int64(1)}, true},
		{"nothing", providers.Exclusive{Field: "vni"}, schema.Object{}, schema.Object{}, false},
		{"the same tenant", providers.Exclusive{Field: "host", Within: "tenant"}, schema.Object{"host": "h", "tenant": "x"}, schema.Object{"host": "h", "tenant": "x"}, true},
		{"another tenant", providers.Exclusive{Field: "host", Within: "tenant"}, schema.Object{"host": "h", "tenant": "x"}, schema.Object{"host": "h", "tenant": "y"}, false},
		{"another case", providers.Exclusive{Field: "host"}, schema.Object{"host": "H"}, schema.Object{"host": "h"}, false},
		{"another case that is the same", providers.Exclusive{Field: "host", Folded: true}, schema.Object{"host": "H"}, schema.Object{"host": "h"}, true},
		{"a pair the other way round", providers.Exclusive{Field: "pair", Whole: true}, schema.Object{"pair": []any{"a", "b"}}, schema.Object{"pair": []any{"b", "a"}}, true},
		{"half a pair", providers.Exclusive{Field: "pair", Whole: true}, schema.Object{"pair": []any{"a", "b"}}, schema.Object{"pair": []any{"b", "c"}}, false},
		{"an element", providers.Exclusive{Field: "list"}, schema.Object{"list": []any{"a", "b"}}, schema.Object{"list": []any{"b", "c"}}, true},
	} {
		traits := providers.Traits{Exclusive: []providers.Exclusive{c.of}}
		got := false
		for _, a := range traits.Claims("one", c.a) {
			for _, b := range traits.Claims("other", c.b) {
				got = got || a.Excludes(b)
			}
		}
		if got != c.excludes {
			t.Errorf("%s: excludes %v", c.what, got)
		}
	}
}
