package carbidesim

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// kept is a message inside the world, with the JSON of protocol buffers in the world's file. The message must not be
// changed once it is kept.
type kept[M proto.Message] struct {
	message M
}

func keep[M proto.Message](m M) kept[M] { return kept[M]{m} }

// MarshalJSON writes the message.
func (k kept[M]) MarshalJSON() ([]byte, error) { return protojson.Marshal(k.message) }

// UnmarshalJSON reads the message.
func (k *kept[M]) UnmarshalJSON(b []byte) error {
	k.message = k.message.ProtoReflect().New().Interface().(M)
	return protojson.Unmarshal(b, k.message)
}

func sortedKeys[V any](m map[string]V) []string {
	return slices.Sorted(maps.Keys(m))
}
