package outbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/engine/drift"
	"converge.dev/converge/schema"
	"converge.dev/converge/site"
	"converge.dev/converge/site/outbox"
	"converge.dev/converge/state"
)

// What happens at a site is told in the order in which it happened, each with its own facts.
func TestTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.put(ended(0, nil)) // before there was an outbox: no news
		box := b.new(func(o *outbox.Options) { o.TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01" })
		stop := b.run(box)
		defer stop()
		open := ended(1, func(r *state.Run) { r.Status, r.Ended = state.RunOpen, nil })
		b.put(open)
		pass(time.Second)
		b.put(open) // written again: its start is no news any more
		b.put(ended(1, func(r *state.Run) {
			r.Status, r.Unconfirmed, r.Message = state.RunReverted, true, "it said hunter2"
		}))
		pass(time.Second)
		inSync := site.Status{Site: fra1, Phase: site.InSync, Since: time.Now()}
		b.say(box, site.Status{}, inSync)
		pass(time.Second)
		failed := site.Status{Site: fra1, Phase: site.Failed, Since: time.Now(), Detail: "it said hunter2"}
		b.say(box, inSync, failed)
		pass(time.Second)
		if err := b.store.SetWaiting(t.Context(), &state.Waiting{Approval: "9b1f", Plan: "p1", Site: fra1, Steps: 2, Why: "it interrupts", Since: time.Now()}, []byte("{}")); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		report, _ := json.Marshal(&drift.Report{Site: fra1, At: time.Now(), Complete: true})
		if err := b.store.Publish(t.Context(), "drift/latest", report); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		inv, err := b.store.Inventory(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.store.PutInventory(t.Context(), inv, []state.InventoryPlace{{
			Place: schema.Place{Scope: "site", Kind: "carbide.vpc"}, Items: []state.InventoryItem{{ID: "a", Digest: "d"}},
		}}, 0, time.Now()); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		got := b.cloud.events()
		want := `run.started run/run-0001
run.ended run/run-0001
guard.undone run/run-0001
status.changed status
status.changed status
approval.waiting plan/9b1f
drift.changed drift
inventory.changed inventory`
		if have := subjects(got); have != want {
			t.Fatalf("told:\n%s\nwant:\n%s\nlog: %s", have, want, b.logged())
		}
		ids := map[string]bool{}
		for _, e := range got {
			ids[e.ID] = true
			kind := strings.TrimPrefix(e.Type, "dev.converge.")
			if e.SpecVersion != "1.0" || e.Source != "/sites/"+fra1.ID || e.Site != "fra1" || e.DataSchema != "https://converge.dev/events/1/"+kind ||
				e.Time.IsZero() || !strings.HasPrefix(e.TraceParent, "00-0af7") || e.Dropped != 0 || len(e.Data) == 0 || strings.Contains(string(e.Data), "hunter2") {
				t.Errorf("%+v\n%s", e, e.Data)
			}
		}
		if len(ids) != len(got) {
			t.Errorf("%d events have %d ids", len(got), len(ids))
		}
		var run state.Run
		if err := json.Unmarshal(got[1].Data, &run); err != nil || run.ID != "run-0001" || run.Status != state.RunReverted || run.Message != "it said (hidden)" {
			t.Errorf("%v: %s", err, got[1].Data)
		}
		if waits := b.waits(); len(waits) != 0 {
			t.Errorf("%d events wait", len(waits))
		}
		if d := b.delivery(); d.Delivered != 4 || d.LastType != "dev.converge.approval.waiting" || d.Error != "" {
			t.Errorf("%+v", d)
		}
	})
}

// What ended while no process kept the site is told by the next one, and once.
func TestTellsWhatHappenedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.run(b.new(nil))()
		b.put(ended(1, nil), ended(2, nil))
		for range 3 {
			stop := b.run(b.new(nil))
			pass(time.Minute)
			stop()
		}
		if got := subjects(b.cloud.events()); got != "run.ended run/run-0001\nrun.ended run/run-0002" {
			t.Errorf("told:\n%s", got)
		}
	})
}

