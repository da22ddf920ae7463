package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// An Inventory is what was seen of a site last, and when each part of it changed. Its revision rises with every look that
// found a change, and never falls.
type Inventory struct {
	Revision int64           `json:"revision"`
	At       time.Time       `json:"at"`
	Oldest   int64           `json:"oldest"` // deletions after this revision are all in it; older ones may have been dropped
	Items    []InventoryItem `json:"items"`  // sorted by scope, kind and id
}

// An InventoryItem is one thing, or that it is gone.
type InventoryItem struct {
	Scope    string     `json:"scope"`
	Kind     string     `json:"kind"`
	ID       string     `json:"id"`
	Digest   string     `json:"digest,omitempty"` // of all that is told about it
	Revision int64      `json:"revision"`         // at which it changed last
	Deleted  *time.Time `json:"deleted,omitempty"`
}

type inventoryHead struct {
	Body []string `json:"body"` // digests of its chunks
}

// Inventory reads the inventory; an empty one when there is none. The guard holds until somebody else writes one.
func (s *Store) Inventory(ctx context.Context) (Inventory, Guard, error) {
	key := s.key("inventory/head")
	head, it, err := read[inventoryHead](ctx, s, key)
	guard := Guard{Key: key, Revision: it.Modified}
	if errors.Is(err, ErrNotFound) {
		return Inventory{}, guard, nil
	}
	if err != nil {
		return Inventory{}, guard, err
	}
	body, err := s.chunks(ctx, s.key("inventory/chunk")+"/", head.Body)
	if err != nil {
		return Inventory{}, guard, fmt.Errorf("read the inventory: %w", err)
	}
	var inv Inventory
	if err := json.Unmarshal(body, &inv); err != nil {
		return Inventory{}, guard, fmt.Errorf("read the inventory: %w", err)
	}
	return inv, guard, nil
}

// PutInventory replaces the inventory that the guard was given with. It fails with ErrGuard when somebody else was quicker.
func (s *Store) PutInventory(ctx context.Context, inv Inventory, guard Guard) error {
	body, err := json.Marshal(inv)
	if err != nil {
		return fmt.Errorf("write the inventory: %w", err)
	}
	old, _, err := read[inventoryHead](ctx, s, guard.Key)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	digests, err := s.putChunks(ctx, s.key("inventory/chunk")+"/", body, old.Body)
	if err != nil {
		return fmt.Errorf("write the inventory: %w", err)
	}
	ops := []Op{s.put(guard.Key, inventoryHead{digests})}
	for _, d := range old.Body {
		if !slices.Contains(digests, d) && len(ops) < MaxOps {
			ops = append(ops, Op{Key: s.key("inventory/chunk", d), Delete: true})
		}
	}
	if _, err := s.kv.Commit(ctx, []Guard{guard}, ops); err != nil {
		return fmt.Errorf("write the inventory: %w", err)
	}
	return nil
}
