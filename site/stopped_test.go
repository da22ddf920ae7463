package site_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/site"
	"converge.dev/converge/state"
)

// Who stops a run in the middle is told that the site is held, never that it failed.
func TestStoppedInTheMiddle(t *testing.T) {
	for name, c := range map[string]struct {
		stop func(*bed) error
		goOn func(*bed) error
		why  string
	}{
		"freeze": {
			func(b *bed) error { return b.Store.SetFreeze(b.t.Context(), true, "me@here", "switch upgrade") },
			func(b *bed) error { return b.Store.SetFreeze(b.t.Context(), false, "me@here", "") }, "frozen: switch upgrade",
		},
		"hold of a node": {
			func(b *bed) error { return b.Store.Hold(b.t.Context(), "n1", "me@here", "a disk") },
			func(b *bed) error { return b.Store.Release(b.t.Context(), "n1", "me@here", "") }, "n1 is on hold: a disk",
		},
		"cancel": {
			func(b *bed) error {
				holder, err := b.Store.LockInfo(b.t.Context())
				if err == nil {
					err = b.Store.Ask(b.t.Context(), state.ToCancel, *holder, "me@here")
				}
				return err
			}, nil, "is open",
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bed) {
				b.World.Hook = func(op string, at fake.Moment, _ providers.Call) {
					if op == "create" && at == fake.Before {
						time.Sleep(10 * time.Second)
					}
				}
				b.put(map[string]string{"site/far.net/a": `{"size": 1}`, "n1/near.bridge/br": `{"size": 1}`})
				d := b.docs[b.newest().Digest]
				for i := range d.Resources { // one after the other
					if d.Resources[i].Ref.Kind == "near.bridge" {
						d.Resources[i].After = append(d.Resources[i].After, d.Resources[1-i].Ref)
					}
				}
				k := b.start(site.Enforce)
				defer k.ends()
				time.Sleep(5 * time.Second)
				if err := c.stop(b); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				b.stands(site.Held, c.why)
				b.mu.Lock()
				phases := slices.Clone(b.phases)
				b.mu.Unlock()
				if slices.Contains(phases, string(site.Failed)) || len(phases) > 20 {
					t.Errorf("the site was %v", phases)
				}
				if c.goOn == nil {
					return
				}
				if err := c.goOn(b); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				b.stands(site.InSync, "")
				b.has("n1", "near.bridge", "br", "size", 1)
			})
		})
	}
}

// What has to be confirmed, and whose process has ended before anybody did, is undone by the site agent.
func TestUnconfirmedRunIsUndone(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		b.Converge(t, b.put(map[string]string{"n1/near.bridge/br": `{"size": 1}`}))
		k := b.start(site.Enforce)
		defer k.ends()
		b.stands(site.InSync, "")
		e := b.Engine(nil)
		defer e.Close()
		d := b.Document(t, map[string]string{"n1/near.bridge/br": `{"size": 2}`})
		b.mu.Lock()
		b.docs[d.Digest] = d
		b.mu.Unlock()
		p, err := e.Plan(t.Context(), d, plan.Options{})
		if err != nil {
			t.Fatal(err)
		}
		interrupt, ended := make(chan struct{}), make(chan error, 1)
		go func() {
			_, err := e.Apply(t.Context(), p, engine.ApplyOptions{Confirm: 5 * time.Minute, Interrupt: interrupt, Approve: p.Approval()})
			ended <- err
		}()
		time.Sleep(time.Minute)
		b.has("n1", "near.bridge", "br", "size", 2)
		close(interrupt)
		if err := <-ended; !errors.Is(err, engine.ErrInterrupted) {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		b.has("n1", "near.bridge", "br", "size", 1)
		if runs := b.runs(); runs[0].Status != state.RunReverted || !runs[0].Unconfirmed {
			t.Errorf("the run ended %s: %s", runs[0].Status, runs[0].Message)
		}
	})
}
