package ledger

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	bolt "go.etcd.io/bbolt"
)

// MaxResult is the maximum size of a result in bytes.
const MaxResult = 1 << 20

const (
	keepDefault = 4096
	maxField    = 4 << 10          // bytes of each text of an entry
	skew        = 60 * time.Second // how much the site's clock and ours may differ
	pruneMost   = 64               // entries that one Begin removes
)

// Options configure a ledger. The zero value is usable.
type Options struct {
	Now  func() time.Time // optional; time.Now
	Keep int              // optional; how many entries are kept that have ended and expired; 4096 when zero
}

// A Position orders tasks: first by epoch, then by sequence number.
type Position struct {
	Epoch int64 `json:"epoch"`
	Seq   int64 `json:"seq"`
}

// Compare returns -1, 0 or 1 when p is before, at or after o.
func (p Position) Compare(o Position) int {
	return cmp.Or(cmp.Compare(p.Epoch, o.Epoch), cmp.Compare(p.Seq, o.Seq))
}

// An Entry is what is kept of a verified task. Texts are UTF-8 of at most 4 KiB each. Key may be empty; nothing else may.
type Entry struct {
	Epoch, Seq int64     // both positive
	ID         string    // of the task
	Digest     string    // of its signed bytes: two tasks with the same digest are the same
	Key        string    // of idempotency: tasks that try the same step share it
	Action     string    // what it does, for a person
	Expires    time.Time // it is not begun later than 60 s after that
}

func (e *Entry) position() Position { return Position{e.Epoch, e.Seq} }

func (e *Entry) check() error {
	if e.Epoch <= 0 || e.Seq <= 0 || e.ID == "" || e.Digest == "" || e.Action == "" || e.Expires.IsZero() {
		return errors.New("begin a task: epoch, seq, id, digest, action and expiry are required")
	}
	if y := e.Expires.UTC().Year(); y < 0 || y > 9999 {
		return fmt.Errorf("begin task %s: it expires in the year %d", clip(e.ID), y)
	}
	for _, s := range []string{e.ID, e.Digest, e.Key, e.Action} {
		if len(s) > maxField || !utf8.ValidString(s) {
			return fmt.Errorf("begin task %s: each of its texts must be UTF-8 of at most %d bytes", clip(e.ID), maxField)
		}
	}
	return nil
}

// clip returns the beginning of a text that may be no text.
func clip(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), 64)], "?")
}

// A Standing says how far a ledger is.
type Standing struct {
	Epoch   int64     // the highest that was stored; 0 when none was
	Seq     int64     // the highest sequence number that is known in Epoch; 0 when none is
	Running []Entry   // begun by this process, in any epoch, and not finished; in order of their positions
	Floor   time.Time // the time of the newest head; zero when there was none
}

// Begun is what came of a task so far: [*Run], [Stored], [Wait] or [Interrupted].
type Begun interface{ begun() }

// A Run says that the entry is on disk as started: the caller carries the task out, then calls Finish.
type Run struct {
	l *Ledger
	e *entry
	a *attempt
}

// Stored says that the task was finished, with this signed result.
type Stored struct{ Result []byte }

// Wait says that the task runs in this process.
type Wait struct{ a *attempt }

// Interrupted says that an earlier process began the task and ended before it finished it. Nothing more will come of it.
type Interrupted struct{}

func (*Run) begun()        {}
func (Stored) begun()      {}
func (Wait) begun()        {}
func (Interrupted) begun() {}

