package engine

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/drift"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/remedy"
	"converge.dev/converge/internal/failpoint"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// Plan observes the site and decides what would make it as doc says. It changes nothing. What may not be done, and what
// could not be observed, is in the plan.
func (e *Engine) Plan(ctx context.Context, doc *schema.Document, o plan.Options) (*plan.Plan, error) {
	if !o.Destroy && !o.Sweep { // nothing is set, so nothing need be read
		var err error
		if doc, err = e.readable(ctx, doc); err != nil {
			return nil, err
		}
	}
	worked, err := e.worked(ctx)
	if err != nil {
		return nil, err
	}
	in, err := e.look(ctx, doc, o.Sweep)
	if err != nil {
		return nil, err
	}
	p, err := e.decide(ctx, &in, o)
	if err != nil {
		return nil, err
	}
	p.Worked = worked
	return p, e.judge(ctx, p, doc, state.Live(in.Recorded))
}

// readable returns a document with the digests of its secrets in the specs. It fails when the document names a secret that its
// author may not name, or one that cannot be read.
func (e *Engine) readable(ctx context.Context, doc *schema.Document) (*schema.Document, error) {
	if !doc.Author.Own {
		if err := Foreign(e.o.Kinds, e.o.Secrets.Source, doc); err != nil {
			return nil, err
		}
	}
	return e.sealed(ctx, doc)
}

// decide makes a plan from what was observed.
func (e *Engine) decide(ctx context.Context, in *plan.Input, o plan.Options) (*plan.Plan, error) {
	if !o.AllowMissing {
		if err := e.distrust(ctx, in); err != nil {
			return nil, err
		}
	}
	in.ID, in.Options = e.o.NewID(e.o.Now()), o
	p, err := plan.Make(*in)
	if err != nil {
		return nil, err
	}
	p.Author = in.Document.Author
	return p, nil
}

// worked returns the highest epoch of any run, or of any change of the records beside runs; a higher one later shows that something
// was done since. It is -1 while a run is open, which may do more.
func (e *Engine) worked(ctx context.Context) (epoch int64, err error) {
	runs, err := e.o.Store.Runs(ctx)
	for i := range runs {
		if runs[i].Status == state.RunOpen {
			return -1, err
		}
		epoch = max(epoch, runs[i].Epoch)
	}
	if err != nil {
		return epoch, err
	}
	amended, err := e.o.Store.Amended(ctx)
	return max(epoch, amended.Epoch), err
}

// judge adds to a plan the refusals that concern the document and the store as a whole. Live is how many things are recorded as
// existing.
func (e *Engine) judge(ctx context.Context, p *plan.Plan, doc *schema.Document, live int) error {
	head, err := e.o.Store.Head(ctx)
	switch {
	case err == nil:
		p.Revision = head.Revision
		if doc.Site.Serial == 0 && !p.Destroy && !p.Sweep && head.Serial >= schema.MaxSerial && doc.Digest != head.Digest {
			p.Refusals = append(p.Refusals, plan.Refusal{
				Rule: plan.RuleSerial, Reason: fmt.Sprintf("the newest revision of the document has the serial %d, the largest there is", head.Serial),
				Remedies: []remedy.Remedy{remedy.Say("no revision can follow it in this store")},
			})
		}
		if n := doc.Site.Serial; !p.Destroy && n != 0 && n <= head.Serial && doc.Digest != head.Digest {
			p.Refusals = append(p.Refusals, plan.Refusal{
				Rule: plan.RuleSerial, Reason: fmt.Sprintf("site.serial is %d, and the newest revision of the document has %d", n, head.Serial),
				Remedies: []remedy.Remedy{remedy.Say("raise site.serial, or leave it out to have it counted")},
			})
		}
	case !errors.Is(err, state.ErrNotFound):
		return err
	}
	forbidden, err := e.forbidden(ctx, p, live, head)
	p.Refusals = append(p.Refusals, forbidden...)
	return err
}

