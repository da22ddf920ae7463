// Package survey says what a site has, whoever made it: as resources for a document, as records for a store that was lost, and
// as an inventory. It is pure: a [Survey] holds what was observed and what is recorded; observing is up to the engine.
//
// # Words
//
// A [Discovered] is an existing thing written as a resource. A [Leftover] cannot be written as one. A [Choice] says which finds are
// wanted, and which of them others manage. An [Item] is a thing as an [Inventory] reports it.
package survey

import (
	"cmp"
	"slices"
	"strings"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A Survey is everything that the providers of a site report, with what is recorded about it.
type Survey struct {
	Site     schema.Site
	Observed plan.Observation
	Recorded []state.Record
	Traits   func(scope, kind string) (providers.Traits, bool)
	Servers  []Server
}

// A Server is a far side that answered, as it describes itself.
type Server struct {
	state.Server
	Build string // the software version that it runs, which implies the version of its API; empty when it does not report one
}

// Unknown lists what could not be observed completely. What the far side does not support was not observed either: an
// older server may have such things all the same.
func (s *Survey) Unknown() []plan.Unknown {
	var list []plan.Unknown
	for at, why := range s.Observed.Unknown {
		list = append(list, plan.Unknown{Scope: at.Scope, Kind: at.Kind, Error: why})
	}
	for at, why := range s.Observed.Unsupported {
		list = append(list, plan.Unknown{Scope: at.Scope, Kind: at.Kind, Error: "the server does not support it: " + strings.TrimPrefix(why, "observe "+at.Kind+": ")})
	}
	slices.SortFunc(list, func(a, b plan.Unknown) int {
		return cmp.Or(strings.Compare(a.Scope, b.Scope), strings.Compare(a.Kind, b.Kind))
	})
	return list
}

// recorded returns the names of recorded resources by external id.
func (s *Survey) recorded() plan.Names {
	names := plan.Names{}
	for i := range s.Recorded {
		if r := &s.Recorded[i]; !r.Gone {
			names.Put(r.Ref, r.ID)
		}
	}
	return names
}
