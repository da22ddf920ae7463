package cluster_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"converge.dev/converge/engine/journal"
	"converge.dev/converge/internal/cluster"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

const (
	ttl        = 2 * time.Second // of the site lock
	contenders = 3               // processes that want the site lock
	workers    = 3               // steps in flight of one holder
	callLimit  = 5 * time.Second // of a client that would rather retry
)

// A workload is the typical activity of a site: one process at a time holds the lock and changes things, others wait for
// it, and write and read documents.
type workload struct {
	t     *testing.T
	store *state.Store // of the test itself
	run   string
	world *world
	stop  chan struct{}
	all   sync.WaitGroup

	diary diary

	prober  prober
	serial  atomic.Int64 // the highest of an acknowledged document
	docs    sync.Map     // serial to digest, of acknowledged documents
	reads   atomic.Int64
	refusal atomic.Int64 // attempts to get the lock that found it held
}

// newWorkload starts a workload with clients of its own.
func newWorkload(t *testing.T, c *cluster.Cluster, site, run string) *workload {
	w := &workload{t: t, run: run, world: newWorld(), stop: make(chan struct{})}
	w.store = state.New(open(t, c), site)
	for i := range contenders {
		store := state.New(open(t, c), site)
		w.all.Go(func() { w.contend(store, fmt.Sprint("contender-", i)) })
	}
	for i := range 2 {
		store := state.New(open(t, c), site)
		w.all.Go(func() { w.write(store, fmt.Sprintf("%s-writer-%d", run, i)) })
		w.all.Go(func() { w.read(store) })
	}
	kv := open(t, c)
	w.all.Go(func() { w.prober.probe(kv, w.stop) })
	return w
}

// end stops all clients and waits for them.
func (w *workload) end() {
	close(w.stop)
	w.all.Wait()
}

func (w *workload) ended() bool {
	select {
	case <-w.stop:
		return true
	default:
		return false
	}
}

// contend takes the lock, works for a while, releases it, and starts again.
func (w *workload) contend(store *state.Store, who string) {
	for !w.ended() {
		ctx, cancel := within(callLimit)
		lock, err := store.Lock(ctx, state.LockInfo{Who: who}, state.LockOptions{TTL: ttl, Wait: time.Second})
		cancel()
		if err != nil {
			if _, held := errors.AsType[*state.LockedError](err); held {
				w.refusal.Add(1)
			} else {
				w.diary.note("%s does not get the lock: %v", who, err)
			}
			pause(w.stop, 50*time.Millisecond)
			continue
		}
		w.world.hold(w.t, lock.Epoch(), who)
		w.diary.note("%s has epoch %d", who, lock.Epoch())
		err = w.work(store, lock)
		w.diary.note("%s ends epoch %d: %v", who, lock.Epoch(), err)
		if err := lock.Close(); err != nil { // a lock that cannot be released expires
			w.diary.note("%s does not give the lock back: %v", who, err)
		}
	}
}

