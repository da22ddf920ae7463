package outbox_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/engine/survey"
	"converge.dev/converge/schema"
	"converge.dev/converge/site/outbox"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// A page is the data of an event about the inventory.
type page struct {
	Listing  string        `json:"listing"`
	Revision int64         `json:"revision"`
	Since    int64         `json:"since_revision"`
	At       time.Time     `json:"at"`
	Items    []survey.Item `json:"items"`
	More     bool          `json:"more"`
}

// pages returns the events about the inventory that have come.
func (b *bed) pages() (list []page) {
	b.Helper()
	for _, e := range first(b, b.cloud.events()) {
		if e.Type != "dev.converge.inventory.changed" {
			continue
		}
		var p page
		if err := json.Unmarshal(e.Data, &p); err != nil {
			b.Fatal(err)
		}
		list = append(list, p)
	}
	return list
}

// has records that a kind has these things, each with a detail of this size, and that it no longer has others.
func (b *bed) has(kind string, size int, ids ...string) {
	b.Helper()
	was, err := b.store.Inventory(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	now := time.Now()
	next := slices.Clone(was.Places)
	at := slices.IndexFunc(next, func(p state.InventoryPlace) bool { return p.Kind == kind })
	if at < 0 {
		next = append(next, state.InventoryPlace{Place: schema.Place{Scope: "n1", Kind: kind}})
		slices.SortFunc(next, func(a, b state.InventoryPlace) int { return a.Place.Compare(b.Place) })
		at = slices.IndexFunc(next, func(p state.InventoryPlace) bool { return p.Kind == kind })
	}
	items := map[string]state.InventoryItem{}
	for _, i := range next[at].Items {
		if i.Deleted == nil && !slices.Contains(ids, i.ID) {
			i = state.InventoryItem{ID: i.ID, Deleted: &now}
		}
		items[i.ID] = i
	}
	for _, id := range ids {
		shown, err := json.Marshal(survey.Item{Name: "the " + id, Detail: "hunter2 " + strings.Repeat("x", size), Spec: schema.Object{"big": strings.Repeat("y", size)}})
		if err != nil {
			b.Fatal(err)
		}
		if digest := fmt.Sprint(id, size); items[id].Digest != digest {
			items[id] = state.InventoryItem{ID: id, Digest: digest, Shown: shown}
		}
	}
	next[at].Items = nil
	for _, i := range items {
		next[at].Items = append(next[at].Items, i)
	}
	slices.SortFunc(next[at].Items, func(a, b state.InventoryItem) int { return strings.Compare(a.ID, b.ID) })
	if _, err := b.store.PutInventory(b.Context(), was, next, 0, now); err != nil {
		b.Fatal(err)
	}
}

func numbered(from, to int) (ids []string) {
	for i := from; i < to; i++ {
		ids = append(ids, fmt.Sprintf("%04d", i))
	}
	return ids
}

// told is what a cloud that has taken these pages, and does what the documents say, knows of the things that there are.
func told(t *testing.T, pages []page) (ids []string) {
	t.Helper()
	had, have := map[string]survey.Item{}, map[string]survey.Item{} // of the listing before, and of this one
	listing, whole := "", false
	for _, p := range pages {
		if p.Listing < listing { // late
			continue
		}
		if p.Listing > listing {
			listing, whole = p.Listing, false
			if len(have) > 0 {
				had = have
			}
			have = map[string]survey.Item{}
		}
		for _, it := range p.Items {
			if it.Revision <= p.Since {
				t.Errorf("%s has not changed since %d", it.ID, p.Since)
			}
			if k := it.Scope + "/" + it.Kind + "/" + it.ID; have[k].Revision < it.Revision {
				have[k] = it
			}
			if strings.Contains(it.Detail, "hunter2") {
				t.Error("a secret was told")
			}
		}
		whole = whole || !p.More
	}
	if !whole {
		for k, it := range had {
			if _, ok := have[k]; !ok {
				have[k] = it
			}
		}
	}
	for k, it := range have {
		if it.Deleted == nil {
			ids = append(ids, k)
		}
	}
	slices.Sort(ids)
	return ids
}

// The cloud is told all that the site has, in pages, and then what has changed, deletions included; by whichever process.
func TestPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.has("ovs.bridge", 0, numbered(0, 230)...)
		b.has("ovs.port", 10<<10, numbered(0, 9)...)
		stop := b.run(b.new(nil))
		pass(time.Second)
		got := b.pages()
		var sizes []string
		for _, p := range got {
			sizes = append(sizes, fmt.Sprint(len(p.Items), " ", p.More))
			if p.Since != 0 || p.Revision != 2 {
				t.Errorf("of %d, since %d", p.Revision, p.Since)
			}
		}
		if want := "[100 true 100 true 35 true 4 false]"; fmt.Sprint(sizes) != want { // no event is much larger than 64 KiB
			t.Errorf("%v, want %s", sizes, want)
		}
		if n := len(told(t, got)); n != 239 {
			t.Errorf("%d things", n)
		}
		b.has("ovs.port", 10<<10, numbered(1, 10)...)
		pass(time.Second)
		stop()
		if got = b.pages()[4:]; len(got) != 1 || got[0].Since != 2 || got[0].Revision != 3 || got[0].More || len(got[0].Items) != 2 ||
			got[0].Items[0].ID != "0000" || got[0].Items[0].Deleted == nil || got[0].Items[1].Name != "the 0009" {
			t.Errorf("%d pages", len(got))
		}
		for range 2 { // another process tells nothing twice
			stop = b.run(b.new(nil))
			pass(time.Minute)
			stop()
		}
		if n := len(b.cloud.events()); n != 5 {
			t.Errorf("%d events", n)
		}
		stop = b.run(b.new(func(o *outbox.Options) { o.Kinds = []string{outbox.RunEnded} }))
		b.has("ovs.port", 1)
		pass(time.Minute)
		stop()
		if n := len(b.cloud.events()); n != 5 {
			t.Errorf("who does not want it is told: %d events", n)
		}
	})
}

