package providers

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"

	"converge.dev/converge/schema"
)

// A Watch tells when things of a kind may have changed: each event is the external ids of some, and one without ids means any of
// them. Events are hints and no facts: they come late, twice and for nothing, and whoever gets one looks.
//
// No change is missed. The first event has no ids, and comes once everything that changes from then on is told: whoever looks
// at all things then, and after each event at those that it means, has seen every thing as it is once the last event was
// followed. What counts as a change is that a look shows something else than one before: another spec, status or phase, or
// that a thing has come or is gone.
//
// A far side never waits for the caller: what happens until the caller asks for the next event is one event. A watch ends with
// an error, after which there is no event: context.Cause of ctx when that is done, or the reason why it cannot tell any more,
// such as a lost connection. Then anything may have changed; the caller may watch again, and begins with an event without ids.
// A caller that leaves the loop ends it too. Errors are of type [*Error], with Op "watch".
//
// A watch changes nothing, has no slot of Provider.Limit, and needs no permit.
type Watch func(ctx context.Context) iter.Seq2[[]string, error]

// maxChanges is how many ids an event has at most: looking at all things then costs no more.
const maxChanges = 1000

// Changes collect what a far side reports for one watch, until its caller takes it.
type Changes struct {
	mu    sync.Mutex
	ids   map[string]bool
	any   bool
	ended error
	more  chan struct{} // has an element while there is something to take

	told    map[string]bool // since the last look, see [Changes.Look]
	toldAny bool
}

// NewChanges returns changes that begin with the event that any thing may have changed.
func NewChanges() *Changes {
	c := &Changes{ids: map[string]bool{}, told: map[string]bool{}, more: make(chan struct{}, 1)}
	c.Add()
	return c
}

// Add reports that things with the given ids may have changed; without ids, that any may have. It does not wait.
func (c *Changes) Add(ids ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told, c.toldAny = with(c.told, c.toldAny, ids)
	c.add(ids)
}

// add adds ids to the next event. The lock is held.
func (c *Changes) add(ids []string) {
	c.ids, c.any = with(c.ids, c.any, ids)
	c.wake()
}

// with returns a set of ids with others; none stand for any, and so do too many.
func with(set map[string]bool, all bool, ids []string) (map[string]bool, bool) {
	for _, id := range ids {
		set[id] = true
	}
	if all = all || len(ids) == 0 || len(set) > maxChanges; all {
		clear(set)
	}
	return set, all
}

// Shown returns what a look shows of some things, as digests by their ids, for [Changes.Look]. They may tell of secrets, and are not
// to be written down.
func Shown(things []Thing) map[string]string {
	shown := make(map[string]string, len(things))
	for i := range things {
		t := &things[i]
		shown[t.ID] = schema.Object{
			"name": t.Name, "mark": t.Mark.String(), "spec": map[string]any(t.Spec), "status": map[string]any(t.Status), "phase": string(t.Phase), "detail": t.Detail, "version": t.Version,
			"uid": t.UID, "derived": t.Derived, "passing": t.Passing, "unfilled": strings.Join(t.Unfilled, " "),
		}.Digest()
	}
	return shown
}

// Look looks at all things, as [Shown], and reports what differs from the look before. It also reports once more what has been reported
// since that look: whoever looked at such a thing meanwhile may have seen it in between two changes of which the second one undid the first,
// so that these two looks show no difference.
func (c *Changes) Look(was map[string]string, shown func() (map[string]string, error)) (is map[string]string, err error) {
	c.mu.Lock()
	told, anything := c.told, c.toldAny
	c.told, c.toldAny = map[string]bool{}, false // what is reported from now on may be later than this look
	c.mu.Unlock()
	if is, err = shown(); err != nil {
		return nil, err
	}
	for id, version := range is {
		if before, ok := was[id]; !ok || before != version {
			c.Add(id)
		}
	}
	for id := range was {
		if _, ok := is[id]; !ok {
			c.Add(id)
		}
	}
	if anything || len(told) > 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.add(slices.Collect(maps.Keys(told))) // which is not reported for a third time
	}
	return is, nil
}

// End reports that no change is told any more, and why.
func (c *Changes) End(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = err
	c.wake()
}

func (c *Changes) wake() {
	select {
	case c.more <- struct{}{}:
	default:
	}
}

// Each yields events as a [Watch] does, until it ends.
func (c *Changes) Each(ctx context.Context, yield func(ids []string, err error) bool) {
	for {
		select {
		case <-c.more:
		case <-ctx.Done():
			yield(nil, context.Cause(ctx))
			return
		}
		if ids, ok, err := c.take(); ok && (!yield(ids, err) || err != nil) {
			return
		}
	}
}

// take returns the next event; ok is false when it was taken already, with the one before.
func (c *Changes) take() (ids []string, ok bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids = slices.Sorted(maps.Keys(c.ids))
	ok = c.any || len(ids) > 0 || c.ended != nil
	clear(c.ids)
	c.any = false
	return ids, ok, c.ended
}

var errUntold = errors.New("it ended without giving a reason")

// watch wraps the watch of a kind: its errors are complete, and it never ends without one.
func (g guarded) watch(ctx context.Context) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		fail := func(err error) {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			if e := (*Error)(nil); !errors.As(err, &e) {
				err = &Error{Op: "watch", Kind: g.of.Name, Class: Transient, Err: err}
			}
			yield(nil, err)
		}
		if ctx.Err() == nil {
			for ids, err := range g.of.Watch(ctx) {
				if err != nil {
					fail(err)
					return
				}
				if !yield(ids, nil) {
					return
				}
			}
		}
		fail(errUntold)
	}
}
