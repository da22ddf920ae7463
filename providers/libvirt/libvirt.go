// Package libvirt is the provider of libvirt on one node: its storage pools, their volumes, seeds for cloud-init, its virtual networks,
// and its domains, which are virtual machines.
//
// Each kind is a noun, in a file of its own: it reads its things from the XML of libvirt and says what a change of one consists of.
// kind.go implements the four verbs of the contract with that, the same for all. What is needed of libvirt is in conn.go;
// dlopen.go and dlopen_*.go implement it with libvirt's library, which is loaded when it is used first, and only in programs that are built with the tag
// libvirt_dlopen. Everything else is plain Go and builds everywhere.
//
// # How a change is made
//
// Every verb reads first and checks what it saw against the version token of the call. libvirt cannot make a change conditional on what
// was read, so somebody else's change in between is lost; the traits say so (Blind). Changes of one network by this provider exclude
// each other. A definition is changed by reading it, replacing what the spec describes, and giving it back: what others set elsewhere
// in it stays. A change is refused where it would drop anything else: what this program does not know, what others set within something
// that is replaced, or what a network has only while it runs and would end with a restart.
// What a domain has only while it runs ends when it is stopped.
//
// A verb that takes several calls undoes what it did when libvirt refuses a later one, and reads whether all is as it was. Where it is
// not, the error is Unknown and Over.
//
// # Stored and running
//
// libvirt stores a definition, and runs a copy of it. A spec is what is stored; its field in_effect says whether what runs is the same.
// What libvirt fills in by itself, such as the bridge of a network, is reported like any other value, and is no difference as long as
// the document does not state it.
//
// A change of a domain is stored, and what runs follows as far as that is possible without a restart; domain_live.go says how. The rest
// waits until the domain is started again. It is restarted only by a call that requests in_effect of one of which it is false. A document
// that states in_effect gets such a call as the last one of a step (Traits.Later). No other call requests it: a field that changes by
// itself, and that the document does not state, is in a call as it was observed right before.
//
// # What is ours
//
// Neither pools, volumes nor, before libvirt 9.7, networks have a place for a mark, so ownership is in recorded state alone. A domain has
// its mark in its metadata, with its stop_timeout, of which libvirt knows nothing. The UUIDs of pools, networks and domains are derived
// from the site and the ref; one that is created again has the same.
//
// # When it is unavailable
//
// A libvirtd that cannot be reached, or whose connection is lost, makes the provider's Health bad; any answer makes it good again. The
// next call connects anew. There is one attempt at a time, for all callers.
package libvirt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// DefaultURI is where libvirtd listens by default.
const DefaultURI = "qemu+unix:///system?socket=/run/libvirt/libvirt-sock"

const (
	// DefaultSettle is how long libvirtd has to answer a new connection by default.
	DefaultSettle = 10 * time.Second
	// DefaultPoll is how often by default a watch looks for what libvirt does not tell.
	DefaultPoll = 10 * time.Second
)

// effectWithin is the longest time after which a call without an answer may still have its effect. By then the connection is ended, after
// probeEvery and probeFor. A libvirtd that was stopped for longer still carries out the first of the calls that it has not read (9.0 does), but before
// it serves a new connection, on which that is seen.
const effectWithin = 30 * time.Second

const (
	// maxCalls is one less than the calls of one client that libvirtd takes at the same time by default: with all of them it would not
	// read a probe either.
	maxCalls = 4
	// probeEvery is how often libvirtd is asked whether it is there while calls wait for it.
	probeEvery = 5 * time.Second
	// probeFor is how long it has to answer that, before all calls are given up. It answers without waiting for anything else.
	probeFor = 3 * probeEvery
)

// nouns are the served kinds, one line per kind.
var nouns = map[string]noun{
	"libvirt.cloudinit": seeds{},
	"libvirt.dhcp_host": dhcpHosts{},
	"libvirt.domain":    domains{},
	"libvirt.network":   networks{},
	"libvirt.pool":      pools{},
	"libvirt.volume":    volumes{},
}

// Options say which libvirt is served, and for which site.
type Options struct {
	URI    string        // empty: DefaultURI
	Node   string        // required: the node's name, which is the scope
	Site   string        // required: the site's UUID, from which UUIDs of objects are derived
	Images string        // directory on this machine whose files may be uploaded; empty: none may
	Settle time.Duration // longest wait for the answer to a new connection; zero: DefaultSettle
	Poll   time.Duration // how often a watch looks for what libvirt does not tell; zero: DefaultPoll
	Logger *slog.Logger  // nil: nothing is logged

	site uuid.UUID
}

// Open connects to libvirt and serves its kinds. When the connection is lost later, calls in flight fail and the next one connects
// again.
func Open(ctx context.Context, o Options) (*providers.Provider, error) { return open(ctx, o, dial) }

func open(ctx context.Context, o Options, dial dialer) (*providers.Provider, error) {
	if o.URI == "" {
		o.URI = DefaultURI
	}
	if o.Settle == 0 {
		o.Settle = DefaultSettle
	}
	if o.Poll == 0 {
		o.Poll = DefaultPoll
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Node == "" || o.Site == "" {
		return nil, errors.New("libvirt: the node and the site are required")
	}
	var err error
	if o.site, err = uuid.Parse(o.Site); err != nil {
		return nil, fmt.Errorf("libvirt: the id of the site: %w", err)
	}
	h := &host{Options: o, dial: dial, permit: new(providers.Permit), closed: make(chan struct{})}
	l, err := h.connect(ctx)
	if err != nil {
		_ = h.close() // a late connection
		return nil, fmt.Errorf("libvirt: %w", err)
	}
	l.leave()
	// All kinds have these, because libvirt checks nothing but names.
	common := providers.Traits{
		ID: "{name}", Create: providers.Conditional, Update: providers.Blind, Delete: providers.Blind,
		EffectWithin: effectWithin,
		UndoCreate:   providers.Exact, UndoUpdate: providers.Exact, UndoDelete: providers.Exact,
	}
	var kinds []providers.Served
	for _, name := range slices.Sorted(maps.Keys(nouns)) {
		n := nouns[name]
		k := &kind{host: h, name: name, noun: n}
		served := providers.Served{Name: name, Traits: n.traits(common), Kind: k}
		if _, _, ok := n.told(); ok {
			served.Watch = k.watch
		}
		kinds = append(kinds, served)
	}
	p := providers.New("libvirt", o.Node, h.close, kinds...)
	p.Permit, p.Health, p.Build, p.Obstacles = h.permit, h.healthy, h.build, h.obstacles // the connection has its own limit of calls
	return p, nil
}

// uuidOf returns the UUID of an object that is created without one: the same for every incarnation.
func (o *Options) uuidOf(ref schema.Ref) string {
	return uuid.NewSHA1(o.site, []byte(ref.String())).String()
}
