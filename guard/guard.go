package guard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"converge.dev/converge/internal/files"
	"converge.dev/converge/internal/retry"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// Durations of the program.
const (
	grace        = 5 * time.Second        // for a call to end whose guard's time is over
	tick         = 2 * time.Second        // the longest wait for a deadline: timers stand still while the machine is suspended
	probeWithin  = 3 * time.Second        // for a probe to pass
	openWithin   = 20 * time.Second       // for a provider to be opened
	firstPause   = time.Second            // after an undo that failed; it doubles
	longestPause = time.Minute            // between tries
	tries        = 3                      // of an undo before it is a failure
	readBack     = 100 * time.Millisecond // the first pause between two looks at what was restored
)

// Options say what a program guards. All are required unless they say otherwise.
type Options struct {
	Dir string // everything is in it; it is made, and only its owner may access it

	// Open opens the provider that undoes changes, which the program closes soon.
	Open func(ctx context.Context, s Source) (*providers.Provider, error)

	// Equal reports whether two specs of a kind describe the same thing. Optional: whether all their values are the same.
	Equal func(kind string, a, b schema.Object) bool

	Dial   func(ctx context.Context, network, address string) (net.Conn, error) // of probes; optional: that of package net
	Boot   func() (string, error)                                               // optional: the id that the kernel has for this boot
	Uptime func() time.Duration                                                 // optional: the time since the machine was started
	Logger *slog.Logger
	// Ready is called once, when the program can be reached and what was due to be undone when it started is undone. What could not be
	// undone in this boot of the machine does not hold that back. Optional.
	Ready func()

	// Of tests.
	listen func() (net.Listener, error)
	at     func(moment, op, name string) error
}

// A program is one that runs.
type program struct {
	Options
	disk *disk
	boot string

	running context.Context // of the process
	tending sync.WaitGroup  // goroutines

	mu      sync.Mutex
	guards  map[string]*guarded // by id
	damaged map[string]error    // guards that cannot be read, by the names of their files
	fenced  int64               // the highest epoch of a fence in this process
	changed chan struct{}       // closed, and replaced, whenever something of a guard changes
}

// A guarded is one guard.
type guarded struct {
	capsule *capsule
	name    string // of its files
	standing
	ruling  *ruling // once there is a verdict
	unsaved bool    // the verdict is not on disk
	result  *result // nil: none yet

	gone    bool             // every change was withdrawn: it does not exist any more
	flights map[*flight]bool // calls in progress
	late    time.Duration    // until then a call that has ended may still have its effect
}

// A flight is a call in progress, as long as its connection lasts.
type flight struct {
	number int           // of the change
	over   chan struct{} // closed when the call is to end
}

