package view

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"converge.dev/converge/engine/survey"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// MaskItem returns an item without the values of secret fields.
func MaskItem(i survey.Item, k *schema.Kind) survey.Item {
	if i.Spec != nil {
		i.Spec, _ = mask(k, i.Spec)
	}
	return i
}

// InventoryText returns an inventory for people: the number and health of each kind, then what is not well.
func InventoryText(inv *survey.Inventory, s Style) string {
	t := planText{Style: s}
	counts := map[schema.Place]map[survey.Health]int{}
	total, managed := 0, 0
	var unwell []survey.Item
	for _, i := range inv.Items {
		p := schema.Place{Scope: i.Scope, Kind: i.Kind}
		if counts[p] == nil {
			counts[p] = map[survey.Health]int{}
		}
		if i.Deleted != nil {
			counts[p]["deleted"]++
			continue
		}
		counts[p][i.Health]++
		total++
		if !i.Ref.IsZero() {
			managed++
		}
		if i.Health == survey.HealthError || i.Health == survey.HealthWarn {
			unwell = append(unwell, i)
		}
	}
	changed := ""
	if inv.Since > 0 {
		changed = fmt.Sprintf(" changed since revision %d", inv.Since)
	}
	t.line("%s  %s", t.paint(bold, fmt.Sprintf("%s%s, %d of them managed.", count(total, "object"), changed, managed)),
		t.paint(dim, fmt.Sprintf("site %s, revision %d", inv.Site.Name, inv.Revision)))
	if len(counts) > 0 {
		t.line("")
	}
	width := 0
	for p := range counts {
		width = max(width, len(p.String()))
	}
	for _, p := range slices.SortedFunc(maps.Keys(counts), func(a, b schema.Place) int {
		return schema.Ref{Scope: a.Scope, Kind: a.Kind}.Compare(schema.Ref{Scope: b.Scope, Kind: b.Kind})
	}) {
		var parts []string
		for _, h := range []survey.Health{survey.HealthOK, survey.HealthWarn, survey.HealthError, survey.HealthUnknown, "deleted"} {
			if n := counts[p][h]; n > 0 {
				parts = append(parts, fmt.Sprintf("%d %s", n, h))
			}
		}
		t.line("  %s  %s", pad(clean(p.String()), width), strings.Join(parts, ", "))
	}
	if len(unwell) > 0 {
		t.head("Unhealthy or in transition:")
		for _, i := range unwell {
			color := yellow
			if i.Health == survey.HealthError {
				color = red
			}
			state := string(i.State)
			if i.State == providers.Ready { // but not well
				state = string(i.Health)
			}
			t.line("  %s %s/%s/%s  %s", t.paint(color, state), clean(i.Scope), clean(i.Kind), clean(cmp.Or(i.Name, i.ID)), clean(i.Detail))
		}
	}
	t.places("Unknown, so the inventory is incomplete:", inv.Unknown)
	return t.b.String()
}
