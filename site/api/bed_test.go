package api_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/drift"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/site"
	"converge.dev/converge/site/api"
	"converge.dev/converge/site/outbox"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
	"converge.dev/converge/trust"
	"converge.dev/converge/trust/certs"
)

// secrets are in places where only masking keeps them back, or only the scrubber.
const (
	canary  = "canary-of-a-spec"
	scrubed = "canary-of-an-error"
)

// A bed is a site and the API of one replica. Its clock stands still unless a test moves it.
type bed struct {
	*enginetest.Site
	*api.API
	t      *testing.T
	down   atomic.Bool   // the store does not answer
	block  chan struct{} // when set, the store answers once it is closed
	events *outbox.Standing
	nodes  []site.NodeStatus
	trust  *trust.Document
	log    lockedBuffer

	roles map[string][]certs.Role // of clients, by the names that their connections have; nil: nobody may write
	put   func(ctx context.Context, body []byte, by string, after int64) (api.PutView, error)

	operate func(grpc.ServiceRegistrar) // what operators may call

	certificates func() []api.Certificate
	enrolments   func() (attempted, succeeded int64)

	mu  sync.Mutex
	now time.Time
}

// A lockedBuffer takes a log, which several write at the same time.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{Site: enginetest.New(), t: t, now: time.Now()}
	kv := b.KV.Connect(mem.Options{Fault: func(c mem.Call) error {
		if b.block != nil {
			<-b.block
		}
		if b.down.Load() {
			return errors.New("no quorum: " + scrubed)
		}
		return nil
	}})
	keys, err := trust.Init(filepath.Join(t.TempDir(), "trust"), schema.Site{Name: "test", ID: enginetest.SiteID}, 1, trust.NewRoots(1), trust.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b.trust = keys.Document()
	b.nodes = []site.NodeStatus{{Name: "n1", Connected: true, Since: b.now}}
	b.API = api.New(api.Options{
		Site: schema.Site{Name: "test", ID: enginetest.SiteID}, Mode: "observe", Version: "1.2.3", Store: state.New(kv, "test"), Sweep: 10 * time.Minute,
		Needs: func() []providers.Need {
			return []providers.Need{{Scope: "n1", Provider: "near"}, {Scope: schema.ScopeSite, Provider: "far"}}
		},
		Nodes: func() []site.NodeStatus { return b.nodes },
		Trust: func() *trust.Document { return b.trust },
		Certificates: func() []api.Certificate {
			if b.certificates == nil {
				return nil
			}
			return b.certificates()
		},
		Enrolments: func() (int64, int64) {
			if b.enrolments == nil {
				return 0, 0
			}
			return b.enrolments()
		},
		Events: func() *outbox.Standing { return b.events },
		Writes: &api.Writes{
			Allowed: func(role certs.Role, state *tls.ConnectionState) (string, error) {
				if state == nil {
					return "", &certs.ForbiddenError{Role: role, Why: "it shows none"}
				}
				b.mu.Lock()
				defer b.mu.Unlock()
				if !slices.Contains(b.roles[state.ServerName], role) {
					return "", &certs.ForbiddenError{Role: role, Why: "it has none", Names: []string{"cn:" + state.ServerName}}
				}
				return state.ServerName, nil
			},
			Put: func(ctx context.Context, body []byte, by string, after int64) (api.PutView, error) {
				return b.put(ctx, body, by, after)
			},
			Known: func(_ context.Context, scope string) (bool, string, error) {
				return scope == "n1" || scope == "site/far.net/prod", "Did you mean n1?", nil
			},
		},
		Operate: func(r grpc.ServiceRegistrar) {
			if b.operate != nil {
				b.operate(r)
			}
		},
		ShowPlan: func(p *plan.Plan, w *state.Waiting) any {
			return map[string]any{"steps": len(p.Steps), "waits": w.Approval}
		},
		MaskRecord: func(r state.Record) state.Record {
			if r.Ref.Name == "panics" {
				panic("a bug with " + scrubed)
			}
			r.Spec = masked(r.Spec)
			return r
		},
		MaskDrift: func(r *drift.Report) *drift.Report {
			out := *r
			out.Drifted = nil
			for _, i := range r.Drifted {
				i.Changes = nil
				out.Drifted = append(out.Drifted, i)
			}
			return &out
		},
		Scrub:  func(s string) string { return strings.ReplaceAll(s, scrubed, "***") },
		Logger: slog.New(slog.NewTextHandler(&b.log, nil)),
		Now:    b.time,
	})
	return b
}

func masked(o schema.Object) schema.Object {
	o = o.Clone()
	if o["password"] != nil {
		o["password"] = "(sensitive)"
	}
	return o
}

func (b *bed) time() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

// pass lets time pass, so that the store is read again.
func (b *bed) pass(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = b.now.Add(d)
}

// get asks for a path, and returns the response and its body.
func (b *bed) get(path string, header ...string) (*http.Response, string) {
	b.t.Helper()
	return ask(b.Handler(), http.MethodGet, path, header...)
}

