package site_test

import (
	"context"
	"errors"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/secret"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/site"
	"converge.dev/converge/state"
)

// What a resource is called has no meaning: that of one that is left alone is no pattern.
func TestNamesAreNoPatterns(t *testing.T) {
	for _, name := range []string{"a[b]", "a[", "a*", `a\b`, "?"} {
		for _, mode := range []string{"observe", "approve", "held"} {
			t.Run(mode+" "+name, func(t *testing.T) {
				bubble(t, func(t *testing.T, b *bed) {
					first := "n1/near.bridge/" + name
					if mode == "held" {
						if err := b.Store.Hold(t.Context(), first, "me@here", "maintenance"); err != nil {
							t.Fatal(err)
						}
					} else {
						b.policy.Reconcile = []schema.Reconcile{{Mode: mode, Kinds: []string{"near.bridge"}}}
					}
					b.put(map[string]string{first: `{}`, "n1/near.bridge/ab": `{}`, "site/far.net/other": `{}`})
					k := b.start(site.Enforce)
					defer k.ends()
					if b.thing("n1", "near.bridge", name) != nil {
						t.Error("it was made")
					}
					if made := b.thing("n1", "near.bridge", "ab") != nil; made != (mode == "held") {
						t.Errorf("the other bridge was made: %v", made)
					}
					if b.thing("site", "far.net", "other") == nil {
						t.Errorf("the rest was not done: %+v", b.status())
					}
				})
			})
		}
	}
}

// Nothing is done about what is only observed, and nothing without approval about what needs one, whenever in a round it comes to differ.
func TestNothingElseIsDone(t *testing.T) {
	for _, mode := range []string{"observe", "approve"} {
		reached := false
		for n := range 12 {
			bubble(t, func(t *testing.T, b *bed) {
				kept := map[string]string{"n1/near.bridge/a": `{"size": 1}`}
				b.Converge(t, b.put(kept))
				var looks atomic.Int32
				b.wrap = func(p *providers.Provider) {
					if p.Scope != "n1" {
						return
					}
					for i := range p.Kinds {
						p.Kinds[i].Kind = &looked{Kind: p.Kinds[i].Kind, at: func() {
							if int(looks.Add(1)) == n && b.thing("n1", "near.bridge", "a") != nil {
								reached = true
								b.meddle("n1", "near.bridge", "a", schema.Object{"size": 7})
							}
						}}
					}
				}
				b.policy.Reconcile = []schema.Reconcile{{Mode: mode, Kinds: []string{"near.bridge"}}}
				b.put(map[string]string{"n1/near.bridge/a": `{"size": 1}`, "n1/near.bridge/b": `{}`, "site/far.net/other": `{}`})
				k := b.start(site.Enforce)
				defer k.ends()
				time.Sleep(time.Minute)
				synctest.Wait()
				if b.thing("n1", "near.bridge", "b") != nil {
					t.Errorf("%s, look %d: it was made", mode, n)
				}
				if looks.Load() >= int32(n) && n > 0 {
					b.has("n1", "near.bridge", "a", "size", 7)
				}
				if b.thing("site", "far.net", "other") == nil {
					t.Errorf("%s, look %d: the rest was not done", mode, n)
				}
			})
		}
		if !reached {
			t.Error("nothing was meddled with")
		}
	}
}

// looked is a kind that says when its things are listed.
type looked struct {
	providers.Kind
	at func()
}

func (l *looked) List(ctx context.Context) iter.Seq2[providers.Thing, error] {
	l.at()
	return l.Kind.List(ctx)
}

