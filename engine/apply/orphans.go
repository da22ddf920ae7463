package apply

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// A sharedList lists whole kinds for steps that have to prove that nothing refers to what they delete. Steps that begin at
// about the same time share a list: a list that was begun after a step is new enough for it.
type sharedList struct {
	mu    sync.Mutex
	lists map[schema.Place]*list
}

type list struct {
	begun  time.Time
	done   chan struct{}
	things map[plan.Referent][]*providers.Thing // by what they refer to
	err    error
}

// of returns all things of a place as they were at some time after since, by what they refer to. Look belongs to no step: a step
// that gives up does not cancel the list for the others.
func (c *sharedList) of(ctx context.Context, at schema.Place, since time.Time, look func() (map[plan.Referent][]*providers.Thing, error)) (map[plan.Referent][]*providers.Thing, error) {
	c.mu.Lock()
	l := c.lists[at]
	if l == nil || l.begun.Before(since) {
		l = &list{begun: time.Now(), done: make(chan struct{})}
		if c.lists == nil {
			c.lists = map[schema.Place]*list{}
		}
		c.lists[at] = l
		go func() {
			defer func() {
				if p := recover(); p != nil {
					l.err = fmt.Errorf("the provider panicked: %v", p)
				}
				close(l.done)
			}()
			l.things, l.err = look()
		}()
	}
	c.mu.Unlock()
	select {
	case <-l.done:
		return l.things, l.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// A referrer is a kind whose things can refer to what a step deletes.
type referrer struct {
	at   schema.Place
	kind *schema.Kind
	far  providers.Kind
	gone time.Duration // how long one of it may take to go
}

// referrers returns the kinds that have to be checked before a thing is deleted; none where the far side checks by itself.
func (r *run) referrers(ref schema.Ref, served providers.Served) []referrer {
	if !served.Traits.DeleteUnchecked {
		return nil
	}
	var found []referrer
	for _, k := range plan.Referrers(r.Kinds, ref.Kind) {
		if s, _, ok := r.Providers.Find(ref.Scope, k.Name); ok {
			found = append(found, referrer{schema.Place{Scope: ref.Scope, Kind: k.Name}, k, s.Kind, s.Traits.GoneWithin})
		}
	}
	return found
}

// dangling returns what the delete would leave with a dangling reference. Those in leaving are already being deleted
// and only have to be waited for.
func (w *worker) dangling(ctx context.Context, since time.Time) (left, leaving []string, err error) {
	for _, r := range w.referrers {
		things, err := w.shared.of(ctx, r.at, since, func() (map[plan.Referent][]*providers.Thing, error) {
			ctx, cancel := context.WithTimeout(w.effects, w.retry.Within)
			defer cancel()
			things, _, err := All(r.far).patient(ctx, w.retry, w.key()+"/list", until(w.halt), func(why string) { w.note(event.Waiting, why, 0) })
			return plan.ByReferent(r.kind, things), err
		})
		switch {
		case providers.ClassOf(err) == providers.Unsupported && err != nil:
			continue // none can exist
		case err != nil:
			return nil, nil, err
		}
		for _, t := range things[plan.Referent{Kind: w.step.Ref.Kind, ID: w.id}] {
			name := fmt.Sprintf("%s %s (id %s)", r.kind.Name, t.Name, t.ID)
			if t.Derived || t.Phase == providers.Deleting {
				leaving = append(leaving, name)
			} else {
				left = append(left, name)
			}
		}
	}
	return left, leaving, nil
}

// awaitReferrers waits until nothing refers to the thing to be deleted. Over means that the call must not be made.
func (w *worker) awaitReferrers(ctx context.Context) (res result, over bool) {
	limit, next, since := time.Now().Add(w.patience()), w.retry.polls(), time.Now()
	for len(w.referrers) > 0 {
		left, leaving, err := w.dangling(ctx, since)
		switch {
		case err != nil:
			return w.failed(fmt.Errorf("check whether anything still refers to it: %w", err)), true
		case len(left) > 0:
			return w.refuse(w.conflict("the server would leave dangling references in: " + brief(left))), true
		case len(leaving) == 0:
			return result{}, false
		case time.Now().After(limit):
			return w.refuse(w.conflict("objects that refer to it still exist: " + brief(leaving))), true
		}
		w.note(event.Waiting, "still present: "+brief(leaving), 0)
		if err := w.pause(ctx, next()); err != nil {
			return w.failed(err), true
		}
		since = time.Now()
	}
	return result{}, false
}

// patience returns how long what refers to a thing may take to go: as long as the slowest of the kinds says.
func (w *worker) patience() time.Duration {
	longest := w.within()
	for _, r := range w.referrers {
		longest = max(longest, r.gone)
	}
	return longest
}

// brief lists the first few of many names.
func brief(names []string) string {
	const shown = 5
	if more := len(names) - shown; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), more)
	}
	return strings.Join(names, ", ")
}
