package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// An Inventory is what a site has. Each item carries the revision at which it changed last, deletions too: who keeps, for
// each thing, the item with the greatest revision is never misled by a page that comes late.
type Inventory struct {
	Site     schema.Site    `json:"site"`
	Revision int64          `json:"revision"`
	Since    int64          `json:"since_revision,omitempty"` // only what changed after it; 0: everything
	At       time.Time      `json:"at"`
	Complete bool           `json:"complete"` // every kind was seen whole
	Unknown  []plan.Unknown `json:"unknown,omitempty"`
	Items    []Item         `json:"items"` // sorted by scope, kind and id
}

// Health is how a thing is, in one word.
type Health string

// Healths of things.
const (
	HealthOK      Health = "ok"
	HealthWarn    Health = "warn"    // on its way, on its way out, or there and not well
	HealthError   Health = "error"   // it has failed
	HealthUnknown Health = "unknown" // it could not be seen this time: what is told of it is gone, that it was there stays
)

// An Item is one thing of an inventory.
type Item struct {
	Scope    string          `json:"scope"`
	Kind     string          `json:"kind"`
	ID       string          `json:"id"`
	Revision int64           `json:"revision"`
	Deleted  *time.Time      `json:"deleted,omitempty"` // when it was found to be gone; then nothing else is told
	Name     string          `json:"name,omitempty"`
	Ref      schema.Ref      `json:"ref,omitzero"`      // the recorded resource that it is
	Site     string          `json:"site_id,omitempty"` // the site whose mark it bears
	Health   Health          `json:"health,omitempty"`
	State    providers.Phase `json:"state,omitempty"`
	Detail   string          `json:"detail,omitempty"`
	Spec     schema.Object   `json:"spec,omitzero"` // references as names; secrets as digests
	Status   schema.Object   `json:"status,omitzero"`
}

// tombstones is how long deletions are told.
const tombstones = 30 * 24 * time.Hour

// Inventory looks at the whole site and gives what changed after a revision, everything for 0. It writes what it saw into the
// store, because only who remembers can tell what is gone. What could not be seen is never taken for deleted. It fails
// when the revision is older than what is remembered of deletions.
func (e *Engine) Inventory(ctx context.Context, site schema.Site, needs []Need, since int64) (*Inventory, error) {
	s, err := e.Survey(ctx, site, needs)
	if err != nil {
		return nil, err
	}
	for {
		was, guard, err := e.o.Store.Inventory(ctx)
		if err != nil {
			return nil, err
		}
		if since > was.Revision {
			return nil, fmt.Errorf("revision %d is beyond the newest, which is %d", since, was.Revision)
		}
		if since > 0 && since < was.Oldest {
			return nil, fmt.Errorf("what changed since revision %d is not known any more: deletions are told for %d days; begin anew with the whole inventory", since, int(tombstones.Hours()/24))
		}
		inv, next, changed := s.inventory(e.o.Kinds, was, e.o.Now().UTC())
		if changed {
			err = e.o.Store.PutInventory(ctx, next, guard)
			if errors.Is(err, state.ErrGuard) {
				continue // another look was quicker, and has given the next revision
			}
			if err != nil {
				return nil, err
			}
		}
		inv.Since = since
		inv.Items = slices.DeleteFunc(inv.Items, func(i Item) bool { return i.Revision <= since })
		return inv, nil
	}
}

// inventory compares what was seen with what was seen before.
func (s *Survey) inventory(ks schema.Kinds, was state.Inventory, now time.Time) (*Inventory, state.Inventory, bool) {
	inv := &Inventory{Site: s.Site, At: now, Unknown: s.Unknown(), Items: s.items(ks)}
	inv.Complete = len(inv.Unknown) == 0
	next := state.Inventory{Revision: was.Revision + 1, At: now, Oldest: was.Oldest}
	items, changed := []Item{}, false
	seen, old := inv.Items, was.Items
	for len(seen) > 0 || len(old) > 0 {
		c := 0
		switch {
		case len(seen) == 0:
			c = 1
		case len(old) == 0:
			c = -1
		default:
			c = cmp.Or(strings.Compare(seen[0].Scope, old[0].Scope), strings.Compare(seen[0].Kind, old[0].Kind), strings.Compare(seen[0].ID, old[0].ID))
		}
		var item Item
		entry := state.InventoryItem{Revision: next.Revision}
		if c <= 0 {
			item, seen = seen[0], seen[1:]
			entry.Scope, entry.Kind, entry.ID, entry.Digest = item.Scope, item.Kind, item.ID, digestOfItem(&item)
		}
		if c >= 0 {
			before := old[0]
			old = old[1:]
			switch {
			case c == 0:
				if before.Deleted == nil && before.Digest == entry.Digest {
					entry.Revision = before.Revision
				}
			case before.Deleted != nil && now.Sub(*before.Deleted) > tombstones:
				next.Oldest, changed = max(next.Oldest, before.Revision), true
				continue
			case before.Deleted != nil:
				entry = before
				item = Item{Deleted: before.Deleted}
			case s.unseen(before):
				entry = before
				item = Item{Health: HealthUnknown}
			default:
				entry.Deleted = &now
				item = Item{Deleted: &now}
			}
			if c > 0 {
				entry.Scope, entry.Kind, entry.ID = before.Scope, before.Kind, before.ID
				item.Scope, item.Kind, item.ID = before.Scope, before.Kind, before.ID
			}
		}
		item.Revision = entry.Revision
		changed = changed || entry.Revision == next.Revision
		items, next.Items = append(items, item), append(next.Items, entry)
	}
	if !changed {
		next.Revision = was.Revision
	}
	inv.Revision, inv.Items = next.Revision, items
	return inv, next, changed
}

// unseen reports whether nothing could be said about the place of an item this time.
func (s *Survey) unseen(i state.InventoryItem) bool {
	_, seen := s.Observed.Things[plan.Place{Scope: i.Scope, Kind: i.Kind}]
	return !seen
}

// items writes all things that were seen, sorted.
func (s *Survey) items(ks schema.Kinds) []Item {
	names := s.recorded()
	var items []Item
	for at, things := range s.Observed.Things {
		in := names.In(at.Scope)
		for i := range things {
			t := &things[i]
			ref, _ := names.Find(at.Scope, at.Kind, t.ID)
			items = append(items, Item{
				Scope: at.Scope, Kind: at.Kind, ID: t.ID, Name: t.Name, Ref: ref, Site: t.Mark.Site,
				Health: healthOf(t), State: t.Phase, Detail: t.Detail, Spec: diff.Named(ks[at.Kind], t.Spec, in), Status: t.Status,
			})
		}
	}
	slices.SortFunc(items, func(a, b Item) int {
		return cmp.Or(strings.Compare(a.Scope, b.Scope), strings.Compare(a.Kind, b.Kind), strings.Compare(a.ID, b.ID))
	})
	return items
}

func healthOf(t *providers.Thing) Health {
	switch {
	case t.Phase == providers.Failed:
		return HealthError
	case t.Phase == providers.Ready && t.Detail == "":
		return HealthOK
	}
	return HealthWarn
}

func digestOfItem(i *Item) string {
	b, err := json.Marshal(i)
	if err != nil { // it consists of JSON values only
		panic(fmt.Sprintf("engine: encode an item of the inventory: %v", err))
	}
	return digestOf(b)
}
