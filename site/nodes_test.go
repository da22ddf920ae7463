package site_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/site"
	"converge.dev/converge/state"
	"converge.dev/converge/trust"
)

// Nodes that have enrolled come, and say what they serve.
func TestNodesCome(t *testing.T) {
	yarded(t, trust.Options{}, func(t *testing.T, y *yard) {
		begin := time.Now()
		y.attend("n1")
		y.attend("n2", "near", "odd")
		y.fail(providers.Need{Scope: "n2", Provider: "odd"}, "no such device")
		y.connected("n1", true)
		y.connected("n2", true)
		for _, s := range y.nodes.Status() {
			if s.Agent != "v1" || s.Trust != 1 || !s.Since.Equal(begin) || !s.Heard.Equal(begin) || s.Address == "" || strings.Join(s.Providers, " ") != "near" {
				t.Errorf("%+v", s)
			}
		}
		if m := y.node("n2").Missing; len(m) != 1 || m[0] != (site.Missing{Provider: "odd", Why: "no such device"}) {
			t.Errorf("missing are %v", m)
		}
		if got := fmt.Sprint(y.nodes.Reached()); got != "[{n1 near} {n2 near}]" {
			t.Errorf("reached are %s", got)
		}
		if got := fmt.Sprint(y.nodes.Renewed(), y.nodes.Renewed()); got != "[n1 n2] []" {
			t.Errorf("renewed are %s", got)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		for _, s := range y.nodes.Status() {
			if !s.Connected || !s.Since.Equal(begin) || time.Since(s.Heard) > time.Minute {
				t.Errorf("later: %+v", s)
			}
		}
		if got := y.nodes.Renewed(); len(got) > 0 {
			t.Errorf("later %v were renewed", got)
		}
	})
}

// What the document says of a node is made on that node; what somebody changes there is seen, and put right, at once.
func TestNodesAreKept(t *testing.T) {
	yarded(t, trust.Options{}, func(t *testing.T, y *yard) {
		y.attend("n1")
		y.attend("n2")
		synctest.Wait()
		k := y.keep(site.Enforce)
		defer k.ends()
		begin := time.Now()
		y.put(map[string]string{"n1/near.bridge/a": `{"size": 1}`, "n2/near.bridge/b": `{"size": 2}`, "site/far.net/c": `{"size": 3}`})
		y.stands(site.InSync, "")
		y.on("n1", "a", 1)
		y.on("n2", "b", 2)
		y.on("n1", "b", nil)
		y.on("n2", "a", nil)
		y.has(schema.ScopeSite, "far.net", "c", "size", 3)
		if err := y.world("n2").Change("n2", "near.bridge", "b", schema.Object{"size": int64(7)}); err != nil {
			t.Fatal(err)
		}
		y.stands(site.InSync, "")
		y.on("n2", "b", 2)
		if d := time.Since(begin); d != 0 {
			t.Errorf("it took %v", d)
		}
		if s := y.node("n1"); s.Running != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A node whose agent has ended is unknown, and does not slow down what is done for others. When it is back it is put right.
func TestNodeIsAway(t *testing.T) {
	yarded(t, trust.Options{}, func(t *testing.T, y *yard) {
		end := y.attend("n1")
		y.attend("n2")
		synctest.Wait()
		k := y.keep(site.Enforce)
		defer k.ends()
		y.put(map[string]string{"n1/near.bridge/a": `{"size": 1}`, "n2/near.bridge/b": `{"size": 2}`})
		y.stands(site.InSync, "")
		gone := time.Now()
		end()
		y.connected("n1", false)
		time.Sleep(time.Minute)
		s := y.stands(site.Unknown, "node n1 is not connected since "+gone.UTC().Format(time.RFC3339))
		t.Log(s.Detail)
		if r := y.drift(); r.Complete {
			t.Errorf("%+v", r)
		}
		if err := y.world("n1").Change("n1", "near.bridge", "a", schema.Object{"size": int64(7)}); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if err := y.world("n2").Change("n2", "near.bridge", "b", schema.Object{"size": int64(7)}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		y.on("n2", "b", 2)
		if d := time.Since(begin); d != 0 {
			t.Errorf("it took %v", d)
		}
		y.attend("n1")
		y.stands(site.InSync, "")
		y.on("n1", "a", 1)
		if r := y.drift(); !r.Clean() {
			t.Errorf("%+v", r)
		}
	})
}

// A provider that could not be opened is missing, with the reason, and served as soon as it can be.
func TestProviderComesLater(t *testing.T) {
	yarded(t, trust.Options{}, func(t *testing.T, y *yard) {
		near := providers.Need{Scope: "n1", Provider: "near"}
		y.fail(near, "ovsdb does not run")
		y.attend("n1")
		synctest.Wait()
		k := y.keep(site.Enforce)
		defer k.ends()
		y.put(map[string]string{"n1/near.bridge/a": `{"size": 1}`})
		y.stands(site.Unknown, "ovsdb does not run")
		time.Sleep(time.Minute)
		y.stands(site.Unknown, "ovsdb does not run")
		y.fail(near, "")
		time.Sleep(comeBack)
		y.stands(site.InSync, "")
		y.on("n1", "a", 1)
		if s := y.node("n1"); len(s.Missing) > 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A node that is refused loses its connection, and comes back unless it is banned; when the ban ends it comes back by itself.
func TestBanned(t *testing.T) {
	yarded(t, trust.Options{}, func(t *testing.T, y *yard) {
		y.attend("n1")
		y.attend("n2")
		y.connected("n1", true)
		time.Sleep(5 * time.Minute)
		y.nodes.Refuse("n1")
		y.connected("n1", false)
		y.connected("n2", true)
		time.Sleep(comeBack)
		y.connected("n1", true)

		if err := trust.Ban(t.Context(), y.Store, "n1", "stolen", "me@here"); err != nil {
			t.Fatal(err)
		}
		y.connected("n1", false)
		set, err := y.nodes.Open(t.Context(), []providers.Need{{Scope: "n1", Provider: "near"}, {Scope: "n2", Provider: "near"}})
		if err != nil || set.Failure("n1", "near") == nil || set.Failure("n2", "near") != nil {
			t.Errorf("%v, %v, %v", err, set.Failure("n1", "near"), set.Failure("n2", "near"))
		}
		time.Sleep(5 * time.Minute)
		y.connected("n1", false)
		y.nodes.Refuse("n1")      // which changes nothing,
		y.nodes.Refuse("unknown") // nor does this
		if err := trust.Unban(t.Context(), y.Store, "n1", "found", "me@here"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(comeBack + time.Minute)
		y.connected("n1", true)
	})
}

// While the store is away, nodes stay connected.
func TestStoreIsAway(t *testing.T) {
	yarded(t, trust.Options{}, func(t *testing.T, y *yard) {
		y.attend("n1")
		y.connected("n1", true)
		y.storeless.Store(true)
		time.Sleep(5 * time.Minute)
		y.connected("n1", true)
	})
}

// A machine that was replaced by another one of its name loses the connection that it has.
func TestReplacedMachine(t *testing.T) {
	yarded(t, trust.Options{}, func(t *testing.T, y *yard) {
		y.attend("n1")
		y.connected("n1", true)
		time.Sleep(5 * time.Minute)
		y.connected("n1", true)
		y.enrol("n1") // the new one, which does not come here
		time.Sleep(2 * time.Minute)
		y.connected("n1", false)
	})
}

// A node that is refused while its connection is taken into use does not stay.
func TestBannedWhileItComes(t *testing.T) {
	yarded(t, trust.Options{}, func(t *testing.T, y *yard) {
		y.enrol("n1")
		read, ban := y.epoch, sync.OnceFunc(func() {
			if err := trust.Ban(context.Background(), y.Store, "n1", "stolen", "me@here"); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Second) // until the ban has been seen
		})
		y.epoch = func(ctx context.Context) (int64, error) { // the first thing that is done with a connection
			ban()
			return read(ctx)
		}
		y.attend("n1")
		time.Sleep(5 * time.Minute)
		y.connected("n1", false)
	})
}

// Certificates are replaced in time, and the node goes on with the new one: also its tasks.
func TestCertificateIsRenewed(t *testing.T) {
	yarded(t, trust.Options{NodeLife: 10 * time.Minute}, func(t *testing.T, y *yard) {
		y.attend("n1")
		synctest.Wait()
		k := y.keep(site.Enforce)
		defer k.ends()
		y.put(map[string]string{"n1/near.bridge/a": `{"size": 1}`})
		y.stands(site.InSync, "")
		serials := map[string]bool{}
		for i := range 3 {
			n, err := y.Store.Node(t.Context(), "n1")
			if err != nil {
				t.Fatal(err)
			}
			serials[n.Serial] = true
			if err := y.world("n1").Change("n1", "near.bridge", "a", schema.Object{"size": int64(10 + i)}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(comeBack)
			synctest.Wait()
			y.on("n1", "a", 1)
			y.connected("n1", true)
			time.Sleep(9 * time.Minute)
		}
		if len(serials) != 3 {
			t.Errorf("in 30 minutes it had %d certificates", len(serials))
		}
		if s := y.node("n1"); time.Since(s.Since) > 10*time.Minute {
			t.Errorf("its connection is older than its certificate: %v", s.Since)
		}
	})
}

// An agent that is started a second time with the identity of another takes its place only when that has ended.
func TestAgentTwice(t *testing.T) {
	yarded(t, trust.Options{}, func(t *testing.T, y *yard) {
		end := y.attend("n1")
		y.connected("n1", true)
		first := y.node("n1").Since
		time.Sleep(time.Minute)
		end()
		y.attend("n1")
		y.connected("n1", true)
		if s := y.node("n1"); !s.Since.After(first) {
			t.Errorf("%+v", s)
		}
	})
}

// Nodes of which a process knows nothing yet are unknown; those that nobody has are, too.
func TestNeverConnected(t *testing.T) {
	yarded(t, trust.Options{}, func(t *testing.T, y *yard) {
		begin := time.Now()
		set, err := y.nodes.Open(t.Context(), []providers.Need{{Scope: "n1", Provider: "near"}})
		if err != nil || set.Failure("n1", "near") == nil || !strings.Contains(set.Failure("n1", "near").Error(), "node n1 is not connected: is its agent running") {
			t.Errorf("%v, %v", err, set)
		}
		if d := time.Since(begin); d != 0 {
			t.Errorf("it took %v", d)
		}
		if all := y.nodes.Status(); len(all) > 0 {
			t.Errorf("%v", all)
		}
	})
}

// A process that does not keep the site sees the nodes, and changes nothing on them; once it does, it can at once.
func TestLead(t *testing.T) {
	yarded(t, trust.Options{}, func(t *testing.T, y *yard) {
		y.nodes.Lead(false)
		y.attend("n1")
		y.connected("n1", true)
		time.Sleep(10 * time.Minute)
		lock, err := y.Store.Lock(t.Context(), state.LockInfo{Operation: "apply"}, state.LockOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Close()
		set, err := y.nodes.Open(t.Context(), []providers.Need{{Scope: "n1", Provider: "near"}})
		if err != nil {
			t.Fatal(err)
		}
		kind, ref := bridges(t, set, "n1").Kind, schema.Ref{Scope: "n1", Kind: "near.bridge", Name: "a"}
		create := func() error {
			return kind.Create(t.Context(), providers.Call{
				Ref: ref, ID: "a", Want: schema.Object{"size": int64(1)}, Mark: providers.Mark{Site: y.keys.Site().ID, Ref: ref, Incarnation: 1}, Key: "k", Epoch: lock.Epoch(),
			})
		}
		if s := y.node("n1"); time.Since(s.Heard) > time.Minute || strings.Join(s.Providers, " ") != "near" {
			t.Errorf("%+v", s)
		}
		if err := create(); providers.ClassOf(err) != providers.Transient || !strings.Contains(err.Error(), "has not heard from the site agent") {
			t.Errorf("it does not lead: %v", err)
		}
		y.on("n1", "a", nil)
		begin := time.Now()
		y.nodes.Lead(true)
		synctest.Wait()
		if err := create(); err != nil || !time.Now().Equal(begin) {
			t.Errorf("it leads: %v after %v", err, time.Since(begin))
		}
		y.on("n1", "a", 1)
	})
}
