package site_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/drift"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/site"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// sweep is how often the agents of the tests look at everything.
const sweep = 10 * time.Minute

// A bed is a site, and what its agent is made of. It lives in a bubble: time passes by time.Sleep.
type bed struct {
	*enginetest.Site
	t *testing.T

	mu        sync.Mutex
	docs      map[string]*schema.Document // by digest
	policy    schema.Policy               // what documents that put writes say of the site agent
	reached   []providers.Need
	renewed   []string
	opened    []providers.Need // in the order in which they were opened
	away      map[providers.Need]string
	refused   error          // of the inbox
	published map[string]int // how often each key was written
	phases    []string       // the phases of the statuses that were written, in order
	log       *bytes.Buffer  // of all agents
	wrap      func(*providers.Provider)
	nodes     *site.Nodes // optional: where the providers of nodes are, in place of the world
}

func newBed(t *testing.T) *bed {
	return &bed{
		Site: enginetest.New(), t: t, docs: map[string]*schema.Document{}, away: map[providers.Need]string{}, published: map[string]int{}, log: &bytes.Buffer{},
		reached: []providers.Need{{Scope: "n1", Provider: "near"}, {Scope: "n2", Provider: "near"}, {Scope: schema.ScopeSite, Provider: "far"}},
	}
}

// put makes a document the newest one of the site.
func (b *bed) put(resources map[string]string) *schema.Document {
	b.t.Helper()
	d := b.Document(b.t, resources)
	d.Policy.Reconcile, d.Policy.Approvals = b.policy.Reconcile, b.policy.Approvals
	b.mu.Lock()
	b.docs[d.Digest] = d
	b.mu.Unlock()
	if _, err := b.Store.PutDocument(b.t.Context(), d.JSON, d.Digest, 0, "test@here", state.AnyRevision); err != nil {
		b.t.Fatal(err)
	}
	return b.newest()
}

