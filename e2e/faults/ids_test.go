package faults

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// What is created again, after the document or an undo removed it, has another id than before, for every kind whose ids the
// engine chooses: a delete that arrives late hits nothing newer.
func TestNoIDTwice(t *testing.T) {
	chosen := 0
	for _, s := range scenes(t) {
		if s.way != "create" || s.ref.Kind == "carbide.dpu_extension_service" { // which never releases a name
			continue
		}
		t.Run(strings.ReplaceAll(s.name, " ", "-"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &cell{T: t, scene: s}
				defer c.end()
				c.begin()
				if c.traits.ID != "" {
					return
				}
				chosen++
				used := map[string]string{}
				converge := func(when string) {
					t.Helper()
					c.must(c.scene.last)
					r, err := c.store.Record(context.Background(), c.ref)
					if err != nil {
						t.Fatal(err)
					}
					if was := used[r.ID]; was != "" {
						t.Errorf("it has the id %s %s, which it had %s", r.ID, when, was)
					}
					used[r.ID] = when
				}
				converge("at first")
				c.must(c.scene.first)
				converge("after the document removed it")
				if got := c.rollback(); got.Run.Status != state.RunReverted {
					t.Fatalf("it ended %s: %s", got.Run.Status, got.Run.Message)
				}
				enginetest.Release(t, c.store)
				converge("after an undo removed it")
			})
		})
	}
	if chosen < 10 {
		t.Errorf("only %d kinds have ids that are chosen", chosen)
	}
}

// must applies a document.
func (c *cell) must(d *schema.Document) {
	c.Helper()
	if got := c.apply(d, nil); got.Run.Status != state.RunApplied {
		c.Fatalf("it ended %s: %s", got.Run.Status, got.Run.Message)
	}
}