// A node is lost once it has been away for a while, and that is told by whoever keeps the site then.
func TestNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		set := func(connected ...bool) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.nodes = nil
			for i, c := range connected {
				b.nodes = append(b.nodes, site.NodeStatus{Name: fmt.Sprintf("n%d", i), Connected: c, Since: time.Now()})
			}
		}
		expect := func(want string) {
			t.Helper()
			if got := subjects(b.cloud.events()); got != want {
				t.Fatalf("told:\n%s\nwant:\n%s", got, want)
			}
		}
		set(true, true)
		stop := b.run(b.new(nil))
		pass(time.Minute)
		expect("node.connected node/n0\nnode.connected node/n1")
		set(false, true) // an agent that is started anew
		pass(20 * time.Second)
		set(true, true)
		pass(time.Minute)
		expect("node.connected node/n0\nnode.connected node/n1")
		set(false, true)
		pass(20 * time.Second)
		stop() // and the next one has never seen it
		set()
		stop = b.run(b.new(nil))
		pass(20 * time.Second)
		b.mu.Lock()
		b.nodes = []site.NodeStatus{{Name: "n1", Connected: true, Since: time.Now()}}
		b.mu.Unlock()
		pass(time.Minute)
		expect("node.connected node/n0\nnode.connected node/n1\nnode.lost node/n0")
		stop()
		stop = b.run(b.new(nil))
		defer stop()
		pass(time.Minute)
		expect("node.connected node/n0\nnode.connected node/n1\nnode.lost node/n0")
	})
}

// A receiver that is away keeps nobody waiting and loses nothing that is kept; pauses grow, and differ.
func TestOutage(t *testing.T) {
	for name, away := range map[string]func(int, received) (int, http.Header, error){
		"down":         func(int, received) (int, http.Header, error) { return 0, nil, errReset },
		"hangs":        func(int, received) (int, http.Header, error) { return 0, nil, errHang },
		"fails":        func(int, received) (int, http.Header, error) { return 503, http.Header{}, nil },
		"unauthorized": func(int, received) (int, http.Header, error) { return 401, http.Header{}, nil },
		"redirects": func(int, received) (int, http.Header, error) {
			return 307, http.Header{"Location": {"https://evil.example"}}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t)
				b.cloud.answer = away
				box := b.new(nil)
				stop := b.run(box)
				defer stop()
				for i := range 5 {
					b.put(ended(i, nil))
					pass(time.Minute)
				}
				pass(24 * time.Hour)
				s := box.Standing()
				if waits := b.waits(); len(waits) != 5 || s.Waiting != 5 || !s.Oldest.Equal(waits[0].At) || s.Failed < 100 || s.Failed > 3000 || s.Dropped != 0 || !s.Sends {
					t.Errorf("%d events wait; %+v", len(waits), s)
				}
				d := b.delivery()
				if d.Error == "" || d.Failing == nil || d.Delivered != 0 || d.Error != s.Error {
					t.Errorf("%+v", d)
				}
				if n := strings.Count(b.logged(), "cannot be delivered"); n != 1 {
					t.Errorf("logged %d times: %s", n, b.logged())
				}
				b.cloud.mu.Lock()
				b.cloud.answer = nil
				b.cloud.mu.Unlock()
				pass(10 * time.Minute)
				if got := subjects(b.cloud.events()); got != "run.ended run/run-0000\nrun.ended run/run-0001\nrun.ended run/run-0002\nrun.ended run/run-0003\nrun.ended run/run-0004" {
					t.Errorf("told:\n%s", got)
				}
				if d := b.delivery(); d.Error != "" || d.Failing != nil || d.Delivered != 5 || len(b.waits()) != 0 || box.Standing().Waiting != 0 {
					t.Errorf("%+v", d)
				}
			})
		})
	}
}

// A receiver that asks for a pause gets it.
func TestRetryAfter(t *testing.T) {
	for _, status := range []int{429, 503} {
		for _, date := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t)
				var asked []time.Time
				b.cloud.answer = func(n int, _ received) (int, http.Header, error) {
					asked = append(asked, time.Now())
					if n > 1 {
						return 202, nil, nil
					}
					after := "1200"
					if date {
						after = time.Now().Add(20 * time.Minute).UTC().Format(http.TimeFormat)
					}
					return status, http.Header{"Retry-After": {after}}, nil
				}
				stop := b.run(b.new(nil))
				defer stop()
				b.put(ended(1, nil))
				pass(time.Hour)
				if len(asked) != 2 || asked[1].Sub(asked[0]) < 20*time.Minute-time.Second || asked[1].Sub(asked[0]) > 21*time.Minute {
					t.Errorf("%d, date: %v: asked at %v", status, date, asked)
				}
			})
		}
	}
}

