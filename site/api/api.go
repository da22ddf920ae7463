// Package api shows a site agent to programs, and lets those with a role change its site: an HTTP interface, and metrics for Prometheus.
//
// An [API] is told what its process does (events of the engine, rounds of the agent, whether it keeps the site or waits) and reads
// everything else from the store when it is asked; what it has read it uses again for two seconds, except records and the steps of a run.
// So each replica answers for the whole site, and what only the one that keeps the site can know is unknown at the others.
//
// Words: a replica is one process of converge serve; the keeper is the one that keeps the site; the others are on standby. A component
// is a part of the site that has a [State] of its own.
//
// Promises: without [Writes] nothing is written. Otherwise only what a role allows is, for a client that has shown a certificate with
// that role, to the store alone, under the same guards as the commands. What is not known is never called ok. Values of secret
// fields are shown as the commands show them, which is not at all. Bodies and the number of requests at a time are bounded. A
// request waits for the store for a few seconds at most.
package api

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"converge.dev/converge/engine/drift"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/site"
	"converge.dev/converge/site/outbox"
	"converge.dev/converge/state"
	"converge.dev/converge/trust"
)

// Options make an [API]. All are required unless they say otherwise.
type Options struct {
	Site    schema.Site // its name and id
	Mode    string      // of the agent
	Version string      // of converge
	Store   *state.Store

	// Needs lists what is configured, or can be reached, with which the site is kept.
	Needs func() []providers.Need
	// Nodes returns the nodes whose agents are, or were, connected to this replica. Optional: then no node is.
	Nodes func() []site.NodeStatus
	// Trust returns the newest trust document of the site. Optional: then there are no keys.
	Trust func() *trust.Document
	// Certificates returns the certificates that the site agent has for itself. Optional.
	Certificates func() []Certificate
	// Events returns how the events for the cloud stand; nil when it is told nothing. Optional: then it is not, either.
	Events func() *outbox.Standing
	// Enrolments returns how often this replica has asked for credentials with a one-time password, and how often it got them. Optional.
	Enrolments func() (attempted, succeeded int64)

	// Writes are what clients with a role may change. Optional: then nobody may change anything.
	Writes *Writes
	// Operate registers what clients in the role [certs.Operate] may call. Optional.
	Operate func(grpc.ServiceRegistrar)

	// ShowPlan returns a plan that waits as converge approve -show -json prints it.
	ShowPlan func(p *plan.Plan, w *state.Waiting) any
	// MaskRecord and MaskDrift remove the values of secret fields, as the commands do.
	MaskRecord func(state.Record) state.Record
	MaskDrift  func(*drift.Report) *drift.Report
	// Scrub removes secrets from the text of an error. Optional.
	Scrub func(string) string

	Sweep  time.Duration    // after how long everything has been observed again
	Logger *slog.Logger     // optional
	Now    func() time.Time // optional; time.Now
}

// An API answers for one replica of a site agent. Its methods may be called at the same time.
type API struct {
	o           Options
	metrics     *metrics
	facts       cached[*facts]
	runs        cached[runs]
	inventories cached[recorded]
	turn        chan struct{} // holds an element while all records are read, which takes more memory than anything else

	mu       sync.Mutex
	role     role
	since    time.Time         // of the role
	holder   *state.KeeperInfo // who keeps the site while this replica is on standby
	round    *round            // the last one; nil before the first since this replica keeps the site
	taken    *taken            // the inventory; nil before the first time since this replica keeps the site
	forget   *time.Timer       // drops the inventory from memory; nil while none is there
	looked   time.Time         // when the last round that went well ended; zero before the first
	run      string            // that this replica carries out; empty while there is none
	observed map[schema.Place]sight
}

// A role is what a replica does.
type role string

const (
	starting role = "starting"
	keeping  role = "keeper"
	waiting  role = "standby"
)

// A round is one look of the agent at the whole site.
type round struct {
	ended time.Time
	took  time.Duration
	err   string // empty: it went well
}

