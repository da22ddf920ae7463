package diff_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/schema"
)

// kind has one field of each sort; fields are sorted by name.
var kind = &schema.Kind{Name: "t.thing", Fields: []schema.Field{
	{Name: "drive", Type: schema.Struct, Disruption: schema.NeedsRestart, Fields: []schema.Field{{Name: "bus", Type: schema.String}, {Name: "medium", Type: schema.String, Disruption: schema.Live}}},
	{Name: "hosts", Type: schema.List, Set: true, Elem: &schema.Field{Type: schema.String, Ref: "t.host"}},
	{Name: "labels", Type: schema.Map, Elem: &schema.Field{Type: schema.String}},
	{Name: "mode", Type: schema.String, Kept: true},
	{Name: "net", Type: schema.String, Ref: "t.net", Immutable: true},
	{Name: "os", Type: schema.Struct, Fields: []schema.Field{{Name: "image", Type: schema.String, Disruption: "restart"}, {Name: "user", Type: schema.String}}},
	{Name: "ports", Type: schema.List, Elem: &schema.Field{Type: schema.Int}},
	{Name: "rules", Type: schema.List, Key: "id", Elem: &schema.Field{Type: schema.Struct, Fields: []schema.Field{
		{Name: "action", Type: schema.String}, {Name: "id", Type: schema.String},
	}}},
	{Name: "size", Type: schema.Int},
	{Name: "slots", Type: schema.Map, Elem: &schema.Field{Type: schema.Struct, Fields: []schema.Field{
		{Name: "card", Type: schema.String}, {Name: "lane", Type: schema.String, Kept: true},
	}}},
	{Name: "state", Type: schema.String, Computed: true},
}}

func names(kind, id string) string {
	if n, ok := strings.CutPrefix(id, "id-"); ok {
		return n
	}
	return id
}

func object(t testing.TB, text string) schema.Object {
	t.Helper()
	if text == "" {
		return nil
	}
	var o schema.Object
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	kind.Normalize(o)
	return o
}

