package wire

import (
	"slices"
	"sync"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/wire/wirepb"
)

// A Memory has the lists of kinds as they were last, so that only the pages of a list that differ are sent again and read. The far side
// looks at all things all the same: it says of a page that it is what it was. Its methods are safe for concurrent use.
type Memory struct {
	keeps func(kind string) bool

	mu    sync.Mutex
	lists map[place][]page
}

// NewMemory returns an empty memory of those kinds for which keeps returns true. It must not for a kind whose things may show secrets.
func NewMemory(keeps func(kind string) bool) *Memory {
	return &Memory{keeps: keeps}
}

// mostKept is how large a list may be, in bytes of its objects as JSON, to be kept: who sends it may be in the wrong hands.
const mostKept = 8 << 20

type place struct{ scope, kind string }

func placeOf(w *wirepb.Where) place { return place{w.GetScope(), w.GetKind()} }

// A page is a part of a list.
type page struct {
	digest []byte
	things []providers.Thing
	bytes  int // of their objects as JSON
}

// has reports whether the memory keeps the lists of a kind.
func (m *Memory) has(kind string) bool { return m != nil && m.keeps(kind) }

// last returns the pages of the last list.
func (m *Memory) last(at *wirepb.Where) []page {
	if !m.has(at.GetKind()) {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lists[placeOf(at)]
}

// keep replaces the pages of the last list.
func (m *Memory) keep(at *wirepb.Where, pages []page) {
	if !m.has(at.GetKind()) {
		return
	}
	all := 0
	for _, p := range pages {
		all += p.bytes
	}
	if all > mostKept {
		pages = nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lists == nil {
		m.lists = map[place][]page{}
	}
	m.lists[placeOf(at)] = pages
}

// copyOf returns a thing that shares nothing with th.
func copyOf(th *providers.Thing) providers.Thing {
	c := *th
	c.Spec, c.Status, c.Unfilled = th.Spec.Clone(), th.Status.Clone(), slices.Clone(th.Unfilled)
	return c
}
