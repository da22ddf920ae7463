package api_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"converge.dev/converge/engine/drift"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/site"
	"converge.dev/converge/site/api"
	"converge.dev/converge/state"
)

// A replica is ready once it keeps the site and has looked at it, or waits while another one does, and only while the store answers.
func TestReady(t *testing.T) {
	b := newBed(t)
	ready := func(want bool, words ...string) {
		t.Helper()
		b.pass(time.Minute)
		r, status := into[api.Readiness](b, "/readyz")
		text := fmt.Sprintf("%+v", r)
		if r.Ready != want || (status == http.StatusOK) != want || !want && status != http.StatusServiceUnavailable {
			t.Errorf("status %d, %s: want ready %v", status, text, want)
		}
		for _, w := range words {
			if !strings.Contains(text, w) {
				t.Errorf("%s: want %q", text, w)
			}
		}
	}
	ready(false, "neither keeps the site nor is on standby")
	b.Waits(state.KeeperInfo{Who: "ada@lab"})
	ready(true, "standby", "ada@lab")
	b.Keeps()
	ready(false, "keeper", "has not looked at the site yet")
	b.Rounded(time.Second, errors.New("the document is damaged"))
	ready(true, "keeper") // whoever would take its place would not fare better
	b.down.Store(true)
	ready(false, "the store does not answer", "***")
	b.down.Store(false)
	ready(true)
	b.Yields()
	ready(false, "starting")
	b.Keeps()
	ready(false, "has not looked at the site yet") // the round of earlier does not count

	if res, body := b.get("/healthz"); res.StatusCode != http.StatusOK || body != "ok\n" {
		t.Errorf("%d %q", res.StatusCode, body)
	}
	b.down.Store(true)
	b.pass(time.Minute)
	if res, body := b.get("/healthz"); res.StatusCode != http.StatusOK || body != "ok\n" {
		t.Errorf("without a store: %d %q", res.StatusCode, body)
	}
}

// What is not known is never ok, and neither is the whole then.
func TestUnknownIsNotOK(t *testing.T) {
	b := newBed(t)
	for _, name := range []string{"keeper", "round", "status", "drift", "provider/site/far"} {
		if c := b.component(name); c.State == api.OK {
			t.Errorf("before anything happened: %+v", c)
		}
	}
	b.trust = nil
	if c := b.component("trust"); c.State != api.Unknown {
		t.Errorf("%+v", c)
	}
	if got := b.state(); got == api.OK {
		t.Error("the whole is ok")
	}

	// Another replica keeps the site: what only that one knows is unknown here, and no reason to call this one.
	b = newBed(t)
	b.keep()
	b.Waits(state.KeeperInfo{Who: "ada@lab"})
	if c := b.component("provider/site/far"); c.State != api.Unknown || c.Critical {
		t.Errorf("%+v", c)
	}
	if c := b.component("drift"); c.State != api.OK { // it is in the store
		t.Errorf("%+v", c)
	}
	if got := b.state(); got != api.OK {
		t.Errorf("on standby the whole is %s", got)
	}
	b.down.Store(true)
	for _, name := range []string{"document", "status", "drift", "run", "lock", "holds", "nodes"} {
		if c := b.component(name); c.State != api.Unknown {
			t.Errorf("without a store: %+v", c)
		}
	}
	if c := b.component("store"); c.State != api.Critical || strings.Contains(c.Detail, scrubed) || !strings.Contains(c.Detail, "no quorum") {
		t.Errorf("%+v", c)
	}
	if got := b.state(); got != api.Critical {
		t.Errorf("without a store the whole is %s", got)
	}
}

// What a replica has seen while it kept the site says nothing once another one may have kept it meanwhile.
func TestKeepsAgain(t *testing.T) {
	b := newBed(t)
	b.keep()
	b.Waits(state.KeeperInfo{Who: "ada@lab"})
	b.Keeps()
	for _, name := range []string{"round", "provider/site/far"} {
		if c := b.component(name); c.State != api.Unknown {
			t.Errorf("%+v", c)
		}
	}
}

