package state

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"converge.dev/converge/internal/failpoint"
	"converge.dev/converge/internal/retry"
	"converge.dev/converge/schema"
)

// DefaultTTL is how long a lock outlives a holder that no longer responds.
const DefaultTTL = 10 * time.Second

// pollLock is how often a waiting process checks whether the lock is free.
const pollLock = 250 * time.Millisecond

// LockOptions say how to take the lock. The zero value is usable: it fails at once when the lock is held.
type LockOptions struct {
	TTL    time.Duration  // DefaultTTL when zero
	Wait   time.Duration  // how long to wait for another holder to finish
	OnWait func(LockInfo) // optional; called when the wait begins and whenever the holder or what it does changes
}

// A LockedError reports that another process holds the lock of the site.
type LockedError struct {
	Path string // of the site in the store
	Info LockInfo
}

// Error describes the holder in Terraform's layout.
func (e *LockedError) Error() string {
	since := e.Info.Created.UTC().Format("2006-01-02 15:04:05 UTC")
	if age := time.Since(e.Info.Created).Truncate(time.Second); age > 0 {
		since += " (" + age.String() + " ago)"
	}
	who := e.Info.Who
	if e.Info.PID != 0 {
		who = fmt.Sprintf("%s (PID %d)", who, e.Info.PID)
	}
	var b strings.Builder
	b.WriteString("the site is locked by another process\n\nLock Info:\n")
	for _, line := range [][2]string{
		{"ID", e.Info.ID}, {"Path", e.Path}, {"Operation", e.Info.Operation}, {"Who", who},
		{"Version", e.Info.Version}, {"Created", since}, {"Info", e.Info.Info},
	} {
		b.WriteString(strings.TrimRight(fmt.Sprintf("  %-10s %s", line[0]+":", line[1]), " ") + "\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// A Lock is the right to change the site, held by one process at a time. It ends with Close, with [Store.ForceUnlock], or
// when the backend has not answered for too long. Its epoch rises with each holder, so that a call which reaches the
// outside late can be distinguished from those of the next holder.
type Lock struct {
	s     *Store
	lease Lease
	epoch int64
	ttl   time.Duration
	taken time.Time // when the lock was taken over from a holder that did not release it; zero otherwise

	leader Guard // my key is the one that I created
	turn   Guard // the epoch is the one that I set

	mu   sync.Mutex
	info LockInfo

	alive   context.Context // ends with the lock; its cause is ErrFenced unless it was closed
	end     context.CancelCauseFunc
	watched sync.WaitGroup
}

type epoch struct {
	Epoch    int64  `json:"epoch"`
	By       string `json:"by"`                 // id of the lock that set it
	Released bool   `json:"released,omitempty"` // its holder released it, so none of its calls is in flight any more
}

// Lock takes the lock of the site. Info describes the caller; its ID, Created and Epoch are filled in. When the lock is held and
// stays so for o.Wait, it fails with a *LockedError.
func (s *Store) Lock(ctx context.Context, info LockInfo, o LockOptions) (*Lock, error) {
	info.ID = cmp.Or(info.ID, uuid.NewString())
	if info.Created.IsZero() {
		info.Created = time.Now().UTC()
	}
	ttl := cmp.Or(o.TTL, DefaultTTL)
	deadline := time.Now().Add(o.Wait)
	var told LockInfo
	waits := false
	for tries := 0; ; {
		holder, err := s.LockInfo(ctx)
		var damaged *DamagedError
		switch rest := time.Until(deadline); {
		case err == nil:
		case rest <= 0 || ctx.Err() != nil || errors.As(err, &damaged):
			return nil, err
		default: // a store that is slow now may answer while there is time to wait
			_ = retry.Sleep(ctx, min(rest, pollLock)) // when ctx has ended, the next check reports it
			continue
		}
		if holder == nil {
			l, err := s.tryLock(ctx, info, ttl)
			if tries++; errors.Is(err, ErrGuard) && tries < 10 {
				continue // another process was faster
			}
			return l, err
		}
		if !waits { // how long it took to find out does not count
			waits, deadline = true, time.Now().Add(o.Wait)
		}
		if o.Wait > 0 && o.OnWait != nil && *holder != told {
			told = *holder
			o.OnWait(told)
		}
		rest := time.Until(deadline)
		if rest <= 0 {
			return nil, &LockedError{Path: s.Path(), Info: *holder}
		}
		if err := retry.Sleep(ctx, min(rest, pollLock)); err != nil {
			return nil, fmt.Errorf("wait for the site lock: %w", err)
		}
	}
}

// tryLock takes the lock if it is free, and fails with ErrGuard if another process was faster.
func (s *Store) tryLock(ctx context.Context, info LockInfo, ttl time.Duration) (_ *Lock, err error) {
	lease, err := s.kv.Lease(ctx, ttl)
	if err != nil {
		return nil, fmt.Errorf("acquire the site lock: %w", err)
	}
	defer func() {
		if err != nil {
			_ = lease.Close() // it would run out by itself
		}
	}()
	if err := failpoint.At("lock.take.before"); err != nil {
		return nil, err
	}
	key := s.key("leader")
	_, err = s.kv.Commit(ctx, []Guard{{Key: key}}, []Op{{Key: key, Value: encode(key, info), Lease: lease}})
	if err != nil && !errors.Is(err, ErrUnknown) {
		return nil, fmt.Errorf("acquire the site lock: %w", err)
	}
	if err := failpoint.At("lock.take.after"); err != nil {
		return nil, err
	}
	// Read back, because the lease may already be gone, and a reply may have been lost.
	have, it, err := read[LockInfo](ctx, s, key)
	if errors.Is(err, ErrNotFound) || err == nil && have.ID != info.ID {
		return nil, fmt.Errorf("acquire the site lock: %w", ErrGuard)
	}
	if err != nil {
		return nil, fmt.Errorf("acquire the site lock: %w", err)
	}
	l := &Lock{s: s, lease: lease, ttl: ttl, leader: Guard{Key: key, Created: true, Revision: it.Created}}
	if err := l.raiseEpoch(ctx, info); err != nil {
		return nil, fmt.Errorf("acquire the site lock: %w", err)
	}
	if err := failpoint.At("lock.epoch.after"); err != nil {
		return nil, err
	}
	l.alive, l.end = context.WithCancelCause(context.Background())
	l.watched.Go(func() { l.watch(ttl) })
	return l, nil
}

// raiseEpoch makes the epoch one higher than it ever was.
func (l *Lock) raiseEpoch(ctx context.Context, info LockInfo) error {
	old, it, err := read[epoch](ctx, l.s, l.s.key("epoch"))
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	earlier, err := l.s.runEpoch(ctx)
	if err != nil {
		return err
	}
	if old.Epoch > 0 && !old.Released || old.Epoch < earlier {
		l.taken = time.Now()
	}
	info.Epoch = max(old.Epoch, earlier) + 1
	_, err = l.s.kv.Commit(ctx,
		[]Guard{l.leader, {Key: l.s.key("epoch"), Revision: it.Modified}},
		[]Op{
			l.s.put(l.s.key("epoch"), epoch{Epoch: info.Epoch, By: info.ID}),
			{Key: l.leader.Key, Value: encode(l.leader.Key, info), Lease: l.lease},
		})
	if err != nil && !errors.Is(err, ErrUnknown) {
		return err
	}
	now, it, err := read[epoch](ctx, l.s, l.s.key("epoch"))
	if err != nil {
		return err
	}
	if now.By != info.ID {
		return ErrGuard
	}
	l.info, l.epoch = info, now.Epoch
	l.turn = Guard{Key: l.s.key("epoch"), Revision: it.Modified}
	return nil
}

// Epoch returns the number of the newest holder of the site lock, of the present one if there is one; 0 when there never was one.
func (s *Store) Epoch(ctx context.Context) (int64, error) {
	e, _, err := read[epoch](ctx, s, s.key("epoch"))
	if err != nil && !errors.Is(err, ErrNotFound) {
		return 0, err
	}
	return e.Epoch, nil
}

// runEpoch returns the highest epoch of any run. The epoch never falls below it, whatever happened to its own key: far
// sides could not distinguish two holders with the same number. A run that cannot be read is skipped.
func (s *Store) runEpoch(ctx context.Context) (int64, error) {
	items, err := s.kv.List(ctx, s.key("run")+"/")
	if err != nil {
		return 0, fmt.Errorf("list the runs: %w", err)
	}
	var highest int64
	for _, it := range items {
		var r Run
		if decode(it, &r) == nil {
			highest = max(highest, r.Epoch)
		}
	}
	return highest, nil
}

// watch ends the lock as soon as it can no longer be proven. The timer is short because timers fire late on a machine
// that was suspended, and because a forced unlock shows in the store only.
func (l *Lock) watch(ttl time.Duration) {
	look := time.Now().Add(ttl / 3)
	for {
		rest := time.Until(l.lease.Until())
		if rest <= 0 {
			l.end(fmt.Errorf("%w: the store did not answer in time", ErrFenced))
			return
		}
		select {
		case <-time.After(min(rest, time.Second)):
		case <-l.lease.Done():
			l.end(fmt.Errorf("%w: its lease is gone", ErrFenced))
			return
		case <-l.alive.Done():
			return
		}
		if time.Now().Before(look) {
			continue
		}
		look = time.Now().Add(ttl / 3)
		// A failure to read proves nothing; if it lasts, the lease ends soon enough.
		ctx, cancel := context.WithTimeout(l.alive, ttl/3)
		_ = l.verify(ctx)
		cancel()
	}
}

// verify checks in the store that the lock is still mine, and ends it with ErrFenced when it is not.
func (l *Lock) verify(ctx context.Context) error {
	for _, g := range []Guard{l.leader, l.turn} {
		it, err := l.s.kv.Get(ctx, g.Key)
		if err != nil {
			return err
		}
		have := it.Modified
		if g.Created {
			have = it.Created
		}
		if have != g.Revision {
			l.end(ErrFenced)
			return ErrFenced
		}
	}
	return nil
}

// Epoch returns the number of this holder, which is higher than that of every earlier holder.
func (l *Lock) Epoch() int64 { return l.epoch }

// Info returns what others see of this holder.
func (l *Lock) Info() LockInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.info
}

// Commit writes as [KV.Commit] does, provided that the lock is still held. It fails with ErrFenced, and has written
// nothing, when it is not; with ErrGuard when one of guards does not hold.
func (l *Lock) Commit(ctx context.Context, guards []Guard, ops []Op) (revision int64, err error) {
	if err := l.lost(); err != nil {
		return 0, err
	}
	ctx, cancel := l.bind(ctx)
	defer cancel(nil)
	all := append([]Guard{l.leader, l.turn}, guards...)
	revision, err = l.s.kv.Commit(ctx, all, ops)
	if errors.Is(err, ErrGuard) {
		if verr := l.verify(ctx); verr != nil {
			if errors.Is(verr, ErrFenced) {
				return 0, verr
			}
			return 0, fmt.Errorf("%w; could not read whether the lock is still held: %w", err, verr)
		}
	}
	return revision, err
}

// lost returns ErrFenced when the lock cannot be proven at this moment.
func (l *Lock) lost() error {
	if time.Until(l.lease.Until()) <= 0 {
		l.end(fmt.Errorf("%w: the store did not answer in time", ErrFenced))
	}
	return context.Cause(l.alive)
}

// Held fails with ErrFenced when the lock cannot be proven to be held at this moment. It reads the clock and not the
// store, and so detects that the process stood still before its timers do.
func (l *Lock) Held() error { return l.lost() }

// Context derives a context that also ends when the lock can no longer be proven to be held; its cause then is ErrFenced.
// Calls to the outside are made with it.
func (l *Lock) Context(ctx context.Context) context.Context {
	ctx, _ = l.bind(ctx)
	return ctx
}

// bind does what Context promises, and releases both contexts when cancel is called.
func (l *Lock) bind(ctx context.Context) (_ context.Context, cancel context.CancelCauseFunc) {
	ctx, cancel = context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.alive, func() { cancel(context.Cause(l.alive)) })
	context.AfterFunc(ctx, func() { stop() })
	return ctx, cancel
}

// settled is added to the time in which an earlier holder's calls may still arrive.
const settled = 5 * time.Second

// Quarantine returns the time before which nothing without a version check may be deleted: until then a call of an
// earlier holder that did not release the lock may still arrive and hit the wrong thing. Longest is how late a call may
// have its effect. The result is zero when the lock was released in order.
func (l *Lock) Quarantine(longest time.Duration) time.Time {
	if l.taken.IsZero() {
		return time.Time{}
	}
	return l.taken.Add(l.ttl + longest + settled)
}

// Describe stores, for others to see, what the holder is doing, and for which run.
func (l *Lock) Describe(ctx context.Context, run, text string) error {
	info := l.Info()
	info.Run, info.Info = run, text
	if _, err := l.Commit(ctx, nil, []Op{{Key: l.leader.Key, Value: encode(l.leader.Key, info), Lease: l.lease}}); err != nil {
		return fmt.Errorf("update the lock description: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.info = info
	return nil
}

// Close releases the lock, and records that in the store, so that the next holder need not wait for calls in flight. The
// caller has waited for everything that it does under the lock.
func (l *Lock) Close() error {
	if err := failpoint.At("lock.release.before"); err != nil {
		return err
	}
	if l.lost() == nil {
		// If this cannot be written, the lease ends the lock and the next holder waits: that costs time but not safety.
		ctx, cancel := context.WithTimeout(context.Background(), min(l.ttl, 2*time.Second))
		_, _ = l.s.kv.Commit(ctx, []Guard{l.leader, l.turn}, []Op{
			l.s.put(l.turn.Key, epoch{Epoch: l.epoch, By: l.Info().ID, Released: true}),
			{Key: l.leader.Key, Delete: true},
		})
		cancel()
	}
	l.end(fmt.Errorf("%w: it was released", ErrFenced))
	l.watched.Wait()
	return l.lease.Close()
}

// LockInfo reads who holds the lock; nil when nobody does.
func (s *Store) LockInfo(ctx context.Context) (*LockInfo, error) {
	info, _, err := read[LockInfo](ctx, s, s.key("leader"))
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &info, nil
}

// Audit is one entry of the log of forced actions.
type Audit struct {
	At     time.Time `json:"at"`
	By     string    `json:"by"`
	Action string    `json:"action"` // force-unlock, restored, repair, cancel, hold, release, freeze, thaw, token, ban, unban, approve, unapprove
	Scope  string    `json:"scope,omitempty"`
	Reason string    `json:"reason"`
	Lock   *LockInfo `json:"lock,omitempty"`  // the lock that was broken
	Epoch  int64     `json:"epoch,omitempty"` // the epoch from now on
}

// ForceUnlock breaks the lock with that id. The epoch rises, so that the holder can write nothing more even if it still
// runs, and the audit log records who did it and why. It fails with ErrNotFound when nobody holds the lock. A lock
// that cannot be read has the id [DamagedLock].
func (s *Store) ForceUnlock(ctx context.Context, id, by, reason string) error {
	holder, it, err := read[LockInfo](ctx, s, s.key("leader"))
	if errors.Is(err, ErrNotFound) {
		return fmt.Errorf("force-unlock %s: the lock is %w", id, ErrNotFound)
	}
	if err := brokenBy(id, holder, err); err != nil {
		return fmt.Errorf("force-unlock %s: %w", id, err)
	}
	old, turn, err := read[epoch](ctx, s, s.key("epoch"))
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	entry := Audit{At: time.Now().UTC(), By: by, Action: "force-unlock", Reason: reason, Lock: &holder, Epoch: old.Epoch + 1}
	_, err = s.kv.Commit(ctx,
		[]Guard{{Key: it.Key, Created: true, Revision: it.Created}, {Key: s.key("epoch"), Revision: turn.Modified}},
		[]Op{
			{Key: it.Key, Delete: true},
			s.put(s.key("epoch"), epoch{Epoch: entry.Epoch, By: by}),
			s.put(s.key("audit", NewRunID(entry.At)), entry),
		})
	if err != nil {
		return fmt.Errorf("force-unlock %s: %w", id, err)
	}
	return nil
}

// restoredEpochs is how much the epoch rises after a restore: more than the number of holders that may have followed
// the backup before the store was lost.
const restoredEpochs = 1000

// Restored records that the store was restored from a backup, which lacks what has happened to the site since: the
// epoch rises beyond every holder of that time, the audit log records who confirmed it and why, and the site is held
// until somebody has examined it. It fails with a *LockedError while the lock is held.
func (s *Store) Restored(ctx context.Context, by, reason string) (epochNow int64, err error) {
	holder, err := s.LockInfo(ctx)
	if err != nil {
		return 0, err
	}
	if holder != nil {
		return 0, &LockedError{Path: s.Path(), Info: *holder}
	}
	turn, err := s.kv.Get(ctx, s.key("epoch"))
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", s.key("epoch"), err)
	}
	var old epoch
	_ = decode(turn, &old) // missing or damaged: the runs are enough, and this is the way out
	earlier, err := s.runEpoch(ctx)
	if err != nil {
		return 0, err
	}
	now := time.Now().UTC()
	entry := Audit{At: now, By: by, Action: "restored", Reason: reason, Epoch: max(old.Epoch, earlier) + restoredEpochs}
	_, err = s.kv.Commit(ctx,
		[]Guard{{Key: s.key("leader")}, {Key: s.key("epoch"), Revision: turn.Modified}},
		[]Op{
			s.put(s.key("epoch"), epoch{Epoch: entry.Epoch, By: by}),
			s.put(s.key("audit", NewRunID(now)), entry),
			{Key: s.outboxTold() + InventoryTold, Delete: true},
			s.AmendedOp(Amended{Epoch: entry.Epoch, Action: entry.Action, By: by, At: now}),
			s.HoldOp(Hold{Scope: schema.ScopeSite, By: by, At: now, Reason: "the store was restored from a backup: review the drift first"}),
		})
	if err != nil {
		return 0, fmt.Errorf("record the restore: %w", err)
	}
	return entry.Epoch, nil
}

// Audits reads the log of forced actions, oldest first: in the order in which they were stored, whatever the clocks of their processes
// said.
func (s *Store) Audits(ctx context.Context) ([]Audit, error) {
	as, items, err := list[Audit](ctx, s, s.key("audit")+"/")
	return asStored(as, items), err
}
