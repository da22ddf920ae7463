// Package schema defines converge's nouns: refs, resources, documents and the description of kinds.
//
// A site is described by one [Document]. It holds [Resource] values, each named by a [Ref], and each of a [Kind] that
// the embedded CUE module ([Files]) describes. Everything here is plain data: packages schema/kinds and schema/load make it from CUE,
// JSON and YAML, the providers report what they see in the same shapes, and the engine compares the two.
//
// The package imports nothing of ours and decides nothing.
package schema

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

// APIVersion is what the field apiVersion of a document must say.
const APIVersion = "converge.dev/v1"

// MaxSerial is the largest serial of a revision: the largest integer that every reader of JSON represents exactly.
const MaxSerial = 1<<53 - 1

// MaxStated is the largest serial that a document may state itself. A wrong counter that reaches it ends nothing: as many
// revisions again can follow that leave their serial to be counted.
const MaxStated = 1 << 52

// ScopeSite is the scope of things that belong to the whole site; every other scope is the name of a node.
const ScopeSite = "site"

// A Ref names one resource: SCOPE/KIND/NAME, for example site/carbide.vpc/prod or gpu-01/ovs.bridge/br-slice.
// The same three words are the path in the document, the key in the store, the address on the command line and the
// name in every message. The zero Ref names nothing.
type Ref struct {
	Scope string // ScopeSite or a node's name
	Kind  string // PROVIDER.NOUN, for example carbide.vpc
	Name  string // unique within scope and kind; never holds a slash
}

// ParseRef is the inverse of [Ref.String].
func ParseRef(s string) (Ref, error) {
	parts := strings.Split(s, "/")
	if len(parts) != 3 || parts[0] == "" || parts[2] == "" || !strings.Contains(parts[1], ".") {
		return Ref{}, fmt.Errorf("%q is not a ref: want SCOPE/KIND/NAME, for example site/carbide.vpc/prod", s)
	}
	return Ref{Scope: parts[0], Kind: parts[1], Name: parts[2]}, nil
}

// String returns the ref as SCOPE/KIND/NAME.
func (r Ref) String() string { return r.Scope + "/" + r.Kind + "/" + r.Name }

// IsZero reports whether r names nothing.
func (r Ref) IsZero() bool { return r == Ref{} }

// Provider returns the first half of the kind: "carbide" for carbide.vpc.
func (r Ref) Provider() string {
	p, _, _ := strings.Cut(r.Kind, ".")
	return p
}

// Path returns the path of the resource in a document: carbide.vpc.prod or nodes.gpu-01.ovs.bridge.br-slice.
func (r Ref) Path() string {
	if r.Scope == ScopeSite {
		return r.Kind + "." + r.Name
	}
	return "nodes." + r.Scope + "." + r.Kind + "." + r.Name
}

// Compare orders refs by scope (the site first), kind and name.
func (r Ref) Compare(o Ref) int {
	if r.Scope != o.Scope {
		switch ScopeSite {
		case r.Scope:
			return -1
		case o.Scope:
			return 1
		}
	}
	return cmp.Or(strings.Compare(r.Scope, o.Scope), strings.Compare(r.Kind, o.Kind), strings.Compare(r.Name, o.Name))
}

// MarshalText writes the ref as SCOPE/KIND/NAME; the zero Ref as nothing.
func (r Ref) MarshalText() ([]byte, error) {
	if r.IsZero() {
		return nil, nil
	}
	return []byte(r.String()), nil
}

// UnmarshalText is the inverse of MarshalText.
func (r *Ref) UnmarshalText(b []byte) (err error) {
	if len(b) == 0 {
		*r = Ref{}
		return nil
	}
	*r, err = ParseRef(string(b))
	return err
}

// A Place is a kind in a scope: where a resource is observed.
type Place struct{ Scope, Kind string }

// Place returns where the resource is observed.
func (r Ref) Place() Place { return Place{r.Scope, r.Kind} }

// String returns the place as SCOPE/KIND.
func (p Place) String() string { return p.Scope + "/" + p.Kind }

// Compare orders places by the texts of scope and kind, as keys in the store are ordered.
func (p Place) Compare(q Place) int {
	return cmp.Or(strings.Compare(p.Scope, q.Scope), strings.Compare(p.Kind, q.Kind))
}

// SortRefs sorts refs in place and drops repetitions.
func SortRefs(refs []Ref) []Ref {
	slices.SortFunc(refs, Ref.Compare)
	return slices.Compact(refs)
}

// A Resource is one thing that the site should contain.
type Resource struct {
	Ref       Ref
	Spec      Object    // what the document says, defaults filled in; references are names
	After     []Ref     // what it refers to or depends on, sorted; found by the loader, never written by hand
	Outside   []Ref     // what it refers to by external id, which no document declares; also found by the loader
	Lifecycle Lifecycle // how the resource may be treated
	Timeouts  Timeouts  // waits that replace those of the kind, where positive
	External  *External // set when it exists and others manage it: then there is only the ref; nil: it is converge's
}