// Everything in order is ok; each thing that is not changes its component, and the whole where it is critical.
func TestState(t *testing.T) {
	b := newBed(t)
	b.keep()
	for _, name := range []string{"store", "keeper", "round", "document", "status", "drift", "run", "lock", "holds", "trust", "provider/site/far", "provider/n1/near", "nodes"} {
		if c := b.component(name); c.State != api.OK {
			t.Errorf("in order: %+v", c)
		}
	}
	if got := b.state(); got != api.OK {
		t.Errorf("in order the whole is %s", got)
	}
	for _, c := range []struct {
		name  string
		do    func(*bed)
		want  api.State
		whole api.State
		says  string
	}{
		{"round", func(b *bed) { b.Rounded(time.Second, errors.New("bad "+scrubed)) }, api.Error, api.Error, "bad ***"},
		{"status", func(b *bed) { b.publish("status", site.Status{Phase: site.Waiting, Detail: "update x interrupts"}) }, api.Warn, api.Warn, "waiting: update x"},
		{"status", func(b *bed) { b.publish("status", site.Status{Phase: site.Failed}) }, api.Error, api.Error, "failed"},
		{"status", func(b *bed) { b.publish("status", site.Status{Phase: "of another version"}) }, api.Warn, api.Warn, ""},
		{"status", func(b *bed) { b.publish("status", []int{1}) }, api.Error, api.Error, "corrupt"},
		{"drift", func(b *bed) { b.publish("drift/latest", drift.Report{Complete: true, Drifted: []drift.Item{{}}}) }, api.Warn, api.OK, "1 drifted"},
		{"drift", func(b *bed) {
			b.publish("drift/latest", drift.Report{Complete: true, Drifted: make([]drift.Item, 3), Omitted: 7})
		}, api.Warn, api.OK, "at least 3 drifted, 0 changed in fields that the document does not state, 0 stray; 7 more entries"},
		{"drift", func(b *bed) {
			b.publish("drift/latest", drift.Report{Unknown: []plan.Unknown{{Scope: "n1", Kind: "near.bridge", Error: "away"}}})
		}, api.Unknown, api.OK, ""},
		{"provider/n1/near", func(b *bed) { // nothing is observed where a provider cannot be opened
			b.publish("drift/latest", drift.Report{Unknown: []plan.Unknown{{Scope: "n1", Kind: "near.bridge", Error: "away"}}})
		}, api.Error, api.OK, "away"},
		{"provider/site/far", func(b *bed) {
			b.API.Event(event.Observed{Scope: schema.ScopeSite, Kind: "far.net", Err: errors.New("refused " + scrubed)})
		}, api.Error, api.Error, "refused ***"},
		{"provider/site/far", func(b *bed) {
			b.API.Event(event.Observed{Scope: schema.ScopeSite, Kind: "far.net", Err: &providers.Error{Op: "observe", Class: providers.Unsupported, Err: errors.New("no such method")}})
		}, api.OK, api.OK, ""},
		{"provider/site/far", func(b *bed) { b.pass(time.Hour) }, api.Unknown, api.Unknown, ""},
		{"holds", func(b *bed) {
			b.commit(b.Store.HoldOp(state.Hold{Scope: "site", Reason: "work on the power", By: "ada"}))
		}, api.Warn, api.OK, "work on the power"},
		{"holds", func(b *bed) { b.commit(b.Store.FreezeOp(state.Hold{Reason: "stop", By: "ada"})) }, api.Warn, api.OK, "frozen"},
		{"run", func(b *bed) { b.commit(b.Store.PutRunOp(state.Run{ID: "r2", Status: state.RunPartial})) }, api.Error, api.OK, "partial"},
		{"run", func(b *bed) { b.commit(b.Store.PutRunOp(state.Run{ID: "r2", Status: state.RunOpen})) }, api.Error, api.OK, "no process"},
		{"run", func(b *bed) { b.commit(b.Store.PutRunOp(state.Run{ID: "r2", Status: state.RunReverted})) }, api.Warn, api.OK, "reverted"},
		{"trust/the task key", func(b *bed) { b.pass(24 * 24 * time.Hour) }, api.Warn, api.Unknown, "75 %"}, // nothing was observed for so long
		{"trust/the task key", func(b *bed) { b.pass(28 * 24 * time.Hour) }, api.Error, api.Error, "90 %"},
		{"trust", func(b *bed) { b.pass(31 * 24 * time.Hour) }, api.Critical, api.Critical, ""},
	} {
		b := newBed(t)
		b.keep()
		c.do(b)
		got := b.component(c.name)
		if got.State != c.want || !strings.Contains(got.Detail, c.says) {
			t.Errorf("%s: %+v, want %s and %q", c.name, got, c.want, c.says)
		}
		if whole := b.state(); whole != c.whole {
			t.Errorf("%s is %s: the whole is %s, want %s", c.name, c.want, whole, c.whole)
		}
	}
}

