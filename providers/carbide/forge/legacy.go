package forge

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// legacyNames holds the number of the plain name field that the older generation has in each of these messages.
var legacyNames = map[protoreflect.FullName]protowire.Number{
	"forge.Vpc":                      2,
	"forge.VpcCreationRequest":       2,
	"forge.VpcUpdateRequest":         3,
	"forge.VpcPrefix":                3,
	"forge.VpcPrefixCreationRequest": 3,
	"forge.VpcPrefixUpdateRequest":   3,
}

// HasLegacyName reports whether the older generation keeps a plain name in messages of m's type.
func HasLegacyName(m proto.Message) bool {
	_, ok := legacyNames[m.ProtoReflect().Descriptor().FullName()]
	return ok
}

// SetLegacyName puts name where the older generation expects it, and removes it when name is empty. Newer
// servers skip the field. A message without such a field is left alone.
func SetLegacyName(m proto.Message, name string) {
	r := m.ProtoReflect()
	number, ok := legacyNames[r.Descriptor().FullName()]
	if !ok {
		return
	}
	var rest []byte
	each(r.GetUnknown(), func(n protowire.Number, _ protowire.Type, field, _ []byte) {
		if n != number {
			rest = append(rest, field...)
		}
	})
	if name != "" {
		rest = protowire.AppendTag(rest, number, protowire.BytesType)
		rest = protowire.AppendString(rest, name)
	}
	r.SetUnknown(rest)
}

// LegacyName returns the name that the older generation sent, or "" when there is none.
func LegacyName(m proto.Message) string {
	r := m.ProtoReflect()
	number, ok := legacyNames[r.Descriptor().FullName()]
	if !ok {
		return ""
	}
	var name string
	each(r.GetUnknown(), func(n protowire.Number, t protowire.Type, _, value []byte) {
		if n == number && t == protowire.BytesType {
			// As with any field that is not repeated, the last one counts.
			b, _ := protowire.ConsumeBytes(value)
			name = string(b)
		}
	})
	return name
}

// each walks the fields of raw wire data. The data has been through the decoder, so it should be well formed; if it is
// not, the rest is skipped.
func each(raw []byte, visit func(n protowire.Number, t protowire.Type, field, value []byte)) {
	for len(raw) > 0 {
		number, typ, tag := protowire.ConsumeTag(raw)
		if tag < 0 {
			return
		}
		size := protowire.ConsumeFieldValue(number, typ, raw[tag:])
		if size < 0 {
			return
		}
		visit(number, typ, raw[:tag+size], raw[tag:tag+size])
		raw = raw[tag+size:]
	}
}
