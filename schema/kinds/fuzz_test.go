package kinds

import (
	"bytes"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"converge.dev/converge/e2e/hostile/fuzzed"
	"converge.dev/converge/internal/budget"
	"converge.dev/converge/schema"
)

// FuzzChecks makes the checks and CUE judge the same resource of every kind: they agree, and fill in the same defaults.
func FuzzChecks(tf *testing.F) {
	f := fuzzed.New(tf)
	for kind := range byte(12) {
		for _, d := range []string{
			`{}`, `{"tenant":"acme"}`, `{"tenant":"acme","vni":0}`, `{"tenant":"acme","vni":70000.0,"labels":{"a":"b","é":"c"}}`, `{"tenant":"acme","virtualization":"x"}`,
			`{"lifecycle":{"on_remove":"forget","ignore":["a"]},"depends_on":["a/b.c/d"],"timeouts":{"create":"1h"}}`, `{"vpc":"prod","prefix":"10.0.0.0/8"}`, `{"bridge":"b","tag":1,"trunks":[1,2,2]}`,
			`{"tenant":"acme","rules":[{"id":"a","direction":"ingress","protocol":"tcp","action":"permit","priority":1,"src_prefix":"::/0","dst_prefix":"10.0.0.0/8","src_ports":{"start":1,"end":2}}]}`,
			`{"tenant":"acme","machine":"fm100ht0glhv5s29d97p50jjbiee1qs58gdvcifudm81g5i6uvtubfoeta0","os":{"ipxe":"x"},"interfaces":[{"segment":"a"}]}`,
			`{"display_name":null}`, `{"fail_mode":"secure","other_config":{"a b":"c"}}`, `{"capabilities":[{"type":"gpu","count":1e3}]}`, `{"description":"","state":"x"}`, `{"maintenance":{"reference":"OPS-1"}}`,
		} {
			f.Add(kind, []byte(d))
		}
	}
	s := newSchema(f)
	names := s.Kinds().Names()
	f.Fuzz(func(t *testing.T, kind byte, data []byte) {
		if len(data) > 4096 { // CUE is slow
			return
		}
		var spec schema.Object
		if !jsontext.Value(data).IsValid() || bytes.Contains(data, []byte(`\u0000`)) || spec.UnmarshalJSON(data) != nil || spec == nil {
			return // like package load
		}
		k := s.kinds[names[int(kind)%len(names)]]
		filled, refused := s.ask(k, spec)
		if refused != nil || setsComputed(k.body, spec) {
			filled = nil
		}
		sm := sample{spec, filled}
		budget.Spend(t, func() { k.body.accepts(spec.Clone()) })
		if d := sm.differs(k.body); d != "" {
			t.Errorf("%s: %s", k.Name, d)
		}
		found := s.CheckSpec(&k.Kind, spec.Clone())
		if (len(found) == 0) != (filled != nil) {
			t.Errorf("%s: CUE says %v, the messages %v", k.Name, refused, found)
		}
	})
}
