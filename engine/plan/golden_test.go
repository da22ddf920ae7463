package plan_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/rogpeppe/go-internal/txtar"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// seen is a thing as the golden files write it: its id, and what differs from the defaults.
type seen struct {
	Name    string          `json:"name"`
	Mark    string          `json:"mark"`
	Version string          `json:"version"`
	Phase   providers.Phase `json:"phase"`
	Detail  string          `json:"detail"`
	Spec    schema.Object   `json:"spec"`
}

// remembered is a record as the golden files write it.
type remembered struct {
	ID          string          `json:"id"`
	Name        string          `json:"name"`
	Incarnation int             `json:"incarnation"`
	Gone        bool            `json:"gone"`
	Spec        schema.Object   `json:"spec"`
	Protect     bool            `json:"protect"`
	Rest        schema.Object   `json:"rest"`
	OnRemove    schema.OnRemove `json:"on_remove"`
	Ignore      []string        `json:"ignore"`
}

// One file is one case: desired.json, observed.json and recorded.json in, plan.txt out. Observed things are keyed by
// SCOPE/KIND/ID, the rest by ref. Options are those of plan.Options; unknown lists places that could not be seen.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			ar, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			in := input(t, ar)
			p, err := plan.Make(in)
			got := ""
			if err != nil {
				got = "error: " + err.Error() + "\n"
			} else {
				p.Refusals = append(p.Refusals, plan.OverBudget(p, state.Live(in.Recorded))...)
				got = enginetest.Text(p)
				comesBack(t, p)
			}
			for _, things := range in.Observed.Things { // in whatever order the far sides list them
				slices.Reverse(things)
			}
			again, _ := plan.Make(in)
			if err == nil {
				again.Refusals = append(again.Refusals, plan.OverBudget(again, state.Live(in.Recorded))...)
			}
			if err == nil && enginetest.Text(again) != got {
				t.Fatalf("planning twice gives two plans:\n%s\n%s", got, enginetest.Text(again))
			}
			i := slices.IndexFunc(ar.Files, func(f txtar.File) bool { return f.Name == "plan.txt" })
			if *update {
				if i < 0 {
					ar.Files, i = append(ar.Files, txtar.File{Name: "plan.txt"}), len(ar.Files)
				}
				ar.Files[i].Data = []byte(got)
				if err := os.WriteFile(file, txtar.Format(ar), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if i < 0 || string(ar.Files[i].Data) != got {
				t.Errorf("got:\n%s", got)
			}
		})
	}
}

func input(t *testing.T, ar *txtar.Archive) plan.Input {
	s := enginetest.New()
	traitsOf := map[string]providers.Traits{} // the relevant ones, by kind
	var orphans, natural []string             // kinds whose far side deletes what is still referred to; kinds whose things exist by themselves
	in := plan.Input{
		ID: "golden", Kinds: s.Kinds,
		Observed: plan.Observation{Things: map[schema.Place][]providers.Thing{}, Unknown: map[schema.Place]string{}, Unsupported: map[schema.Place]string{}},
		Traits: func(_, kind string) (providers.Traits, bool) {
			traits := fake.SiteTraits()
			if s.Kinds[kind].Node {
				traits = fake.NodeTraits()
			}
			traits.DeleteUnchecked = slices.Contains(orphans, kind)
			traits.Exclusive, traits.Detach = traitsOf[kind].Exclusive, traitsOf[kind].Detach
			if slices.Contains(natural, kind) {
				traits.Create, traits.Delete, traits.Mark = providers.Never, providers.Never, false
			}
			return traits, true
		},
	}
	for _, scope := range []string{"site", "n1", "n2"} {
		for _, k := range s.Kinds {
			if k.Node == (scope != "site") {
				in.Observed.Things[schema.Place{Scope: scope, Kind: k.Name}] = nil
			}
		}
	}
	in.Options.Unlimited = true
	desired := map[string]json.RawMessage{}
	observed := map[string]seen{}
	recorded := map[string]remembered{}
	chooses := map[string]map[string]*schema.Choice{} // by kind and field
	var unknown, unsupported map[string]string
	policy := schema.Policy{}
	for _, f := range ar.Files {
		into := map[string]any{
			"desired.json": &desired, "observed.json": &observed, "recorded.json": &recorded,
			"options.json": &in.Options, "unknown.json": &unknown, "unsupported.json": &unsupported, "policy.json": &policy, "orphans.json": &orphans, "traits.json": &traitsOf, "natural.json": &natural, "chooses.json": &chooses, "plan.txt": nil, "rest.json": &in.Rest,
		}[f.Name]
		if into == nil {
			continue
		}
		if err := json.Unmarshal(f.Data, into); err != nil {
			t.Fatalf("%s: %v", f.Name, err)
		}
	}
	for kind, fields := range chooses {
		for field, c := range fields {
			s.Kinds[kind].Field(field).Choose = c
		}
	}
	specs := map[string]string{}
	for ref, spec := range desired {
		specs[ref] = string(spec)
	}
	in.Document = s.Document(t, specs)
	in.Document.Policy = policy
	for key, o := range observed {
		r := must(t)(schema.ParseRef(key))
		if o.Spec == nil {
			o.Spec = schema.Object{}
		}
		at := r.Place()
		in.Observed.Things[at] = append(in.Observed.Things[at], providers.Thing{
			ID: r.Name, Name: o.Name, Mark: providers.ParseMark(strings.Replace(o.Mark, "SITE", enginetest.SiteID, 1)),
			Version: o.Version, Spec: o.Spec, Phase: o.Phase, Detail: o.Detail,
		})
	}
	for key, o := range recorded {
		r := must(t)(schema.ParseRef(key))
		rec := state.Record{Ref: r, ID: o.ID, Name: o.Name, Incarnation: max(o.Incarnation, 1), Gone: o.Gone, Spec: o.Spec, Rest: o.Rest, Protect: o.Protect, OnRemove: o.OnRemove, Ignore: o.Ignore, Run: "earlier"}
		s.Kinds[r.Kind].ReplaceRefs(o.Spec, func(kind, name string) string {
			scope := r.Scope
			if !s.Kinds[kind].Node {
				scope = schema.ScopeSite
			}
			if uuid.Validate(name) != nil {
				rec.After = append(rec.After, schema.Ref{Scope: scope, Kind: kind, Name: name})
			}
			return name
		})
		rec.After = schema.SortRefs(rec.After)
		in.Recorded = append(in.Recorded, rec)
	}
	slices.SortFunc(in.Recorded, func(a, b state.Record) int { return a.Ref.Compare(b.Ref) })
	for list, why := range map[*map[string]string]map[schema.Place]string{&unknown: in.Observed.Unknown, &unsupported: in.Observed.Unsupported} {
		for key, text := range *list {
			scope, kind, _ := strings.Cut(key, "/")
			why[schema.Place{Scope: scope, Kind: kind}] = text
			delete(in.Observed.Things, schema.Place{Scope: scope, Kind: kind})
		}
	}
	return in
}

func must(t *testing.T) func(schema.Ref, error) schema.Ref {
	return func(r schema.Ref, err error) schema.Ref {
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
}
