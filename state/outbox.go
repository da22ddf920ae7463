package state

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"
)

// An Outgoing is an event for the cloud that is kept until it was delivered.
type Outgoing struct {
	ID   string          `json:"id"` // unique; the same event that is kept again has the same one
	Type string          `json:"type"`
	At   time.Time       `json:"at"`          // when it happened
	N    int             `json:"n,omitempty"` // its place among those that were kept in one transaction
	Body json.RawMessage `json:"body"`        // a JSON object: what is sent

	Revision int64 `json:"-"` // of the store, at which it was kept: later ones were kept later
	Written  int64 `json:"-"` // of the store, at which it was last written
}

// Compare orders events as they were kept.
func (o Outgoing) Compare(p Outgoing) int {
	return cmp.Or(cmp.Compare(o.Revision, p.Revision), cmp.Compare(o.N, p.N), strings.Compare(o.ID, p.ID))
}

// A Delivery says how far the events of a site have been delivered.
type Delivery struct {
	Delivered int64      `json:"delivered"` // how many, of all that were kept
	Last      string     `json:"last_id,omitempty"`
	LastType  string     `json:"last_type,omitempty"`
	LastAt    *time.Time `json:"last_at,omitempty"`

	Error   string     `json:"error,omitempty"` // why the last try failed; empty: it did not
	Failing *time.Time `json:"failing_since,omitempty"`

	Dropped int64 `json:"dropped"`          // because too many waited
	Refused int64 `json:"refused"`          // by the receiver, again and again
	Unsaid  int64 `json:"unsaid,omitempty"` // of both, those that the receiver has not been told of

	revision int64
}

// A Told is up to where something was told to the cloud. What names it, and Mark is for whoever tells.
type Told struct {
	What string `json:"-"`
	Mark string `json:"mark"`

	revision int64
}

// InventoryTold names up to where the inventory was told. That begins anew with an inventory that begins anew, and with a store that was
// restored from a backup: the cloud may know more than the store then.
const InventoryTold = "inventory"

// After returns d as what is written in place of stored.
func (d Delivery) After(stored Delivery) Delivery {
	d.revision = stored.revision
	return d
}

func (s *Store) outboxEvents() string { return s.key("outbox/event") + "/" }
func (s *Store) outboxSent() string   { return s.key("outbox/sent") }
func (s *Store) outboxTold() string   { return s.key("outbox/told") + "/" }

// KeepEventOps keep events, in this order, in the transaction that they are a part of.
func (s *Store) KeepEventOps(events ...Outgoing) []Op {
	ops := make([]Op, len(events))
	for i, e := range events {
		e.N = i
		ops[i] = s.put(s.outboxEvents()+e.ID, e)
	}
	return ops
}

// Told reads up to where everything was told whose name begins with a prefix, by name. What cannot be read is left out: it is told again.
func (s *Store) Told(ctx context.Context, prefix string) (map[string]Told, error) {
	items, err := s.kv.List(ctx, s.outboxTold()+prefix)
	if err != nil {
		return nil, fmt.Errorf("read what the cloud was told: %w", err)
	}
	all := make(map[string]Told, len(items))
	for _, it := range items {
		t := Told{What: strings.TrimPrefix(it.Key, s.outboxTold()), revision: it.Modified}
		if err := decode(it, &t); err != nil && !errors.As(err, new(*DamagedError)) {
			return nil, err
		}
		all[t.What] = t
	}
	return all, nil
}

// Tell keeps events and writes up to where something was told with them, in one transaction: at most [MaxOps] of both. It fails with
// ErrGuard, and has kept nothing, when somebody else has told it.
func (s *Store) Tell(ctx context.Context, events []Outgoing, told ...Told) ([]Told, error) {
	ops := s.KeepEventOps(events...)
	var guards []Guard
	for _, t := range told {
		key := s.outboxTold() + t.What
		guards = append(guards, Guard{Key: key, Revision: t.revision})
		ops = append(ops, s.put(key, t))
	}
	revision, err := s.kv.Commit(ctx, guards, ops)
	if err != nil {
		return nil, fmt.Errorf("keep an event for the cloud: %w", err)
	}
	told = slices.Clone(told)
	for i := range told {
		told[i].revision = revision
	}
	return told, nil
}

// Outbox reads the events that wait, in order. What cannot be read is left out: who sends them removes it.
func (s *Store) Outbox(ctx context.Context) ([]Outgoing, error) {
	items, err := s.kv.List(ctx, s.outboxEvents())
	if err != nil {
		return nil, fmt.Errorf("list the events for the cloud: %w", err)
	}
	var events []Outgoing
	for _, it := range items {
		if e, err := s.outgoing(it); err == nil {
			events = append(events, e)
		}
	}
	slices.SortFunc(events, Outgoing.Compare)
	return events, nil
}

