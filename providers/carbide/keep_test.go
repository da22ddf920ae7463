package carbide

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
)

// A recorder is a far side that accepts every call and answers nothing.
type recorder struct{ requests []proto.Message }

func (r *recorder) Invoke(_ context.Context, _ string, request, _ any, _ ...grpc.CallOption) error {
	r.requests = append(r.requests, proto.Clone(request.(proto.Message)))
	return nil
}

func (r *recorder) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errNone
}

// fill sets every field of a message and of all in it, and in each message an unknown field; lists get two elements. No two
// messages are alike.
func fill(m protoreflect.Message, n *int) {
	*n++
	m.SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 9000, protowire.BytesType), fmt.Sprintf("of a later version %d", *n)))
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if o := f.ContainingOneof(); o != nil && !o.IsSynthetic() && m.WhichOneof(o) != nil {
			continue
		}
		one := func() protoreflect.Value {
			*n++
			switch f.Kind() {
			case protoreflect.EnumKind:
				return protoreflect.ValueOfEnum(f.Enum().Values().Get(f.Enum().Values().Len() - 1).Number())
			case protoreflect.StringKind:
				return protoreflect.ValueOfString(fmt.Sprintf("v%d-t%d", *n, *n))
			case protoreflect.BoolKind:
				return protoreflect.ValueOfBool(f.Name() != "has_credential") // because no update is made that would lose one
			case protoreflect.Uint32Kind:
				return protoreflect.ValueOfUint32(uint32(*n))
			case protoreflect.Uint64Kind:
				return protoreflect.ValueOfUint64(uint64(*n))
			case protoreflect.Int32Kind:
				return protoreflect.ValueOfInt32(int32(*n))
			case protoreflect.Int64Kind:
				return protoreflect.ValueOfInt64(int64(*n))
			}
			panic(f.FullName())
		}
		switch {
		case f.IsMap():
		case f.IsList() && f.Message() != nil:
			for range 2 {
				fill(m.Mutable(f).List().AppendMutable().Message(), n)
			}
		case f.IsList():
			for range 2 {
				m.Mutable(f).List().Append(one())
			}
		case f.Message() != nil:
			fill(m.Mutable(f).Message(), n)
		default:
			m.Set(f, one())
		}
	}
}

// visit walks a message and all in it.
func visit(m protoreflect.Message, see func(protoreflect.Message)) {
	see(m)
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil || f.IsMap():
		case f.IsList():
			for i := range v.List().Len() {
				visit(v.List().Get(i).Message(), see)
			}
		default:
			visit(v.Message(), see)
		}
		return true
	})
}

// shape returns what a message itself contains, without the messages in it, the values that an update in this test changes, and
// lists of plain values that it may shorten.
func shape(m protoreflect.Message) string {
	m = proto.Clone(m.Interface()).ProtoReflect()
	m.Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		switch {
		case f.Message() != nil, f.IsList(), f.Name() == "description", f.Name() == "name" && (m.Descriptor().Name() == "Metadata" || m.Descriptor().Name() == "IBPartitionConfig"),
			f.Name() == "replace_host_nics", f.Name() == "schema_version", f.Name() == "cached_url",
			f.Name() == "dpf_enabled", f.Name() == "public_key" || f.Name() == "comment":
			m.Clear(f)
		}
		return true
	})
	b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(m.Interface())
	return string(m.Descriptor().FullName()) + " " + string(b)
}

// An update sends back everything that it does not change: also what the schema does not know, whether our messages have it or not,
// and also in lists. For each kind that can be changed this changes its description, and every list that it has by removing the
// first element.
func TestUpdatesKeepWhatTheyDoNotKnow(t *testing.T) {
	descriptions, err := kinds.New()
	if err != nil {
		t.Fatal(err)
	}
	far := &recorder{}
	s := &service{ids: 100, together: providers.New(Name, schema.ScopeSite, nil).Together, ForgeClient: forge.NewForgeClient(far)}
	for _, k := range s.kinds() {
		if k.Traits.Update != providers.Never {
			t.Run(k.Name, func(t *testing.T) {
				k.Kind.(interface {
					keeps(*testing.T, *recorder, *schema.Kind)
				}).keeps(t, far, descriptions.Kinds()[k.Name])
			})
		}
	}
}

// blank returns an empty object of a kind, and the message in it that contains the object.
func blank[O any]() (object O, message proto.Message) {
	v := reflect.ValueOf(&object).Elem()
	if v.Kind() == reflect.Struct { // with what else is known about it
		v = v.Field(0)
		v = reflect.NewAt(v.Type(), v.Addr().UnsafePointer()).Elem()
	}
	v.Set(reflect.New(v.Type().Elem()))
	return object, v.Interface().(proto.Message)
}

func (k *kind[O, S]) keeps(t *testing.T, far *recorder, about *schema.Kind) {
	object, message := blank[O]()
	n := 0
	fill(message.ProtoReflect(), &n)
	before := proto.Clone(message)
	thing := k.wire.thing(object)
	changes := map[string]schema.Object{}
	for _, f := range about.Fields {
		switch v := thing.Spec[f.Name].(type) {
		case string:
			if f.Name == "description" || f.Name == "display_name" {
				changes[f.Name] = schema.Object{f.Name: "changed"}
			}
		case []any:
			if len(v) == 2 {
				changes["shorter "+f.Name] = schema.Object{f.Name: v[1:]}
			}
		}
	}
	sent := 0
	for what, change := range changes {
		c := &providers.Call{
			Ref: schema.Ref{Scope: schema.ScopeSite, Kind: k.name, Name: thing.Name}, ID: thing.ID, Mark: thing.Mark, Version: thing.Version,
			Have: thing.Spec, Want: thing.Spec.Clone(),
		}
		maps.Copy(c.Want, change)
		full, err := k.read(c)
		if err != nil {
			t.Fatal(err)
		}
		copied, to := blank[O]()
		proto.Merge(to, before)
		far.requests = nil
		err = k.wire.update(t.Context(), full, copied)
		switch refused := status.Code(err) == codes.InvalidArgument && len(far.requests) == 0; {
		case refused: // what cannot change alone
			t.Log(what, err)
			continue
		case err != nil:
			t.Errorf("%s: %v", what, err)
		case len(far.requests) == 0:
			t.Errorf("%s: nothing was sent", what)
		}
		sent++
		had, types := map[string]bool{}, map[protoreflect.FullName]bool{}
		visit(before.ProtoReflect(), func(m protoreflect.Message) {
			had[shape(m)], types[m.Descriptor().FullName()] = true, true
		})
		for _, request := range far.requests {
			visit(request.ProtoReflect(), func(m protoreflect.Message) {
				name := m.Descriptor().FullName()
				if reference := strings.HasSuffix(string(name), "Id") || strings.HasSuffix(string(name), "UUID") || strings.HasSuffix(string(name), "Identifier"); types[name] && !reference && !had[shape(m)] {
					t.Errorf("%s: %s sends %v, which is not what was there", what, request.ProtoReflect().Descriptor().Name(), m.Interface())
				}
			})
		}
	}
	if sent == 0 {
		t.Error("nothing changes")
	}
}
