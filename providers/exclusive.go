package providers

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"converge.dev/converge/schema"
)

// A Claim is a value that only one thing of a kind can have on the far side at a time.
type Claim struct {
	Of     string // the field of Traits.Exclusive
	Value  string
	Within string       // scope of the claim: things with the same value here; empty: all things
	Block  netip.Prefix // set for an address block, which excludes all blocks that overlap it
}

// String returns a text for people: prefixes.prefix 10.0.0.0/24.
func (c Claim) String() string { return strings.Trim(c.Of, "{}") + " " + c.Value }

// Excludes reports whether two things cannot have the two claims at the same time.
func (c Claim) Excludes(d Claim) bool {
	if c.Of != d.Of || c.Within != d.Within {
		return false
	}
	return c.Value == d.Value || c.Block.IsValid() && d.Block.IsValid() && c.Block.Overlaps(d.Block)
}

// Claims returns the exclusive values of a thing with a name and a spec.
func (t Traits) Claims(name string, spec schema.Object) []Claim {
	var out []Claim
	for _, of := range t.Exclusive {
		add := func(v any) {
			if v == nil || v == "" {
				return
			}
			c := Claim{Of: of.Field, Value: fmt.Sprint(v)}
			if of.Folded {
				c.Value = strings.ToLower(c.Value)
			}
			if of.Within != "" {
				c.Within, _ = spec[of.Within].(string)
			}
			if p, err := netip.ParsePrefix(c.Value); err == nil {
				c.Block = p.Masked()
			}
			out = append(out, c)
		}
		if of.Field == "{name}" {
			add(name)
			continue
		}
		var walk func(v any, path []string)
		walk = func(v any, path []string) {
			switch v := v.(type) {
			case []any:
				if of.Whole {
					words := make([]string, len(v))
					for i, e := range v {
						words[i] = fmt.Sprint(e)
					}
					slices.Sort(words)
					add(strings.Join(words, " "))
					return
				}
				for _, e := range v {
					walk(e, path)
				}
			case map[string]any:
				if len(path) > 0 {
					walk(v[path[0]], path[1:])
				}
			default:
				if len(path) == 0 {
					add(v)
				}
			}
		}
		walk(map[string]any(spec), strings.Split(of.Field, "."))
	}
	return out
}
