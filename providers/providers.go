// Package providers is the contract with the outside world.
//
// A [Provider] is one external system in one scope: Carbide for the site, Open vSwitch on a node. It serves kinds; each
// [Kind] can be read, created, updated and deleted, and has [Traits], which are data. The engine does everything else: it
// matches, compares, orders, retries, waits, journals and reverts. A provider translates.
//
// # Adding a kind
//
// Write schema/PROVIDER/NOUN.cue, which describes the fields, and providers/PROVIDER/NOUN.go, which implements [Kind];
// add one line to the provider's list of kinds. The laws in package providertest say what a kind must obey; run them
// in the kind's test. See docs/adding-a-kind.md.
//
// # What a kind sees
//
// Specs have the shape that the kind's CUE file gives, with two differences. Where a document has the name of another
// resource (@ref), a spec at this boundary has that thing's external id. Where it has the place of a secret (#Secret), a
// spec at this boundary has the secret itself, as text. Both hold in both directions, and the engine translates. A kind
// leaves out of what it observes the secrets that its far side never gives back; where it knows that none is set, it
// reports the empty text.
package providers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"converge.dev/converge/schema"
)

// A Kind observes and changes one kind of real thing in one scope. Methods may be called at the same time for
// different things. A call made with a cancelled context changes nothing. Errors are of type [*Error].
//
// No call waits for what takes long over there. A change returns once the far side has accepted it; the thing is Pending or
// Leaving until it is done, and the engine waits, in nobody's way. What can be asked for only after that is asked for by
// another call: see Traits.Later.
type Kind interface {
	// List yields the things of this kind in the scope, each of them once, in as few calls as the far side allows. An error ends
	// the list: what was yielded before it says nothing about what is not there. A list that ends without one is whole. It
	// changes nothing.
	List(ctx context.Context) iter.Seq2[Thing, error]

	// Get returns the things with the given external ids, of which none is there twice; one that does not exist is left out. It
	// never returns a part of what was asked for: then it fails. It changes nothing.
	Get(ctx context.Context, ids []string) ([]Thing, error)

	// Create makes the thing with id c.ID as c.Want says. When the id or a unique name is taken it fails with Exists.
	// It returns once the far side has accepted; the engine waits until the thing is Ready. When the far side's answer names
	// another id than c.ID, c.Chose is called with it: that is the thing's id from then on.
	Create(ctx context.Context, c Call) error

	// Update turns c.Have into c.Want in place. Only fields that are not immutable differ; both are whole specs, so
	// that a far side that replaces everything keeps what the document does not mention. With a version token that
	// has moved it fails with Conflict.
	Update(ctx context.Context, c Call) error

	// Delete removes the thing. Deleting what is absent, or on its way out, succeeds.
	Delete(ctx context.Context, c Call) error
}

// A Call is the context of one change.
type Call struct {
	Ref     schema.Ref    // for messages
	ID      string        // external id
	Name    string        // Create, Update: what the thing is to be called, where it has a name beside its id; empty: like its ref
	Mark    Mark          // to be written on the thing where the kind has a place for it; zero in Update: to be taken away
	Want    schema.Object // Create, Update: the spec to have afterwards; read only
	Have    schema.Object // Update, Delete: the spec seen right before, with the secrets that are set sealed; read only
	Version string        // Update, Delete: the version token seen right before; empty when the kind has none
	Key     string        // idempotency key: the same for every attempt of one step
	Epoch   int64         // fencing epoch of the caller
	Answer  *Answer       // Create: takes what the far side answers; nil when the caller does not ask
}

// An Answer is what the far side said of a thing that it made.
type Answer struct {
	ID string // the id that it chose instead of the caller's; empty: none
}

// Called returns what the thing of a Create or Update is to be called.
func (c *Call) Called() string { return cmp.Or(c.Name, c.Ref.Name) }

// Chose notes that the far side made the thing of a Create under another id than c.ID. An empty id, or c.ID, says nothing.
func (c *Call) Chose(id string) {
	if c.Answer != nil && id != "" && id != c.ID {
		c.Answer.ID = id
	}
}

