package kinds

import (
	"reflect"
	"strings"
	"sync"
	"testing"

	"converge.dev/converge/schema"
)

// gadget is the kind in the tests of words.
const gadget = `
	#Site: x?: gadget?: [#LabelName]: #Gadget
	#Site: x?: free?: [=~"^..$"]: {#Resource, if true {a?: int}}
	#Node: y?: widget?: [#LabelName]: {#Resource}

	// A gadget.
	#Gadget: {
		#Resource

		// The tenant that owns it.
		tenant!: #LabelName
		mode: *"auto" | "manual" | "off"
		port?: #Port
		level?: number & >0 & <1.5
		address?: #IP
		note?: strings.MinRunes(2) & strings.MaxRunes(5)
		tags?: [...string] & list.UniqueItems()
		rules?: list.MaxItems(2) & [...#GadgetRule] @key(id)
		pair?: [string, string, ...string]
		labels?: #Labels
		nick?: string & !="root"
		retries?: 1 | 2 | 3
		any?: int | bool
		password?: #Secret
		secrets?: [string]: #Secret
		address_seen?: string @computed()
	}

	// Beside a call such as list.MaxItems, CUE closes only what is a definition.
	#GadgetRule: {id!: int, on: *true | bool}
`

func newGadget(t *testing.T) *Schema {
	t.Helper()
	s, err := NewFrom(withCore(t, "import (\"list\", \"strings\")\n"+gadget))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestExplain(t *testing.T) {
	s := newGadget(t)
	kind := s.Kinds()["x.gadget"]
	for _, c := range []struct {
		spec string // beside the tenant
		want string // PATH CODE DETAIL
	}{
		{`"tennant": 1`, `tennant CV1001 There is no field "tennant". Did you mean "tenant"?`},
		{`"zzz": 1`, `zzz CV1001 There is no field "zzz". Available: address, any, depends_on, labels, level, lifecycle, mode, nick, note, pair, password, port, retries, rules, secrets, tags, tenant, timeouts.`},
		{`"lifecycle": {"protekt": true}`, `lifecycle.protekt CV1001 There is no field "protekt". Did you mean "protect"?`},
		{`"rules": [{"on": true}]`, `rules.0.id CV1002 Field "id" is required. Want a whole number.`},
		{`"port": "80"`, `port CV1003 Found "80". Want a whole number from 1 to 65535.`},
		{`"port": 1.5`, `port CV1003 Found 1.5. Want a whole number from 1 to 65535.`},
		{`"port": null`, `port CV1003 Found null. Want a whole number from 1 to 65535.`},
		{`"rules": {}`, `rules CV1003 Found an object. Want a list of at most 2 elements.`},
		{`"any": "x"`, `any CV1003 Found "x". Want a whole number, or true or false.`},
		{`"port": 65536`, `port CV1004 65536 is out of range. Want a whole number from 1 to 65535.`},
		{`"level": 1.5`, `level CV1004 1.5 is out of range. Want a number above 0 and below 1.5.`},
		{`"address": "10.0.0.256"`, `address CV1005 "10.0.0.256" is invalid. Want an IPv4 or IPv6 address.`},
		{`"mode": "Manual"`, `mode CV1006 "Manual" is not allowed. Want "auto", "manual" or "off". Did you mean "manual"?`},
		{`"retries": 4`, `retries CV1006 4 is not allowed. Want 1, 2 or 3.`},
		{`"nick": "root"`, `nick CV1006 "root" is not allowed. Want text other than "root".`},
		{`"tags": ["a", "b", "a"]`, `tags CV1006 "a" appears more than once. Want each element once.`},
		{`"address_seen": "x"`, `address_seen CV1007 Only the remote system sets "address_seen". Remove it from the document.`},
		{`"labels": {"é": "x"}`, `labels.é CV1008 "é" is not a valid name. Want text of 1 to 255 printable ASCII characters.`},
		{`"note": "toolong"`, `note CV1011 Found 7 characters. Want at most 5 characters.`},
		{`"pair": ["a"]`, `pair CV1011 Found 1 element. Want at least 2 elements.`},
		{`"rules": [{"id": 1}, {"id": 2}, {"id": 3}]`, `rules CV1011 Found 3 elements. Want at most 2 elements.`},
		{`"password": "hunter2"`, `password CV1003 Found (secret). Want an object.`},
		{`"password": {"from": "hunter2"}`, `password.from CV1005 (secret) is invalid. Want the source of a secret: env:NAME or file:PATH.`},
		{`"secrets": {"a": {"from": "hunter2"}}`, `secrets.a.from CV1005 (secret) is invalid. Want the source of a secret: env:NAME or file:PATH.`},
		{`"port": 0, "mode": "", "x": 1`, `mode CV1006 "" is not allowed. Want "auto", "manual" or "off". && port CV1004 0 is out of range. Want a whole number from 1 to 65535. && x CV1001 *`},
	} {
		var spec schema.Object
		if err := spec.UnmarshalJSON([]byte(`{"tenant": "a", ` + c.spec + `}`)); err != nil {
			t.Fatal(err)
		}
		found := s.CheckSpec(kind, spec)
		wants := strings.Split(c.want, " && ")
		if len(found) != len(wants) {
			t.Errorf("%s: %v", c.spec, found)
			continue
		}
		for i, v := range found {
			got := strings.Join(v.Path, ".") + " " + v.Code + " " + v.Detail
			if w, open := strings.CutSuffix(wants[i], "*"); got != w && !(open && strings.HasPrefix(got, w)) {
				t.Errorf("%s:\ngot  %s\nwant %s", c.spec, got, w)
			}
			if v.Summary != shapes[v.Code] || v.Summary == "" {
				t.Errorf("%s: summary %q", c.spec, v.Summary)
			}
		}
	}
	if found := s.CheckSpec(kind, schema.Object{}); len(found) != 1 || found[0].Code != codeMissingField || !strings.Contains(found[0].Detail, "The tenant that owns it.") {
		t.Errorf("of an empty resource: %v", found)
	}
}

func TestCheckResourceFillsAndNormalizes(t *testing.T) {
	s := newGadget(t)
	spec := schema.Object{"tenant": "a", "rules": []any{map[string]any{"id": int64(2), "on": false}, map[string]any{"id": int64(1)}}}
	if found := s.CheckSpec(s.Kinds()["x.gadget"], spec); found != nil {
		t.Fatal(found)
	}
	want := schema.Object{"tenant": "a", "mode": "auto", "rules": []any{map[string]any{"id": int64(1), "on": true}, map[string]any{"id": int64(2), "on": false}}}
	if !reflect.DeepEqual(spec, want) {
		t.Errorf("got %v, want %v", spec, want)
	}
}

func TestCheckResourceInParallel(t *testing.T) {
	s := newGadget(t)
	var wg sync.WaitGroup
	for _, name := range []string{"x.gadget", "x.free", "x.gadget", "x.free"} { // x.free is left to CUE
		wg.Go(func() {
			for range 20 {
				if found := s.CheckSpec(s.Kinds()[name], schema.Object{"tenant": "a", "a": "b"}); len(found) == 0 {
					t.Errorf("%s accepts what it should not", name)
				}
			}
		})
	}
	wg.Wait()
}

func TestCheckName(t *testing.T) {
	s := newGadget(t)
	for _, c := range []struct{ kind, name, detail string }{
		{"x.gadget", "a-b", ""},
		{"x.gadget", "A", `"A" is not a valid x.gadget name. Want a label: lower-case letters, digits and inner hyphens, at most 63.`},
		{"x.gadget", "", `"" is not a valid name. Want a name that is not empty and contains no slash.`},
		{"x.free", "ab", ""},
		{"x.free", "a/", `"a/" is not a valid name. Want a name that is not empty and contains no slash.`},
		{"x.free", "a", `"a" is not a valid x.free name. Want text that matches ^..$.`},
	} {
		v := s.CheckName(s.Kinds()[c.kind], c.name)
		switch {
		case v == nil && c.detail != "":
			t.Errorf("%s may be called %q", c.kind, c.name)
		case v != nil && (v.Detail != c.detail || v.Code != codeBadName || v.Summary == ""):
			t.Errorf("%s %q: %v, want %q", c.kind, c.name, v, c.detail)
		}
	}
}

func TestCheckHead(t *testing.T) {
	s := newGadget(t)
	const head = `"apiVersion": "converge.dev/v1", "site": {"name": "a", "id": "5a2f0000-0000-4000-8000-000000000000"}`
	for _, c := range []struct {
		doc  string
		want []string // PATH CODE and part of DETAIL
	}{
		{head, nil},
		{head + `, "policy": {"max_destroy": "10%"}, "x": {"gadget": {"A": {"no": 1}}}, "nodes": {"n1": {"y": {"widget": {"w": {}}}}}`, nil},
		{``, []string{`apiVersion CV1002`, `site CV1002`}},
		{`"apiVersion": "converge.dev/v2", "site": {"name": "a_b", "id": "1", "serial": -1}`,
			[]string{`apiVersion CV1006 Want "converge.dev/v1"`, `site.id CV1005`, `site.name CV1005 lower-case letters`, `site.serial CV1004 from 0 to 4503599627370496`}},
		{head + `, "policy": {"max_destroi": "1"}`, []string{`policy.max_destroi CV1001 Did you mean "max_destroy"?`}},
		{head + `, "polcy": {}`, []string{`polcy CV1010 Did you mean "policy"?`}},
		{head + `, "xx": {}`, []string{`xx CV1010 There is no field or provider "xx".`}},
		{head + `, "x": {"gadgets": {}}`, []string{`x.gadgets CV1009 Did you mean "gadget"?`}},
		{head + `, "x": {"gadget": {"a": 1}}`, []string{`x.gadget.a CV1003 Found 1. Want an object with the fields of x.gadget.`}},
		{head + `, "x": {"gadget": null}`, []string{`x.gadget CV1003`}},
		{head + `, "x": []`, []string{`x CV1003`}},
		{head + `, "y": {}`, []string{`y CV1012 nodes.NAME.y`}},
		{head + `, "nodes": {"n": {"x": {}}}`, []string{`nodes.n.x CV1012 top level of the document`}},
		{head + `, "nodes": {"n": {"z": {}}, "site": {}, "M": 1}`, []string{`nodes.M CV1008`, `nodes.M CV1003`, `nodes.n.z CV1010`, `nodes.site CV1008 other than "site"`}},
		{head + `, "nodes": []`, []string{`nodes CV1003`}},
	} {
		var doc schema.Object
		if err := doc.UnmarshalJSON([]byte("{" + c.doc + "}")); err != nil {
			t.Fatal(err)
		}
		before := doc.Clone()
		found := s.CheckHead(doc)
		if len(found) != len(c.want) {
			t.Errorf("%s: %v", c.doc, found)
			continue
		}
		for i, v := range found {
			parts := strings.SplitN(c.want[i]+"  ", " ", 3)
			if strings.Join(v.Path, ".") != parts[0] || v.Code != parts[1] || !strings.Contains(v.Detail, strings.TrimSpace(parts[2])) {
				t.Errorf("%s: got %v, want %s", c.doc, v, c.want[i])
			}
		}
		if !reflect.DeepEqual(doc, before) {
			t.Errorf("%s: the document was changed", c.doc)
		}
	}
}
