package secret

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strings"
	"testing"

	"converge.dev/converge/engine/secret/sealed"
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// careless is a provider that reveals everything that it receives.
type careless struct {
	things []providers.Thing
	way    string // echo, panic; empty: nothing goes wrong
	got    []providers.Call
}

func (c *careless) told(spec schema.Object) string {
	text := fmt.Sprint(spec)
	return text + " " + base64.StdEncoding.EncodeToString([]byte(text))
}

func (c *careless) List(ctx context.Context) iter.Seq2[providers.Thing, error] {
	return providertest.Look(c.Get).List(ctx)
}

func (c *careless) Get(context.Context, []string) ([]providers.Thing, error) {
	switch c.way {
	case "echo":
		return nil, &providers.Error{Op: "observe", Kind: "far.account", Class: providers.Denied, Err: errors.New(c.told(c.things[0].Spec))}
	case "panic":
		panic(c.told(c.things[0].Spec))
	}
	things := make([]providers.Thing, len(c.things))
	for i, t := range c.things {
		t.Spec, t.Detail = t.Spec.Clone(), "it has "+c.told(t.Spec)
		things[i] = t
	}
	return things, nil
}

func (c *careless) change(call providers.Call) error {
	c.got = append(c.got, call)
	switch c.way {
	case "echo":
		return &providers.Error{Op: "x", Ref: call.Ref, Class: providers.Busy, Err: errors.New(c.told(call.Want) + c.told(call.Have))}
	case "panic":
		panic(errors.New(c.told(call.Want) + c.told(call.Have)))
	}
	return nil
}

func (c *careless) Create(_ context.Context, call providers.Call) error { return c.change(call) }
func (c *careless) Update(_ context.Context, call providers.Call) error { return c.change(call) }
func (c *careless) Delete(_ context.Context, call providers.Call) error { return c.change(call) }

// TestWrap: a provider gets the values and returns none, whatever it does with them.
func TestWrap(t *testing.T) {
	env, k, ctx := environment(), account(), context.Background()
	ref := schema.Ref{Scope: "site", Kind: k.Name, Name: "a"}
	for _, way := range []string{"", "echo", "panic"} {
		v := vault(t, env)
		far := &careless{way: way, things: []providers.Thing{{ID: "1", Spec: values(env), Status: schema.Object{"seen": "generated-7"}}}}
		wrapped := v.Wrap(k, far)
		want, err := v.Seal(k, everywhere())
		if err != nil {
			t.Fatal(err)
		}
		have := schema.Object{"password": want["password"], "auth": map[string]any{"user": "bob", "token": map[string]any{}}}
		had := schema.Object{"password": want["password"], "auth": map[string]any{"user": "bob", "token": ""}}
		verbs := map[string]func(context.Context, providers.Call) error{"create": wrapped.Create, "update": wrapped.Update, "delete": wrapped.Delete}
		for op, verb := range verbs {
			var words string
			func() {
				defer func() {
					if p := recover(); p != nil {
						words = fmt.Sprintf("%v %#v", p, p)
					}
				}()
				if err := verb(ctx, providers.Call{Ref: ref, Want: want, Have: have}); err != nil {
					words = fmt.Sprintf("%v %#v", err, err)
					if providers.ClassOf(err) != providers.Busy {
						t.Errorf("%s, %s: class %s", op, way, providers.ClassOf(err))
					}
				}
			}()
			if (way == "") != (words == "") || way != "" && !strings.Contains(words, withheld) {
				t.Errorf("%s, %q: %s", op, way, words)
			}
			none(t, words, env)
			if strings.Contains(words, base64.StdEncoding.EncodeToString([]byte("echo-"))) {
				t.Errorf("%s: %s", op, words)
			}
			if got := far.got[len(far.got)-1]; got.Want["password"] != env["E"] || !reflect.DeepEqual(got.Have, had) || got.Want["login"] != "bob" {
				t.Errorf("%s: the provider got %v", op, got)
			}
		}
		none(t, text(t, want), env) // what the engine holds is unchanged
		things, err := providers.Collect(wrapped.List(ctx))
		switch {
		case way == "" && (err != nil || len(things) != 1 || sealed.Digest(things[0].Spec["password"]) != sealed.Digest(want["password"]) || !strings.Contains(things[0].Detail, Shown)):
			t.Errorf("observed: %v, %v", things, err)
		case way == "echo" && providers.ClassOf(err) != providers.Denied, way == "panic" && !strings.Contains(fmt.Sprint(err), "the provider panicked: "+withheld):
			t.Errorf("observed: %v", err)
		}
		none(t, fmt.Sprintf("%v %+v", things, err), env)
		none(t, fmt.Sprint(things), map[string]string{"": "generated-7"})
	}
}