// work carries out steps until the turn is over or the lock is lost.
func (w *workload) work(store *state.Store, lock *state.Lock) error {
	const steps = 20 // by each worker in one turn
	held := lock.Context(context.Background())
	j, err := resume(held, store, lock, w.run)
	if err != nil {
		return err
	}
	defer j.Close()
	var team errgroup.Group
	for worker := range workers {
		team.Go(func() error {
			for i := range steps {
				if w.ended() {
					return nil
				}
				key := fmt.Sprintf("%d/%d/%d", lock.Epoch(), worker, i)
				if err := w.step(held, j, lock.Epoch(), key); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return team.Wait()
}

// step does what the engine does for each step: an intent, the effect, the outcome.
func (w *workload) step(held context.Context, j *journal.Journal, epoch int64, key string) error {
	rec := journal.Record{Kind: journal.Intent, Key: key, Ref: schema.Ref{Scope: schema.ScopeSite, Kind: "fake.thing", Name: "a"}}
	err := j.Append(held, rec)
	w.world.tell(rec.Kind, key, err)
	if err != nil {
		return err
	}
	if err := w.world.act(held, epoch, key); err != nil {
		return err
	}
	rec.Kind, rec.Result = journal.Outcome, journal.Done
	err = j.Append(held, rec)
	w.world.tell(rec.Kind, key, err)
	return err
}

// write puts documents.
func (w *workload) write(store *state.Store, who string) {
	for i := 0; !w.ended(); i++ {
		body := fmt.Appendf(nil, `{"by":%q,"n":%d}`, who, i)
		sum := sha256.Sum256(body)
		digest := hex.EncodeToString(sum[:])
		ctx, cancel := within(callLimit)
		head, err := store.PutDocument(ctx, body, digest, 0, who, state.AnyRevision)
		cancel()
		if err == nil {
			if other, taken := w.docs.Swap(head.Serial, digest); taken {
				w.t.Errorf("the serial %d was given to two documents, %s and %s", head.Serial, other, digest)
			}
			for {
				have := w.serial.Load()
				if have >= head.Serial || w.serial.CompareAndSwap(have, head.Serial) {
					break
				}
			}
		}
		pause(w.stop, 20*time.Millisecond)
	}
}

// read reads the newest document, which is never older than one that was acknowledged before.
func (w *workload) read(store *state.Store) {
	for !w.ended() {
		least := w.serial.Load()
		ctx, cancel := within(callLimit)
		head, _, err := store.Document(ctx, 0)
		cancel()
		if err == nil {
			w.reads.Add(1)
			if head.Serial < least {
				w.t.Errorf("a read gave the document %d after %d was acknowledged", head.Serial, least)
			}
		}
		pause(w.stop, 10*time.Millisecond)
	}
}

// checkDocuments reads the history back: every acknowledged document that is recent enough to be kept is in it.
func (w *workload) checkDocuments(ctx context.Context) (n int) {
	history, err := w.store.History(ctx)
	if err != nil {
		w.t.Error(err)
		return 0
	}
	kept := map[int64]string{}
	oldest := int64(0)
	for _, h := range history {
		kept[h.Serial], oldest = h.Digest, h.Serial
	}
	w.docs.Range(func(serial, digest any) bool {
		n++
		if s := serial.(int64); s >= oldest && kept[s] != digest {
			w.t.Errorf("the document %d was acknowledged as %s, the history has %q", s, digest, kept[s])
		}
		return true
	})
	return n
}

// A prober is a client that writes all the time and records when it could.
type prober struct {
	mu     sync.Mutex
	starts []time.Time // of writes that succeeded
	ends   []time.Time
}

func (p *prober) probe(kv state.KV, stop <-chan struct{}) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		start := time.Now()
		ctx, cancel := within(time.Second)
		_, err := kv.Commit(ctx, nil, []state.Op{{Key: "/probe", Value: fmt.Append(nil, i)}})
		cancel()
		if err == nil {
			p.mu.Lock()
			p.starts, p.ends = append(p.starts, start), append(p.ends, time.Now())
			p.mu.Unlock()
		}
		pause(stop, 10*time.Millisecond)
	}
}

// moments returns when a write succeeded that began after since.
func (p *prober) moments(since time.Time) (at []time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, start := range p.starts {
		if start.After(since) {
			at = append(at, p.ends[i])
		}
	}
	return at
}

// gap returns the longest time between two moments in which nothing happened, given what happened.
func gap(from, to time.Time, happened []time.Time) time.Duration {
	longest, last := time.Duration(0), from
	for _, at := range append(happened, to) {
		if at.After(to) {
			at = to
		}
		longest, last = max(longest, at.Sub(last)), at
	}
	return longest
}

// A diary holds what happened, for the case that the test fails.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, time.Now().Format("05.000 ")+fmt.Sprintf(format, args...))
}

func (d *diary) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.lines, "\n")
}
