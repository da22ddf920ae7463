package secret

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"converge.dev/converge/engine/secret/sealed"
	"converge.dev/converge/schema"
)

var key = bytes.Repeat([]byte{7}, KeySize)

// secretField returns a field with a reference, as the loader reads it from #Secret.
func secretField(name string) schema.Field {
	return schema.Field{Name: name, Type: schema.Struct, Secret: true, Fields: []schema.Field{{Name: "from", Type: schema.String, Required: true}}}
}

// account returns a kind with a secret in every place where one can be: in the spec, a struct, a map, a list, a list with a key.
func account() *schema.Kind {
	elem := secretField("")
	named := schema.Field{Type: schema.Struct, Fields: []schema.Field{{Name: "name", Type: schema.String}, secretField("value")}}
	return &schema.Kind{Name: "far.account", Fields: []schema.Field{
		{Name: "auth", Type: schema.Struct, Fields: []schema.Field{secretField("token"), {Name: "user", Type: schema.String}}},
		{Name: "bag", Type: schema.List, Set: true, Elem: &elem},
		{Name: "keys", Type: schema.List, Key: "name", Elem: &named},
		{Name: "login", Type: schema.String},
		secretField("password"),
		{Name: "seen", Type: schema.String, Computed: true, Secret: true},
		{Name: "tokens", Type: schema.Map, Elem: &elem},
	}}
}

// given returns the source of a key that exists.
func given(key []byte) func() ([]byte, error) { return func() ([]byte, error) { return key, nil } }

// vault returns one that reads from a map instead of the environment.
func vault(t *testing.T, env map[string]string) *Vault {
	t.Helper()
	return New(given(key), Options{Source: Source{Lookup: func(n string) (string, bool) { s, ok := env[n]; return s, ok }}})
}

func from(place string) map[string]any { return map[string]any{"from": place} }

func everywhere() schema.Object {
	return schema.Object{
		"auth": map[string]any{"user": "bob", "token": from("env:A")}, "bag": []any{from("env:B"), from("env:C")},
		"keys": []any{map[string]any{"name": "k", "value": from("env:D")}}, "login": "bob", "password": from("env:E"),
		"tokens": map[string]any{"x": from("env:F")},
	}
}

func environment() map[string]string {
	return map[string]string{"A": "alpha-1", "B": "bravo-2", "C": "charlie-3", "D": "delta-4", "E": "echo-5", "F": "foxtrot-6"}
}

func values(env map[string]string) schema.Object {
	return schema.Object{
		"auth": map[string]any{"user": "bob", "token": env["A"]}, "bag": []any{env["B"], env["C"]},
		"keys": []any{map[string]any{"name": "k", "value": env["D"]}}, "login": "bob", "password": env["E"],
		"tokens": map[string]any{"x": env["F"]},
	}
}

