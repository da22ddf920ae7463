package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/schema"
	"converge.dev/converge/site/api"
	"converge.dev/converge/state"
)

// The inventory is read page by page, as a whole or from a revision on; only the keeper says how complete it is.
func TestInventory(t *testing.T) {
	b := newBed(t)
	if v, status := into[api.InventoryPage](b, "/v1/inventory"); status != 200 || len(v.Items) != 0 || v.Revision != 0 || v.Complete != nil {
		t.Errorf("%d, %+v", status, v)
	}
	record := func(places ...state.InventoryPlace) {
		t.Helper()
		was, err := b.Store.Inventory(t.Context())
		if err == nil {
			_, err = b.Store.PutInventory(t.Context(), was, places, 0, b.time())
		}
		if err != nil {
			t.Fatal(err)
		}
		b.pass(time.Minute)
	}
	item := func(id string, revision int64) state.InventoryItem {
		return state.InventoryItem{ID: id, Digest: "d", Revision: revision, Shown: fmt.Appendf(nil, `{"name": "of %s", "detail": "failed with %s"}`, strings.ReplaceAll(id, `"`, `\"`), scrubed)}
	}
	odd := `a/b c?"%`
	near := state.InventoryPlace{Place: schema.Place{Scope: "n1", Kind: "near.bridge"}, Items: []state.InventoryItem{item("1", 0), item(odd, 0)}}
	far := state.InventoryPlace{Place: schema.Place{Scope: "site", Kind: "far.net"}, Items: []state.InventoryItem{item("1", 0), item("2", 0)}}
	record(near, far)
	far.Items = []state.InventoryItem{item("1", 1), item("2", 0), item("3", 0)}
	near.Items[0].Revision, near.Items[1].Revision = 1, 1
	record(near, far)
	walk := func(since, limit int) (ids []string) {
		t.Helper()
		after := ""
		for range 10 {
			v, status := into[api.InventoryPage](b, fmt.Sprintf("/v1/inventory?since=%d&limit=%d&after=%s", since, limit, url.QueryEscape(after)))
			if status != 200 || len(v.Items) > limit || v.Revision != 2 || v.Since != int64(since) {
				t.Fatalf("%d, %+v", status, v)
			}
			for _, i := range v.Items {
				ids = append(ids, fmt.Sprintf("%s/%s/%s@%d", i.Scope, i.Kind, i.ID, i.Revision))
				if i.Name != "of "+i.ID || i.Detail != "failed with ***" {
					t.Errorf("%+v", i)
				}
			}
			if after = v.Next; after == "" {
				return ids
			}
		}
		t.Fatal("there is no end")
		return nil
	}
	all := []string{"n1/near.bridge/1@1", "n1/near.bridge/" + odd + "@1", "site/far.net/1@1", "site/far.net/2@2", "site/far.net/3@2"}
	for limit := 1; limit <= 6; limit++ {
		if got := walk(0, limit); fmt.Sprint(got) != fmt.Sprint(all) {
			t.Errorf("by %d: %q", limit, got)
		}
		if got := walk(1, limit); fmt.Sprint(got) != fmt.Sprint(all[3:]) {
			t.Errorf("since 1, by %d: %q", limit, got)
		}
	}
	for query, want := range map[string]int{"since=3": 410, "since=-1": 400, "since=x": 400, "after=x": 400, "after=site/far.net": 400, "limit=0": 400, "since=2": 200} {
		if res, body := b.get("/v1/inventory?" + query); res.StatusCode != want {
			t.Errorf("%s: %d %s", query, res.StatusCode, body)
		}
	}

	broken := state.InventoryPlace{Place: schema.Place{Scope: "site", Kind: "far.odd"}, Items: []state.InventoryItem{{ID: "1", Digest: "d", Shown: []byte(`[]`)}}}
	record(near, far, broken)
	if res, body := b.get("/v1/inventory"); res.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, "far.odd 1 of site cannot be read") {
		t.Errorf("what cannot be read: %d %s", res.StatusCode, body)
	}
	broken.Items = nil
	record(near, far, broken)

	b.Inventoried(nil, nil) // and then became the keeper
	b.keep()
	if c := b.component("inventory"); c.State != api.Unknown || c.Critical {
		t.Errorf("%+v", c)
	}
	b.Inventoried([]plan.Unknown{{Scope: "n1", Kind: "near.*", Error: "no route: " + scrubed}}, nil)
	v, _ := into[api.InventoryPage](b, "/v1/inventory")
	if v.Complete == nil || *v.Complete || len(v.Unknown) != 1 || v.Unknown[0].Error != "no route: ***" {
		t.Errorf("%+v", v)
	}
	if c := b.component("inventory"); c.State != api.Unknown || c.Detail != "1 kinds could not be observed: near.* of n1" {
		t.Errorf("%+v", c)
	}
	b.Inventoried(nil, errors.New("the store: "+scrubed))
	if v, _ := into[api.InventoryPage](b, "/v1/inventory"); v.Complete != nil {
		t.Errorf("%+v", v)
	}
	if c := b.component("inventory"); c.State != api.Error || c.Detail != "the store: ***" {
		t.Errorf("%+v", c)
	}
	b.Inventoried(nil, nil)
	if v, _ := into[api.InventoryPage](b, "/v1/inventory"); v.Complete == nil || !*v.Complete {
		t.Errorf("%+v", v)
	}
	if c := b.component("inventory"); c.State != api.OK {
		t.Errorf("%+v", c)
	}
	b.pass(time.Hour)
	if c := b.component("inventory"); c.State != api.Unknown {
		t.Errorf("%+v", c)
	}
	b.down.Store(true)
	b.pass(time.Minute)
	res, body := b.get("/v1/inventory")
	var p api.Problem
	if err := json.Unmarshal([]byte(body), &p); err != nil || res.StatusCode != http.StatusServiceUnavailable || strings.Contains(body, scrubed) {
		t.Errorf("%d %s", res.StatusCode, body)
	}
}