// sharing is a provider that returns what it holds itself.
type sharing struct{ careless }

func (s *sharing) List(ctx context.Context) iter.Seq2[providers.Thing, error] {
	return providertest.Look(s.Get).List(ctx)
}

func (s *sharing) Get(context.Context, []string) ([]providers.Thing, error) {
	return slices.Clone(s.things), nil
}

// TestWrapSorts: what is observed has the form that is compared, and what the provider returned stays as it was.
func TestWrapSorts(t *testing.T) {
	k := &schema.Kind{Name: "far.net", Fields: []schema.Field{{Name: "peers", Type: schema.List, Elem: &schema.Field{Type: schema.String}, Set: true}}}
	theirs := schema.Object{"peers": []any{"b", "a"}}
	wrapped := vault(t, environment()).Wrap(k, &sharing{careless{things: []providers.Thing{{ID: "1", Spec: theirs}}}})
	listed, err := providers.Collect(wrapped.List(t.Context()))
	got, also := wrapped.Get(t.Context(), []string{"1"})
	for _, things := range [][]providers.Thing{listed, got} {
		if err := errors.Join(err, also); err != nil || len(things) != 1 || !things[0].Spec.Equal(schema.Object{"peers": []any{"a", "b"}}) {
			t.Errorf("observed: %v, %v", things, err)
		}
	}
	if !theirs.Equal(schema.Object{"peers": []any{"b", "a"}}) {
		t.Errorf("the provider's own became %v", theirs)
	}
}

// TestWrapWithholds: what a far side says after it was sent a secret is not repeated in any form, by the call or by a later
// observation; its class and its code are.
func TestWrapWithholds(t *testing.T) {
	env, k, ctx := environment(), account(), context.Background()
	reversed := func(s string) string {
		r := []rune(s)
		slices.Reverse(r)
		return string(r)
	}
	forms := map[string]func(string) string{
		"cut": func(s string) string { return s[:len(s)-2] }, "upper case": strings.ToUpper, "reversed": reversed,
		"of several lines": func(s string) string { return strings.Join(strings.Split(s, ""), "\n") }, "as it is": strings.Clone,
	}
	for name, form := range forms {
		for _, panics := range []bool{false, true} {
			v := vault(t, env)
			want, err := v.Seal(k, everywhere())
			if err != nil {
				t.Fatal(err)
			}
			leak := form(env["E"])
			far := &leaking{leak, panics}
			verbs := map[string]func(context.Context, providers.Call) error{"create": v.Wrap(k, far).Create, "update": v.Wrap(k, far).Update, "delete": v.Wrap(k, far).Delete}
			for op, verb := range verbs {
				for _, c := range []providers.Call{{Want: want}, {Have: want}} {
					words := caught(func() error { return verb(ctx, c) })
					if strings.Contains(words, leak) || !strings.Contains(words, withheld) {
						t.Errorf("%s, %s: %s", name, op, words)
					}
					if !panics && !strings.Contains(words, "invalid (InvalidArgument)") {
						t.Errorf("%s, %s: neither class nor code: %s", name, op, words)
					}
				}
			}
			if words := caught(func() error { _, err := providers.Collect(v.Wrap(k, far).List(ctx)); return err }); strings.Contains(words, leak) || !strings.Contains(words, withheld) {
				t.Errorf("%s, seen later: %s", name, words)
			}
			if words := caught(func() error { return v.Wrap(k, far).Create(ctx, providers.Call{Want: schema.Object{"login": "bob"}}) }); strings.Contains(words, env["E"]) || !strings.Contains(words, "400: bad") {
				t.Errorf("%s, of another call: %s", name, words)
			}
			// Without a secret in the call the words are repeated, unless they contain a known one.
			if words := caught(func() error {
				return vault(t, env).Wrap(k, far).Create(ctx, providers.Call{Want: schema.Object{"login": "bob"}})
			}); !strings.Contains(words, "400: bad") {
				t.Errorf("%s, without a secret: %s", name, words)
			}
		}
	}
}

// TestWrapKeepsItsOwn: a timeout is our own text, and is recognized in withheld words too; a code that is no word is not repeated.
func TestWrapKeepsItsOwn(t *testing.T) {
	env, k := environment(), account()
	v := vault(t, env)
	want, err := v.Seal(k, everywhere())
	if err != nil {
		t.Fatal(err)
	}
	for code, told := range map[string]bool{"DeadlineExceeded": true, env["E"] + "!": false} {
		err := v.Wrap(k, failing{&providers.Error{Class: providers.Unknown, Code: code, Err: fmt.Errorf("%s: %w", env["E"][1:], context.DeadlineExceeded)}}).Create(context.Background(), providers.Call{Want: want})
		if !errors.Is(err, context.DeadlineExceeded) || providers.ClassOf(err) != providers.Unknown || strings.Contains(err.Error(), code) != told || strings.Contains(err.Error(), env["E"][1:]) {
			t.Errorf("%v", err)
		}
	}
}