// An event that the receiver calls wrong keeps the others waiting for a while only, and the next one says that it is missing.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.cloud.answer = func(_ int, e received) (int, http.Header, error) {
			if e.Subject == "run/run-0001" {
				return 422, http.Header{}, nil
			}
			return 204, nil, nil
		}
		box := b.new(nil)
		stop := b.run(box)
		defer stop()
		b.put(ended(1, nil), ended(2, nil), ended(3, nil))
		pass(outbox.Patience - time.Second)
		if got := b.cloud.events(); len(got) != 0 || len(b.waits()) != 3 {
			t.Errorf("given up early: %s", subjects(got))
		}
		pass(10 * time.Minute)
		got := b.cloud.events()
		if subjects(got) != "run.ended run/run-0002\nrun.ended run/run-0003" || got[0].Dropped != 1 || got[1].Dropped != 0 {
			t.Errorf("%+v", got)
		}
		if d := b.delivery(); d.Refused != 1 || d.Delivered != 2 || d.Unsaid != 0 || len(b.waits()) != 0 || box.Standing().Refused != 1 {
			t.Errorf("%+v", d)
		}
		if !strings.Contains(b.logged(), "level=ERROR") || !strings.Contains(b.logged(), "given up") {
			t.Error(b.logged())
		}
	})
}

// Of too many events the oldest are dropped, and how many is said in the next one, by whichever process sends it.
func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.cloud.answer = func(int, received) (int, http.Header, error) { return 0, nil, errReset }
		stop := b.run(b.new(nil))
		const more = 300
		var ops []state.Op
		for i := range outbox.MaxEvents + more {
			ops = append(ops, b.store.PutRunOp(ended(i, nil)))
			if len(ops) == state.MaxOps || i == outbox.MaxEvents+more-1 {
				if _, err := b.store.Commit(t.Context(), nil, ops); err != nil {
					t.Fatal(err)
				}
				ops = nil
				synctest.Wait()
			}
		}
		pass(time.Minute)
		stop()
		if waits := b.waits(); len(waits) != outbox.MaxEvents {
			t.Errorf("%d wait", len(waits))
		}
		if d := b.delivery(); d.Dropped != more || d.Unsaid != more {
			t.Errorf("%+v", d)
		}
		if !strings.Contains(b.logged(), "level=ERROR") {
			t.Error("it was not logged")
		}
		b.cloud.answer = nil
		box := b.new(nil)
		stop = b.run(box)
		defer stop()
		pass(time.Minute)
		got := b.cloud.events()
		if len(got) != outbox.MaxEvents || got[0].Dropped != more || got[1].Dropped != 0 || got[0].Subject != fmt.Sprintf("run/run-%04d", more) {
			t.Errorf("%d came, first %+v", len(got), got[0])
		}
		if d := b.delivery(); d.Unsaid != 0 || d.Dropped != more || d.Delivered != outbox.MaxEvents || len(b.waits()) != 0 {
			t.Errorf("%+v", d)
		}
	})
}

// Large events are dropped by their size.
func TestFullOfLargeOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.cloud.answer = func(int, received) (int, http.Header, error) { return 0, nil, errReset }
		stop := b.run(b.new(nil))
		defer stop()
		for i := range 60 {
			b.put(ended(i, func(r *state.Run) { r.Partial = []string{strings.Repeat("x", 200<<10)} }))
			synctest.Wait()
		}
		size := 0
		for _, e := range b.waits() {
			size += len(e.Body)
		}
		if size > outbox.MaxBytes || size < outbox.MaxBytes-300<<10 {
			t.Errorf("%d bytes wait", size)
		}
	})
}

