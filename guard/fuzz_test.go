package guard

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"converge.dev/converge/e2e/hostile/fuzzed"
	"converge.dev/converge/internal/budget"
	"converge.dev/converge/schema"
)

// FuzzCapsule reads capsules as they may be on a disk. What is accepted comes back the same, and can be restored. The fuzzer writes the body;
// every second input is sealed, so that the checksum does not keep everything out.
func FuzzCapsule(tf *testing.F) {
	f := fuzzed.New(tf)
	ref := schema.Ref{Scope: "n1", Kind: "net.port", Name: "p"}
	source := Source{Provider: "net", Scope: "n1", Settings: []byte(`{"socket":"unix:/run/db.sock"}`)}
	full := capsule{
		ID: "run/1", terms: terms{Epoch: 5, Boot: "b", Deadline: time.Hour, Within: time.Minute}, Probes: []string{"tcp:192.0.2.1:53"}, Next: 3,
		Changes: []change{
			{Number: 0, Op: "create", Ref: ref, ID: "p", Source: source, Mark: "s/n1/net.port/p#1"},
			{Number: 2, Op: "update", Ref: ref, ID: "p", Source: source, Late: time.Second, Before: &image{
				UID: "u", Spec: schema.Object{"tag": int64(1), "f": 1.5, "list": []any{"a", nil, true}, "s": "\u2028"}, Unfilled: []string{"x"},
			}},
		},
	}
	for _, c := range []capsule{full, {ID: "x", terms: full.terms}} {
		file, err := encode(&c)
		if err != nil {
			f.Fatal(err)
		}
		if _, err := decodeCapsule(file); err != nil {
			f.Fatalf("%s: %v", file, err)
		}
		f.Add(file, false)
		_, body, _ := strings.Cut(string(file), `"body":`)
		f.Add([]byte(strings.TrimSuffix(body, "}")), true)
	}
	for _, s := range []string{``, `{}`, `null`, `{"version":2}`, `{"version":1,"version":1}`, `{"version":1,"sum":"","body":null}`, `{"version":1e0}`, strings.Repeat(`{"version":`, 1000)} {
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	f.Fuzz(func(t *testing.T, data []byte, seal bool) {
		if len(data) > budget.Largest {
			return
		}
		if seal {
			data = []byte(`{"version":1,"sum":"` + checksum(data) + `","body":` + string(data) + `}`)
		}
		var c *capsule
		var err error
		budget.Spend(t, func() { c, err = decodeCapsule(data) })
		if err != nil {
			if c != nil {
				t.Error("a capsule beside an error")
			}
			return
		}
		again, err := encode(c)
		if err != nil {
			t.Fatalf("%q is accepted, and cannot be written: %v", data, err)
		}
		back, err := decodeCapsule(again)
		if err != nil || !reflect.DeepEqual(c, back) {
			t.Errorf("%q comes back as %+v, %v", data, back, err)
		}
		for _, r := range c.restorations() {
			if (r.Before == nil) != (r.Op == "create") {
				t.Errorf("%q: %s of %s restores %v", data, r.Op, r.Ref, r.Before)
			}
		}
	})
}