// Drift observes the site and reports how it differs from what was applied last, leaving to others what is external. It changes
// nothing.
func (e *Engine) Drift(ctx context.Context, site schema.Site, external ...schema.Resource) (*drift.Report, error) {
	in, err := e.look(ctx, &schema.Document{Site: site, Resources: external}, true)
	if err != nil {
		return nil, err
	}
	if err := e.distrust(ctx, &in); err != nil {
		return nil, err
	}
	return drift.Compare(in, e.o.Now().UTC())
}

// Apply carries out a plan under the site lock, exactly as it is, and trusts nothing that the plan says about itself: what
// can be derived again is, before anything is done. It fails with a *RefusedError, *UnknownError,
// *HeldError, *StaleError, *SpentError or *state.LockedError when nothing was changed; with ErrInterrupted or another
// error when the run is open. How the run ended otherwise is in the result.
func (e *Engine) Apply(ctx context.Context, p *plan.Plan, o ApplyOptions) (Result, error) {
	for _, check := range []func() error{p.Check, p.CheckDocument} {
		if err := check(); err != nil {
			return Result{}, err
		}
	}
	if len(p.Refusals) > 0 {
		return Result{}, &RefusedError{p.Refusals}
	}
	if !p.Author.Own {
		if err := e.foreign(p); err != nil {
			return Result{}, err
		}
	}
	if p.Partial() && !o.AllowPartial {
		return Result{}, &UnknownError{Unknown: p.Unknown, Omitted: p.Omitted}
	}
	if steps := p.Irreversible(); len(steps) > 0 && !p.ApprovedBy(o.Approve) {
		return Result{}, &ApprovalError{Approval: p.Approval(), Given: o.Approve, Steps: steps}
	}
	body, digest, err := p.Encode()
	if err != nil {
		return Result{}, err
	}
	if run, spent, err := e.o.Store.Spent(ctx, digest); err != nil {
		return Result{}, err
	} else if spent {
		return Result{}, &SpentError{run}
	}
	op := "apply"
	if p.Destroy {
		op = "destroy"
	}
	return e.locked(ctx, op, func(ctx context.Context, lock *state.Lock) (Result, error) {
		if err := e.free(ctx, "", p); err != nil {
			return Result{}, err
		}
		recorded, err := e.o.Store.Records(ctx)
		if err != nil {
			return Result{}, err
		}
		head, err := e.o.Store.Head(ctx)
		if err != nil && !errors.Is(err, state.ErrNotFound) {
			return Result{}, err
		}
		if refusals, err := e.forbidden(ctx, p, state.Live(recorded), head); err != nil { // a saved plan may be old
			return Result{}, err
		} else if len(refusals) > 0 {
			return Result{}, &RefusedError{refusals}
		}
		e.recall(ctx, recorded, p)
		if err := e.unchanged(ctx, p); err != nil {
			return Result{}, err
		}
		set, err := e.connect(ctx, p.Site, neededRefs(p))
		if err != nil {
			return Result{}, err
		}
		defer set.Bind(lock.Held)() // also what waits within a provider begins nothing after the lock was lost
		if err := reachable(set, p); err != nil {
			return Result{}, err
		}
		if err := e.honest(set, p, recorded); err != nil {
			return Result{}, err
		}
		if err := e.sameServers(ctx, set, p); err != nil {
			return Result{}, err
		}
		if err := e.fence(ctx, set, lock, p); err != nil {
			return Result{}, err
		}
		if err := e.fresh(ctx, set, p, recorded); err != nil {
			return Result{}, err
		}
		if err := e.rememberServers(ctx, lock, p); err != nil {
			return Result{}, err
		}
		run, log, err := e.begin(ctx, lock, p, op, body, digest, o)
		if err != nil || p.Empty() {
			return Result{Run: run}, err
		}
		return e.carry(ctx, set, lock, p, run, log, recorded, o, false)
	})
}

