package kinds

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"converge.dev/converge/schema"
	"converge.dev/converge/schema/internal/canonical"
)

// withCore returns a schema of the real core and one more file.
func withCore(t *testing.T, text string) fstest.MapFS {
	t.Helper()
	core, err := schema.Files.ReadFile("core/core.cue")
	if err != nil {
		t.Fatal(err)
	}
	return fstest.MapFS{"core/core.cue": {Data: core}, "x/thing.cue": {Data: []byte("package converge\n" + text)}}
}

// thing returns a schema with the kind x.thing of these fields.
func thing(t *testing.T, imports, fields string) (*Schema, *kind) {
	t.Helper()
	s, err := NewFrom(withCore(t, imports+"\n#Site: x?: thing?: [#LabelName]: #Thing\n#Thing: {\n#Resource\n"+fields+"\n}\n"))
	if err != nil {
		t.Fatal(err)
	}
	return s, s.kinds["x.thing"]
}

func TestConstructs(t *testing.T) {
	skipUnderRace(t)
	for _, c := range []struct {
		name, imports, fields string
		opaque                string // part of what must be left to CUE; empty: nothing
	}{
		{name: "types", fields: `a!: string, b?: int, c?: number, d?: bool, e?: _, f?: uint8, g?: int32, h?: null`},
		{name: "bounds", fields: `a?: int & >0 & <=10, b?: number & >=0.5 & <2.25, c?: >-3, d?: int & <18446744073709551616, e?: int & !=null`},
		{name: "texts", imports: `import "strings"`, fields: `a?: =~"^a+$", b?: !~"x", c?: string & !="no", d?: strings.MinRunes(2) & strings.MaxRunes(4), e?: =~"^\(_ipv4)$"`},
		{name: "enumerations", fields: `a?: "x" | "y", b: *1 | 2 | 3, c?: 1 | "one" | true | null, d?: "only", e: "only"`},
		{name: "choices", fields: `a?: int | string, b?: null | =~"^a", c: *"auto" | int & >=0, d?: #IP | "any", e: *null | string, f: *-1 | uint16, g: *false | bool`},
		{name: "defaults", fields: `a: *5 | int, b: {c: *"x" | string, d?: int, e: {f: *true | bool}}, g: [...int], h?: {i: *1 | int}`},
		{name: "regular fields without default", fields: `a: string, b: {c: int}`},
		{name: "lists", imports: `import "list"`, fields: `a?: [...string], b?: [...{n!: int, m: *1 | int}], c?: [...int] & [_, ...], d?: list.MinItems(1) & list.MaxItems(2) & [...int], e?: [...int] & list.UniqueItems(), f?: [...[...int & >0]]`},
		{name: "maps", imports: `import "struct"`, fields: `a?: [string]: int, b?: [=~"^k"]: {v!: int, w: *1 | int}, c?: #Labels & struct.MaxFields(1), d?: {[=~"^k"]: int, x?: string}, e?: struct.MinFields(1) & {x?: int, y?: int}`},
		{name: "open structs", fields: `a?: {b?: int, ...}, c?: {...}`},
		{name: "definitions", fields: "a?: #Secret, b?: #Twice, c?: #Port & <100\n#Part & {z?: int}}\n#Part: {z?: >0, ...}\n#Twice: {a?: int}\n#Twice: {a?: >3, ..."},
		{name: "embedding", fields: "#More\nq?: int}\n#More: {p!: int, r: *1 | int"},
		{name: "declared twice", fields: "a?: int\na?: >5\nb: *1 | int\nb: <10"},
		{name: "quoted names", fields: `"a-b"?: int, "1x"!: string, "from"?: int`},

		{name: "condition", fields: `a!: "x" | "y", if a == "x" {b!: int}`, opaque: "comprehension"},
		{name: "condition below", fields: `l?: [...{a!: "x" | "y", if a == "x" {b!: int}}]`, opaque: "comprehension"},
		{name: "condition in a definition", fields: "l?: #L}\n#L: {a!: \"x\" | \"y\", if a == \"x\" {b!: int}", opaque: "comprehension"},
		{name: "other field", fields: `low!: int, high!: int & >=low`, opaque: "the field low"},
		{name: "other field in a text", fields: `a!: "x" | "y", b!: ("x" | "y") & =~"^\(a)$"`, opaque: "the field a"},
		{name: "let", fields: `let x = 5, a?: int & <x`, opaque: "let"},
		{name: "alias", fields: `X=a?: int, b?: X`, opaque: "alias"},
		{name: "label alias", fields: `m?: [N=string]: {name: N}`, opaque: "alias"},
		{name: "choice by type", fields: "a?: true | #Part}\n#Part: {b!: int"},
		{name: "choice of structs", fields: `a?: {b!: int} | {c!: string}`, opaque: "choice"},
		{name: "choice of definitions", fields: "a?: #B | #C}\n#B: {b!: int}\n#C: {c!: int", opaque: "choice"},
		{name: "exactly one", fields: `matchN(1, [{b!: _}, {c!: _}]), b?: int, c?: int`, opaque: "matchN"},
		{name: "builtin", imports: `import "net"`, fields: `a?: net.IPv4`, opaque: "IPv4"},
		{name: "tuple", fields: `a?: [string, int]`, opaque: "fixed length"},
		{name: "special first", fields: `a?: [string, ...int]`, opaque: "first elements"},
		{name: "list with a default", fields: `a: *[1, 2] | [...int]`, opaque: "fixed length"},
		{name: "order of texts", fields: `a?: <"m"`, opaque: "expression"},
		{name: "field and pattern", fields: `a?: {[=~"^k"]: int, k1?: >5}`, opaque: "a pattern also matches"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, k := thing(t, c.imports, c.fields)
			if why := strings.Join(k.opaque, "; "); c.opaque == "" && why != "" || !strings.Contains(why, c.opaque) {
				t.Errorf("left to CUE: %q, want %q", why, c.opaque)
			}
			good, bad := 0, 0
			for _, sm := range samples(s, k) {
				checked := sm.spec.Clone()
				found := s.CheckSpec(&k.Kind, checked)
				switch {
				case (len(found) == 0) != (sm.filled != nil):
					t.Fatalf("%s\nproblems %v, but CUE fills in %v", canonical.Append(nil, map[string]any(sm.spec)), found, sm.filled)
				case sm.filled == nil:
					bad++
				default:
					good++
					if !reflect.DeepEqual(checked, sm.filled) {
						t.Fatalf("%s\nis filled in as %v, by CUE as %v", canonical.Append(nil, map[string]any(sm.spec)), checked, sm.filled)
					}
				}
				if c.opaque == "" {
					if d := sm.differs(k.body); d != "" {
						t.Fatal(d)
					}
				}
			}
			if good == 0 || bad == 0 {
				t.Errorf("%d good and %d bad resources", good, bad)
			}
		})
	}
}