// newest returns the document that put wrote last.
func (b *bed) newest() *schema.Document {
	d, err := b.desired(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return d
}

func (b *bed) desired(ctx context.Context) (*schema.Document, error) {
	head, err := b.Store.Head(ctx)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	d := *b.docs[head.Digest]
	d.Site.Serial = head.Serial
	return &d, nil
}

// fail makes a provider one that cannot be opened; an empty reason ends that.
func (b *bed) fail(n providers.Need, why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if why == "" {
		delete(b.away, n)
	} else {
		b.away[n] = why
	}
}

// open is the Open of the engines.
func (b *bed) open(ctx context.Context, _ schema.Site, needs []providers.Need) (*providers.Set, error) {
	set, err := providers.NewSet()
	var ofNodes []providers.Need
	for _, n := range needs {
		if b.nodes != nil && n.Scope != schema.ScopeSite {
			ofNodes = append(ofNodes, n)
			continue
		}
		b.mu.Lock()
		b.opened = append(b.opened, n)
		why, wrap := b.away[n], b.wrap
		b.mu.Unlock()
		if why != "" {
			set.Fail(n.Scope, n.Provider, errors.New(why))
			continue
		}
		p := b.World.Provider(n.Provider, n.Scope)
		if wrap != nil {
			wrap(p)
		}
		one, nerr := providers.NewSet(p)
		err = errors.Join(err, nerr, set.Join(one))
	}
	if len(ofNodes) > 0 && err == nil {
		far, err := b.nodes.Open(ctx, ofNodes)
		if err != nil {
			return nil, err
		}
		return set, set.Join(far)
	}
	return set, err
}

// A kept is an agent that runs.
type kept struct {
	*site.Agent
	bed    *bed
	kv     *mem.KV
	engine *engine.Engine
	ctx    context.Context
	stop   context.CancelCauseFunc
	end    chan error
	over   sync.Once
	dead   chan struct{} // closed: its process no longer reaches the store
}

// start starts an agent, and waits until it has nothing to do.
func (b *bed) start(mode site.Mode, change ...func(*engine.Options)) *kept {
	b.t.Helper()
	k := b.prepare(mode, change...)
	k.begin()
	synctest.Wait()
	return k
}

// prepare returns an agent that does not run yet.
func (b *bed) prepare(mode site.Mode, change ...func(*engine.Options)) *kept {
	b.t.Helper()
	k := &kept{bed: b, end: make(chan error, 1), dead: make(chan struct{})}
	k.kv = b.KV.Connect(mem.Options{Fault: func(c mem.Call) error {
		select {
		case <-k.dead:
			return fmt.Errorf("%w: the process is dead", state.ErrUnknown)
		default:
		}
		if c.Name == "commit" && c.Done {
			b.count(c.Keys)
		}
		return nil
	}})
	store := state.New(k.kv, "test")
	e := b.Engine(func(o *engine.Options) {
		o.Store, o.Open = store, b.open
		for _, f := range change {
			f(o)
		}
	})
	k.Agent = site.New(site.Options{
		Engine: e, Store: store, Mode: mode, Sweep: sweep, Logger: slog.New(slog.NewTextHandler(&locked{b: b}, nil)),
		Inbox:   func(context.Context) error { b.mu.Lock(); defer b.mu.Unlock(); return b.refused },
		Desired: b.desired,
		Mask:    func(r *drift.Report) *drift.Report { return r },
		Reached: func() []providers.Need {
			if b.nodes != nil {
				return b.nodes.Reached()
			}
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.reached
		},
		Renewed: func() []string {
			if b.nodes != nil {
				return b.nodes.Renewed()
			}
			b.mu.Lock()
			defer b.mu.Unlock()
			renewed := b.renewed
			b.renewed = nil
			return renewed
		},
	})
	k.engine = e
	k.ctx, k.stop = context.WithCancelCause(context.Background())
	return k
}

func (k *kept) begin() {
	go func() {
		err := k.Run(k.ctx)
		_ = k.engine.Close()
		k.end <- err
	}()
}

// locked is the log.
type locked struct{ b *bed }

func (l *locked) Write(p []byte) (int, error) {
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	return l.b.log.Write(p)
}

// count counts what is published, and keeps the phases.
func (b *bed) count(keys []string) {
	for _, key := range keys {
		for _, what := range []string{"status", "drift/latest"} {
			if !strings.HasSuffix(key, "/"+what) {
				continue
			}
			b.mu.Lock()
			b.published[what]++
			b.mu.Unlock()
			if what == "status" {
				phase := string(b.status().Phase)
				b.mu.Lock()
				b.phases = append(b.phases, phase)
				b.mu.Unlock()
			}
		}
	}
}

// ends stops an agent, and checks that it ends with the cause.
func (k *kept) ends() {
	k.bed.t.Helper()
	k.over.Do(func() {
		cause := errors.New("it is over")
		k.stop(cause)
		if err := <-k.end; !errors.Is(err, cause) {
			k.bed.t.Errorf("the agent ended with: %v", err)
		}
	})
}

func (b *bed) status() (s site.Status) {
	b.t.Helper()
	body, err := b.Store.Published(context.Background(), "status")
	if err == nil {
		err = json.Unmarshal(body, &s)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// stands fails the test unless the status has a phase and its detail contains a text.
func (b *bed) stands(phase site.Phase, detail string) site.Status {
	b.t.Helper()
	synctest.Wait()
	s := b.status()
	if s.Phase != phase || !strings.Contains(s.Detail, detail) {
		b.t.Fatalf("it stands %q: %q, want %q: %q\n%s", s.Phase, s.Detail, phase, detail, b.logged())
	}
	return s
}

func (b *bed) logged() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.log.String()
}

func (b *bed) drift() (r drift.Report) {
	b.t.Helper()
	synctest.Wait()
	body, err := b.Store.Published(context.Background(), "drift/latest")
	if err == nil {
		err = json.Unmarshal(body, &r)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

func (b *bed) runs() (ended []state.Run) {
	b.t.Helper()
	ended, err := b.Store.Runs(context.Background())
	if err != nil {
		b.t.Fatal(err)
	}
	return ended
}

// writes returns how often the status and the report of drift were written.
func (b *bed) writes() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.published)
}

// has fails the test unless the world has a thing of the kind with the field at a value; nil: unless it has no such thing.
func (b *bed) has(scope, kind, name, field string, want any) {
	b.t.Helper()
	th := b.thing(scope, kind, name)
	switch {
	case th == nil && want == nil:
	case th == nil:
		b.t.Fatalf("there is no %s/%s/%s\n%s", scope, kind, name, b.logged())
	case fmt.Sprint(th.Spec[field]) != fmt.Sprint(want):
		b.t.Fatalf("%s/%s/%s has %s %v, want %v\n%s", scope, kind, name, field, th.Spec[field], want, b.logged())
	}
}

// thing returns a thing of the world; nil when there is none.
func (b *bed) thing(scope, kind, name string) *providers.Thing {
	b.t.Helper()
	return thingOf(b.t, b.World, scope, kind, name)
}

// thingOf returns a thing of a world; nil when there is none.
func thingOf(t *testing.T, w *fake.World, scope, kind, name string) *providers.Thing {
	t.Helper()
	provider, _, _ := strings.Cut(kind, ".")
	for _, k := range w.Provider(provider, scope).Kinds {
		if k.Name != kind {
			continue
		}
		for th, err := range k.Kind.List(context.Background()) {
			if err != nil {
				t.Fatal(err)
			}
			if th.Name == name {
				return &th
			}
		}
	}
	return nil
}

// meddle changes a thing behind the agent's back.
func (b *bed) meddle(scope, kind, name string, spec schema.Object) {
	b.t.Helper()
	if err := b.World.Change(scope, kind, name, spec); err != nil {
		b.t.Fatal(err)
	}
}

// bubble runs a test on a new bed in a bubble.
func bubble(t *testing.T, test func(t *testing.T, b *bed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newBed(t)) })
}