// A receiver that was away is told what is true when it is back: not what was meanwhile. What else is to be told comes first.
func TestPagesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.has("ovs.bridge", 0, numbered(0, 150)...)
		b.cloud.answer = func(n int, _ received) (int, http.Header, error) {
			if n == 1 {
				return 204, nil, nil
			}
			return 503, nil, nil
		}
		stop := b.run(b.new(nil))
		for i := range 5 {
			pass(time.Minute)
			b.has("ovs.bridge", i+1, numbered(0, 151+i)...)
			b.put(ended(i, nil))
		}
		b.cloud.mu.Lock()
		b.cloud.answer = nil
		b.cloud.mu.Unlock()
		pass(10 * time.Minute)
		stop()
		var kinds []string
		for _, e := range b.cloud.events() {
			kinds = append(kinds, strings.TrimPrefix(e.Type, "dev.converge."))
		}
		if want := "inventory.changed run.ended run.ended run.ended run.ended run.ended inventory.changed inventory.changed inventory.changed"; strings.Join(kinds, " ") != want {
			t.Errorf("%v", kinds)
		}
		got := b.pages()
		if n := len(told(t, got)); n != 155 {
			t.Errorf("%d things", n)
		}
		if p := got[len(got)-1]; p.Revision != 6 || p.More {
			t.Errorf("at last revision %d", p.Revision)
		}
		if d := b.delivery(); d.Dropped != 0 || d.Refused != 0 {
			t.Errorf("%+v", d)
		}
	})
}

// A page that the receiver does not take is given up, and said; the others come.
func TestPagesRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.has("ovs.bridge", 0, numbered(0, 250)...)
		b.cloud.answer = func(_ int, e received) (int, http.Header, error) {
			if strings.Contains(string(e.Data), "the 0150") {
				return 400, nil, nil
			}
			return 204, nil, nil
		}
		stop := b.run(b.new(nil))
		pass(time.Minute)
		b.put(ended(1, nil))
		pass(time.Second)
		if got := subjects(b.cloud.events(), outbox.RunEnded); got == "" {
			t.Error("another event waits for a page that is wrong")
		}
		pass(20 * time.Minute)
		stop()
		got := b.pages()
		if n := len(told(t, got)); n != 150 || len(got) != 2 || got[1].More {
			t.Errorf("%d things in %d pages", n, len(got))
		}
		if d := b.delivery(); d.Refused != 1 || d.Unsaid != 0 || b.cloud.events()[2].Dropped != 1 || d.Error != "" {
			t.Errorf("%+v", d)
		}
		if n := strings.Count(b.logged(), "part of the inventory is wrong"); n != 2 {
			t.Errorf("said %d times", n)
		}
	})
}