// Each node has a component: the worst ones first, and of very many only those.
func TestNodesState(t *testing.T) {
	b := newBed(t)
	b.keep()
	came := b.time().Add(-time.Hour)
	b.nodes = nil
	for i := range 205 {
		name := fmt.Sprintf("gpu-%03d", i)
		b.enrol(state.Node{Name: name})
		b.nodes = append(b.nodes, site.NodeStatus{Name: name, Connected: true, Since: came, Standing: site.Standing{Agent: "1.2.3", Providers: []string{"ovs"}}})
	}
	b.nodes[200].Missing = []site.Missing{{Provider: "libvirt", Why: "no socket"}}
	b.nodes[203].Connected = false
	b.enrol(state.Node{Name: "zz-banned", Ban: &state.NodeBan{Reason: "stolen"}})
	b.enrol(state.Node{Name: "zz-never"})
	for name, want := range map[string]api.Component{
		"node/gpu-200":   {State: api.Warn, Detail: "1.2.3; libvirt could not be opened: no socket"},
		"node/gpu-203":   {State: api.Error, Detail: "it is not connected"},
		"node/zz-banned": {State: api.Warn, Detail: "it is banned: stolen"},
		"node/zz-never":  {State: api.Error, Detail: "it was never connected to this replica"},
		"node/gpu-000":   {State: api.OK, Detail: "1.2.3; ovs"},
		"nodes":          {State: api.Error, Detail: "204 connected, 2 silent, 1 refused"},
	} {
		if got := b.component(name); got.State != want.State || got.Detail != want.Detail || got.Critical {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	if c := b.component("node/gpu-203"); c.Since == nil || !c.Since.Equal(came) {
		t.Errorf("%+v: want since %s", c, came)
	}
	h, _ := into[api.Health](b, "/state")
	if h.Omitted == 0 || len(h.Components) > 250 {
		t.Errorf("%d components, %d omitted", len(h.Components), h.Omitted)
	}
	if h.State != api.OK {
		t.Errorf("one node makes the whole %s", h.State)
	}
	if !slices.ContainsFunc(h.Components, func(c api.Component) bool { return c.Name == "node/gpu-203" }) {
		t.Error("a bad one is omitted")
	}
}

// What a keeper has seen long ago is unknown once it no longer looks, unless a run takes so long, or there is nothing to look at yet.
func TestNoLongerLooks(t *testing.T) {
	b := newBed(t)
	states := func(want api.State, names ...string) {
		t.Helper()
		for _, name := range names {
			if c := b.component(name); c.State != want {
				t.Errorf("%+v, want %s", c, want)
			}
		}
	}
	b.keep()
	b.API.Event(event.RunStarted{Run: state.Run{ID: "r1"}})
	b.pass(time.Hour)
	states(api.OK, "round", "drift")
	b.API.Event(event.RunEnded{Run: state.Run{ID: "r1", Status: state.RunApplied}})
	states(api.Unknown, "round", "drift", "provider/site/far", "provider/n1/near")
	if c := b.component("provider/n1/near"); !strings.Contains(c.Detail, "not been observed since") {
		t.Errorf("%+v", c)
	}
	if got := b.state(); got != api.Unknown {
		t.Errorf("the whole is %s", got)
	}
	b.Rounded(time.Second, nil)
	states(api.OK, "round", "drift")

	// A run that ended without a word is over with its round, and rounds that fail compare nothing.
	b.API.Event(event.RunStarted{Run: state.Run{ID: "r2"}})
	b.pass(time.Hour)
	b.Rounded(time.Second, errors.New("x"))
	states(api.Error, "round")
	states(api.Unknown, "drift")
	b.pass(time.Hour)
	states(api.Unknown, "round")

	b = newBed(t) // a site without a document is not looked at until one comes
	b.Keeps()
	b.Rounded(time.Second, nil)
	b.pass(time.Hour)
	states(api.OK, "round")
}

// The providers of a node whose agent is not connected are unknown, whatever they were.
func TestProvidersOfSilentNode(t *testing.T) {
	b := newBed(t)
	b.keep()
	b.publish("drift/latest", drift.Report{Unknown: []plan.Unknown{{Scope: "n1", Kind: "near.bridge", Error: "away"}}})
	for _, nodes := range [][]site.NodeStatus{{{Name: "n1"}}, nil} {
		b.nodes = nodes
		if c := b.component("provider/n1/near"); c.State != api.Unknown || c.Detail != "its node is not connected to this replica" {
			t.Errorf("%+v", c)
		}
		if got := sample(b.scrape(), `converge_provider_up{provider="near",scope="n1"}`); got != "" {
			t.Errorf("it is up: %s", got)
		}
	}
	if c := b.component("provider/site/far"); c.State != api.OK {
		t.Errorf("%+v", c)
	}
}