func TestMalformedSchemas(t *testing.T) {
	const head = "#Site: x?: thing?: [#LabelName]: #Thing\n#Thing: {\n#Resource\n"
	for _, c := range []struct {
		name, text string
		want       []string // parts of the error
	}{
		{"syntax", head + "a?: int &\n}", []string{"x/thing.cue:6"}},
		{"unknown definition", head + "a?: #Nothing\n}", []string{"x/thing.cue:5", "#Nothing"}},
		{"unknown attribute", head + "a?: int @imutable()\n}", []string{"x/thing.cue:5", "x.thing.a", "@imutable()", "did you mean immutable?"}},
		{"unknown kind", head + "a?: string @ref(x.thin)\n}", []string{"x/thing.cue", "x.thing.a", "@ref(x.thin)", "did you mean x.thing?"}},
		{"unknown kind below", head + "a?: [...{b?: string @ref(y.z)}]\n}", []string{"x.thing.a[].b", "@ref(y.z)"}},
		{"ref of a number", head + "a?: int @ref(x.thing)\n}", []string{"x.thing.a", "string"}},
		{"two refs", head + "a?: string @ref(x.thing) @ref(x.other)\n}", []string{"x.thing.a", "one @ref"}},
		{"missing key", head + "a?: [...{b!: int}] @key(c)\n}", []string{"x.thing.a", "@key(c)", "no field c"}},
		{"optional key", head + "a?: [...{b?: int}] @key(b)\n}", []string{"x.thing.a", "@key(b)", "required"}},
		{"key of texts", head + "a?: [...string] @key(b)\n}", []string{"x.thing.a", "@key(b)", "list of structs"}},
		{"set of no list", head + "a?: string @set()\n}", []string{"x.thing.a", "@set()", "list"}},
		{"no class", head + "a?: string @disruption()\n}", []string{"x.thing.a", "@disruption()", "want 1 arguments"}},
		{"argument too many", head + "a?: string @immutable(yes)\n}", []string{"x.thing.a", "want 0 arguments"}},
		{"attribute below", head + "a?: b?: {c?: int @x()}\n}", []string{"x.thing.a.b.c", "@x()"}},
		{"float", head + "a?: float\n}", []string{"x.thing.a", "use number"}},
		{"conflict", head + "a?: int & string\n}", []string{"x.thing.a", "no value is allowed"}},
		{"computed and there", head + "a: string @computed()\n}", []string{"x.thing.a", "optional"}},
		{"secret in clear", head + "a?: string @secret()\n}", []string{"x/thing.cue:5", "x.thing.a", "@secret()", "a document would contain the secret itself, unsealed", "declare it as #Secret"}},
		{"secret in clear below", head + "a?: b?: [...{c?: =~\"^x\" @secret()}]\n}", []string{"x.thing.a.b[].c", "declare it as #Secret"}},
		{"secrets in clear", head + "a?: [...string] @secret()\n}", []string{"x.thing.a", "declare it as #Secret"}},
		{"list of secrets", head + "a?: [...#Secret] @secret()\n}", []string{"x.thing.a", "declare it as #Secret"}},
		{"secret or text", head + "a?: (#Secret | string) @secret()\n}", []string{"x.thing.a", "declare it as #Secret"}},
		{"secret struct", head + "a?: {from!: string, more?: string} @secret()\n}", []string{"x.thing.a", "declare it as #Secret"}},
		{"not a resource", "#Site: x?: thing?: [#LabelName]: {a?: int}", []string{"x.thing", "does not embed #Resource"}},
		{"no names", "#Site: x?: thing?: {a?: int}", []string{"x.thing", "want [NAME]: DEFINITION"}},
		{"two grammars", "#Site: x?: thing?: {[=~\"a\"]: {#Resource}, [=~\"b\"]: {#Resource}}", []string{"x.thing", "more than one grammar"}},
		{"choice of kinds", head + "{b!: int} | {c!: int}\n}", []string{"x.thing", "does not embed #Resource"}},
		{"tree", head + "a?: #Tree\n}\n#Tree: {n?: int, left?: #Tree}", []string{"x.thing.a.left", "structural cycle"}},
		{"names beyond us", "#Site: x?: thing?: [<\"m\"]: {#Resource}", []string{"x/thing.cue:2", "kind x.thing", "in names, only CUE can check"}},
		{"settable and external", "#Site: x?: thing?: [#LabelName]: #Thing\n#Thing: {\n#External\na?: int\n}", []string{"x/thing.cue", "kind x.thing embeds #External, so a document cannot set a: want @computed()"}},
		{"on both", "#Site: x?: thing?: [#LabelName]: {#Resource}\n#Node: x?: thing?: [#LabelName]: {#Resource}", []string{"x.thing", "both"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := NewFrom(withCore(t, c.text))
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
		})
	}
	fsys := withCore(t, "")
	fsys["core/core.cue"].Data = append(slices.Clone(fsys["core/core.cue"].Data), "\n#Document: site!: name!: <\"m\"\n"...)
	if _, err := NewFrom(fsys); err == nil || !strings.Contains(err.Error(), "#Document: only CUE can check") {
		t.Errorf("a head that only CUE can judge: %v", err)
	}
	if _, err := NewFrom(fstest.MapFS{}); err == nil {
		t.Error("a schema without files is no error")
	}
}

