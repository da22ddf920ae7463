// Package all lists the providers, one line each, and opens those that a site needs according to its configuration.
// Only package command imports it.
package all

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"golang.org/x/sync/errgroup"
)

// parallel is how many providers are opened concurrently.
const parallel = 32

// Options say what is opened.
type Options struct {
	Config Config       // how to reach the providers
	Dir    string       // the folder of the configuration file, to which its paths are relative
	Kinds  schema.Kinds // required for the fake world
	Site   schema.Site  // required
	Trace  string       // optional: W3C trace context of the command, sent to far sides that accept one
	Logger *slog.Logger // nil: nothing is logged

	Control bool // lets other processes change the fake world while it is open; where that is impossible, it is logged
}

// An Opener opens providers as they are needed.
type Opener struct {
	o Options

	mu    sync.Mutex
	world *fake.World // set while some provider of it is open
	users int         // how many of its providers are open

	failed map[providers.Need]string // why what could not be opened the last time could not
}

// New makes an opener.
func New(o Options) *Opener {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	return &Opener{o: o, failed: map[providers.Need]string{}}
}

// Open opens what is needed, concurrently, and nothing else. A provider that cannot be opened is a Failure of the set, so that
// its things are unknown and the rest goes on. It fails when the configuration cannot work, when the fake world cannot be
// opened, and when ctx ends. Closing the set closes its providers. Open may be called again for what is needed later.
func (p *Opener) Open(ctx context.Context, needs ...providers.Need) (*providers.Set, error) {
	o := p.o
	if err := o.Config.check(); err != nil {
		return nil, err
	}
	if o.Config.Fake != nil && o.Config.Fake.Server != "" {
		return o.openServed(ctx, needs)
	}
	if o.Config.Fake != nil {
		return p.openFake(o, needs)
	}

	opened := make([]*providers.Provider, len(needs))
	failed := make([]error, len(needs))
	var group errgroup.Group
	group.SetLimit(parallel)
	for i, n := range needs {
		group.Go(func() error {
			c, err := o.Config.connection(n)
			if err == nil {
				opened[i], err = c.Open(ctx, providers.Opening{Scope: n.Scope, Site: o.Site, Dir: o.Dir, Trace: o.Trace, Logger: o.Logger})
			}
			failed[i] = err
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
		p.tell(n, failed[i])
		if failed[i] != nil {
			set.Fail(n.Scope, n.Provider, failed[i])
		}
	}
	return set, nil
}

// tell logs why a provider could not be opened, once for as long as that stays the same: it is tried again and again.
func (p *Opener) tell(n providers.Need, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		delete(p.failed, n)
		return
	}
	level := slog.LevelWarn
	if p.failed[n] == err.Error() {
		level = slog.LevelDebug
	}
	p.failed[n] = err.Error()
	p.o.Logger.Log(context.Background(), level, "provider could not be opened", "scope", n.Scope, "provider", n.Provider, "error", err)
}

// openFake serves everything from one world, which is closed with the last provider in it.
func (p *Opener) openFake(o Options, needs []providers.Need) (*providers.Set, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(needs) == 0 {
		return providers.NewSet()
	}
	if p.world == nil {
		w, err := o.world()
		if err != nil {
			return nil, err
		}
		p.world = w
		if o.Control {
			if err := w.Serve(); err != nil {
				o.Logger.Warn("the fake world cannot be changed from outside", "error", err)
			}
		}
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

// world opens the fake world.
func (o Options) world() (*fake.World, error) {
	w, err := fake.Open(providers.Opening{Dir: o.Dir}.Path(o.Config.Fake.World), o.Kinds)
	if err != nil {
		return nil, fmt.Errorf("fake.world: %w", err)
	}
	return w, nil
}

// Offers lists every provider that the configuration can reach, in every scope: what to open to observe a whole site.
func (p *Opener) Offers() ([]providers.Need, error) {
	o := p.o
	if o.Config.Fake == nil {
		return o.Config.configured(), nil
	}
	if o.Config.Fake.Server != "" {
		return o.served()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	w, end := p.world, func() error { return nil }
	if w == nil {
		var err error
		if w, err = o.world(); err != nil {
			return nil, err
		}
		end = w.Close
	}
	var needs []providers.Need
	for _, scope := range w.Scopes() {
		for _, kind := range o.Kinds.Names() {
			provider, _, _ := strings.Cut(kind, ".")
			if need := (providers.Need{Scope: scope, Provider: provider}); o.Kinds[kind].Node == (scope != schema.ScopeSite) && !slices.Contains(needs, need) {
				needs = append(needs, need)
			}
		}
	}
	return needs, end()
}
