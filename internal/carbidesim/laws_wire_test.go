package carbidesim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"converge.dev/converge/providers/carbide/forge"
)

// way leads from a message to a deeply nested field; lists on the way have one element.
type way []protoreflect.FieldDescriptor

func (p way) String() string {
	return strings.Join(all(p, func(f protoreflect.FieldDescriptor) string { return string(f.Name()) }), ".")
}

// set creates everything on the way and puts a text at the end.
func (p way) set(m protoreflect.Message, text string) {
	for _, f := range p[:len(p)-1] {
		if f.IsList() {
			m = m.Mutable(f).List().AppendMutable().Message()
		} else {
			m = m.Mutable(f).Message()
		}
	}
	m.Set(p[len(p)-1], protoreflect.ValueOfString(text))
}

// wrappers returns the ways to all wrapped ids, except those of type UUID, which the methods read themselves, and names such as
// those of racks.
func wrappers(d protoreflect.MessageDescriptor, to way) []way {
	if len(to) > 8 {
		return nil // a message that contains itself
	}
	free := []protoreflect.Name{"UUID", "RackId", "RackProfileId", "SwitchId", "PowerShelfId"}
	if d.ParentFile().Package() == "common" {
		for _, name := range []protoreflect.Name{"value", "id"} {
			if f := d.Fields().ByName(name); f != nil && !slices.Contains(free, d.Name()) {
				return []way{append(slices.Clone(to), f)}
			}
		}
		if d.Fields().ByName("machine_ids") == nil {
			return nil
		}
	}
	var out []way
	for i := range d.Fields().Len() {
		if f := d.Fields().Get(i); f.Message() != nil && !f.IsMap() && f.Message().ParentFile().Package() != "google.protobuf" {
			out = append(out, wrappers(f.Message(), append(slices.Clone(to), f))...)
		}
	}
	return out
}

// A malformed id passes the decoder of no method, wherever it is in a request; so an empty wrapper is the nil UUID
// everywhere, and an empty id of a machine is invalid.
func TestNoMalformedIDPassesTheDecoder(t *testing.T) {
	b := start(t, Options{})
	conn := dial(t, b.world)
	tried := map[string]int{}
	for method := range methods {
		request, reply, err := messagesOf(method)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range wrappers(request.ProtoReflect().Descriptor(), nil) {
			kind := p[len(p)-1].Parent().Name()
			tried[string(kind)]++
			texts := map[string]bool{"prod": true, uid(1) + "0": true, strings.Replace(uid(1), "4", "g", 1): true, "": kind == "MachineId"}
			if kind == "MachineId" {
				good := machineID('h', 's', 1, 1)
				texts[good[:58]], texts[good+"0"], texts[strings.ToUpper(good)] = true, true, true
				texts["fm200"+good[5:]], texts["fm100x"+good[6:]], texts["fm100hx"+good[7:]], texts[good[:58]+"z"] = true, true, true, true
				texts[good] = false
			}
			for text, malformed := range texts {
				request.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
					request.ProtoReflect().Clear(f)
					return true
				})
				p.set(request.ProtoReflect(), text)
				err := conn.Invoke(ctx, "/forge.Forge/"+method, request, reply)
				refused := status.Code(err) == codes.Internal && strings.Contains(err.Error(), "failed to decode Protobuf message")
				if refused != malformed {
					t.Errorf("%s with %s = %q: %v", method, p, text, err)
				}
			}
		}
	}
	for _, kind := range []string{
		"VpcId", "VpcPrefixId", "VpcPeeringId", "NetworkSegmentId", "IBPartitionId", "NVLinkLogicalPartitionId", "SpxPartitionId",
		"OperatingSystemId", "IpxeTemplateId", "ComputeAllocationId", "InstanceId", "MachineId", "DomainId", "NetworkPrefixId",
	} {
		if tried[kind] == 0 {
			t.Errorf("no method has been tried with a %s: %v", kind, tried)
		}
	}
}

// A thing that is created with an empty wrapper has the nil id.
func TestEveryEmptyWrapperIsTheNilUUID(t *testing.T) {
	nothing := uuid.Nil.String()
	for kind, s := range subjects() {
		if !slices.Contains(strings.Fields("vpc vpc_prefix vpc_peering network_segment ib_partition nvlink_logical_partition "+
			"spx_partition operating_system compute_allocation instance"), kind) {
			continue // its id is not a wrapper, or one that the methods read themselves
		}
		b := onStage(t, Options{})
		if err := s.create(b, "", 1, named("first")); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		if !slices.Contains(s.list(b), nothing) {
			t.Errorf("%s: there is %v", kind, s.list(b))
		}
		if s.create(b, nothing, 2, named("second")) == nil {
			t.Errorf("%s: the nil id is not taken", kind)
		}
		found, err := s.find(b, "")
		if err != nil || len(found) != 1 || found[0].id != nothing {
			t.Errorf("%s: an empty wrapper finds %v, %v", kind, found, err)
		}
	}
}

// soiled adds unknown fields to every message of every request, and looks for them in the replies.
type soiled struct {
	*grpc.ClientConn
	t *testing.T
}