// Result waits until the task is finished and returns its signed result. It fails with the cause of ctx when that ends earlier.
func (w Wait) Result(ctx context.Context) ([]byte, error) {
	select {
	case <-w.a.done:
		return slices.Clone(w.a.result), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Finish stores the signed result of the task, of at most [MaxResult] bytes and without secrets, and wakes those who wait for it. When
// it cannot be written, Finish fails, but the task is finished all the same: see the promises of the package. The same result again is
// harmless, and tries once more to write it. Another one is an error, and so is one that is too large; that leaves the task running.
func (r *Run) Finish(result []byte) error {
	l, a := r.l, r.a
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case len(result) > MaxResult:
		return fmt.Errorf("finish task %s: its result has %d bytes, more than %d", r.e.ID, len(result), MaxResult)
	case a.over && !bytes.Equal(a.result, result):
		return fmt.Errorf("finish task %s: it was finished with another result", r.e.ID)
	case a.over && r.e.finished:
		return nil
	}
	if !a.over {
		a.over, a.result = true, slices.Clone(result)
		l.unsaved = append(l.unsaved, r.e)
		close(a.done)
	}
	if err := l.commit(l.state, nil); err != nil {
		return fmt.Errorf("finish task %s: its result is kept in memory only, and is lost when this process ends before it can be written: %w",
			r.e.ID, err)
	}
	return nil
}

// An attempt is a task that runs, or ran, in this process.
type attempt struct {
	done   chan struct{} // closed when it is over
	over   bool
	result []byte
}

// An entry is what the ledger knows of a task without reading the file, except its result.
type entry struct {
	Entry
	try      *attempt // nil when an earlier process began it, or its result is on disk
	finished bool     // on disk
	digest   sum      // of the result on disk
	sum      sum      // of the record on disk
}

// ended reports whether nothing more will come of it that is not on disk.
func (e *entry) ended() bool { return e.finished || e.try == nil }

// A Ledger is open until Close. Its functions may be called at the same time; they follow each other.
type Ledger struct {
	path string
	now  func() time.Time
	keep int

	mu      sync.Mutex
	db      *bolt.DB // nil when closed
	state   state
	order   []*entry // by position
	unsaved []*entry // with results that are not on disk
	// gone may be on disk but is not in order: it was pruned, or its Begin failed and has perhaps written it all the same.
	gone  map[Position]bool
	after func() error // for tests: what a write that succeeded reports; nil otherwise
}

// find returns the place of a position in order, and the entry when it is known.
func (l *Ledger) find(at Position) (int, *entry) {
	i, ok := slices.BinarySearchFunc(l.order, at, func(e *entry, at Position) int { return e.position().Compare(at) })
	if !ok {
		return i, nil
	}
	return i, l.order[i]
}

// time returns the time that counts: that of the clock, but never earlier than that of the newest head.
func (l *Ledger) time() time.Time {
	now := l.now()
	if now.Before(l.state.Time) {
		return l.state.Time
	}
	return now
}

// Standing returns how far the ledger is.
func (l *Ledger) Standing() Standing {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.standing()
}

func (l *Ledger) standing() Standing {
	s := Standing{Epoch: l.state.Epoch, Floor: l.state.Time}
	if l.state.Floor.Epoch == s.Epoch {
		s.Seq = l.state.Floor.Seq
	}
	if n := len(l.order); n > 0 && l.order[n-1].Epoch == s.Epoch {
		s.Seq = max(s.Seq, l.order[n-1].Seq)
	}
	for _, e := range l.order {
		if e.try != nil && !e.try.over {
			s.Running = append(s.Running, e.Entry)
		}
	}
	return s
}

// Fence stores the epoch of a leader, so that no task of an older one is begun any more, and returns what still runs. The
// same epoch again is harmless; a higher one starts its own sequence; a lower one is an [*OutdatedError].
func (l *Ledger) Fence(epoch int64) (Standing, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flush()
	switch {
	case epoch <= 0:
		return Standing{}, fmt.Errorf("fence the ledger: the epoch is %d, but must be positive", epoch)
	case epoch < l.state.Epoch:
		return Standing{}, &OutdatedError{Stored: l.state.Epoch, Epoch: epoch}
	case epoch > l.state.Epoch:
		next := l.state
		next.Epoch = epoch
		if err := l.commit(next, nil); err != nil {
			return Standing{}, fmt.Errorf("fence the ledger: %w", err)
		}
	case l.db == nil:
		return Standing{}, errClosed
	}
	return l.standing(), nil
}

// Head takes the contents of a signed head that the caller has verified and found fresh. It raises the floor of time to now, and
// never lowers it. A ledger that is new, or that has forgotten the time, also takes the position as its floor unless its own is higher, and
// the epoch when it has none; afterwards only Fence raises the epoch. A head of an older epoch is an [*OutdatedError].
func (l *Ledger) Head(epoch, seq int64, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case epoch <= 0 || seq < 0:
		return fmt.Errorf("take a head: its epoch is %d and its seq %d, but neither may be negative, nor the epoch 0", epoch, seq)
	case epoch < l.state.Epoch:
		return &OutdatedError{Stored: l.state.Epoch, Epoch: epoch}
	}
	next := l.state
	if now.After(next.Time) {
		next.Time = now.UTC().Round(0)
	}
	if !next.Headed {
		next.Headed = true
		if at := (Position{epoch, seq}); at.Compare(next.Floor) > 0 {
			next.Floor = at
		}
		next.Epoch = cmp.Or(next.Epoch, epoch)
	}
	if next == l.state && l.db != nil {
		l.flush()
		return nil
	}
	if err := l.commit(next, nil); err != nil {
		return fmt.Errorf("take a head: %w", err)
	}
	return nil
}

