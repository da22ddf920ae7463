package outbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net"
	"slices"
	"strconv"
	"time"

	"converge.dev/converge/engine/drift"
	"converge.dev/converge/internal/retry"
	"converge.dev/converge/site"
	"converge.dev/converge/state"
)

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Said makes the event that the status has changed, for [site.Options]. That the site has failed, or no longer has, is kept in the
// transaction that publishes the status; anything else is told by then, which is called afterwards.
func (b *Outbox) Said(was, is site.Status) (kept []state.Op, then func()) {
	is.Detail = b.shown(is.Detail)
	same := []any{was.Phase, was.Since.UnixNano(), is.Phase, is.Run}
	if failed := is.Phase == site.Failed; failed == (was.Phase == site.Failed) {
		return nil, func() { b.tell(StatusChanged, "status", is.Since, is, append(same, is.Since.UnixNano())...) }
	}
	if !b.wants(StatusChanged) {
		return nil, func() {}
	}
	e, err := b.make(StatusChanged, "status", is.Since, is, same...)
	if err != nil {
		b.o.Logger.Error("an event for the cloud cannot be written", "error", err)
		return nil, func() {}
	}
	return b.o.Store.KeepEventOps(e), func() {}
}

// tellRuns tells of runs: of whatever process, and those that have ended while no site agent ran, too.
func (b *Outbox) tellRuns(ctx context.Context) error {
	told, fresh, err := b.told(ctx, "run")
	if err != nil {
		return err
	}
	started := map[string]bool{} // whose start was told, or is no news
	for changes, err := range b.o.Store.FollowRuns(ctx) {
		if err != nil {
			return err
		}
		if fresh { // what was before there was an outbox is no news
			told.Mark, fresh = strconv.FormatInt(changes.Revision, 10), false
			if told, err = b.keep(ctx, nil, told); err != nil {
				return err
			}
		}
		at, _ := strconv.ParseInt(told.Mark, 10, 64)
		slices.SortStableFunc(changes.Changes, func(a, b state.Changed[state.Run]) int { return cmp.Compare(a.Revision, b.Revision) })
		var events []state.Outgoing
		for _, c := range changes.Changes {
			run := c.Value
			run.Message = b.shown(run.Message)
			switch {
			case c.Gone:
				delete(started, c.Name)
			case c.Err != nil: // a command that needs it says so
			case run.Status == state.RunOpen:
				if !changes.Whole && !started[run.ID] {
					b.tell(RunStarted, "run/"+run.ID, run.Started, run, run.Started.UnixNano())
				}
				started[run.ID] = true
			case c.Revision > at:
				delete(started, c.Name)
				more, err := b.ended(run)
				if err != nil {
					return err
				}
				events = append(events, more...)
				told.Mark = strconv.FormatInt(c.Revision, 10)
				if len(events) >= batch {
					if told, err = b.keep(ctx, events, told); err != nil {
						return err
					}
					events = nil
				}
			}
		}
		if len(events) > 0 {
			if told, err = b.keep(ctx, events, told); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// ended returns what is told of a run that has ended.
func (b *Outbox) ended(run state.Run) (events []state.Outgoing, err error) {
	end := run.Started
	if run.Ended != nil {
		end = *run.Ended
	}
	kinds := []string{RunEnded}
	if run.Unconfirmed {
		kinds = append(kinds, GuardUndone)
	}
	for _, kind := range kinds {
		if !b.wants(kind) {
			continue
		}
		e, err := b.make(kind, "run/"+run.ID, end, run, run.Status, end.UnixNano())
		if err != nil {
			return nil, err
		}
		events = append(events, e)
	}
	return events, nil
}

// told reads up to where something was told; fresh: nothing of it ever was.
func (b *Outbox) told(ctx context.Context, what string) (t state.Told, fresh bool, err error) {
	all, err := b.o.Store.Told(ctx, what)
	t, ok := all[what]
	t.What = what
	return t, !ok, err
}

// keep keeps events, and writes up to where they tell. It tries until that is written.
func (b *Outbox) keep(ctx context.Context, events []state.Outgoing, told state.Told) (state.Told, error) {
	for {
		all, err := b.o.Store.Tell(ctx, events, told)
		if err == nil {
			return all[0], nil
		}
		if errors.Is(err, state.ErrGuard) || errors.Is(err, state.ErrUnknown) || ctx.Err() != nil { // begin again with what is in the store
			return told, err
		}
		b.o.Logger.Warn("an event for the cloud could not be kept", "error", err, "again_in", again)
		if err := retry.Sleep(ctx, again); err != nil {
			return told, err
		}
	}
}

// tellWaiting tells that a plan waits for people.
func (b *Outbox) tellWaiting(ctx context.Context) error {
	told, _, err := b.told(ctx, "waiting")
	if err != nil {
		return err
	}
	for changes, err := range b.o.Store.FollowWaiting(ctx) {
		if err != nil {
			return err
		}
		for _, c := range changes.Changes {
			w := c.Value
			mark := w.Plan + " " + w.Since.UTC().Format(time.RFC3339Nano)
			if c.Gone || c.Err != nil || mark == told.Mark || !b.wants(ApprovalWaiting) {
				continue
			}
			w.Why, w.Lapsed, w.Body = b.shown(w.Why), b.shown(w.Lapsed), nil
			e, err := b.make(ApprovalWaiting, "plan/"+w.Approval, w.Since, w, mark)
			if err != nil {
				return err
			}
			told.Mark = mark
			if told, err = b.keep(ctx, []state.Outgoing{e}, told); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// tellDrift tells that the site differs otherwise than before from what was applied.
func (b *Outbox) tellDrift(ctx context.Context) error {
	known := false
	for body, err := range b.o.Store.FollowPublished(ctx, "drift/latest") {
		if err != nil {
			return err
		}
		if body == nil { // there is none yet
			known = true
			continue
		}
		if !known { // it was there before
			known = true
			continue
		}
		var r drift.Report
		if err := json.Unmarshal(body, &r); err != nil {
			continue // whoever reads it says so
		}
		masked := b.o.MaskDrift(&r)
		masked.Unknown = slices.Clone(masked.Unknown)
		for i := range masked.Unknown {
			masked.Unknown[i].Error = b.shown(masked.Unknown[i].Error)
		}
		short, err := site.Shortened(masked, largest)
		if err != nil {
			return err
		}
		b.tell(DriftChanged, "drift", r.At, json.RawMessage(short), r.At.UnixNano())
	}
	return ctx.Err()
}

const (
	nodesTold = "node/" // begins the names of what was told of nodes
	connected = "connected"
	lost      = "lost"

	glance = 5 * time.Second  // how often the nodes are looked at
	grace  = 30 * time.Second // how long a node may be away until it is lost: its agent may have been started anew
)

// tellNodes tells which nodes have come and which are lost, in turns, whichever process kept the site before.
func (b *Outbox) tellNodes(ctx context.Context) error {
	told, err := b.o.Store.Told(ctx, nodesTold)
	if err != nil {
		return err
	}
	began := b.o.Now()
	for {
		if err := b.lookAtNodes(ctx, told, began); err != nil {
			return err
		}
		if err := retry.Sleep(ctx, glance); err != nil {
			return err
		}
	}
}

// lookAtNodes tells what has become different of nodes; told is what was told before, and is amended. A node that a process which has
// only begun to keep the site has not seen may be about to come.
func (b *Outbox) lookAtNodes(ctx context.Context, told map[string]state.Told, began time.Time) error {
	now := b.o.Now()
	away := map[string]time.Time{} // that the cloud believes to be connected: since when they are not
	for what, t := range told {
		if t.Mark == connected {
			away[what] = began
		}
	}
	var marks []state.Told
	since := map[string]time.Time{}
	for _, n := range b.o.Nodes() {
		what := nodesTold + n.Name
		if _, ok := away[what]; ok && !n.Connected && n.Since.After(began) {
			away[what] = n.Since
		}
		if !n.Connected {
			continue
		}
		delete(away, what)
		if t := told[what]; t.Mark != connected {
			t.What, t.Mark = what, connected
			marks, since[what] = append(marks, t), n.Since
		}
	}
	for what, at := range away {
		if now.Sub(at) >= grace {
			t := told[what]
			t.What, t.Mark = what, lost
			marks, since[what] = append(marks, t), at
		}
	}
	slices.SortFunc(marks, func(a, b state.Told) int {
		return cmp.Or(since[a.What].Compare(since[b.What]), cmp.Compare(a.What, b.What))
	})
	for some := range slices.Chunk(marks, batch) {
		var events []state.Outgoing
		var came []string // for the first time
		for _, t := range some {
			name, kind := t.What[len(nodesTold):], NodeLost
			if t.Mark == connected {
				kind = NodeConnected // kept, too, where it is no longer lost
			}
			if _, again := told[t.What]; !again {
				came = append(came, name)
			} else if b.wants(kind) {
				e, err := b.make(kind, "node/"+name, since[t.What], b.o.Node(name), since[t.What].UnixNano())
				if err != nil {
					return err
				}
				events = append(events, e)
			}
		}
		written, err := b.o.Store.Tell(ctx, events, some...)
		if err != nil {
			return err
		}
		for _, t := range written {
			told[t.What] = t
		}
		for _, name := range came {
			at := since[nodesTold+name]
			b.tell(NodeConnected, "node/"+name, at, b.o.Node(name), at.UnixNano())
		}
	}
	return nil
}
