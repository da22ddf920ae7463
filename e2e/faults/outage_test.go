package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/state"
)

// An outage begins when a call of an apply arrives: all connections break, including that of the call, and nothing listens for
// a while; or the service continues to answer, but accepts no changes, as during a failover of its database.
type outage struct {
	at    int // the call, from 1; 0: there is none
	lasts time.Duration
	reads bool     // continue
	stops []string // the methods that do not, in that case

	mu    sync.Mutex
	calls []string // all of the apply
}

// meet counts a call, and begins the outage with it.
func (o *outage) meet(c *cell, method string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.calls = append(o.calls, method); len(o.calls) != o.at {
		return
	}
	if o.reads {
		for _, m := range o.stops {
			if err := c.world.Inject(carbidesim.Fault{Method: m, Effect: carbidesim.Before, Code: codes.Unavailable, Times: always}); err != nil {
				c.Error(err)
			}
		}
		time.AfterFunc(o.lasts, c.world.ClearFaults)
	} else {
		c.dark.Store(true)
		c.cut()
		time.AfterFunc(o.lasts, func() { c.dark.Store(false) })
	}
}

// endure applies a scene with the outage, continues afterwards where the run was left open, and reports whether it was.
func (o *outage) endure(c *cell) (resumed bool) {
	met := func(method string) { o.meet(c, method) }
	e := c.process()
	defer e.Close()
	p, err := e.Plan(context.Background(), c.scene.last, plan.Options{})
	if err != nil {
		c.Fatal(err)
	}
	c.met.Store(&met)
	res, err := e.Apply(context.Background(), p, engine.ApplyOptions{Approve: p.Approval()})
	var unseen *engine.UnknownError
	switch {
	case errors.As(err, &unseen): // nothing was begun
		time.Sleep(o.lasts)
		res, err = e.Apply(context.Background(), p, engine.ApplyOptions{Approve: p.Approval()})
	case err != nil:
		resumed = true
		if res.Run.Status != state.RunOpen {
			c.Fatalf("the run was left %s: %s (%v)", res.Run.Status, res.Run.Message, err)
		}
		time.Sleep(o.lasts)
		res, err = e.Resume(context.Background(), "", engine.ApplyOptions{})
	}
	c.met.Store(nil)
	time.Sleep(o.lasts) // it may have begun with a call that the run could do without
	if err != nil || res.Run.Status != state.RunApplied {
		c.Fatalf("call %d, %s: it ended %s: %s (%v)\n%s", o.at, o.lasts, res.Run.Status, res.Run.Message, err, strings.Join(o.calls, "\n"))
	}
	c.last = c.see()
	return resumed
}

// E: an outage of any length, at every call of an apply of every scene, ends no run and undoes nothing.
func TestTortureCarbideOutages(t *testing.T) {
	var cells, resumed atomic.Int64
	t.Cleanup(func() {
		torture.Report(t, "E", "Carbide: %d outages of 1 s, 10 s and 3 min, at the calls of an apply of every scene: nothing undone, %d runs resumed", cells.Load(), resumed.Load())
	})
	changes, _ := called(t)
	lengths := []time.Duration{time.Second, 10 * time.Second, 3 * time.Minute}
	for nth, s := range scenes(t) {
		t.Run(strings.ReplaceAll(s.String(), " ", "-"), func(t *testing.T) {
			t.Parallel()
			play := func(o *outage) (changes []string) {
				synctest.Test(t, func(t *testing.T) {
					c := &cell{T: t, scene: s}
					defer c.end()
					c.begin()
					if o.endure(c) {
						resumed.Add(1)
					}
					for _, m := range o.calls {
						if changing(m) {
							changes = append(changes, m)
						}
					}
					if end := c.settled(); end != "clean" {
						t.Errorf("call %d, %s: afterwards %s", o.at, o.lasts, end)
					}
				})
				return changes
			}
			calm := &outage{}
			wanted := play(calm)
			stride := torture.Scale(6*len(calm.calls), 7, 1) // each length starts at another call
			for i := nth % stride; i < 2*len(lengths)*len(calm.calls); i += stride {
				o := &outage{at: i/2/len(lengths) + 1, lasts: lengths[i/2%len(lengths)], reads: i%2 == 0, stops: changes}
				at := fmt.Sprintf("%s at call %d, %s, reads go on: %t", o.lasts, o.at, calm.calls[o.at-1], o.reads)
				for _, m := range play(o) {
					if !slices.Contains(wanted, m) {
						t.Errorf("%s: it calls %s, which it has no reason to", at, m)
					}
				}
				if t.Failed() {
					t.Fatal(at)
				}
				cells.Add(1)
			}
		})
	}
}
