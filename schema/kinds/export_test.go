package kinds

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cuelang.org/go/cmd/cue/cmd"
	"cuelang.org/go/cue"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/encoding/jsonschema"

	"converge.dev/converge/schema"
	"converge.dev/converge/schema/internal/canonical"
)

// oneResource returns a document with one resource, or none when k is nil.
func oneResource(k *kind, name string, spec schema.Object) map[string]any {
	doc := map[string]any{
		"apiVersion": schema.APIVersion,
		"site":       map[string]any{"name": "fra1", "id": "5a2f0000-0000-4000-8000-000000000000", "serial": int64(1)},
	}
	if k == nil {
		return doc
	}
	provider, noun, _ := strings.Cut(k.Name, ".")
	at := doc
	if k.Node {
		at = make(map[string]any)
		doc["nodes"] = map[string]any{"gpu-01": at}
	}
	at[provider] = map[string]any{noun: map[string]any{name: map[string]any(spec)}}
	return doc
}

// The exported CUE is for the stock cue command: it must accept and refuse what we do.
func TestCUEExportVets(t *testing.T) {
	t.Run("embedded", func(t *testing.T) { testCUEExport(t, newSchema(t)) })
	t.Run("gadget", func(t *testing.T) { testCUEExport(t, newGadget(t)) })
}

