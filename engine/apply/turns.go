package apply

// turns bound how many steps are under way at the same time: a step that acts has one. One that only waits for the far side to
// bring about what it was asked for gives its turn back meanwhile, so that what takes an hour over there stops nobody here.
//
// Two things keep theirs. A step that changes what is in use, or replaces it, has it until that is ready again: so that many
// at the most are out of order at the same time. And where there is one turn alone, somebody wants one thing after the other.
type turns struct {
	taken chan struct{}
	given chan struct{} // gets a value when a turn is given back
}

// waiting is how many times as many steps as have turns may have begun, those that wait included: so many are undone at the
// most when one of them fails, and are looked at again and again.
const waiting = 16

func newTurns(n int) *turns {
	return &turns{taken: make(chan struct{}, n), given: make(chan struct{}, 1)}
}

// most is how many steps may have begun.
func (t *turns) most() int {
	if cap(t.taken) == 1 {
		return 1
	}
	return waiting * cap(t.taken)
}

// try takes a turn if there is one.
func (t *turns) try() bool {
	select {
	case t.taken <- struct{}{}:
		return true
	default:
		return false
	}
}

// take waits for a turn. Who acts waits for nobody, so it comes.
func (t *turns) take() { t.taken <- struct{}{} }

// give gives a turn back.
func (t *turns) give() {
	<-t.taken
	select {
	case t.given <- struct{}{}:
	default:
	}
}
