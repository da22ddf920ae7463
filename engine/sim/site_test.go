package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
)

// late is how late a call of unknown outcome may have its effect, where a profile says so.
const late = 30 * time.Second

// lag is by how much a list lags, where a profile says so.
const lag = 1500 * time.Millisecond

// profiles are the ways in which kinds of real systems behave, by name.
var profiles = map[string]providers.Traits{
	"burned":       of(fake.SiteTraits(), func(t *providers.Traits) { t.EffectWithin = late }), // a VPC of Carbide, with versions
	"burned-blind": of(fake.SiteTraits(), func(t *providers.Traits) { t.EffectWithin, t.Delete = late, providers.Blind }),
	"burned-slow": of(fake.SiteTraits(), func(t *providers.Traits) {
		t.EffectWithin, t.ReadyWithin, t.GoneWithin = late, time.Minute, time.Minute
	}),
	"unmarked": of(fake.SiteTraits(), func(t *providers.Traits) {
		t.Mark, t.IDsNotReusable, t.EffectWithin, t.Delete, t.ReadyWithin = false, false, late, providers.Blind, time.Minute
	}),
	"named":            fake.NodeTraits(),
	"named-late":       of(fake.NodeTraits(), func(t *providers.Traits) { t.EffectWithin = late }),
	"named-blind":      of(fake.NodeTraits(), func(t *providers.Traits) { t.EffectWithin, t.Delete = late, providers.Blind }),
	"named-blind-make": of(fake.NodeTraits(), func(t *providers.Traits) { t.EffectWithin, t.Create = late, providers.Blind }),
	"named-slow":       of(fake.NodeTraits(), func(t *providers.Traits) { t.ReadyWithin, t.GoneWithin = time.Minute, time.Minute }),
	"named-eventual":   of(fake.NodeTraits(), func(t *providers.Traits) { t.Eventual, t.ReadyWithin, t.GoneWithin = true, time.Minute, time.Minute }),
	"burned-eventual": of(fake.SiteTraits(), func(t *providers.Traits) {
		t.EffectWithin, t.Eventual, t.ReadyWithin, t.GoneWithin = late, true, time.Minute, time.Minute
	}),
	"never-deleted": of(fake.NodeTraits(), func(t *providers.Traits) { t.Delete, t.EffectWithin = providers.Never, late }),
	"restart":       of(fake.NodeTraits(), func(t *providers.Traits) { t.UndoUpdate, t.UndoDelete = providers.Restart, providers.Restart }),
}

func of(t providers.Traits, change func(*providers.Traits)) providers.Traits {
	change(&t)
	return t
}

// choices are the profiles that a kind may have. A kind that others refer to by a field that cannot change is deletable.
var choices = map[string][]string{
	"far.net":     {"burned", "burned-blind", "burned-slow", "unmarked", "named-late", "burned-eventual", "named-blind-make"},
	"far.guard":   {"named-blind", "burned", "burned-blind", "named-late", "never-deleted", "named-eventual", "unmarked"},
	"far.host":    {"burned", "burned-blind", "burned-slow", "named-blind", "named-blind-make", "burned-eventual"},
	"near.bridge": {"named", "named-late", "named-slow", "named-eventual", "restart", "never-deleted"},
	"near.port":   {"named", "named-late", "named-blind", "named-blind-make", "named-eventual", "restart"},
}

// document draws the resources of a document: some of a fixed set of names, with references that exist.
func document(rng *rand.Rand, deletable func(kind string) bool) map[string]string {
	m := map[string]string{"site/far.guard/always": fmt.Sprintf(`{"size":%d}`, rng.IntN(3))}
	some := func() bool { return rng.IntN(2) == 0 }
	most := func() bool { return rng.IntN(3) > 0 }
	labels := func() string {
		return []string{`{}`, `{"env":"1"}`, `{"env":"2"}`, `{"env":"1","team":"2"}`}[rng.IntN(4)]
	}
	var nets, guards []string
	cidrs := 2
	if !deletable("far.net") || !deletable("far.host") {
		cidrs = 1
	}
	for i := range 2 {
		name := fmt.Sprintf("net%d", i)
		if most() {
			nets = append(nets, name)
			m["site/far.net/"+name] = fmt.Sprintf(`{"cidr":"10.%d.%d.0/24","labels":%s,"size":%d}`, i, rng.IntN(cidrs), labels(), rng.IntN(3))
		}
	}
	if some() {
		guards = append(guards, "guard0")
		m["site/far.guard/guard0"] = fmt.Sprintf(`{"size":%d}`, rng.IntN(3))
	}
	for i := range 3 {
		if len(nets) == 0 || some() {
			continue
		}
		guard := ""
		if len(guards) > 0 && some() {
			guard = `,"guard":"` + guards[0] + `"`
		}
		m[fmt.Sprintf("site/far.host/host%d", i)] = fmt.Sprintf(`{"net":"%s","size":%d,"labels":%s%s}`, nets[rng.IntN(len(nets))], rng.IntN(3), labels(), guard)
	}
	for _, node := range []string{"n1", "n2"} {
		if !most() {
			continue
		}
		m[node+"/near.bridge/br"] = fmt.Sprintf(`{"mode":"%d"}`, rng.IntN(3))
		for i := range 2 {
			if some() {
				m[fmt.Sprintf("%s/near.port/p%d", node, i)] = fmt.Sprintf(`{"bridge":"br","tag":%d,"labels":%s}`, rng.IntN(3), labels())
			}
		}
	}
	return m
}