// Of a kind that embeds #External a document can only say that a thing is external.
func TestReference(t *testing.T) {
	s, err := NewFrom(withCore(t, `
		#Node: x?: fact?: [#LabelName]: #Fact
		#Node: x?: thing?: [#LabelName]: *#Thing | #External
		#Fact: {#External, state?: string @computed()}
		#Thing: {#Resource, state?: string @computed(), size?: int}
	`))
	if err != nil {
		t.Fatal(err)
	}
	fact, thing := s.Kinds()["x.fact"], s.Kinds()["x.thing"]
	if !fact.Reference() || thing.Reference() {
		t.Errorf("x.fact is only referred to: %v; x.thing: %v", fact.Reference(), thing.Reference())
	}
	if want := []schema.Field{{Name: "state", Type: schema.String, Constraint: "string", Computed: true}}; !reflect.DeepEqual(fact.Fields, want) {
		t.Errorf("the fields are %+v", fact.Fields)
	}
	for _, c := range []struct {
		spec schema.Object
		want string // in the only problem; empty: there is none
	}{
		{schema.Object{"external": true}, ""},
		{schema.Object{"external": map[string]any{"id": "7"}}, ""},
		{schema.Object{"external": false}, "external: "},
		{schema.Object{}, "external: A x.fact can only be observed"},
		{schema.Object{"external": true, "state": "on"}, `state: Only the remote system sets "state"`},
		{schema.Object{"external": true, "lifecycle": map[string]any{"protect": true}}, "lifecycle: "},
		{schema.Object{"external": true, "size": int64(1)}, "size: "},
	} {
		var found string
		for _, p := range s.CheckSpec(fact, c.spec.Clone()) {
			found += strings.Join(p.Path, ".") + ": " + p.Detail + "\n"
		}
		if (found == "") != (c.want == "") || !strings.HasPrefix(found, c.want) || strings.Count(found, "\n") > 1 {
			t.Errorf("%v: found %q, want %q", c.spec, found, c.want)
		}
	}
	if text, err := s.Describe("x.fact"); err != nil || !strings.Contains(text, "nodes: NODE: x: fact: NAME: external: true\n") {
		t.Errorf("it is described as %s (%v)", text, err)
	}
}

