// Package providertest holds the laws that every kind obeys, as a suite for the tests of a provider:
//
//	providertest.Run(t, providertest.Suite{
//		Kinds: kinds,
//		Open:  func(t *testing.T) providertest.World { … },
//		Cases: []providertest.Case{{
//			Kind:   "ovs.bridge",
//			Name:   "br-slice",
//			Want:   schema.Object{"fail_mode": "secure"},
//			Update: schema.Object{"fail_mode": "standalone"},
//		}},
//	})
//
// A [World] is the far side with the provider that is connected to it; each law gets a fresh one. A [Case] is an
// example of a thing of one kind. A law is one sentence of the contract in package providers; subtests are called
// KIND/NAME/LAW, and wire/KIND/NAME/LAW where the provider is behind a pipe that encodes all that goes through it. Which
// laws apply follows from the kind's traits, so the suite also shows that the traits are true.
//
// Some laws hold for every call and are checked at each: errors are complete [providers.Error] values, inputs are not
// modified, and observations have the shape that the kind's CUE file defines.
package providertest

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"github.com/google/uuid"
)

// Site is the identity of the site in the marks that the suite writes.
const Site = "6f1c3c5e-4a4e-4f0e-9d53-0f1d3c6f7a10"

// A Suite is what the laws are checked on.
type Suite struct {
	Open  func(t *testing.T) World // a fresh world; it registers its own cleanup, but the suite closes the provider
	Cases []Case                   // at least one for each kind that the provider serves and the far side has
	Kinds schema.Kinds             // optional: the descriptions of the kinds, for laws about the shape of specs

	// Patience is how long a change may take to return: the world stands still meanwhile, so a change that waits for progress
	// in it never returns. Optional: a minute.
	Patience time.Duration

	// Only is the one law to check. Optional: all are checked.
	Only string

	// Direct leaves out the laws behind a pipe, for another suite of the same kinds has them: what is encoded depends on the kind,
	// and not on the far side. Optional.
	Direct bool

	// Parallel permits checking several laws at the same time. Optional: the worlds that Open returns must then share nothing.
	Parallel bool

	piped bool // the provider is behind a pipe
}

// A World is one far side.
type World struct {
	Provider *providers.Provider

	// Dump returns everything that the far side holds as text, the same text for the same content; for the laws that
	// a call changes nothing. Optional: what the provider itself observes is compared anyway.
	Dump func() string

	// Advance lets the far side make progress, such as by moving the clock of a simulator. Optional: without it everything
	// must be settled when a call returns.
	Advance func()

	// Late says that a request may be carried out after the call that sent it was cut off, as a connection may still have it. What a
	// call that was cut leaves is then not checked: it could change while it is looked at.
	Late bool

	// Meddle changes a thing as somebody else would, past the provider, so that it is observed in another state. Optional.
	Meddle func(kind, id string)
}

// Made describes a thing to be created.
type Made struct {
	Kind string
	Name string        // of the resource
	ID   string        // external id; empty: from the template in the kind's traits, or ID(Kind, Name)
	Spec schema.Object // references are external ids
}

// A Case is an example of a thing. Specs are as in the contract: references are external ids.
//
// When the traits say that the kind has no create, the world must hold the thing from the start.
type Case struct {
	Kind  string
	Name  string // of the resource
	ID    string // as in Made
	Needs []Made // created before, in this order; those whose kind has no create must already exist

	Open func(t *testing.T) World // optional: a world instead of the suite's, with what this case requires

	Want    schema.Object
	Update  schema.Object // a second whole spec; what Want has and it lacks is unset. Nil: the kind has no update
	Invalid schema.Object // a spec that the far side refuses; optional

	// Other describes the i-th of several things of the same kind that can exist beside this one and each other.
	// When it is nil they have the same spec, under other names.
	Other func(i int) Made
	// Single says that there can be no other thing of the kind in a scope.
	Single bool
}

// ID returns the external id that the suite chooses for a thing of a kind whose ids are UUIDs, so that specs can refer
// to it.
func ID(kind, name string) string {
	return uuid.NewSHA1(uuid.MustParse(Site), []byte(kind+"/"+name)).String()
}

// Run checks all laws on all cases, and once more through a [Pipe]. Each failing law is a failing subtest.
func Run(t *testing.T, s Suite) {
	t.Helper()
	run(t, s)
	if s.Direct {
		return
	}
	t.Run("wire", func(t *testing.T) {
		s.piped = true
		run(t, s)
	})
}

func run(t *testing.T, s Suite) {
	t.Helper()
	if s.Only != "" && !slices.ContainsFunc(slices.Concat(laws, watchLaws), func(l law) bool { return l.name == s.Only }) {
		t.Fatalf("there is no law %q", s.Only)
	}
	t.Run("provider", func(t *testing.T) { checkProvider(t, s) })
	for _, c := range s.Cases {
		t.Run(c.Kind+"/"+c.Name, func(t *testing.T) {
			served, ok := find(c.open(t, s).Provider, c.Kind)
			if !ok {
				t.Fatalf("the provider does not serve %s", c.Kind)
			}
			hold := laws
			if served.Watch != nil {
				hold = slices.Concat(laws, watchLaws)
			}
			for _, l := range hold {
				if l.when != nil && !l.when(served.Traits, c) || s.Only != "" && l.name != s.Only {
					continue
				}
				t.Run(strings.ReplaceAll(l.name, " ", "-"), func(t *testing.T) {
					if s.Parallel {
						t.Parallel()
					}
					w := c.open(t, s)
					served, _ := find(w.Provider, c.Kind)
					b := &bench{T: t, world: w, served: served, traits: served.Traits, c: c, kinds: s.Kinds, patience: cmp.Or(s.Patience, time.Minute)}
					for _, m := range c.Needs {
						b.make(m)
					}
					l.check(b)
				})
			}
		})
	}
}