// Whenever a process dies, and whatever of the store or the network fails, the cloud knows everything in the end.
func TestPagesCrash(t *testing.T) {
	for point := 1; ; point++ {
		ended := false
		synctest.Test(t, func(t *testing.T) {
			b := newBed(t)
			b.has("ovs.bridge", 0, numbered(0, 250)...)
			p := b.start(func(at int) bool { return at == point }, nil)
			pass(time.Minute)
			b.has("ovs.bridge", 0, numbered(20, 260)...)
			pass(time.Minute)
			p.end()
			ended = !p.isDead()
			stop := b.run(b.new(nil))
			pass(10 * time.Minute)
			stop()
			if got := told(t, b.pages()); len(got) != 240 || got[0] != "n1/ovs.bridge/0020" || got[239] != "n1/ovs.bridge/0259" {
				t.Errorf("point %d: %d things", point, len(got))
			}
		})
		if ended || t.Failed() {
			if point < 10 {
				t.Errorf("only %d points", point)
			}
			return
		}
	}
}

// What is told anew is told under another name, wherever the receiver may know what the inventory does not say: its revisions begin anew,
// they are those of a backup, or the receiver is another one.
func TestPagesBeginAnew(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(b *bed)
		change    func(*outbox.Options)
		want      string
	}{
		"nothing": {func(b *bed) { b.has("k", 0, "a", "b", "c") }, nil, "n1/k/a n1/k/b n1/k/c"},
		"the inventory is removed": {func(b *bed) {
			b.forget("inventory/")
			b.has("k", 0, "a", "d")
		}, nil, "n1/k/a n1/k/d"},
		"it is removed, and has as many revisions again": {func(b *bed) {
			b.forget("inventory/")
			b.has("k", 0, "d")
			b.has("k", 0, "d", "e")
			b.has("k", 0, "d", "e", "f")
		}, nil, "n1/k/d n1/k/e n1/k/f"},
		"the store is lost": {func(b *bed) {
			b.forget("")
			b.has("k", 0, "a", "d")
		}, nil, "n1/k/a n1/k/d"},
		"a backup": {func(b *bed) {
			b.forget("")
			b.has("k", 0, "a")
			now := b.cloud
			b.cloud = &cloud{}
			b.run(b.new(nil))()
			b.cloud = now
			if _, err := b.store.Restored(b.Context(), "ada", "test"); err != nil {
				b.Fatal(err)
			}
			b.has("k", 0, "a", "d")
		}, nil, "n1/k/a n1/k/d"},
		"another receiver": {func(b *bed) {
			b.cloud = &cloud{}
			b.has("k", 0, "a", "c")
		}, func(o *outbox.Options) { o.Webhook = "https://other.example/events" }, "n1/k/a n1/k/c"},
		"another key": {func(b *bed) { b.has("k", 0, "a", "c") }, func(o *outbox.Options) { o.Webhook += "2" }, "n1/k/a n1/k/c"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t)
				b.has("k", 0, "a")
				stop := b.run(b.new(nil))
				pass(time.Second)
				b.has("k", 0, "a", "b")
				pass(time.Second)
				stop()
				before := len(b.cloud.events())
				c.meanwhile(b)
				stop = b.run(b.new(c.change))
				pass(time.Minute)
				stop()
				if got := strings.Join(told(t, b.pages()), " "); got != c.want {
					t.Errorf("the cloud knows %s, and there are %s", got, c.want)
				}
				listings := map[string]bool{}
				for _, p := range b.pages() {
					listings[p.Listing] = true
				}
				if anew := name != "nothing" && name != "another key" && name != "another receiver"; (len(listings) > 1) != anew {
					t.Errorf("%d listings", len(listings))
				}
				if before != 2 {
					t.Errorf("%d events before", before)
				}
			})
		})
	}
}