// fresh refuses a plan that is outdated by the site, the records or the document.
func (e *Engine) fresh(ctx context.Context, set *providers.Set, p *plan.Plan, recorded []state.Record) error {
	head, err := e.o.Store.Head(ctx)
	if err != nil && !errors.Is(err, state.ErrNotFound) {
		return err
	}
	if head.Revision != p.Revision && head.Digest != p.Digest {
		return &StaleError{[]event.Difference{{Detail: fmt.Sprintf("the document was replaced by serial %d (%s, %s)", head.Serial, head.By, head.At.Format("2006-01-02 15:04:05"))}}}
	}
	ds, err := e.stale(ctx, set, p, recorded)
	if err != nil {
		return err
	}
	if len(ds) > 0 {
		slices.SortFunc(ds, func(a, b event.Difference) int { return a.Ref.Compare(b.Ref) })
		return &StaleError{ds}
	}
	return nil
}

// begin stores the document and the plan, marks the plan as spent, and opens the run with the first record of its journal, in
// this order: a crash in between leaves nothing that another run could trip over.
func (e *Engine) begin(ctx context.Context, lock *state.Lock, p *plan.Plan, op string, body []byte, digest string, o ApplyOptions) (run state.Run, log *journal.Log, err error) {
	if err := lock.Held(); err != nil { // a process that stood still since it took the lock writes nothing, not even what needs no lock
		return run, nil, err
	}
	worked, err := e.worked(ctx) // the plan does not know what another run has done since
	if err != nil {
		return run, nil, err
	}
	now := e.o.Now()
	run = state.Run{
		ID: e.o.NewID(now), Op: op, Status: state.RunOpen, Plan: digest, Serial: p.Site.Serial, By: e.o.Who,
		Epoch: lock.Epoch(), Started: now.UTC(), Steps: len(p.Steps), OnFail: string(o.OnFailure), Complete: p.Complete() && p.Worked == worked,
	}
	if !p.Destroy && len(p.Document) > 0 {
		if err := failpoint.At("document.put.before"); err != nil {
			return run, nil, err
		}
		// It goes on top of the revision that the plan was made for: a process that lost the lock must not bring back its
		// document.
		head, err := e.o.Store.PutDocument(ctx, p.Document, p.Digest, p.Site.Serial, e.o.Who, p.Revision)
		if err == nil {
			err = failpoint.At("document.put.after")
		}
		if err != nil {
			return run, nil, err
		}
		run.Serial = head.Serial
	}
	if p.Empty() {
		run.Status = state.RunApplied
		return run, nil, nil
	}
	if run.Body, err = e.o.Store.PutBlob(ctx, body); err != nil {
		return run, nil, err
	}
	for _, point := range []string{"plan.put.after", "run.open.before"} {
		if err := failpoint.At(point); err != nil {
			return run, nil, err
		}
	}
	log, err = journal.Start(ctx, e.o.Store, lock, run.ID, digest,
		[]state.Guard{e.o.Store.UnspentGuard(digest)}, []state.Op{e.o.Store.SpentOp(digest, run.ID), e.o.Store.PutRunOp(run)})
	if errors.Is(err, state.ErrGuard) {
		if by, spent, serr := e.o.Store.Spent(ctx, digest); serr == nil && spent {
			return run, nil, &SpentError{by}
		}
	}
	if err == nil {
		err = failpoint.At("run.open.after")
	}
	if err != nil {
		return run, nil, fmt.Errorf("open run %s: %w", run.ID, err)
	}
	return run, log, nil
}

// Resume continues the open or partial run with that id; the only such run when id is empty. A run that was being
// undone goes on being undone, as far as was requested; any other goes on forward.
func (e *Engine) Resume(ctx context.Context, id string, o ApplyOptions) (Result, error) {
	return e.again(ctx, "resume", id, o, func(run state.Run, p *plan.Plan, sum journal.Replay) (undo bool, err error) {
		if run.Status != state.RunOpen && run.Status != state.RunPartial {
			return false, fmt.Errorf("run %s ended %s: there is nothing to resume", run.ID, run.Stands())
		}
		return false, passed(ctx, e.o.Store, run, p, sum)
	})
}

