package carbide

import (
	"bytes"
	"context"
	"net"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
)

// rawCodec sends bytes as they are.
type rawCodec struct{ encoding.CodecV2 }

func (c rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	if b, ok := v.([]byte); ok {
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	return c.CodecV2.Marshal(v)
}

func (c rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if _, ok := v.(*[]byte); ok {
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// openOn opens a service whose replies are those bytes, by method.
func openOn(t *testing.T, answers map[string][]byte) *service {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	version, err := proto.Marshal(&forge.BuildInfo{})
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{encoding.GetCodecV2(grpcproto.Name)}),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			method, _ := grpc.MethodFromServerStream(stream)
			var request []byte
			if err := stream.RecvMsg(&request); err != nil {
				return err
			}
			if answer, ok := answers[method[strings.LastIndexByte(method, '/')+1:]]; ok {
				return stream.SendMsg(answer)
			}
			return stream.SendMsg(version)
		}))
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	s, err := open(t.Context(), Options{
		Address: "127.0.0.1:1", TLS: TLS{Mode: Off},
		Dial: func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.close() })
	return s
}

// entry returns a field of a message with that number and content.
func entry(number protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), content)
}

// One reply of a service takes a bounded amount of memory, whatever it contains.
func TestHeavyAnswers(t *testing.T) {
	const size = 60 << 20
	id := entry(1, []byte("x"))
	expected := func(content []byte) []byte { return bytes.Repeat(entry(1, content), size/len(entry(1, content))) }
	for name, c := range map[string]struct {
		noun    string
		answers map[string][]byte
	}{
		"ids of five bytes":     {"vpc", map[string][]byte{"FindVpcIds": bytes.Repeat(entry(1, id), size/5)}},
		"empty ids":             {"vpc", map[string][]byte{"FindVpcIds": bytes.Repeat(entry(1, nil), size/2)}},
		"empty texts":           {"tenant", map[string][]byte{"FindTenantOrganizationIds": bytes.Repeat(entry(1, nil), size/2)}},
		"empty objects":         {"os_image", map[string][]byte{"ListOsImage": bytes.Repeat(entry(1, nil), size/2)}},
		"empty parts":           {"expected_machine", map[string][]byte{"GetAllExpectedMachines": expected(bytes.Repeat(entry(9, nil), 1000))}},
		"empty texts in a part": {"expected_machine", map[string][]byte{"GetAllExpectedMachines": expected(bytes.Repeat(entry(5, nil), 1000))}},
	} {
		t.Run(name, func(t *testing.T) {
			s := openOn(t, c.answers)
			p := s.provider(nil)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for _, k := range p.Kinds {
				if k.Name != Name+"."+c.noun {
					continue
				}
				_, err := providers.Collect(k.Kind.List(t.Context()))
				if providers.ClassOf(err) != providers.Invalid || !strings.Contains(err.Error(), "MiB of memory") {
					t.Errorf("class %s: %v", providers.ClassOf(err), err)
				}
			}
			runtime.ReadMemStats(&after)
			if used := (after.TotalAlloc - before.TotalAlloc) >> 20; used > 400 { // several times what came over the wire
				t.Errorf("%d MiB were allocated", used)
			}
			if s.scale.held != 0 {
				t.Errorf("%d bytes are held after a refusal", s.scale.held)
			}
		})
	}
}

// What has two bytes on the wire counts with the size of its struct.
func TestEmptyElementsWeigh(t *testing.T) {
	const n = 1000
	weight, err := weigh(bytes.Repeat(entry(1, nil), n), (&forge.ListOsImageResponse{}).ProtoReflect().Type(), 0)
	if size := int(unsafe.Sizeof(forge.OsImage{})); err != nil || weight < n*size {
		t.Errorf("%d images of %d bytes weigh %d (%v)", n, size, weight, err)
	}
}

// The lists of all kinds together are bounded, a newer list of a kind replaces the older one, and what is read by ids is not
// kept.
func TestHeavyKinds(t *testing.T) {
	s := &scale{}
	list := func(kind string, weight int) error {
		_, l := s.weighed(t.Context(), kind)
		err := l.add(weight)
		if err != nil {
			kind = ""
		}
		l.end(kind)
		if late := l.add(1); late != nil {
			t.Error(late)
		}
		return err
	}
	for i, kind := range []string{"a", "b", "b", "", "c", "a"} {
		if err := list(kind, heaviestSite/3); err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	if err := list("d", heaviestSite/3); err == nil {
		t.Error("a fourth kind is held")
	}
	if want := heaviestSite / 3 * 3; s.held != want {
		t.Errorf("%d bytes are held, want %d", s.held, want)
	}
}

// The replies of a site with a hundred thousand expected machines are not too heavy.
func TestLargeSitesAreNotHeavy(t *testing.T) {
	text := func() *string { return proto.String(strings.Repeat("x", 20)) }
	one := &forge.ExpectedMachine{
		Id: &forge.UUID{Value: strings.Repeat("x", 36)}, BmcMacAddress: *text(), BmcUsername: *text(), BmcPassword: *text(), ChassisSerialNumber: *text(),
		SkuId: text(), RackId: &forge.RackId{Id: *text()}, Metadata: &forge.Metadata{Name: *text(), Labels: []*forge.Label{{Key: *text(), Value: text()}, {Key: *text(), Value: text()}}},
		HostNics: []*forge.ExpectedHostNic{{MacAddress: *text()}},
	}
	b, err := proto.Marshal(one)
	if err != nil {
		t.Fatal(err)
	}
	list := bytes.Repeat(entry(1, b), 100_000)
	if len(list) > largestAnswer {
		t.Fatalf("%d bytes", len(list))
	}
	weight, err := weigh(list, (&forge.ExpectedMachineList{}).ProtoReflect().Type(), 0)
	if err != nil {
		t.Error(err)
	}
	t.Logf("%d MiB on the wire weigh %d MiB", len(list)>>20, weight>>20)
}
