package view

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// planFormat is the version of Terraform's plan format that PlanDocument follows.
const planFormat = "1.2"

// extraFormat is the version of what is under "converge" and of the names of checks. Its first number grows when a reader
// could misread them, its second when something is added.
const extraFormat = "1.1"

// A PlanOrigin says where a plan document comes from.
type PlanOrigin struct {
	Digest   string    // of the saved plan
	At       time.Time // when it was made
	Converge string    // version
	Kinds    schema.Kinds

	Declared []schema.Resource // resources of the plan's document, sorted by ref, to list what does not change; optional
}

type planDocument struct {
	FormatVersion   string           `json:"format_version"`
	PriorState      stateDocument    `json:"prior_state"`
	PlannedValues   valuesDocument   `json:"planned_values"`
	ResourceDrift   []resourceChange `json:"resource_drift,omitempty"`
	ResourceChanges []resourceChange `json:"resource_changes"`
	Checks          []check          `json:"checks"`
	Timestamp       time.Time        `json:"timestamp"`
	Applyable       bool             `json:"applyable"`
	Complete        bool             `json:"complete"`
	Errored         bool             `json:"errored"`
	Converge        planExtra        `json:"converge"`
}

type stateDocument struct {
	FormatVersion string         `json:"format_version"`
	Values        valuesDocument `json:"values"`
}

type valuesDocument struct {
	RootModule struct {
		Resources []resourceValues `json:"resources"`
	} `json:"root_module"`
}

type resourceID struct {
	Address      string `json:"address"`
	Mode         string `json:"mode"`
	Type         string `json:"type"`
	Name         string `json:"name"`
	ProviderName string `json:"provider_name"`
}

type resourceValues struct {
	resourceID
	SchemaVersion   int            `json:"schema_version"`
	Values          schema.Object  `json:"values"`
	SensitiveValues map[string]any `json:"sensitive_values"`
}

type resourceChange struct {
	resourceID
	Change       change `json:"change"`
	ActionReason string `json:"action_reason,omitempty"`
}

type change struct {
	Actions         []string       `json:"actions"`
	Before          schema.Object  `json:"before"`
	After           schema.Object  `json:"after"`
	AfterUnknown    map[string]any `json:"after_unknown"`
	BeforeSensitive map[string]any `json:"before_sensitive"`
	AfterSensitive  map[string]any `json:"after_sensitive"`
	ReplacePaths    [][]any        `json:"replace_paths,omitempty"`
	Importing       *importing     `json:"importing,omitempty"`
}

type importing struct {
	ID string `json:"id"`
}

// planExtra is what converge knows beyond Terraform's keys.
type planExtra struct {
	Format      string           `json:"format_version"`
	Version     string           `json:"version"`
	PlanID      string           `json:"plan_id"`
	Site        schema.Site      `json:"site"`
	Document    planSource       `json:"document"`
	Destroy     bool             `json:"destroy"`
	Steps       []planStep       `json:"steps"`
	NoReturn    int              `json:"no_return"`
	Approval    string           `json:"approval"`         // for -approve
	Approvals   []string         `json:"approvals_needed"` // addresses of what cannot be undone exactly
	Counts      plan.Counts      `json:"counts"`
	Unchanged   int              `json:"unchanged"`
	Listed      bool             `json:"unchanged_listed"` // unchanged resources are no-ops among the resource changes
	Unmanaged   []plan.Unmanaged `json:"unmanaged"`
	Remarks     []plan.Remark    `json:"remarks,omitempty"` // what is wrong although nothing differs
	Unknown     []plan.Unknown   `json:"unknown"`
	Unsupported []plan.Unknown   `json:"unsupported"`
	Omitted     []plan.Omission  `json:"omitted"`            // left out, because of what is unsupported or unknown
	Externals   []plan.External  `json:"externals"`          // what is only referred to, and whether it was observed
	Narrowed    *plan.Narrowed   `json:"narrowed,omitempty"` // by -target, -exclude or -refresh=changed
	Refusals    []plan.Refusal   `json:"refusals"`
}

