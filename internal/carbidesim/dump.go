package carbidesim

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"converge.dev/converge/providers/carbide/forge"
)

// Object is one object of the world.
type Object struct {
	Kind    string        // "vpc", "network_segment", ...
	ID      string        // as on the wire; "organization/keyset id" of a keyset
	Message proto.Message // as a client would read it; shared, so it must not be changed
}

// Objects returns all live objects, sorted by kind and id.
func (w *World) Objects() []Object {
	var out []Object
	_ = w.transact(func() error {
		s := w.site
		out = slices.Concat(
			list("ib_partition", s.ibPartitions, func(id string, p *ibPartition) proto.Message { return s.wireIBPartition(id, p) }),
			list("dpu_extension_service", s.extensionServices, func(id string, e *extensionService) proto.Message { return e.wire(id) }),
			list("compute_allocation", s.allocations, func(id string, a *allocation) proto.Message { return a.wire(id) }),
			list("expected_machine", s.expectedMachines, func(id string, e *expected[*forge.ExpectedMachine]) proto.Message { return wireExpectedMachine(id, e) }),
			list("expected_power_shelf", s.expectedShelves, func(id string, e *expected[*forge.ExpectedPowerShelf]) proto.Message { return wireExpectedShelf(id, e) }),
			list("expected_rack", s.expectedRacks, func(id string, e *expectedRack) proto.Message { return e.wire(id) }),
			list("expected_switch", s.expectedSwitches, func(id string, e *expected[*forge.ExpectedSwitch]) proto.Message { return wireExpectedSwitch(id, e) }),
			list("instance", s.instances, func(id string, i *instance) proto.Message { return s.wireInstance(id, i) }),
			list("instance_type", s.instanceTypes, func(id string, t *instanceType) proto.Message { return t.wire(id) }),
			list("machine", s.machines, func(id string, m *machine) proto.Message { return s.wireMachine(id, m) }),
			list("network_security_group", s.securityGroups, func(id string, g *securityGroup) proto.Message { return g.wire(id) }),
			list("network_segment", s.segments, func(id string, n *segment) proto.Message { return s.wireSegment(id, n, false, false) }),
			list("nvlink_logical_partition", s.nvlinkPartitions, func(id string, p *nvlinkPartition) proto.Message { return p.wire(id) }),
			slices.DeleteFunc(
				list("spx_partition", s.spxPartitions, func(id string, p *spxPartition) proto.Message { return p.wire(id) }),
				func(o Object) bool { return s.spxPartitions.get(o.ID).Deleted }),
			list("operating_system", s.operatingSystems, func(_ string, o *operatingSystem) proto.Message { return o.message }),
			list("os_image", s.osImages, func(_ string, i *osImage) proto.Message { return i.message }),
			list("sku", s.skus, func(id string, t *sku) proto.Message { return s.wireSKU(id, t) }),
			list("tenant", s.tenants, func(id string, t *tenant) proto.Message { return t.wire(id) }),
			list("tenant_keyset", s.keysets, func(_ string, k *keyset) proto.Message { return k.wire(true) }),
			list("vpc", s.vpcs, func(id string, v *vpc) proto.Message { return s.wireVpc(id, v) }),
			list("vpc_peering", s.peerings, func(id string, p *peering) proto.Message { return p.wire(id) }),
			list("vpc_prefix", s.prefixes, func(id string, p *vpcPrefix) proto.Message { return s.wirePrefix(id, p) }),
		)
		return nil
	})
	return out
}

func list[T any](kind string, t *table[T], wire func(string, *T) proto.Message) []Object {
	out := make([]Object, 0, len(t.rows))
	for _, id := range sortedKeys(t.rows) {
		out = append(out, Object{kind, id, wire(id, t.rows[id])})
	}
	return out
}

// Dump prints the live world as indented JSON, by kind and id. Version tokens, times and burned ids are left out: they
// differ after a change was made and undone, although the world is the same.
func (w *World) Dump() []byte {
	world := map[string]map[string]json.RawMessage{}
	for _, o := range w.Objects() {
		if world[o.Kind] == nil {
			world[o.Kind] = map[string]json.RawMessage{}
		}
		world[o.Kind][o.ID] = plain(o.Message)
	}
	return indent(world)
}

// DumpAll prints everything, as in the world's file.
func (w *World) DumpAll() []byte { return indent(w.snapshot()) }

func indent(v any) []byte {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic(err) // plain data and messages that have been on the wire
	}
	return append(b, '\n')
}

// plain prints a message without what is not part of its content.
func plain(m proto.Message) json.RawMessage {
	m = proto.Clone(m)
	walk(m.ProtoReflect(), func(m protoreflect.Message) {
		var clear []protoreflect.FieldDescriptor
		m.Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
			if isToken(f) || f.Message() != nil && f.Message().FullName() == "google.protobuf.Timestamp" {
				clear = append(clear, f)
			}
			return true
		})
		for _, f := range clear {
			m.Clear(f)
		}
		if meta, ok := m.Interface().(*forge.Metadata); ok {
			slices.SortFunc(meta.Labels, func(a, b *forge.Label) int { return strings.Compare(a.Key, b.Key) })
		}
	})
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		panic(err) // a message that has been on the wire
	}
	// Fields are ordered by their numbers; only the white space is deliberately unstable.
	var out bytes.Buffer
	if err := json.Compact(&out, b); err != nil {
		panic(err) // JSON that was just written
	}
	return out.Bytes()
}

// isToken reports whether a field holds a version or a time.
func isToken(f protoreflect.FieldDescriptor) bool {
	name := string(f.Name())
	switch {
	case name == "version_ctr" || name == "active_versions":
		return true
	case f.Kind() != protoreflect.StringKind:
		return false
	}
	return name == "version" || strings.HasSuffix(name, "_version") ||
		slices.Contains([]string{"created", "updated", "created_at", "modified_at"}, name)
}

func newMessage(d protoreflect.MessageDescriptor) proto.Message {
	t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		panic(err) // every message of the service is compiled in
	}
	return t.New().Interface()
}
