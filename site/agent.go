// Package site keeps a site as its document says, without anybody who runs a command: the site agent.
//
// An [Agent] follows the store and the providers. Whenever something has changed, and from time to time in any case, it reports how
// the site differs from what was applied, plans, and applies what its [Mode] allows. The document may allow it less, kind by kind and
// scope by scope. What is left to people is stored as one plan, which is applied once, exactly as it is, when as many people have
// approved it as the document wants. The agent uses the same engine, lock and journal as the commands do, so both exclude each other run
// by run, and what it has begun can be resumed by either.
//
// [Nodes] are the nodes whose agents are connected, as providers. An [Inventory] records what the site has.
package site

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/drift"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/retry"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A Mode says what the agent may do by itself.
type Mode string

// The modes.
const (
	Observe Mode = "observe" // it reports how the site differs, and what would be done
	Approve Mode = "approve" // it also applies what people have approved
	Enforce Mode = "enforce" // it also applies what interrupts nothing and can be undone exactly, without asking
)

// Modes lists all modes, the most careful one first.
var Modes = []Mode{Observe, Approve, Enforce}

// Options make an agent. All are required unless they say otherwise.
type Options struct {
	Engine *engine.Engine
	Store  *state.Store
	Mode   Mode // the most that it may do; the document's policy.reconcile can only lower it

	// Inbox accepts the document in the inbox, if there is one. Its error is logged, and the document that the site has stays in
	// force.
	Inbox func(context.Context) error
	// Desired returns the newest accepted document; state.ErrNotFound when there is none yet.
	Desired func(context.Context) (*schema.Document, error)
	// Ended is told of each run of the agent that has ended, for the cloud whose document it was for. Optional.
	Ended func(state.Run)
	// Said is asked what is written in the transaction that publishes another status, and then called once that is written. Optional.
	Said func(was, is Status) (with []state.Op, then func())
	// Mask removes from a report what must not be published.
	Mask func(*drift.Report) *drift.Report
	// Reached lists the providers that can be reached now: they are watched.
	Reached func() []providers.Need
	// Renewed lists the scopes whose providers may serve something else than when it was called last, and whose providers are opened anew.
	Renewed func() []string
	// Rounded is told of each round: how long it took, and how it failed. Optional.
	Rounded func(took time.Duration, err error)

	Sweep  time.Duration // how often at least everything is looked at, also what no change is reported of
	Logger *slog.Logger
	Now    func() time.Time // optional; time.Now
}

// An Agent keeps one site.
type Agent struct {
	o      Options
	seen   *engine.Memory // of this time as the one that keeps the site
	wake   chan struct{}  // has an element while something may have changed
	again  *time.Timer    // makes it look although nothing has changed
	report []byte         // the one published last, without its time
	status Status         // the one published last

	silent map[providers.Need]time.Time // what is left out, and until when: nodes, without a provider, and providers of the site
	rounds []time.Time                  // when the last ones began
	own    string                       // digest of the plan that it has begun to apply, and whose run may be open
	lapsed string                       // why the plan that was approved is not applied, until the next one waits
}

// New makes an agent.
func New(o Options) *Agent {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Agent{o: o, wake: make(chan struct{}, 1), silent: map[providers.Need]time.Time{}}
}

// A Phase says how a site stands.
type Phase string

// The phases.
const (
	NoDocument Phase = "no-document" // nothing is desired yet
	InSync     Phase = "in-sync"     // the site is as the document says
	Differs    Phase = "differs"     // it is not, and the mode leaves it so
	Waiting    Phase = "waiting"     // what would have to be done needs a person's approval
	Refused    Phase = "refused"     // what would have to be done may not be: the document, or what it protects, has to change
	Applying   Phase = "applying"    // a run is in progress
	Held       Phase = "held"        // nothing may be applied
	Unknown    Phase = "unknown"     // a part of the site could not be observed
	Failed     Phase = "failed"      // the last try went wrong
)

