package engine_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// What an engine has opened stays open until it is closed: only what is missing is opened, and failed openings are retried
// when needed again.
func TestProvidersStayOpen(t *testing.T) {
	far, n1, n2 := providers.Need{Scope: schema.ScopeSite, Provider: "far"}, providers.Need{Scope: "n1", Provider: "near"}, providers.Need{Scope: "n2", Provider: "near"}
	away := map[providers.Need]bool{n2: true}
	var asked []providers.Need
	closed := map[providers.Need]int{}
	s := enginetest.New()
	e := s.Engine(func(o *engine.Options) {
		open := o.Open
		o.Open = func(ctx context.Context, site schema.Site, needs []providers.Need) (*providers.Set, error) {
			asked = append(asked, needs...)
			set, err := open(ctx, site, slices.DeleteFunc(slices.Clone(needs), func(n providers.Need) bool { return away[n] }))
			if err != nil {
				return nil, err
			}
			for _, n := range needs {
				if away[n] {
					set.Fail(n.Scope, n.Provider, errors.New("it is away"))
				}
			}
			for _, p := range set.All() {
				n, release := providers.Need{Scope: p.Scope, Provider: p.Name}, p.Close
				p.Close = func() error { closed[n]++; return release() }
			}
			return set, nil
		}
	})
	steps := map[string]string{"site/far.net/n": `{}`}
	for _, c := range []struct {
		also           string // is declared from here on
		back           providers.Need
		want           []providers.Need
		steps, unknown int
	}{
		{"", providers.Need{}, []providers.Need{far}, 1, 0},
		{"", providers.Need{}, nil, 1, 0},
		{"n1/near.bridge/b", providers.Need{}, []providers.Need{n1}, 2, 0},
		{"n2/near.bridge/b", providers.Need{}, []providers.Need{n2}, 2, 1},
		{"", providers.Need{}, []providers.Need{n2}, 2, 1},
		{"", n2, []providers.Need{n2}, 3, 0},
		{"", providers.Need{}, nil, 3, 0},
	} {
		if c.also != "" {
			steps[c.also] = `{}`
		}
		delete(away, c.back)
		asked = nil
		p, err := e.Plan(t.Context(), s.Document(t, steps), plan.Options{})
		if err != nil || len(p.Steps) != c.steps || len(p.Unknown) != c.unknown {
			t.Fatalf("%v: %v\n%s", c, err, enginetest.Text(p))
		}
		if !slices.Equal(asked, c.want) || len(closed) > 0 {
			t.Errorf("%v: %v were opened, want %v; closed %v", c, asked, c.want, closed)
		}
	}
	if err := e.Close(); err != nil || closed[far] != 1 || closed[n1] != 1 || closed[n2] != 1 {
		t.Errorf("closed %v, %v", closed, err)
	}
}
