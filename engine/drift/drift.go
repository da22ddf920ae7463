// Package drift compares what converge left behind with what is there now. It is pure and read-only: it cannot reach
// the executor, so looking can never change anything.
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

// A Report says how a site differs from what was applied last. It is also what the cloud's inventory reads.
type Report struct {
	Site     schema.Site    `json:"site"`
	At       time.Time      `json:"at"`
	Complete bool           `json:"complete"`         // nothing is unknown
	Recorded int            `json:"recorded"`         // resources looked at
	Marked   *Marked        `json:"marked,omitempty"` // those of them of which only that they are there can be told
	Drifted  []Item         `json:"drifted"`
	Unstated []Item         `json:"unstated"`         // what changed of fields that the document does not state; no plan would undo it
	Strays   []plan.Foreign `json:"strays,omitempty"` // bear our mark, yet are not recorded
	Foreign  []plan.Foreign `json:"unmanaged,omitempty"`
	Begun    []schema.Ref   `json:"begun,omitempty"` // left aside: how they are is the doing of an open run, which has yet to settle them
	Unknown  []plan.Unknown `json:"unknown,omitempty"`
}

// Marked are resources that were recorded again by their marks, after the store was lost: how converge left them is not known.
type Marked struct {
	Resources int       `json:"resources"`
	Since     time.Time `json:"since"` // the last of them was recorded again
}

// An Item is one recorded resource that is not as it was left; or what such a one refers to and nobody declares, by its
// external id, and is Missing.
type Item struct {
	Ref     schema.Ref     `json:"ref"`
	ID      string         `json:"id"`
	Missing bool           `json:"missing,omitempty"`
	Failed  string         `json:"failed,omitempty"`
	TakenBy providers.Mark `json:"taken_by,omitzero"` // another site's mark, which it bears now
	Changes []diff.Change  `json:"changes,omitempty"` // Before is what was left, After what is seen
}

// Clean reports whether the site was seen whole and is as it was left, in what the document states and in what it does not.
// Unmanaged things do not count, strays do.
func (r *Report) Clean() bool {
	return r.Complete && len(r.Drifted) == 0 && len(r.Unstated) == 0 && len(r.Strays) == 0
}

// Compare makes the report from the same inputs as a plan. What was recorded is what is compared; of the document it takes only
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
	r.Begun = slices.SortedFunc(maps.Keys(in.Begun), schema.Ref.Compare)
	for _, d := range p.Drift {
		if len(d.Unstated) > 0 {
			r.Unstated = append(r.Unstated, Item{Ref: d.Ref, ID: ids[d.Ref], Changes: d.Unstated})
			continue
		}
		r.Drifted = append(r.Drifted, Item{Ref: d.Ref, ID: ids[d.Ref], Missing: d.Missing, Failed: d.Failed, TakenBy: d.TakenBy, Changes: d.Changes})
	}
	for _, to := range slices.SortedFunc(maps.Keys(outside), schema.Ref.Compare) {
		at := plan.Place{Scope: to.Scope, Kind: to.Kind}
		things, seen := in.Observed.Things[at]
		there := slices.ContainsFunc(things, func(t providers.Thing) bool { return t.ID == to.Name && t.Phase != providers.Leaving })
		why, unknown := in.Observed.Unknown[at]
		u := plan.Unknown{Scope: at.Scope, Kind: at.Kind, Error: why}
		switch {
		case unknown && !slices.Contains(r.Unknown, u):
			r.Unknown, r.Complete = append(r.Unknown, u), false
		case seen && !there:
			r.Drifted = append(r.Drifted, Item{Ref: to, ID: to.Name, Missing: true})
		}
	}
	for _, f := range p.Unmanaged {
		if f.Stray {
			r.Strays = append(r.Strays, f)
		} else {
			r.Foreign = append(r.Foreign, f)
		}
	}
	return r, nil
}
