package crash

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"

	"converge.dev/converge/engine/plan"
)

// A family says what a plan is meant to reach.
type family string

const (
	good    family = "good"    // everything can be undone, but need not be
	failing family = "failing" // a step fails, and everything is undone
	final   family = "final"   // some steps cannot be undone; sometimes one of them fails
)

func familyOf(seed int) family { return []family{failing, final, failing, final, good}[seed%5] }

type object = map[string]any

// A drawing is a pair of documents and the world that they begin with.
type drawing struct {
	before, after object
	foreign       object // things without a creator, by scope, kind and id
}

// draw draws a pair of documents. Every pair contains creates, updates and deletes of what can be undone, so that every
// undo is reached; the rest is random.
func draw(r *rand.Rand, f family) drawing {
	maybe := func() bool { return r.IntN(2) == 0 }
	document := func(carbide, nodes object) object {
		return object{
			"apiVersion": "converge.dev/v1",
			"site":       object{"name": "fra1", "id": "5a2f0a4e-8d1f-4f0e-9b62-0f3f1b2c3d4e"},
			"policy":     object{"max_destroy": "100%"},
			"carbide":    carbide, "nodes": nodes,
		}
	}
	node := func() (bridges, ports object) {
		bridges = object{"main": object{"fail_mode": "secure"}, "side": object{}}
		ports = object{"up": object{"bridge": "main", "tag": 1 + r.IntN(100)}}
		return bridges, ports
	}
	tenant := object{"acme": object{"display_name": "Acme"}}
	vpcs, vpcsAfter := object{}, object{}
	for i := range 1 + r.IntN(3) {
		name := fmt.Sprintf("vpc-%d", i)
		vpcs[name] = object{"tenant": "acme", "labels": object{"rev": "1"}}
		vpcsAfter[name] = object{"tenant": "acme", "labels": object{"rev": fmt.Sprint(1 + r.IntN(2))}}
	}
	keysets, keysetsAfter := object{"ops": object{"tenant": "acme"}}, object{"ops": object{"tenant": "acme"}}
	segments, segmentsAfter := object{}, object{}
	if maybe() {
		segments["seg-0"] = object{"vpc": "vpc-0", "prefixes": []any{object{"prefix": "10.0.0.0/24"}}}
		maps.Copy(segmentsAfter, segments)
	}
	vpcsAfter["fresh"] = object{"tenant": "acme"}
	if maybe() {
		keysetsAfter["fresh"] = object{"tenant": "acme"}
	}
	if maybe() {
		segmentsAfter["fresh"] = object{"vpc": "fresh", "prefixes": []any{object{"prefix": "10.9.0.0/24"}}}
	}
	if f == final || f == failing && maybe() { // what the site has comes back only under a new identity
		vpcs["spare"] = object{"tenant": "acme"}
		if maybe() {
			keysets["spare"] = object{"tenant": "acme"}
		}
		if segments["seg-0"] != nil && maybe() { // replaced
			segmentsAfter["seg-0"] = object{"vpc": "vpc-0", "prefixes": []any{object{"prefix": "10.1.0.0/24"}}}
		}
	}

	nodes, nodesAfter, foreign := object{}, object{}, object{}
	count := 1 + r.IntN(3)
	for i := range count {
		bridges, ports := node()
		bridgesAfter, portsAfter := maps.Clone(bridges), maps.Clone(ports)
		first := i == 0
		if first || maybe() {
			bridgesAfter["main"] = object{"fail_mode": "standalone"}
		}
		if first || maybe() {
			bridgesAfter["new"] = object{}
			portsAfter["leg"] = object{"bridge": "new"}
		}
		if first || maybe() {
			bridges["gone"] = object{}
			if maybe() {
				ports["gone-leg"] = object{"bridge": "gone"}
			}
		}
		if maybe() { // a port cannot move, so it is replaced
			ports["moved"] = object{"bridge": "side", "tag": 7}
			portsAfter["moved"] = object{"bridge": "main", "tag": 7}
		}
		if maybe() {
			spec, want := object{"stp_enable": true}, object{"stp_enable": maybe(), "lifecycle": object{"adopt": "match"}}
			name := fmt.Sprintf("node-%d", i)
			foreign[name] = object{"ovs.bridge": object{"theirs": object{"spec": spec}}}
			bridgesAfter["theirs"] = want
		}
		name := fmt.Sprintf("node-%d", i)
		nodes[name] = object{"ovs": object{"bridge": bridges, "port": ports}}
		nodesAfter[name] = object{"ovs": object{"bridge": bridgesAfter, "port": portsAfter}}
	}
	return drawing{
		before:  document(object{"tenant": tenant, "vpc": vpcs, "tenant_keyset": keysets, "network_segment": segments}, nodes),
		after:   document(object{"tenant": tenant, "vpc": vpcsAfter, "tenant_keyset": keysetsAfter, "network_segment": segmentsAfter}, nodesAfter),
		foreign: foreign,
	}
}

