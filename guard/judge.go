package guard

import (
	"fmt"
	"time"
)

// Limits of how long a guard waits.
const (
	minWithin = 10 * time.Second
	maxWithin = 24 * time.Hour

	// retention is how long the answer of a guard that has ended is kept.
	retention = 24 * time.Hour
)

// Terms are what decides about a guard. Times are those of the clock that runs since the machine was started.
type terms struct {
	Epoch    int64         `json:"epoch"` // of the lock holder who armed it
	Boot     string        `json:"boot"`  // id of the boot in which the deadline counts
	Deadline time.Duration `json:"deadline"`
	Within   time.Duration `json:"within"` // from the first arming to the deadline
}

// A verdict is what is decided about the changes of a guard.
type verdict string

const (
	open    verdict = "" // nothing is decided
	kept    verdict = "kept"
	undoing verdict = "undoing"
)

// A standing is all that is known of a guard.
type standing struct {
	terms
	verdict verdict
	decided moment // of the verdict
	undone  bool   // the undo is complete, and that is stored
	damaged bool   // a file of it cannot be read
}

// A moment is a time in one boot.
type moment struct {
	Boot string        `json:"boot"`
	At   time.Duration `json:"at"`
}

// An act is what the program has to do about a guard.
type act string

const (
	wait   act = "wait"   // until something changes, or the time is over that judge returns
	undo   act = "undo"   // decide so unless that is done, then restore what was
	forget act = "forget" // remove its files
	hold   act = "hold"   // nothing: a person has to look
)

// judge returns what has to be done about a guard, and for how long that is to wait.
func judge(s standing, now moment) (act, time.Duration) {
	switch {
	case s.damaged:
		return hold, 0
	case s.verdict == open && (s.Boot != now.Boot || now.At >= s.Deadline):
		return undo, 0
	case s.verdict == open:
		return wait, s.Deadline - now.At
	case s.verdict == undoing && !s.undone:
		return undo, 0
	}
	since := s.decided.At
	if s.decided.Boot != now.Boot { // it was at least as long ago as the machine runs
		since = 0
	}
	if left := since + retention - now.At; left > 0 {
		return wait, left
	}
	return forget, 0
}

// admit returns why no more changes can be armed under a guard.
func admit(s standing, epoch int64, now moment) error {
	switch do, _ := judge(s, now); {
	case s.damaged:
		return fmt.Errorf("its files are damaged")
	case s.verdict == kept:
		return fmt.Errorf("its changes are already kept")
	case s.verdict == undoing || do == undo:
		return fmt.Errorf("its time is over")
	case s.Epoch != epoch:
		return fmt.Errorf("it belongs to the lock holder with epoch %d, and the change to the one with epoch %d", s.Epoch, epoch)
	}
	return nil
}

// settle returns the verdict that a request to keep what was changed leads to, or to undo it. A verdict stays what it is, and
// so does a guard whose time is nearly over: what is decided must still reach the disk and the site.
func settle(s standing, keep bool, now moment) verdict {
	margin := max(minWithin, s.Within/5)
	switch {
	case s.verdict != open:
		return s.verdict
	case keep && s.Boot == now.Boot && s.Deadline-now.At >= margin:
		return kept
	}
	return undoing
}
