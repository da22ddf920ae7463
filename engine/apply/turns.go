package apply

// turns bound the number of concurrent steps: a step that acts holds one. A step that only waits for the far side gives its
// turn back meanwhile, so that an operation which takes an hour there blocks nothing here. A step that is done gives it back
// before its outcome is written, because it acts no more: what the disk takes for that delays no call, and more records are
// written at once.
//
// There are two exceptions. A step that changes or replaces what is in use keeps its turn until that is ready again and this
// is written, which bounds how many things are out of order at the same time. And where there is only one turn, the steps run
// one after the other.
type turns struct {
	taken chan struct{}
	given chan struct{} // receives a value when a turn is given back
}

// waiting is how many steps may have begun for each turn, including those that wait. It bounds how many are undone when one
// of them fails, and for how many one look asks.
const waiting = 16

func newTurns(n int) *turns {
	return &turns{taken: make(chan struct{}, n), given: make(chan struct{}, 1)}
}

// most returns how many steps may have begun.
func (t *turns) most() int {
	if cap(t.taken) == 1 {
		return 1
	}
	return waiting * cap(t.taken)
}

// try takes a turn if one is free, and reports whether it did.
func (t *turns) try() bool {
	select {
	case t.taken <- struct{}{}:
		return true
	default:
		return false
	}
}

// take waits for a turn. A step that acts waits for no other, so one becomes free.
func (t *turns) take() { t.taken <- struct{}{} }

// give returns a turn.
func (t *turns) give() {
	<-t.taken
	select {
	case t.given <- struct{}{}:
	default:
	}
}
