package faults

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/carbidetest"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
	"converge.dev/converge/schema/load"
)

// siteID is the UUID of the site of all cells.
const siteID = "6a1d0f5e-4b7c-4e0a-8f2b-93c5d1e7a640"

// A scene is what happens to x.
type scene struct {
	name  string // of the kind, or what is particular about it
	way   string // create, update, delete
	ref   schema.Ref
	first *schema.Document
	last  *schema.Document

	otherwise map[string]string // cells that end differently from what the traits say
	internal  string            // what a create refused with INTERNAL or ALREADY_EXISTS means; empty: "not now" and "taken"
}

func (s *scene) String() string { return s.name + "/" + s.way }

// hostIDs are the hosts of every site: the same options result in the same machines.
var hostIDs = sync.OnceValues(func() ([]string, error) { return hostsOf(worldOptions()) })

func hostsOf(o carbidesim.Options) ([]string, error) {
	w, err := carbidesim.New(o)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, o := range w.Objects() {
		if o.Kind == "machine" && strings.HasPrefix(o.ID, "fm100ht") {
			ids = append(ids, o.ID)
		}
	}
	return ids, w.Close()
}

// worldOptions returns the options of every site. Everything is immediate, except that ids of NVLink partitions become free
// again only after the late bound, as on a real site.
func worldOptions() carbidesim.Options {
	timing := carbidesim.FastTiming
	timing.Purge = late
	return carbidesim.Options{
		Timing: timing, Hosts: carbidesim.Hosts{Count: 2},
		Rules: carbidesim.Rules{
			RoutingProfiles: []carbidesim.RoutingProfile{{Name: "internal"}},
			Peering:         carbidesim.PeeringMixed,
		},
	}
}

// compiled is the embedded schema, compiled once.
var compiled = sync.OnceValues(kinds.New)

// preamble returns the start of every document: what the CUE of [carbidetest] may use.
func preamble(host, other, bare string) string {
	return fmt.Sprintf(`apiVersion: "converge.dev/v1"
site: {name: "grid", id: %q}
policy: max_destroy: "100%%"
_host: %q, _other: %q, _bare: %q
_secret: from: "env:SECRET"
_meta: {description: "some", labels: {n: "1", empty: ""}}
`, siteID, host, other, bare)
}

// scenes loads the documents of all scenes of all kinds, so that every method of theirs is called.
func scenes(t *testing.T) []*scene {
	t.Helper()
	known, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	hosts, err := hostIDs()
	if err != nil || len(hosts) == 0 {
		t.Fatalf("the site has no machines: %v", err)
	}
	document := func(needs, noun, name, spec string) *schema.Document {
		text := preamble(hosts[0], "", "") + "carbide: {\n\ttenant: acme: {}\n\t" + needs + "\n"
		if spec != "" {
			text += fmt.Sprintf("\t%s: %q: %s\n", noun, name, spec)
		}
		doc, ds := load.Document(context.Background(), known, load.Options{}, load.Source{Name: "grid.cue", Data: []byte(text + "}\n")})
		if doc == nil {
			t.Fatalf("%v\n%s", ds.Err(), text)
		}
		return doc
	}
	var all []*scene
	for _, k := range carbidetest.Kinds() {
		for _, s := range k.Scenes {
			name, ways := "x1", cmp.Or(s.Ways, "create update delete")
			if s.OnHost {
				name = hosts[0]
			}
			ref := schema.Ref{Scope: schema.ScopeSite, Kind: k.Name(), Name: name}
			otherwise := map[string]string{}
			for _, o := range s.Otherwise {
				maps.Copy(otherwise, o.Ends)
			}
			none, one := document(s.Needs, k.Noun, name, ""), document(s.Needs, k.Noun, name, s.One)
			for _, way := range strings.Fields(ways) {
				sc := &scene{name: strings.TrimSpace(k.Noun + " " + s.As), way: way, ref: ref, otherwise: otherwise, internal: k.Internal}
				switch way {
				case "create":
					sc.first, sc.last = none, one
				case "delete":
					sc.first, sc.last = one, none
				case "update":
					if s.Two == "" {
						continue
					}
					sc.first, sc.last = one, document(s.Needs, k.Noun, name, s.Two)
				}
				all = append(all, sc)
			}
		}
	}
	return all
}
