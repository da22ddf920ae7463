package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"converge.dev/converge/engine/drift"
	"converge.dev/converge/internal/retry"
	"converge.dev/converge/schema"
	"converge.dev/converge/site"
	"converge.dev/converge/state"
)

// Limits.
const (
	MaxEvents = 10_000  // that are kept
	MaxBytes  = 8 << 20 // of those
	MaxLoose  = 1_000   // loose events that wait
	looseSize = 4 << 20 // bytes of those

	Patience = 5 * time.Minute // how long an event is tried that the receiver says is wrong
	tries    = 3               // of a loose event

	firstPause = time.Second
	longPause  = 5 * time.Minute
	again      = 2 * time.Second // after the store has failed
	batch      = 50              // events and what they tell, in one transaction

	largest = 256 << 10 // bytes of a drift report in an event
)

// Options make an [Outbox]. All are required unless they say otherwise.
type Options struct {
	Site      schema.Site // its name and id
	Store     *state.Store
	Webhook   string   // URL; http only to this machine
	TokenFile string   // optional: path of a file with a bearer token, which is read for each event
	CA        string   // optional: path of the authorities, in PEM, that have signed the certificate of the webhook
	Kinds     []string // optional: of the events that are sent; all when empty
	Version   string   // of converge

	// Nodes returns the nodes whose agents are, or were, connected to this process, and Node what is published about one of them.
	Nodes func() []site.NodeStatus
	Node  func(name string) any

	MaskDrift   func(*drift.Report) *drift.Report // removes what must not be published
	Scrub       func(string) string               // removes secrets from a text
	TraceParent string                            // optional: the W3C traceparent of who has started this process

	Transport http.RoundTripper // optional: instead of one that uses CA
	Logger    *slog.Logger
	Now       func() time.Time // optional; time.Now
}

// An Outbox sends the events of one site. Its methods may be called at the same time.
type Outbox struct {
	o        Options
	space    uuid.UUID // of the ids of events
	client   http.Client
	receiver string        // digest of where it is
	wake     chan struct{} // has an element while there may be something to send
	pages    pages

	settling sync.Mutex // one writing of how far they are delivered at a time

	mu    sync.Mutex
	keeps bool             // this process keeps the site
	kept  []state.Outgoing // that wait, in order
	has   map[string]bool  // the ids of those
	size  int              // of them, in bytes
	gone  map[string]int64 // that need not be sent any more and are still in the store: when they were written
	loose []state.Outgoing // that wait, in order
	lsize int              // of them, in bytes
	d     state.Delivery   // how far they are
	dirty bool             // d differs from what is in the store
	count struct {         // by this process
		delivered, failed, dropped, refused int64
	}
}

// New makes an outbox. It fails when the webhook, its authorities or its token cannot be used.
func New(o Options) (*Outbox, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if err := Check(o.Webhook); err != nil {
		return nil, err
	}
	b := &Outbox{o: o, space: uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://converge.dev/sites/"+o.Site.ID+"/events")), wake: make(chan struct{}, 1), gone: map[string]int64{}, has: map[string]bool{}}
	b.receiver = receiverOf(o.Webhook)
	b.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if b.client.Transport = o.Transport; o.Transport == nil {
		var err error
		if b.client.Transport, err = transport(o.CA); err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
	}
	if _, err := b.token(); err != nil {
		return nil, fmt.Errorf("token_file: %w", err)
	}
	return b, nil
}

// Check checks the URL of a webhook. Its error does not repeat it.
func Check(webhook string) error {
	u, err := url.Parse(webhook)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return errors.New("webhook: want a URL such as https://cloud.example/events")
	case u.User != nil:
		return errors.New("webhook: a URL with a user or password is not used; put a bearer token into token_file")
	case u.Fragment != "":
		return errors.New("webhook: a URL with a fragment is not used")
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return errors.New("webhook: without TLS, anyone in between could read and change the events; use https, or http to this machine only")
	}
	return nil
}

