// Package drift compares what converge left with what is there now. It is pure and read-only: it cannot reach the
// executor, so it can never change anything.
package drift

import (
	"maps"
	"slices"
	"time"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// A Report says how a site differs from what was applied last. The cloud's inventory reads it too.
type Report struct {
	Site      schema.Site      `json:"site"`
	At        time.Time        `json:"at"`
	Complete  bool             `json:"complete"`         // nothing is unknown
	Recorded  int              `json:"recorded"`         // recorded resources that were checked
	Marked    *Marked          `json:"marked,omitempty"` // those of them that can only be reported as present
	Drifted   []Item           `json:"drifted"`
	Unstated  []Item           `json:"unstated"`         // changes of fields that the document does not state; no plan would undo them
	Strays    []plan.Unmanaged `json:"strays,omitempty"` // bear our mark, but are not recorded
	Unmanaged []plan.Unmanaged `json:"unmanaged,omitempty"`
	Remarks   []plan.Remark    `json:"remarks,omitempty"` // what is wrong with recorded things although they are as they were left
	Begun     []schema.Ref     `json:"begun,omitempty"`   // left out: an open run has yet to settle them
	Unknown   []plan.Unknown   `json:"unknown,omitempty"`
	Omitted   int              `json:"omitted,omitempty"` // entries of these lists that are left out of a published report, because it would be too large
}

// Marked are resources that were recorded again from their marks after the store was lost: how converge left them is unknown.
type Marked struct {
	Resources int       `json:"resources"`
	Since     time.Time `json:"since"` // when the last of them was recorded again
}

// An Item is a recorded resource that is not as it was left; or a thing that such a resource refers to by external id,
// that nothing declares, and that is Missing.
type Item struct {
	Ref      schema.Ref     `json:"ref"`
	ID       string         `json:"id"`
	Missing  bool           `json:"missing,omitempty"`
	Failed   string         `json:"failed,omitempty"`
	TakenBy  providers.Mark `json:"taken_by,omitzero"`  // the mark of another site that it bears now
	Unmarked bool           `json:"unmarked,omitempty"` // somebody has removed our mark from it
	Renamed  string         `json:"renamed,omitempty"`  // its id now, where ids are names
	Remade   bool           `json:"remade,omitempty"`   // it was deleted, and somebody else has made another thing with its id
	Changes  []diff.Change  `json:"changes,omitempty"`  // Before is what was left, After what is observed
}

// Clean reports whether the site was observed completely and is as it was left, both in what the document states and in
// what it does not. Unmanaged things do not count, strays do.
func (r *Report) Clean() bool {
	return r.Complete && len(r.Drifted) == 0 && len(r.Unstated) == 0 && len(r.Strays) == 0
}

// Compare makes the report from the same inputs as a plan. It compares what was recorded; from the document it takes only
// what that leaves to others.
func Compare(in plan.Input, at time.Time) (*Report, error) {
	doc := schema.Document{Site: in.Document.Site}
	live, marked, outside := 0, Marked{}, map[schema.Ref]bool{}
	ids := map[schema.Ref]string{}
	for _, r := range in.Recorded {
		if r.Gone {
			continue
		}
		live++
		if r.Run == "" {
			marked.Resources++
			if r.At.After(marked.Since) {
				marked.Since = r.At
			}
		}
		ids[r.Ref] = r.ID
		for _, to := range plan.Outside(in.Kinds, r.Ref, r.Spec, r.After) {
			outside[to] = true
		}
		doc.Resources = append(doc.Resources, schema.Resource{Ref: r.Ref, Spec: r.Spec, After: r.After, Lifecycle: schema.Lifecycle{Ignore: r.Ignore}})
	}
	for _, r := range in.Document.Resources {
		if _, managed := ids[r.Ref]; r.External != nil && !managed {
			doc.Resources = append(doc.Resources, r)
		}
	}
	slices.SortFunc(doc.Resources, func(a, b schema.Resource) int { return a.Ref.Compare(b.Ref) })
	in.Rest, in.Document, in.Options = true, &doc, plan.Options{Unlimited: true}
	p, err := plan.Make(in)
	if err != nil {
		return nil, err
	}
	r := &Report{Site: doc.Site, At: at, Recorded: live, Unknown: p.Unknown, Complete: len(p.Unknown) == 0, Drifted: []Item{}, Unstated: []Item{}}
	if marked.Resources > 0 {
		r.Marked = &marked
	}
	r.Remarks = p.Remarks
	r.Begun = slices.SortedFunc(maps.Keys(in.Begun), schema.Ref.Compare)
	for _, d := range p.Drift {
		if len(d.Unstated) > 0 {
			r.Unstated = append(r.Unstated, Item{Ref: d.Ref, ID: ids[d.Ref], Changes: d.Unstated})
			continue
		}
		r.Drifted = append(r.Drifted, Item{Ref: d.Ref, ID: ids[d.Ref], Missing: d.Missing, Failed: d.Failed, TakenBy: d.TakenBy, Unmarked: d.Unmarked, Remade: d.Remade, Renamed: d.Renamed, Changes: d.Changes})
	}
	staying := map[schema.Place]map[string]*providers.Thing{}
	for _, to := range slices.SortedFunc(maps.Keys(outside), schema.Ref.Compare) {
		at := to.Place()
		things, seen := in.Observed.Things[at]
		if staying[at] == nil {
			staying[at] = plan.Staying(things)
		}
		why, unknown := in.Observed.Unknown[at]
		u := plan.Unknown{Scope: at.Scope, Kind: at.Kind, Error: why}
		switch {
		case unknown && !slices.Contains(r.Unknown, u):
			r.Unknown, r.Complete = append(r.Unknown, u), false
		case seen && staying[at][to.Name] == nil:
			r.Drifted = append(r.Drifted, Item{Ref: to, ID: to.Name, Missing: true})
		}
	}
	for _, f := range p.Unmanaged {
		if f.Stray {
			r.Strays = append(r.Strays, f)
		} else {
			r.Unmanaged = append(r.Unmanaged, f)
		}
	}
	return r, nil
}
