package wire

import (
	"crypto/sha256"
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
	bytes int // of all pages
}

// NewMemory returns an empty memory of those kinds for which keeps returns true; nil: of none. It must not for a kind whose things may
// show secrets.
func NewMemory(keeps func(kind string) bool) *Memory { return &Memory{keeps: keeps} }

// Forget empties the memory.
func (m *Memory) Forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lists, m.bytes = nil, 0
}

// mostKept is how much a memory keeps, as [page.bytes]: who sends the lists may be in the wrong hands. It is some 10 000 things.
const mostKept = 8 << 20

type place struct{ scope, kind string }

// A page is a part of a list.
type page struct {
	things []providers.Thing

	// What is computed of it when it may be kept. The digest is this side's: of what came, whatever the other side says.
	digest []byte
	bytes  int // of its things as messages, and what each costs beside that
}

// A listing is a list that is going on, and what the memory has of the kind. The zero listing keeps nothing.
type listing struct {
	m    *Memory // nil: the list is not kept
	at   place
	last []page
	own  bool // what is yielded is in a memory, too

	pages []page
	bytes int
	text  []byte // whose memory is used again
}

// list begins a list.
func (m *Memory) list(w *wirepb.Where) *listing {
	if m == nil || m.keeps == nil || !m.keeps(w.GetKind()) {
		return &listing{}
	}
	l := &listing{m: m, at: place{w.GetScope(), w.GetKind()}, own: true}
	m.mu.Lock()
	defer m.mu.Unlock()
	l.last = m.lists[l.at]
	return l
}

// measure completes a page that has come as these messages.
func (l *listing) measure(p *page, sent []*wirepb.Thing) {
	if l.m == nil {
		return
	}
	l.text = l.text[:0]
	for _, th := range sent {
		var err error
		if l.text, err = appendThing(l.text, th); err != nil {
			l.forget()
			return
		}
	}
	const each = 512 // bytes, about
	digest := sha256.Sum256(l.text)
	p.digest, p.bytes = digest[:], len(l.text)+each*len(sent)
}

// add adds a page. A list that becomes too large is not kept.
func (l *listing) add(p page) {
	if l.bytes += p.bytes; l.m == nil || l.bytes > mostKept {
		l.forget()
		return
	}
	l.pages = append(l.pages, p)
}

// callers returns a thing that is the caller's own.
func (l *listing) callers(th *providers.Thing) providers.Thing {
	c := *th
	if l.own {
		c.Spec, c.Status, c.Unfilled = th.Spec.Clone(), th.Status.Clone(), slices.Clone(th.Unfilled)
	}
	return c
}

// keep makes the list, which is complete, the last one.
func (l *listing) keep() { l.replace(l.pages, l.bytes) }

// forget makes the memory have no list of the kind, and keeps this one from becoming it.
func (l *listing) forget() {
	l.replace(nil, 0)
	l.m, l.pages = nil, nil
}

func (l *listing) replace(pages []page, bytes int) {
	if l.m == nil {
		return
	}
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	for _, p := range l.m.lists[l.at] {
		l.m.bytes -= p.bytes
	}
	delete(l.m.lists, l.at)
	if len(pages) == 0 || l.m.bytes+bytes > mostKept {
		return
	}
	if l.m.lists == nil {
		l.m.lists = map[place][]page{}
	}
	l.m.lists[l.at] = pages
	l.m.bytes += bytes
}