// A Status says how the site stands, for the cloud: the key status of the store.
type Status struct {
	Site   schema.Site `json:"site"`
	Mode   Mode        `json:"mode"`
	Phase  Phase       `json:"phase"`
	Since  time.Time   `json:"since"` // when it last became different
	Detail string      `json:"detail,omitempty"`
	Steps  int         `json:"steps,omitempty"`        // of the plan that waits or is being applied
	Digest string      `json:"approval,omitempty"`     // what would approve it
	Counts string      `json:"plan_summary,omitempty"` // what the plan that waits would do, in numbers
	Given  string      `json:"approvals,omitempty"`    // how many people have approved the plan that waits, and who
	Run    string      `json:"run,omitempty"`          // the last one
	Plan   string      `json:"plan,omitempty"`         // digest of the plan whose run the agent has begun and not ended: it resumes that
}

const (
	busy  = 2 * time.Second  // how soon it is tried again while somebody else works on the site
	later = 10 * time.Second // how soon after something went wrong

	most   = 20 // rounds within that time are not held back
	within = 10 * time.Second

	leftOut = 2 * time.Minute // how long a node is left out that did not answer when a run began
)

// Run keeps the site until ctx is done, and then returns its cause. A run that is in progress then starts no more steps. The next agent
// resumes it, as it does one whose process was killed; a run that a person has begun and that needs
// no confirmation, or that somebody has cancelled, is left to people.
func (a *Agent) Run(ctx context.Context) error {
	if err := a.recall(ctx); err != nil {
		return err
	}
	sweep := a.o.Sweep - rand.N(a.o.Sweep/10) // not at the same time at all sites
	a.seen = a.o.Engine.Remember(engine.Remembering{Silent: a.o.Sweep / 20, Sweep: sweep})
	a.report = nil // others have worked on the site since, and have published how it differs
	a.again = time.AfterFunc(sweep, a.Look)
	defer func() { a.again.Stop() }()
	ctx, stop := context.WithCancelCause(ctx)
	var background sync.WaitGroup
	defer background.Wait()
	defer stop(nil)
	background.Go(func() { a.listen(ctx) })
	for {
		a.seen.Doubt() // nothing was watched
		site := a.round(ctx, nil)
		if site.ID == "" { // there is nothing to watch yet
			select {
			case <-a.wake:
			case <-ctx.Done():
			}
		} else if ctx.Err() == nil {
			a.follow(ctx, site)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// listen makes the agent look whenever the store says so.
func (a *Agent) listen(ctx context.Context) {
	for ctx.Err() == nil {
		for err := range a.o.Store.Wakes(ctx) {
			if err != nil {
				if ctx.Err() == nil {
					a.o.Logger.Warn("the store can no longer be followed", "error", err, "again_in", busy)
					_ = retry.Sleep(ctx, busy)
				}
				break
			}
			a.Look()
		}
	}
}

// follow does a round whenever something has changed, until the document is for another site.
func (a *Agent) follow(ctx context.Context, site schema.Site) {
	for changes, err := range a.o.Engine.Watch(ctx, site, engine.Watching{Needs: a.o.Reached, Wake: a.wake}) {
		if err != nil {
			if ctx.Err() == nil {
				a.o.Logger.Warn("the providers can no longer be watched", "error", err, "again_in", later)
				_ = retry.Sleep(ctx, later)
			}
			return
		}
		a.pace(ctx)
		if now := a.round(ctx, changes); ctx.Err() != nil || now.ID != site.ID {
			return
		}
	}
}

// pace waits when rounds follow each other without end, so that a node which reports changes all the time costs no more than this.
func (a *Agent) pace(ctx context.Context) {
	now := a.o.Now()
	if len(a.rounds) == most && now.Sub(a.rounds[0]) < within {
		_ = retry.Sleep(ctx, time.Second)
		now = a.o.Now()
	}
	if a.rounds = append(a.rounds, now); len(a.rounds) > most {
		a.rounds = a.rounds[1:]
	}
}

// round looks at what has changed of the site and does what the mode allows. It returns the site; the zero Site when there is no
// document yet.
func (a *Agent) round(ctx context.Context, changes []engine.Changed) schema.Site {
	a.seen.Changed(changes)
	for _, scope := range a.o.Renewed() {
		if err := a.o.Engine.Reopen(scope); err != nil {
			a.o.Logger.Warn("providers could not be closed", "scope", scope, "error", err)
		}
	}
	began := time.Now()
	site, again, err := a.keep(ctx)
	if a.o.Rounded != nil && ctx.Err() == nil {
		a.o.Rounded(time.Since(began), err)
	}
	if err != nil && ctx.Err() == nil {
		a.o.Logger.Warn("the site could not be kept", "error", err, "again_in", later)
		if serr := a.say(ctx, Status{Site: site, Phase: Failed, Detail: err.Error(), Run: a.status.Run}); serr != nil {
			a.o.Logger.Warn("the status could not be published", "error", serr)
		}
		again = later
	}
	a.lookIn(again)
	return site
}

// lookIn makes the agent look at the site after a while, and no longer when it was to look before; zero: at the next sweep.
func (a *Agent) lookIn(again time.Duration) {
	a.again.Stop()
	due := max(a.seen.Due().Sub(a.o.Now()), busy)
	a.again = time.AfterFunc(min(cmp.Or(again, due), due), a.Look)
}

// recall takes up what an earlier process has published: it is not published again, and its run may have to be resumed.
func (a *Agent) recall(ctx context.Context) error {
	body, err := a.o.Store.Published(ctx, "status")
	if errors.Is(err, state.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	var s Status
	if err := json.Unmarshal(body, &s); err != nil {
		a.o.Logger.Warn("the published status cannot be read, and is replaced", "error", err)
		return nil
	}
	a.status, a.own = s, s.Plan
	return nil
}

// Look makes the agent look at the site soon.
func (a *Agent) Look() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// keep is one round. It returns when to look again although nothing has changed; zero: at the next sweep.
func (a *Agent) keep(ctx context.Context) (site schema.Site, again time.Duration, err error) {
	if err := a.o.Inbox(ctx); err != nil && ctx.Err() == nil {
		a.o.Logger.Warn("the document in the inbox is not accepted", "error", err)
	}
	doc, err := a.o.Desired(ctx)
	if errors.Is(err, state.ErrNotFound) {
		return site, 0, a.say(ctx, Status{Phase: NoDocument})
	}
	if err != nil {
		return site, 0, err
	}
	site = doc.Site
	free := a.o.Engine.Free(ctx) // before it looks: what a run changes after this is reported, and looked at again
	if err := a.seen.Look(ctx, doc); err != nil {
		return site, 0, err
	}
	if err := a.compare(ctx); err != nil {
		return site, 0, err
	}
	var locked *state.LockedError
	var held *engine.HeldError
	switch err := free; {
	case errors.As(err, &locked):
		return site, busy, nil
	case errors.As(err, &held):
		return a.held(ctx, site, held)
	case err != nil:
		return site, 0, err
	}
	a.own = "" // no run is open
	p, err := a.seen.Plan(ctx, plan.Options{})
	if err != nil {
		return site, 0, err
	}
	return a.decide(ctx, doc, p)
}

// held resumes the run that keeps the site from being worked on, when that is the agent's own, or one that has to be confirmed and whose
// process has ended: that is undone, unless it was confirmed. Otherwise it says what holds the site.
func (a *Agent) held(ctx context.Context, site schema.Site, h *engine.HeldError) (_ schema.Site, again time.Duration, err error) {
	s := Status{Site: site, Phase: Held, Detail: describe(h), Run: a.status.Run}
	if h.Open == "" || a.o.Mode == Observe {
		return site, 0, a.say(ctx, s)
	}
	run, err := a.o.Store.Run(ctx, h.Open)
	if err != nil {
		return site, 0, err
	}
	own := run.Plan == a.own
	if !own && run.Confirm == 0 || run.Cancelled != 0 { // somebody wants to decide
		return site, 0, a.say(ctx, s)
	}
	if own && a.o.Mode == Approve { // an agent that might do more has begun it
		w, _, _, err := a.waiting(ctx)
		if err != nil {
			return site, 0, err
		}
		if run.Plan != w.Plan {
			s.Detail += ", and was begun without approval: converge resume or converge rollback ends it"
			return site, 0, a.say(ctx, s)
		}
	}
	a.o.Logger.Info("a run is resumed", "run", run.ID)
	if err := a.say(ctx, Status{Site: site, Phase: Applying, Steps: run.Steps, Run: run.ID}); err != nil {
		return site, 0, err
	}
	res, err := a.o.Engine.Resume(context.WithoutCancel(ctx), run.ID, a.applying(ctx))
	var locked *state.LockedError
	switch {
	case errors.As(err, &locked):
		return site, busy, nil
	case errors.As(err, &h):
		s.Detail = describe(h)
		return site, 0, a.say(ctx, s)
	case stopped(err):
		s.Detail = err.Error()
		return site, later, a.say(ctx, s)
	case err != nil:
		return site, 0, err
	}
	a.own = ""
	a.ended(res.Run)
	a.Look() // there may be more to do
	if res.Run.Status != state.RunApplied {
		return site, 0, a.say(ctx, failed(site, res.Run))
	}
	return site, 0, nil
}

// stopped reports whether a run stays open because somebody wanted it to stop, by a hold, a freeze or a request. That is no failure: the next
// look finds what stops it.
func stopped(err error) bool {
	return errors.As(err, new(*engine.StoppedError)) || errors.Is(err, engine.ErrInterrupted)
}

// applying are the options of a run. When ctx is done it ends in order: it starts no more steps, and does not stop in the middle of one.
func (a *Agent) applying(ctx context.Context) engine.ApplyOptions {
	return engine.ApplyOptions{AllowPartial: true, Interrupt: ctx.Done()}
}

func (a *Agent) ended(run state.Run) {
	if a.o.Ended != nil {
		a.o.Ended(run)
	}
}

// failed is the status after a run that did not end applied.
func failed(site schema.Site, run state.Run) Status {
	return Status{Site: site, Phase: Failed, Steps: run.Steps, Run: run.ID, Detail: fmt.Sprintf("run %s ended %s: %s", run.ID, run.Status, run.Message)}
}

// compare reports how the site differs from what was applied last, where that has become different.
func (a *Agent) compare(ctx context.Context) error {
	r, err := a.seen.Drift(ctx)
	if err != nil {
		return err
	}
	r = a.o.Mask(r)
	timeless := *r
	timeless.At = time.Time{}
	body, err := json.Marshal(timeless)
	if err != nil || bytes.Equal(body, a.report) {
		return err
	}
	published, err := Shortened(r, largest)
	if err != nil {
		return err
	}
	if err := a.o.Store.Publish(ctx, "drift/latest", published); err != nil { // nobody is kept from healing because it cannot be told
		a.o.Logger.Error("the drift report could not be published", "error", err)
	} else {
		a.report = body
		a.o.Logger.Info("drift", "clean", r.Clean(), "complete", r.Complete, "drifted", len(r.Drifted), "unstated", len(r.Unstated))
	}
	return nil
}

// largest is the size in bytes of the largest report that is published; the store has a limit for a value.
const largest = 1 << 20

// Shortened returns a report as JSON. Of one that has more than that many bytes it has the first entries of each list, and says how many
// are left out.
func Shortened(r *drift.Report, most int) ([]byte, error) {
	body, err := json.Marshal(r)
	for n := 1000; err == nil && len(body) > most && n > 0; n /= 2 {
		c := *r
		c.Drifted, c.Unstated, c.Strays = first(c.Drifted, n, &c.Omitted), first(c.Unstated, n, &c.Omitted), first(c.Strays, n, &c.Omitted)
		c.Unmanaged, c.Remarks, c.Unknown = first(c.Unmanaged, n, &c.Omitted), first(c.Remarks, n, &c.Omitted), first(c.Unknown, n, &c.Omitted)
		body, err = json.Marshal(c)
	}
	return body, err
}

// first returns the first n elements of a list, and counts the others.
func first[T any](list []T, n int, others *int) []T {
	if len(list) <= n {
		return list
	}
	*others += len(list) - n
	return list[:n]
}

// decide does with a plan what the modes allow. What is left to a person, what is only observed, what is held, and what is unknown, does
// not keep the rest from being done.
func (a *Agent) decide(ctx context.Context, doc *schema.Document, p *plan.Plan) (site schema.Site, again time.Duration, err error) {
	apart := a.observed(doc, p) // nothing is done about these
	seen := Status{Phase: Differs, Steps: len(p.Steps)}
	if len(apart) > 0 {
		seen.Digest = p.Approval()
		if p, err = a.seen.Plan(ctx, plan.Options{ExcludeRefs: apart}); err != nil {
			return doc.Site, 0, err
		}
	}
	s, again := a.stands(doc, p)
	if len(apart) > 0 && (s.Phase == InSync || s.Phase == Differs) {
		s.Phase, s.Steps, s.Digest = seen.Phase, seen.Steps, seen.Digest
	}
	if a.o.Mode == Observe || len(p.Refusals) > 0 || p.Empty() {
		return p.Site, again, cmp.Or(a.nothingWaits(ctx), a.say(ctx, s))
	}
	if out, who, first := a.absent(doc, p); len(out) > 0 {
		s.Phase, s.Detail, again = Unknown, who+" did not answer when a run began, and is left out for a while", first
		maps.Copy(apart, out)
	}
	var held *engine.HeldError
	switch err := a.o.Engine.Held(ctx, p); {
	case errors.As(err, &held):
		s.Phase, s.Detail = Held, describe(held)
		on := heldBy(p, held.Holds)
		if len(on) == 0 {
			return p.Site, again, a.say(ctx, s)
		}
		maps.Copy(apart, on)
	case err != nil:
		return p.Site, 0, err
	}
	leave, _ := a.left(doc, p)
	auto := p
	if out := union(apart, leave); len(out) > 0 && rest(p, out) {
		if auto, err = a.seen.Plan(ctx, plan.Options{ExcludeRefs: out}); err != nil {
			return doc.Site, 0, err
		}
	} else if len(out) > 0 { // nothing is left; that need not be planned
		auto = &plan.Plan{}
	}
	if more, _ := a.left(doc, auto); len(more) == 0 && len(auto.Refusals) == 0 && !auto.Empty() {
		if err := a.o.Engine.Held(ctx, auto); errors.As(err, &held) {
			s.Phase, s.Detail = Held, describe(held)
			return p.Site, again, a.say(ctx, s)
		} else if err != nil {
			return p.Site, 0, err
		}
		then := s
		if s.Phase == Differs && len(apart) == 0 {
			then.Phase, then.Steps, then.Digest = InSync, 0, ""
		}
		site, again, err := a.apply(ctx, doc, auto, consent{}, then, again)
		if err == nil || ctx.Err() != nil || len(leave) == 0 || a.o.Engine.Free(ctx) != nil {
			return site, again, err
		}
		a.o.Logger.Warn("what needs no approval could not be applied; what does is not kept from it", "error", err, "again_in", later)
		for i := range auto.Steps { // no run is open: nothing of it was begun
			apart[auto.Steps[i].Ref] = true
		}
		a.own, s.Phase, s.Detail = "", Failed, err.Error()
		return a.leave(ctx, doc, p, apart, s, later)
	}
	if len(leave) == 0 {
		return p.Site, again, cmp.Or(a.nothingWaits(ctx), a.say(ctx, s))
	}
	return a.leave(ctx, doc, p, apart, s, again)
}

// stands returns how the site stands according to a plan, and when to look again.
func (a *Agent) stands(doc *schema.Document, p *plan.Plan) (s Status, again time.Duration) {
	s = Status{Site: p.Site, Steps: len(p.Steps), Run: a.status.Run}
	_, why := a.left(doc, p)
	switch {
	case len(p.Refusals) > 0:
		s.Phase, s.Detail = Refused, p.Refusals[0].Reason
		if ref := p.Refusals[0].Ref; !ref.IsZero() {
			s.Detail = ref.String() + ": " + s.Detail
		}
		if more := len(p.Refusals) - 1; more > 0 {
			s.Detail += fmt.Sprintf(" (and %d more)", more)
		}
	case why != "":
		s.Phase, s.Detail, s.Digest = Waiting, why, p.Approval()
	case p.Partial():
		s.Phase, s.Detail = Unknown, incomplete(p)
		again = later
	case p.Empty():
		s.Phase = InSync
	default:
		s.Phase, s.Digest = Differs, p.Approval()
	}
	return s, again
}

// consent is what people have said to a plan; nothing, when it needs no approval.
type consent struct {
	approval string
	by       []string
	guards   []state.Guard // hold while it stands
}

// apply carries out a plan while the consent to it stands. Then is how the site stands once that is done.
func (a *Agent) apply(ctx context.Context, doc *schema.Document, p *plan.Plan, c consent, then Status, again time.Duration) (schema.Site, time.Duration, error) {
	if err := a.allowed(doc, p, c.approval != ""); err != nil {
		return p.Site, 0, err
	}
	saved, err := p.Encode()
	if err != nil {
		return p.Site, 0, err
	}
	a.own = saved.Digest // it is published before the run can begin, so that whoever comes next knows whose run that is
	s := Status{Site: p.Site, Phase: Applying, Steps: len(p.Steps), Run: then.Run}
	if err := a.say(ctx, s); err != nil {
		return p.Site, 0, err
	}
	o := a.applying(ctx)
	o.Approve, o.ApprovedBy, o.Guards = c.approval, c.by, c.guards
	res, err := a.o.Engine.Apply(context.WithoutCancel(ctx), p, o)
	if res.Run.ID != "" {
		s.Run = res.Run.ID
		then.Run, a.status.Run = s.Run, s.Run
	}
	var locked *state.LockedError
	var stale *engine.StaleError
	var unknown *engine.UnknownError
	if errors.As(err, &stale) || errors.As(err, &unknown) { // the next plan sees what has changed
		a.seen.Doubt()
	}
	switch {
	case c.approval != "" && errors.As(err, &stale):
		return p.Site, busy, a.outdated(ctx, stale, then)
	case errors.As(err, &locked), errors.As(err, &stale):
		return p.Site, busy, nil
	case len(c.guards) > 0 && errors.Is(err, state.ErrGuard): // an approval was taken back, or another plan waits
		return p.Site, busy, nil
	case stopped(err):
		a.Look()
		return p.Site, 0, nil
	case errors.As(err, &unknown) && a.without(unknown.Unknown):
		s.Phase, s.Detail = Unknown, incomplete(&plan.Plan{Unknown: unknown.Unknown})
		return p.Site, busy, a.say(ctx, s) // the rest is done without them
	case err != nil:
		return p.Site, 0, err
	}
	a.own = ""
	a.ended(res.Run)
	if s = then; res.Run.Status != state.RunApplied {
		s = failed(p.Site, res.Run)
	}
	a.Look() // what the run changed is compared
	return p.Site, again, a.say(ctx, s)
}

// say publishes the status where it has become different.
func (a *Agent) say(ctx context.Context, s Status) error {
	if s.Phase != Waiting && s.Phase != Differs {
		s.Digest = "" // nobody can approve it now
	}
	s.Detail = clip(s.Detail)
	s.Mode, s.Since, s.Plan = a.o.Mode, a.status.Since, a.own
	if s == a.status {
		return nil
	}
	s.Since = a.o.Now().UTC()
	with, then := []state.Op(nil), func() {}
	if a.o.Said != nil {
		with, then = a.o.Said(a.status, s)
	}
	body, err := json.Marshal(s)
	if err == nil {
		err = a.o.Store.Publish(ctx, "status", body, with...)
	}
	if err == nil {
		a.status = s
		then()
		a.o.Logger.Info("status", "phase", string(s.Phase), "serial", s.Site.Serial, "steps", s.Steps, "detail", s.Detail)
	}
	return err
}

// describe says what holds a site.
func describe(h *engine.HeldError) string {
	if h.Open != "" {
		return "run " + h.Open + " is open: it has to be resumed or rolled back"
	}
	if len(h.Holds) == 0 {
		return ""
	}
	text := h.Holds[0].Text()
	if h.Holds[0].OnRevision() {
		text += "; nothing else is corrected until another revision is put, be it the one before, or the hold is released"
	}
	if more := len(h.Holds) - 1; more > 0 {
		text += fmt.Sprintf(" (and %d more)", more)
	}
	return text
}

// incomplete says what of a site could not be observed.
func incomplete(p *plan.Plan) string {
	if len(p.Unknown) > 0 {
		u := p.Unknown[0]
		text := fmt.Sprintf("%s/%s: %s", u.Scope, u.Kind, u.Error)
		if more := len(p.Unknown) - 1; more > 0 {
			text += fmt.Sprintf(" (and %d more)", more)
		}
		return text
	}
	return fmt.Sprintf("%d resources are left out", len(p.Omitted))
}