func TestCompare(t *testing.T) {
	for name, c := range map[string]struct {
		want, have, recorded string
		ignore               []string
		changes              []string
	}{
		"what is not mentioned is theirs":       {want: `{"size":1}`, have: `{"size":1,"labels":{"a":"1"},"state":"ready"}`},
		"a number":                              {want: `{"size":1}`, have: `{"size":2}`, changes: []string{"size: 2 -> 1"}},
		"absent":                                {want: `{"size":1}`, have: `{}`, changes: []string{"size: null -> 1"}},
		"empty is absent":                       {want: `{"labels":{},"ports":[]}`, have: `{}`},
		"a label among others":                  {want: `{"labels":{"a":"1"}}`, have: `{"labels":{"a":"2","b":"x"}}`, changes: []string{"labels.a: \"2\" -> \"1\""}},
		"a dropped label is unset":              {want: `{"labels":{"a":"1"}}`, have: `{"labels":{"a":"1","b":"x"}}`, recorded: `{"labels":{"a":"1","b":"x"}}`, changes: []string{"labels.b: \"x\" -> null"}},
		"a dropped field is unset":              {want: `{}`, have: `{"size":3}`, recorded: `{"size":3}`, changes: []string{"size: 3 -> null"}},
		"a dropped field that is gone":          {want: `{}`, have: `{}`, recorded: `{"size":3}`},
		"a kept field that was dropped":         {want: `{}`, have: `{"mode":"on"}`, recorded: `{"mode":"on"}`},
		"a kept field that is stated":           {want: `{"mode":"off"}`, have: `{"mode":"on"}`, recorded: `{"mode":"on"}`, changes: []string{"mode: \"on\" -> \"off\""}},
		"a field of a struct, unset":            {want: `{"os":{"image":"a"}}`, have: `{"os":{"image":"a","user":"u"}}`, recorded: `{"os":{"image":"a","user":"u"}}`, changes: []string{"os.user: \"u\" -> null"}},
		"a reference by its name":               {want: `{"net":"a"}`, have: `{"net":"id-a"}`},
		"another reference replaces":            {want: `{"net":"a"}`, have: `{"net":"id-b"}`, changes: []string{"net: \"b\" -> \"a\" (replaces)"}},
		"a set of references in any order":      {want: `{"hosts":["a","b"]}`, have: `{"hosts":["id-b","id-a"]}`},
		"a set with one by its id":              {want: `{"hosts":["a","id-b"]}`, have: `{"hosts":["id-b","id-a"]}`},
		"a set with one too many":               {want: `{"hosts":["a"]}`, have: `{"hosts":["id-a","id-b"]}`, changes: []string{`hosts: ["a","b"] -> ["a"]`}},
		"a list keeps its order":                {want: `{"ports":[1,2]}`, have: `{"ports":[2,1]}`, changes: []string{"ports: [2,1] -> [1,2]"}},
		"rules pair by their key":               {want: `{"rules":[{"id":"b","action":"y"},{"id":"a","action":"x"}]}`, have: `{"rules":[{"id":"a","action":"x"},{"id":"b","action":"z"}]}`, changes: []string{`rules[b].action: "z" -> "y"`}},
		"a rule more and a rule less":           {want: `{"rules":[{"id":"a","action":"x"}]}`, have: `{"rules":[{"id":"b","action":"x"}]}`, changes: []string{`rules[a]: null -> {"action":"x","id":"a"}`, `rules[b]: {"action":"x","id":"b"} -> null`}},
		"ignored":                               {want: `{"size":1,"labels":{"a":"1"}}`, have: `{"size":2,"labels":{"a":"2"}}`, ignore: []string{"size", "labels.a"}},
		"a key that has dots":                   {want: `{"labels":{"a.b/c":"1","a":"1"}}`, have: `{"labels":{"a.b/c":"2","a":"2"}}`, ignore: []string{"labels.a.b/c"}, changes: []string{`labels.a: "2" -> "1"`}},
		"ignoring a field ignores all below it": {want: `{"labels":{"a":"1"}}`, have: `{"labels":{"a":"2"}}`, ignore: []string{"labels"}},
		"ignoring is not a matter of prefixes":  {want: `{"labels":{"ab":"1"}}`, have: `{"labels":{"ab":"2"}}`, ignore: []string{"labels.a"}, changes: []string{`labels.ab: "2" -> "1"`}},
		"what a change interrupts":              {want: `{"os":{"image":"b"}}`, have: `{"os":{"image":"a"}}`, changes: []string{`os.image: "a" -> "b" (restart)`}},
		"what is live below what is not": {
			want: `{"drive":{"bus":"b","medium":"b"}}`, have: `{"drive":{"bus":"a","medium":"a"}}`, changes: []string{`drive.bus: "a" -> "b" (restart)`, `drive.medium: "a" -> "b"`},
		},
		"a field of a value of a map, unset": {want: `{"slots":{"1":{"lane":"a"}}}`, have: `{"slots":{"1":{"lane":"a","card":"b"},"2":{"card":"c"}}}`, recorded: `{"slots":{"1":{"lane":"a","card":"b"}}}`, changes: []string{`slots.1.card: "b" -> null`}},
		"a value of a map, unset":            {want: `{}`, have: `{"slots":{"1":{"lane":"a","card":"b"},"2":{"card":"c"}}}`, recorded: `{"slots":{"1":{"lane":"a"}}}`, changes: []string{`slots.1: {"card":"b","lane":"a"} -> null`}},
		"another type":                       {want: `{"size":1}`, have: `{"size":"1"}`, changes: []string{`size: "1" -> 1`}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, c := range diff.Compare(kind, object(t, c.want), object(t, c.have), object(t, c.recorded), c.ignore, names) {
				got = append(got, text(c))
			}
			if d := cmp.Diff(c.changes, got); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

func text(c diff.Change) string {
	was, _ := json.Marshal(c.Before)
	will, _ := json.Marshal(c.After)
	s := fmt.Sprintf("%s: %s -> %s", c.Path, was, will)
	if c.Replaces {
		s += " (replaces)"
	}
	if c.Disruption != "" {
		s += " (" + c.Disruption + ")"
	}
	return s
}

func draw(t *rapid.T, label string) schema.Object {
	o := schema.Object{}
	word := rapid.SampledFrom([]string{"a", "b", "c"})
	some := rapid.Bool()
	if some.Draw(t, label+"size") {
		o["size"] = int64(rapid.IntRange(0, 2).Draw(t, label+"n"))
	}
	if some.Draw(t, label+"net") {
		o["net"] = word.Draw(t, label+"net=")
	}
	if some.Draw(t, label+"labels") {
		m := map[string]any{}
		for range rapid.IntRange(0, 2).Draw(t, label+"labels#") {
			m[word.Draw(t, label+"label")] = word.Draw(t, label+"value")
		}
		o["labels"] = m
	}
	if some.Draw(t, label+"os") {
		m := map[string]any{}
		if some.Draw(t, label+"image") {
			m["image"] = word.Draw(t, label+"image=")
		}
		if some.Draw(t, label+"user") {
			m["user"] = word.Draw(t, label+"user=")
		}
		o["os"] = m
	}
	if some.Draw(t, label+"rules") {
		var l []any
		for _, id := range []string{"a", "b", "c"} {
			if some.Draw(t, label+"rule"+id) {
				l = append(l, map[string]any{"id": id, "action": word.Draw(t, label+"action")})
			}
		}
		o["rules"] = l
	}
	if some.Draw(t, label+"slots") {
		m := map[string]any{}
		for range rapid.IntRange(0, 2).Draw(t, label+"slots#") {
			slot := map[string]any{}
			for _, part := range []string{"card", "lane"} {
				if some.Draw(t, label+part) {
					slot[part] = word.Draw(t, label+part+"=")
				}
			}
			m[word.Draw(t, label+"slot")] = slot
		}
		o["slots"] = m
	}
	kind.Normalize(o)
	return o
}

// What is immutable, was recorded, and is no longer reported, or as its default, is as it was. All else is as reported.
func TestLasting(t *testing.T) {
	fixed := &schema.Kind{Name: "t.fixed", Fields: []schema.Field{
		{Name: "blocks", Type: schema.List, Key: "at", Immutable: true, Elem: &schema.Field{Type: schema.Struct, Fields: []schema.Field{
			{Name: "at", Type: schema.String}, {Name: "gateway", Type: schema.String}, {Name: "skip", Type: schema.Int, Default: int64(0)},
		}}},
		{Name: "net", Type: schema.String, Immutable: true},
		{Name: "size", Type: schema.Int},
		{Name: "type", Type: schema.String, Immutable: true, Default: "plain"},
	}}
	spec := func(text string) schema.Object {
		o := object(t, text)
		fixed.Normalize(o)
		return o
	}
	for name, c := range map[string]struct{ observed, recorded, want string }{
		"all is told":           {`{"net":"a","size":1,"type":"x"}`, `{"net":"a","size":2,"type":"x"}`, `{"net":"a","size":1,"type":"x"}`},
		"another value":         {`{"net":"b","type":"y"}`, `{"net":"a","type":"x"}`, `{"net":"b","type":"y"}`},
		"not told":              {`{"size":1}`, `{"net":"a","size":2,"type":"x"}`, `{"net":"a","size":1,"type":"x"}`},
		"told as the default":   {`{"net":"","type":"plain"}`, `{"net":"a","type":"x"}`, `{"net":"a","type":"x"}`},
		"can change":            {`{}`, `{"size":2}`, `{}`},
		"not recorded":          {`{"type":"plain"}`, `{}`, `{"type":"plain"}`},
		"a part of an element":  {`{"blocks":[{"at":"1","skip":0},{"at":"2","skip":5}]}`, `{"blocks":[{"at":"1","gateway":"g","skip":4},{"at":"2","skip":6}]}`, `{"blocks":[{"at":"1","gateway":"g","skip":4},{"at":"2","skip":5}]}`},
		"an element is missing": {`{"blocks":[{"at":"1","skip":0}]}`, `{"blocks":[{"at":"1","skip":0},{"at":"2","skip":0}]}`, `{"blocks":[{"at":"1","skip":0}]}`},
	} {
		observed := spec(c.observed)
		if got := diff.Lasting(fixed, observed, spec(c.recorded)); !got.Equal(spec(c.want)) {
			t.Errorf("%s: %v", name, got)
		}
		if !observed.Equal(spec(c.observed)) {
			t.Errorf("%s: what was observed is modified: %v", name, observed)
		}
	}
}

// After a merge no differences are left, what others set is still there, and neither input was changed.
func TestMergeSettlesEveryDifference(t *testing.T) {
	same := func(_, id string) string { return id }
	rapid.Check(t, func(t *rapid.T) {
		want, have, recorded := draw(t, "want"), draw(t, "have"), draw(t, "recorded")
		w, h, r := want.Digest(), have.Digest(), recorded.Digest()
		ignore := rapid.SampledFrom([][]string{nil, {"size"}, {"labels"}, {"labels.b"}, {"labels.a", "labels.c", "os.image"}, {"os", "rules"}}).Draw(t, "ignore")
		merged := diff.Merge(kind, want, have, recorded, ignore)
		if cs := diff.Compare(kind, want, merged, recorded, ignore, same); len(cs) > 0 {
			t.Fatalf("want %v, have %v, recorded %v, ignored %v, merged %v: still differs at %s", want, have, recorded, ignore, merged, cs[0].Path)
		}
		if !diff.Spare(nil, have, ignore).Equal(diff.Spare(nil, merged, ignore)) {
			t.Fatalf("want %v, have %v, recorded %v: of what is ignored, %v, became %v", want, have, recorded, ignore, merged)
		}
		for k, v := range have {
			_, wanted := want[k]
			_, was := recorded[k]
			if !wanted && !was && !schema.Equal(merged[k], v) {
				t.Fatalf("%s was theirs, and became %v", k, merged[k])
			}
		}
		labels := func(o schema.Object) map[string]any { m, _ := o["labels"].(map[string]any); return m }
		for k, v := range labels(have) {
			_, wanted := labels(want)[k]
			_, was := labels(recorded)[k]
			if !wanted && !was && labels(merged)[k] != v {
				t.Fatalf("label %s was theirs, and went", k)
			}
		}
		slot := func(o schema.Object, n string) map[string]any {
			m, _ := o["slots"].(map[string]any)
			s, _ := m[n].(map[string]any)
			return s
		}
		for _, n := range []string{"a", "b", "c"} {
			for part, v := range slot(have, n) {
				_, wanted := slot(want, n)[part]
				_, was := slot(recorded, n)[part]
				if slot(want, n) != nil && !wanted && !was && slot(merged, n)[part] != v {
					t.Fatalf("want %v, have %v, recorded %v: the %s of slot %s was theirs, and went", want, have, recorded, part, n)
				}
			}
		}
		if want.Digest() != w || have.Digest() != h || recorded.Digest() != r {
			t.Fatal("an input was changed")
		}
		if len(diff.Compare(kind, want, have, nil, ignore, same)) == 0 && want.Equal(recorded) {
			if !merged.Equal(have) {
				t.Fatalf("nothing differs, and merging changes %v to %v", have, merged)
			}
		}
	})
}

func TestPrune(t *testing.T) {
	spec := object(t, `{"size":1,"labels":{"a":"1","b":"2"},"os":{"image":"x"}}`)
	before := spec.Digest()
	got := diff.Prune(spec, []string{"size", "labels.a", "net", "os.user.deeper"})
	if d := cmp.Diff(object(t, `{"labels":{"b":"2"},"os":{"image":"x"}}`), got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if spec.Digest() != before {
		t.Error("the spec itself was changed")
	}
}

func TestSpare(t *testing.T) {
	ignore := []string{"size", "labels.x.example/who", "deep.a.b", "gone"}
	for _, c := range []struct{ spec, have, want string }{
		{`{"size": 1, "cidr": "a"}`, `{"size": 2, "cidr": "b"}`, `{"size": 2, "cidr": "a"}`},
		{`{"size": 1}`, `{}`, `{}`},
		{`{}`, `{"size": 2, "labels": {"x.example/who": "they", "mine": "no"}}`, `{"size": 2, "labels": {"x.example/who": "they"}}`},
		{`{"labels": {"mine": "yes"}}`, `{"labels": {"x.example/who": "they", "mine": "no"}}`, `{"labels": {"x.example/who": "they", "mine": "yes"}}`},
		{`{"deep": {"a": {"b": 1, "c": 1}}}`, `{"deep": {"a": {"b": 2, "c": 2, "d": 2}}}`, `{"deep": {"a": {"b": 2, "c": 1}}}`},
		{`{"gone": {"a": 1}, "labels": {"mine": "yes"}}`, `{"labels": {"other": "no"}}`, `{"labels": {"mine": "yes"}}`},
	} {
		if got := diff.Spare(object(t, c.spec), object(t, c.have), ignore); !got.Equal(object(t, c.want)) {
			t.Errorf("%s over %s: %v, want %s", c.spec, c.have, got, c.want)
		}
	}
}