// Loose events are dropped first, never in place of kept ones, and counted.
func TestLooseOnesAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.cloud.answer = func(int, received) (int, http.Header, error) { return 0, nil, errHang }
		box := b.new(nil)
		stop := b.run(box)
		defer stop()
		b.put(ended(1, nil))
		pass(time.Millisecond) // it is being sent
		was := site.Status{Phase: site.InSync}
		for i := range outbox.MaxLoose + 50 {
			is := site.Status{Phase: site.Differs, Steps: i, Since: time.Now().Add(time.Duration(i))}
			b.say(box, was, is)
			was = is
		}
		if s := box.Standing(); s.Waiting != outbox.MaxLoose+1 || s.Dropped != 50 {
			t.Errorf("%+v", s)
		}
		b.cloud.mu.Lock()
		b.cloud.answer = nil
		b.cloud.mu.Unlock()
		pass(10 * time.Minute)
		got := b.cloud.events()
		if len(got) != outbox.MaxLoose+1 || got[0].Subject != "run/run-0001" || got[0].Dropped != 50 || got[0].Sequence == "" || got[1].Sequence != "" {
			t.Errorf("%d came, first %+v", len(got), got[0])
		}
	})
}

// A loose event that is never taken does not keep the kept ones waiting.
func TestPoisonousLooseOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.cloud.answer = func(_ int, e received) (int, http.Header, error) {
			if e.Type == "dev.converge.status.changed" {
				return 500, http.Header{}, nil
			}
			return 204, nil, nil
		}
		box := b.new(nil)
		stop := b.run(box)
		defer stop()
		b.say(box, site.Status{}, site.Status{Phase: site.InSync, Since: time.Now()})
		pass(time.Millisecond)
		b.put(ended(1, nil))
		pass(time.Minute)
		if got := b.cloud.events(); subjects(got) != "run.ended run/run-0001" || got[0].Dropped != 1 {
			t.Errorf("%+v", got)
		}
	})
}

// That the site has failed is in the store with the status itself, although nothing follows it, and once however often it is tried.
func TestFailedIsKeptWithTheStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		box := b.new(nil) // it does not run
		was := site.Status{Phase: site.InSync, Since: time.Now()}
		failed := site.Status{Phase: site.Failed, Since: time.Now(), Run: "r1"}
		b.say(box, was, failed)
		time.Sleep(time.Second)
		failed.Since = time.Now() // the reply to the first try was lost
		b.say(box, was, failed)
		if waits := b.waits(); len(waits) != 1 {
			t.Fatalf("%+v", waits)
		}
		b.say(box, failed, site.Status{Phase: site.InSync, Since: time.Now()})
		if waits := b.waits(); len(waits) != 2 {
			t.Errorf("that it no longer fails is not kept: %+v", waits)
		}
		with, _ := box.Said(failed, site.Status{Phase: site.Failed, Detail: "another reason", Since: time.Now()})
		if len(with) != 0 {
			t.Error("that it goes on failing is kept")
		}
	})
}

// Only the kinds that are wanted are sent and kept.
func TestKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		box := b.new(func(o *outbox.Options) { o.Kinds = []string{outbox.GuardUndone} })
		stop := b.run(box)
		defer stop()
		b.put(ended(1, nil), ended(2, func(r *state.Run) { r.Status, r.Unconfirmed = state.RunReverted, true }))
		b.say(box, site.Status{}, site.Status{Phase: site.Failed, Since: time.Now()})
		b.say(box, site.Status{Phase: site.Failed}, site.Status{Phase: site.Failed, Steps: 2, Since: time.Now()})
		pass(time.Minute)
		if got := subjects(b.cloud.events()); got != "guard.undone run/run-0002" || len(b.waits()) != 0 {
			t.Errorf("told:\n%s", got)
		}
	})
}

// What cannot be read in the store keeps nothing else from being delivered.
func TestDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.run(b.new(nil))()
		b.put(ended(1, nil))
		for _, key := range []string{"outbox/event/broken", "outbox/sent", "outbox/told/run", "outbox/told/node/n1"} {
			if _, err := b.store.Commit(t.Context(), nil, []state.Op{{Key: b.store.Path() + "/" + key, Value: []byte("{")}}); err != nil {
				t.Fatal(err)
			}
		}
		if ds, err := b.store.Damaged(t.Context()); err != nil || len(ds) != 4 || ds[0].Part != state.PartOutbox {
			t.Errorf("%v: %+v", err, ds)
		}
		stop := b.run(b.new(nil))
		pass(time.Minute)
		stop()
		if got := subjects(b.cloud.events()); got != "run.ended run/run-0001" {
			t.Errorf("told:\n%s\n%s", got, b.logged())
		}
		items, err := b.store.List(context.Background(), b.store.Path()+"/outbox/event/")
		if err != nil || len(items) != 0 || b.delivery().Dropped != 1 {
			t.Errorf("%v %v %+v", items, err, b.delivery())
		}
	})
}

