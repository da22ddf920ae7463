package remote

import (
	"slices"
	"time"

	"converge.dev/converge/providers/wire/wirepb"
)

// Work is what a node carries out, and what it has carried out since its process began. Only changes count.
type Work struct {
	Open   []Doing // in the order in which they began
	Done   int
	Failed int       // also those of unknown outcome
	Last   time.Time // when the last one ended; zero: none did
}

// Doing is a change that a node carries out.
type Doing struct {
	Key    string // of idempotency: that of the step at the site
	Ref    string // SCOPE/KIND/NAME
	Action string // create, update, delete
	Since  time.Time
}

// Work returns what the node carries out.
func (n *Node) Work() Work {
	n.mu.Lock()
	defer n.mu.Unlock()
	w := n.work
	w.Open = slices.Clone(w.Open)
	return w
}

// begin takes note of a change that begins; the returned function, of its end.
func (n *Node) begin(action string, r *wirepb.CallRequest) (end func(failed bool)) {
	d := Doing{Key: r.GetKey(), Ref: r.GetRef(), Action: action, Since: n.o.Now()}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.work.Open = append(n.work.Open, d)
	return func(failed bool) {
		n.mu.Lock()
		defer n.mu.Unlock()
		if i := slices.Index(n.work.Open, d); i >= 0 {
			n.work.Open = slices.Delete(n.work.Open, i, i+1)
		}
		if n.work.Last = n.o.Now(); failed {
			n.work.Failed++
		} else {
			n.work.Done++
		}
	}
}
