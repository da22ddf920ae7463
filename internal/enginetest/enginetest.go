// Package enginetest provides a small site for tests of the engine: four kinds, a fake world, a store in memory.
package enginetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// SiteID is the UUID of the site of all tests.
const SiteID = "5a2f8c1e-7b0d-4f3a-9c61-2e8d4b7a9f10"

// Kinds returns the kinds: far.net on the site, with an immutable cidr; far.subnet, a part of a net that cannot change; far.host,
// which always stays in its net, may have a guard, and links to subnets; far.guard, which can change; far.account, which has
// secrets; near.bridge and near.port on nodes, which are replaced without loss.
func Kinds() schema.Kinds {
	field := func(name string, t schema.Type, set ...func(*schema.Field)) schema.Field {
		f := schema.Field{Name: name, Type: t}
		for _, s := range set {
			s(&f)
		}
		return f
	}
	immutable := func(f *schema.Field) { f.Immutable = true }
	ref := func(kind string) func(*schema.Field) { return func(f *schema.Field) { f.Ref = kind } }
	secret := func(f *schema.Field) {
		f.Secret, f.Fields = true, []schema.Field{field("from", schema.String, func(f *schema.Field) { f.Required = true })}
	}
	token := field("", schema.Struct, secret)
	labels := field("labels", schema.Map, func(f *schema.Field) { f.Elem = &schema.Field{Type: schema.String} })
	link := schema.Field{Type: schema.Struct, Fields: []schema.Field{field("port", schema.Int), field("subnet", schema.String, ref("far.subnet"))}}
	kinds := schema.Kinds{}
	for _, k := range []*schema.Kind{
		{Name: "far.net", Fields: []schema.Field{field("cidr", schema.String, immutable), labels, field("size", schema.Int)}},
		{Name: "far.account", Fields: []schema.Field{
			field("login", schema.String), field("password", schema.Struct, secret), field("tokens", schema.Map, func(f *schema.Field) { f.Elem = &token }),
		}},
		{Name: "far.subnet", Fields: []schema.Field{field("cidr", schema.String, immutable), field("net", schema.String, immutable, ref("far.net")), field("size", schema.Int, immutable)}},
		{Name: "far.guard", Fields: []schema.Field{labels, field("size", schema.Int)}},
		{Name: "far.host", Fields: []schema.Field{
			field("guard", schema.String, ref("far.guard")), labels, field("links", schema.List, func(f *schema.Field) { f.Elem = &link }), field("net", schema.String, immutable, ref("far.net")), field("size", schema.Int),
		}},
		{Name: "near.bridge", Node: true, Fields: []schema.Field{labels, field("mode", schema.String), field("size", schema.Int)}},
		{Name: "near.port", Node: true, Fields: []schema.Field{
			field("bridge", schema.String, immutable, ref("near.bridge")), labels, field("tag", schema.Int),
		}},
	} {
		kinds[k.Name] = k
	}
	return kinds
}

// A Site is a world, a store and the events so far.
type Site struct {
	World *fake.World
	KV    *mem.KV
	Store *state.Store
	Kinds schema.Kinds

	mu     sync.Mutex
	events []event.Event
}

// New returns an empty site.
func New() *Site {
	kv := mem.New(mem.Options{})
	kinds := Kinds()
	return &Site{World: fake.New(kinds), KV: kv, Store: state.New(kv, "test"), Kinds: kinds}
}

// Engine returns an engine on the site, as a process would create it; change, which may be nil, adjusts its options.
func (s *Site) Engine(change func(*engine.Options)) *engine.Engine {
	o := engine.Options{
		Kinds: s.Kinds, Store: s.Store, Who: "test@here", Version: "test",
		Open: func(_ context.Context, _ schema.Site, needs []providers.Need) (*providers.Set, error) {
			var open []*providers.Provider
			for _, n := range []providers.Need{{Scope: schema.ScopeSite, Provider: "far"}, {Scope: "n1", Provider: "near"}, {Scope: "n2", Provider: "near"}} {
				if slices.Contains(needs, n) {
					open = append(open, s.World.Provider(n.Provider, n.Scope))
				}
			}
			return providers.NewSet(open...)
		},
		Retry: apply.Retry{Base: time.Microsecond, Cap: time.Microsecond, Poll: time.Microsecond},
		Emit: func(e event.Event) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.events = append(s.events, e)
		},
	}
	if change != nil {
		change(&o)
	}
	return engine.New(o)
}