// planOf reads the plan of a run, and the bytes that its digest covers.
func planOf(ctx context.Context, store *state.Store, run state.Run) (p *plan.Plan, body []byte, err error) {
	if body, err = store.Blob(ctx, run.Body); err != nil {
		return nil, nil, fmt.Errorf("the plan of run %s: %w", run.ID, err)
	}
	if p, err = plan.Decode(body); err != nil {
		return nil, nil, fmt.Errorf("run %s: %w", run.ID, err)
	}
	return p, body, nil
}

// again continues an existing run.
func (e *Engine) again(ctx context.Context, op, id string, o ApplyOptions, decide func(state.Run, *plan.Plan, journal.Replay) (bool, error)) (Result, error) {
	run, p, body, err := e.choose(ctx, op, id)
	if err != nil {
		return Result{}, err
	}
	return e.locked(ctx, op, func(ctx context.Context, lock *state.Lock) (Result, error) {
		log, sum, err := e.journalOf(ctx, run, p, body)
		if err != nil {
			return Result{}, err
		}
		// The stored run may be newer than what was read before the lock was taken.
		if run, err = e.o.Store.Run(ctx, run.ID); err != nil {
			return Result{}, err
		}
		undo, err := decide(run, p, sum)
		if errors.Is(err, errNothingLeft) {
			return Result{Run: run}, nil
		}
		if err != nil {
			return Result{Run: run}, err
		}
		touched := *p
		switch { // a rollback makes no calls for what it keeps, which need be neither free nor reachable
		case undo:
			touched.Steps = p.Steps[o.Keep:]
		case sum.Reverting:
			touched.Steps = p.Steps[sum.Keep:]
		}
		if err := e.free(ctx, run.ID, &touched); err != nil {
			return Result{}, err
		}
		recorded, err := e.o.Store.Records(ctx)
		if err != nil {
			return Result{}, err
		}
		e.recall(ctx, recorded, p)
		set, err := e.connect(ctx, p.Site, neededRefs(&touched))
		if err != nil {
			return Result{}, err
		}
		defer set.Bind(lock.Held)() // also what waits within a provider begins nothing after the lock was lost
		if err := reachable(set, &touched); err != nil {
			return Result{}, err
		}
		if err := e.sameServers(ctx, set, p); err != nil {
			return Result{}, err
		}
		if err := e.fence(ctx, set, lock, &touched); err != nil {
			return Result{}, err
		}
		run.Status, run.Kept, run.Ended, run.Epoch = state.RunOpen, 0, nil, lock.Epoch()
		if !undo { // otherwise the revert record opens it: a crash in between must not leave it open to go forward again
			if _, err := lock.Commit(ctx, nil, []state.Op{e.o.Store.PutRunOp(run)}); err != nil {
				return Result{}, fmt.Errorf("open run %s: %w", run.ID, err)
			}
		}
		if o.OnFailure == "" {
			o.OnFailure = apply.OnFailure(run.OnFail)
		}
		return e.carry(ctx, set, lock, p, run, log, recorded, o, undo)
	})
}

// choose returns the requested run, and its plan.
func (e *Engine) choose(ctx context.Context, op, id string) (state.Run, *plan.Plan, []byte, error) {
	run, err := e.pick(ctx, op, id)
	if err != nil {
		return run, nil, nil, err
	}
	p, body, err := planOf(ctx, e.o.Store, run)
	return run, p, body, err
}

// journalOf reads the journal of a run and what it adds up to.
func (e *Engine) journalOf(ctx context.Context, run state.Run, p *plan.Plan, body []byte) (*journal.Log, journal.Replay, error) {
	log, err := journal.Read(ctx, e.o.Store, run.ID)
	if err != nil {
		return nil, journal.Replay{}, err
	}
	sum, err := journal.Sum(log.Records, len(p.Steps))
	if err != nil {
		return nil, sum, err
	}
	if got := digestOf(body); sum.Plan != got {
		return nil, sum, fmt.Errorf("run %s: its journal is about the plan %.12s, and the plan in the store is %.12s: the store is damaged", run.ID, sum.Plan, got)
	}
	return log, sum, nil
}