// Run sends events until ctx is done. Only the process that keeps the site calls it, while it does.
func (b *Outbox) Run(ctx context.Context) {
	if b.begin(ctx) != nil {
		return
	}
	defer b.end()
	var all sync.WaitGroup
	defer all.Wait()
	for what, do := range map[string]func(context.Context) error{
		"the events that wait":  b.mirror,
		"the runs":              b.tellRuns,
		"what waits for people": b.tellWaiting,
		"the drift report":      b.tellDrift,
		"the inventory":         b.tellInventory,
		"the nodes":             b.tellNodes,
	} {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := do(ctx); ctx.Err() == nil && !errors.Is(err, state.ErrGuard) { // which says that the one that kept the site before has not ended
					b.o.Logger.Warn("the events for the cloud: "+what+" cannot be followed", "error", err, "again_in", again)
				}
				_ = retry.Sleep(ctx, again)
			}
		})
	}
	b.send(ctx)
}

// begin reads how far the events are delivered.
func (b *Outbox) begin(ctx context.Context) error {
	for {
		d, err := b.o.Store.Delivery(ctx)
		if err == nil {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.d, b.dirty, b.keeps = d, false, true
			return nil
		}
		b.o.Logger.Warn("the events for the cloud cannot be read", "error", err, "again_in", again)
		if err := retry.Sleep(ctx, again); err != nil {
			return err
		}
	}
}

// end forgets what the next one to keep the site sends. Loose events are not sent by it.
func (b *Outbox) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.keeps, b.kept, b.size, b.loose, b.lsize, b.pages = false, nil, 0, nil, 0, pages{}
	clear(b.gone)
	clear(b.has)
}

// mirror follows the events that are kept, and drops the oldest when they are too many.
func (b *Outbox) mirror(ctx context.Context) error {
	for changes, err := range b.o.Store.FollowOutbox(ctx) {
		if err != nil {
			return err
		}
		if b.take(changes) {
			b.settle(ctx)
		}
		b.rouse()
	}
	return ctx.Err()
}

// take takes over what has changed in the store. It reports whether something has to be removed from there.
func (b *Outbox) take(changes state.Changes[state.Outgoing]) (remove bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if changes.Whole {
		still := make(map[string]int64, len(b.gone))
		for _, c := range changes.Changes {
			if at, ok := b.gone[c.Name]; ok {
				still[c.Name] = at
			}
		}
		b.kept, b.size, b.gone = nil, 0, still
		clear(b.has)
	}
	added := false
	for _, c := range changes.Changes {
		switch at, ok := b.gone[c.Name]; {
		case c.Gone:
			delete(b.gone, c.Name)
			b.forget(c.Name)
		case c.Err != nil:
			b.o.Logger.Error("an event for the cloud cannot be read, and is dropped", "error", c.Err)
			b.drop(c.Name, c.Revision)
			remove = true
		case ok && at >= c.Revision: // it was sent, and is removed soon
		default:
			delete(b.gone, c.Name)
			b.forget(c.Name)
			b.kept = append(b.kept, c.Value)
			b.has[c.Name] = true
			b.size += len(c.Value.Body)
			added = true
		}
	}
	if added {
		slices.SortFunc(b.kept, state.Outgoing.Compare)
	}
	lost := 0
	for len(b.kept) > MaxEvents || b.size > MaxBytes {
		e := b.kept[0]
		b.forget(e.ID)
		b.drop(e.ID, e.Written)
		lost++
	}
	if lost > 0 {
		b.o.Logger.Error("events that the cloud should have got are dropped, the oldest ones: too many wait", "dropped", lost, "waiting", len(b.kept))
	}
	return remove || lost > 0
}

// forget removes an event from those that wait.
func (b *Outbox) forget(id string) {
	if !b.has[id] {
		return
	}
	delete(b.has, id)
	i := slices.IndexFunc(b.kept, func(e state.Outgoing) bool { return e.ID == id })
	b.size -= len(b.kept[i].Body)
	b.kept = slices.Delete(b.kept, i, i+1)
}

// drop gives up a kept event.
func (b *Outbox) drop(id string, written int64) {
	b.gone[id] = written
	b.d.Dropped++
	b.d.Unsaid++
	b.count.dropped++
	b.dirty = true
}

// tell queues a loose event. Of too many, the oldest are dropped.
func (b *Outbox) tell(kind, subject string, at time.Time, data any, same ...any) {
	if !b.wants(kind) {
		return
	}
	e, err := b.make(kind, subject, at, data, same...)
	if err != nil {
		b.o.Logger.Error("an event for the cloud cannot be written", "error", err)
		return
	}
	b.mu.Lock()
	b.loose = append(b.loose, e)
	b.lsize += len(e.Body)
	for len(b.loose) > MaxLoose || b.lsize > looseSize {
		b.lose()
	}
	b.mu.Unlock()
	b.rouse()
}