// forget removes what is stored below a key.
func (b *bed) forget(prefix string) {
	b.Helper()
	items, err := b.kv.List(b.Context(), "")
	if err != nil {
		b.Fatal(err)
	}
	for _, it := range items {
		if strings.HasPrefix(it.Key, "/converge/fra1/"+prefix) {
			if _, err := b.kv.Commit(b.Context(), nil, []state.Op{{Key: it.Key, Delete: true}}); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// A page that is made anew with another content is another event: what has become secret meanwhile leaves room for more things.
func TestPagesOtherwise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.has("k", 900, numbered(0, 90)...)
		var learnt atomic.Bool
		b.cloud.answer = func(n int, _ received) (int, http.Header, error) {
			if n == 1 {
				learnt.Store(true)
				return 204, nil, errLost
			}
			return 204, nil, nil
		}
		stop := b.run(b.new(func(o *outbox.Options) {
			o.Scrub = func(text string) string {
				text = strings.ReplaceAll(text, "hunter2", "(hidden)")
				if learnt.Load() {
					text = strings.ReplaceAll(text, "xxxxxxxxx", "")
				}
				return text
			}
		}))
		pass(10 * time.Minute)
		stop()
		if n := len(told(t, b.pages())); n != 90 {
			t.Errorf("%d things", n)
		}
	})
}

// A page that cannot be delivered, or noted as delivered, holds no other event up.
func TestPagesHoldNothingUp(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(int, received) (int, http.Header, error)
		full   bool // the store takes nothing
	}{
		"an error for pages only": {answer: func(_ int, e received) (int, http.Header, error) {
			if strings.HasSuffix(e.Type, outbox.InventoryChanged) {
				return 500, nil, nil
			}
			return 204, nil, nil
		}},
		"a pause for pages only": {answer: func(_ int, e received) (int, http.Header, error) {
			if strings.HasSuffix(e.Type, outbox.InventoryChanged) {
				return 429, http.Header{"Retry-After": {"3600"}}, nil
			}
			return 204, nil, nil
		}},
		"a store that is full": {full: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t)
				b.run(b.new(nil))() // which runs are news
				b.has("k", 0, "a")
				b.cloud.answer = c.answer
				var full atomic.Bool
				stop := b.run(b.new(func(o *outbox.Options) {
					o.Store = state.New(b.kv.Connect(mem.Options{Fault: func(m mem.Call) error {
						if full.Load() && m.Name == "commit" && !m.Done {
							return errors.New("the store is full")
						}
						return nil
					}}), fra1.Name)
				}))
				pass(10 * time.Minute)
				full.Store(c.full)
				b.has("k", 0, "a", "b")
				pass(time.Second)
				e := state.Outgoing{ID: "7c0e9b1f-0000-4000-8000-000000000000", Type: "dev.converge.run.ended", At: time.Now(), Body: []byte(`{"id":"7c0e9b1f","type":"dev.converge.run.ended","specversion":"1.0","data":{}}`)}
				if _, err := b.store.Commit(b.Context(), nil, b.store.KeepEventOps(e)); err != nil {
					t.Fatal(err)
				}
				pass(time.Second)
				if subjects(b.cloud.events(), outbox.RunEnded) == "" {
					t.Errorf("it waits\n%s", b.logged())
				}
				full.Store(false)
				stop()
			})
		})
	}
}

// That a page is given up is counted before it counts as told, whenever a process dies.
func TestPagesRefusedCrash(t *testing.T) {
	for point := 1; ; point++ {
		ended := false
		synctest.Test(t, func(t *testing.T) {
			b := newBed(t)
			b.has("k", 0, numbered(0, 150)...)
			b.cloud.answer = func(_ int, e received) (int, http.Header, error) {
				if strings.Contains(string(e.Data), "the 0120") {
					return 400, nil, nil
				}
				return 204, nil, nil
			}
			p := b.start(func(at int) bool { return at == point }, nil)
			pass(30 * time.Minute)
			p.end()
			ended = !p.isDead()
			b.cloud.answer = nil
			stop := b.run(b.new(nil))
			b.has("other", 0, "z")
			pass(30 * time.Minute)
			stop()
			dropped := int64(0)
			for _, e := range first(t, b.cloud.events()) {
				dropped += e.Dropped
			}
			if n := len(told(t, b.pages())); n != 151 && dropped == 0 {
				t.Errorf("point %d: %d things, and none was dropped", point, n)
			}
		})
		if ended || t.Failed() {
			return
		}
	}
}
