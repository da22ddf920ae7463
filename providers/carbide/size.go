package carbide

import (
	"context"
	"fmt"
	"path"
	"reflect"
	"sync"

	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// A few bytes on the wire can become an object of hundreds in memory, so a limit on the bytes of an answer does not bound its
// cost. Answers are weighed before they are decoded: each one, and all that are held at the same time.
const (
	heaviestAnswer = 384 << 20 // the hundred thousand entries of a large site's expected hardware weigh half of it
	heaviestSite   = 1 << 30   // total weight of the last list of every kind and the calls in flight
	deepestAnswer  = 100       // nested messages
	thingWeight    = 1 << 10   // of the thing that an object is translated into
)

// A heavyError reports that an answer would take too much memory. It was not decoded.
type heavyError struct {
	words string
	error // the call's, if there is one
}

func (e heavyError) Error() string { return e.words }
func (e heavyError) Unwrap() error { return e.error }

// A scale tracks the weight of all answers that are held.
type scale struct {
	mu    sync.Mutex
	held  int
	lists map[string]int // the part of held that the last list of each kind takes
}

// A load is the weight that one read, or one call, has put on the scale.
type load struct {
	on     *scale
	weight int
	ended  bool
}

type loadKey struct{}

// weighed begins a load to which all calls with the returned context add. When it is for a list of a kind, the caller must
// be done with the older list.
func (s *scale) weighed(ctx context.Context, list string) (context.Context, *load) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held -= s.lists[list]
	delete(s.lists, list)
	l := &load{on: s}
	return context.WithValue(ctx, loadKey{}, l), l
}

// add puts more weight on the scale, unless that is too much.
func (l *load) add(weight int) error {
	l.on.mu.Lock()
	defer l.on.mu.Unlock()
	if l.ended {
		return nil // nothing waits for it any more
	}
	if l.on.held+weight > heaviestSite {
		return heavyError{words: fmt.Sprintf("with it, what the service has reported about its kinds would take more than %d MiB of memory", heaviestSite>>20)}
	}
	l.on.held += weight
	l.weight += weight
	return nil
}

// end takes the load off the scale. For a list of a whole kind it stays until there is a newer one, because the list is in use.
func (l *load) end(list string) {
	l.on.mu.Lock()
	defer l.on.mu.Unlock()
	l.ended = true
	if list == "" {
		l.on.held -= l.weight
		return
	}
	if l.on.lists == nil {
		l.on.lists = map[string]int{}
	}
	l.on.held -= l.on.lists[list] // there may have been two at the same time
	l.on.lists[list] = l.weight
}

// A weighing codec decodes one answer, unless it is too heavy.
type weighing struct {
	encoding.CodecV2
	method string
	load   *load
	heavy  error
}

func newWeighing(method string, l *load) *weighing {
	return &weighing{CodecV2: encoding.GetCodecV2(grpcproto.Name), method: path.Base(method), load: l}
}

// Unmarshal implements [encoding.CodecV2].
func (w *weighing) Unmarshal(data mem.BufferSlice, v any) error {
	buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buffer.Free()
	m := v.(proto.Message)
	weight, err := weigh(buffer.ReadOnlyData(), m.ProtoReflect().Type(), 0)
	if err == nil {
		err = w.load.add(weight)
	}
	if err != nil {
		w.heavy = fmt.Errorf("the answer of %s (%d KiB) was not read: %w", w.method, data.Len()>>10, err)
		return w.heavy
	}
	return proto.Unmarshal(buffer.ReadOnlyData(), m)
}

// weigh estimates the memory of a decoded message: its struct, and for the contents of its fields no less than
// the decoder allocates. It fails as soon as that is too much.
func weigh(data []byte, t protoreflect.MessageType, depth int) (int, error) {
	if depth > deepestAnswer {
		return 0, fmt.Errorf("its messages are nested more than %d levels deep", deepestAnswer)
	}
	weight := sizeOf(t) + len(data)
	fields := t.Descriptor().Fields()
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return weight, nil // the decoder reports what is wrong with it
		}
		data = data[n:]
		if n = protowire.ConsumeFieldValue(number, kind, data); n < 0 {
			return weight, nil
		}
		value := data[:n]
		data = data[n:]
		f := fields.ByNumber(number)
		weight += 2 * valueWeight // a list that grows has room for twice as many
		switch {
		case f == nil:
		case f.IsMap():
			weight += mapWeight
		case f.Message() != nil && kind == protowire.BytesType:
			content, _ := protowire.ConsumeBytes(value)
			inner, err := weigh(content, typeOf(f.Message()), depth+1)
			if weight += inner; err != nil {
				return weight, err
			}
		case f.IsList() && kind == protowire.BytesType && f.Kind() != protoreflect.StringKind && f.Kind() != protoreflect.BytesKind:
			weight += valueWeight * len(value) // packed numbers take one byte each, or more
		}
		if weight > heaviestAnswer {
			return weight, fmt.Errorf("it would take more than %d MiB of memory", heaviestAnswer>>20)
		}
	}
	return weight, nil
}

const (
	valueWeight = 16 // a string's header; pointers and numbers take less
	mapWeight   = 128
)

// typeOf returns the Go type of a message that is compiled into this program.
func typeOf(d protoreflect.MessageDescriptor) protoreflect.MessageType {
	if t, ok := types.Load(d); ok {
		return t.(protoreflect.MessageType)
	}
	t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		panic(err)
	}
	types.Store(d, t)
	return t
}

var types, sizes sync.Map // of messages, by descriptor and by name

func sizeOf(t protoreflect.MessageType) int {
	if size, ok := sizes.Load(t.Descriptor().FullName()); ok {
		return size.(int)
	}
	size := int(reflect.TypeOf(t.Zero().Interface()).Elem().Size())
	sizes.Store(t.Descriptor().FullName(), size)
	return size
}