// A fault is one of package fake, as in the world's file.
type fault struct {
	Op     string `json:"op"`
	Ref    string `json:"ref"`
	Times  int    `json:"times,omitempty"` // -1: always
	Class  string `json:"class,omitempty"`
	Effect string `json:"effect,omitempty"`
	Delay  string `json:"delay,omitempty"`
}

// faults draws what goes wrong while a plan is carried out: the step that fails permanently, where the family requires one,
// and replies that are lost or precede their effect.
func faults(r *rand.Rand, f family, p *plan.Plan) (all []fault, exit int, err error) {
	var steps, late []*plan.Step
	twice := map[string]int{}
	for i := range p.Steps {
		twice[p.Steps[i].Ref.String()]++
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Action == plan.Adopt || s.Action == plan.Forget || twice[s.Ref.String()] > 1 {
			continue // no call, or one that would have to succeed in the other direction
		}
		if i < p.NoReturn {
			steps = append(steps, s)
		} else {
			late = append(late, s)
		}
	}
	var fails *plan.Step
	switch {
	case f == failing:
		exit = 3
		// The port on the new bridge of the last node is among the last steps: the others are done, or in progress.
		for _, s := range steps {
			if s.Ref.Name == "leg" && s.Action == plan.Create {
				fails = s
			}
		}
		if r.IntN(3) == 0 { // one in the middle
			fails = steps[len(steps)/2+r.IntN(len(steps)-len(steps)/2)]
		}
	case f == final && len(late) > 1 && !late[0].Undo.Reversible() && r.IntN(2) == 0:
		exit, fails = 4, late[len(late)-1] // the others begin before it, so the start can no longer be reached
	}
	if f == failing && fails == nil || f == final && p.NoReturn == len(p.Steps) || f == good && p.NoReturn != len(p.Steps) {
		return nil, 0, fmt.Errorf("the plan is not of the family %s: %d steps, of which %d can be undone", f, len(p.Steps), p.NoReturn)
	}
	if fails != nil {
		all = append(all, fault{Op: string(fails.Action), Ref: fails.Ref.String(), Class: "invalid", Times: -1})
	}
	var unseen *plan.Step
	if exit == 3 && fails.Ref.Name == "leg" && r.IntN(2) == 0 {
		// It is unknown whether the bridge for the port was created: the reply is lost, and so is the first observation.
		for _, s := range steps {
			if s.Action == plan.Create && s.Ref.Name == "new" && s.Ref.Scope == fails.Ref.Scope {
				unseen = s
				all = append(all, fault{Op: "create", Ref: s.Ref.String(), Effect: "after"}, fault{Op: "observe", Ref: s.Ref.String(), Class: "denied"})
			}
		}
	}
	for _, s := range append(steps, late...) {
		if s == fails || s == unseen || r.IntN(8) != 0 {
			continue
		}
		lost := fault{Op: string(s.Action), Ref: s.Ref.String(), Effect: "after"}
		if s.Action == plan.Create && r.IntN(2) == 0 {
			lost.Effect, lost.Delay = "late", "5ms" // no longer than a new process needs to begin
		}
		if exit == 3 && r.IntN(2) == 0 { // while it is undone
			lost = fault{Op: string(s.Inverse()), Ref: s.Ref.String(), Effect: "after"}
		}
		all = append(all, lost)
	}
	return all, exit, nil
}

func text(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil { // documents are plain data
		panic(err)
	}
	return b
}