// pick returns the requested run.
func (e *Engine) pick(ctx context.Context, op, id string) (state.Run, error) {
	if id != "" {
		run, err := e.o.Store.Run(ctx, id)
		if errors.Is(err, state.ErrNotFound) {
			return run, remedy.For(fmt.Errorf("there is no run %s", id), remedy.Say("see which there are", remedy.Action{Verb: remedy.Runs}))
		}
		return run, err
	}
	runs, err := e.o.Store.Runs(ctx)
	if err != nil {
		return state.Run{}, err
	}
	i := slices.IndexFunc(runs, func(r state.Run) bool {
		return r.Status == state.RunOpen || r.Status == state.RunPartial || (op == "rollback" && r.Status != state.RunReverted)
	})
	if i < 0 {
		return state.Run{}, fmt.Errorf("there is no run to %s", op)
	}
	return runs[i], nil
}

// carry hands a run to package apply.
func (e *Engine) carry(ctx context.Context, set *providers.Set, lock *state.Lock, p *plan.Plan, run state.Run, log *journal.Log, recorded []state.Record, o ApplyOptions, undo bool) (Result, error) {
	if o.OnFailure == "" {
		o.OnFailure = apply.Rollback
	}
	carried, release := e.cancellable(ctx, lock)
	defer release()
	run, ds, err := apply.Carry(carried, apply.Options{
		Kinds: e.o.Kinds, Providers: set, Store: e.o.Store, Lock: lock, Plan: p, Run: run, Log: log, Recorded: recorded,
		Undo: undo, Keep: o.Keep, OnFailure: o.OnFailure, Parallelism: e.o.Parallelism, Retry: e.o.Retry, Interrupt: o.Interrupt,
		Emit: e.o.Emit, Logger: e.o.Logger,
	})
	if err == nil && run.Status != state.RunOpen {
		if perr := e.prune(ctx, lock); perr != nil { // nothing depends on pruning, and the next run tries again
			e.o.Logger.Warn("removing old runs", "error", perr)
		}
	}
	return Result{run, ds}, err
}

