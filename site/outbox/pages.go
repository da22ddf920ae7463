package outbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"time"

	"converge.dev/converge/engine/survey"
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
// They begin with a listing of everything, and go on with what changes after it. A new listing begins where it is not known that the
// receiver has the old one, or that its revisions are still those of the inventory.
//
// Only the goroutine that sends uses them, but for newest.
type pages struct {
	newest int64 // the revision in the store; 0: there is none, or nobody wants to know. Guarded by Outbox.mu

	known  bool       // told and at were read
	told   state.Told // how far the receiver is
	at     reached    // the same, or further where that could not be written
	began  int64      // newest, when the pages that are told now were begun
	seen   int64      // newest, when those that were told completely were
	stored *state.Inventory
	now    *page

	pauses func() time.Duration // after what could not be sent; nil: nothing failed
	until  time.Time            // no page is sent before
	wrong  time.Time            // when the receiver has first said that this page is wrong; zero: it has not
	said   string               // what was logged last of what failed here
}

// reached says how far a receiver is: it knows all changes up to Since, and those up to To of the things up to After.
type reached struct {
	Receiver string        `json:"receiver"`          // digest of its address
	Listing  string        `json:"listing,omitempty"` // when it was begun; later ones sort after earlier ones
	Since    int64         `json:"since,omitempty"`
	To       int64         `json:"to,omitempty"` // 0: it knows nothing that is newer than Since
	After    survey.Cursor `json:"after,omitzero"`
}

// A page is the part of the inventory that is sent now.
type page struct {
	event state.Outgoing
	then  reached // once it was delivered
}

// contents is the data of an event about the inventory.
type contents struct {
	Listing  string            `json:"listing"`        // to which revisions belong; later ones sort after earlier ones
	Revision int64             `json:"revision"`       // up to which changes are told once More is false
	Since    int64             `json:"since_revision"` // the items changed after it; 0: these are all that there are
	At       time.Time         `json:"at"`             // when the inventory last changed
	Items    []json.RawMessage `json:"items"`          // each a [survey.Item]; sorted by scope, kind and id, deletions included
	More     bool              `json:"more"`           // other items up to this revision follow, in another event
}

// receiverOf returns a digest of where a webhook is, without its query, which may have a key that is replaced.
func receiverOf(webhook string) string {
	u, err := url.Parse(webhook)
	if err != nil {
		return ""
	}
	digest := sha256.Sum256([]byte(u.Scheme + "://" + u.Host + u.Path))
	return hex.EncodeToString(digest[:8])
}

// listing names a listing that begins now, after another one.
func listing(now time.Time, before string) string {
	const format = "2006-01-02T15:04:05.000000000Z" // of one length
	if last, err := time.Parse(format, before); err == nil && !now.After(last) {
		now = last.Add(time.Nanosecond)
	}
	return now.UTC().Format(format)
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
			b.mu.Lock()
			switch {
			case c.Gone:
				b.pages.newest = 0
			case c.Err == nil:
				b.pages.newest = c.Value.Revision
			}
			b.mu.Unlock()
			b.rouse()
		}
	}
	return ctx.Err()
}

// page returns the event about the inventory that is sent next; ok: there is one. Where there is none, wait is how long there will be
// none for sure, unless something changes; 0: until then.
func (b *Outbox) page(ctx context.Context) (e state.Outgoing, wait time.Duration, ok bool) {
	p := &b.pages
	b.mu.Lock()
	newest := p.newest
	b.mu.Unlock()
	if newest == 0 {
		return e, 0, false
	}
	if wait = p.until.Sub(b.o.Now()); wait > 0 {
		return e, wait, false
	}
	if p.now == nil {
		var err error
		if p.now, err = b.turn(ctx, newest); err != nil {
			b.say("the inventory cannot be told", err)
			p.stored = nil
			return e, again, false
		}
		if p.now == nil {
			return e, 0, false
		}
	}
	return p.now.event, 0, true
}