func caught(do func() error) (words string) {
	defer func() {
		if p := recover(); p != nil {
			words = fmt.Sprintf("%v %#v", p, p)
		}
	}()
	if err := do(); err != nil {
		return fmt.Sprintf("%v %#v", err, err)
	}
	return ""
}

// leaking fails every call with the same words.
type leaking struct {
	words  string
	panics bool
}

func (l *leaking) fail() error {
	if l.panics {
		panic("400: bad " + l.words)
	}
	return fmt.Errorf("bad %s: %w", l.words, &providers.Error{Op: "x", Class: providers.Invalid, Code: "InvalidArgument", Err: errors.New("400: bad " + l.words)})
}

func (l *leaking) List(ctx context.Context) iter.Seq2[providers.Thing, error] {
	return providertest.Look(l.Get).List(ctx)
}

func (l *leaking) Get(context.Context, []string) ([]providers.Thing, error) { return nil, l.fail() }
func (l *leaking) Create(context.Context, providers.Call) error             { return l.fail() }
func (l *leaking) Update(context.Context, providers.Call) error             { return l.fail() }
func (l *leaking) Delete(context.Context, providers.Call) error             { return l.fail() }

// failing fails every call with one error.
type failing struct{ err error }

func (f failing) List(ctx context.Context) iter.Seq2[providers.Thing, error] {
	return providertest.Look(f.Get).List(ctx)
}

func (f failing) Get(context.Context, []string) ([]providers.Thing, error) { return nil, f.err }
func (f failing) Create(context.Context, providers.Call) error             { return f.err }
func (f failing) Update(context.Context, providers.Call) error             { return f.err }
func (f failing) Delete(context.Context, providers.Call) error             { return f.err }

// TestWrapRefuses: a call whose secrets cannot be opened is not made.
func TestWrapRefuses(t *testing.T) {
	env, k := environment(), account()
	v := vault(t, env)
	want, err := v.Seal(k, everywhere())
	if err != nil {
		t.Fatal(err)
	}
	env["E"] = "rotated-99"
	far := &careless{}
	err = v.Wrap(k, far).Create(context.Background(), providers.Call{Want: want})
	if providers.ClassOf(err) != providers.Conflict || !errors.Is(err, ErrChanged) || len(far.got) != 0 {
		t.Errorf("%v, %d calls", err, len(far.got))
	}
}

// TestForesee: why something cannot be deleted is told without secrets.
func TestForesee(t *testing.T) {
	env, k := environment(), account()
	v := vault(t, env)
	if _, err := v.Seal(k, everywhere()); err != nil {
		t.Fatal(err)
	}
	of := providers.Target{Kind: k.Name, ID: "1"}
	found, err := v.Foresee(func(context.Context, []providers.Target, []providers.Target) ([]providers.Obstacle, error) {
		return []providers.Obstacle{{Target: of, Why: "used by " + fmt.Sprint(values(env))}}, errors.New(fmt.Sprint(values(env)))
	})(context.Background(), []providers.Target{of}, nil)
	if len(found) != 1 || found[0].Target != of || !strings.HasPrefix(found[0].Why, "used by ") || err == nil {
		t.Fatalf("%v, %v", found, err)
	}
	none(t, found[0].Why+err.Error(), env)
	if v.Foresee(nil) != nil {
		t.Error("a provider that tells nothing is said to tell something")
	}
}

// TestRecall: what is only recorded is known after Recall; what is no longer readable silences the kind's observations.
func TestRecall(t *testing.T) {
	env, k := environment(), account()
	closed, err := vault(t, env).Seal(k, everywhere())
	if err != nil {
		t.Fatal(err)
	}
	observe := func(env map[string]string) error {
		v := vault(t, env)
		v.Recall(k, closed)
		_, err := providers.Collect(v.Wrap(k, &careless{way: "echo", things: []providers.Thing{{Spec: values(environment())}}}).List(context.Background()))
		if providers.ClassOf(err) != providers.Denied {
			t.Errorf("class %s", providers.ClassOf(err))
		}
		none(t, fmt.Sprint(err), environment())
		return err
	}
	if err := observe(env); !strings.Contains(err.Error(), Shown) || strings.Contains(err.Error(), withheld) {
		t.Errorf("all are known: %v", err)
	}
	env["E"] = "rotated-99"
	if err := observe(env); !strings.Contains(err.Error(), withheld) {
		t.Errorf("one was rotated: %v", err)
	}
	if err := observe(nil); !strings.Contains(err.Error(), withheld) {
		t.Errorf("none can be read: %v", err)
	}
}