type planSource struct {
	Revision int64  `json:"revision,omitempty"`
	Serial   int64  `json:"serial,omitempty"`
	Digest   string `json:"digest,omitempty"`
	PutBy    string `json:"put_by,omitempty"` // who put it into the store; empty for files that the command named
	Signer   string `json:"signer,omitempty"` // whose trusted signature it has
	Key      string `json:"key,omitempty"`    // of the signature, trusted or not
}

type planStep struct {
	ID         int              `json:"id"`
	Address    string           `json:"address"`
	Action     plan.Action      `json:"action"`
	Replace    bool             `json:"replace"`
	Reason     string           `json:"reason"`
	Wave       int              `json:"wave"`
	Turn       int              `json:"turn,omitempty"` // stage of the node: one node goes first, then a tenth, then the rest
	DependsOn  []int            `json:"depends_on"`
	Disruption string           `json:"disruption,omitempty"`
	Undo       providers.Revert `json:"undo"`
	Reversible bool             `json:"reversible"`
	Leaves     bool             `json:"leaves,omitempty"`
	Inverse    plan.Action      `json:"inverse"`
	Deadline   string           `json:"deadline,omitempty"`
	ExternalID string           `json:"external_id"`
	Changes    []diff.Change    `json:"changes,omitempty"`
	Chosen     []plan.Chosen    `json:"chosen,omitempty"` // what the document left to the planner, and why it was chosen
}

// PlanDocument returns a plan with the keys of Terraform's plan format; what only converge knows is under "converge".
// The halves of a replacement are one resource change, at the position of the second. Adoptions are no-ops that import. What does
// not change follows as no-ops, in the order of the refs, with the values that the document states.
func PlanDocument(p *plan.Plan, o PlanOrigin) any {
	d := planDocument{
		FormatVersion: planFormat, Timestamp: o.At.UTC(), Applyable: !p.Empty() && len(p.Refusals) == 0,
		Complete: !p.Partial(), Errored: len(p.Refusals) > 0,
		PriorState:      stateDocument{FormatVersion: "1.0"},
		ResourceChanges: []resourceChange{}, Checks: checksOf(p),
		Converge: planExtra{
			Format: extraFormat, Version: o.Converge, PlanID: o.Digest, Site: p.Site, Destroy: p.Destroy, Steps: []planStep{}, NoReturn: p.NoReturn, Approval: p.Approval(), Approvals: []string{},
			Document: planSource{p.Revision, p.Site.Serial, p.Digest, p.Author.By, p.Author.Signer, p.Author.Key}, Counts: p.Counts(), Unchanged: p.Unchanged,
			Unmanaged: list(p.Unmanaged), Remarks: p.Remarks, Unknown: list(p.Unknown), Unsupported: list(p.Unsupported), Omitted: list(p.Omitted), Externals: list(p.Externals), Narrowed: p.Narrowed, Refusals: list(p.Refusals),
		},
	}
	d.PriorState.Values.RootModule.Resources = []resourceValues{}
	d.PlannedValues.RootModule.Resources = []resourceValues{}
	removed := map[schema.Ref]*plan.Step{} // halves of replacements that remove
	steps := map[schema.Ref]*plan.Step{}
	for i := range p.Steps {
		s := &p.Steps[i]
		if steps[s.Ref] == nil || s.Before != nil {
			steps[s.Ref] = s
		}
		d.Converge.Steps = append(d.Converge.Steps, stepOf(s, o.Kinds))
		if !s.Undo.Reversible() {
			d.Converge.Approvals = append(d.Converge.Approvals, s.Ref.String())
		}
		if s.Before != nil {
			add(&d.PriorState.Values, s.Ref, o.Kinds, s.Before)
		}
		if s.After != nil {
			add(&d.PlannedValues, s.Ref, o.Kinds, s.After)
		}
		if s.Replace && s.Action == plan.Delete {
			removed[s.Ref] = s
			continue
		}
		d.ResourceChanges = append(d.ResourceChanges, changeOf(s, removed[s.Ref], o.Kinds))
	}
	unchanged, all := unchangedOf(p, o.Declared)
	d.Converge.Listed = all
	for _, r := range unchanged {
		add(&d.PriorState.Values, r.Ref, o.Kinds, r.Spec)
		add(&d.PlannedValues, r.Ref, o.Kinds, r.Spec)
		c := resourceChange{resourceID: identify(r.Ref), Change: change{Actions: []string{"no-op"}, AfterUnknown: map[string]any{}}}
		c.Change.Before, c.Change.BeforeSensitive = mask(o.Kinds[r.Ref.Kind], r.Spec)
		c.Change.After, c.Change.AfterSensitive = c.Change.Before, c.Change.BeforeSensitive
		d.ResourceChanges = append(d.ResourceChanges, c)
	}
	for i := range p.Drift {
		d.ResourceDrift = append(d.ResourceDrift, driftOf(&p.Drift[i], steps[p.Drift[i].Ref], o.Kinds))
	}
	return d
}

