package state

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"converge.dev/converge/schema"
)

// A Hold stops every effect in its scope until it is released. A scope has at most two, one set by hand and one set by
// the end of a run: neither hides the other, and neither ends with the other.
type Hold struct {
	// Scope is "site", a node's name, a ref, or "serial:N" for a revision of the document that is not tried again.
	Scope  string    `json:"scope"`
	Reason string    `json:"reason"`
	Run    string    `json:"run,omitempty"` // the run that set it, and may settle it
	By     string    `json:"by,omitempty"`  // who set it by hand; empty when a run did
	At     time.Time `json:"at,omitzero"`   // zero when it was set with another client

	// Older means that a far side knows more than the store, which was lost or is an older copy, and that this has to be confirmed
	// first; see [Store.Restored].
	Older bool `json:"older,omitempty"`
}

// Text describes what is held, and why.
func (h Hold) Text() string {
	text := h.Scope + " is on hold: " + h.Reason
	if h.Scope == FrozenScope {
		return "the site is frozen: " + h.Reason
	}
	if h.By != "" {
		text += " (" + h.By + ")"
	}
	return text
}

// ByHand reports whether a person set the hold, not a run.
func (h Hold) ByHand() bool { return h.By != "" }

// OnNode reports whether the hold is on a whole node.
func (h Hold) OnNode() bool {
	return h.Scope != schema.ScopeSite && !strings.ContainsAny(h.Scope, "/: ")
}

// OnRevision reports whether the hold is on a revision of the document.
func (h Hold) OnRevision() bool { return strings.HasPrefix(h.Scope, serialPrefix) }

// Before reports whether the hold is on a revision of the document older than the one with this serial. Serials only
// rise, so that revision cannot be tried again, and the hold no longer matters.
func (h Hold) Before(serial int64) bool {
	text, ok := strings.CutPrefix(h.Scope, serialPrefix)
	n, err := strconv.ParseInt(text, 10, 64)
	return ok && err == nil && n < serial
}

// SerialScope returns the scope of a hold on one revision of the document.
func SerialScope(serial int64) string { return serialPrefix + strconv.FormatInt(serial, 10) }

const serialPrefix = "serial:"

// FrozenScope is the scope under which a freeze is listed among holds.
const FrozenScope = "site:frozen" // no node, ref or revision has it

// HoldOp sets a hold, in place of one that its scope may have from the same source: set by hand, or by a run.
func (s *Store) HoldOp(h Hold) Op { return s.put(s.holdKey(h), h) }

// ReleaseOp removes a hold.
func (s *Store) ReleaseOp(h Hold) Op { return Op{Key: s.holdKey(h), Delete: true} }

// byRun precedes the scope in the key of a hold that a run set.
const byRun = "run:"

func (s *Store) holdKey(h Hold) string {
	if h.ByHand() {
		return s.key("hold", h.Scope)
	}
	return s.key("hold", byRun+h.Scope)
}

// FreezeOp stops every effect on the site, whatever is in progress. The scope of h is not used.
func (s *Store) FreezeOp(h Hold) Op { return s.put(s.key("freeze"), h) }

// ThawOp ends a freeze.
func (s *Store) ThawOp() Op { return Op{Key: s.key("freeze"), Delete: true} }

// Holds reads all holds, in the order of their scopes.
func (s *Store) Holds(ctx context.Context) ([]Hold, error) {
	stops, err := s.Stops(ctx)
	if err != nil {
		return nil, err
	}
	return stops.Holds, nil
}

// Frozen reads the freeze; nil when there is none.
func (s *Store) Frozen(ctx context.Context) (*Hold, error) {
	stops, err := s.Stops(ctx)
	if err != nil {
		return nil, err
	}
	return stops.Freeze, nil
}

// Stops are the holds and the freeze of a site as read at one time. A value that cannot be read also stops: it was
// written for a reason.
type Stops struct {
	Holds  []Hold // in the order of their scopes, those set by hand first
	Freeze *Hold

	store     *Store
	revisions map[string]int64 // by key
}

