package forge

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// table is what the real service declares: testdata/forge-wire.json as of May 2026, reduced to what we use, and
// testdata/forge-wire-2026-08.json, all of v2.0.
type table struct {
	Methods  map[string]method           `json:"methods"`
	Messages map[string]message          `json:"messages"`
	Enums    map[string]map[string]int32 `json:"enums"`
	Rest     struct {
		Messages map[string]differences `json:"messages"`
	} `json:"rest_snapshot_differences"`
}

type method struct {
	Request  string `json:"request"`
	Response string `json:"response"`
}

type message struct {
	Reserved [][2]int32 `json:"reserved"`
	Fields   []field    `json:"fields"`
}

type field struct {
	Name     string `json:"name"`
	Number   int32  `json:"number"`
	Type     string `json:"type"`
	TypeName string `json:"type_name"`
	Label    string `json:"label"`
	Oneof    string `json:"oneof"`
	Optional bool   `json:"proto3_optional"`
	Dropped  bool   `json:"deprecated"`
	Map      mapped `json:"map"`
	Pruned   bool   `json:"pruned"`
}

// mapped are the types of a map's key and value.
type mapped map[string]string

// UnmarshalJSON accepts true where the table omits them.
func (m *mapped) UnmarshalJSON(b []byte) error {
	if string(b) == "true" {
		return nil
	}
	return json.Unmarshal(b, (*map[string]string)(m))
}

// differences lists where the older generation of a message differs; nil when it lacks the message.
type differences []struct {
	Number int32  `json:"number"`
	Core   string `json:"core"`
	Rest   string `json:"rest"`
}

// UnmarshalJSON accepts the text "absent" instead of the list.
func (d *differences) UnmarshalJSON(b []byte) error {
	if string(b) == `"absent"` {
		return nil
	}
	type plain differences
	return json.Unmarshal(b, (*plain)(d))
}

func readTable(t *testing.T) table {
	t.Helper()
	b, err := os.ReadFile("testdata/forge-wire.json")
	if err != nil {
		t.Fatal(err)
	}
	var facts table
	if err := json.Unmarshal(b, &facts); err != nil {
		t.Fatal(err)
	}
	// A field that is omitted on purpose must not be compiled either.
	for name, m := range facts.Messages {
		kept := m.Fields[:0]
		for _, f := range m.Fields {
			if !f.Pruned {
				kept = append(kept, f)
			}
		}
		m.Fields = kept
		facts.Messages[name] = m
	}
	return facts
}

// readLater reads the table of v2.0, which was taken from the whole service.
func readLater(t *testing.T) table {
	t.Helper()
	b, err := os.ReadFile("testdata/forge-wire-2026-08.json")
	if err != nil {
		t.Fatal(err)
	}
	var facts struct {
		Services map[string]table
		table
	}
	if err := json.Unmarshal(b, &facts); err != nil {
		t.Fatal(err)
	}
	facts.Methods = facts.Services["forge.Forge"].Methods
	return facts.table
}

// Everything that is compiled is in the table, and the other way round, apart from what later generations added: a number
// typed wrongly here would silently write one field of a customer's object into another.
func TestDescriptorsMatchTheTable(t *testing.T) {
	want, later, got := readTable(t), readLater(t), compiled(t)
	for name := range got.Methods {
		if _, ok := want.Methods[name]; !ok {
			want.Methods[name] = later.Methods[name]
		}
	}
	if diff := cmp.Diff(want.Methods, got.Methods); diff != "" {
		t.Errorf("methods (-table +compiled):\n%s", diff)
	}
	for name := range got.Enums {
		if _, ok := want.Enums[name]; !ok {
			want.Enums[name] = later.Enums[name]
		}
	}
	if diff := cmp.Diff(want.Enums, got.Enums); diff != "" {
		t.Errorf("enums (-table +compiled):\n%s", diff)
	}
	for name := range want.Messages {
		if _, ok := got.Messages[name]; !ok {
			t.Errorf("%s is in the table and not compiled", name)
		}
	}
	for name, m := range got.Messages {
		facts, ok := want.Messages[name]
		if !ok { // for a message of a later version it is enough to compile what is used; see TestLaterGeneration
			continue
		}
		var added []field
		for _, f := range m.Fields {
			if facts.field(f.Number) == nil && later.Messages[name].field(f.Number) != nil {
				added = append(added, f)
				if facts.reserves(f.Number) {
					t.Errorf("%s of %s has a number that was something else before", f.Name, name)
				}
			}
		}
		facts.Fields = append(facts.Fields, added...)
		byNumber := cmp.Options{
			cmp.Transformer("ByNumber", func(in []field) map[int32]field {
				out := map[int32]field{}
				for _, f := range in {
					out[f.Number] = f
				}
				return out
			}),
		}
		if diff := cmp.Diff(facts, m, byNumber); diff != "" {
			t.Errorf("%s (-table +compiled):\n%s", name, diff)
		}
	}
}

// retired are fields that v2.0 no longer reads. Nothing sends them to a server.
var retired = map[string]bool{"forge.InstancePowerRequest.machine_id": true, "forge.IpxeTemplate.scope": true}