func digestOf(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// Free returns why nothing new may be applied to the site: *state.LockedError when another process still works on it
// after the wait for the lock, *HeldError when a run is open or the site is held. Other holds matter only once there is a plan.
func (e *Engine) Free(ctx context.Context) error {
	holder, err := e.o.Store.LockInfo(ctx)
	switch {
	case err == nil && holder == nil:
		return e.free(ctx, "", nil)
	case err != nil && e.o.LockWait <= 0:
		return err
	}
	_, err = e.locked(ctx, "look", func(ctx context.Context, _ *state.Lock) (Result, error) { return Result{}, e.free(ctx, "", nil) })
	return err
}

// Held returns, without waiting, why a plan could not be applied now; nil while a process works on the site, because the
// outcome is still open.
func (e *Engine) Held(ctx context.Context, p *plan.Plan) error {
	if holder, err := e.o.Store.LockInfo(ctx); err != nil || holder != nil {
		return err
	}
	return e.free(ctx, p.Undoes, p)
}

// free refuses to work while an open run, a freeze, or a hold of the site, of what the plan changes or of its revision of
// the document is in the way; those of the run that is being resumed do not count. Without a plan only the whole site counts.
func (e *Engine) free(ctx context.Context, run string, p *plan.Plan) error {
	stops, err := e.o.Store.Stops(ctx)
	if err != nil {
		return err
	}
	refs := []schema.Ref{{Scope: schema.ScopeSite}}
	if p != nil {
		refs = append(refs, stepRefs(p)...)
	}
	var holds []state.Hold
	for _, r := range refs {
		for _, h := range stops.On(r, run) {
			if !slices.Contains(holds, h) {
				holds = append(holds, h)
			}
		}
	}
	if p != nil && run == "" && p.Digest != "" {
		head, err := e.o.Store.Head(ctx)
		if err != nil && !errors.Is(err, state.ErrNotFound) {
			return err
		}
		if i := slices.IndexFunc(stops.Holds, func(h state.Hold) bool { return h.Scope == state.SerialScope(head.Serial) }); i >= 0 && head.Digest == p.Digest && !p.Empty() {
			holds = append(holds, stops.Holds[i])
		}
	}
	if len(holds) > 0 {
		held := &HeldError{Holds: holds}
		for _, h := range holds {
			if r, err := e.o.Store.Run(ctx, h.Run); h.Run != "" && err == nil && Undoable(ctx, e.o.Store, r) {
				held.Undoable = append(held.Undoable, h.Run)
			}
		}
		return held
	}
	return Settled(ctx, e.o.Store, run)
}

// Settled fails with a *HeldError while a run other than the given one is open.
func Settled(ctx context.Context, store *state.Store, run string) error {
	open, err := openBeside(ctx, store, run)
	if err != nil || open == nil {
		return err
	}
	held := &HeldError{Open: open.ID}
	if Undoable(ctx, store, *open) {
		held.Undoable = []string{open.ID}
	}
	return held
}

// openBeside returns an open run; nil when the given run itself is open.
func openBeside(ctx context.Context, store *state.Store, run string) (*state.Run, error) {
	runs, err := store.Runs(ctx)
	if err != nil {
		return nil, err
	}
	var open *state.Run
	for i := range runs {
		if runs[i].Status == state.RunOpen {
			if open = &runs[i]; open.ID == run {
				return nil, nil
			}
		}
	}
	return open, nil
}

// locked calls do while the site lock is held.
func (e *Engine) locked(ctx context.Context, op string, do func(context.Context, *state.Lock) (Result, error)) (res Result, err error) {
	info := state.LockInfo{Operation: op, Who: e.o.Who, PID: e.o.PID, Version: e.o.Version}
	lock, err := e.o.Store.Lock(ctx, info, state.LockOptions{
		TTL: e.o.LockTTL, Wait: e.o.LockWait, OnWait: func(i state.LockInfo) { e.o.Emit(event.LockWait{Holder: i}) },
	})
	if err != nil {
		return Result{}, err
	}
	e.o.Logger.Debug("site lock taken", "operation", op, "epoch", lock.Epoch())
	defer func() {
		cerr := lock.Close()
		if cerr != nil && err == nil {
			e.o.Logger.Warn("giving the site lock back", "error", cerr)
		}
		e.o.Logger.Debug("site lock given back", "operation", op, "epoch", lock.Epoch(), "clean", cerr == nil)
	}()
	res, err = do(ctx, lock)
	var unknown *UnknownError
	if errors.As(err, &unknown) && ctx.Err() != nil { // nothing could be observed because ctx was cancelled
		err = context.Cause(ctx)
	}
	return res, err
}

// fence stores our epoch in every far side that can store one, before anything is observed: what an earlier holder still
// sends there is refused from then on. A far side that cannot be reached is unknown. When one has seen a higher epoch
// although the lock is ours, the store must be older than it was: the site is held until somebody confirms that the store was
// restored.
func (e *Engine) fence(ctx context.Context, set *providers.Set, lock *state.Lock, p *plan.Plan) error {
	var scopes []string
	for _, r := range stepRefs(p) {
		scopes = append(scopes, r.Scope)
	}
	ctx = lock.Context(ctx)
	var mu sync.Mutex
	var unknown []plan.Unknown
	var outdated *providers.OutdatedError
	var wg sync.WaitGroup
	slots := make(chan struct{}, e.o.Parallelism)
	for _, far := range set.Fences(scopes) {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if err := far.Fence(ctx, lock.Epoch()); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errors.As(err, &outdated)
				unknown = append(unknown, plan.Unknown{Scope: far.Scope, Kind: far.Name, Error: err.Error()})
			}
		})
	}
	wg.Wait()
	if outdated != nil {
		h := state.Hold{Scope: schema.ScopeSite, By: e.o.Who, At: e.o.Now().UTC(), Older: true, Reason: fmt.Sprintf(
			"%s has obeyed a holder of the lock with the epoch %d, and the store has come to %d: the store was lost, or is an older one", outdated.On, outdated.Stored, outdated.Epoch)}
		if _, err := lock.Commit(ctx, nil, []state.Op{e.o.Store.HoldOp(h)}); err != nil {
			return err
		}
		return &HeldError{Holds: []state.Hold{h}}
	}
	if len(unknown) > 0 {
		slices.SortFunc(unknown, func(a, b plan.Unknown) int { return cmp.Compare(a.Scope, b.Scope) })
		return &UnknownError{Unknown: unknown}
	}
	return nil
}

