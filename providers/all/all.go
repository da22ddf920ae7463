// Package all lists the providers, one line each, and opens those that a site needs according to its configuration.
// Only package command imports it.
package all

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/providers/ovs"
	"converge.dev/converge/schema"
	"golang.org/x/sync/errgroup"
)

// list holds all providers by name. A new one is one more line.
var list = map[string]func(ctx context.Context, o Options, scope string) (*providers.Provider, error){
	"carbide": openCarbide,
	"ovs":     openOVS,
}

// parallel is how many providers are opened concurrently.
const parallel = 32

// A Need is a provider that is needed in a scope.
type Need struct{ Scope, Provider string }

// Options say what is opened.
type Options struct {
	Config Config       // how to reach the providers
	Dir    string       // the folder of the configuration file, to which its paths are relative
	Kinds  schema.Kinds // required for the fake world
	Site   schema.Site  // required
	Trace  string       // optional: W3C trace context of the command, sent to far sides that accept one
	Logger *slog.Logger // nil: nothing is logged
}

// An Opener opens providers as they are needed.
type Opener struct {
	o Options

	mu    sync.Mutex
	world *fake.World // set while some provider of it is open
	users int         // how many of its providers are open
}

// New makes an opener.
func New(o Options) *Opener {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	return &Opener{o: o}
}

// Open opens what is needed, concurrently, and nothing else. A provider that cannot be opened is a Failure of the set, so that
// its things are unknown and the rest goes on. It fails when the configuration cannot work, when the fake world cannot be
// opened, and when ctx ends. Closing the set closes its providers. Open may be called again for what is needed later.
func (p *Opener) Open(ctx context.Context, needs ...Need) (*providers.Set, error) {
	o := p.o
	if err := o.Config.check(); err != nil {
		return nil, err
	}
	o.Config = o.Config.in(o.Dir)
	if o.Config.Fake != nil {
		return p.openFake(o, needs)
	}

	opened := make([]*providers.Provider, len(needs))
	failed := make([]error, len(needs))
	var group errgroup.Group
	group.SetLimit(parallel)
	for i, n := range needs {
		group.Go(func() error {
			open, ok := list[n.Provider]
			if !ok {
				failed[i] = fmt.Errorf("there is no provider %s", n.Provider)
				return nil
			}
			opened[i], failed[i] = open(ctx, o, n.Scope)
			return nil
		})
	}
	_ = group.Wait() // the functions report through failed

	var ready []*providers.Provider
	for _, p := range opened {
		if p != nil {
			ready = append(ready, p)
		}
	}
	set, err := providers.NewSet(ready...)
	if err = cmp.Or(ctx.Err(), err); err != nil {
		for _, p := range ready {
			err = errors.Join(err, p.Close())
		}
		return nil, fmt.Errorf("open providers: %w", err)
	}
	for i, n := range needs {
		if failed[i] != nil {
			o.Logger.Warn("provider cannot be opened", "scope", n.Scope, "provider", n.Provider, "error", failed[i])
			set.Fail(n.Scope, n.Provider, failed[i])
		}
	}
	return set, nil
}

// openFake serves everything from one world, which is closed with the last provider in it.
func (p *Opener) openFake(o Options, needs []Need) (*providers.Set, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(needs) == 0 {
		return providers.NewSet()
	}
	if p.world == nil {
		w, err := fake.Open(o.Config.Fake.World, o.Kinds)
		if err != nil {
			return nil, fmt.Errorf("fake.world: %w", err)
		}
		p.world = w
	}
	ps := make([]*providers.Provider, len(needs))
	for i, n := range needs {
		ps[i] = p.world.Provider(n.Provider, n.Scope)
		ps[i].Close = sync.OnceValue(p.leave)
		p.users++
	}
	set, err := providers.NewSet(ps...)
	if err != nil {
		err = fmt.Errorf("open providers: %w", err)
		for range ps {
			err = errors.Join(err, p.left())
		}
		return nil, err
	}
	return set, nil
}

func (p *Opener) leave() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.left()
}

// left counts one open provider of the world less. The caller holds the lock.
func (p *Opener) left() error {
	if p.users--; p.users > 0 {
		return nil
	}
	w := p.world
	p.world = nil
	return w.Close()
}

func openCarbide(ctx context.Context, o Options, scope string) (*providers.Provider, error) {
	c := o.Config.Carbide
	switch {
	case scope != schema.ScopeSite:
		return nil, fmt.Errorf("carbide serves the site, not node %s", scope)
	case c == nil:
		return nil, errors.New(`the site's Carbide service is not configured; say where it is: carbide: {address: "HOST:PORT"}`)
	}
	var late time.Duration
	if c.Late != "" {
		var err error
		if late, err = time.ParseDuration(c.Late); err != nil {
			return nil, fmt.Errorf("carbide.late: %w", err)
		}
	}
	return carbide.Open(ctx, carbide.Options{
		Address: c.Address,
		TLS: carbide.TLS{
			Mode: carbide.TLSMode(c.TLS.Mode), CA: c.TLS.CA, Cert: c.TLS.Cert, Key: c.TLS.Key, ServerName: c.TLS.ServerName,
		},
		AllowInsecure: c.AllowInsecure,
		Parallel:      c.Parallel,
		Late:          late,
		Trace:         o.Trace,
		Logger:        o.Logger,
	})
}

func openOVS(ctx context.Context, o Options, scope string) (*providers.Provider, error) {
	endpoint := o.Config.Nodes[scope].OVS
	if endpoint == "" {
		return nil, fmt.Errorf("Open vSwitch of node %s is not configured; say where it is: nodes: {%s: {ovs: %q}}", scope, scope, ovs.DefaultEndpoint)
	}
	return ovs.Open(ctx, ovs.Options{Endpoint: endpoint, Node: scope, Site: o.Site.ID, Logger: o.Logger})
}

// Offers lists every provider that the configuration can reach, in every scope: what to open to observe a whole site. No
// provider of the fake world may be open.
func (p *Opener) Offers() ([]Need, error) {
	o := p.o
	o.Config = o.Config.in(o.Dir)
	if o.Config.Fake == nil {
		var needs []Need
		if o.Config.Carbide != nil {
			needs = append(needs, Need{schema.ScopeSite, "carbide"})
		}
		for _, name := range slices.Sorted(maps.Keys(o.Config.Nodes)) {
			if o.Config.Nodes[name].OVS != "" {
				needs = append(needs, Need{name, "ovs"})
			}
		}
		return needs, nil
	}
	w, err := fake.Open(o.Config.Fake.World, o.Kinds)
	if err != nil {
		return nil, fmt.Errorf("fake.world: %w", err)
	}
	var needs []Need
	for _, scope := range w.Scopes() {
		for _, kind := range o.Kinds.Names() {
			provider, _, _ := strings.Cut(kind, ".")
			if need := (Need{scope, provider}); o.Kinds[kind].Node == (scope != schema.ScopeSite) && !slices.Contains(needs, need) {
				needs = append(needs, need)
			}
		}
	}
	return needs, w.Close()
}