// A sight is the last observation of a kind in a scope.
type sight struct {
	at, since time.Time // since: when the result was last another one
	err       string
}

// New makes an API.
func New(o Options) *API {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Events == nil {
		o.Events = func() *outbox.Standing { return nil }
	}
	if o.Scrub == nil {
		o.Scrub = func(text string) string { return text }
	}
	a := &API{o: o, role: starting, since: o.Now(), observed: map[schema.Place]sight{}}
	a.turn = make(chan struct{}, 1)
	a.facts = cached[*facts]{now: o.Now, read: func(ctx context.Context) *facts { return read(ctx, o.Store) }}
	a.runs = cached[runs]{now: o.Now, read: func(ctx context.Context) runs {
		list, err := o.Store.Runs(ctx)
		return runs{list, err}
	}}
	a.inventories = cached[recorded]{now: o.Now, read: func(ctx context.Context) recorded { return readInventory(ctx, o.Store) }}
	a.metrics = newMetrics(a)
	return a
}

// Keeps says that this replica keeps the site from now on.
func (a *API) Keeps() { a.become(keeping, nil) }

// Waits says that this replica is on standby, because another process keeps the site.
func (a *API) Waits(holder state.KeeperInfo) { a.become(waiting, &holder) }

// Yields says that this replica no longer keeps the site, and is not on standby yet.
func (a *API) Yields() { a.become(starting, nil) }

// become changes the role. What was learned in the one before no longer counts.
func (a *API) become(r role, holder *state.KeeperInfo) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.role != r {
		a.role, a.since, a.round, a.taken, a.looked, a.run = r, a.o.Now(), nil, nil, time.Time{}, ""
		clear(a.observed)
	}
	a.holder = holder
}

// Rounded says that the agent has made a round, how long that took, and how it failed; nil when it did not.
func (a *API) Rounded(took time.Duration, err error) {
	r := &round{ended: a.o.Now(), took: took}
	if err != nil {
		r.err = a.text(err.Error())
	}
	a.metrics.rounded(took, err)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.round, a.run = r, "" // a run that was left open has not ended, and is no longer carried out
	if err == nil {
		a.looked = r.ended
	}
}

// Event takes an event of the engine. It is an [event.Sink].
func (a *API) Event(e event.Event) {
	a.metrics.event(e)
	switch e := e.(type) {
	case event.RunStarted:
		a.carries(e.Run.ID)
	case event.RunEnded:
		a.carries("")
	case event.Observed:
		a.sees(e)
	}
}

// carries says which run this replica carries out; none when it is empty.
func (a *API) carries(run string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.run = run
}

// sees takes an observation.
func (a *API) sees(seen event.Observed) {
	at := schema.Place{Scope: seen.Scope, Kind: seen.Kind}
	now := sight{at: a.o.Now()}
	if seen.Err != nil && providers.ClassOf(seen.Err) != providers.Unsupported { // a far side without the kind works
		now.err = a.text(seen.Err.Error())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now.since = now.at
	if was, ok := a.observed[at]; ok && (was.err == "") == (now.err == "") {
		now.since = was.since
	}
	a.observed[at] = now
}

// standing is what the process knows about itself.
type standing struct {
	role   role
	since  time.Time
	holder *state.KeeperInfo
	round  *round
	taken  *taken
	looked time.Time
	run    string
}

func (a *API) standing() standing {
	a.mu.Lock()
	defer a.mu.Unlock()
	return standing{a.role, a.since, a.holder, a.round, a.taken, a.looked, a.run}
}

// text returns a text of an error as it may be shown.
func (a *API) text(s string) string {
	const most = 1 << 10
	if s = a.o.Scrub(s); len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// nodes returns the nodes that this replica knows.
func (a *API) nodes() []site.NodeStatus {
	if a.o.Nodes == nil {
		return nil
	}
	return a.o.Nodes()
}
