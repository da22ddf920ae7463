package load

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// A policy is evaluated for every resource, and stored with every plan that waits: its lists are bounded.
func TestPolicyIsBounded(t *testing.T) {
	s := embedded(t)
	list := func(n int, of func(i int) any) (all []any) {
		for i := range n {
			all = append(all, of(i))
		}
		return all
	}
	rule := func(key string, words []any) map[string]any {
		return map[string]any{"reconcile": []any{map[string]any{"mode": "observe", key: words}}}
	}
	for _, c := range []struct {
		field string
		most  int
		make  func(n int) map[string]any
	}{
		{"policy.approvals.by", 64, func(n int) map[string]any {
			return map[string]any{"approvals": map[string]any{"by": list(n, func(i int) any { return fmt.Sprintf("p%d", i) })}}
		}},
		{"policy.reconcile", 256, func(n int) map[string]any {
			return map[string]any{"reconcile": list(n, func(int) any { return map[string]any{"mode": "observe"} })}
		}},
		{"policy.reconcile.0.kinds", 256, func(n int) map[string]any {
			return rule("kinds", list(n, func(i int) any { return "carbide.*" }))
		}},
		{"policy.reconcile.0.scopes", 1024, func(n int) map[string]any {
			return rule("scopes", list(n, func(i int) any { return fmt.Sprintf("n%d-*", i) }))
		}},
	} {
		for n, fits := range map[int]bool{c.most: true, c.most + 1: false} {
			body, err := json.Marshal(map[string]any{
				"apiVersion": "converge.dev/v1", "site": map[string]any{"name": "fra1", "id": "5a2f0c9e-7d41-4c8b-9a36-1b0e5d7f2c44"}, "policy": c.make(n),
			})
			if err != nil {
				t.Fatal(err)
			}
			doc, ds := Document(context.Background(), s, Options{}, Source{Name: "site.json", Data: body})
			if accepted := doc != nil && !ds.HasErrors(); accepted != fits {
				t.Errorf("%s with %d elements: accepted %v, want %v: %v", c.field, n, accepted, fits, ds)
			}
			if !fits && (len(ds) != 1 || !strings.Contains(fmt.Sprint(ds[0]), c.field)) {
				t.Errorf("%s with %d elements: %v", c.field, n, ds)
			}
		}
	}
}