func text(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// none fails when a value stands in a text.
func none(t *testing.T, text string, env map[string]string) {
	t.Helper()
	for _, value := range env {
		if strings.Contains(text, value) {
			t.Errorf("%q is shown: %s", value, text)
		}
	}
}

// TestWay: reference, sealed, value and concealed are the same secret, in every place of a spec.
func TestWay(t *testing.T) {
	env, k := environment(), account()
	v := vault(t, env)
	spec := everywhere()
	closed, err := v.Seal(k, spec)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(everywhere(), spec); d != "" {
		t.Errorf("Seal changed the document: %s", d)
	}
	none(t, text(t, closed), env)
	if n := strings.Count(text(t, closed), sealed.Algorithm); n != len(env) {
		t.Errorf("%d of %d secrets are sealed: %s", n, len(env), text(t, closed))
	}
	again, err := vault(t, env).Seal(k, spec)
	if err != nil || cmp.Diff(closed, again) != "" {
		t.Errorf("another process seals otherwise: %v %s", err, cmp.Diff(closed, again))
	}
	opened, err := v.Open(k, closed)
	if err != nil {
		t.Fatal(err)
	}
	want := values(env)
	if opened["bag"].([]any)[0] != env["B"] { // the set is in the order of its digests
		want["bag"] = []any{env["C"], env["B"]}
	}
	if d := cmp.Diff(want, opened); d != "" {
		t.Errorf("opened: %s", d)
	}
	seen := values(env)
	seen["seen"] = "generated-7"
	concealed, err := v.Conceal(k, seen)
	if err != nil {
		t.Fatal(err)
	}
	k.Normalize(concealed)
	none(t, text(t, concealed), map[string]string{"": "generated-7"})
	none(t, text(t, concealed), env)
	for _, path := range [][]string{{"password"}, {"auth", "token"}, {"tokens", "x"}} {
		a, b := any(map[string]any(closed)), any(map[string]any(concealed))
		for _, p := range path {
			a, b = a.(map[string]any)[p], b.(map[string]any)[p]
		}
		if sealed.Digest(a) == "" || sealed.Digest(a) != sealed.Digest(b) || b.(map[string]any)["from"] != nil {
			t.Errorf("%v: sealed %v, concealed %v", path, a, b)
		}
	}
	for i := range 2 {
		if a, b := closed["bag"].([]any)[i], concealed["bag"].([]any)[i]; sealed.Digest(a) != sealed.Digest(b) {
			t.Errorf("the sets are in another order: %v, %v", a, b)
		}
	}
	back, err := v.Open(k, concealed) // known by their digests, because they were seen
	if err != nil || back["password"] != env["E"] {
		t.Errorf("opened from what was seen: %v, %v", back, err)
	}
	if _, err := vault(t, env).Open(k, concealed); err == nil {
		t.Error("another process opens what only has a digest")
	}
}

// TestKey: another site's digests are different, and without a key nothing is sealed or concealed.
func TestKey(t *testing.T) {
	env, k := environment(), account()
	closed, err := vault(t, env).Seal(k, everywhere())
	if err != nil {
		t.Fatal(err)
	}
	other := New(given(bytes.Repeat([]byte{8}, KeySize)), Options{Source: vault(t, env).source})
	if s, err := other.Seal(k, everywhere()); err != nil || sealed.Digest(s["password"]) == sealed.Digest(closed["password"]) {
		t.Errorf("equal digests under two keys: %v", err)
	}
	keyless := New(given(nil), Options{Source: vault(t, env).source})
	if _, err := keyless.Seal(k, everywhere()); err == nil {
		t.Error("sealed without a key")
	}
	if _, err := keyless.Conceal(k, values(env)); err == nil {
		t.Error("concealed without a key")
	}
	if o, err := keyless.Seal(&schema.Kind{Name: "a.b"}, schema.Object{"x": "y"}); err != nil || o["x"] != "y" {
		t.Errorf("a kind without secrets needs no key: %v %v", o, err)
	}
	if _, err := New(given(key[1:]), Options{Source: vault(t, env).source}).Seal(k, everywhere()); err == nil {
		t.Error("a short key is accepted")
	}
}

// TestChanged: a secret that has changed by the time of the call is not sent.
func TestChanged(t *testing.T) {
	env, k := environment(), account()
	v := vault(t, env)
	closed, err := v.Seal(k, everywhere())
	if err != nil {
		t.Fatal(err)
	}
	env["E"] = "rotated-99"
	_, err = v.Open(k, closed)
	if err == nil || !strings.Contains(err.Error(), "password: env:E: the secret changed") {
		t.Errorf("changed: %v", err)
	}
	none(t, fmt.Sprintf("%+v", err), env)
	delete(env, "E")
	if _, err = v.Open(k, closed); err == nil || !strings.Contains(err.Error(), "password: env:E: the variable is not set") {
		t.Errorf("gone: %v", err)
	}
	for name, o := range map[string]schema.Object{
		"a reference": {"password": from("env:A")}, "a value": {"password": "alpha-1"},
		"a false digest": {"password": map[string]any{"digest": "alpha-1"}},
	} {
		if got, err := v.Open(k, o); err == nil {
			t.Errorf("%s is opened: %v", name, got)
		} else {
			none(t, err.Error(), env)
		}
	}
}

// TestSealRefuses names everything that is missing at once, and repeats nothing that may be a secret.
func TestSealRefuses(t *testing.T) {
	env, k := environment(), account()
	delete(env, "A")
	delete(env, "F")
	_, err := vault(t, env).Seal(k, everywhere())
	for _, want := range []string{"auth.token: env:A: the variable is not set", "tokens.x: env:F: the variable is not set"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in %v", want, err)
		}
	}
	none(t, err.Error(), env)
	for _, plain := range []any{"hunter22", from("hunter22"), map[string]any{"form": "hunter22"}, []any{"hunter22"}, map[string]any{"digest": "hunter22"}, int64(22)} {
		_, err := vault(t, env).Seal(k, schema.Object{"password": plain})
		if err == nil {
			t.Errorf("%v is sealed", plain)
		} else if strings.Contains(err.Error(), "22") || !strings.HasPrefix(err.Error(), "password: ") {
			t.Errorf("%v: %v", plain, err)
		}
	}
}

