package survey

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// An Inventory is what a site has. Each item, deletions included, carries the revision at which it last changed: a client
// that keeps the item with the greatest revision of each thing is never misled by a page that arrives late.
type Inventory struct {
	Site     schema.Site    `json:"site"`
	Revision int64          `json:"revision"`
	Since    int64          `json:"since_revision,omitempty"` // only what changed after it; 0: everything
	At       time.Time      `json:"at"`
	Complete bool           `json:"complete"` // every kind was observed completely
	Unknown  []plan.Unknown `json:"unknown,omitempty"`
	Items    []Item         `json:"items"` // sorted by scope, kind and id
}

// Health is the condition of a thing in one word.
type Health string

// The healths of things.
const (
	HealthOK      Health = "ok"
	HealthWarn    Health = "warn"    // pending, being deleted, or present but not well
	HealthError   Health = "error"   // it has failed
	HealthUnknown Health = "unknown" // it could not be observed this time: its details are gone, but that it was there is kept
)

// An Item is one thing of an inventory.
type Item struct {
	Scope    string          `json:"scope"`
	Kind     string          `json:"kind"`
	ID       string          `json:"id"`
	Revision int64           `json:"revision"`
	Deleted  *time.Time      `json:"deleted,omitempty"` // when it was found to be gone; then the details are left out
	Name     string          `json:"name,omitempty"`
	Ref      schema.Ref      `json:"ref,omitzero"`      // its recorded resource
	Site     string          `json:"site_id,omitempty"` // the site whose mark it bears
	Health   Health          `json:"health,omitempty"`
	State    providers.Phase `json:"state,omitempty"`
	Detail   string          `json:"detail,omitempty"`
	Spec     schema.Object   `json:"spec,omitzero"` // references as names; secrets as digests
	Status   schema.Object   `json:"status,omitzero"`
}

// tombstones is how long deletions are reported.
const tombstones = 30 * 24 * time.Hour

// Remembers fails when an inventory in the store does not tell what changed after a revision: there is no such revision yet, or
// deletions since then are forgotten.
func Remembers(was state.Inventory, since int64) error {
	if since > was.Revision {
		return fmt.Errorf("revision %d is newer than the newest, which is %d", since, was.Revision)
	}
	if since > 0 && since < was.Oldest {
		return fmt.Errorf("changes since revision %d are no longer known: deletions are reported for %d days; start again with the full inventory", since, int(tombstones.Hours()/24))
	}
	return nil
}

// Inventory compares what was observed with what was observed before. It returns the inventory, whose revisions [Inventory.Number]
// fills in; what the store should hold of it, in the same order; and up to which revision deletions are no longer reported. The store
// holds what shown returns of an item; of none when it is nil.
func (s *Survey) Inventory(ks schema.Kinds, was state.Inventory, now time.Time, shown func(Item) Item) (inv *Inventory, next []state.InventoryPlace, oldest int64, changed bool) {
	inv = &Inventory{Site: s.Site, At: now, Unknown: s.Unknown()}
	inv.Complete = len(inv.Unknown) == 0
	seen := s.items(ks)
	before := map[schema.Place][]state.InventoryItem{}
	places := slices.Collect(maps.Keys(seen))
	for _, p := range was.Places {
		before[p.Place] = p.Items
		if _, ok := seen[p.Place]; !ok {
			places = append(places, p.Place)
		}
	}
	slices.SortFunc(places, schema.Place.Compare)
	for _, at := range places {
		_, looked := s.Observed.Things[at]
		items, entries, dropped := merge(seen[at], before[at], looked, now, shown)
		for i := range items {
			items[i].Scope, items[i].Kind = at.Scope, at.Kind
			changed = changed || entries[i].Revision == 0
		}
		oldest, changed = max(oldest, dropped), changed || dropped > 0
		inv.Items = append(inv.Items, items...)
		next = append(next, state.InventoryPlace{Place: at, Items: entries})
	}
	return inv, next, oldest, changed
}

