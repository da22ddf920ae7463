package forge

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// table is testdata/forge-wire.json: what the real service declares, pruned to what we use.
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
	Name     string            `json:"name"`
	Number   int32             `json:"number"`
	Type     string            `json:"type"`
	TypeName string            `json:"type_name"`
	Label    string            `json:"label"`
	Oneof    string            `json:"oneof"`
	Optional bool              `json:"proto3_optional"`
	Dropped  bool              `json:"deprecated"`
	Map      map[string]string `json:"map"`
	Pruned   bool              `json:"pruned"`
}

// differences lists where the older generation of a message differs; nil when it lacks the message.
type differences []struct {
	Number int32  `json:"number"`
	Core   string `json:"core"`
	Rest   string `json:"rest"`
}

// UnmarshalJSON accepts the text "absent" in place of the list.
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
	// A field that is left out on purpose must not be compiled either.
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

// Everything that is compiled is in the table, and the other way round: a number typed wrongly here would
// silently write one field of a customer's object into another.
func TestDescriptorsMatchTheTable(t *testing.T) {
	want := readTable(t)
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
	if diff := cmp.Diff(want.Methods, got.Methods); diff != "" {
		t.Errorf("methods (-table +compiled):\n%s", diff)
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
		if !ok {
			t.Errorf("%s is compiled and not in the table", name)
			continue
		}
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
		f.Map = map[string]string{"key": d.MapKey().Kind().String(), "value": d.MapValue().Kind().String()}
	}
	return f
}