func ask(h http.Handler, method, path string, header ...string) (*http.Response, string) {
	r := httptest.NewRequest(method, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result(), w.Body.String()
}

// send sends a request as a client, over TLS unless it has no name.
func (b *bed) send(client, method, path, body string, header ...string) (*http.Response, string) {
	b.t.Helper()
	return b.sendTo(b.Handler(), client, method, path, body, header...)
}

func (b *bed) sendTo(h http.Handler, client, method, path, body string, header ...string) (*http.Response, string) {
	b.t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if client != "" {
		r.TLS = b.client(client)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result(), w.Body.String()
}

// client is the connection of one.
func (b *bed) client(name string) *tls.ConnectionState { return &tls.ConnectionState{ServerName: name} }

// into asks for a path and decodes the body, whatever the status is.
func into[T any](b *bed, path string) (v T, status int) {
	b.t.Helper()
	res, body := b.get(path)
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		b.t.Fatalf("%s: %v\n%s", path, err, body)
	}
	return v, res.StatusCode
}

// component returns one component of the state.
func (b *bed) component(name string) api.Component {
	b.t.Helper()
	b.pass(time.Minute)
	h, _ := into[api.Health](b, "/state")
	for _, c := range h.Components {
		if c.Name == name {
			return c
		}
	}
	b.t.Fatalf("there is no component %s in %+v", name, h.Components)
	return api.Component{}
}

func (b *bed) state() api.State {
	b.t.Helper()
	b.pass(time.Minute)
	h, _ := into[api.Health](b, "/state")
	return h.State
}

// commit writes to the store as others do.
func (b *bed) commit(ops ...state.Op) {
	b.t.Helper()
	if _, err := b.Store.Commit(b.t.Context(), nil, ops); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bed) publish(key string, v any) {
	b.t.Helper()
	body, err := json.Marshal(v)
	if err == nil {
		err = b.Store.Publish(b.t.Context(), key, body)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// keep makes the replica the keeper, which has made a round, of a site with a document, resources on the site and on a node, a run,
// and a report without drift.
func (b *bed) keep() {
	b.t.Helper()
	ctx := b.t.Context()
	k, err := b.Store.Keep(ctx, state.KeeperInfo{Who: "ada@lab", PID: 7, Version: "1.2.3"}, time.Hour, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = k.Close() })
	b.Keeps()
	doc := b.Document(b.t, map[string]string{
		"site/far.net/prod": `{"cidr": "10.0.0.0/16"}`, "site/far.net/test": `{"cidr": "10.1.0.0/16"}`, "n1/near.bridge/br": `{"mode": "a"}`,
	})
	if _, err := b.Store.PutDocument(ctx, doc.JSON, doc.Digest, 0, "ada@lab", state.AnyRevision); err != nil {
		b.t.Fatal(err)
	}
	e := b.Engine(func(o *engine.Options) { o.Emit = b.API.Event })
	defer e.Close()
	p, err := e.Plan(ctx, doc, plan.Options{})
	if err == nil {
		_, err = e.Apply(ctx, p, engine.ApplyOptions{})
	}
	if err != nil {
		b.t.Fatal(err)
	}
	report, err := e.Drift(ctx, doc.Site)
	if err != nil {
		b.t.Fatal(err)
	}
	b.publish("drift/latest", report)
	b.publish("status", site.Status{Site: doc.Site, Mode: site.Observe, Phase: site.InSync, Since: b.time().UTC()})
	b.Rounded(20*time.Millisecond, nil)
}

// waits makes a plan wait for the approval of some people, and returns it.
func (b *bed) waits(needs int, by ...string) state.Waiting {
	b.t.Helper()
	ctx := b.t.Context()
	doc := b.Document(b.t, map[string]string{"site/far.net/prod": `{"cidr": "10.0.0.0/16"}`, "site/far.net/more": `{"cidr": "10.2.0.0/16"}`})
	e := b.Engine(func(*engine.Options) {})
	defer e.Close()
	p, err := e.Plan(ctx, doc, plan.Options{})
	if err != nil {
		b.t.Fatal(err)
	}
	saved, err := p.Encode()
	if err != nil {
		b.t.Fatal(err)
	}
	w := state.Waiting{Approval: saved.Approval, Plan: saved.Digest, Site: p.Site, Steps: len(p.Steps), Why: "it needs approval: " + scrubed, Since: time.Now().UTC(), Needs: needs, By: by}
	if err := b.Store.SetWaiting(ctx, &w, saved.Data); err != nil {
		b.t.Fatal(err)
	}
	return w
}

// enrol stores a node with a certificate.
func (b *bed) enrol(n state.Node) {
	b.t.Helper()
	n.Certificate, n.Serial, n.Expires = []byte{1}, "01", b.time().Add(24*time.Hour).UTC()
	if err := b.Store.SetNode(b.t.Context(), n); err != nil {
		b.t.Fatal(err)
	}
}
