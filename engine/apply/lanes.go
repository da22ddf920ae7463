package apply

import (
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/schema"
)

// lanes hold back steps of kinds whose calls the far side makes one after the other (Traits.Serial): more of them would only occupy
// turns that steps of other kinds can use. A lane is a kind in a scope. They belong to one walk, and to the run's goroutine.
type lanes struct {
	flying map[schema.Place]int
	held   map[schema.Place][]*plan.Step
	ready  []*plan.Step // were held, and may begin
}

// abreast is how many steps of a lane may have begun: while one acts, another one waits for that at the far side, and the intent or the
// outcome of a third is written.
const abreast = 3

func newLanes() *lanes {
	return &lanes{flying: map[schema.Place]int{}, held: map[schema.Place][]*plan.Step{}}
}

// enter reports whether a step may begin. Otherwise it is held until another one of its lane has left.
func (l *lanes) enter(s *plan.Step, serial bool) bool {
	at := s.Ref.Place()
	switch {
	case !serial:
		return true
	case l.flying[at] >= abreast:
		l.held[at] = append(l.held[at], s)
		return false
	}
	l.flying[at]++
	return true
}

// leave takes a step from its lane.
func (l *lanes) leave(s *plan.Step) {
	at := s.Ref.Place()
	if l.flying[at] == 0 { // none of a serial kind
		return
	}
	l.flying[at]--
	if held := l.held[at]; len(held) > 0 {
		l.ready, l.held[at] = append(l.ready, held[0]), held[1:]
	}
}

// pop returns the next step that was held and may try to enter; nil when there is none.
func (l *lanes) pop() *plan.Step {
	if len(l.ready) == 0 {
		return nil
	}
	s := l.ready[0]
	l.ready = l.ready[1:]
	return s
}