func testCUEExport(t *testing.T, s *Schema) {
	text, err := s.CUE()
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.CUE()
	if err != nil || !bytes.Equal(text, again) {
		t.Errorf("the second export differs (%v)", err)
	}
	dir := t.TempDir()
	schemaFile := filepath.Join(dir, "schema.cue")
	if err := os.WriteFile(schemaFile, text, 0o600); err != nil {
		t.Fatal(err)
	}
	vet := func(doc map[string]any) error {
		file := filepath.Join(dir, "doc.json")
		if err := os.WriteFile(file, canonical.Append(nil, doc), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := cmd.New([]string{"vet", "-d", "#Document", schemaFile, file})
		if err != nil {
			t.Fatal(err)
		}
		c.SetOut(&bytes.Buffer{})
		c.SetErr(&bytes.Buffer{})
		return c.Run(t.Context())
	}
	if err := vet(oneResource(nil, "", nil)); err != nil {
		t.Errorf("an empty document is refused: %v", err)
	}
	if err := vet(map[string]any{"apiVersion": schema.APIVersion}); err == nil {
		t.Error("a document without a site is accepted")
	}
	for _, name := range s.Kinds().Names() {
		k, g := s.kinds[name], newGenerator(seed(name))
		called := g.value(k.name).(string)
		spec := g.whole(k)
		if err := vet(oneResource(k, called, spec)); err != nil {
			t.Errorf("a %s is refused: %v", name, err)
		}
		if k.external != nil {
			for external, ok := range map[any]bool{true: true, false: false} {
				if err := vet(oneResource(k, called, schema.Object{"external": external})); (err == nil) != ok {
					t.Errorf("a %s that is external: %v: %v", name, external, err)
				}
			}
		}
		spec["unheard_of"] = true
		if err := vet(oneResource(k, called, spec)); err == nil {
			t.Errorf("a %s with an unknown field is accepted", name)
		}
	}
}

// The exported JSON Schema, read by CUE's own decoder, must accept and refuse what we do.
func TestJSONSchemaAgrees(t *testing.T) {
	skipUnderRace(t)
	t.Run("embedded", func(t *testing.T) { testJSONSchema(t, newSchema(t)) })
	t.Run("gadget", func(t *testing.T) { testJSONSchema(t, newGadget(t)) })
}

func testJSONSchema(t *testing.T, s *Schema) {
	text, err := s.JSONSchema()
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.JSONSchema()
	if err != nil || !bytes.Equal(text, again) {
		t.Errorf("the second export differs (%v)", err)
	}
	ctx := cuecontext.New()
	file, err := jsonschema.Extract(ctx.CompileBytes(text), &jsonschema.Config{DefaultVersion: jsonschema.VersionDraft2020_12, StrictKeywords: true})
	if err != nil {
		t.Fatal(err)
	}
	document := ctx.BuildFile(file)
	if err := document.Err(); err != nil {
		t.Fatal(err)
	}
	accepts := func(doc map[string]any) bool {
		return document.Unify(ctx.Encode(doc, cue.NilIsAny(false))).Validate(cue.Concrete(true)) == nil
	}
	for _, c := range []struct {
		change func(doc map[string]any)
		want   bool
	}{
		{func(map[string]any) {}, true},
		{func(doc map[string]any) { doc["policy"] = map[string]any{"max_destroy": "3"} }, true},
		{func(doc map[string]any) { doc["policy"] = map[string]any{"max_destroy": "3x"} }, false},
		{func(doc map[string]any) { delete(doc, "site") }, false},
		{func(doc map[string]any) { delete(doc["site"].(map[string]any), "id") }, false},
		{func(doc map[string]any) { doc["unheard_of"] = map[string]any{} }, false},
		{func(doc map[string]any) { doc["nodes"] = map[string]any{"a": map[string]any{}} }, true},
		{func(doc map[string]any) { doc["nodes"] = map[string]any{"site": map[string]any{}} }, false},
		{func(doc map[string]any) {
			doc["nodes"] = map[string]any{"a": map[string]any{"unheard_of": map[string]any{}}}
		}, false},
	} {
		doc := oneResource(nil, "", nil)
		c.change(doc)
		if got := accepts(doc); got != c.want {
			t.Errorf("%s: accepted %v", canonical.Append(nil, doc), got)
		}
		if got := len(s.CheckHead(doc)) == 0; got != c.want {
			t.Errorf("%s: CheckHead accepts %v", canonical.Append(nil, doc), got)
		}
	}
	for _, name := range s.Kinds().Names() {
		k := s.kinds[name]
		if len(k.opaque) > 0 {
			continue // it may accept more
		}
		called := newGenerator(seed(name)).value(k.name).(string)
		if accepts(oneResource(k, called+"/", schema.Object{})) {
			t.Errorf("a %s may be called %q", name, called+"/")
		}
		for i, sm := range samples(s, k) {
			if i%7 != 0 && i > 20 { // that is enough of them
				continue
			}
			if got := accepts(oneResource(k, called, sm.spec)); got != (sm.filled != nil) {
				t.Errorf("%s: accepted %v: %s", name, got, canonical.Append(nil, map[string]any(sm.spec)))
				break
			}
		}
	}
	var tree map[string]any
	if err := json.Unmarshal(text, &tree); err != nil {
		t.Fatal(err)
	}
	if tree["description"] == "" || tree["$schema"] != "https://json-schema.org/draft/2020-12/schema" {
		t.Errorf("the head is %v", tree["$schema"])
	}
}

func TestDescribe(t *testing.T) {
	s := newGadget(t)
	got, err := s.Describe("x.gadget")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"x.gadget\nA gadget.\n",
		"syntax    x: gadget: NAME: {...}\nNAME      a label: lower-case letters, digits and inner hyphens, at most 63\n",
		"\ntenant  a label: lower-case letters, digits and inner hyphens, at most 63; required\n    The tenant that owns it.\n",
		"\nmode  \"auto\", \"manual\" or \"off\"; default \"auto\"\n",
		"\nrules  a list of at most 2 elements, each an object; order does not matter, elements are identified\n       by id\n    id  a whole number; required\n    on  true or false; default true\n",
		"\nlabels  an object, each name text of 1 to 255 printable ASCII characters, each value text of at most\n        255 characters\n",
		"\npassword  an object; secret, never shown\n",
		"\naddress_seen  text; read-only\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("lacks %q:\n%s", want, got)
		}
	}
	if got, err = s.Describe("y.widget"); err != nil || !strings.Contains(got, "syntax    nodes: NODE: y: widget: NAME: {...}") {
		t.Errorf("%v, %s", err, got)
	}
	if _, err = s.Describe("x.gadgett"); err == nil || !strings.Contains(err.Error(), `Did you mean "x.gadget"?`) {
		t.Errorf("error %v", err)
	}
}

func TestSpelled(t *testing.T) {
	for pattern, want := range map[string]string{
		`^[ -~]{1,64}$`:             "of 1 to 64 printable ASCII characters",
		`^[!-~]{1,255}$`:            "of 1 to 255 printable ASCII characters other than spaces",
		`^[A-Za-z0-9:-]{1,128}$`:    "of 1 to 128 letters, digits, colons and hyphens",
		`^\S+$`:                     "of characters other than spaces",
		`^[^\s\v\x85\p{Z}]{3,}$`:    "of at least 3 characters other than spaces",
		`[^\s\v\x85\p{Z}]`:          "with at least 1 character other than spaces",
		`.`:                         "with at least 1 character",
		`^[0-9a-v]{52}$`:            "", // not letters
		`^[^a]{1,2}$`:               "", // not only spaces
		`^[a-z]([a-z-]{0,3}[a-z])$`: "",
	} {
		if got, ok := spelled(pattern); ok != (want != "") || ok && got != want {
			t.Errorf("%s is spelled %q, %v; want %q", pattern, got, ok, want)
		}
	}
}
