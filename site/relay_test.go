package site_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/wire"
	"converge.dev/converge/schema"
	"converge.dev/converge/site"
	"converge.dev/converge/state"
	"converge.dev/converge/trust"
)

// relay returns a connection to the relay of a yard, as a command on the same machine has it.
func (y *yard) relay() *grpc.ClientConn {
	y.t.Helper()
	pipe, s := bufconn.Listen(1<<20), grpc.NewServer()
	site.Relay(s, y.nodes, y.logger())
	over := make(chan struct{})
	go func() {
		_ = s.Serve(pipe)
		close(over)
	}()
	conn, err := grpc.NewClient("passthrough:relay", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return pipe.DialContext(ctx) }))
	if err != nil {
		y.t.Fatal(err)
	}
	y.t.Cleanup(func() {
		_ = conn.Close()
		s.Stop()
		<-over
	})
	return conn
}

// bridges returns the bridges that a set has of a node.
func bridges(t *testing.T, set *providers.Set, node string) providers.Served {
	t.Helper()
	served, _, ok := set.Find(node, "near.bridge")
	if !ok {
		t.Fatalf("near.bridge is not served on %s: %v", node, set.Failure(node, "near"))
	}
	return served
}

// Through the relay there are the nodes that are connected, and no others; who is missing, and why, is told.
func TestRelay(t *testing.T) {
	yarded(t, trust.Options{}, func(t *testing.T, y *yard) {
		end := y.attend("n1")
		y.attend("n2", "near", "odd")
		y.fail(providers.Need{Scope: "n2", Provider: "odd"}, "no such device")
		synctest.Wait()
		conn := y.relay()
		all, err := wire.Connect(t.Context(), conn, nil)
		if err != nil || len(all) != 2 || all[0].Scope != "n1" || all[1].Scope != "n2" {
			t.Fatalf("%v, %v", all, err)
		}
		open := func() *providers.Set {
			set, err := wire.Open(t.Context(), conn, []providers.Need{
				{Scope: "n1", Provider: "near"}, {Scope: "n2", Provider: "near"}, {Scope: "n2", Provider: "odd"}, {Scope: "n3", Provider: "near"}, {Scope: schema.ScopeSite, Provider: "far"},
			}, nil)
			if err != nil {
				t.Fatal(err)
			}
			return set
		}
		fails := func(set *providers.Set, scope, provider, want string) {
			t.Helper()
			if err := set.Failure(scope, provider); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s on %s: %v, want %q", provider, scope, err, want)
			}
		}
		set := open()
		fails(set, "n2", "odd", "no such device")
		fails(set, "n3", "near", "node n3 is not connected: is its agent running")
		fails(set, schema.ScopeSite, "far", "nodes only")
		bridges(t, set, "n2")
		served := bridges(t, set, "n1")
		if things, err := served.Kind.Get(t.Context(), []string{"a"}); err != nil || len(things) > 0 {
			t.Errorf("%v, %v", things, err)
		}

		gone := time.Now()
		end()
		y.connected("n1", false)
		away := "node n1 is not connected since " + gone.UTC().Format(time.RFC3339)
		fails(open(), "n1", "near", away)
		if _, err := served.Kind.Get(t.Context(), []string{"a"}); providers.ClassOf(err) != providers.Transient || !strings.Contains(err.Error(), away) {
			t.Errorf("%v", err)
		}
		y.attend("n1")
		y.connected("n1", true)
		if _, err := served.Kind.Get(t.Context(), []string{"a"}); err != nil { // it outlives the connection
			t.Error(err)
		}
		bridges(t, open(), "n1")
	})
}

// What is served later can be had through the relay as soon as it is.
func TestRelayOfWhatComesLater(t *testing.T) {
	yarded(t, trust.Options{}, func(t *testing.T, y *yard) {
		need := []providers.Need{{Scope: "n1", Provider: "near"}}
		y.fail(need[0], "ovsdb does not run")
		y.attend("n1")
		synctest.Wait()
		conn := y.relay()
		set, err := wire.Open(t.Context(), conn, need, nil)
		if err != nil || set.Failure("n1", "near") == nil || !strings.Contains(set.Failure("n1", "near").Error(), "ovsdb does not run") {
			t.Fatalf("%v, %v", err, set)
		}
		y.fail(need[0], "")
		time.Sleep(comeBack)
		if set, err = wire.Open(t.Context(), conn, need, nil); err != nil {
			t.Fatal(err)
		}
		bridges(t, set, "n1")
	})
}

