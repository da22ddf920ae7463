package carbidesim

import (
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"converge.dev/converge/providers/carbide/forge"
)

// A Generation is a version of the service, as its clients see it.
type Generation string

// Generations, by the month of 2026 from which each is known.
const (
	May       Generation = "may"
	August    Generation = "august"    // v2.0: fills config beside the flat fields, and deletes prefixes asynchronously
	September Generation = "september" // fills only config and status of VPCs
	Next      Generation = "next"      // does so with segments and machines too, as announced
)

// Generations are all generations, in order.
var Generations = []Generation{May, August, September, Next}

// later reports whether a generation is v2.0 or newer.
func (g Generation) later() bool { return g != "" && g != May }

type fields map[protoreflect.FullName][]protoreflect.FieldNumber

// unread holds for each generation the fields of requests that it does not have.
var unread = map[Generation]fields{
	May: {
		"forge.ExpectedHostNic":         {7, 8, 9},
		"forge.ExpectedMachine":         {18, 19},
		"forge.InstanceInterfaceConfig": {13},
		"forge.InstanceNetworkConfig":   {3},
		"forge.SkuComponentStorage":     {5, 6, 7},
		"forge.VpcCreationRequest":      {18},
		"forge.VpcPrefixGetRequest":     {2},
		"forge.VpcPrefixSearchQuery":    {6},
		"forge.VpcUpdateRequest":        {19},
	},
	August:    readLater,
	September: readLater,
	Next:      readLater,
}

var readLater = fields{
	"forge.InstanceNetworkConfig": {2}, // replaced by auto_config
	"forge.InstancePowerRequest":  {1},
}

// unfilled holds for each generation the fields of replies that it no longer has. Those that it does not have yet are not filled.
var unfilled = map[Generation]fields{
	August:    {"forge.IpxeTemplate": {7}},
	September: {"forge.IpxeTemplate": {7}, "forge.Vpc": flatVPC},
	Next: {
		"forge.IpxeTemplate":   {7},
		"forge.Vpc":            flatVPC,
		"forge.NetworkSegment": {2, 3, 4, 5, 6, 14, 15, 100, 101, 102, 103},
		"forge.Machine":        {7, 17, 18, 26, 27, 30, 36, 38},
	},
}

var flatVPC = []protoreflect.FieldNumber{3, 7, 8, 9, 11, 13, 15, 16}

// without removes fields from a message and from all messages in it.
func (f fields) without(m proto.Message) {
	walk(m.ProtoReflect(), func(m protoreflect.Message) {
		for _, number := range f[m.Descriptor().FullName()] {
			m.Clear(m.Descriptor().Fields().ByNumber(number))
		}
	})
}

// newMethods are the methods that the older generation does not have.
var newMethods = []string{
	"CreateSpxPartition", "DeleteSpxPartition", "FindSpxPartitionIds", "FindSpxPartitionsByIds",
	"CreateOperatingSystem", "UpdateOperatingSystem", "DeleteOperatingSystem", "FindOperatingSystemIds", "FindOperatingSystemsByIds",
	"AddExpectedRack", "UpdateExpectedRack", "DeleteExpectedRack", "GetExpectedRack", "GetAllExpectedRacks",
	"GetIpxeTemplate", "ListIpxeTemplates", "GetOperatingSystemCachableIpxeTemplateArtifacts", "UpdateOperatingSystemCachableIpxeTemplateArtifacts",
}

// newer holds the fields that the older generation of the service does not have, in messages that it has.
var newer = fields{
	"forge.ExpectedHostNic":               {6},
	"forge.ExpectedMachine":               {15, 16, 17},
	"forge.ExpectedPowerShelf":            {9},
	"forge.ExpectedSwitch":                {12, 13},
	"forge.InstanceConfig":                {25},
	"forge.InstanceInterfaceConfig":       {11, 12},
	"forge.InstanceNetworkConfig":         {2},
	"forge.InstanceOperatingSystemConfig": {4},
	"forge.InstanceStatus":                {104},
	"forge.Machine":                       {46},
	"forge.MachineInterface":              {17},
	"forge.NetworkSegment":                {16, 17, 18},
	"forge.RuntimeConfig":                 {51, 52},
}

// fromOlder reduces a request to what a server of the older generation understands of it: names come only from the plain
// field, and newer fields do not exist.
func fromOlder(request proto.Message) {
	newer.without(request)
	walk(request.ProtoReflect(), func(m protoreflect.Message) {
		if forge.HasLegacyName(m.Interface()) {
			setMetadataName(m, forge.LegacyName(m.Interface()))
		}
	})
}

// toOlder returns the reply of a server of the older generation: a copy, because replies share parts of the world.
func toOlder(reply proto.Message) proto.Message {
	reply = proto.Clone(reply)
	newer.without(reply)
	walk(reply.ProtoReflect(), func(m protoreflect.Message) {
		if forge.HasLegacyName(m.Interface()) {
			forge.SetLegacyName(m.Interface(), setMetadataName(m, ""))
		}
	})
	return reply
}

// dropUnknown removes from a request what the service does not know.
func dropUnknown(request proto.Message) {
	walk(request.ProtoReflect(), func(m protoreflect.Message) {
		if len(m.GetUnknown()) > 0 {
			m.SetUnknown(nil)
		}
	})
}

// setMetadataName changes the name in a message's metadata and returns the old one.
func setMetadataName(m protoreflect.Message, name string) string {
	meta := m.Mutable(m.Descriptor().Fields().ByName("metadata")).Message().Interface().(*forge.Metadata)
	was := meta.Name
	meta.Name = name
	return was
}

// walk visits a message and all messages in it, the outer ones first.
func walk(m protoreflect.Message, visit func(protoreflect.Message)) {
	visit(m)
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil || f.IsMap():
		case f.IsList():
			for i := range v.List().Len() {
				walk(v.List().Get(i).Message(), visit)
			}
		default:
			walk(v.Message(), visit)
		}
		return true
	})
}

// mentions reports whether a message holds a string that passes.
func mentions(m proto.Message, pass func(string) bool) bool {
	found := false
	walk(m.ProtoReflect(), func(m protoreflect.Message) {
		m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			if f.Kind() != protoreflect.StringKind || f.IsMap() {
				return true
			}
			if f.IsList() {
				found = found || slices.ContainsFunc(listed(v.List()), pass)
			} else {
				found = found || pass(v.String())
			}
			return true
		})
	})
	return found
}

func listed(l protoreflect.List) []string {
	out := make([]string, l.Len())
	for i := range out {
		out[i] = l.Get(i).String()
	}
	return out
}
