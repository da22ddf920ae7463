package remote_test

import (
	"context"
	"testing"

	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// TestLaws: a provider on a node obeys the contract as seen from the site.
func TestLaws(t *testing.T) {
	switches := []providertest.Made{{Kind: "lab.switch", Name: "s1", Spec: schema.Object{}}, {Kind: "lab.switch", Name: "s2", Spec: schema.Object{}}}
	providertest.Run(t, providertest.Suite{
		Kinds: kinds, Direct: true, Parallel: true,
		Cases: []providertest.Case{{
			Kind: "lab.switch", Name: "s1",
			Want:    schema.Object{"enabled": true, "attach": map[string]any{"type": "hard"}},
			Update:  schema.Object{"enabled": false, "attach": map[string]any{"type": "hard"}, "extra": []any{int64(1), nil}},
			Invalid: schema.Object{"enabled": "perhaps"},
		}, {
			Kind: "lab.cable", Name: "c1", Needs: switches,
			Want: schema.Object{"ends": []any{"s1", "s2"}}, Update: schema.Object{"ends": []any{"s2"}},
		}, {
			Kind: "lab.disk", Name: "d1", Want: schema.Object{"size": int64(1)}, Update: schema.Object{"size": int64(2)},
		}, {
			Kind: "lab.page", Name: "p1", Single: true, Want: schema.Object{"count": int64(0)}, Update: schema.Object{"count": int64(8)},
		}},
		Open: func(t *testing.T) providertest.World {
			w := newWorld()
			if err := w.Put(nodeName, "lab.page", providers.Thing{ID: "p1", Name: "p1", Spec: schema.Object{"count": int64(0)}}); err != nil {
				t.Fatal(err)
			}
			n := newNode(t, w)
			s := n.site()
			return providertest.World{
				Provider: s.p, Dump: w.Dump, Late: true,
				Advance: func() {
					if err := w.Land(); err != nil {
						t.Error(err)
					}
				},
				Meddle: func(kind, id string) {
					things, err := s.kind(kind).Get(context.WithoutCancel(t.Context()), []string{id})
					if err != nil || len(things) != 1 {
						t.Fatal(things, err)
					}
					things[0].Detail = "meddled"
					if err := w.Put(nodeName, kind, things[0]); err != nil {
						t.Error(err)
					}
				},
			}
		},
	})
}