// What is taken back before the run is open does not count: nothing is done.
func TestUnapproveBeforeTheRun(t *testing.T) {
	for _, what := range []string{"taken back", "given again", "replaced"} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bed) {
				b.policy.Approvals.Count = 2
				b.put(map[string]string{"n1/near.bridge/br": `{"size": 1}`})
				var once sync.Once
				var w state.Waiting
				b.wrap = func(p *providers.Provider) {
					if p.Scope != "n1" {
						return
					}
					p.Confined, p.Fence = true, func(ctx context.Context, _ int64) error {
						once.Do(func() {
							var err error
							switch what {
							case "taken back":
								err = b.Store.Unapprove(ctx, w, "grace@lab", time.Now())
							case "given again":
								err = b.Store.Approve(ctx, w, "grace@desk", time.Now())
							case "replaced":
								err = b.Store.SetWaiting(ctx, nil, nil)
							}
							if err != nil {
								t.Error(err)
							}
						})
						return nil
					}
				}
				k := b.start(site.Approve)
				defer k.ends()
				w = b.waits("0 of 2")
				b.approve("ada@lab")
				b.approve("grace@lab")
				time.Sleep(time.Minute)
				switch what {
				case "taken back":
					b.waits("1 of 2: ada@lab")
				case "replaced":
					b.waits("0 of 2")
				case "given again": // it still counts
					b.stands(site.InSync, "")
					return
				}
				if n := len(b.runs()); n > 0 || b.thing("n1", "near.bridge", "br") != nil {
					t.Errorf("%d runs although the approval was %s", n, what)
				}
				b.approve("grace@lab")
				if what == "replaced" {
					b.approve("ada@lab")
				}
				b.stands(site.InSync, "")
			})
		})
	}
}

// A plan that was approved and no longer fits the site, for a reason that its digest does not cover, is not tried again and again: it
// needs new approvals, and those count.
func TestApprovedIsOutdated(t *testing.T) {
	const id, id2 = "6f0f9c1c-0000-4000-8000-000000000001", "6f0f9c1c-0000-4000-8000-000000000002"
	for _, c := range []struct {
		name    string
		put     map[string]string
		prepare func(b *bed) (change func())
		why     string
	}{
		{"another server", map[string]string{"site/far.net/a": `{"size": 1}`}, func(b *bed) func() {
			var id atomic.Value
			id.Store("one")
			b.wrap = func(p *providers.Provider) {
				if p.Name == "far" {
					p.Identity = func(context.Context) (string, error) { return id.Load().(string), nil }
				}
			}
			return func() { id.Store("two") }
		}, "identifies itself as one"},
		{"an external made anew", map[string]string{"site/far.net/theirs": `{"external": true}`, "n1/near.bridge/br": `{"size": 1}`}, func(b *bed) func() {
			put := func(id string) {
				if err := b.World.Put(schema.ScopeSite, "far.net", providers.Thing{ID: id, Name: "theirs", Spec: schema.Object{"cidr": "10.0.0.0/8"}, Phase: providers.Ready}); err != nil {
					b.t.Fatal(err)
				}
			}
			put(id)
			return func() {
				if err := b.World.Remove(schema.ScopeSite, "far.net", id); err != nil {
					b.t.Fatal(err)
				}
				put(id2)
			}
		}, "theirs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bed) {
				change := c.prepare(b)
				b.put(c.put)
				k := b.start(site.Approve)
				was := b.waits("0 of 1")
				k.ends() // half of a change would be seen as something else
				change()
				k = b.start(site.Approve)
				defer k.ends()
				time.Sleep(time.Minute)
				if now := b.waits("0 of 1"); now.Approval != was.Approval {
					t.Fatal("its digest covers that")
				}
				b.approve("ada@lab")
				b.stands(site.Waiting, c.why)
				time.Sleep(time.Hour)
				if n := strings.Count(b.logged(), "was approved, and is applied"); n != 1 || len(b.runs()) > 0 {
					t.Errorf("it was tried %d times, in %d runs", n, len(b.runs()))
				}
				b.stands(site.Waiting, "needs new approvals")
				b.waits("0 of 1")
				b.approve("ada@lab")
				b.stands(site.InSync, "")
				b.nothingWaits()
			})
		})
	}
}

// A run that was begun without approval is not finished by an agent that may do nothing without.
func TestRunWithoutApprovalIsNotResumed(t *testing.T) {
	for _, mode := range []site.Mode{site.Observe, site.Approve} {
		bubble(t, func(t *testing.T, b *bed) {
			b.put(ten())
			k := b.prepare(site.Enforce, one)
			b.at(3, func() { k.stop(errors.New("over")) })
			k.begin()
			<-k.end
			n := b.World.Count("create")
			next := b.start(mode)
			time.Sleep(time.Hour)
			s := b.stands(site.Held, "is open")
			if b.World.Count("create") != n {
				t.Error("it was resumed")
			}
			if mode == site.Approve && !strings.Contains(s.Detail, "without approval") {
				t.Error(s.Detail)
			}
			next.ends()
			next = b.start(site.Enforce)
			defer next.ends()
			b.finished()
		})
	}
}

