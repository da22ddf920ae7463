package carbidesim

import (
	"net/netip"
	"slices"
)

// prefixes is the set of address prefixes that rows hold. The site keeps them disjoint, so the neighbours in address
// order are the only candidates for an overlap.
type prefixes[T any] struct {
	of     func(*T) []netip.Prefix
	sorted []held
}

// held is a prefix and the id of the row that has it.
type held struct {
	prefix netip.Prefix
	id     string
}

func newPrefixes[T any](of func(*T) []netip.Prefix) *prefixes[T] {
	return &prefixes[T]{of: of}
}

func (p *prefixes[T]) find(a netip.Addr) (int, bool) {
	return slices.BinarySearchFunc(p.sorted, a, func(h held, a netip.Addr) int { return h.prefix.Addr().Compare(a) })
}

// overlapping returns the holders of parts of the prefix, in address order.
func (p *prefixes[T]) overlapping(prefix netip.Prefix) []held {
	i, _ := p.find(prefix.Addr())
	first := i
	if i > 0 && p.sorted[i-1].prefix.Overlaps(prefix) {
		first = i - 1
	}
	for i < len(p.sorted) && p.sorted[i].prefix.Overlaps(prefix) {
		i++
	}
	return p.sorted[first:i]
}

func (p *prefixes[T]) add(id string, row *T) {
	for _, prefix := range p.of(row) {
		i, _ := p.find(prefix.Addr())
		p.sorted = slices.Insert(p.sorted, i, held{prefix, id})
	}
}

func (p *prefixes[T]) remove(_ string, row *T) {
	for _, prefix := range p.of(row) {
		if i, ok := p.find(prefix.Addr()); ok {
			p.sorted = slices.Delete(p.sorted, i, i+1)
		}
	}
}

// parseCIDR accepts a prefix without host bits.
func parseCIDR(text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return prefix, invalid("invalid prefix %q", text)
	}
	if prefix.Masked() != prefix {
		return prefix, invalid("prefix %s has host bits set", text)
	}
	return prefix, nil
}

// within reports whether one of the outer prefixes contains the inner one.
func within(inner netip.Prefix, outer []netip.Prefix) bool {
	return slices.ContainsFunc(outer, func(o netip.Prefix) bool {
		return o.Bits() <= inner.Bits() && o.Overlaps(inner)
	})
}

// linkBits returns the length of a link network, the two addresses between a host and its DPU.
func linkBits(p netip.Prefix) int { return p.Addr().BitLen() - 1 }

// links counts the link networks in a prefix; a single address counts as one, and the count is capped.
func links(p netip.Prefix) uint64 {
	switch n := linkBits(p) - p.Bits(); {
	case n < 0:
		return 1
	case n > 63:
		return 1<<64 - 1
	default:
		return 1 << n
	}
}

// lastAddr returns the highest address of an IPv4 prefix, its broadcast address.
func lastAddr(p netip.Prefix) netip.Addr {
	a := p.Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		a[bit/8] |= 1 << (7 - bit%8)
	}
	return netip.AddrFrom4(a)
}
