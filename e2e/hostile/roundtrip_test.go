package hostile

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/secret"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
	"converge.dev/converge/schema/load"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// foundSecret is what every variable of the environment holds; no message has it by chance.
const foundSecret = "hostile-1f6b0c"

// step is by how many combinations a sample advances. It has no divisor in common with the number of names, so every name
// and every position has its turn.
const step = 23

// TestTortureHostileNames proves E5: it puts hostile texts into every place of every kind (see [position.due]): each is refused
// in a way that can be shown, or passes through the document, the plan, the run, the record and the world unchanged.
func TestTortureHostileNames(t *testing.T) {
	all := positions(t)
	kinds := append(settable(embedded(t)), "document")
	sorts := []string{"name", "node", "key", "value", "head"}
	reached := torture.Cover(t, "kinds", kinds)
	where := torture.Cover(t, "sorts of places", sorts)
	outcomes := torture.Cover(t, "outcomes", []string{"refused", "unreadable", "round trip of a name", "round trip of a node", "round trip of a key", "round trip of a value", "run of a head"})
	places := torture.Cover(t, "places", texts(all))
	codes := map[string]int{}
	type combination struct {
		*position
		hostile
	}
	var chosen []combination
	for _, p := range all {
		for j, h := range hostiles {
			// Every sample includes one place where a rule, and not the grammar, repeats what it refuses, and the head of the
			// document, of which few texts are accepted.
			if p.due(j, step) || p.String() == "carbide.vpc head depends_on" || p.kind == "document" {
				chosen = append(chosen, combination{p, h})
			}
		}
	}
	var mu sync.Mutex
	var next atomic.Int64
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(chosen); i = int(next.Add(1)) - 1 {
				c := chosen[i]
				outcome, code, err := try(t.Context(), embedded(t), c.position, c.hostile)
				if err != nil {
					t.Errorf("%s, %s %.80q: %v", c.position, c.what, c.literal, err)
					continue
				}
				reached.Reach(c.kind)
				sort, _, _ := strings.Cut(c.where, " ")
				where.Reach(sort)
				places.Reach(c.position.String())
				if code != "" {
					mu.Lock()
					codes[code]++
					mu.Unlock()
				}
				outcomes.Reach(outcome)
			}
		})
	}
	workers.Wait()
	tried := len(chosen)
	if want := torture.Scale(0, len(kinds)*len(hostiles), len(all)*len(hostiles)); tried < want {
		t.Errorf("%d combinations were tried, want %d", tried, want)
	}
	torture.Report(t, "J", "%d of %d combinations of %d hostile names and %d places in %d kinds: %s; codes %v",
		tried, len(all)*len(hostiles), len(hostiles), len(all), len(kinds)-1, outcomes, codes)
}

func texts(all []*position) []string {
	out := make([]string, len(all))
	for i, p := range all {
		out[i] = p.String()
	}
	return out
}

// try puts one text into one place. It returns the outcome that is counted, and the first code of a refusal.
func try(ctx context.Context, s *kinds.Schema, p *position, h hostile) (outcome, code string, err error) {
	doc, ds := load.Document(ctx, s, load.Options{}, load.Source{Name: "hostile.json", Data: p.with(h)})
	if doc == nil {
		if err := refusal(ds); err != nil {
			return "", "", err
		}
		if h.broken {
			return "unreadable", ds[0].Code, nil
		}
		return "refused", ds[0].Code, nil
	}
	if h.broken {
		return "", "", fmt.Errorf("accepted, and it is not JSON")
	}
	if p.isSecret() && strings.HasPrefix(h.text, "file:") { // a file that is not allowed: the run must not begin
		if err := (&trip{position: p, text: h.text, schema: s}).run(ctx, doc); err == nil || !strings.Contains(err.Error(), "may name only files in the secrets directory") {
			return "", "", fmt.Errorf("a file that may not be named as a secret: %v", err)
		} else if err := harmless(err.Error()); err != nil {
			return "", "", err
		}
		return "refused", "", nil
	}
	sort, _, _ := strings.Cut(p.where, " ")
	if sort == "head" { // what every resource may carry is read, not recorded: the run must work
		return "run of a head", "", (&trip{position: p, text: h.text, schema: s}).run(ctx, doc)
	}
	return "round trip of a " + sort, "", (&trip{position: p, text: h.text, schema: s}).run(ctx, doc)
}