// External identifies the thing of a resource that is only referred to.
type External struct {
	ID string // its external id; empty: the thing with the name of the resource
}

// Lifecycle says how converge may treat a resource.
type Lifecycle struct {
	Protect  bool     `json:"protect,omitempty"`   // refuse any plan that deletes or replaces it
	OnRemove OnRemove `json:"on_remove,omitempty"` // what happens when it leaves the document
	Ignore   []string `json:"ignore,omitempty"`    // paths within the resource that are never compared
	Adopt    Adopt    `json:"adopt,omitempty"`     // whether an existing thing may be taken over
	ID       string   `json:"id,omitempty"`        // external id of the thing to take over; empty: the one that matches
}

// OnRemove says what happens to a thing whose resource has left the document.
type OnRemove string

// The ways to treat a thing whose resource has left the document. The zero value means Delete.
const (
	Delete OnRemove = "delete" // remove the thing
	Forget OnRemove = "forget" // leave the thing, drop the record
	Refuse OnRemove = "refuse" // refuse the plan
)

// Adopt says whether a thing that converge did not make may be taken over.
type Adopt string

// The ways to treat an existing thing. The zero value means AdoptNever.
const (
	AdoptNever Adopt = "never" // a collision is an error
	AdoptMatch Adopt = "match" // take over the thing with the same natural key, and change it as the document says
)

// Timeouts are waits of one resource; zero leaves the kind's own.
type Timeouts struct {
	Create time.Duration `json:"create,omitempty"`
	Update time.Duration `json:"update,omitempty"`
	Delete time.Duration `json:"delete,omitempty"`
}

// Site is the identity of a site and of one revision of its document.
type Site struct {
	Name   string `json:"name"`             // lower-case label, also the key prefix in the store
	ID     string `json:"id"`               // UUID; the external ids of the site's things derive from it
	Serial int64  `json:"serial,omitempty"` // rises with every revision
}

// Policy bounds what a plan may do.
type Policy struct {
	MaxDestroy string `json:"max_destroy,omitempty"` // "3" things, or "10%" of those recorded; empty: 10 %, at least 1

	Reconcile []Reconcile `json:"reconcile,omitempty"` // of the site agent, first match first
	Approvals Approvals   `json:"approvals,omitzero"`
}

// Reconcile says in which mode the site agent keeps some resources.
type Reconcile struct {
	Mode   string   `json:"mode"`             // observe, approve or enforce
	Kinds  []string `json:"kinds,omitempty"`  // patterns, in which * stands for any characters; empty: all
	Scopes []string `json:"scopes,omitempty"` // likewise
}

// Mode returns the mode of the first rule that names the kind and the scope of a resource; empty when none does.
func (p *Policy) Mode(ref Ref) string {
	for i := range p.Reconcile {
		if r := &p.Reconcile[i]; matches(r.Kinds, ref.Kind) && matches(r.Scopes, ref.Scope) {
			return r.Mode
		}
	}
	return ""
}

// matches reports whether a word matches one of some patterns, or there are none.
func matches(patterns []string, word string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool {
		ok, err := path.Match(p, word)
		return err == nil && ok
	})
}

// Approvals are those that a plan needs before the site agent applies it.
type Approvals struct {
	Count int      `json:"count,omitempty"` // of different people; 0: one
	By    []string `json:"by,omitempty"`    // USER, or USER@HOST; empty: anyone
}

// May reports whether the approval of USER@HOST counts.
func (a *Approvals) May(who string) bool {
	return len(a.By) == 0 || slices.Contains(a.By, who) || slices.Contains(a.By, Person(who))
}

// Enough reports whether those who approved are enough different people. One at two machines is one person.
func (a *Approvals) Enough(who ...string) bool {
	people := map[string]bool{}
	for _, w := range who {
		if a.May(w) {
			people[Person(w)] = true
		}
	}
	return len(people) >= a.Needed()
}

// Needed returns how many people have to approve.
func (a *Approvals) Needed() int { return max(a.Count, 1) }

// Person returns the USER of USER@HOST.
func Person(who string) string {
	if i := strings.LastIndexByte(who, '@'); i > 0 {
		return who[:i]
	}
	return who
}

// A Document is one revision of a site, validated.
type Document struct {
	Site      Site
	Policy    Policy
	Resources []Resource // sorted by Ref
	JSON      []byte     // the document as plain JSON, as stored: keys sorted, defaults not filled in
	Digest    string     // hex SHA-256 of JSON
	Author    Author     // where it comes from; the zero Author is a stranger
}

// An Author says where a document comes from, which decides what it may name. A signature only says who wrote it.
type Author struct {
	Own    bool   `json:"own,omitempty"`    // its files were named by whoever runs the command: it may name every secret
	By     string `json:"by,omitempty"`     // who put it into the store: USER@HOST, or inbox
	Signer string `json:"signer,omitempty"` // whose trusted signature it has, by the name in the configuration
	Key    string `json:"key,omitempty"`    // the key that the signature matches, trusted or not; empty: it is not signed
}
