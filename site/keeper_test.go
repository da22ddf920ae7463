package site_test

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/drift"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/site"
)

// replica returns an agent as one of several processes has it.
func (b *bed) replica(emit event.Sink) *site.Agent {
	e := b.Engine(func(o *engine.Options) {
		o.Open = b.open
		if emit != nil {
			o.Emit = emit
		}
	})
	b.t.Cleanup(func() { _ = e.Close() })
	return site.New(site.Options{
		Engine: e, Store: b.Store, Mode: site.Observe, Sweep: sweep, Logger: slog.New(slog.NewTextHandler(&locked{b: b}, nil)),
		Inbox: func(context.Context) error { return nil }, Desired: b.desired,
		Mask:    func(r *drift.Report) *drift.Report { return r },
		Reached: func() []providers.Need { return b.reached },
		Renewed: func() []string { return nil },
	})
}

// keeps has an agent keep the site while something happens.
func (b *bed) keeps(a *site.Agent, during func()) {
	ctx, stop := context.WithCancelCause(context.Background())
	over := make(chan error, 1)
	go func() { over <- a.Run(ctx) }()
	synctest.Wait()
	during()
	synctest.Wait()
	stop(io.EOF)
	<-over
}

// A process that keeps the site again replaces what another has published meanwhile.
func TestKeepsAgain(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		b.Converge(t, b.put(map[string]string{"site/far.guard/g": `{"size": 1}`}))
		one, two := b.replica(nil), b.replica(nil)
		b.keeps(one, func() {})
		b.keeps(two, func() { b.meddle("site", "far.guard", "g", schema.Object{"size": int64(2)}) })
		if r := b.drift(); r.Clean() {
			t.Fatal("no drift is reported")
		}
		b.meddle("site", "far.guard", "g", schema.Object{"size": int64(1)})
		b.keeps(one, func() {})
		if r := b.drift(); !r.Clean() {
			t.Errorf("it is reported still: %+v", r)
		}
	})
}

// However often something makes the agent look, everything is looked at again within a sweep.
func TestSweepIsNotPutOff(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		b.Converge(t, b.put(map[string]string{"site/far.guard/g": `{"size": 1}`}))
		begin, last, longest := time.Now(), time.Duration(0), time.Duration(0)
		a := b.replica(func(e event.Event) {
			if o, ok := e.(event.Observing); ok && o.Kind == "far.guard" && o.Elapsed == 0 {
				now := time.Since(begin)
				last, longest = now, max(longest, now-last)
			}
		})
		b.keeps(a, func() {
			for range 20 {
				time.Sleep(sweep*9/10 - 10*time.Second)
				a.Look()
				synctest.Wait()
			}
		})
		if longest > sweep || last == 0 {
			t.Errorf("it was looked at last after %v, and at times after %v", last, longest)
		}
	})
}
