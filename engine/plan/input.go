package plan

import (
	"path"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// An Observation is everything that was observed at one time.
type Observation struct {
	Things  map[schema.Place][]providers.Thing
	Unknown map[schema.Place]string // places that could not be observed completely, and why

	Unsupported map[schema.Place]string // places whose far side reports that it does not know the kind
	Others      map[schema.Place]bool   // unknown places that a server shows other than the one on which the recorded things were made
}

// Staying returns the things that are not about to go, by id.
func Staying(things []providers.Thing) map[string]*providers.Thing {
	by := make(map[string]*providers.Thing, len(things))
	for i := range things {
		if things[i].Phase != providers.Deleting {
			by[things[i].ID] = &things[i]
		}
	}
	return by
}

// Input is everything that a plan is made from.
type Input struct {
	ID       string // of the plan
	Kinds    schema.Kinds
	Document *schema.Document // its Site says whose things are ours; Resources is empty to destroy
	Observed Observation
	Recorded []state.Record
	Servers  []state.Server      // that answered
	Known    []state.Server      // on which the recorded things were made
	Rest     bool                // Drift also reports changes of fields that are not stated, and what another site has taken
	Begun    map[schema.Ref]bool // what an open run has yet to settle: its state is the run's doing
	Traits   func(scope, kind string) (providers.Traits, bool)
	Options  Options
	Part     *Part // what else there is, when this covers only a part of the site; nil: it covers all of it
}

// A Part says what the inputs of a plan leave out. There is no step for any of it.
type Part struct {
	Declared int                                    // number of resources of the whole document
	Of       int                                    // number of all that are declared, or no longer are
	Since    int64                                  // serial of the revision since which the document has changed for this part
	Owners   map[schema.Place]map[string]schema.Ref // owners of observed things that belong to resources which were left out, by external id
}

// Options narrow a plan. Patterns are refs in which * stands for any part of a word: gpu-01/ovs.*/br-*.
type Options struct {
	Destroy    bool     // nothing is desired
	Target     []string // only these, and what they need
	Exclude    []string // all but these, and what needs them
	Replace    []string // replace these even if nothing differs
	MaxDestroy string   // overrides the document's policy: "3", "10%"; empty: the document's, else 10 %
	Unlimited  bool     // no budget: the operator asked for a destruction by name

	// ExcludeRefs is as Exclude, of refs as they are: a name may contain what has a meaning in a pattern. One that is nowhere is no
	// error.
	ExcludeRefs map[schema.Ref]bool

	AllowMissing bool // continue although most of what was made is no longer observed
	Sweep        bool // remove the strays that are known to have been given up, and do nothing else
}

// Matches reports whether a ref matches a pattern.
func Matches(pattern string, r schema.Ref) bool {
	parts := strings.Split(pattern, "/")
	if len(parts) != 3 {
		return false
	}
	for i, word := range []string{r.Scope, r.Kind, r.Name} {
		if ok, err := path.Match(parts[i], word); err != nil || !ok {
			return false
		}
	}
	return true
}

// ExternalID returns the id of one incarnation of a resource: a UUID derived from the site's, the ref and the
// incarnation, so that it is known before the thing exists and the result of a create can be looked up before it is
// tried again; or the natural key for kinds that have one, as their traits say.
func ExternalID(site string, t providers.Traits, ref schema.Ref, incarnation int, spec schema.Object) string {
	if t.ID == "" {
		space, err := uuid.Parse(site)
		if err != nil {
			space = uuid.NewSHA1(uuid.NameSpaceURL, []byte("converge.dev/"+site))
		}
		return uuid.NewSHA1(space, appendRef(ref, incarnation)).String()
	}
	var b strings.Builder
	rest := t.ID
	for {
		before, after, ok := strings.Cut(rest, "{")
		b.WriteString(before)
		if !ok {
			return b.String()
		}
		field, tail, _ := strings.Cut(after, "}")
		if field == "name" {
			b.WriteString(ref.Name)
		} else {
			s, _ := spec[field].(string)
			b.WriteString(s)
		}
		rest = tail
	}
}

func appendRef(r schema.Ref, incarnation int) []byte {
	b := make([]byte, 0, 64)
	b = append(append(b, r.String()...), '/')
	return strconv.AppendInt(b, int64(incarnation), 10)
}