// turn makes the next page; nil: the receiver knows everything.
func (b *Outbox) turn(ctx context.Context, newest int64) (*page, error) {
	p := &b.pages
	if !p.known {
		told, _, err := b.told(ctx, state.InventoryTold)
		if err != nil {
			return nil, err
		}
		var at reached
		if err := json.Unmarshal([]byte(told.Mark), &at); err != nil {
			at = reached{}
		}
		p.told, p.at, p.known = told, at, true
	}
	anew := p.at.Listing == "" || p.at.Receiver != b.receiver
	if !anew && p.at.To == 0 && (newest == p.at.Since || newest == p.seen) {
		return nil, nil
	}
	if p.stored == nil {
		stored, err := b.o.Store.Inventory(ctx)
		if err != nil {
			return nil, err
		}
		if stored.Revision == 0 { // it has just been removed
			return nil, nil
		}
		p.stored = &stored
	}
	if anew || p.at.To > p.stored.Revision || survey.Remembers(*p.stored, p.at.Since) != nil {
		p.at = reached{Receiver: b.receiver, Listing: listing(b.o.Now(), p.at.Listing)}
	}
	if p.at.To == 0 {
		p.at.To, p.began = p.stored.Revision, newest
	}
	inv, more, err := survey.Recorded(b.o.Site, *p.stored, p.at.Since, p.at.After, pageItems)
	if err != nil {
		return nil, err
	}
	c := contents{Listing: p.at.Listing, Revision: p.at.To, Since: p.at.Since, At: inv.At, Items: []json.RawMessage{}, More: more}
	size := 0
	var last survey.Item
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
		c.Items, last = append(c.Items, text), i
	}
	then := p.at
	if c.More {
		then.After = survey.Cursor{Place: schema.Place{Scope: last.Scope, Kind: last.Kind}, ID: last.ID}
	} else {
		then.Since, then.To, then.After = p.at.To, 0, survey.Cursor{}
	}
	body, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	e, err := b.make(InventoryChanged, "inventory", inv.At, json.RawMessage(body), fmt.Sprintf("%x", sha256.Sum256(body)))
	return &page{event: e, then: then}, err
}

// turned notes that the receiver has the page that was sent. What cannot be written is written with the next one; if this process ends
// before, the receiver gets some pages once more.
func (b *Outbox) turned(ctx context.Context) {
	p := &b.pages
	p.at, p.now = p.now.then, nil
	p.pauses, p.until, p.wrong = nil, time.Time{}, time.Time{}
	if p.at.To == 0 {
		p.stored, p.seen = nil, p.began
	}
	mark, err := json.Marshal(p.at)
	if err == nil {
		p.told.Mark = string(mark)
		var all []state.Told
		if all, err = b.o.Store.Tell(ctx, nil, p.told); err == nil {
			p.told, p.said = all[0], ""
			return
		}
	}
	if errors.Is(err, state.ErrGuard) || errors.Is(err, state.ErrUnknown) { // begin again with what is in the store
		p.known, p.stored, p.seen, p.until = false, nil, 0, b.o.Now().Add(again)
		return
	}
	if ctx.Err() == nil {
		b.say("how far the inventory was told could not be written", err)
	}
}

// unturned notes that the page could not be sent. It is made anew, since the site may be another one when the receiver is back; unless
// the receiver says that it is wrong: then it is given up at last, and the next one is sent.
func (b *Outbox) unturned(ctx context.Context, err error) {
	p := &b.pages
	if p.pauses == nil {
		p.pauses = b.pauses()
	}
	now, pause := b.o.Now(), p.pauses()
	answer := (*answerError)(nil)
	if errors.As(err, &answer) {
		pause = max(pause, answer.after)
	}
	p.until = now.Add(pause)
	switch id := p.now.event.ID; {
	case answer == nil || !answer.refuses():
		p.now, p.stored, p.wrong = nil, nil, time.Time{}
	case p.wrong.IsZero():
		p.wrong = now
		b.o.Logger.Error("the receiver of events says that a part of the inventory is wrong", "id", id, "error", err, "given_up_after", Patience)
	case now.Sub(p.wrong) >= Patience:
		b.o.Logger.Error("the receiver of events goes on to say that a part of the inventory is wrong: it is given up", "id", id, "error", err)
		b.refuse(p.now.event)
		b.settle(ctx) // before it counts as told
		b.turned(ctx)
	}
}

// say logs what fails with the inventory, once.
func (b *Outbox) say(what string, err error) {
	if text := what + err.Error(); text != b.pages.said {
		b.o.Logger.Warn(what, "error", err)
		b.pages.said = text
	}
}