// A Thing is what a provider saw.
type Thing struct {
	ID      string        // external id
	Name    string        // what it is called over there: the natural key, or a name for people
	Mark    Mark          // who made it; zero when unmarked or made by others
	Version string        // version token; empty when the kind has none
	Spec    schema.Object // settable fields, whole, in the shape of the kind's CUE file
	Status  schema.Object // computed fields
	Phase   Phase
	Detail  string // why it is not ready, or what is not well with it all the same, for people
	Derived bool   // made by the far side itself as a part of something else, with which it comes and goes

	// Unfilled names the fields of the spec that this far side does not tell, an older or a newer version for example. They
	// are absent from Spec, and unknown: no difference, no replacement, no drift.
	Unfilled []string
}

// Collect reads a list to its end. It returns no things when that is an error.
func Collect(list iter.Seq2[Thing, error]) ([]Thing, error) {
	var things []Thing
	for th, err := range list {
		if err != nil {
			return nil, err
		}
		things = append(things, th)
	}
	return things, nil
}

// Listed is the list that read returns in one piece; read is called when the list is ranged over.
func Listed(read func() ([]Thing, error)) iter.Seq2[Thing, error] {
	return func(yield func(Thing, error) bool) {
		things, err := read()
		if err != nil {
			yield(Thing{}, err)
			return
		}
		for _, th := range things {
			if !yield(th, nil) {
				return
			}
		}
	}
}

// Phase is how far a thing has come.
type Phase string

// Phases. A deleted thing is Leaving for as long as it is listed.
const (
	Ready   Phase = "ready"
	Pending Phase = "pending"
	Failed  Phase = "failed" // will not become ready by waiting
	Leaving Phase = "leaving"
)

// A Mark on a thing says which resource of which site it is. Where a kind has a place for it (Carbide labels, OVSDB
// external_ids) it is written at creation; lost state can be rebuilt from the marks.
type Mark struct {
	Site        string     `json:"site"` // the site's UUID
	Ref         schema.Ref `json:"ref"`
	Incarnation int        `json:"incarnation"` // 1, 2, …: grows each time that the resource is created anew
}

// MarkKey is the label or external_ids key under which a mark is kept.
const MarkKey = "converge.dev/mark"

// IsZero reports whether there is no mark.
func (m Mark) IsZero() bool { return m == Mark{} }

// String packs the mark into one value: SITE/SCOPE/KIND/NAME#INCARNATION.
func (m Mark) String() string {
	if m.IsZero() {
		return ""
	}
	return m.Site + "/" + m.Ref.String() + "#" + strconv.Itoa(m.Incarnation)
}

// ParseMark is the inverse of [Mark.String]. Text that is no mark gives the zero Mark.
func ParseMark(s string) Mark {
	site, rest, ok := strings.Cut(s, "/")
	if !ok || site == "" {
		return Mark{}
	}
	i := strings.LastIndexByte(rest, '#')
	if i < 0 {
		return Mark{}
	}
	n, err := strconv.Atoi(rest[i+1:])
	ref, rerr := schema.ParseRef(rest[:i])
	if err != nil || rerr != nil || n < 1 {
		return Mark{}
	}
	return Mark{Site: site, Ref: ref, Incarnation: n}
}

// Class says what an error means. Nothing else about an error is ever looked at.
type Class string

// Classes. For all but Unknown the call that failed had no effect.
const (
	Transient   Class = "transient"   // the far side was not reached or was overloaded: try again
	Busy        Class = "busy"        // it is not ready for this yet: try again
	Conflict    Class = "conflict"    // the thing changed since it was observed
	Exists      Class = "exists"      // the id or name is taken
	Absent      Class = "absent"      // the thing, or one that it refers to, is not there
	Denied      Class = "denied"      // not allowed
	Invalid     Class = "invalid"     // the far side refuses the values
	Unsupported Class = "unsupported" // the far side does not know the kind or verb
	Unknown     Class = "unknown"     // the call may have had its effect, or may have it later
)