// merge compares what was observed of a place, sorted, with what was there before, and returns the greatest revision of the
// deletions that are no longer reported.
func merge(seen []Item, before []state.InventoryItem, looked bool, now time.Time, shown func(Item) Item) (items []Item, entries []state.InventoryItem, dropped int64) {
	for len(seen) > 0 || len(before) > 0 {
		var item Item
		var entry state.InventoryItem
		had := len(before) > 0 && (len(seen) == 0 || before[0].ID <= seen[0].ID)
		if len(seen) > 0 && (!had || before[0].ID == seen[0].ID) {
			item, seen = seen[0], seen[1:]
			entry = state.InventoryItem{ID: item.ID, Digest: digestOf(&item)}
			switch unchanged := had && before[0].Deleted == nil && before[0].Digest == entry.Digest; {
			case unchanged && (shown == nil || before[0].Shown != nil): // an older version did not record what may be shown
				entry.Revision, entry.Shown = before[0].Revision, before[0].Shown
			case shown != nil:
				entry.Shown = encode(shown(item))
			}
		} else {
			entry = before[0]
			switch {
			case entry.Deleted != nil && now.Sub(*entry.Deleted) > tombstones:
				dropped, before = max(dropped, entry.Revision), before[1:]
				continue
			case entry.Deleted != nil:
				item = Item{Deleted: entry.Deleted}
			case !looked:
				item = Item{Health: HealthUnknown}
			default:
				entry = state.InventoryItem{ID: entry.ID, Deleted: &now}
				item = Item{Deleted: &now}
			}
			item.ID = entry.ID
		}
		if had {
			before = before[1:]
		}
		items, entries = append(items, item), append(entries, entry)
	}
	return items, entries, dropped
}

// items returns all observed things as items, by place, sorted by id.
func (s *Survey) items(ks schema.Kinds) map[schema.Place][]Item {
	names := s.recorded()
	all := make(map[schema.Place][]Item, len(s.Observed.Things))
	for at, things := range s.Observed.Things {
		in := names.In(at.Scope)
		items := make([]Item, len(things))
		for i := range things {
			t := &things[i]
			ref, _ := names.Find(at.Scope, at.Kind, t.ID)
			items[i] = Item{
				Scope: at.Scope, Kind: at.Kind, ID: t.ID, Name: t.Name, Ref: ref, Site: t.Mark.Site,
				Health: healthOf(t), State: t.Phase, Detail: t.Detail, Spec: diff.Named(ks[at.Kind], t.Spec, in), Status: t.Status,
			}
		}
		slices.SortFunc(items, func(a, b Item) int { return strings.Compare(a.ID, b.ID) })
		all[at] = items
	}
	return all
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

func digestOf(i *Item) string {
	sum := sha256.Sum256(encode(*i))
	return hex.EncodeToString(sum[:])
}

func encode(i Item) []byte {
	b, err := json.Marshal(&i)
	if err != nil { // it consists of JSON values only
		panic(fmt.Sprintf("survey: encode an inventory item: %v", err))
	}
	return b
}

// A Cursor is a thing of an inventory, after which a page begins; the zero Cursor is before all.
type Cursor struct {
	schema.Place
	ID string
}

// Recorded returns a page of what the store holds of an inventory: at most limit items after a cursor, and of these what changed after a
// revision. More reports whether there are others behind them. It does not know which kinds could be observed last: Complete is not set.
// It fails like [Remembers].
func Recorded(site schema.Site, stored state.Inventory, since int64, after Cursor, limit int) (inv *Inventory, more bool, err error) {
	if err := Remembers(stored, since); err != nil {
		return nil, false, err
	}
	inv = &Inventory{Site: site, Revision: stored.Revision, Since: since, At: stored.At, Items: []Item{}}
	for _, p := range stored.Places {
		behind := p.Place.Compare(after.Place)
		if behind < 0 {
			continue
		}
		for _, entry := range p.Items {
			if entry.Revision <= since || behind == 0 && entry.ID <= after.ID {
				continue
			}
			if len(inv.Items) == limit {
				return inv, true, nil
			}
			var i Item
			if entry.Shown != nil {
				if err := json.Unmarshal(entry.Shown, &i); err != nil {
					return nil, false, fmt.Errorf("the recorded %s %s of %s cannot be read: %w", p.Kind, entry.ID, p.Scope, err)
				}
			}
			i.Scope, i.Kind, i.ID, i.Revision, i.Deleted = p.Scope, p.Kind, entry.ID, entry.Revision, entry.Deleted
			inv.Items = append(inv.Items, i)
		}
	}
	return inv, false, nil
}

// Number gives every item the revision at which the store has recorded it, and keeps those that changed after a revision.
func (inv *Inventory) Number(stored state.Inventory, since int64) {
	inv.Since, inv.Revision = since, stored.Revision
	items := inv.Items
	for _, p := range stored.Places {
		for i := range p.Items {
			items[i].Revision = p.Items[i].Revision
		}
		items = items[len(p.Items):]
	}
	inv.Items = slices.DeleteFunc(inv.Items, func(i Item) bool { return i.Revision <= since })
}
