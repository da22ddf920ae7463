package site_test

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/site"
)

// A node that can be observed, and does not answer when a run begins, does not keep the others from being kept.
func TestSilentWhenFenced(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		var hangs atomic.Bool
		hangs.Store(true)
		b.wrap = func(p *providers.Provider) {
			if p.Scope == "n2" {
				p.Confined, p.Fence = true, func(ctx context.Context, _ int64) error {
					if hangs.Load() {
						<-ctx.Done()
					}
					return context.Cause(ctx)
				}
			}
		}
		b.put(map[string]string{"n1/near.bridge/a": `{}`, "n2/near.bridge/b": `{}`})
		k := b.start(site.Enforce)
		defer k.ends()
		time.Sleep(time.Minute)
		synctest.Wait()
		if b.thing("n1", "near.bridge", "a") == nil {
			t.Errorf("nothing was done on n1:\n%s", b.logged())
		}
		b.stands(site.Unknown, "n2")
		hangs.Store(false)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if b.thing("n2", "near.bridge", "b") == nil {
			t.Errorf("nothing was done on n2:\n%s", b.logged())
		}
		b.stands(site.InSync, "")
	})
}

// A report that is too large for the store is published in part, and the site is kept all the same.
func TestLargeReport(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		b.put(map[string]string{"n1/near.bridge/a": `{"size": 1}`})
		k := b.start(site.Enforce)
		defer k.ends()
		for i := range 40 {
			if err := b.World.Put("n1", "near.bridge", providers.Thing{ID: fmt.Sprint("x", i), Name: strings.Repeat("x", 50_000) + fmt.Sprint(i), Spec: schema.Object{}, Phase: providers.Ready}); err != nil {
				t.Fatal(err)
			}
		}
		b.meddle("n1", "near.bridge", "a", schema.Object{"size": int64(7)})
		synctest.Wait()
		b.has("n1", "near.bridge", "a", "size", 1)
		if r := b.drift(); r.Omitted == 0 || len(r.Unmanaged)+r.Omitted != 40 {
			t.Errorf("%d are listed and %d left out", len(r.Unmanaged), r.Omitted)
		}
	})
}

// Changes that never end cost a round in a second, and not all of the processor.
func TestEndlessChanges(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		b.put(map[string]string{"n1/near.bridge/a": `{"size": 1}`})
		var looks atomic.Int32
		b.wrap = func(p *providers.Provider) {
			if p.Scope == "n1" {
				for i := range p.Kinds {
					p.Kinds[i].Kind = counted{p.Kinds[i].Kind, &looks}
				}
			}
		}
		k := b.start(site.Observe)
		defer k.ends()
		for range 3_000 {
			time.Sleep(10 * time.Millisecond)
			k.Look()
			synctest.Wait()
		}
		if n := looks.Load(); n > 600 {
			t.Errorf("in half a minute there were %d lists", n)
		}
	})
}

// counted counts lists.
type counted struct {
	providers.Kind
	lists *atomic.Int32
}

func (c counted) List(ctx context.Context) iter.Seq2[providers.Thing, error] {
	c.lists.Add(1)
	return c.Kind.List(ctx)
}