// Retryable reports whether the same call may be made again without looking first.
func (c Class) Retryable() bool { return c == Transient || c == Busy }

// An Error is what a kind's verb fails with.
type Error struct {
	Op    string     // observe, create, update, delete
	Ref   schema.Ref // zero for an observation of many
	Kind  string     // when Ref is zero
	Class Class
	Code  string // optional: the far side's own word for it, out of a fixed list, such as InvalidArgument; never free text
	Err   error
}

// Error names the operation, the thing and the cause.
func (e *Error) Error() string {
	on := e.Kind
	if !e.Ref.IsZero() {
		on = e.Ref.String()
	}
	return fmt.Sprintf("%s %s: %v", e.Op, on, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// ClassOf returns the class of an error. What has no class is Unknown: it is never safe to guess.
func ClassOf(err error) Class {
	var e *Error
	if errors.As(err, &e) {
		return e.Class
	}
	return Unknown
}

// An OutdatedError says that the far side has obeyed a holder of the site lock with a higher epoch.
type OutdatedError struct {
	On            string
	Stored, Epoch int64
}

// Error implements error.
func (e *OutdatedError) Error() string {
	return fmt.Sprintf("the holder with epoch %d is at work on %s; this one has epoch %d", e.Stored, e.On, e.Epoch)
}

// Traits say as data how a kind behaves; the engine reads them instead of asking for more methods.
type Traits struct {
	// ID tells how external ids come about. Empty: the engine chooses a UUID for each incarnation. Otherwise a
	// template over the resource's name and immutable string fields, such as "{name}" or "{tenant}/{name}": the
	// natural key.
	ID string

	Create Mode // Conditional: a second create of the same id fails with Exists. Never: things appear by themselves
	Update Mode // Versioned: refused when the version token has moved
	Delete Mode // Versioned, or Blind where the far side checks nothing

	Mark     bool          // the kind has a place for our mark
	Orphans  bool          // Delete does not look whether anything still refers to the thing, and would leave that behind
	Burned   bool          // the far side refuses an id whose thing was deleted
	Eventual bool          // a list may lag behind a change
	Late     time.Duration // longest time after which a call of unknown outcome may still have its effect
	Fixed    bool          // no call changes an immutable field: one that is not told any more, or as its default, is as it was recorded
	Itself   []string      // fields that the far side may bring by itself to what an update asks for: that they are seen proves no call
	Later    []string      // fields that only a thing can get that is ready for them: when it is Ready and lacks nothing else, another update follows, and so on
	Overlap  []string      // keyed lists of which an update, on its way, has new elements under other keys beside the old ones

	// Exclusive names what no two things of the kind can have at the same time.
	Exclusive []Exclusive

	// Detach names the lists whose elements can be left out for a while, when what they refer to has to be deleted before its
	// successor is made. No reference elsewhere ever is.
	Detach []Detachable

	ReadyWithin time.Duration // longest wait for Ready after create and update; zero: ready on return
	GoneWithin  time.Duration // longest wait for absence after delete; zero: gone on return

	UndoCreate, UndoUpdate, UndoDelete Revert // what undoing each verb means; zero is NoUndo, for caution
}

// Named reports whether a thing has a name beside its id, which an update writes: others may call it something else meanwhile.
func (t Traits) Named() bool { return t.ID == "" && t.Update != Never }

// UsedOnce reports whether an id is never used again after its thing was deleted: because the far side would refuse it, or
// because the engine chooses a new one for each incarnation, so that a call which arrives late meets nothing newer.
func (t Traits) UsedOnce() bool { return t.Burned || t.ID == "" }

// Exclusive is what only one thing of a kind has at a time: a field, as a path through lists ("prefixes.prefix"), or "{name}",
// what the thing is called. Address blocks exclude those that they overlap.
type Exclusive struct {
	Field  string
	Within string // optional: a field; things that differ in it do not exclude each other
	Folded bool   // upper and lower case are the same
	Whole  bool   // the list is one value, whatever its order, and not one for each element
}

// Detachable is a list, which is a field of a kind, whose elements may be left out for a while.
type Detachable struct {
	Field string
	Least int // how many elements have to stay

	// With an element whose field Head is HeadIs those go that equal it in all fields of Group.
	Head, HeadIs string
	Group        []string
}

// Mode says how a verb guards itself.
type Mode string

// Modes of a verb.
const (
	Never       Mode = "never" // the verb does not exist for this kind
	Blind       Mode = "blind"
	Conditional Mode = "conditional" // Create: fails when the id exists
	Versioned   Mode = "versioned"   // Update, Delete: fails when the version token has moved
)

// Revert classes say what undoing a change means, from exact to impossible.
type Revert string

// Revert classes.
const (
	Exact   Revert = "R1" // the state before comes back, digest for digest
	Restart Revert = "R2" // configuration comes back, running state was lost
	Replace Revert = "R3" // an equivalent comes back under a new identity
	NoUndo  Revert = "R4" // data is destroyed or exposed: nothing comes back
)

// Reversible reports whether a step of this class may run before the point of no return.
func (r Revert) Reversible() bool { return r == Exact || r == Restart }

// Meaning puts the class in words.
func (r Revert) Meaning() string {
	switch r {
	case Exact:
		return "it is exactly as before"
	case Restart:
		return "its configuration comes back, what was running is lost"
	case Replace:
		return "only an equivalent with a new identity comes back"
	}
	return "nothing comes back"
}

// A Served kind is a kind with its name and traits.
type Served struct {
	Name   string // PROVIDER.NOUN
	Traits Traits
	Kind   Kind
}

// A Provider is one external system in one scope. [New] makes one.
type Provider struct {
	Name  string // first half of its kinds' names
	Scope string // schema.ScopeSite or a node's name
	Limit int    // calls at the same time, set before the first of them; zero: no limit of its own
	Kinds []Served

	// Permit is what calls need, right before their bytes leave. It is checked before each call; a provider that waits
	// within a call for something else, a connection or its turn, checks it again after that. Never nil.
	Permit *Permit

	Close func() error // releases connections; never nil

	// Fence makes the far side store, durably, that the holder with this epoch is at work. From then on it refuses calls
	// with a lower one, and so does this provider; with an epoch lower than the stored one it fails with Denied. The engine
	// calls it under the site lock, before it looks. Nil: the far side has no place for an epoch.
	Fence func(ctx context.Context, epoch int64) error

	// Identity tells which server this is, by a name that it has for good and no other has; empty when it does not say. The
	// engine remembers it: another server would show an empty site. Nil: the far side has none.
	Identity func(ctx context.Context) (string, error)

	// Build names the software that the far side runs, as it says so itself, and with it the generation of its API: what a
	// server can do is found out from what it answers, so this is for people alone. Nil: the far side does not say.
	Build func(ctx context.Context) (string, error)

	// Health tells whether the far side does what it is asked: whether calls get through, and where others bring about what
	// the far side has only written down, whether they do. While it does not Health looks again, one caller at a time. The
	// engine begins no step meanwhile; those that have begun wait, and that is no fault of theirs; their calls are let
	// through. Health errs on neither side for long: what nobody asked for is not owed, slow is not away, and it is good
	// again with the first thing that is done. Where only a change can find that out, it is good now and then, so that one is
	// tried. Nil: it is not known.
	Health func(ctx context.Context) Health

	slots func() chan struct{} // nil: no limit
}

// Health is what the calls of a provider have shown.
type Health struct {
	Down              error // why the far side is away; nil while it is there
	Succeeded, Failed int   // calls so far
	Last              error // of the call that failed last, whatever the reason; nil when none has
	LastAt            time.Time
}

// New makes a provider. Its kinds are guarded: calls of verbs that their traits do not have fail as Unsupported, those that come
// too late, because their context has ended or the permit has, as Transient, and no more run at the same time than Limit says.
// So a kind has none of that to check. A nil close does nothing.
func New(name, scope string, close func() error, kinds ...Served) *Provider {
	if close == nil {
		close = func() error { return nil }
	}
	p := &Provider{Name: name, Scope: scope, Kinds: slices.Clone(kinds), Close: close, Permit: new(Permit)}
	p.slots = sync.OnceValue(func() chan struct{} {
		if p.Limit <= 0 {
			return nil
		}
		return make(chan struct{}, p.Limit)
	})
	for i, k := range p.Kinds {
		p.Kinds[i].Kind = guarded{k.Kind, k, p}
	}
	return p
}

// A Set is all providers of a site, looked up by scope and kind.
type Set struct {
	providers []*Provider
	served    map[[2]string]place
	failed    map[[2]string]error
}

type place struct {
	provider *Provider
	kind     Served
}

// NewSet collects providers. Two that serve the same kind in the same scope are an error.
func NewSet(ps ...*Provider) (*Set, error) {
	s := &Set{providers: ps, served: map[[2]string]place{}, failed: map[[2]string]error{}}
	for _, p := range ps {
		for _, k := range p.Kinds {
			at := [2]string{p.Scope, k.Name}
			if _, dup := s.served[at]; dup {
				return nil, fmt.Errorf("%s is served twice in scope %s", k.Name, p.Scope)
			}
			s.served[at] = place{p, k}
		}
	}
	return s, nil
}

// Join adds what another set has, its failures too, and closes it with this one. When both serve the same kind in the same
// scope, that is an error, and nothing is added.
func (s *Set) Join(other *Set) error {
	for at := range other.served {
		if _, dup := s.served[at]; dup {
			return fmt.Errorf("%s is served twice in scope %s", at[1], at[0])
		}
	}
	for _, p := range other.providers {
		delete(s.failed, [2]string{p.Scope, p.Name})
	}
	s.providers = append(s.providers, other.providers...)
	maps.Copy(s.served, other.served)
	maps.Copy(s.failed, other.failed)
	return nil
}

// Find returns the kind as it is served in a scope, and its provider.
func (s *Set) Find(scope, kind string) (Served, *Provider, bool) {
	p, ok := s.served[[2]string{scope, kind}]
	return p.kind, p.provider, ok
}

// Fail records why a provider could not be opened in a scope. Its things are unknown, not absent.
func (s *Set) Fail(scope, provider string, err error) { s.failed[[2]string{scope, provider}] = err }

// Failure returns the error recorded by Fail, nil when there is none.
func (s *Set) Failure(scope, provider string) error { return s.failed[[2]string{scope, provider}] }

// Fences returns the providers that can store an epoch, among those that serve the given scopes.
func (s *Set) Fences(scopes []string) []*Provider {
	return slices.DeleteFunc(slices.Clone(s.providers), func(p *Provider) bool { return p.Fence == nil || !slices.Contains(scopes, p.Scope) })
}

// All returns the providers.
func (s *Set) All() []*Provider { return slices.Clone(s.providers) }

// Bind makes the permits of all providers last for as long as proof returns nil; release ends that.
func (s *Set) Bind(proof func() error) (release func()) {
	releases := make([]func(), len(s.providers))
	for i, p := range s.providers {
		releases[i] = p.Permit.Bind(proof)
	}
	return func() {
		for _, release := range releases {
			release()
		}
	}
}

// Wrap puts something around every served kind.
func (s *Set) Wrap(around func(scope string, k Served) Kind) {
	for at, p := range s.served {
		p.kind.Kind = around(at[0], p.kind)
		s.served[at] = p
	}
}

// Each calls visit for every served kind, in the order of scope and name.
func (s *Set) Each(visit func(scope string, k Served, p *Provider)) {
	keys := make([][2]string, 0, len(s.served))
	for k := range s.served {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
	for _, k := range keys {
		visit(k[0], s.served[k].kind, s.served[k].provider)
	}
}

// Close closes all providers.
func (s *Set) Close() error {
	var errs []error
	for _, p := range s.providers {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}