// untold are families that are not in the table of v2.0.
var untold = regexp.MustCompile(`Expected(Switch|PowerShel)|PowerOption|PowerState|AdminPowerControl`)

// Servers from v2.0 on understand every byte that we send, and we every byte that they send.
func TestLaterGeneration(t *testing.T) {
	later, got := readLater(t), compiled(t)
	for name, m := range got.Methods {
		if want := later.Methods[name]; want != m && !untold.MatchString(name) {
			t.Errorf("%s takes and answers %v in v2.0, compiled is %v", name, want, m)
		}
	}
	for name, values := range got.Enums {
		facts, ok := later.Enums[name]
		if !ok && name != "forge.IpxeTemplateScope" && !untold.MatchString(name) {
			t.Errorf("%s is not in v2.0", name)
		}
		for word, number := range values {
			if n, ok := facts[word]; facts != nil && (!ok || n != number) {
				t.Errorf("%s of %s is %d in v2.0, compiled is %d", word, name, n, number)
			}
		}
	}
	for name, m := range got.Messages {
		facts, ok := later.Messages[name]
		if untold.MatchString(name) && !ok {
			continue
		}
		if !ok {
			t.Errorf("%s is not in v2.0", name)
			continue
		}
		for _, f := range m.Fields {
			want := facts.field(f.Number)
			if retired[name+"."+f.Name] {
				continue
			}
			if want == nil {
				t.Errorf("v2.0 has no field %d in %s, which is %s here", f.Number, name, f.Name)
				continue
			}
			// Presence of a field and its deprecation make no difference on the wire.
			same := *want
			same.Optional, same.Dropped, same.Pruned, same.Map = f.Optional, f.Dropped, f.Pruned, f.Map
			if diff := cmp.Diff(same, f); diff != "" {
				t.Errorf("%s (-v2.0 +compiled):\n%s", name, diff)
			}
		}
	}
}

func (m message) field(number int32) *field {
	for i := range m.Fields {
		if m.Fields[i].Number == number {
			return &m.Fields[i]
		}
	}
	return nil
}

func (m message) reserves(number int32) bool {
	return slices.ContainsFunc(m.Reserved, func(r [2]int32) bool { return r[0] <= number && number <= r[1] })
}

// compiled returns the content of this package.
func compiled(t *testing.T) table {
	t.Helper()
	got := table{Methods: map[string]method{}, Messages: map[string]message{}, Enums: map[string]map[string]int32{}}
	var files []protoreflect.FileDescriptor
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if strings.HasPrefix(f.Path(), "carbide/forge/") {
			files = append(files, f)
		}
		return true
	})
	for _, f := range files {
		got.addEnums(f.Enums())
		got.addMessages(f.Messages())
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			if s.FullName() != "forge.Forge" {
				t.Errorf("service %s is not in the table", s.FullName())
			}
			for j := range s.Methods().Len() {
				m := s.Methods().Get(j)
				if m.IsStreamingClient() || m.IsStreamingServer() {
					t.Errorf("%s streams", m.FullName())
				}
				got.Methods[string(m.Name())] = method{string(m.Input().FullName()), string(m.Output().FullName())}
			}
		}
	}
	return got
}

func (got table) addEnums(enums protoreflect.EnumDescriptors) {
	for i := range enums.Len() {
		values := map[string]int32{}
		for j := range enums.Get(i).Values().Len() {
			v := enums.Get(i).Values().Get(j)
			values[string(v.Name())] = int32(v.Number())
		}
		got.Enums[string(enums.Get(i).FullName())] = values
	}
}

func (got table) addMessages(messages protoreflect.MessageDescriptors) {
	for i := range messages.Len() {
		d := messages.Get(i)
		got.addEnums(d.Enums())
		got.addMessages(d.Messages())
		if d.IsMapEntry() {
			continue // the table describes it at the field
		}
		m := message{Fields: []field{}}
		for j := range d.ReservedRanges().Len() {
			r := d.ReservedRanges().Get(j) // its end is exclusive
			m.Reserved = append(m.Reserved, [2]int32{int32(r[0]), int32(r[1] - 1)})
		}
		for j := range d.Fields().Len() {
			m.Fields = append(m.Fields, describe(d.Fields().Get(j)))
		}
		got.Messages[string(d.FullName())] = m
	}
}

func describe(d protoreflect.FieldDescriptor) field {
	f := field{
		Name:     string(d.Name()),
		Number:   int32(d.Number()),
		Type:     d.Kind().String(),
		Label:    "optional",
		Optional: d.HasOptionalKeyword(),
	}
	if d.Cardinality() == protoreflect.Repeated {
		f.Label = "repeated"
	}
	if options, ok := d.Options().(*descriptorpb.FieldOptions); ok {
		f.Dropped = options.GetDeprecated()
	}
	if o := d.ContainingOneof(); o != nil && !o.IsSynthetic() {
		f.Oneof = string(o.Name())
	}
	switch {
	case d.Message() != nil:
		f.TypeName = string(d.Message().FullName())
	case d.Enum() != nil:
		f.TypeName = string(d.Enum().FullName())
	}
	if d.IsMap() {
		f.Map = mapped{"key": d.MapKey().Kind().String(), "value": d.MapValue().Kind().String()}
	}
	return f
}