var codeForm = regexp.MustCompile(`^CV1\d{3}$`)

// refusal checks that diagnostics say what is wrong and where, in a way that is harmless to a terminal.
func refusal(ds load.Diagnostics) error {
	if !ds.HasErrors() {
		return fmt.Errorf("there is no document and no error")
	}
	for _, d := range ds {
		switch {
		case !codeForm.MatchString(d.Code):
			return fmt.Errorf("the code is %q", d.Code)
		case d.Summary == "" || d.Detail == "":
			return fmt.Errorf("%s says nothing", d.Code)
		case d.Path == "" && d.Range == nil && d.Code != "CV1050":
			return fmt.Errorf("%s has neither path nor place", d)
		case len(d.String()) > 4096:
			return fmt.Errorf("%s says %d bytes", d.Code, len(d.String()))
		}
		for _, text := range []string{d.Summary, d.Detail, d.Path, d.Snippet, d.String()} {
			if err := harmless(text); err != nil {
				return fmt.Errorf("%s: %w", d.Code, err)
			}
		}
	}
	return nil
}

// harmless refuses what a terminal could obey and what reads differently from what it is.
func harmless(text string) error {
	if !utf8.ValidString(text) {
		return fmt.Errorf("%q is not UTF-8", text)
	}
	for _, r := range text {
		if !unicode.IsPrint(r) && r != '\n' && r != '\t' {
			return fmt.Errorf("%q holds %U as it is", text, r)
		}
	}
	return nil
}

// A trip is the way of one text through converge.
type trip struct {
	*position
	text   string
	schema *kinds.Schema
}