// Run serves the guards of a directory until ctx is done, and then returns its cause. Guards that are open wait for the next process; their
// deadlines do not move. It fails at once when another process serves the directory, or when the directory cannot be used.
func Run(ctx context.Context, o Options) (err error) {
	if o.Boot == nil {
		o.Boot = bootID
	}
	if o.Uptime == nil {
		o.Uptime = uptime
	}
	if o.Dial == nil {
		o.Dial = new(net.Dialer).DialContext
	}
	if o.Equal == nil {
		o.Equal = func(_ string, a, b schema.Object) bool { return a.Equal(b) }
	}
	if o.listen == nil {
		o.listen = func() (net.Listener, error) { return listen(filepath.Join(o.Dir, socketName)) }
	}
	p := &program{
		Options: o, disk: &disk{dir: o.Dir, at: o.at}, guards: map[string]*guarded{}, damaged: map[string]error{}, changed: make(chan struct{}),
	}
	if err := p.disk.prepare(); err != nil {
		return fmt.Errorf("guard: prepare the directory: %w", err)
	}
	lock, err := files.Lock(filepath.Join(o.Dir, lockName))
	if err != nil {
		return fmt.Errorf("guard: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if p.boot, err = o.Boot(); err != nil {
		return fmt.Errorf("guard: %w", err)
	}
	if err := p.load(); err != nil {
		return fmt.Errorf("guard: read the directory: %w", err)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer p.tending.Wait()
	defer stop(nil)
	p.running = ctx
	loaded := slices.Collect(maps.Values(p.guards))
	for _, g := range loaded { // before anybody can ask for anything
		p.tending.Go(func() { p.tend(ctx, g) })
	}
	l, err := o.listen()
	if err != nil {
		// Nothing can be armed or kept, but what is armed is undone in time, which matters more than to end.
		o.Logger.Error("the guard cannot be reached: it only undoes what is armed; start it again when that is mended", "error", err)
		<-ctx.Done()
		return context.Cause(ctx)
	}
	o.Logger.Info("guard started", "directory", o.Dir, "guards", len(loaded), "damaged", len(p.damaged))
	p.tending.Go(func() {
		if p.clear(ctx, loaded) && o.Ready != nil {
			o.Ready()
		}
	})
	if err := p.serve(ctx, l); err != nil && ctx.Err() == nil {
		o.Logger.Error("the guard can no longer be reached: it only undoes what is armed; start it again", "error", err)
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// clear waits until nothing of the guards that were loaded is due to be undone, and reports whether that came before the end of ctx. It
// does not wait for an undo that has failed in this boot: that is reported, and may need what waits for this program.
func (p *program) clear(ctx context.Context, loaded []*guarded) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	due := func(g *guarded) bool {
		do, _ := judge(g.standing, p.now())
		return do == undo && !g.gone && (g.result == nil || g.result.Boot != p.boot)
	}
	for slices.ContainsFunc(loaded, due) && ctx.Err() == nil {
		changed := p.changed
		p.mu.Unlock()
		pause(ctx, tick, changed)
		p.mu.Lock()
	}
	return ctx.Err() == nil
}

// listen listens on a socket that only the owner of its directory can reach. The caller has the lock, so that a socket that is there is one
// that nobody serves.
func listen(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (p *program) now() moment { return moment{p.boot, p.Uptime()} }

// load reads the directory.
func (p *program) load() error {
	// What the previous process wrote and did not sync could still be lost, and must not be told to anybody before.
	if err := p.disk.sync(); err != nil {
		return err
	}
	names, err := p.disk.names()
	if err != nil {
		return err
	}
	for name, endings := range names {
		if !slices.Contains(endings, capsuleFile) { // it was being removed
			if err := errors.Join(p.disk.remove(name+resultFile), p.disk.remove(name+verdictFile)); err != nil {
				return err
			}
			continue
		}
		g, err := p.read(name, endings)
		if err == nil {
			p.guards[g.capsule.ID] = g
			continue
		}
		p.damaged[name] = err
		p.Logger.Error("a guard cannot be read, and is not touched: look at what it guards, then move its files away and start the guard again",
			"file", filepath.Join(p.Dir, name+capsuleFile), "error", err)
		if !slices.Contains(endings, resultFile) {
			if err := p.disk.replace(name+resultFile, &result{State: failed, Why: "its files cannot be read: " + err.Error(), moment: p.now()}); err != nil {
				p.Logger.Error("a result cannot be stored", "file", filepath.Join(p.Dir, name+resultFile), "error", err)
			}
		}
	}
	return nil
}

// read reads the files of a guard.
func (p *program) read(name string, endings []string) (*guarded, error) {
	data, err := p.disk.read(name + capsuleFile)
	if err != nil {
		return nil, err
	}
	c, err := decodeCapsule(data)
	if err != nil {
		return nil, err
	}
	if is, _ := fileName(c.ID); is != name {
		return nil, errors.New("it is the capsule of another guard")
	}
	g := newGuarded(c, name)
	if slices.Contains(endings, verdictFile) {
		data, err := p.disk.read(name + verdictFile)
		if err != nil {
			return nil, err
		}
		r, err := decode[ruling](data)
		if err == nil && r.Verdict != kept && r.Verdict != undoing {
			err = errors.New("it is neither kept nor undoing")
		}
		if err != nil {
			return nil, fmt.Errorf("its verdict: %w", err)
		}
		g.rule(r)
	}
	if slices.Contains(endings, resultFile) {
		// A result that cannot be read is replaced by that of another try: to undo twice does no harm.
		if data, err := p.disk.read(name + resultFile); err == nil {
			if r, err := decode[result](data); err == nil && g.verdict == undoing {
				g.result, g.undone = &r, r.State == undone
			}
		}
	}
	// A call that an earlier process let begin may still be in progress: the agent ends it now.
	if c.Boot == p.boot && !g.undone {
		g.late = p.Uptime() + grace + c.late()
	}
	return g, nil
}

// late returns the longest time after which a call may still have its effect.
func (c *capsule) late() (d time.Duration) {
	for _, ch := range c.Changes {
		d = max(d, ch.Late)
	}
	return d
}

func newGuarded(c *capsule, name string) *guarded {
	return &guarded{capsule: c, name: name, standing: standing{terms: c.terms}, flights: map[*flight]bool{}}
}

func (g *guarded) rule(r ruling) {
	g.ruling, g.verdict, g.decided = &r, r.Verdict, r.moment
}

// tell wakes all who wait. The caller has the lock.
func (p *program) tell() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// errUnsure says that a verdict may be stored: it is not known which one, or whether it would survive a crash.
var errUnsure = errors.New("it is not known whether a verdict is stored")

// decide makes v the verdict, durably, or the one that is stored already. When it fails there is none, or it fails with errUnsure. The
// caller has the lock.
func (p *program) decide(g *guarded, v verdict) error {
	r := ruling{v, p.now()}
	if err := p.disk.create(g.name+verdictFile, &r); err != nil {
		data, rerr := p.disk.read(g.name + verdictFile)
		if errors.Is(rerr, fs.ErrNotExist) {
			return err
		}
		stored, derr := decode[ruling](data)
		if serr := p.disk.sync(); rerr != nil || derr != nil || serr != nil {
			return fmt.Errorf("%w: %w", errUnsure, errors.Join(err, rerr, derr, serr))
		}
		r = stored
	}
	g.rule(r)
	p.tell()
	p.Logger.Info("a guard is decided", "guard", g.capsule.ID, "verdict", string(r.Verdict))
	return nil
}

// tend does what has to be done about a guard until it is forgotten, or ctx ends.
func (p *program) tend(ctx context.Context, g *guarded) {
	for ctx.Err() == nil {
		p.mu.Lock()
		do, left := judge(g.standing, p.now())
		changed, decided := p.changed, g.verdict
		if g.gone {
			do = hold
		}
		p.mu.Unlock()
		switch do {
		case wait:
			longest := tick
			if decided != open { // an hour more or less makes no difference
				longest = time.Hour
			}
			pause(ctx, min(left, longest), changed)
		case undo:
			p.undo(ctx, g)
		case forget:
			if err := p.forget(g); err == nil {
				return
			} else if ctx.Err() == nil {
				p.Logger.Warn("the files of a guard that has ended cannot be removed", "guard", g.name, "error", err)
			}
			_ = retry.Sleep(ctx, longestPause)
		case hold:
			return
		}
	}
}

// pause waits until something changes, d has passed or ctx ends.
func pause(ctx context.Context, d time.Duration, changed <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-changed:
	case <-ctx.Done():
	}
}

// forget removes the files of a guard that has ended. The capsule is the first one: without a verdict it would mean that there is
// something to undo.
func (p *program) forget(g *guarded) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ending := range []string{capsuleFile, resultFile, verdictFile} {
		if err := p.disk.remove(g.name + ending); err != nil {
			return err
		}
	}
	delete(p.guards, g.capsule.ID)
	return nil
}

// undo decides that a guard is undone, unless that is decided, and restores what was. It returns when that is done, or ctx has ended.
func (p *program) undo(ctx context.Context, g *guarded) {
	p.mu.Lock()
	if do, _ := judge(g.standing, p.now()); do != undo || g.gone {
		p.mu.Unlock()
		return
	}
	if g.verdict == open {
		switch err := p.decide(g, undoing); {
		case errors.Is(err, errUnsure):
			p.mu.Unlock()
			p.Logger.Error("the verdict of a guard is not known: it is read again", "guard", g.capsule.ID, "error", err)
			_ = retry.Sleep(ctx, firstPause)
			return
		case err != nil:
			// The time is over, so that nothing else can be decided any more, by any process: that it is not stored makes no difference.
			p.Logger.Error("a verdict cannot be stored; the guard undoes all the same", "guard", g.capsule.ID, "error", err)
			g.rule(ruling{undoing, p.now()})
			g.unsaved = true
			p.tell()
		}
	}
	decided := g.verdict
	p.mu.Unlock()
	if decided != undoing { // it was stored before, and has just been read
		return
	}
	p.Logger.Warn("the changes of a guard are undone", "guard", g.capsule.ID, "changes", len(g.capsule.Changes))
	p.halt(ctx, g)
	pauses := retry.Policy{First: firstPause, Cap: longestPause}.Pauses()
	for n := 1; ctx.Err() == nil; {
		calm := p.calm(g)
		switch err := p.restore(ctx, g); {
		case ctx.Err() != nil:
			return
		case err != nil:
			p.Logger.Error("an undo has failed, and is tried again", "guard", g.capsule.ID, "try", n, "error", err)
			if n == tries {
				_ = p.conclude(g, &result{State: failed, Why: err.Error()})
			}
			n++
			_ = retry.Sleep(ctx, pauses())
		case calm:
			if err := p.conclude(g, &result{State: undone, Probes: p.probe(ctx, g.capsule.Probes)}); err == nil {
				return
			}
			_ = retry.Sleep(ctx, pauses())
		default: // what is still in progress, or late, could change it again
			p.mu.Lock()
			changed := p.changed
			p.mu.Unlock()
			pause(ctx, firstPause, changed)
		}
	}
}

// halt tells the agent to end the calls of a guard, and waits for that a while.
func (p *program) halt(ctx context.Context, g *guarded) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for f := range g.flights {
		close(f.over)
	}
	until := p.Uptime() + grace
	for len(g.flights) > 0 && ctx.Err() == nil {
		left, changed := until-p.Uptime(), p.changed
		if left <= 0 {
			p.Logger.Warn("a call of the agent does not end; its change is undone, and once more when it has ended", "guard", g.capsule.ID)
			return
		}
		p.mu.Unlock()
		pause(ctx, left, changed)
		p.mu.Lock()
	}
}

// calm reports whether nothing that the agent began can still have an effect.
func (p *program) calm(g *guarded) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(g.flights) == 0 && p.Uptime() >= g.late
}