// ForgetTime takes away the floor of time: a head was signed while the clocks of both the site and the node were ahead, and whatever is
// signed since they are right seems too old. Whoever calls it vouches for the clock of the node. Nothing that is known is forgotten, but
// nothing begins until the next head has told which sequence numbers were used, as in a new ledger: what was signed before that, and
// held back, cannot run now because the time went back.
func (l *Ledger) ForgetTime() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := l.state
	next.Time, next.Headed = time.Time{}, false
	if err := l.commit(next, nil); err != nil {
		return fmt.Errorf("forget the time of the newest head: %w", err)
	}
	return nil
}

// Begin returns what to do about a verified task. The task runs only when that is a [*Run]; then its entry is on disk. A task that is
// known is answered from what is known, even when it has expired. It fails with a [*RefusedError] when the task may not run, with a
// [*DamagedError] when its stored result cannot be read, and otherwise when the entry could not be written.
func (l *Ledger) Begin(task Entry) (Begun, error) {
	if err := task.check(); err != nil {
		return nil, err
	}
	task.Expires = task.Expires.UTC().Round(0)
	at := task.position()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flush()
	_, known := l.find(at)
	refuse := func(r Reason, why string, args ...any) (Begun, error) {
		return nil, &RefusedError{Task: task.ID, Reason: r, Why: fmt.Sprintf(why, args...)}
	}
	switch {
	case l.db == nil:
		return nil, errClosed
	case at.Epoch < l.state.Epoch:
		return refuse(RefusedEpoch, "it is of epoch %d, but epoch %d has begun: another site agent leads", at.Epoch, l.state.Epoch)
	case at.Epoch > l.state.Epoch:
		return refuse(RefusedUnfenced, "it is of epoch %d, but the node knows epoch %d: the site agent has to fence it first", at.Epoch, l.state.Epoch)
	case known != nil && known.Digest == task.Digest:
		return l.begun(known)
	case !l.state.Headed:
		return refuse(RefusedNew, "the ledger is new, or its time was forgotten, and no head has said which sequence numbers were used: the site agent has to send one first")
	case known != nil:
		return refuse(RefusedSeq, "sequence number %d of epoch %d is that of task %s, which differs", at.Seq, at.Epoch, known.ID)
	case at.Compare(l.state.Floor) <= 0:
		return refuse(RefusedSeq, "sequence number %d of epoch %d is not known any more; only those above %d of epoch %d may be new",
			at.Seq, at.Epoch, l.state.Floor.Seq, l.state.Floor.Epoch)
	case expired(&task, l.time()):
		return refuse(RefusedExpired, "it expired at %s, and now it is %s", stamp(task.Expires), stamp(l.time()))
	}
	l.prune()
	a := &attempt{done: make(chan struct{})}
	e := &entry{Entry: task, try: a}
	if err := l.commit(l.state, e); err != nil {
		return nil, fmt.Errorf("begin task %s: it is not run: %w", task.ID, err)
	}
	i, _ := l.find(at)
	l.order = slices.Insert(l.order, i, e)
	return &Run{l, e, a}, nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func expired(e *Entry, now time.Time) bool { return now.After(e.Expires.Add(skew)) }

// begun returns what came of an entry.
func (l *Ledger) begun(e *entry) (Begun, error) {
	switch {
	case e.finished:
		result, err := l.result(e)
		if err != nil {
			return nil, err
		}
		return Stored{result}, nil
	case e.try == nil:
		return Interrupted{}, nil
	case e.try.over:
		return Stored{slices.Clone(e.try.result)}, nil
	}
	return Wait{e.try}, nil
}

// prune forgets the oldest entries that have ended and expired, except the last keep of them, and not many at once. The floor keeps
// them from running again, whatever the clock says later. What it forgets is removed from the file by the next commit.
func (l *Ledger) prune() {
	if len(l.order) <= l.keep {
		return
	}
	now := l.time()
	old := func(e *entry) bool { return e.ended() && expired(&e.Entry, now) }
	excess := -l.keep
	for _, e := range l.order {
		if old(e) {
			excess++
		}
	}
	excess = min(excess, pruneMost)
	l.order = slices.DeleteFunc(l.order, func(e *entry) bool {
		if excess <= 0 || !old(e) {
			return false
		}
		excess--
		at := e.position()
		l.gone[at] = true
		l.state.remove(e)
		if at.Compare(l.state.Floor) > 0 {
			l.state.Floor = at
		}
		return true
	})
}

// An Outcome is what is known of the newest task with a key.
type Outcome struct {
	Entry Entry // its Epoch may be an older one
	// Begun is [Stored], [Wait] or [Interrupted]; nil when no task with the key is known. Then one above Floor was never begun;
	// what became of one at or below it is not known.
	Begun Begun
	Floor Position // of a new ledger the highest possible, because it cannot know anything
}

// Outcome returns what came of the newest task with a key, which must not be empty. It fails with a [*DamagedError] when the
// result cannot be read.
func (l *Ledger) Outcome(key string) (Outcome, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flush()
	if key == "" {
		return Outcome{}, errors.New("ask for an outcome: the key is empty")
	}
	if l.db == nil {
		return Outcome{}, errClosed
	}
	o := Outcome{Floor: l.state.Floor}
	if !l.state.Headed {
		o.Floor = Position{math.MaxInt64, math.MaxInt64}
	}
	for _, e := range slices.Backward(l.order) {
		if e.Key == key {
			var err error
			o.Entry = e.Entry
			o.Begun, err = l.begun(e)
			return o, err
		}
	}
	return o, nil
}

// Close writes the results that could not be written so far, and closes the file. It fails when that fails; the file is closed
// all the same. A task that still runs may be finished after that, which wakes those who wait for it, but fails.
func (l *Ledger) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.db == nil {
		return nil
	}
	var err error
	if len(l.unsaved) > 0 {
		if err = l.commit(l.state, nil); err != nil {
			err = fmt.Errorf("close the ledger: the results of %d tasks are lost: %w", len(l.unsaved), err)
		}
	}
	err = errors.Join(err, l.db.Close())
	l.db = nil
	return err
}