func (r *trip) run(ctx context.Context, doc *schema.Document) error {
	ref, path := r.at(r.text)
	if r.kind == "document" {
		ref = schema.Ref{}
	}
	// The document, as another reader sees it.
	var plain map[string]any
	if err := json.Unmarshal(doc.JSON, &plain); err != nil {
		return fmt.Errorf("the document is not JSON: %w", err)
	}
	if !ref.IsZero() {
		if err := r.holds("the document", lookup(plain, place(ref)), path); err != nil {
			return err
		}
		if back, err := schema.ParseRef(ref.String()); err != nil || back != ref {
			return fmt.Errorf("the ref %s reads as %v, %v", ref, back, err)
		}
	}
	again, ds := load.Document(ctx, r.schema, load.Options{}, load.Source{Name: "again.json", Data: doc.JSON})
	if again == nil || again.Digest != doc.Digest {
		return fmt.Errorf("its own JSON does not load as the same document: %v", ds)
	}

	// The run, on a world that holds what it receives.
	kv := mem.New(mem.Options{})
	store := state.New(kv, doc.Site.Name)
	world := fake.New(r.schema.Kinds())
	open := func(_ context.Context, _ schema.Site, needs []providers.Need) (*providers.Set, error) {
		var ps []*providers.Provider
		for _, n := range needs {
			ps = append(ps, world.Provider(n.Provider, n.Scope))
		}
		return providers.NewSet(ps...)
	}
	second, err := converged(ctx, r.schema.Kinds(), store, doc, open)
	if err != nil {
		return err
	}
	if len(second.Unmanaged) > 0 {
		return fmt.Errorf("the world has what nobody declared: %v", second.Unmanaged)
	}
	if ref.IsZero() {
		return nil
	}

	// The key and the record.
	key := "/converge/" + doc.Site.Name + "/resource/" + ref.String()
	items, err := kv.List(ctx, "")
	if err != nil {
		return err
	}
	var record map[string]any
	for _, it := range items {
		if !strings.HasPrefix(it.Key, "/converge/"+doc.Site.Name+"/") {
			return fmt.Errorf("the key %q is not the site's", it.Key)
		}
		if it.Key == key {
			if err := json.Unmarshal(it.Value, &record); err != nil {
				return fmt.Errorf("the record is not JSON: %w", err)
			}
		}
	}
	if record == nil {
		return fmt.Errorf("there is no key %q", key)
	}
	if record["ref"] != ref.String() {
		return fmt.Errorf("the record says that it is of %v", record["ref"])
	}
	if err := r.holds("the record", record["spec"], path); err != nil {
		return err
	}
	records, err := store.Records(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(records, func(rec state.Record) bool { return rec.Ref == ref })
	if i < 0 {
		return fmt.Errorf("the store has no record of %s", ref)
	}
	if err := r.holds("what the store reads", map[string]any(records[i].Spec), path); err != nil {
		return err
	}

	// The world.
	for _, k := range world.Provider(ref.Provider(), ref.Scope).Kinds {
		if k.Name != ref.Kind {
			continue
		}
		things, err := k.Kind.Get(ctx, []string{records[i].ID})
		if err != nil {
			return err
		}
		if len(things) != 1 || things[0].Name != ref.Name || things[0].Mark.Ref != ref {
			return fmt.Errorf("the world has %+v for %s", things, ref)
		}
		if r.isSecret() {
			if got := lookup(map[string]any(things[0].Spec), path[:len(path)-1]); got != foundSecret {
				return fmt.Errorf("the world has %v for the secret", got)
			}
			return nil
		}
		if r.field == nil || r.field.Ref == "" { // a reference is an id there
			return r.holds("the world", map[string]any(things[0].Spec), path)
		}
	}
	return nil
}

// holds compares the value at a path of a spec with the text, or requires a key of that name.
func (r *trip) holds(who string, spec any, path []string) error {
	switch {
	case spec == nil:
		return fmt.Errorf("%s does not declare it", who)
	case len(path) == 0: // the text is in the ref
		return nil
	}
	got := lookup(spec, path)
	if got == nil {
		return fmt.Errorf("%s has nothing at %q", who, path)
	}
	if !r.isKey && got != r.text {
		return fmt.Errorf("%s has %q", who, got)
	}
	return nil
}

// converged plans and applies a document and proves by planning again that it holds; it returns the second plan. The first
// is saved and read again in between.
func converged(ctx context.Context, kinds schema.Kinds, store *state.Store, doc *schema.Document,
	open func(context.Context, schema.Site, []providers.Need) (*providers.Set, error)) (*plan.Plan, error) {
	e := engine.New(engine.Options{
		Kinds: kinds, Store: store, Open: open, Who: "test@here", Version: "test",
		Retry:   apply.Retry{Base: time.Microsecond, Cap: time.Microsecond, Poll: time.Microsecond},
		Secrets: secret.Options{Source: secret.Source{Names: []string{"*"}, Lookup: func(string) (string, bool) { return foundSecret, true }}},
	})
	defer e.Close()
	p, err := e.Plan(ctx, doc, plan.Options{})
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	saved, _, err := e.SavePlan(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("save the plan: %w", err)
	}
	file, err := plan.DecodeFile(saved)
	if err != nil {
		return nil, fmt.Errorf("read the saved plan: %w", err)
	}
	if err := e.VerifyFile(ctx, file); err != nil {
		return nil, fmt.Errorf("the saved plan is another one when it is saved again: %w", err)
	}
	read := file.Plan
	res, err := e.Apply(ctx, read, engine.ApplyOptions{Approve: read.Approval()})
	if err != nil {
		return nil, fmt.Errorf("apply: %w", err)
	}
	if len(doc.Resources) > 0 && res.Run.Status != state.RunApplied {
		return nil, fmt.Errorf("the run ended %s: %s %v", res.Run.Status, res.Run.Message, res.Differences)
	}
	if p, err = e.Plan(ctx, doc, plan.Options{}); err != nil {
		return nil, fmt.Errorf("plan again: %w", err)
	}
	if len(p.Steps)+len(p.Drift)+len(p.Unknown)+len(p.Refusals) > 0 || p.Unchanged != len(doc.Resources) {
		return nil, fmt.Errorf("the second plan is not empty: %d of %d unchanged, steps %+v, drift %+v, unknown %+v, refusals %+v",
			p.Unchanged, len(doc.Resources), p.Steps, p.Drift, p.Unknown, p.Refusals)
	}
	return p, nil
}

// loadOne reports whether a document is valid.
func loadOne(t testing.TB, text []byte) (bool, load.Diagnostics) {
	t.Helper()
	doc, ds := load.Document(t.Context(), embedded(t), load.Options{}, load.Source{Name: "hostile.json", Data: text})
	return doc != nil, ds
}

// canonical returns a value as JSON with sorted names.
func canonical(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
