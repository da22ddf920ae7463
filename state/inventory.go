package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"converge.dev/converge/schema"
)

// An Inventory is what was last observed of a site, and when each part of it changed. Its revision rises with every recorded
// change, and never falls.
type Inventory struct {
	Revision int64
	At       time.Time        // when it last changed
	Oldest   int64            // all deletions after this revision are in it; older ones may have been dropped
	Places   []InventoryPlace // sorted by scope and kind

	guard  Guard    // holds until another process records a change
	unused []string // keys of chunks that belong to no place: of writers that were too late
}

// An InventoryPlace is what a kind has in a scope. Each is stored by itself: a change of one writes no other.
type InventoryPlace struct {
	schema.Place
	Items []InventoryItem // sorted by id

	chunks []string // digests of what is stored
}

// An InventoryItem is one thing, or the fact that it is gone.
type InventoryItem struct {
	ID       string     `json:"id"`
	Digest   string     `json:"digest,omitempty"` // of everything that is reported about it
	Revision int64      `json:"revision"`         // at which it last changed; 0: it has to be recorded as changed
	Deleted  *time.Time `json:"deleted,omitempty"`
	// Shown is what may be shown of it, as a JSON object; absent when it is gone, and in what an older version has recorded.
	Shown json.RawMessage `json:"shown,omitempty"`
}

type inventoryHead struct {
	Revision int64     `json:"revision"`
	At       time.Time `json:"at"`
	Oldest   int64     `json:"oldest"`
}

type inventoryPlace struct {
	Chunks []string `json:"chunks"` // digests
}

func (s *Store) inventoryChunks(scope, kind string) string {
	return s.key("inventory/chunk", scope, kind) + "/"
}

// Inventory reads the inventory; an empty one when there is none.
func (s *Store) Inventory(ctx context.Context) (Inventory, error) {
	for {
		inv, err := s.inventory(ctx)
		if !errors.Is(err, ErrNotFound) {
			return inv, err
		}
		// A chunk is missing: it was replaced meanwhile, or it is lost.
		now, rerr := s.kv.Get(ctx, inv.guard.Key)
		if rerr != nil || now.Modified == inv.guard.Revision {
			return inv, errors.Join(err, rerr)
		}
	}
}

func (s *Store) inventory(ctx context.Context) (Inventory, error) {
	inv := Inventory{guard: Guard{Key: s.key("inventory/head")}}
	head, it, err := read[inventoryHead](ctx, s, inv.guard.Key)
	if errors.Is(err, ErrNotFound) {
		return inv, nil
	}
	if err != nil {
		return inv, err
	}
	inv.Revision, inv.At, inv.Oldest, inv.guard.Revision = head.Revision, head.At, head.Oldest, it.Modified
	at := s.key("inventory/at") + "/"
	places, items, err := list[inventoryPlace](ctx, s, at)
	if err != nil {
		return inv, err
	}
	chunks, err := s.kv.List(ctx, s.key("inventory/chunk")+"/")
	if err != nil {
		return inv, fmt.Errorf("read the inventory: %w", err)
	}
	stored, used := make(map[string][]byte, len(chunks)), make(map[string]bool, len(chunks))
	for _, c := range chunks {
		stored[c.Key] = c.Value
	}
	for i, p := range places {
		scope, kind, _ := strings.Cut(strings.TrimPrefix(items[i].Key, at), "/")
		place := InventoryPlace{Place: schema.Place{Scope: scope, Kind: kind}, chunks: p.Chunks}
		var body []byte
		for _, digest := range p.Chunks {
			key := s.inventoryChunks(scope, kind) + digest
			packed, ok := stored[key]
			if !ok {
				return inv, fmt.Errorf("read the inventory: %s: %w", key, ErrNotFound)
			}
			plain, err := s.chunk(key, digest, packed)
			if err != nil {
				return inv, fmt.Errorf("read the inventory: %w", err)
			}
			body = append(body, plain...)
			used[key] = true
		}
		if err := json.Unmarshal(body, &place.Items); err != nil {
			return inv, fmt.Errorf("read the inventory: %w", &DamagedError{items[i].Key, err.Error()})
		}
		inv.Places = append(inv.Places, place)
	}
	for _, c := range chunks {
		if !used[c.Key] {
			inv.unused = append(inv.unused, c.Key)
		}
	}
	slices.SortFunc(inv.Places, func(a, b InventoryPlace) int { return a.Place.Compare(b.Place) })
	return inv, nil
}