// Events returns the events so far.
func (s *Site) Events() []event.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events)
}

// Document returns a document of resources, each a ref and its spec as JSON, with references resolved.
func (s *Site) Document(tb testing.TB, resources map[string]string) *schema.Document {
	tb.Helper()
	d := &schema.Document{Site: schema.Site{Name: "test", ID: SiteID}, Policy: schema.Policy{MaxDestroy: "100%"}, Author: schema.Author{Own: true}}
	timeouts := map[string]map[string]any{} // of a kind, by name, as a document has them
	for text, spec := range resources {
		ref, err := schema.ParseRef(text)
		if err != nil {
			tb.Fatal(err)
		}
		r := schema.Resource{Ref: ref}
		if err := json.Unmarshal([]byte(spec), &r.Spec); err != nil {
			tb.Fatalf("%s: %v", text, err)
		}
		if l, ok := r.Spec["lifecycle"]; ok {
			b, _ := json.Marshal(l)
			if err := json.Unmarshal(b, &r.Lifecycle); err != nil {
				tb.Fatalf("%s: %v", text, err)
			}
			delete(r.Spec, "lifecycle")
		}
		if t, ok := r.Spec["timeouts"].(map[string]any); ok {
			for verb, within := range map[string]*time.Duration{"create": &r.Timeouts.Create, "update": &r.Timeouts.Update} {
				if said, ok := t[verb].(string); ok {
					if *within, err = time.ParseDuration(said); err != nil {
						tb.Fatalf("%s: %v", text, err)
					}
				}
			}
			delete(r.Spec, "timeouts")
			kind := timeouts[ref.Kind]
			if kind == nil {
				kind = map[string]any{}
				timeouts[ref.Kind] = kind
			}
			kind[ref.Name] = map[string]any{"timeouts": t}
		}
		if x, ok := r.Spec["external"]; ok {
			by, _ := x.(map[string]any)
			id, _ := by["id"].(string)
			r.External, r.Spec = &schema.External{ID: id}, schema.Object{}
		}
		d.Resources = append(d.Resources, s.finish(r))
	}
	slices.SortFunc(d.Resources, func(a, b schema.Resource) int { return a.Ref.Compare(b.Ref) })
	whole := map[string]any{"site": d.Site, "policy": d.Policy, "resources": resources}
	for kind, named := range timeouts {
		provider, noun, _ := strings.Cut(kind, ".")
		of, _ := whole[provider].(map[string]any)
		if of == nil {
			of = map[string]any{}
			whole[provider] = of
		}
		of[noun] = named
	}
	d.JSON, _ = json.Marshal(whole)
	sum := sha256.Sum256(d.JSON)
	d.Digest = hex.EncodeToString(sum[:])
	return d
}

func (s *Site) finish(r schema.Resource) schema.Resource {
	k := s.Kinds[r.Ref.Kind]
	k.ReplaceRefs(r.Spec, func(kind, name string) string {
		scope := schema.ScopeSite
		if s.Kinds[kind].Node {
			scope = r.Ref.Scope
		}
		to := schema.Ref{Scope: scope, Kind: kind, Name: name}
		if _, err := uuid.Parse(name); err == nil {
			r.Outside = append(r.Outside, to)
		} else {
			r.After = append(r.After, to)
		}
		return name
	})
	r.After = schema.SortRefs(r.After)
	k.Normalize(r.Spec)
	return r
}

