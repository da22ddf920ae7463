package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/survey"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// taken is the last time that this replica has recorded the inventory.
type taken struct {
	at      time.Time
	unknown []plan.Unknown
	err     string
}

// Inventoried says that this replica has recorded the inventory, and what could not be observed; or why it was not recorded.
func (a *API) Inventoried(unknown []plan.Unknown, err error) {
	t := &taken{at: a.o.Now(), unknown: unknown}
	if err != nil {
		t.err = a.text(err.Error())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.taken = t
}

func inventoryHealth(me standing, stale time.Duration, now time.Time) Component {
	c := Component{Name: "inventory", State: Unknown}
	switch {
	case me.role != keeping:
		c.Detail = "it is recorded by the replica that keeps the site"
	case me.taken == nil:
		c.Detail = "it has not been recorded yet"
	case now.Sub(me.taken.at) > stale:
		c.Detail, c.Since = "it has not been recorded since "+clock(me.taken.at), at(me.taken.at)
	case me.taken.err != "":
		c.State, c.Detail, c.Since = Error, me.taken.err, at(me.taken.at)
	case len(me.taken.unknown) > 0:
		u := me.taken.unknown[0]
		c.Detail, c.Since = fmt.Sprintf("%d kinds could not be observed: %s of %s", len(me.taken.unknown), u.Kind, u.Scope), at(me.taken.at)
	default:
		c.State, c.Since = OK, at(me.taken.at)
	}
	return c
}

// An InventoryPage is a part of what the site has, or of what has changed of that.
type InventoryPage struct {
	Site     schema.Site    `json:"site"`
	Revision int64          `json:"revision"`
	Since    int64          `json:"since_revision,omitempty"`
	At       time.Time      `json:"at"`                 // when it last changed
	Complete *bool          `json:"complete,omitempty"` // everything was observed the last time; absent where that is not known
	Unknown  []plan.Unknown `json:"unknown,omitempty"`
	Items    []survey.Item  `json:"items"` // sorted by scope, kind and id
	Next     string         `json:"next,omitempty"`
}

// recorded is the inventory in the store.
type recorded struct {
	state.Inventory
	err error
}

// kept is how long the inventory stays in memory for those who read it page by page.
const kept = 10 * time.Second

func (a *API) inventory(r *http.Request) (any, int, error) {
	p, err := pageOf(r, "since")
	if err != nil {
		return nil, 0, err
	}
	var since int64
	if p.since != "" {
		if since, err = strconv.ParseInt(p.since, 10, 64); err != nil || since < 0 {
			return nil, 0, problem(http.StatusBadRequest, "since: want a revision of the inventory")
		}
	}
	var after survey.Cursor
	if p.after != "" {
		part := strings.SplitN(p.after, "/", 3)
		if len(part) != 3 {
			return nil, 0, problem(http.StatusBadRequest, "after: want the next of the page before")
		}
		after = survey.Cursor{Place: schema.Place{Scope: part[0], Kind: part[1]}, ID: part[2]}
	}
	all := a.inventories.get()
	a.mu.Lock()
	if a.forget == nil {
		a.forget = time.AfterFunc(kept, func() {
			a.inventories.drop()
			a.mu.Lock()
			defer a.mu.Unlock()
			a.forget = nil
		})
	}
	a.mu.Unlock()
	if all.err != nil {
		return nil, 0, away(all.err)
	}
	if err := survey.Remembers(all.Inventory, since); err != nil {
		return nil, 0, problem(http.StatusGone, "since: %v", err)
	}
	inv, more, err := survey.Recorded(a.o.Site, all.Inventory, since, after, p.limit)
	if err != nil {
		return nil, 0, err
	}
	v := InventoryPage{Site: inv.Site, Revision: inv.Revision, Since: since, At: inv.At, Items: inv.Items}
	if more {
		last := inv.Items[len(inv.Items)-1]
		v.Next = last.Scope + "/" + last.Kind + "/" + last.ID
	}
	for i := range v.Items {
		v.Items[i].Detail = a.text(v.Items[i].Detail)
	}
	if me := a.standing(); me.role == keeping && me.taken != nil && me.taken.err == "" {
		complete := len(me.taken.unknown) == 0
		v.Complete = &complete
		for _, u := range me.taken.unknown {
			u.Error = a.text(u.Error)
			v.Unknown = append(v.Unknown, u)
		}
	}
	return v, 0, nil
}

func readInventory(ctx context.Context, s *state.Store) recorded {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), longest)
	defer cancel()
	inv, err := s.Inventory(ctx)
	if errors.Is(err, state.ErrNotFound) {
		err = nil
	}
	return recorded{inv, err}
}