// Stops reads what stops effects.
func (s *Store) Stops(ctx context.Context) (*Stops, error) {
	prefix := s.key("hold") + "/"
	items, err := s.kv.List(ctx, prefix)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", prefix, err)
	}
	frozen, err := s.kv.Get(ctx, s.key("freeze"))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", s.key("freeze"), err)
	}
	x := &Stops{store: s, revisions: make(map[string]int64, len(items)+1)}
	read := func(it Item, scope string, ofRun bool) Hold {
		var h Hold
		if err := decode(it, &h); err != nil {
			h = Hold{Reason: "set by another client: its value is not in converge's format"}
		}
		h.Scope = scope
		if !ofRun && h.By == "" && (h.Run == "" || scope != FrozenScope) { // set by hand with another client
			h.By = "another client"
		}
		x.revisions[it.Key] = it.Modified
		return h
	}
	for _, it := range items {
		scope, ofRun := strings.CutPrefix(strings.TrimPrefix(it.Key, prefix), byRun)
		h := read(it, scope, ofRun)
		if ofRun {
			h.By = ""
		} else {
			h.Run = ""
		}
		x.Holds = append(x.Holds, h)
	}
	slices.SortFunc(x.Holds, func(a, b Hold) int {
		return cmp.Or(strings.Compare(a.Scope, b.Scope), -strings.Compare(a.By, b.By)) // one set by hand has a name
	})
	if frozen.Modified != 0 {
		h := read(frozen, FrozenScope, false)
		x.Freeze = &h
	}
	return x, nil
}

// All returns the holds, and the freeze after them.
func (x *Stops) All() []Hold {
	if x.Freeze == nil {
		return x.Holds
	}
	return append(slices.Clone(x.Holds), *x.Freeze)
}

// On returns what stops an effect on a resource: a freeze, and a hold of the site, of the resource's scope or of the
// resource itself. What the given run has set does not stop that run, which has to settle it.
func (x *Stops) On(ref schema.Ref, run string) []Hold {
	var on []Hold
	if x.Freeze != nil {
		on = append(on, *x.Freeze)
	}
	for _, h := range x.Holds {
		if (h.Run == "" || h.Run != run) && slices.Contains([]string{schema.ScopeSite, ref.Scope, ref.String()}, h.Scope) {
			on = append(on, h)
		}
	}
	return on
}

// Guard adds to gs the guards for writing the intent of an effect on a resource: that nobody has stopped it by hand since
// these stops were read. Holds of runs need no guard: a run sets them at its end and under the lock, never concurrently
// with another.
func (x *Stops) Guard(gs []Guard, ref schema.Ref, run string) []Guard {
	add := func(key string) {
		if !slices.ContainsFunc(gs, func(g Guard) bool { return g.Key == key }) {
			gs = append(gs, Guard{Key: key, Revision: x.revisions[key]})
		}
	}
	add(x.store.key("freeze"))
	for _, scope := range []string{schema.ScopeSite, ref.Scope, ref.String()} {
		add(x.store.key("hold", scope))
	}
	return gs
}

// CheckScope refuses what cannot be held by hand: a scope is site, the name of a node, or a ref.
func CheckScope(scope string) error {
	const most = 512
	switch odd := strings.ContainsFunc(scope, func(r rune) bool { return !unicode.IsGraphic(r) || unicode.IsSpace(r) }); {
	case scope == "" || len(scope) > most || odd || !utf8.ValidString(scope):
		return fmt.Errorf("%w: a scope has 1 to %d bytes, without spaces or control characters", ErrInvalid, most)
	case strings.Contains(scope, "/"):
		ref, err := schema.ParseRef(scope)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		scope = ref.Scope
	}
	if strings.ContainsAny(scope, ":/") { // as those of revisions and of runs have
		return fmt.Errorf("%w: %q names neither the site nor a node", ErrInvalid, scope)
	}
	return nil
}

