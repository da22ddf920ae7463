package engine_test

import (
	"context"
	"errors"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// slow answers observations late.
type slow struct{ providers.Kind }

func (k slow) List(ctx context.Context) iter.Seq2[providers.Thing, error] {
	return providertest.Look(k.Get).List(ctx)
}

func (k slow) Get(ctx context.Context, ids []string) ([]providers.Thing, error) {
	time.Sleep(25 * time.Second)
	return providertest.Of(k.Kind)(ctx, ids)
}

// While a list is silent, an event says what is waited for.
func TestSilentListIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := enginetest.New()
		var told []event.Observing
		e := s.Engine(func(o *engine.Options) {
			open := o.Open
			o.Open = func(ctx context.Context, site schema.Site, needs []providers.Need) (*providers.Set, error) {
				set, err := open(ctx, site, needs)
				set.Wrap(func(_ string, k providers.Served) providers.Kind {
					if k.Name == "far.guard" {
						return slow{k.Kind}
					}
					return k.Kind
				})
				return set, err
			}
			o.Emit = func(ev event.Event) {
				if ev, ok := ev.(event.Observing); ok && ev.Elapsed > 0 {
					told = append(told, ev)
				}
			}
		})
		defer e.Close()
		if _, err := e.Plan(context.Background(), s.Document(t, map[string]string{"site/far.guard/g": `{"size": 1}`, "site/far.net/n": `{}`}), plan.Options{}); err != nil {
			t.Fatal(err)
		}
		if len(told) == 0 || told[0].Kind != "far.guard" || told[0].More != 0 {
			t.Errorf("told was %+v, want that far.guard alone is waited for", told)
		}
	})
}

// unready fails the first reads of a key.
type unready struct {
	state.KV
	left int
}

func (k *unready) Get(ctx context.Context, key string) (state.Item, error) {
	if k.left > 0 {
		k.left--
		return state.Item{}, errors.New("no answer in time")
	}
	return k.KV.Get(ctx, key)
}

// A process that may wait for the lock may wait for a store that does not answer at once.
func TestLockWaitsForASlowStore(t *testing.T) {
	kv := &unready{KV: mem.New(mem.Options{}), left: 2}
	lock, err := state.New(kv, "test").Lock(context.Background(), state.LockInfo{}, state.LockOptions{Wait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Close(); err != nil {
		t.Error(err)
	}
	kv.left = 1
	if _, err := state.New(kv, "test").Lock(context.Background(), state.LockInfo{}, state.LockOptions{}); err == nil {
		t.Error("without time to wait, a store that did not answer gave its lock")
	}
}