// PutInventory records what changed since an inventory was read. Next has every place of it, and maybe more, sorted; items
// without a revision are assigned one, and a place without items is dropped. What does not fit into one transaction
// becomes several revisions, each of them complete: after an interruption the inventory lacks some changes, but is
// otherwise right. It fails with ErrGuard when another process was quicker; what it recorded until then stays.
func (s *Store) PutInventory(ctx context.Context, was Inventory, next []InventoryPlace, oldest int64, at time.Time) (Inventory, error) {
	inv, err := s.putInventory(ctx, was, next, oldest, at)
	if err != nil {
		return inv, fmt.Errorf("write the inventory: %w", err)
	}
	return inv, nil
}

func (s *Store) putInventory(ctx context.Context, was Inventory, next []InventoryPlace, oldest int64, at time.Time) (Inventory, error) {
	now := Inventory{Revision: was.Revision, At: at, Oldest: max(was.Oldest, oldest), guard: was.guard}
	var (
		ops  []Op
		size int
	)
	commit := func() error {
		if now.guard.Revision == 0 {
			ops = append(ops, Op{Key: s.outboxTold() + InventoryTold, Delete: true})
		}
		ops = append(ops, s.put(now.guard.Key, inventoryHead{now.Revision + 1, now.At, now.Oldest}))
		revision, err := s.kv.Commit(ctx, []Guard{now.guard}, ops)
		if err != nil {
			return err
		}
		now.Revision, now.guard.Revision, ops, size = now.Revision+1, revision, nil, 0
		return nil
	}
	had := was.Places
	for _, p := range next {
		old := InventoryPlace{}
		if len(had) > 0 && had[0].Place == p.Place {
			old, had = had[0], had[1:]
		}
		p.chunks = old.chunks
		if noted := !slices.ContainsFunc(p.Items, func(i InventoryItem) bool { return i.Revision == 0 }); noted && len(p.Items) == len(old.Items) {
			now.Places = append(now.Places, p)
			continue
		}
		if len(ops) >= MaxOps/2 || size > MaxBytes/2 {
			if err := commit(); err != nil {
				return now, err
			}
		}
		more, err := s.putPlace(ctx, &p, now.Revision+1)
		if err != nil {
			return now, err
		}
		for _, op := range more {
			size += len(op.Key) + len(op.Value)
		}
		ops = append(ops, more...)
		if len(p.Items) > 0 {
			now.Places = append(now.Places, p)
		}
	}
	for _, key := range was.unused[:min(len(was.unused), MaxOps-2-len(ops))] {
		ops = append(ops, Op{Key: key, Delete: true})
	}
	if len(ops) == 0 {
		return now, nil
	}
	return now, commit()
}

// putPlace stores the items of a place, which change at a revision, and returns the operations that assign them to the place: at
// most half of what a transaction may have.
func (s *Store) putPlace(ctx context.Context, p *InventoryPlace, revision int64) (ops []Op, err error) {
	old, key, prefix := p.chunks, s.key("inventory/at", p.Scope, p.Kind), s.inventoryChunks(p.Scope, p.Kind)
	if p.chunks = nil; len(p.Items) == 0 {
		ops = append(ops, Op{Key: key, Delete: true})
	} else {
		p.Items = slices.Clone(p.Items)
		for i := range p.Items {
			if p.Items[i].Revision == 0 {
				p.Items[i].Revision = revision
			}
		}
		body, err := json.Marshal(p.Items)
		if err != nil {
			return nil, err
		}
		if p.chunks, err = s.putChunks(ctx, prefix, body, old); err != nil {
			return nil, err
		}
		ops = append(ops, s.put(key, inventoryPlace{p.chunks}))
	}
	for _, d := range old {
		if !slices.Contains(p.chunks, d) && len(ops) < MaxOps/2 { // the next write removes the rest
			ops = append(ops, Op{Key: prefix + d, Delete: true})
		}
	}
	return ops, nil
}