// lose drops the oldest loose event.
func (b *Outbox) lose() {
	b.unqueue()
	b.d.Dropped++
	b.d.Unsaid++
	b.count.dropped++
	b.dirty = true
}

// first reports whether a loose event is still the oldest one: it may have been dropped meanwhile.
func (b *Outbox) first(e state.Outgoing) bool { return len(b.loose) > 0 && b.loose[0].ID == e.ID }

func (b *Outbox) unqueue() {
	b.lsize -= len(b.loose[0].Body)
	b.loose = slices.Delete(b.loose, 0, 1)
}

// rouse makes send look.
func (b *Outbox) rouse() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// next returns the event that is sent next, and how many were dropped that the receiver has not been told of.
func (b *Outbox) next() (e state.Outgoing, dropped int64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case len(b.kept) > 0 && (len(b.loose) == 0 || !b.loose[0].At.Before(b.kept[0].At)):
		return b.kept[0], b.d.Unsaid, true
	case len(b.loose) > 0:
		return b.loose[0], b.d.Unsaid, true
	}
	return e, b.d.Unsaid, false
}

// send sends what waits, one after the other.
func (b *Outbox) send(ctx context.Context) {
	pauses := b.pauses()
	var wrong string    // id of the event that the receiver says is wrong
	var since time.Time // when it has said so first
	tried := map[string]int{}
	for ctx.Err() == nil {
		e, dropped, ok := b.next()
		paged := false
		if !ok {
			var wait time.Duration
			if e, wait, paged = b.page(ctx); !paged {
				b.idle(ctx, wait)
				continue
			}
		}
		err := b.deliver(ctx, e, dropped)
		if err == nil {
			clear(tried)
			pauses, wrong = b.pauses(), ""
			if paged {
				b.turned(ctx)
			}
			b.delivered(e, dropped)
			b.settle(ctx)
			continue
		}
		if ctx.Err() != nil {
			return
		}
		b.failed(ctx, e, err)
		if paged {
			b.unturned(ctx, err)
			continue
		}
		pause := pauses()
		answer := (*answerError)(nil)
		if errors.As(err, &answer) {
			pause = max(pause, answer.after)
		}
		switch refused := answer != nil && answer.refuses(); {
		case e.Revision == 0:
			if tried[e.ID]++; refused || tried[e.ID] >= tries {
				b.giveUp(e)
			}
		case !refused:
		case wrong != e.ID:
			wrong, since = e.ID, b.o.Now()
			b.o.Logger.Error("the receiver of events says that one is wrong", "id", e.ID, "type", e.Type, "error", err, "given_up_after", Patience)
		case b.o.Now().Sub(since) >= Patience:
			b.o.Logger.Error("the receiver of events goes on to say that one is wrong: the event is given up", "id", e.ID, "type", e.Type, "error", err)
			b.refuse(e)
			b.settle(ctx)
			pauses, pause = b.pauses(), 0
		}
		_ = retry.Sleep(ctx, pause)
	}
}

// idle waits until there may be something to send; at most for a while, unless that is 0.
func (b *Outbox) idle(ctx context.Context, wait time.Duration) {
	var over <-chan time.Time
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		over = t.C
	}
	select {
	case <-b.wake:
	case <-over:
	case <-ctx.Done():
	}
}

// pauses returns the pauses between tries: each between zero and twice the one before, so that many sites do not come at the same time.
func (b *Outbox) pauses() func() time.Duration {
	return retry.Policy{First: firstPause, Cap: longPause, Key: uuid.NewString()}.Pauses()
}

// delivered counts an event that the receiver has, and which has told it how many others were dropped.
func (b *Outbox) delivered(e state.Outgoing, dropped int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.d.Failing != nil && b.pages.pauses == nil { // others than those of the inventory are delivered while these are not
		b.o.Logger.Info("events are delivered again", "waiting", len(b.kept)+len(b.loose), "since", *b.d.Failing)
		b.d.Error, b.d.Failing, b.dirty = "", nil, true
	}
	if dropped > 0 {
		b.d.Unsaid, b.dirty = b.d.Unsaid-dropped, true
	}
	b.count.delivered++
	if e.Revision == 0 {
		if b.first(e) {
			b.unqueue()
		}
		return
	}
	now := b.o.Now().UTC()
	b.d.Delivered++
	b.d.Last, b.d.LastType, b.d.LastAt, b.dirty = e.ID, e.Type, &now, true
	b.remove(e)
}

