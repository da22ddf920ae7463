package carbide

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

// The service's updates replace everything, and messages have more in them than the schema knows: fields that were left out
// of it, and those of later versions, which travel as unknown fields. So nothing is written anew that is there already. A
// write function changes what the schema knows of a message, and leaves the rest.

// renew gives the wanted elements of a list of messages: what is there and says the same as it is, what is there under the
// same key as it is apart from what is wanted of it, and the rest made. Elements of have are copied, not changed.
func renew[M any, P interface {
	*M
	proto.Message
}](have []P, want []map[string]any, read func(P) map[string]any, write func(map[string]any, P), key ...string) []P {
	whole := func(o map[string]any) string { return schema.Object(o).Digest() }
	identity := func(o map[string]any) string {
		id := schema.Object{}
		for _, field := range key {
			if v, ok := o[field]; ok {
				id[field] = v
			}
		}
		return id.Digest()
	}
	out := make([]P, len(want))
	taken := make([]bool, len(have))
	for _, by := range []func(map[string]any) string{whole, identity} {
		left := make(map[string][]int, len(have)) // those that nobody has taken, in their order
		for i, m := range have {
			if !taken[i] {
				at := by(read(m))
				left[at] = append(left[at], i)
			}
		}
		for i, o := range want {
			if out[i] != nil {
				continue
			}
			if at := by(o); len(left[at]) > 0 {
				first := left[at][0]
				taken[first], left[at] = true, left[at][1:]
				out[i] = proto.CloneOf(have[first])
			}
		}
	}
	for i, o := range want {
		if out[i] == nil {
			out[i] = new(M)
		}
		if whole(read(out[i])) != whole(o) {
			write(o, out[i])
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// labelled gives the labels of a spec, with the mark.
func labelled(spec schema.Object, mark providers.Mark, have []*forge.Label) []*forge.Label {
	labels, _ := spec["labels"].(map[string]any)
	var want []map[string]any
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		value, _ := labels[key].(string)
		want = append(want, map[string]any{"key": key, "value": value})
	}
	if text := mark.String(); text != "" {
		want = append(want, map[string]any{"key": providers.MarkKey, "value": text})
	}
	read := func(l *forge.Label) map[string]any {
		return map[string]any{"key": l.GetKey(), "value": l.GetValue()}
	}
	write := func(o map[string]any, l *forge.Label) {
		value := text(o, "value")
		l.Key, l.Value = text(o, "key"), &value
	}
	return renew(have, want, read, write, "key")
}
