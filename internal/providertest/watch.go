package providertest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// watchLaws are those of kinds whose far side tells of changes.
var watchLaws = []law{
	{"what changes is told", nil, told},
	{"a watch ends", nil, watchEnds},
	{"a watch holds up nobody", creates, watchApart},
}

// told makes every kind of change under the eyes of one who sees only what the watch tells.
func told(b *bench) {
	m := b.mine()
	f := b.follow()
	th := b.make(m) // while the watch begins
	f.agrees("after create")
	if updates(b.traits, b.c) {
		b.must("update", b.updating(m, th, b.c.Want, b.c.Update))
		b.settled(m)
		f.agrees("after update")
	}
	if b.world.Meddle != nil {
		b.world.Meddle(m.Kind, m.ID)
		f.agrees("after a change by somebody else")
	}
	if plural(b.traits, b.c) && deletes(b.traits, b.c) {
		many := 10
		if limit := b.world.Provider.Limit; limit > 0 { // a world that small may have no room for more
			many = min(many, limit-1) // mine is there too
		}
		for i := range many {
			other := b.other(1 + i)
			th := b.make(other)
			if i%2 == 0 {
				b.must("delete", b.deleting(other, th))
				b.gone(other)
			}
		}
		f.agrees("after many changes")
	}
	if deletes(b.traits, b.c) {
		b.must("delete", b.deleting(m, b.settled(m)))
		b.gone(m)
		f.agrees("after delete")
	}
}

// A follower looks at what a watch tells it of, and at nothing else.
type follower struct {
	*bench
	mu    sync.Mutex
	seen  map[string]providers.Thing
	err   error
	moved chan struct{} // closed when it has looked again, or the watch has ended
}

func (b *bench) follow() *follower {
	f := &follower{bench: b, seen: map[string]providers.Thing{}, moved: make(chan struct{})}
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() {
		ended := errors.New("it ended without an error")
		for ids, err := range b.served.Watch(ctx) {
			var things []providers.Thing
			if err == nil {
				things, err = f.look(ctx, ids)
			}
			if err != nil {
				ended = err
				break
			}
			f.move(func() {
				if len(ids) == 0 {
					clear(f.seen)
				}
				for _, id := range ids {
					delete(f.seen, id)
				}
				for _, th := range things {
					f.seen[th.ID] = th
				}
			})
		}
		f.move(func() { f.err = ended })
	})
	b.Cleanup(func() { cancel(); running.Wait() })
	return f
}

func (f *follower) look(ctx context.Context, ids []string) ([]providers.Thing, error) {
	if len(ids) == 0 {
		return providers.Collect(f.served.Kind.List(ctx))
	}
	return f.served.Kind.Get(ctx, ids)
}

func (f *follower) move(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	close(f.moved)
	f.moved = make(chan struct{})
}

// agrees waits until the follower has seen what is there.
func (f *follower) agrees(when string) {
	f.Helper()
	late := time.After(f.patience)
	for over := false; ; {
		f.mu.Lock()
		moved := f.moved
		f.mu.Unlock()
		there := map[string]providers.Thing{}
		for _, th := range f.list(f.c.Kind) {
			there[th.ID] = th
		}
		f.mu.Lock()
		seen, err := maps.Clone(f.seen), f.err
		f.mu.Unlock()
		d := cmp.Diff(there, seen)
		switch {
		case d == "":
			return
		case err != nil:
			f.Fatalf("%s the watch has ended: %v", when, err)
		case over:
			f.Fatalf("%s, following the watch shows something else than what is there (-there +seen):\n%s", when, d)
		}
		select {
		case <-moved:
		case <-late:
			over = true
		}
	}
}

// watchEnds: with its context, and when the caller leaves.
func watchEnds(b *bench) {
	why := errors.New("it is not wanted any more")
	for begun := range 2 {
		ctx, cancel := context.WithCancelCause(b.Context())
		if begun == 0 {
			cancel(why)
		}
		var last error
		b.soon("a watch does not end with its context", func() {
			for _, err := range b.served.Watch(ctx) {
				if last != nil {
					b.Errorf("after its error the watch goes on")
				}
				last = err
				cancel(why)
			}
		})
		if b.checkError("watch", schema.Ref{}, b.c.Kind, last); !errors.Is(last, why) {
			b.Errorf("when its context ends the watch ends with %v", last)
		}
	}
	for range 2 + b.world.Provider.Limit { // it releases what it has taken
		b.soon("a watch does not end when its caller leaves", func() {
			for ids, err := range b.served.Watch(b.Context()) {
				if err != nil || len(ids) > 0 {
					b.Errorf("a watch begins with the ids %q and error %v, want none", ids, err)
				}
				break
			}
		})
	}
}

// soon runs what has to return without anything going on over there.
func (b *bench) soon(not string, run func()) {
	b.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		run()
	}()
	select {
	case <-done:
	case <-time.After(b.patience):
		b.Fatal(not)
	}
}

// watchApart: calls go on while more watches than there may be calls are open, and none of their callers takes an event.
func watchApart(b *bench) {
	m := b.mine()
	var open, running sync.WaitGroup
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan struct{})
	b.Cleanup(func() { cancel(); running.Wait() })
	told := make([]bool, 1+b.world.Provider.Limit)
	for i := range told {
		open.Add(1)
		opened := sync.OnceFunc(open.Done)
		running.Go(func() {
			defer opened()
			begun := false
			for ids, err := range b.served.Watch(ctx) {
				switch {
				case err != nil:
					b.Errorf("the watch ended: %v", err)
				case !begun:
					begun = true
					opened()
					select {
					case <-done:
					case <-ctx.Done():
					}
				case len(ids) == 0 || slices.Contains(ids, m.ID):
					told[i] = true
					return
				}
			}
		})
	}
	open.Wait()
	th := b.make(m)
	if updates(b.traits, b.c) {
		b.must("update", b.updating(m, th, b.c.Want, b.c.Update))
	}
	close(done)
	b.soon("what happened while nobody took an event is not told", running.Wait)
	if slices.Contains(told, false) {
		b.Errorf("not every watch told of the change")
	}
}