// open opens a world for the case.
func (c *Case) open(t *testing.T, s Suite) World {
	t.Helper()
	if c.Open != nil {
		s.Open = c.Open
	}
	return open(t, s)
}

func open(t *testing.T, s Suite) World {
	t.Helper()
	w := s.Open(t)
	if s.piped {
		w.Provider, w.Late = Pipe(t, w.Provider), true
	}
	t.Cleanup(func() {
		if err := w.Provider.Close(); err != nil {
			t.Errorf("closing the provider: %v", err)
		}
	})
	return w
}

// isUnsupported reports whether an observation failed because this far side, perhaps an older one, does not have the kind.
func isUnsupported(err error) bool {
	return err != nil && providers.ClassOf(err) == providers.Unsupported
}

func find(p *providers.Provider, kind string) (providers.Served, bool) {
	i := slices.IndexFunc(p.Kinds, func(k providers.Served) bool { return k.Name == kind })
	if i < 0 {
		return providers.Served{}, false
	}
	return p.Kinds[i], true
}

// checkProvider checks what is given as data: names, traits, and that nothing is left out.
func checkProvider(t *testing.T, s Suite) {
	p := open(t, s).Provider
	if p.Name == "" || p.Scope == "" || p.Close == nil {
		t.Fatalf("the provider lacks its name (%q), its scope (%q) or Close", p.Name, p.Scope)
	}
	for _, k := range p.Kinds {
		if !strings.HasPrefix(k.Name, p.Name+".") {
			t.Errorf("%s does not begin with the name of its provider, %s", k.Name, p.Name)
		}
		if !slices.ContainsFunc(s.Cases, func(c Case) bool { return c.Kind == k.Name }) {
			if _, err := providers.Collect(k.Kind.List(t.Context())); !isUnsupported(err) {
				t.Errorf("%s has no case", k.Name)
			}
		}
		checkTraits(t, k)
		if s.Kinds == nil {
			continue
		}
		kind := s.Kinds[k.Name]
		if kind == nil {
			t.Errorf("%s is served but has no CUE file", k.Name)
			continue
		}
		if kind.Node != (p.Scope != schema.ScopeSite) {
			t.Errorf("%s is served in scope %s, which is not where its CUE file puts it", k.Name, p.Scope)
		}
		if k.Traits.CutsOff && secret(kind.Fields) {
			t.Errorf("%s has a secret, which its guard would write to disk", k.Name)
		}
		for name := range placeholders(k.Traits.ID) {
			f := kind.Field(name)
			if name != "name" && (f == nil || f.Type != schema.String || !f.Immutable || !f.Required) {
				t.Errorf("%s: ids are %q, but %s is not a required, immutable string", k.Name, k.Traits.ID, name)
			}
		}
	}
	for _, name := range s.Kinds.Names() {
		if _, ok := find(p, name); !ok && strings.HasPrefix(name, p.Name+".") && s.Kinds[name].Node == (p.Scope != schema.ScopeSite) {
			t.Errorf("%s has a CUE file but is not served", name)
		}
	}
}

// secret reports whether one of some fields, or a field in them, is a secret.
func secret(fields []schema.Field) bool {
	return slices.ContainsFunc(fields, func(f schema.Field) bool {
		return f.Secret || secret(f.Fields) || f.Elem != nil && secret([]schema.Field{*f.Elem})
	})
}

func checkTraits(t *testing.T, k providers.Served) {
	oneOf := func(what string, got string, want ...string) {
		if !slices.Contains(want, got) {
			t.Errorf("%s: %s is %q, want one of %q", k.Name, what, got, want)
		}
	}
	const never, blind, conditional, versioned = string(providers.Never), string(providers.Blind), string(providers.Conditional), string(providers.Versioned)
	oneOf("Create", string(k.Traits.Create), never, blind, conditional)
	oneOf("Update", string(k.Traits.Update), never, blind, versioned)
	oneOf("Delete", string(k.Traits.Delete), never, blind, versioned)
	for what, r := range map[string]providers.Revert{
		"UndoCreate": k.Traits.UndoCreate, "UndoUpdate": k.Traits.UndoUpdate, "UndoDelete": k.Traits.UndoDelete,
	} {
		oneOf(what, string(r), "", string(providers.Exact), string(providers.Restart), string(providers.Replace), string(providers.NoUndo))
	}
	if k.Traits.EffectWithin < 0 || k.Traits.ReadyWithin < 0 || k.Traits.GoneWithin < 0 {
		t.Errorf("%s: a duration is negative", k.Name)
	}
}

// placeholders returns the names in braces of an id template.
func placeholders(template string) map[string]bool {
	names := map[string]bool{}
	for rest := template; ; {
		_, after, ok := strings.Cut(rest, "{")
		if !ok {
			return names
		}
		name, tail, ok := strings.Cut(after, "}")
		if !ok {
			return names
		}
		names[name] = true
		rest = tail
	}
}

// expand fills an id template from a name and the string fields of a spec.
func expand(template, name string, spec schema.Object) string {
	for p := range placeholders(template) {
		value := name
		if p != "name" {
			value, _ = spec[p].(string)
		}
		template = strings.ReplaceAll(template, "{"+p+"}", value)
	}
	return template
}

// changed returns what have becomes when a document that said from now says to: what neither mentions stays.
func changed(have, from, to schema.Object) schema.Object {
	spec := have.Clone()
	if spec == nil {
		spec = schema.Object{}
	}
	for k := range from {
		delete(spec, k)
	}
	maps.Copy(spec, to.Clone())
	return spec
}
