// Package ovs is the provider of Open vSwitch on one node, through the node's OVSDB: its bridges and what is attached to them, and
// its settings.
//
// Each kind is a noun, in a file of its own. A noun declares the tables that it reads, reads its things from their rows
// and says what a change of one consists of; kind.go implements the four verbs of the contract with that, the same for all.
//
// # How a change is made
//
// Every verb reads first, checks what it saw against the version token and the mark of the call, and then sends one
// transaction. The transaction waits, with timeout 0, for each row to be as it was read, so a change by somebody else
// in between makes all of it fail with Conflict: no change is lost, in either direction. Of the row of Open_vSwitch, which everybody
// shares, it waits for the value of the one setting only. It also increments next_cfg. A
// verb succeeds once ovs-vswitchd has raised cur_cfg to that number and the interface has a port number and no error;
// it is not enough that the database has accepted the change. Likewise a thing is pending until cur_cfg has reached what next_cfg
// was when its present version was first observed: what others request later is not waited for.
//
// # What is read
//
// Observations are one transaction of selects: one atomic snapshot of the current database, or an error. There is no
// replica that could be outdated after a connection was lost. What is monitored is only a wake-up signal: cur_cfg for changes, and
// for a watch the rows of its kind, over a connection of its own.
//
// # Fencing
//
// The epoch of the holder of the site lock is in external_ids of the only row of Open_vSwitch. A new holder durably
// stores its own before it observes; every change is guarded by that row, so that a holder that was replaced without knowing it
// changes nothing any more.
//
// # Flows
//
// The flows of a bridge are not in the database but in ovs-vswitchd, which tells of no change of them. They are read and changed with
// the program ovs-ofctl, over the bridge's management socket in the run directory. The database has the name and the mark of
// a flow set, and its flows as they are declared. A change first writes these, under the epoch, and then changes the flows, in one bundle:
// what is interrupted in between is a flow set that lacks flows, never flows that belong to nobody.
//
// # When it is unavailable
//
// A server that cannot be reached, or does not answer, makes the provider's Health bad, and runs wait until it is back. Any
// answer makes that good again, whatever it says. An ovs-vswitchd that owes a configuration (next_cfg) and has applied none
// (cur_cfg) for half of Options.Settle also makes it bad, until it applies one: the database keeps answering, and shows as
// pending what is not being carried out.
//
// # What is ours
//
// A thing that converge made carries its mark in external_ids. Things without a mark are reported and never
// deleted; an update takes them over by writing the mark, except for the ports of virtual machines, which libvirt
// marks with vm-id. A bridge's local port and internal interface belong to it and are not reported as ports. A setting has no
// place for a mark; that converge made it is only recorded.
package ovs

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"converge.dev/converge/providers"
)

// DefaultEndpoint is where ovsdb-server listens by default.
const DefaultEndpoint = "unix:/run/openvswitch/db.sock"

// DefaultSettle is how long a change may take by default.
const DefaultSettle = 10 * time.Second

// nouns are the served kinds, one line per kind.
var nouns = map[string]noun{
	"ovs.bridge":     bridges{},
	"ovs.controller": controllers{},
	"ovs.flow_set":   flowSets{},
	"ovs.mirror":     mirrors{},
	"ovs.port":       ports{},
	"ovs.qos":        qoses{},
	"ovs.queue":      queues{},
	"ovs.setting":    settings{},
}

// Options say which Open vSwitch is served, and for which site.
type Options struct {
	Endpoint string        // unix:PATH or ssl:HOST:PORT; empty: DefaultEndpoint
	RunDir   string        // where ovs-vswitchd has its sockets; empty: where that of a unix:PATH is
	TLS      *tls.Config   // required for ssl
	Node     string        // required: the node's name, which is the scope
	Site     string        // required: the site's UUID; only things with its mark are ours
	Settle   time.Duration // longest wait for ovsdb-server to answer, and for ovs-vswitchd to act; zero: DefaultSettle
	Logger   *slog.Logger  // nil: nothing is logged
}

// Open connects to the database and serves its kinds. When the connection is lost later, calls in flight fail and the
// next one connects again.
func Open(ctx context.Context, o Options) (*providers.Provider, error) {
	if o.Endpoint == "" {
		o.Endpoint = DefaultEndpoint
	}
	if o.Settle == 0 {
		o.Settle = DefaultSettle
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	switch scheme, at, _ := strings.Cut(o.Endpoint, ":"); {
	case o.Node == "" || o.Site == "":
		return nil, errors.New("ovs: the node and the site are required")
	case scheme != "unix" && scheme != "ssl" || at == "":
		return nil, fmt.Errorf("ovs: %s is neither unix:PATH nor ssl:HOST:PORT", o.Endpoint)
	case scheme == "ssl" && o.TLS == nil:
		return nil, fmt.Errorf("ovs: %s needs a TLS configuration", o.Endpoint)
	}
	d, err := newDB(o, nouns)
	if err != nil {
		return nil, fmt.Errorf("ovs: %w", err)
	}
	if _, err := d.connect(ctx); err != nil {
		return nil, fmt.Errorf("ovs: %w", err)
	}
	// All kinds have these, because each change is one guarded transaction.
	common := providers.Traits{
		ID: "{name}", Mark: true,
		Create: providers.Conditional, Update: providers.Versioned, Delete: providers.Versioned,
		EffectWithin: o.Settle, ReadyWithin: o.Settle,
		CutsOff:    true,
		UndoCreate: providers.Exact, UndoUpdate: providers.Exact, UndoDelete: providers.Exact,
	}
	var kinds []providers.Served
	for _, name := range slices.Sorted(maps.Keys(nouns)) {
		n := nouns[name]
		traits := n.traits(common)
		k := &kind{db: d, name: name, noun: n, marks: traits.Mark, since: map[string]version{}}
		s := providers.Served{Name: name, Traits: traits, Kind: k, Watch: k.watch}
		if _, ok := n.(asker); ok {
			s.Watch = nil // the database does not tell of what is not in it
		}
		kinds = append(kinds, s)
	}
	p := providers.New("ovs", o.Node, d.close, kinds...)
	p.Fence, p.Permit, p.Identity, p.Health, p.Obstacles = d.fence, d.permit, d.identity, d.healthy, d.obstacles
	return p, nil
}