func (s *Store) outgoing(it Item) (Outgoing, error) {
	e := Outgoing{Revision: it.Created, Written: it.Modified}
	err := decode(it, &e)
	id := strings.TrimPrefix(it.Key, s.outboxEvents())
	if err == nil && e.ID != id {
		err = &DamagedError{it.Key, "it contains the event " + e.ID}
	}
	e.ID = id
	return e, err
}

// Delivery reads how far the events have been delivered; the zero Delivery when none was, or when it cannot be read any more.
func (s *Store) Delivery(ctx context.Context) (Delivery, error) {
	d, it, err := read[Delivery](ctx, s, s.outboxSent())
	if errors.Is(err, ErrNotFound) || errors.As(err, new(*DamagedError)) {
		d, err = Delivery{}, nil
	}
	d.revision = it.Modified
	return d, err
}

// Settle removes events that need not be sent any more, and writes how far they are delivered with that: at most [MaxOps] less one. It fails
// with ErrGuard when another process has done so meanwhile.
func (s *Store) Settle(ctx context.Context, done []string, d Delivery) (Delivery, error) {
	ops := []Op{s.put(s.outboxSent(), d)}
	for _, id := range done {
		ops = append(ops, Op{Key: s.outboxEvents() + id, Delete: true})
	}
	revision, err := s.kv.Commit(ctx, []Guard{{Key: s.outboxSent(), Revision: d.revision}}, ops)
	if err != nil {
		return d, fmt.Errorf("write how far the events are delivered: %w", err)
	}
	d.revision = revision
	return d, nil
}

// Changes are the values that one commit wrote or removed or, when they are Whole, all that there are.
type Changes[T any] struct {
	Whole    bool
	Revision int64 // of the store
	Changes  []Changed[T]
}

// A Changed is a value as it is after a change.
type Changed[T any] struct {
	Name     string // what its key has after the prefix
	Value    T
	Revision int64 // at which it was written or removed
	Gone     bool
	Err      error // it cannot be read

	item Item
}

// follow yields all values with a prefix and then every change, as [KV.Watch] does. It ends with an error.
func follow[T any](ctx context.Context, s *Store, prefix string) iter.Seq2[Changes[T], error] {
	return func(yield func(Changes[T], error) bool) {
		for batch, err := range s.kv.Watch(ctx, prefix) {
			if err != nil {
				yield(Changes[T]{}, fmt.Errorf("watch %s: %w", prefix, err))
				return
			}
			news := Changes[T]{Whole: batch.Whole, Revision: batch.Revision}
			for _, c := range batch.Changes {
				n := Changed[T]{Name: strings.TrimPrefix(c.Key, prefix), Revision: c.Modified, Gone: c.Gone, item: c.Item}
				if !c.Gone {
					n.Err = decode(c.Item, &n.Value)
				}
				news.Changes = append(news.Changes, n)
			}
			if !yield(news, nil) {
				return
			}
		}
	}
}

// FollowOutbox yields the events that wait, and then every change to them; see [KV.Watch].
func (s *Store) FollowOutbox(ctx context.Context) iter.Seq2[Changes[Outgoing], error] {
	return func(yield func(Changes[Outgoing], error) bool) {
		for news, err := range follow[Outgoing](ctx, s, s.outboxEvents()) {
			for i := range news.Changes {
				if c := &news.Changes[i]; !c.Gone {
					c.Value, c.Err = s.outgoing(c.item)
				}
			}
			if !yield(news, err) {
				return
			}
		}
	}
}

// FollowRuns yields the runs, and then every change to them; see [KV.Watch].
func (s *Store) FollowRuns(ctx context.Context) iter.Seq2[Changes[Run], error] {
	return follow[Run](ctx, s, s.key("run")+"/")
}

// FollowWaiting yields the plan that waits, and then every change to it; see [KV.Watch].
func (s *Store) FollowWaiting(ctx context.Context) iter.Seq2[Changes[Waiting], error] {
	return follow[Waiting](ctx, s, s.waitingKey())
}

// An InventoryRevision says when the inventory last changed.
type InventoryRevision struct {
	Revision int64     `json:"revision"`
	At       time.Time `json:"at"`
}

// FollowInventory yields the revision of the inventory, and then every change to it; see [KV.Watch].
func (s *Store) FollowInventory(ctx context.Context) iter.Seq2[Changes[InventoryRevision], error] {
	return follow[InventoryRevision](ctx, s, s.key("inventory/head"))
}

// FollowPublished yields what [Store.Publish] wrote under a key, nil when nothing was, and then every change to it; see [KV.Watch].
func (s *Store) FollowPublished(ctx context.Context, key string) iter.Seq2[json.RawMessage, error] {
	return func(yield func(json.RawMessage, error) bool) {
		for batch, err := range s.kv.Watch(ctx, s.key(key)) {
			if err != nil {
				yield(nil, fmt.Errorf("watch %s: %w", key, err))
				return
			}
			var body json.RawMessage // none
			for _, c := range batch.Changes {
				if !c.Gone && c.Key == s.key(key) {
					body = c.Value
				}
			}
			if !yield(body, nil) {
				return
			}
		}
	}
}