// remove notes that a kept event need not be sent any more.
func (b *Outbox) remove(e state.Outgoing) {
	if b.has[e.ID] && slices.ContainsFunc(b.kept, func(k state.Outgoing) bool { return k.ID == e.ID && k.Written == e.Written }) {
		b.forget(e.ID)
		b.gone[e.ID] = e.Written
	}
}

// failed counts a try that failed.
func (b *Outbox) failed(ctx context.Context, e state.Outgoing, err error) {
	b.mu.Lock()
	text, first := b.shown(err.Error()), b.d.Failing == nil
	other := b.d.Error != text
	if first {
		now := b.o.Now().UTC()
		b.d.Failing = &now
	}
	if first || other {
		b.d.Error, b.dirty = text, true
	}
	b.count.failed++
	waiting := len(b.kept)
	b.mu.Unlock()
	if first || other {
		b.o.Logger.Warn("events cannot be delivered, and wait", "type", e.Type, "error", text, "kept", waiting)
		b.settle(ctx)
	}
}

// giveUp drops a loose event.
func (b *Outbox) giveUp(e state.Outgoing) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.first(e) {
		b.lose()
	}
}

// refuse gives up a kept event that the receiver does not take.
func (b *Outbox) refuse(e state.Outgoing) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.d.Refused++
	b.d.Unsaid++
	b.count.refused++
	b.dirty = true
	b.remove(e)
}

// settle removes from the store what need not be sent any more, and writes how far the events are delivered. What cannot be written is
// written next time; if this process ends before, it is sent once more.
func (b *Outbox) settle(ctx context.Context) {
	b.settling.Lock()
	defer b.settling.Unlock()
	for ctx.Err() == nil {
		b.mu.Lock()
		d, dirty := b.d, b.dirty
		written := map[string]int64{}
		for id, at := range b.gone {
			if written[id] = at; len(written) == state.MaxOps/2 {
				break
			}
		}
		b.dirty = false
		b.mu.Unlock()
		if !dirty && len(written) == 0 {
			return
		}
		var ids []string
		for id := range written {
			ids = append(ids, id)
		}
		stored, err := b.o.Store.Settle(ctx, ids, d)
		if errors.Is(err, state.ErrGuard) || errors.Is(err, state.ErrUnknown) { // the one that kept the site before, or this very write
			if stored, err = b.o.Store.Delivery(ctx); err == nil {
				b.mu.Lock()
				b.d, b.dirty = b.d.After(stored), true
				b.mu.Unlock()
				continue
			}
		}
		b.mu.Lock()
		if err != nil {
			b.dirty = true
			b.mu.Unlock()
			if ctx.Err() == nil {
				b.o.Logger.Warn("how far events are delivered could not be written", "error", err)
			}
			return
		}
		b.d = b.d.After(stored)
		for id, at := range written {
			if b.gone[id] == at {
				delete(b.gone, id)
			}
		}
		b.mu.Unlock()
	}
}

// A Standing says how an outbox stands, as one process knows it.
type Standing struct {
	Sends   bool      // this process keeps the site: the others send nothing, and do not know what waits
	Waiting int       // kept and loose events
	Oldest  time.Time // when the oldest of those happened; zero when none waits
	Error   string    // why the last try failed; empty: it did not

	Delivered, Failed, Dropped, Refused int64 // by this process: events, but for Failed, which are tries
}

// Standing returns how the outbox stands.
func (b *Outbox) Standing() Standing {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := Standing{
		Sends: b.keeps, Waiting: len(b.kept) + len(b.loose), Error: b.d.Error,
		Delivered: b.count.delivered, Failed: b.count.failed, Dropped: b.count.dropped, Refused: b.count.refused,
	}
	for _, list := range [][]state.Outgoing{b.kept, b.loose} {
		if len(list) > 0 && (s.Oldest.IsZero() || list[0].At.Before(s.Oldest)) {
			s.Oldest = list[0].At
		}
	}
	return s
}