func TestKinds(t *testing.T) {
	s, err := NewFrom(withCore(t, `
		#Node: x?: thing?: [#LabelName]: #Thing

		// A thing is
		// a thing.
		#Thing: {
			#Resource
			// Its peer.
			peer!: #LabelName @ref(x.thing) @immutable()
			peers?: [...#LabelName] @ref(x.thing) @set()
			size: *4 | (int & >=1 & <=8) @disruption(restart)
			parts?: [...#Part] @key(id)
			weights?: [string]: number
			password?: #Secret
			state?: string @computed()
			token?: string @secret() @computed()
			free?: int | string
		}
		#Part: {
			id!: string
			on: *false | bool
		}
	`))
	if err != nil {
		t.Fatal(err)
	}
	want := &schema.Kind{
		Name: "x.thing", Node: true, Doc: "A thing is a thing.",
		Fields: []schema.Field{
			{Name: "free", Type: schema.Any, Constraint: "int | string"},
			{Name: "parts", Type: schema.List, Key: "id", Constraint: "[...#Part]", Elem: &schema.Field{Type: schema.Struct, Constraint: "#Part", Fields: []schema.Field{
				{Name: "id", Type: schema.String, Constraint: "string", Required: true},
				{Name: "on", Type: schema.Bool, Constraint: "*false | bool", Default: false},
			}}},
			{Name: "password", Type: schema.Struct, Constraint: "#Secret", Secret: true, Doc: "A secret, by its source: env:NAME or file:PATH.",
				Fields: []schema.Field{{Name: "from", Type: schema.String, Doc: "The source of a secret: env:NAME or file:PATH.", Constraint: "#SecretPlace", Required: true}}},
			{Name: "peer", Type: schema.String, Doc: "Its peer.", Constraint: "#LabelName", Required: true, Ref: "x.thing", Immutable: true},
			{Name: "peers", Type: schema.List, Constraint: "[...#LabelName]", Set: true, Elem: &schema.Field{Type: schema.String, Constraint: "#LabelName", Ref: "x.thing",
				Doc: "A label: lower-case letters, digits and inner hyphens, at most 63."}},
			{Name: "size", Type: schema.Int, Constraint: "*4 | (int & >=1 & <=8)", Default: int64(4), Disruption: "restart"},
			{Name: "state", Type: schema.String, Constraint: "string", Computed: true},
			{Name: "token", Type: schema.String, Constraint: "string", Secret: true, Computed: true},
			{Name: "weights", Type: schema.Map, Elem: &schema.Field{Type: schema.Number, Constraint: "number"}},
		},
	}
	if got := s.Kinds()["x.thing"]; !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s\nwant\n%s", kindJSON(t, got), kindJSON(t, want))
	}
}
