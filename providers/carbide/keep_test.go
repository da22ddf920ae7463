package carbide

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

// A recorder is a far side that takes every call and answers nothing.
type recorder struct{ requests []proto.Message }

func (r *recorder) Invoke(_ context.Context, _ string, request, _ any, _ ...grpc.CallOption) error {
	r.requests = append(r.requests, proto.Clone(request.(proto.Message)))
	return nil
}

func (r *recorder) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errNone
}

// fill sets every field of a message and of all in it, and in each message a field that nobody knows; lists get two elements.
// No two messages are alike.
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
				return protoreflect.ValueOfBool(true)
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

// shape is what a message itself says, without the messages in it, the values that an update in this test changes, and lists
// of plain values that it may shorten.
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

// An update sends back all that it does not change: what the schema does not know too, whether our messages have it or not,
// and in lists too. Each kind is changed in its description, and in every list that it has by what is left of one when its
// first element goes.
func TestUpdatesKeepWhatTheyDoNotKnow(t *testing.T) {
	s := &service{ids: 100, slots: make(chan struct{}, 1)}
	kept(t, s, "tenant", tenants{service: s}, func(o *forge.Tenant) *forge.Tenant { return o }, "display_name")
	kept(t, s, "tenant_keyset", keysets{service: s}, func(o *forge.TenantKeyset) *forge.TenantKeyset { return o })
	kept(t, s, "vpc", vpcs{service: s}, func(o *forge.Vpc) seenVPC { return seenVPC{Vpc: o} }, "description", "labels")
	kept(t, s, "vpc_prefix", prefixes{service: s}, func(o *forge.VpcPrefix) *forge.VpcPrefix { return o }, "description", "labels")
	kept(t, s, "network_security_group", groups{service: s}, func(o *forge.NetworkSecurityGroup) seenGroup { return seenGroup{NetworkSecurityGroup: o} }, "description", "labels")
	kept(t, s, "instance_type", instanceTypes{service: s}, func(o *forge.InstanceType) *forge.InstanceType { return o }, "description", "labels")
	kept(t, s, "compute_allocation", allocations{service: s}, func(o *forge.ComputeAllocation) *forge.ComputeAllocation { return o }, "description", "labels")
	kept(t, s, "instance", instances{service: s}, func(o *forge.Instance) seenInstance { return seenInstance{Instance: o} }, "description", "labels")
	kept(t, s, "expected_machine", expectedMachines{service: s}, func(o *forge.ExpectedMachine) expectedMachine { return expectedMachine{o, nil} }, "description", "labels")
	kept(t, s, "expected_switch", expectedSwitches{service: s}, func(o *forge.ExpectedSwitch) expectedSwitch { return expectedSwitch{o, nil} }, "description", "labels")
	kept(t, s, "expected_power_shelf", expectedShelves{service: s}, func(o *forge.ExpectedPowerShelf) expectedShelf { return expectedShelf{o, nil} }, "description", "labels")
	kept(t, s, "sku", skus{service: s}, func(o *forge.Sku) *forge.Sku { return o }, "description")
	kept(t, s, "machine", machines{service: s}, func(o *forge.Machine) *forge.Machine { return o }, "description", "labels")
	kept(t, s, "ib_partition", ibPartitions{service: s}, func(o *forge.IBPartition) *forge.IBPartition { return o }, "description", "labels")
	kept(t, s, "nvlink_logical_partition", nvlinkPartitions{service: s}, func(o *forge.NVLinkLogicalPartition) *forge.NVLinkLogicalPartition { return o }, "description")
	kept(t, s, "operating_system", operatingSystems{service: s}, func(o *forge.OperatingSystem) *forge.OperatingSystem { return o }, "description")
	kept(t, s, "os_image", osImages{service: s}, func(o *forge.OsImage) *forge.OsImage { return o }, "description")
	kept(t, s, "dpu_extension_service", extensionServices{service: s}, func(o *forge.DpuExtensionService) *forge.DpuExtensionService {
		o.LatestVersionInfo.HasCredential = false // with one the update is refused
		return o
	}, "description")
}

func kept[M any, P interface {
	*M
	proto.Message
}, O, S any](t *testing.T, s *service, noun string, w wire[O, S], seen func(P) O, plain ...string) {
	t.Run(noun, func(t *testing.T) {
		n := 0
		object := P(new(M))
		fill(object.ProtoReflect(), &n)
		now := seen(object)
		before := proto.Clone(object)
		thing := w.thing(now)
		changes := map[string]schema.Object{}
		for _, field := range plain {
			if field != "labels" {
				changes[field] = schema.Object{field: "changed"}
			}
		}
		for field, v := range thing.Spec {
			if l, ok := v.([]any); ok && len(l) == 2 && (noun != "dpu_extension_service") {
				changes["shorter "+field] = schema.Object{field: l[1:]}
			}
		}
		if len(changes) == 0 {
			t.Fatal("nothing changes")
		}
		for what, change := range changes {
			r := &recorder{}
			s.ForgeClient = forge.NewForgeClient(r)
			c := &providers.Call{
				Ref: schema.Ref{Scope: schema.ScopeSite, Kind: "carbide." + noun, Name: thing.Name}, ID: thing.ID, Mark: thing.Mark, Version: thing.Version,
				Have: thing.Spec, Want: thing.Spec.Clone(),
			}
			for field, v := range change {
				c.Want[field] = v
			}
			copied := seen(proto.Clone(before).(P))
			full, err := (*kind[O, S])(nil).read(c)
			if err != nil {
				t.Fatal(err)
			}
			if err := w.update(t.Context(), full, copied); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if len(r.requests) == 0 {
				t.Errorf("%s: nothing was sent", what)
			}
			had, types := map[string]bool{}, map[protoreflect.FullName]bool{}
			visit(before.ProtoReflect(), func(m protoreflect.Message) {
				had[shape(m)], types[m.Descriptor().FullName()] = true, true
			})
			for _, request := range r.requests {
				visit(request.ProtoReflect(), func(m protoreflect.Message) {
					name := m.Descriptor().FullName()
					if reference := strings.HasSuffix(string(name), "Id") || strings.HasSuffix(string(name), "UUID") || strings.HasSuffix(string(name), "Identifier"); types[name] && !reference && !had[shape(m)] {
						t.Errorf("%s: %s sends %v, which is not what was there", what, request.ProtoReflect().Descriptor().Name(), m.Interface())
					}
				})
			}
		}
	})
}
