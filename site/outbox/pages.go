package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"converge.dev/converge/engine/survey"
	"converge.dev/converge/internal/retry"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// Limits of a page.
const (
	pageItems = 100
	pageBytes = 64 << 10 // of its items; one that is larger by itself comes alone
)

// pages are what is told of the inventory, when nothing else waits: what the receiver has not been told yet, in as many events as that
// takes. An event is made when it is sent, from what is recorded then. So nothing of it waits: a receiver that was away learns what is
// true when it is back, once, and nothing is dropped. How far the receiver is, is in the store.
//
// Only the goroutine that sends uses them, but for newest.
type pages struct {
	newest int64 // the revision in the store; guarded by Outbox.mu

	known  bool       // told and at were read
	told   state.Told // how far the receiver is
	at     reached    // the same
	began  int64      // newest, when the pages that are told now were begun
	seen   int64      // newest, when those that were told completely were
	stored *state.Inventory
	now    *page
	said   string // why no page could be made, the last time
}

// reached says how far a receiver is: it knows all changes up to Since, and those up to To of the things up to After.
type reached struct {
	Since int64         `json:"since"`
	To    int64         `json:"to,omitempty"` // 0: it knows nothing that is newer than Since
	After survey.Cursor `json:"after,omitzero"`
}

// A page is the part of the inventory that is sent now.
type page struct {
	event   state.Outgoing
	then    reached // once it was delivered
	refused int     // how often the receiver has said that it is wrong
}

// contents is the data of an event about the inventory.
type contents struct {
	Revision int64             `json:"revision"`       // up to which changes are told once More is false
	Since    int64             `json:"since_revision"` // the items changed after it; 0: these are all that there are
	At       time.Time         `json:"at"`             // when the inventory last changed
	Items    []json.RawMessage `json:"items"`          // each a [survey.Item]; sorted by scope, kind and id, deletions included
	More     bool              `json:"more"`           // other items up to this revision follow, in another event
}

// tellInventory notes that the inventory has another revision.
func (b *Outbox) tellInventory(ctx context.Context) error {
	if !b.wants(InventoryChanged) {
		<-ctx.Done()
		return ctx.Err()
	}
	for changes, err := range b.o.Store.FollowInventory(ctx) {
		if err != nil {
			return err
		}
		for _, c := range changes.Changes {
			if !c.Gone && c.Err == nil {
				b.mu.Lock()
				b.pages.newest = c.Value.Revision
				b.mu.Unlock()
				b.rouse()
			}
		}
	}
	return ctx.Err()
}

// page returns the event about the inventory that is sent next; ok: there is one.
func (b *Outbox) page(ctx context.Context) (e state.Outgoing, ok bool, err error) {
	p := &b.pages
	b.mu.Lock()
	newest := p.newest
	b.mu.Unlock()
	if newest == 0 { // nothing was recorded, or nobody wants to know
		return e, false, nil
	}
	if p.now != nil {
		return p.now.event, true, nil
	}
	if !p.known {
		told, _, err := b.told(ctx, "inventory")
		if err != nil {
			return e, false, err
		}
		p.at = reached{}
		_ = json.Unmarshal([]byte(told.Mark), &p.at) // of what cannot be read, everything is told
		p.told, p.known = told, true
	}
	if p.at.To == 0 {
		if newest == p.at.Since || newest == p.seen {
			return e, false, nil
		}
		p.began = newest
	}
	if p.now, err = b.turn(ctx); err != nil {
		return e, false, err
	}
	return p.now.event, true, nil
}

// unmade says once why no page can be made, and waits a while.
func (b *Outbox) unmade(ctx context.Context, err error) {
	if text := err.Error(); ctx.Err() == nil && text != b.pages.said {
		b.o.Logger.Warn("the inventory cannot be told", "error", err, "again_in", again)
		b.pages.said = text
	}
	b.pages.stored = nil
	_ = retry.Sleep(ctx, again)
}

// turn makes the next page.
func (b *Outbox) turn(ctx context.Context) (*page, error) {
	p := &b.pages
	if p.stored == nil {
		stored, err := b.o.Store.Inventory(ctx)
		if err != nil {
			return nil, err
		}
		p.stored = &stored
	}
	if p.at.To > p.stored.Revision || survey.Remembers(*p.stored, p.at.Since) != nil { // deletions are forgotten, or the store is another one
		p.at = reached{}
	}
	if p.at.To == 0 {
		p.at.To = p.stored.Revision
	}
	inv, more, err := survey.Recorded(b.o.Site, *p.stored, p.at.Since, p.at.After, pageItems)
	if err != nil {
		return nil, err
	}
	c := contents{Revision: p.at.To, Since: p.at.Since, At: inv.At, Items: []json.RawMessage{}, More: more}
	then, size := reached{Since: p.at.To}, 0
	for _, i := range inv.Items {
		i.Detail = b.shown(i.Detail)
		text, err := json.Marshal(i)
		if err != nil {
			return nil, err
		}
		if size += len(text); size > pageBytes && len(c.Items) > 0 {
			c.More = true
			break
		}
		c.Items = append(c.Items, text)
		then.After = survey.Cursor{Place: schema.Place{Scope: i.Scope, Kind: i.Kind}, ID: i.ID}
	}
	if c.More {
		then.Since, then.To = p.at.Since, p.at.To
	} else {
		then.After = survey.Cursor{}
	}
	e, err := b.make(InventoryChanged, "inventory", inv.At, c, p.at.Since, p.at.To, p.at.After.Place, p.at.After.ID, inv.Revision)
	if err != nil {
		return nil, err
	}
	p.said = ""
	return &page{event: e, then: then}, nil
}

// turned notes that the receiver has the page that was sent. When that cannot be written, the receiver gets it once more.
func (b *Outbox) turned(ctx context.Context) {
	p := &b.pages
	p.at = p.now.then
	p.now = nil
	if p.at.To == 0 {
		p.stored, p.seen = nil, p.began
	}
	mark, err := json.Marshal(p.at)
	if err == nil {
		p.told.Mark = string(mark)
		p.told, err = b.keep(ctx, nil, p.told)
	}
	if err != nil {
		p.known = false
		if ctx.Err() == nil && !errors.Is(err, state.ErrGuard) {
			b.o.Logger.Warn("how far the inventory was told could not be written", "error", err)
		}
	}
}

// unturned notes that the page could not be sent: it is made anew, since the site may be another one when the receiver is back. It
// reports whether the receiver says again and again that this page is wrong: it then gets the next one.
func (b *Outbox) unturned(refuses bool) (skip bool) {
	p := &b.pages
	if refuses {
		p.now.refused++
		return p.now.refused >= tries
	}
	p.now, p.stored = nil, nil
	return false
}
