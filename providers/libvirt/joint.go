package libvirt

import (
	"context"
	"sync"
	"time"

	"converge.dev/converge/internal/keyed"
)

// A joint lets callers that need the same reading share one, which begins after each of them has asked: so it costs the same for one as
// for many, and nobody sees what was before its call. The zero joint is ready.
type joint[T any] struct {
	turns keyed.Mutex // held while one reads
	mu    sync.Mutex
	next  *reading[T] // has not begun; nil: nobody waits for one
	last  *reading[T] // the newest that succeeded; nil: none
	since time.Time   // what began before that is not recent
}

// A reading has its result once it is done. Who holds the turn writes and reads it.
type reading[T any] struct {
	began time.Time
	done  bool
	value T
	err   error
}

// recent returns the result of a reading that began a short while ago; ok is false when there is none.
func (j *joint[T]) recent(within time.Duration) (value T, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.last == nil || time.Since(j.last.began) > within || j.last.began.Before(j.since) {
		return value, false
	}
	return j.last.value, true
}

// forget has no reading that has begun count as recent.
func (j *joint[T]) forget() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.since = time.Now()
}

// read returns the result of a reading that begins now or later, by this caller or another one. The value is shared, and not to be changed.
func (j *joint[T]) read(ctx context.Context, how func() (T, error)) (T, error) {
	j.mu.Lock()
	if j.next == nil {
		j.next = &reading[T]{}
	}
	r := j.next
	j.mu.Unlock()
	unlock, err := j.turns.Lock(ctx, "")
	if err != nil {
		var none T
		return none, &lost{unsent: true, err: err}
	}
	defer unlock()
	if r.done {
		return r.value, r.err
	}
	j.mu.Lock()
	if j.next == r {
		j.next = nil
	}
	j.mu.Unlock()
	r.began = time.Now()
	value, err := how()
	if err == nil || ctx.Err() == nil { // what ends with this caller alone is not the others' affair
		r.done, r.value, r.err = true, value, err
	}
	if err == nil {
		j.mu.Lock()
		j.last = r
		j.mu.Unlock()
	}
	return value, err
}
