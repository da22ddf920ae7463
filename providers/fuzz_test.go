package providers_test

import (
	"strings"
	"testing"

	"converge.dev/converge/e2e/hostile/fuzzed"
	"converge.dev/converge/internal/budget"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// FuzzParseMark checks that a mark is the same after it was written and read: the owner of a thing must not depend on its spelling.
func FuzzParseMark(tf *testing.F) {
	f := fuzzed.New(tf)
	for _, s := range []string{
		"5a2f8c1e-7b0d-4f3a-9c61-2e8d4b7a9f10/site/carbide.vpc/prod#1", "x/gpu-01/ovs.bridge/br-slice#12", "", "/", "#", "a/b/c.d/e#0", "a/b/c.d/e#-1",
		"a/b/c.d/e#+1", "a/b/c.d/e#01", "a/b/c.d/e#1#2", "a/b/c.d/#1", "/b/c.d/e#1", "a/b/c.d/e/f#1", "a/b/c.d/e#99999999999999999999", "a/b/c.d/e#1 ", "a/b/c.d/e#",
		"a/b/c.d/e\n#1", "a/b/c.d/\xff#1", "a/b/.../e#1",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) > budget.Largest {
			return
		}
		var m providers.Mark
		budget.Spend(t, func() { m = providers.ParseMark(s) })
		if m.IsZero() {
			return
		}
		if m.Site == "" || m.Ref.IsZero() || m.Incarnation < 1 {
			t.Errorf("%q is half a mark: %+v", s, m)
		}
		if again := providers.ParseMark(m.String()); again != m {
			t.Errorf("%q reads as %+v, which comes back as %+v", s, m, again)
		}
	})
}

// FuzzMark checks that every mark that can be written can be read, whatever the name of its resource.
func FuzzMark(tf *testing.F) {
	f := fuzzed.New(tf)
	f.Add("5a2f8c1e-7b0d-4f3a-9c61-2e8d4b7a9f10", "site/carbide.vpc/prod", 1)
	f.Add("s", "gpu-01/ovs.bridge/br#1", 2)
	f.Add("s", "a/b.c/#", 9223372036854775807)
	f.Add("s#1", "a#1/b#1.c#1/d#1#", 1)
	f.Add("", "a/b.c/d", 1)
	f.Add("x/y", "a/b.c/d", 1)
	f.Add("s", "a/b.c/d", 0)
	f.Add("s", "a/b.c/\x00\n\xff", 7)
	f.Fuzz(func(t *testing.T, site, text string, n int) {
		if len(site)+len(text) > budget.Largest {
			return
		}
		ref, err := schema.ParseRef(text)
		if err != nil || site == "" || strings.Contains(site, "/") || n < 1 {
			return // no site has such a name, and no incarnation is negative
		}
		m := providers.Mark{Site: site, Ref: ref, Incarnation: n}
		if got := providers.ParseMark(m.String()); got != m {
			t.Errorf("%+v is written as %q, which reads as %+v", m, m.String(), got)
		}
	})
}
