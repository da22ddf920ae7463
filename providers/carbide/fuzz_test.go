package carbide

import (
	"encoding/json"
	"maps"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/e2e/hostile/fuzzed"
	"converge.dev/converge/internal/budget"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

// FuzzThing passes objects that a service may send to every kind, from none of their fields to all with the wrong values. Each
// becomes a thing of plain values, and labels come back as they were read.
func FuzzThing(tf *testing.F) {
	f := fuzzed.New(tf)
	add := func(kind byte, text string, m proto.Message) {
		if err := protojson.Unmarshal([]byte(text), m); err != nil {
			f.Fatal(err)
		}
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(kind, b)
	}
	metadata := `"metadata":{"name":"n","description":"a<b","labels":[{"key":"env","value":"prod"},{"key":"empty"},{"key":"converge.dev/mark","value":"s/site/carbide.vpc/n#1"}]}`
	add(0, `{"id":{"value":"i"},`+metadata+`}`, &forge.Vpc{})
	add(1, `{`+metadata+`}`, &forge.Instance{})
	add(2, `{`+metadata+`}`, &forge.InstanceType{})
	add(3, `{`+metadata+`}`, &forge.Machine{})
	add(4, `{`+metadata+`}`, &forge.NetworkSecurityGroup{})
	add(5, `{}`, &forge.NetworkSegment{})
	add(6, `{}`, &forge.Tenant{})
	add(7, `{}`, &forge.TenantKeyset{})
	add(8, `{`+metadata+`}`, &forge.VpcPrefix{})
	add(9, `{"vpc_id":{"value":"b"},"peer_vpc_id":{"value":"a"}}`, &forge.VpcPeering{})
	add(10, `{"config":{"pkey":"0X0A"},"status":{"pkey":"x","state":"FAILED"},`+metadata+`}`, &forge.IBPartition{})
	add(11, `{"config":{`+metadata+`}}`, &forge.NVLinkLogicalPartition{})
	add(12, `{"vni":7,`+metadata+`}`, &forge.SpxPartition{})
	for kind := range byte(13) {
		f.Add(kind, []byte(nil))
		f.Add(kind, []byte("\x0a\x00\x12\x00\x1a\x00\x22\x00\x2a\x00\x32\x00\x3a\x00\x42\x00"))
		f.Add(kind, []byte("\x08\xff\xff\xff\xff\xff\xff\xff\xff\x01\x10\x01\x18\x01\x20\x01\x28\x01\x30\x01"))
	}
	see := []func(b []byte) (*providers.Thing, *forge.Metadata){
		seen(func(o *forge.Vpc) providers.Thing { return vpcs{}.thing(seenVPC{Vpc: o}) }, &forge.Vpc{}),
		seen(func(o *forge.Instance) providers.Thing { return instances{}.thing(seenInstance{Instance: o}) }, &forge.Instance{}),
		seen(instanceTypes{}.thing, &forge.InstanceType{}), seen(machines{}.thing, &forge.Machine{}),
		seen(func(o *forge.NetworkSecurityGroup) providers.Thing {
			return groups{}.thing(seenGroup{NetworkSecurityGroup: o})
		}, &forge.NetworkSecurityGroup{}),
		seen(segments{}.thing, &forge.NetworkSegment{}),
		seen(tenants{}.thing, &forge.Tenant{}), seen(keysets{}.thing, &forge.TenantKeyset{}), seen(prefixes{}.thing, &forge.VpcPrefix{}),
		seen(peerings{}.thing, &forge.VpcPeering{}), seen(ibPartitions{}.thing, &forge.IBPartition{}),
		seen(nvlinkPartitions{}.thing, &forge.NVLinkLogicalPartition{}), seen(spxPartitions{}.thing, &forge.SpxPartition{}),
	}
	f.Fuzz(func(t *testing.T, kind byte, b []byte) {
		if len(b) > budget.Largest {
			return
		}
		var thing *providers.Thing
		var m *forge.Metadata
		budget.Spend(t, func() { thing, m = see[int(kind)%len(see)](b) })
		if thing == nil {
			return
		}
		for what, o := range map[string]schema.Object{"spec": thing.Spec, "status": thing.Status} {
			text, err := json.Marshal(o)
			if err != nil {
				t.Fatalf("the %s is not JSON: %v", what, err)
			}
			var again schema.Object
			if err := json.Unmarshal(text, &again); err != nil || o != nil && again.Digest() != o.Digest() {
				t.Errorf("the %s %s comes back as %v, %v", what, text, again, err)
			}
		}
		if m == nil {
			return
		}
		description, labels, mark := described(m)
		back := writeMetadata(&providers.Call{Mark: mark}, nil, m.GetName(), description, labels)
		if again, more, same := described(back); value(again) != value(description) || !maps.Equal(labels, more) || same != mark {
			t.Errorf("%v reads as %q, %v, and comes back as %q, %v", m, value(description), labels, value(again), more)
		}
	})
}

// seen decodes an object and passes it to its kind.
func seen[O proto.Message](thing func(O) providers.Thing, empty O) func(b []byte) (*providers.Thing, *forge.Metadata) {
	return func(b []byte) (*providers.Thing, *forge.Metadata) {
		o := empty.ProtoReflect().New().Interface().(O)
		if proto.Unmarshal(b, o) != nil {
			return nil, nil
		}
		th := thing(o)
		m, _ := any(o).(interface{ GetMetadata() *forge.Metadata })
		if m == nil {
			return &th, nil
		}
		return &th, m.GetMetadata()
	}
}