// unchangedOf returns the declared resources that are as they should be. A plan only counts them, so that its size follows
// what it does: they are those that it does not mention otherwise. All is false, and none are returned, when their number
// differs from the plan's count, as with -target.
func unchangedOf(p *plan.Plan, declared []schema.Resource) (rs []schema.Resource, all bool) {
	said, strays := map[schema.Ref]bool{}, map[schema.Ref]bool{}
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Stray {
			strays[s.Ref] = true // an incarnation that was given up is removed, and the resource stays
		} else {
			said[s.Ref] = true
		}
	}
	for i := range p.Refusals {
		said[p.Refusals[i].Ref] = true
	}
	for i := range p.Omitted {
		said[p.Omitted[i].Ref] = true
	}
	unseen := map[schema.Place]bool{}
	for _, u := range slices.Concat(p.Unknown, p.Unsupported) {
		unseen[schema.Place{Scope: u.Scope, Kind: u.Kind}] = true
	}
	n := 0
	for _, r := range declared {
		if said[r.Ref] || unseen[r.Ref.Place()] {
			continue
		}
		if n++; !strays[r.Ref] { // which already has a change
			rs = append(rs, r)
		}
	}
	if n != p.Unchanged || p.Narrowed != nil {
		return nil, false
	}
	return rs, true
}

// list turns nil into an empty list, which JSON shows as [] instead of null.
func list[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}

func identify(r schema.Ref) resourceID {
	return resourceID{Address: r.String(), Mode: "managed", Type: r.Kind, Name: r.Name, ProviderName: r.Provider()}
}

func add(v *valuesDocument, r schema.Ref, kinds schema.Kinds, spec schema.Object) {
	shown, sensitive := mask(kinds[r.Kind], spec)
	v.RootModule.Resources = append(v.RootModule.Resources, resourceValues{resourceID: identify(r), Values: shown, SensitiveValues: sensitive})
}

func stepOf(s *plan.Step, kinds schema.Kinds) planStep {
	out := planStep{
		ID: s.ID, Address: s.Ref.String(), Action: s.Action, Replace: s.Replace, Reason: s.Reason, Wave: s.Wave, Turn: s.Stage,
		DependsOn: list(s.Needs), Disruption: s.Disruption, Undo: s.Undo, Reversible: s.Undo.Reversible(), ExternalID: s.ExternalID,
		Leaves: s.Leaves, Inverse: s.Inverse(), Chosen: s.Chosen,
	}
	if s.Within > 0 {
		out.Deadline = s.Within.String()
	}
	for _, c := range s.Changes {
		out.Changes = append(out.Changes, conceal(kinds[s.Ref.Kind], c))
	}
	return out
}

