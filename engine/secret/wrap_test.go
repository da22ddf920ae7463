package secret

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"

	"converge.dev/converge/engine/secret/sealed"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// careless is a provider that tells everything that it is given.
type careless struct {
	things []providers.Thing
	way    string // echo, panic; empty: nothing goes wrong
	got    []providers.Call
}

func (c *careless) told(spec schema.Object) string {
	text := fmt.Sprint(spec)
	return text + " " + base64.StdEncoding.EncodeToString([]byte(text))
}

func (c *careless) Observe(context.Context, []string) ([]providers.Thing, error) {
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

// TestWrap: a provider gets the values and gives none back, whatever it does with them.
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
		have := schema.Object{"password": want["password"]}
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
			if (way == "") != (words == "") || way != "" && !strings.Contains(words, Shown) {
				t.Errorf("%s, %q: %s", op, way, words)
			}
			none(t, words, env)
			if strings.Contains(words, base64.StdEncoding.EncodeToString([]byte("echo-"))) {
				t.Errorf("%s: %s", op, words)
			}
			if got := far.got[len(far.got)-1]; got.Want["password"] != env["E"] || got.Have["password"] != env["E"] || got.Want["login"] != "bob" {
				t.Errorf("%s: the provider got %v", op, got)
			}
		}
		none(t, text(t, want), env) // what the engine holds is as it was
		things, err := wrapped.Observe(ctx, nil)
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

// TestRecall: what is only recorded is known after Recall; what cannot be read any more silences the kind's observations.
func TestRecall(t *testing.T) {
	env, k := environment(), account()
	closed, err := vault(t, env).Seal(k, everywhere())
	if err != nil {
		t.Fatal(err)
	}
	observe := func(env map[string]string) error {
		v := vault(t, env)
		v.Recall(k, closed)
		_, err := v.Wrap(k, &careless{way: "echo", things: []providers.Thing{{Spec: values(environment())}}}).Observe(context.Background(), nil)
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