var errClosed = errors.New("the ledger is closed")

// A Reason is why a task was refused, in one word.
type Reason string

// Reasons to refuse a task, in the order in which they are checked.
const (
	RefusedEpoch    Reason = "epoch"    // its epoch is older than the stored one
	RefusedUnfenced Reason = "unfenced" // its epoch is newer than the stored one: its holder has to fence first
	RefusedNew      Reason = "new"      // the ledger is new, or its time was forgotten, and it has taken no head since
	RefusedSeq      Reason = "seq"      // its position is that of another task, or is not known and not above the floor
	RefusedExpired  Reason = "expired"  // by the clock or by the floor of time
)

// A RefusedError says that a task may not run, and that nothing was written.
type RefusedError struct {
	Task   string // its id
	Reason Reason
	Why    string
}

// Error implements error.
func (e *RefusedError) Error() string { return fmt.Sprintf("task %s is refused: %s", e.Task, e.Why) }

// An OutdatedError says that a caller's epoch is older than the stored one: it does not lead any more.
type OutdatedError struct{ Stored, Epoch int64 }

// Error implements error.
func (e *OutdatedError) Error() string {
	return fmt.Sprintf("epoch %d is over: the node has stored epoch %d, so another site agent leads", e.Epoch, e.Stored)
}

// A DamagedError says that the ledger, or a result in it, cannot be read, or is of a newer version. Nothing was changed.
type DamagedError struct {
	Path  string // of the file
	What  string // is damaged
	Newer bool   // it is intact, but was written by a newer version of this program
	Err   error
}

// Error implements error.
func (e *DamagedError) Error() string {
	if e.Newer {
		return fmt.Sprintf("the ledger %s: %s was written by a newer version of this program; install that one again", e.Path, e.What)
	}
	return fmt.Sprintf("the ledger %s is damaged: %s: %v; stop the agent, move the file away and keep it: "+
		"what the node did is not known until the site has looked at it again", e.Path, e.What, e.Err)
}

// Unwrap returns the cause.
func (e *DamagedError) Unwrap() error { return e.Err }

type sum [sha256.Size]byte