// An approval that has lapsed is gone for good: also for the same plan, when that waits again.
func TestLapsedStaysLapsed(t *testing.T) {
	one, other := map[string]string{"n1/near.bridge/br": `{"size": 1}`}, map[string]string{"n1/near.bridge/br": `{"size": 2}`}
	for what, change := range map[string]func(b *bed, k **kept){
		"another plan": func(b *bed, _ **kept) { b.put(other) },
		"no plan": func(b *bed, _ **kept) {
			b.put(map[string]string{})
			b.stands(site.InSync, "")
		},
		"mode observe": func(b *bed, k **kept) {
			(*k).ends()
			*k = b.start(site.Observe)
			b.stands(site.Differs, "")
			(*k).ends()
			*k = b.start(site.Approve)
		},
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bed) {
				b.policy.Approvals.Count = 2
				b.put(one)
				k := b.start(site.Approve)
				defer func() { k.ends() }()
				was := b.waits("0 of 2")
				b.approve("ada@lab")
				change(b, &k)
				time.Sleep(20 * time.Hour)
				b.put(one)
				synctest.Wait()
				if now := b.waits("0 of 2"); now.Approval != was.Approval {
					t.Error("it is another plan")
				}
				b.approve("grace@lab")
				b.waits("1 of 2: grace@lab")
			})
		})
	}
}

// What could not be applied without approval does not keep what has one, or the rest, from being done.
func TestApprovedIsNotStarved(t *testing.T) {
	for _, c := range []struct {
		name   string
		put    string // what cannot be applied
		spec   string
		others bool // what else needs no approval is done
	}{
		{"a provider that cannot be fenced", "site/far.net/a", `{}`, true},
		{"a secret that can no longer be read", "site/far.account/a", `{"login":"x","password":{"from":"env:PW"}}`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bed) {
				b.policy.Reconcile = []schema.Reconcile{{Mode: "approve", Scopes: []string{"n1"}}}
				b.wrap = func(p *providers.Provider) {
					if p.Name == "far" && c.others {
						p.Confined, p.Fence = true, func(context.Context, int64) error { return errors.New("it cannot be fenced") }
					}
				}
				b.put(map[string]string{c.put: c.spec, "n1/near.bridge/br": `{}`, "n2/near.bridge/br": `{}`})
				k := b.start(site.Enforce, func(o *engine.Options) {
					o.Secrets = secret.Options{Source: secret.Source{Lookup: func(string) (string, bool) {
						holder, err := b.Store.LockInfo(context.Background())
						return "canary", err == nil && holder == nil // it is gone once a run is about to begin
					}}}
				})
				defer k.ends()
				time.Sleep(20 * time.Second)
				b.stands(site.Waiting, "n1/near.bridge/br needs approval; besides, ")
				if made := b.thing("n2", "near.bridge", "br") != nil; made != c.others {
					t.Errorf("the rest was done: %v", made)
				}
				b.approve("ada@lab")
				time.Sleep(20 * time.Second)
				if b.thing("n1", "near.bridge", "br") == nil {
					t.Errorf("what was approved was not done: %+v", b.status())
				}
			})
		})
	}
}

// Approvals are dated by the clock of those who give them: one from the future does not count for longer.
func TestApprovalFromTheFuture(t *testing.T) {
	for ahead, want := range map[time.Duration]string{4 * time.Minute: "1 of 2: ada@lab", 23 * time.Hour: "0 of 2"} {
		bubble(t, func(t *testing.T, b *bed) {
			b.policy.Approvals.Count = 2
			b.put(map[string]string{"n1/near.bridge/br": `{}`})
			k := b.start(site.Approve)
			defer k.ends()
			if err := b.Store.Approve(t.Context(), b.waits("0 of 2"), "ada@lab", time.Now().Add(ahead)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			b.waits(want)
		})
	}
}
