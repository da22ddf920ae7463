package plan

import (
	"fmt"
	"slices"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// An UnmatchedError says that a pattern of the options matches nothing. Most likely it is misspelt; planning anyway
// would destroy what should be excluded, or leave alone what should be changed.
type UnmatchedError struct {
	Option  string       // target, exclude, replace, or external of an import
	Pattern string       // as given
	Refs    []schema.Ref // what it could have matched
}

func (e *UnmatchedError) Error() string {
	among := "declared, recorded or observed"
	switch e.Option {
	case "replace":
		among = "declared"
	case "external":
		among = "present"
	}
	return fmt.Sprintf("-%s=%s matches nothing that is %s", e.Option, e.Pattern, among)
}

// checkPatterns fails with an *UnmatchedError when a pattern matches nothing. Only what is declared can be replaced; the
// other options may name anything that is declared, recorded or observed.
func (m *maker) checkPatterns() error {
	var declared, all []schema.Ref
	for _, o := range []struct {
		name     string
		patterns []string
	}{{"target", m.in.Options.Target}, {"exclude", m.in.Options.Exclude}, {"replace", m.in.Options.Replace}} {
		for _, p := range o.patterns {
			if all == nil {
				declared, all = m.present()
			}
			among := all
			if o.name == "replace" {
				among = declared
			}
			if !slices.ContainsFunc(among, func(r schema.Ref) bool { return Matches(p, r) }) {
				return &UnmatchedError{Option: o.name, Pattern: p, Refs: among}
			}
		}
	}
	return nil
}

// present lists what is declared, and everything that is declared, recorded or observed: things by the refs in their marks, by
// name and by id.
func (m *maker) present() (declared, all []schema.Ref) {
	for i := range m.in.Document.Resources {
		declared = append(declared, m.in.Document.Resources[i].Ref)
	}
	all = slices.Clone(declared)
	for i := range m.in.Recorded {
		if r := &m.in.Recorded[i]; !r.Gone {
			all = append(all, r.Ref)
		}
	}
	for at, things := range m.in.Observed.Things {
		for i := range things {
			t := &things[i]
			if !t.Mark.IsZero() {
				all = append(all, t.Mark.Ref)
			}
			for _, name := range []string{t.Name, t.ID} {
				if name != "" && t.Phase != providers.Deleting {
					all = append(all, schema.Ref{Scope: at.Scope, Kind: at.Kind, Name: name})
				}
			}
		}
	}
	return declared, schema.SortRefs(all)
}

// Narrowed says how much of the site a partial plan covers.
type Narrowed struct {
	Resources int   `json:"resources"`       // declared or recorded resources that the plan covers
	Of        int   `json:"of"`              // all that are declared or recorded
	Since     int64 `json:"since,omitempty"` // the plan covers what differs from the revision with this serial; 0: it covers what was asked for
}

// An Omission is a declared resource for which the plan has no step although it needs one, and why.
type Omission struct {
	Ref    schema.Ref `json:"ref"`
	Reason string     `json:"reason"`
}

// A selection says which resources a plan covers. Nil: all.
type selection map[schema.Ref]bool

func (s selection) has(r schema.Ref) bool { return s == nil || s[r] }

// targets reports whether -target names a resource itself.
func (m *maker) targets(r schema.Ref) bool {
	return len(m.in.Options.Target) == 0 || slices.ContainsFunc(m.in.Options.Target, func(p string) bool { return Matches(p, r) })
}

// excludes reports whether the options exclude anything.
func (o *Options) excludes() bool { return len(o.Exclude)+len(o.ExcludeRefs) > 0 }

// excluded returns what the options exclude, and what refers to that.
func (m *maker) excluded() selection {
	o := &m.in.Options
	if !o.excludes() {
		return selection{}
	}
	out := make(selection, len(m.items)) // also what is not excluded, so that nothing is visited twice
	var leave func(it *item) bool
	leave = func(it *item) bool {
		if left, known := out[it.ref]; known {
			return left
		}
		out[it.ref] = o.ExcludeRefs[it.ref] || slices.ContainsFunc(o.Exclude, func(p string) bool { return Matches(p, it.ref) })
		for _, r := range it.refs() {
			if of := m.byRef[r]; of != nil && leave(of) {
				out[it.ref] = true
			}
		}
		for _, of := range m.awaits[it.ref] {
			if leave(of) {
				out[it.ref] = true
			}
		}
		return out[it.ref]
	}
	for _, it := range m.items {
		leave(it)
	}
	for ref, leave := range o.ExcludeRefs { // also what a step is about and nothing declares or records
		if leave {
			out[ref] = true
		}
	}
	return out
}

// considered returns what the plan covers: the targets and what they refer to, without what is excluded. Keep says which
// steps are left.
func (m *maker) considered(keep []bool, excluded selection) selection {
	if len(m.in.Options.Target) == 0 && !m.in.Options.excludes() {
		return nil
	}
	in := make(selection, len(m.items))
	var take func(it *item)
	take = func(it *item) {
		if it == nil || in[it.ref] || excluded[it.ref] {
			return
		}
		in[it.ref] = true
		for _, r := range it.refs() {
			take(m.byRef[r])
		}
	}
	for _, it := range m.items {
		if m.targets(it.ref) {
			take(it)
		}
	}
	for i := range m.plan.Steps { // deletes need the deletes of what refers to them
		in[m.plan.Steps[i].Ref] = keep[i]
	}
	return in
}

// refused keeps the refusals that concern what the plan covers, and the plan as a whole, and drops the steps that are refused.
func (m *maker) refused(in selection, keep []bool) {
	concerned := map[int]bool{}
	for i, refusal := range m.dropped {
		concerned[refusal] = concerned[refusal] || keep[i]
		keep[i] = false
	}
	all := m.plan.Refusals
	m.plan.Refusals = nil
	for i, r := range all {
		if r.Ref.IsZero() || concerned[i] || in.has(r.Ref) || m.about(r.Ref.Place(), r.Ref.Name, in) {
			m.plan.Refusals = append(m.plan.Refusals, r)
		}
	}
}

// count counts what is as it should be, and how much the plan covers.
func (m *maker) count(in selection) {
	about := 0
	m.plan.Unchanged = m.rest.resources
	for _, it := range m.items {
		if !in.has(it.ref) {
			continue
		}
		about++
		if it.unchanged {
			m.plan.Unchanged++
		}
	}
	switch part := m.in.Part; {
	case part != nil:
		m.plan.Narrowed = &Narrowed{Resources: about, Of: part.Of, Since: part.Since}
	case in != nil && !m.in.Options.Sweep:
		m.plan.Narrowed = &Narrowed{Resources: about, Of: len(m.items)}
	}
}

// leaveOut drops the steps that cannot be done because something that they refer to is unknown, unsupported or refused, and
// lists the resources that are left out for any reason but a refusal, which is reported by itself.
func (m *maker) leaveOut(keep []bool, pair map[int]int, in selection) {
	omitted := map[schema.Ref]string{}
	for _, it := range m.items {
		switch {
		case !in.has(it.ref):
		case it.unsupported:
			omitted[it.ref] = "the server does not support " + it.ref.Kind
		case !it.lacks.IsZero():
			omitted[it.ref] = fmt.Sprintf("it refers to %s, which could not be observed", it.lacks)
		}
	}
	steps := m.plan.Steps
	for i := range steps {
		by := m.blocker(steps[i].Ref)
		if !keep[i] || by == nil {
			continue
		}
		keep[i] = false
		switch {
		case !by.lacks.IsZero():
			omitted[steps[i].Ref] = fmt.Sprintf("it refers to %s, which is skipped", by.ref)
		case by.unsupported:
			omitted[steps[i].Ref] = fmt.Sprintf("it refers to %s, which the server does not support", by.ref)
		case by.unknown:
			omitted[steps[i].Ref] = fmt.Sprintf("it refers to %s, which could not be observed", by.ref)
		}
	}
	drop(steps, keep, pair, func(step, needed *Step) {
		if omitted[needed.Ref] != "" && omitted[step.Ref] == "" {
			omitted[step.Ref] = fmt.Sprintf("it needs %s, which is skipped", needed.Ref)
		}
	})
	for _, it := range m.items { // which are sorted by ref
		if why := omitted[it.ref]; why != "" {
			m.plan.Omitted = append(m.plan.Omitted, Omission{it.ref, why})
		}
	}
}

// drop drops the steps that need a dropped one, or are the first of a pair with it. Needs are in no particular order, so it
// repeats until nothing changes.
func drop(steps []Step, keep []bool, pair map[int]int, tell func(step, needed *Step)) {
	for changed := true; changed; {
		changed = false
		for i := range steps {
			if !keep[i] {
				continue
			}
			others := steps[i].Needs
			if n, ok := pair[i]; ok {
				others = append(slices.Clone(others), n)
			}
			for _, n := range others {
				if !keep[n] {
					keep[i], changed = false, true
					tell(&steps[i], &steps[n])
					break
				}
			}
		}
	}
}

// blocker returns an item that a resource refers to and about which nothing could be decided; nil when there is none.
func (m *maker) blocker(ref schema.Ref) *item {
	it := m.byRef[ref]
	if it == nil || it.desired == nil {
		return nil
	}
	for _, r := range it.desired.After {
		if p := m.byRef[r]; p != nil && (p.unknown || p.refused) {
			return p
		}
	}
	return nil
}
