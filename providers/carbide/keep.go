package carbide

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
)

// The service's updates replace everything, and messages contain more than the schema knows: fields that were left out of
// it, and those of later versions, which travel as unknown fields. So existing messages are never written anew. A
// write function changes what the schema knows of a message, and leaves the rest.

// renew returns the desired elements of a list of messages: equal ones unchanged, those with the same key changed to the
// desired state, and the rest new. Elements of have are copied, not changed.
func renew[T any, K comparable, M any, P interface {
	*M
	proto.Message
}](have []P, want []T, read func(P) T, write func(*T, P), key func(*T) K) []P {
	out, taken := make([]P, len(want)), make([]bool, len(have))
	texts := make([]string, len(want))
	for i := range want {
		texts[i] = asJSON(&want[i])
	}
	seen, said := make([]T, len(have)), make([]string, len(have))
	for i, m := range have {
		seen[i] = read(m)
		said[i] = asJSON(&seen[i])
	}
	pair(out, have, taken, texts, said)
	keys := func(of []T) []K {
		all := make([]K, len(of))
		for i := range of {
			all[i] = key(&of[i])
		}
		return all
	}
	pair(out, have, taken, keys(want), keys(seen))
	for i := range want {
		if out[i] == nil {
			out[i] = new(M)
		}
		if now := read(out[i]); asJSON(&now) != texts[i] {
			write(&want[i], out[i])
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// pair assigns to each remaining desired element a copy of the first message with the same key that is not taken yet.
func pair[K comparable, M any, P interface {
	*M
	proto.Message
}](out, have []P, taken []bool, want, seen []K) {
	left := make(map[K][]int, len(have))
	for i := range have {
		if !taken[i] {
			left[seen[i]] = append(left[seen[i]], i)
		}
	}
	for i, k := range want {
		if at := left[k]; out[i] == nil && len(at) > 0 {
			taken[at[0]], left[k] = true, at[1:]
			out[i] = proto.CloneOf(have[at[0]])
		}
	}
}

// asJSON returns a struct of a spec as text: equal for equal values.
func asJSON(spec any) string {
	b, err := json.Marshal(spec)
	if err != nil { // such a struct has only texts, numbers, and lists of these
		panic(fmt.Sprintf("carbide: %T: %v", spec, err))
	}
	return string(b)
}

// labelled returns the labels of a spec, with the mark.
func labelled(labels map[string]string, mark providers.Mark, have []*forge.Label) []*forge.Label {
	type label struct{ Key, Value string }
	var want []label
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		want = append(want, label{key, labels[key]})
	}
	if text := mark.String(); text != "" {
		want = append(want, label{providers.MarkKey, text})
	}
	return renew(have, want, func(l *forge.Label) label { return label{l.GetKey(), l.GetValue()} },
		func(w *label, l *forge.Label) { l.Key, l.Value = w.Key, &w.Value }, func(w *label) string { return w.Key })
}