// The token and the query of the URL are in no log, error, or store, whatever the receiver and the way to it say.
func TestSecretsStaySecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		file := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(file, []byte(canary+"-token\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		replies := []func() (int, http.Header, error){
			func() (int, http.Header, error) {
				return 0, nil, fmt.Errorf("proxy: refuses Bearer %s-token for hunter2", canary)
			},
			func() (int, http.Header, error) {
				return 400, http.Header{"X": {canary}}, nil
			},
			func() (int, http.Header, error) {
				return 302, http.Header{"Location": {"http://127.0.0.1:1/" + canary}}, nil
			},
			func() (int, http.Header, error) { return 0, nil, errHang },
			func() (int, http.Header, error) { return 204, nil, nil },
		}
		b.cloud.answer = func(n int, _ received) (int, http.Header, error) { return replies[min(n-1, len(replies)-1)]() }
		box := b.new(func(o *outbox.Options) { o.TokenFile = file })
		stop := b.run(box)
		defer stop()
		b.put(ended(1, nil))
		var shown strings.Builder
		for range 100 {
			pass(time.Second)
			fmt.Fprintf(&shown, "%+v %+v\n", box.Standing(), b.delivery())
		}
		items, err := b.store.List(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range items {
			fmt.Fprintf(&shown, "%s=%s\n", it.Key, it.Value)
		}
		shown.WriteString(b.logged())
		got := b.cloud.events()
		if len(got) != 1 || got[0].auth != "Bearer "+canary+"-token" {
			t.Fatalf("%+v\n%s", got, b.logged())
		}
		for _, secret := range []string{canary, "hunter2"} {
			if strings.Contains(shown.String(), secret) {
				t.Errorf("%s is shown:\n%s", secret, shown.String())
			}
		}
		for _, says := range []string{"refuses Bearer ***", "answers 400 Bad Request", "answers 302 Found", "did not answer within 10s"} {
			if !strings.Contains(shown.String(), says) {
				t.Errorf("no %q in:\n%s", says, shown.String())
			}
		}
	})
}

func TestWhatCannotBeUsed(t *testing.T) {
	b := newBed(t)
	open := filepath.Join(t.TempDir(), "open")
	empty := filepath.Join(t.TempDir(), "empty")
	for path, mode := range map[string]os.FileMode{open: 0o644, empty: 0o600} {
		if err := os.WriteFile(path, []byte("\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	for want, change := range map[string]func(*outbox.Options){
		"webhook: want a URL":           func(o *outbox.Options) { o.Webhook = "cloud.example" },
		"want a URL":                    func(o *outbox.Options) { o.Webhook = "ftp://cloud.example" },
		"without TLS":                   func(o *outbox.Options) { o.Webhook = "http://cloud.example/" + canary },
		"a URL with a user":             func(o *outbox.Options) { o.Webhook = "https://ada:" + canary + "@cloud.example" },
		"a URL with a fragment":         func(o *outbox.Options) { o.Webhook = "https://cloud.example/#" + canary },
		"ca: ":                          func(o *outbox.Options) { o.CA, o.Transport = "/nonexistent", nil },
		"has no certificate: want PEM":  func(o *outbox.Options) { o.CA, o.Transport = empty, nil },
		"token_file: stat /nonexistent": func(o *outbox.Options) { o.TokenFile = "/nonexistent" },
		"run chmod o-rw":                func(o *outbox.Options) { o.TokenFile = open },
		"does not contain a bearer token: want one": func(o *outbox.Options) { o.TokenFile = empty },
	} {
		o := b.options()
		change(&o)
		if _, err := outbox.New(o); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), canary) {
			t.Errorf("want %q: %v", want, err)
		}
	}
	for _, webhook := range []string{"http://localhost:1/x", "http://127.0.0.1/", "http://[::1]:8080", "https://cloud.example/events?a=b"} {
		if err := outbox.Check(webhook); err != nil {
			t.Errorf("%s: %v", webhook, err)
		}
	}
}