// SetHold sets a hold by hand, in place of the one that its scope has, unless somebody has set or released one since the stops were read:
// then it fails with ErrGuard. It is entered in the audit log.
func (x *Stops) SetHold(ctx context.Context, scope, by, reason string) error {
	if err := CheckScope(scope); err != nil {
		return fmt.Errorf("hold: %w", err)
	}
	now := time.Now().UTC()
	h := Hold{Scope: scope, Reason: reason, By: by, At: now}
	return x.forced(ctx, x.store.holdKey(h), Audit{At: now, By: by, Action: "hold", Scope: scope, Reason: reason}, x.store.HoldOp(h))
}

// SetFreeze is [Store.SetFreeze] unless the freeze is no longer as it was read: then it fails with ErrGuard.
func (x *Stops) SetFreeze(ctx context.Context, on bool, by, reason string) error {
	now := time.Now().UTC()
	entry, op := Audit{At: now, By: by, Action: "thaw", Reason: reason}, x.store.ThawOp()
	if on {
		entry.Action, op = "freeze", x.store.FreezeOp(Hold{Reason: reason, By: by, At: now})
	}
	return x.forced(ctx, x.store.key("freeze"), entry, op)
}

// forced writes what a person forced while a key is as it was read.
func (x *Stops) forced(ctx context.Context, key string, entry Audit, op Op) error {
	s := x.store
	if _, err := s.kv.Commit(ctx, []Guard{{Key: key, Revision: x.revisions[key]}}, []Op{op, s.put(s.key("audit", NewRunID(entry.At)), entry)}); err != nil {
		return fmt.Errorf("%s: %w", strings.TrimSpace(entry.Action+" "+entry.Scope), err)
	}
	return nil
}

// Hold sets a hold by hand. It is entered in the audit log.
func (s *Store) Hold(ctx context.Context, scope, by, reason string) error {
	if err := CheckScope(scope); err != nil {
		return fmt.Errorf("hold: %w", err)
	}
	now := time.Now().UTC()
	h := Hold{Scope: scope, Reason: reason, By: by, At: now}
	return s.forced(ctx, Audit{At: now, By: by, Action: "hold", Scope: scope, Reason: reason}, s.HoldOp(h))
}

// Release releases all holds of a scope by hand. It is entered in the audit log.
func (s *Store) Release(ctx context.Context, scope, by, reason string) error {
	return s.forced(ctx, Audit{At: time.Now().UTC(), By: by, Action: "release", Scope: scope, Reason: reason},
		s.ReleaseOp(Hold{Scope: scope}), s.ReleaseOp(Hold{Scope: scope, By: by}))
}

// ReleaseHeld releases one hold by hand, and no other of its scope. It is entered in the audit log. It fails with ErrGuard when the hold is
// not as it was read.
func (x *Stops) ReleaseHeld(ctx context.Context, h Hold, by, reason string) error {
	now := time.Now().UTC()
	return x.forced(ctx, x.store.holdKey(h), Audit{At: now, By: by, Action: "release", Scope: h.Scope, Reason: reason}, x.store.ReleaseOp(h))
}

// SetFreeze stops every effect on the site, or ends that. It is entered in the audit log.
func (s *Store) SetFreeze(ctx context.Context, on bool, by, reason string) error {
	now := time.Now().UTC()
	if on {
		return s.forced(ctx, Audit{At: now, By: by, Action: "freeze", Reason: reason}, s.FreezeOp(Hold{Reason: reason, By: by, At: now}))
	}
	return s.forced(ctx, Audit{At: now, By: by, Action: "thaw", Reason: reason}, s.ThawOp())
}

// forced writes what a person forced, together with its audit entry.
func (s *Store) forced(ctx context.Context, entry Audit, ops ...Op) error {
	if _, err := s.kv.Commit(ctx, nil, append(ops, s.put(s.key("audit", NewRunID(entry.At)), entry))); err != nil {
		return fmt.Errorf("%s: %w", strings.TrimSpace(entry.Action+" "+entry.Scope), err)
	}
	return nil
}
