package state

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"converge.dev/converge/schema"
)

// TestRecordReader: the fast decoder reads what package encoding/json reads.
func TestRecordReader(t *testing.T) {
	r := newRecordReader() // one for all, to detect what it keeps from one record and leaks into the next
	word := rapid.StringMatching(`[a-z0-9_é"\\<\x{2028}]{1,8}`)
	var value *rapid.Generator[any]
	value = rapid.Custom(func(t *rapid.T) any {
		switch rapid.IntRange(0, 8).Draw(t, "type") {
		case 0:
			return nil
		case 1:
			return rapid.Bool().Draw(t, "bool")
		case 2:
			return rapid.Int64().Draw(t, "int")
		case 3:
			return rapid.Float64Range(-1e300, 1e300).Draw(t, "number")
		case 4:
			return rapid.SliceOfN(rapid.Deferred(func() *rapid.Generator[any] { return value }), 0, 3).Draw(t, "list")
		case 5:
			return rapid.MapOfN(word, rapid.Deferred(func() *rapid.Generator[any] { return value }), 0, 3).Draw(t, "map")
		}
		return rapid.String().Draw(t, "string")
	})
	rapid.Check(t, func(t *rapid.T) {
		in := Record{
			Ref: schema.Ref{Scope: "site", Kind: "a.b", Name: word.Draw(t, "name")}, ID: rapid.String().Draw(t, "id"),
			Spec: schema.Object(rapid.MapOfN(word, value, 0, 5).Draw(t, "spec")), Protect: rapid.Bool().Draw(t, "protect"),
			At: time.Unix(rapid.Int64Range(0, 1e10).Draw(t, "at"), 7).UTC(),
		}
		stored := encode("k", in)
		var want, got Record
		if err := json.Unmarshal(stored, &want); err != nil {
			t.Fatal(err)
		}
		if err := r.read(Item{Key: "k", Value: stored}, &got); err != nil {
			t.Fatalf("%v in %s", err, stored)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%s\n%s", stored, diff)
		}
	})
	for _, torn := range []string{
		``, `{`, `{"v":1}x`, `{"v":1,"spec":{"a":}}`, `{"v":1,"spec":[]`, `{"v":1,"spec":{"a":1,"a":2}}`, `{"v":1,"spec":{"a":1e999}}`,
		`{"v":1,"ref":"nonsense"}`, `{"v":1,"spec":{"a":[1,}}`, `{"v":1}{"v":1}`, `{"v":1,"spec":3}`, `{"v":1,"spec":[1]}`,
	} {
		if rest, ok := strings.CutPrefix(torn, `{"v":1,`); ok { // intact by its checksum, and invalid all the same
			torn = string(versionField) + checksum("k", []byte(rest)) + `",` + rest
		}
		var got Record
		if err := r.read(Item{Key: "the/key", Value: []byte(torn)}, &got); err == nil || !strings.Contains(err.Error(), "the/key") {
			t.Errorf("%s is read as %+v, %v", torn, got, err)
		}
	}
}