// conclude stores the result of an undo. A failure is known even when it cannot be stored.
func (p *program) conclude(g *guarded, r *result) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.moment = p.now()
	var err error
	if g.unsaved {
		if err = p.disk.create(g.name+verdictFile, g.ruling); err == nil || errors.Is(err, os.ErrExist) {
			g.unsaved, err = false, nil
		}
	}
	if err == nil {
		err = p.disk.replace(g.name+resultFile, r)
	}
	if err != nil {
		p.Logger.Error("the result of an undo cannot be stored", "guard", g.capsule.ID, "result", r.State, "error", err)
		if r.State == undone {
			return err
		}
	}
	g.result, g.undone = r, r.State == undone
	p.tell()
	if r.State == failed {
		p.Logger.Error("the changes of a guard could not be undone: look at the node; it is tried again every minute", "guard", g.capsule.ID, "error", r.Why)
	} else {
		p.Logger.Warn("the changes of a guard are undone and verified", "guard", g.capsule.ID)
	}
	return err
}

// probe tries probes, all at the same time.
func (p *program) probe(ctx context.Context, probes []string) []probe {
	all := make([]probe, len(probes))
	var g errgroup.Group
	for i, text := range probes {
		g.Go(func() error {
			all[i] = probe{Probe: text}
			address, err := parseProbe(text)
			if err == nil {
				ctx, cancel := context.WithTimeout(ctx, probeWithin)
				defer cancel()
				var conn net.Conn
				if conn, err = p.Dial(ctx, "tcp", address); err == nil {
					err = conn.Close()
				}
			}
			if err != nil {
				all[i].Error = err.Error()
			}
			return nil
		})
	}
	_ = g.Wait()
	return all
}
