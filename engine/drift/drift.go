// Package drift compares what converge left with what is there now. It is pure and read-only: it cannot reach the
// executor, so it can never change anything.
package drift

import (
	"iter"
	"maps"
	"slices"
	"time"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
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
	base := NewBase(in.Kinds)
	for i := range in.Recorded {
		r := &in.Recorded[i]
		base.Set(r.Ref, r)
		if !r.Gone {
			doc.Resources = append(doc.Resources, *Left(r))
		}
	}
	for _, r := range in.Document.Resources {
		if r.External != nil && base.IDOf(r.Ref) == "" {
			doc.Resources = append(doc.Resources, r)
		}
	}
	slices.SortFunc(doc.Resources, func(a, b schema.Resource) int { return a.Ref.Compare(b.Ref) })
	in.Rest, in.Document, in.Options = true, &doc, plan.Options{Unlimited: true}
	p, err := plan.Make(in)
	if err != nil {
		return nil, err
	}
	staying := map[schema.Place]map[string]*providers.Thing{}
	return base.Report(p, func(to schema.Ref) Sight {
		at := to.Place()
		things, looked := in.Observed.Things[at]
		if looked && staying[at] == nil {
			staying[at] = plan.Staying(things)
		}
		return Sight{Looked: looked, There: staying[at][to.Name] != nil, Unknown: in.Observed.Unknown[at]}
	}, in.Begun, at), nil
}

// A Sight is what was seen of a thing.
type Sight struct {
	Looked  bool   // its place was observed
	There   bool   // it exists, and is not about to go
	Unknown string // why its place could not be observed
}

// Left returns a recorded resource as a document would state it if it were to stay as converge left it.
func Left(r *state.Record) *schema.Resource {
	return &schema.Resource{Ref: r.Ref, Spec: r.Spec, After: r.After, Lifecycle: schema.Lifecycle{Ignore: r.Ignore}}
}

// A Base is what is recorded of a site, added up for reports. Changing it costs what changes.
type Base struct {
	kinds   schema.Kinds
	ids     map[schema.Ref]string       // of what exists
	marked  map[schema.Ref]time.Time    // which of it is known only by its mark, and since when
	outside map[schema.Ref]int          // what that refers to by external id, and how often
	refers  map[schema.Ref][]schema.Ref // the same, by what refers to it
}

// NewBase returns the base of a site in which nothing is recorded.
func NewBase(kinds schema.Kinds) *Base {
	return &Base{kinds: kinds, ids: map[schema.Ref]string{}, marked: map[schema.Ref]time.Time{}, outside: map[schema.Ref]int{}, refers: map[schema.Ref][]schema.Ref{}}
}

// Set replaces what is recorded of a resource; nil: nothing is.
func (b *Base) Set(ref schema.Ref, r *state.Record) {
	for _, to := range b.refers[ref] {
		if b.outside[to]--; b.outside[to] == 0 {
			delete(b.outside, to)
		}
	}
	delete(b.refers, ref)
	delete(b.ids, ref)
	delete(b.marked, ref)
	if r == nil || r.Gone {
		return
	}
	b.ids[ref] = r.ID
	if r.Run == "" {
		b.marked[ref] = r.At
	}
	if to := plan.Outside(b.kinds, ref, r.Spec, r.After); len(to) > 0 {
		b.refers[ref] = to
		for _, to := range to {
			b.outside[to]++
		}
	}
}

// Live returns how many things are recorded as existing.
func (b *Base) Live() int { return len(b.ids) }

// IDOf returns the external id with which a resource is recorded as existing; empty when it is not.
func (b *Base) IDOf(ref schema.Ref) string { return b.ids[ref] }

// Outside yields what recorded resources refer to by external id.
func (b *Base) Outside() iter.Seq[schema.Ref] { return maps.Keys(b.outside) }

// Report makes the report from a plan that would leave everything as it is recorded. Seen returns what was seen of a thing by its external
// id, the name of the ref.
func (b *Base) Report(p *plan.Plan, seen func(schema.Ref) Sight, begun map[schema.Ref]bool, at time.Time) *Report {
	r := &Report{Site: p.Site, At: at, Recorded: b.Live(), Unknown: p.Unknown, Complete: len(p.Unknown) == 0, Drifted: []Item{}, Unstated: []Item{}, Remarks: p.Remarks}
	if len(b.marked) > 0 {
		r.Marked = &Marked{Resources: len(b.marked), Since: slices.MaxFunc(slices.Collect(maps.Values(b.marked)), time.Time.Compare)}
	}
	r.Begun = slices.SortedFunc(maps.Keys(begun), schema.Ref.Compare)
	for _, d := range p.Drift {
		if len(d.Unstated) > 0 {
			r.Unstated = append(r.Unstated, Item{Ref: d.Ref, ID: b.ids[d.Ref], Changes: d.Unstated})
			continue
		}
		r.Drifted = append(r.Drifted, Item{Ref: d.Ref, ID: b.ids[d.Ref], Missing: d.Missing, Failed: d.Failed, TakenBy: d.TakenBy, Unmarked: d.Unmarked, Remade: d.Remade, Renamed: d.Renamed, Changes: d.Changes})
	}
	for _, to := range slices.SortedFunc(b.Outside(), schema.Ref.Compare) {
		saw := seen(to)
		u := plan.Unknown{Scope: to.Scope, Kind: to.Kind, Error: saw.Unknown}
		switch {
		case saw.Unknown != "" && !slices.Contains(r.Unknown, u):
			r.Unknown, r.Complete = append(r.Unknown, u), false
		case saw.Looked && !saw.There:
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
	return r
}
