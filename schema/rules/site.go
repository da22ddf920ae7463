package rules

import (
	"maps"
	"slices"
	"time"

	"converge.dev/converge/schema"
)

// A Site is what rules check: every resource of a document. Only [Site.Accept] and [Site.Revise] change it.
type Site struct {
	Resources []*Resource // sorted by ref

	kinds  schema.Kinds
	byKind map[string][]*Resource // in the order of Resources
	index  map[schema.Ref]*Resource

	maxDestroy string           // of the policy
	management []managementFlow // of the policy
	policy     map[string]any

	referring                      selection // fields that are references
	keyed, networked, macs, mapped selection // fields that some rules are about

	kept *kept // nil unless the site is kept for revisions: see Keep
}

// A Resource is a resource of a document that is not yet known to be valid.
type Resource struct {
	schema.Resource // until it is accepted, the spec is everything that the document says
	Kind            *schema.Kind
	Path            []string // in the document
	Number          int      // index in Site.Resources

	sound   bool           // its fields have the types of the kind; never set for an external one, which has none
	depends []string       // depends_on
	waits   map[string]any // timeouts
	missing []schema.Ref   // what it refers to and is not in the document; zero for what is no ref
}

// NewResource returns the resource that a document has at a path; nil when no resource can be there. The path is copied.
func NewResource(kinds schema.Kinds, path []string, v any) *Resource {
	scope, below := schema.ScopeSite, path
	if len(path) == 5 && path[0] == "nodes" {
		scope, below = path[1], path[2:]
	}
	spec, ok := v.(map[string]any)
	if !ok || len(below) != 3 {
		return nil
	}
	kind := kinds[below[0]+"."+below[1]]
	if kind == nil || kind.Node != (len(path) == 5) || kind.Node && scope == schema.ScopeSite {
		return nil
	}
	return &Resource{
		Resource: schema.Resource{Ref: schema.Ref{Scope: scope, Kind: kind.Name, Name: below[2]}, Spec: spec},
		Kind:     kind,
		Path:     slices.Clone(path),
	}
}

// NewSite returns the site of a document with these resources, all that it has.
func NewSite(kinds schema.Kinds, doc map[string]any, resources []*Resource) *Site {
	policy := objectOf(doc["policy"])
	st := &Site{
		Resources: resources,
		kinds:     kinds, byKind: make(map[string][]*Resource), maxDestroy: textOf(policy, "max_destroy"), management: managementFlows(policy), policy: policy,
		referring: choose(kinds, isRef),
		keyed:     choose(kinds, isKeyed), networked: choose(kinds, isPrefixField), macs: choose(kinds, isMACField), mapped: choose(kinds, isMap),
	}
	slices.SortFunc(st.Resources, func(a, b *Resource) int { return a.Ref.Compare(b.Ref) })
	st.index = make(map[schema.Ref]*Resource, len(st.Resources))
	for i, r := range st.Resources {
		r.Number = i
		st.index[r.Ref] = r
		st.byKind[r.Ref.Kind] = append(st.byKind[r.Ref.Kind], r)
	}
	return st
}

// Get returns a resource; nil when there is none with that ref.
func (st *Site) Get(ref schema.Ref) *Resource { return st.index[ref] }

// sorted ranges over an object in the order of its names; over nothing when v is not an object.
func sorted(v any) func(yield func(string, any) bool) {
	m, _ := v.(map[string]any)
	return func(yield func(string, any) bool) {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			if !yield(name, m[name]) {
				return
			}
		}
	}
}

// Accept marks a resource as one whose spec conforms to its kind. Fields that every resource may have move from the spec into
// the fields of the resource, and references of the spec are resolved. Rules trust no other spec. Accept may be called for several
// resources at the same time, once for each.
func (st *Site) Accept(r *Resource) {
	r.sound = true
	r.detach()
	st.refer(r)
}

// AcceptExternal marks a resource as one that exists according to the document, without a spec.
func (st *Site) AcceptExternal(r *Resource) {
	r.External, r.Spec = external(r.Spec), schema.Object{}
}

// external reads what a document says about an external thing.
func external(spec schema.Object) *schema.External {
	id := textOf(objectOf(spec["external"]), "id")
	return &schema.External{ID: id}
}

// detach moves the fields that every resource may have from the spec into the fields of the resource.
func (r *Resource) detach() {
	if l, ok := r.Spec["lifecycle"].(map[string]any); ok {
		r.Lifecycle.Protect, _ = l["protect"].(bool)
		onRemove, _ := l["on_remove"].(string)
		adopt, _ := l["adopt"].(string)
		r.Lifecycle.OnRemove, r.Lifecycle.Adopt = schema.OnRemove(onRemove), schema.Adopt(adopt)
		r.Lifecycle.ID, _ = l["id"].(string)
		r.Lifecycle.Ignore = stringsOf(l["ignore"])
	}
	if t, ok := r.Spec["timeouts"].(map[string]any); ok {
		r.waits = t
		r.Timeouts = schema.Timeouts{Create: duration(t["create"]), Update: duration(t["update"]), Delete: duration(t["delete"])}
	}
	r.depends = stringsOf(r.Spec["depends_on"])
	delete(r.Spec, "lifecycle")
	delete(r.Spec, "timeouts")
	delete(r.Spec, "depends_on")
}

func stringsOf(v any) []string {
	l, _ := v.([]any)
	var out []string
	for _, e := range l {
		if s, ok := e.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

// duration reads a wait; one that cannot be read is zero here and reported by the rule timeout-range.
func duration(v any) time.Duration {
	s, _ := v.(string)
	d, _ := time.ParseDuration(s)
	return d
}