// TestConcealEmpty: the empty text means that none is set, which is neither a digest nor "not given back".
func TestConcealEmpty(t *testing.T) {
	k := account()
	o, err := vault(t, nil).Conceal(k, schema.Object{"password": "", "login": "", "auth": map[string]any{}})
	if err != nil || cmp.Diff(schema.Object{"password": map[string]any{}, "login": "", "auth": map[string]any{}}, o) != "" {
		t.Errorf("%v, %v", o, err)
	}
	if back, err := vault(t, nil).Open(k, o); err != nil || back["password"] != "" {
		t.Errorf("%v, %v", back, err)
	}
}

// TestAssume: what does not come back is as last known, and what comes back is as it is.
func TestAssume(t *testing.T) {
	k := account()
	d := func(s string) map[string]any { return map[string]any{"digest": s} }
	known := schema.Object{
		"auth": map[string]any{"user": "bob", "token": d("1")}, "bag": []any{d("2")}, "login": "bob", "password": d("3"),
		"keys":   []any{map[string]any{"name": "a", "value": d("4")}, map[string]any{"name": "b", "value": d("5")}},
		"tokens": map[string]any{"x": d("6")},
	}
	for _, c := range []struct {
		name           string
		observed, want schema.Object
	}{
		{"nothing comes back", schema.Object{"login": "eve"}, schema.Object{
			"login": "eve", "auth": map[string]any{"token": d("1")}, "bag": known["bag"], "password": d("3"), "tokens": known["tokens"],
		}},
		{"all comes back", schema.Object{
			"auth": map[string]any{"token": d("0")}, "bag": []any{}, "password": map[string]any{}, "tokens": map[string]any{}, "keys": []any{},
		}, schema.Object{
			"auth": map[string]any{"token": d("0")}, "bag": []any{}, "password": map[string]any{}, "tokens": map[string]any{}, "keys": []any{},
		}},
		{"elements pair by key", schema.Object{"password": d("0"), "bag": []any{}, "tokens": map[string]any{}, "auth": map[string]any{"user": "x"},
			"keys": []any{map[string]any{"name": "b"}, map[string]any{"name": "c"}},
		}, schema.Object{"password": d("0"), "bag": []any{}, "tokens": map[string]any{}, "auth": map[string]any{"user": "x", "token": d("1")},
			"keys": []any{map[string]any{"name": "b", "value": d("5")}, map[string]any{"name": "c"}},
		}},
	} {
		before := c.observed.Clone()
		if diff := cmp.Diff(c.want, sealed.Assume(k, c.observed, known)); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
		if diff := cmp.Diff(before, c.observed); diff != "" {
			t.Errorf("%s: what was observed is changed: %s", c.name, diff)
		}
	}
	if sealed.Assume(k, nil, known) != nil || sealed.Assume(k, schema.Object{"login": "x"}, nil)["password"] != nil {
		t.Error("nothing is assumed of what is not there, nor without knowledge")
	}
}

// TestValue: no way of printing a value prints it.
func TestValue(t *testing.T) {
	v := NewValue("hunter22")
	holder := struct {
		V Value
		P *Value
		M map[string]Value
		u Value // whose methods fmt does not call
	}{v, &v, map[string]Value{"k": v}, v}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "v", v, "p", &v, "h", holder)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "v", v, "p", &v, "h", holder)
	out := log.String() + text(t, holder)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T", "%10s", "%p"} {
		out += fmt.Sprintf(verb, v) + fmt.Sprintf(verb, &v) + fmt.Sprintf(verb, holder)
	}
	for _, leak := range []string{"hunter22", fmt.Sprintf("%x", "hunter22"), fmt.Sprintf("%X", "hunter22"), fmt.Sprint([]byte("hunter22"))} {
		if strings.Contains(out, leak) {
			t.Errorf("%q in %s", leak, out)
		}
	}
	if strings.Count(out, Shown) < 20 {
		t.Errorf("too little was printed to prove anything: %s", out)
	}
	if v.Reveal() != "hunter22" {
		t.Error("the value is lost")
	}
}

func TestWithin(t *testing.T) {
	closed, err := vault(t, environment()).Seal(account(), everywhere())
	if err != nil {
		t.Fatal(err)
	}
	for name := range closed {
		if sealed.Within(closed[name]) != (name != "login") {
			t.Errorf("%s: %v", name, sealed.Within(closed[name]))
		}
	}
	if !sealed.Within(closed) || sealed.Within(everywhere()) || sealed.Within(nil) || sealed.Within(map[string]any{"digest": "sha256:x"}) {
		t.Error("Within is wrong about a whole spec")
	}
}