func (s soiled) Invoke(ctx context.Context, method string, request, reply any, o ...grpc.CallOption) error {
	dirty := proto.Clone(request.(proto.Message))
	walk(dirty.ProtoReflect(), func(m protoreflect.Message) {
		field := protowire.AppendTag(nil, 29_999, protowire.BytesType)
		m.SetUnknown(append(m.GetUnknown(), protowire.AppendString(field, "from another time")...))
	})
	err := s.ClientConn.Invoke(ctx, method, dirty, reply, o...)
	walk(reply.(proto.Message).ProtoReflect(), func(m protoreflect.Message) {
		if raw := m.GetUnknown(); len(raw) > 0 {
			s.t.Errorf("%s answers a %s with a field that nobody knows: %q", method, m.Descriptor().Name(), raw)
		}
	})
	return err
}

// Fields that the service does not know change nothing and are not kept. That includes its pruned fields: we do not know
// them, so no reply may have any.
func TestUnknownFieldsAreNeverAnswered(t *testing.T) {
	b := start(t, Options{Hosts: Hosts{Count: 3}, Rules: Rules{Peering: PeeringMixed}})
	b.ForgeClient = forge.NewForgeClient(soiled{dial(t, b.world), t})
	furnish(b)
	for kind, s := range subjects() {
		ids := s.list(b)
		if len(ids) == 0 {
			t.Errorf("there is no %s", kind)
		}
		if s.find != nil {
			if found, err := s.find(b, ids...); len(found) != len(ids) || err != nil {
				t.Errorf("%s: %d of %d found: %v", kind, len(found), len(ids), err)
			}
		}
	}
	b.findSegment(uid(2))
	ok(b.GetDpuExtensionServiceVersionsInfo(ctx, &forge.GetDpuExtensionServiceVersionsInfoRequest{ServiceId: uid(0x35)}))
	ok(b.FindTenantKeysetsByIds(ctx, &forge.TenantKeysetsByIdsRequest{KeysetIds: all([]string{"ops"}, keysetOf), IncludeKeyData: true}))
	ok(b.FindInstanceByMachineID(ctx, b.findInstance(uid(9)).MachineId))

	clean := start(t, Options{Hosts: Hosts{Count: 3}, Rules: Rules{Peering: PeeringMixed}})
	furnish(clean)
	if got, want := string(b.world.Dump()), string(clean.world.Dump()); got != want {
		t.Errorf("unknown fields made\n%s\nwant\n%s", got, want)
	}
}

// An older client puts the name where the current service does not look; a client that sets both is understood by both.
func TestNamesOfBothGenerations(t *testing.T) {
	const both, older, newer = "both", "older", "newer"
	for _, old := range []bool{false, true} {
		b := start(t, Options{Old: old})
		parent := &forge.VpcCreationRequest{Id: vpcID(uid(0x10)), Metadata: named("net")}
		forge.SetLegacyName(parent, "net")
		ok(b.CreateVpc(ctx, parent))
		for i, c := range []struct {
			puts, on string
			name     string // "": refused
		}{
			{both, newer, "prod"}, {older, newer, "default_name"}, {newer, newer, "prod"},
			{both, older, "prod"}, {older, older, "prod"}, {newer, older, ""},
		} {
			if (c.on == older) != old {
				continue
			}
			fill := func(m proto.Message, meta **forge.Metadata) {
				if c.puts != older {
					*meta = named("prod")
				}
				if c.puts != newer {
					forge.SetLegacyName(m, "prod")
				}
			}
			id := uid(byte(i))
			made := &forge.VpcCreationRequest{Id: vpcID(id)}
			prefix := &forge.VpcPrefixCreationRequest{Id: prefixID(id), VpcId: vpcID(uid(0x10)), Prefix: fmt.Sprintf("10.%d.0.0/24", i)}
			fill(made, &made.Metadata)
			fill(prefix, &prefix.Metadata)
			_, err := b.CreateVpc(ctx, made)
			_, other := b.CreateVpcPrefix(ctx, prefix)
			if c.name == "" {
				b.refuses(err, codes.InvalidArgument, "name")
				b.refuses(other, codes.InvalidArgument, "name")
				continue
			}
			if err != nil || other != nil {
				t.Fatalf("%s on %s: %v, %v", c.puts, c.on, err, other)
			}
			changed := &forge.VpcUpdateRequest{Id: vpcID(id)}
			renamed := &forge.VpcPrefixUpdateRequest{Id: prefixID(id)}
			fill(changed, &changed.Metadata)
			fill(renamed, &renamed.Metadata)
			ok(b.UpdateVpc(ctx, changed))
			ok(b.UpdateVpcPrefix(ctx, renamed))
			v := b.findVpc(id)
			p := ok(b.GetVpcPrefixes(ctx, &forge.VpcPrefixGetRequest{VpcPrefixIds: []*forge.VpcPrefixId{prefixID(id)}})).VpcPrefixes[0]
			for _, got := range []struct {
				m    proto.Message
				meta *forge.Metadata
			}{{v, v.Metadata}, {p, p.Metadata}} {
				want := [2]string{c.name, ""}
				if old {
					want = [2]string{"", c.name}
				}
				if have := [2]string{got.meta.GetName(), forge.LegacyName(got.m)}; have != want {
					t.Errorf("%s on %s reads back in metadata and plain as %q, want %q", c.puts, c.on, have, want)
				}
			}
		}
	}
}