// reachable fails with an *UnknownError when a provider that the plan needs could not be opened.
func reachable(set *providers.Set, p *plan.Plan) error {
	var unknown []plan.Unknown
	for _, r := range neededRefs(p) {
		if _, _, ok := set.Find(r.Scope, r.Kind); ok {
			continue
		}
		why := "no provider serves it"
		if err := set.Failure(r.Scope, r.Provider()); err != nil {
			why = err.Error()
		}
		if u := (plan.Unknown{Scope: r.Scope, Kind: r.Kind, Error: why}); !slices.Contains(unknown, u) {
			unknown = append(unknown, u)
		}
	}
	if len(unknown) > 0 {
		return &UnknownError{Unknown: unknown}
	}
	return nil
}

func stepRefs(p *plan.Plan) []schema.Ref {
	refs := make([]schema.Ref, len(p.Steps))
	for i := range p.Steps {
		refs[i] = p.Steps[i].Ref
	}
	return refs
}

// neededRefs returns the refs of the steps and of what is observed for them.
func neededRefs(p *plan.Plan) []schema.Ref {
	refs := stepRefs(p)
	for _, x := range p.Externals {
		if x.Unchecked == "" {
			refs = append(refs, x.Ref)
		}
	}
	return refs
}

func sameRecord(a, b *state.Record) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.ID == b.ID && a.Incarnation == b.Incarnation && a.Gone == b.Gone && a.Name == b.Name && a.Run == b.Run && diff.Same(a.Spec, b.Spec)
}

// externalNames returns the names that a plan has for the things that its specs refer to.
func externalNames(p *plan.Plan, recorded []state.Record) plan.Names {
	names := plan.Names{}
	for i := range recorded {
		if !recorded[i].Gone {
			names.Put(recorded[i].Ref, recorded[i].ID)
		}
	}
	for i := range p.Steps {
		names.Put(p.Steps[i].Ref, p.Steps[i].ExternalID)
	}
	return names
}

// changedSince returns how a thing differs from what a step expects; empty when it does not.
func (e *Engine) changedSince(s *plan.Step, have *providers.Thing, names plan.Names) string {
	gone := have == nil || have.Phase == providers.Leaving
	switch {
	case s.Action == plan.Create && (gone || s.Replace): // what is replaced is there under the same natural key
		return ""
	case s.Action == plan.Create:
		return "it exists by now"
	case gone:
		return "it is gone"
	case s.Called != "" && have.Name != s.Called:
		return fmt.Sprintf("it is called %q by now", have.Name)
	}
	kind := e.o.Kinds[s.Ref.Kind]
	now := diff.Named(kind, have.Spec, names.In(s.Ref.Scope))
	if now.Digest() == s.Fingerprint() {
		return ""
	}
	same := func(_, id string) string { return id }
	changes := append(diff.Compare(kind, s.Before, now, nil, nil, same), diff.Compare(kind, now, s.Before, nil, nil, same)...)
	if len(changes) == 0 {
		return "it changed"
	}
	was, _ := json.Marshal(changes[0].After)
	is, _ := json.Marshal(changes[0].Before)
	return fmt.Sprintf("%s changed from %s to %s", changes[0].Path, was, is)
}