// A command beside the site agent plans and applies through the relay, under the same lock. What it changes, the agent sees.
func TestApplyThroughTheRelay(t *testing.T) {
	yarded(t, trust.Options{}, func(t *testing.T, y *yard) {
		y.attend("n1")
		y.attend("n2")
		synctest.Wait()
		k := y.keep(site.Observe)
		defer k.ends()
		conn := y.relay()
		d := y.put(map[string]string{"n1/near.bridge/a": `{"size": 1}`, "n2/near.bridge/b": `{"size": 2}`})
		y.stands(site.Differs, "")
		e := y.Engine(func(o *engine.Options) {
			o.Open = func(ctx context.Context, _ schema.Site, needs []providers.Need) (*providers.Set, error) {
				return wire.Open(ctx, conn, needs, nil)
			}
		})
		defer e.Close()
		p, err := e.Plan(t.Context(), d, plan.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if res, err := e.Apply(t.Context(), p, engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunApplied {
			t.Fatalf("%+v, %v\n%s", res, err, y.logged())
		}
		y.on("n1", "a", 1)
		y.on("n2", "b", 2)
		time.Sleep(10 * time.Second)
		y.stands(site.InSync, "")
	})
}

// Who no longer has the site lock changes nothing through the relay, and is told so.
func TestRelayRefusesAnotherEpoch(t *testing.T) {
	yarded(t, trust.Options{}, func(t *testing.T, y *yard) {
		y.attend("n1")
		synctest.Wait()
		lock, err := y.Store.Lock(t.Context(), state.LockInfo{Operation: "apply"}, state.LockOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Close()
		set, err := wire.Open(t.Context(), y.relay(), []providers.Need{{Scope: "n1", Provider: "near"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		ref := schema.Ref{Scope: "n1", Kind: "near.bridge", Name: "a"}
		create := func(epoch int64) error {
			return bridges(t, set, "n1").Kind.Create(t.Context(), providers.Call{
				Ref: ref, ID: "a", Want: schema.Object{}, Mark: providers.Mark{Site: y.keys.Site().ID, Ref: ref, Incarnation: 1}, Key: fmt.Sprint("key-", epoch), Epoch: epoch,
			})
		}
		for _, epoch := range []int64{lock.Epoch() - 1, lock.Epoch() + 1} {
			var outdated *providers.OutdatedError
			if err := create(epoch); providers.ClassOf(err) != providers.Denied || !errors.As(err, &outdated) || outdated.Epoch != epoch || outdated.Stored != lock.Epoch() {
				t.Errorf("epoch %d at %d: %v", epoch, lock.Epoch(), err)
			}
			if err := set.All()[0].Fence(t.Context(), epoch); providers.ClassOf(err) != providers.Denied {
				t.Errorf("a fence for epoch %d at %d: %v", epoch, lock.Epoch(), err)
			}
		}
		y.on("n1", "a", nil)
		if err := create(lock.Epoch()); err != nil {
			t.Error(err)
		}
		if th := thingOf(t, y.world("n1"), "n1", "near.bridge", "a"); th == nil {
			t.Error("it was not made")
		}
	})
}

// TestLaws: the providers of a node obey the contract as seen at the site, and as seen through the relay.
func TestLaws(t *testing.T) {
	for name, open := range map[string]func(y *yard, need providers.Need) (*providers.Set, error){
		"nodes": func(y *yard, n providers.Need) (*providers.Set, error) {
			return y.nodes.Open(y.t.Context(), []providers.Need{n})
		},
		"relay": func(y *yard, n providers.Need) (*providers.Set, error) {
			return wire.Open(y.t.Context(), y.relay(), []providers.Need{n}, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			y := newYard(t, newBed(t), trust.Options{}, nil)
			y.epoch = func(context.Context) (int64, error) { return 1, nil } // that of all calls of the laws
			var count int
			providertest.Run(t, providertest.Suite{
				Kinds: schema.Kinds{"near.bridge": y.Kinds["near.bridge"]}, Direct: true,
				Cases: []providertest.Case{{
					Kind: "near.bridge", Name: "b1", Want: schema.Object{"size": int64(1), "mode": "a"}, Update: schema.Object{"mode": "b"},
					Invalid: schema.Object{"size": "large"},
				}},
				Open: func(t *testing.T) providertest.World {
					count++
					node := fmt.Sprintf("law-%d", count)
					end := y.attend(node)
					t.Cleanup(end)
					y.await(node)
					set, err := open(y, providers.Need{Scope: node, Provider: "near"})
					if err != nil {
						t.Fatal(err)
					}
					p, w := set.All()[0], y.world(node)
					p.Kinds = []providers.Served{bridges(t, set, node)}
					return providertest.World{
						Provider: p, Dump: w.Dump, Late: true,
						Advance: func() {
							if err := w.Land(); err != nil {
								t.Error(err)
							}
						},
						Meddle: func(kind, id string) {
							if err := w.Change(node, kind, id, schema.Object{"labels": map[string]any{"by": "somebody"}}); err != nil {
								t.Error(err)
							}
						},
					}
				},
			})
		})
	}
}

// await waits, without a bubble, until a node is connected.
func (y *yard) await(name string) {
	for {
		for _, s := range y.nodes.Status() {
			if s.Name == name && s.Connected {
				return
			}
		}
		<-y.changed
	}
}

// All of it over a real network: two nodes enrol, come, and are changed.
func TestLoopback(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	y := newYard(t, newBed(t), trust.Options{}, l)
	for _, node := range []string{"n1", "n2"} {
		y.attend(node)
		y.await(node)
		if at := y.node(node).Address; !strings.HasPrefix(at, "127.0.0.1:") {
			t.Errorf("node %s comes from %s", node, at)
		}
	}
	e := y.Engine(func(o *engine.Options) { o.Open = y.open })
	defer e.Close()
	p, err := e.Plan(t.Context(), y.put(map[string]string{"n1/near.bridge/a": `{"size": 1}`, "n2/near.bridge/b": `{"size": 2}`}), plan.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := e.Apply(t.Context(), p, engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunApplied {
		t.Fatalf("%+v, %v\n%s", res, err, y.logged())
	}
	y.on("n1", "a", 1)
	y.on("n2", "b", 2)
}