// changeOf returns the change of a step. Removed is the other half when the step is the second of a replacement.
func changeOf(s, removed *plan.Step, kinds schema.Kinds) resourceChange {
	k := kinds[s.Ref.Kind]
	have := s.Before
	r := resourceChange{resourceID: identify(s.Ref)}
	c := &r.Change
	switch s.Action {
	case plan.Create:
		c.Actions = []string{"create"}
	case plan.Update:
		c.Actions = []string{"update"}
	case plan.Delete:
		c.Actions, r.ActionReason = []string{"delete"}, "delete_because_no_resource_config"
	case plan.Adopt:
		c.Actions, c.Importing = []string{"no-op"}, &importing{s.ExternalID}
	case plan.Forget:
		c.Actions, r.ActionReason = []string{"forget"}, "delete_because_no_resource_config"
	}
	if s.Replace && removed != nil {
		have = removed.Before
		c.Actions, r.ActionReason = []string{"delete", "create"}, "replace_by_request"
		if s.Reason != plan.AskedReplace {
			r.ActionReason = "replace_because_cannot_update"
			// In a kind that never changes in place no field is marked: every difference forces a replacement.
			none := !slices.ContainsFunc(s.Changes, func(ch diff.Change) bool { return ch.Replaces })
			for _, ch := range s.Changes {
				if ch.Replaces || none {
					c.ReplacePaths = append(c.ReplacePaths, segments(ch.Path))
				}
			}
		}
	}
	c.Before, c.BeforeSensitive = mask(k, have)
	c.After, c.AfterSensitive = mask(k, s.After)
	c.AfterUnknown = map[string]any{}
	if k != nil && s.Action == plan.Create {
		for _, f := range k.Fields {
			if f.Computed {
				c.AfterUnknown[f.Name] = true
			}
		}
	}
	return r
}

// driftOf returns the change that happened outside: whole specs when a step has them, else the paths that differ.
func driftOf(d *plan.Drift, s *plan.Step, kinds schema.Kinds) resourceChange {
	k := kinds[d.Ref.Kind]
	r := resourceChange{resourceID: identify(d.Ref)}
	var was, is schema.Object
	if s != nil && s.Prior != nil {
		was, is = s.Prior.Spec, s.Before
	} else if len(d.Changes) > 0 {
		was, is = schema.Object{}, schema.Object{}
		for _, c := range d.Changes {
			c = conceal(k, c)
			was[c.Path], is[c.Path] = c.Before, c.After
		}
	}
	r.Change.Actions = []string{"update"}
	if d.Missing {
		r.Change.Actions, is = []string{"delete"}, nil
	}
	r.Change.AfterUnknown = map[string]any{}
	r.Change.Before, r.Change.BeforeSensitive = mask(k, was)
	r.Change.After, r.Change.AfterSensitive = mask(k, is)
	return r
}

// segments splits a path: rules[ssh].ports[0] is rules, ssh, ports, 0; a number in brackets becomes a number.
func segments(path string) []any {
	var out []any
	for path != "" {
		i := strings.IndexAny(path, ".[")
		if i < 0 {
			return append(out, path)
		}
		if i > 0 {
			out = append(out, path[:i])
		}
		if path[i] == '.' {
			path = path[i+1:]
			continue
		}
		key, rest, _ := strings.Cut(path[i+1:], "]")
		if n, err := strconv.Atoi(key); err == nil {
			out = append(out, n)
		} else {
			out = append(out, key)
		}
		path = rest
	}
	return out
}

// StateDocument returns what is recorded with the keys of terraform show -json; the summary is under "converge".
func StateDocument(records []state.Record, kinds schema.Kinds, m SiteSummary) any {
	var d struct {
		stateDocument
		Converge SiteSummary `json:"converge"`
	}
	d.FormatVersion, d.Converge = "1.0", m
	d.Values.RootModule.Resources = []resourceValues{}
	for i := range records {
		add(&d.Values, records[i].Ref, kinds, records[i].Spec)
	}
	return d
}