// Plan plans with a new engine.
func (s *Site) Plan(tb testing.TB, d *schema.Document, o plan.Options) *plan.Plan {
	tb.Helper()
	e := s.Engine(nil)
	defer e.Close()
	p, err := e.Plan(context.Background(), d, o)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// Converge plans and applies, and fails the test unless the run ends applied.
func (s *Site) Converge(tb testing.TB, d *schema.Document) *plan.Plan {
	tb.Helper()
	p := s.Plan(tb, d, plan.Options{})
	res, err := s.Apply(p, engine.ApplyOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	if res.Run.Status != state.RunApplied {
		tb.Fatalf("the run ended %s: %s %v", res.Run.Status, res.Run.Message, res.Differences)
	}
	return p
}

// Apply applies with a new engine. The plan is approved, unless o says that another one was.
func (s *Site) Apply(p *plan.Plan, o engine.ApplyOptions) (engine.Result, error) {
	if o.Approve == "" {
		o.Approve = p.Approval()
	}
	e := s.Engine(nil)
	defer e.Close()
	return e.Apply(context.Background(), p, o)
}

// Release releases all holds.
func (s *Site) Release(tb testing.TB) {
	tb.Helper()
	Release(tb, s.Store)
}

// Members returns those of the file of a plan that its proof covers, from the plan on.
func Members(t testing.TB, p *plan.Plan) []byte {
	t.Helper()
	file, _, err := p.EncodeFile(nil)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.TrimSuffix(file[bytes.Index(file, []byte(`"plan":`)):], []byte("}\n"))
}

// Text returns a short form of a plan: one line per step.
func Text(p *plan.Plan) string {
	var b strings.Builder
	for i := range p.Steps {
		st := &p.Steps[i]
		if i == p.NoReturn {
			b.WriteString("== point of no return ==\n")
		}
		replace := ""
		if st.Replace {
			replace = " (replace)"
		}
		if st.Stray {
			replace = " (stray " + st.ExternalID + ")"
		}
		if st.Stage > 1 {
			replace += fmt.Sprintf(" (turn %d)", st.Stage)
		}
		fmt.Fprintf(&b, "%d %s %s%s: %s", st.Wave, st.Action, st.Ref, replace, st.Reason)
		for _, c := range st.Changes {
			was, _ := json.Marshal(c.Before)
			will, _ := json.Marshal(c.After)
			fmt.Fprintf(&b, "\n    %s: %s -> %s", c.Path, was, will)
			if c.Replaces {
				b.WriteString(" (replaces)")
			}
		}
		for _, c := range st.Chosen {
			fmt.Fprintf(&b, "\n    %s %s: %s", c.Field, c.ID, c.Why)
		}
		b.WriteByte('\n')
	}
	for _, r := range p.Refusals {
		fmt.Fprintf(&b, "refused: %s: %s", r.Ref, r.Reason)
		for _, way := range r.Remedies {
			fmt.Fprintf(&b, ": %s", way.Text)
			if len(way.Do) > 0 {
				fmt.Fprintf(&b, " %v", way.Do)
			}
		}
		b.WriteByte('\n')
	}
	for _, d := range p.Drift {
		fmt.Fprintf(&b, "drift: %s missing=%v changes=%d", d.Ref, d.Missing, len(d.Changes))
		for _, c := range d.Unstated {
			was, _ := json.Marshal(c.Before)
			is, _ := json.Marshal(c.After)
			fmt.Fprintf(&b, "\n    unstated %s: %s -> %s", c.Path, was, is)
		}
		b.WriteByte('\n')
	}
	for _, u := range p.Unmanaged {
		fmt.Fprintf(&b, "unmanaged: %s/%s/%s stray=%v\n", u.Scope, u.Kind, u.Name, u.Stray)
	}
	for _, u := range p.Unknown {
		fmt.Fprintf(&b, "unknown: %s/%s: %s\n", u.Scope, u.Kind, u.Error)
	}
	for _, u := range p.Unsupported {
		fmt.Fprintf(&b, "unsupported: %s/%s: %s\n", u.Scope, u.Kind, u.Error)
	}
	for _, x := range p.Externals {
		fmt.Fprintf(&b, "external: %s is %s", x.Ref, x.ID)
		if x.Unchecked != "" {
			fmt.Fprintf(&b, ", not checked: %s", x.Unchecked)
		}
		b.WriteByte('\n')
	}
	for _, o := range p.Omitted {
		fmt.Fprintf(&b, "omitted: %s: %s\n", o.Ref, o.Reason)
	}
	if p.Narrowed != nil {
		fmt.Fprintf(&b, "about %d of %d, %d unchanged\n", p.Narrowed.Resources, p.Narrowed.Of, p.Unchanged)
	}
	return b.String()
}
