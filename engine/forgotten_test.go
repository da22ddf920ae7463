package engine_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A host whose record was lost prevents the deletion of the old half of a replacement. The run is partial and names what stays; no
// later plan does, for which it is a stray. Once the host is gone, that run can be resumed to its end, whatever ran meanwhile.
func TestForgottenKeepsOldHalf(t *testing.T) {
	const (
		key  = "/converge/test/resource/site/far.host/h"
		host = `{"net":"n","links":[{"port":0,"subnet":"s"}],"size":1}`
	)
	with := func(subnet string, d map[string]string) map[string]string {
		d["site/far.net/n"] = `{"cidr":"10.0.0.0/24"}`
		d["site/far.subnet/s"] = subnet
		d["site/far.host/k"] = host // is moved over, so that the new subnet is created before the old one is deleted
		return d
	}
	s, ctx := enginetest.New(), context.Background()
	s.Converge(t, s.Document(t, with(`{"cidr":"10.0.0.0/25","net":"n","size":1}`, map[string]string{
		"site/far.host/h": host,
		"site/far.host/o": host}))) // is deleted first, and does not come back
	it, err := s.KV.Get(ctx, key)
	if err != nil || it.Modified == 0 {
		t.Fatalf("the host is not recorded: %v", err)
	}
	put := func(op state.Op) {
		if _, err := s.KV.Commit(ctx, nil, []state.Op{op}); err != nil {
			t.Fatal(err)
		}
	}
	d := s.Document(t, with(`{"cidr":"10.0.0.0/25","net":"n","size":2}`, map[string]string{}))
	next := func() *plan.Plan { return s.Plan(t, d, plan.Options{Unlimited: true}) }

	put(state.Op{Key: key, Delete: true})
	p := next()
	res, err := s.Apply(p, engine.ApplyOptions{Approve: p.Approval()})
	if err != nil || res.Run.Status != state.RunPartial || !strings.Contains(strings.Join(res.Run.Partial, "\n"), "site/far.subnet/s: delete failed: ") {
		t.Fatalf("it ended %s (%v) and named %q, want partial because of the old subnet", res.Run.Status, err, res.Run.Partial)
	}
	s.Release(t)
	if p = next(); !p.Empty() || len(p.Unmanaged) != 2 {
		t.Fatalf("want nothing to do, and the host and the old subnet as strays:\n%s", enginetest.Text(p))
	}

	put(state.Op{Key: key, Value: it.Value})
	p = next()
	if res, err = s.Apply(p, engine.ApplyOptions{Approve: p.Approval()}); err != nil || res.Run.Status != state.RunApplied {
		t.Fatalf("the host did not go: %s (%v)", res.Run.Status, err)
	}
	e := s.Engine(nil)
	defer e.Close()
	if res, err = e.Resume(ctx, "", engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunApplied {
		t.Fatalf("resumed, it ended %s (%v), want applied", res.Run.Status, err)
	}
	if p = next(); !p.Empty() || len(p.Unmanaged) > 0 {
		t.Errorf("there is something left:\n%s", enginetest.Text(p))
	}
}

// What on_remove gives up stays, keeps its mark, and is no stray from then on: drift is clean, no sweep removes it, no rebuild takes
// it back. Declared again it is ours again, and undoing the giving up takes it back as well.
func TestGivenUpIsNoStray(t *testing.T) {
	s, ctx := enginetest.New(), t.Context()
	const guard = "site/far.guard/g"
	site := schema.Site{Name: "test", ID: enginetest.SiteID}
	both := s.Document(t, map[string]string{theNet.String(): `{"size":1,"lifecycle":{"on_remove":"forget"}}`, guard: `{}`})
	one := s.Document(t, map[string]string{guard: `{}`})
	e := s.Engine(nil)
	defer e.Close()
	clean := func(when string) {
		t.Helper()
		if r, err := e.Drift(ctx, site); err != nil || !r.Clean() {
			t.Errorf("%s: drift %+v, %v", when, r, err)
		}
		p, err := e.Plan(ctx, one, plan.Options{Sweep: true, Unlimited: true})
		if err != nil || !p.Empty() {
			t.Errorf("%s: a sweep would do:\n%s%v", when, enginetest.Text(p), err)
		}
	}
	s.Converge(t, both)
	s.Converge(t, one)
	clean("given up")
	survey, err := e.Survey(ctx, site, []providers.Need{{Scope: "site", Provider: "far"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if found := survey.Rebuild(s.Kinds, time.Now()); len(found) > 0 {
		t.Errorf("a rebuild takes back %+v", found)
	}
	runs, err := s.Store.Runs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if res, err := e.Rollback(ctx, runs[0].ID, engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunReverted {
		t.Fatalf("undone: %s, %v", res.Run.Status, err)
	}
	if again := s.Plan(t, both, plan.Options{}); !again.Empty() {
		t.Errorf("after it was undone:\n%s", enginetest.Text(again))
	}
	s.Release(t)
	s.Converge(t, one)
	clean("given up again")
	p := s.Plan(t, both, plan.Options{})
	if p.Counts().Adopt != 1 || len(p.Steps) != 1 || p.Steps[0].Incarnation != 1 {
		t.Errorf("declared again:\n%s", enginetest.Text(p))
	}
	s.Converge(t, both)
	if p = s.Plan(t, both, plan.Options{}); !p.Empty() {
		t.Errorf("declared again, and applied:\n%s", enginetest.Text(p))
	}
}
