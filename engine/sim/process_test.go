package sim

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// A process is an engine with its own connections. When it dies, its calls fail and nothing that it does counts.
type process struct {
	s           *sim
	name        string
	parallelism int
	kv          *kv
	engine      *engine.Engine
	ctx         context.Context
	cancel      context.CancelFunc
	interrupt   chan struct{}
	away        chan struct{} // closed when it dies or stops: nothing waits for it

	storeFaults map[string]string // by commit, "leader commit 2" say
	farFaults   map[int]string    // by change

	stillAfterIntent time.Duration // stops for so long as soon as its first intent is durable

	mu      sync.Mutex
	dead    bool
	doomed  bool // its lock is or will be lost: its events from then on have no order
	gone    bool
	stopped bool
	sleeps  time.Time // stopped until then
	down    time.Time // the store is away until then
	flying  int       // steps in progress
	counts  map[string]int
	runs    int
}

var errDead = errors.New("the process is dead")

// start starts a process. Its faults are drawn by the caller.
func (s *sim) start(parallelism int) *process {
	s.processes++
	p := &process{
		s: s, name: fmt.Sprintf("p%d", s.processes), parallelism: parallelism,
		interrupt: make(chan struct{}), away: make(chan struct{}), counts: map[string]int{},
		storeFaults: map[string]string{}, farFaults: map[int]string{},
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.kv = &kv{KV: s.root.Connect(mem.Options{}), p: p}
	p.engine = engine.New(engine.Options{
		Kinds: s.kinds, Store: state.New(p.kv, site), Open: p.open, Who: p.name, Version: "sim", Parallelism: parallelism,
		LockTTL: ttl, LockWait: 2 * time.Minute, Emit: p.emit,
		NewID: func(now time.Time) string {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.runs++
			return fmt.Sprintf("%s-%s-%d", now.UTC().Format("20060102-150405.000"), p.name, p.runs)
		},
	})
	return p
}

func (p *process) open(_ context.Context, _ schema.Site, needs []providers.Need) (*providers.Set, error) {
	var all []*providers.Provider
	for _, need := range needs {
		provider := p.s.far.Provider(need.Provider, need.Scope)
		if fence := provider.Fence; fence != nil {
			provider.Fence = func(ctx context.Context, epoch int64) error {
				if err := p.awake(); err != nil {
					return &providers.Error{Op: "fence", Kind: need.Provider, Class: providers.Unknown, Err: err}
				}
				return fence(ctx, epoch)
			}
		}
		for i := range provider.Kinds {
			k := &provider.Kinds[i]
			k.Kind = &connection{p: p, scope: need.Scope, name: k.Name, traits: k.Traits, Kind: k.Kind}
		}
		all = append(all, provider)
	}
	return providers.NewSet(all...)
}

// emit records the events of a live process. A pause after the start of a step keeps two from beginning at the same instant;
// it is short, because the order of the events of other steps meanwhile is random.
func (p *process) emit(e event.Event) {
	p.mu.Lock()
	dead, doomed := p.dead, p.doomed
	switch e.(type) {
	case event.StepStarted:
		p.flying++
	case event.StepDone, event.StepFailed:
		p.flying--
	}
	p.mu.Unlock()
	if dead {
		return
	}
	if text := describe(e); text != "" && !doomed {
		p.s.log("%s %s", p.name, text)
	}
	switch e := e.(type) {
	case event.RunStarted:
		p.s.begun(e.Run.ID)
	case event.StepStarted:
		time.Sleep(p.s.pace(50*time.Microsecond, "%s start %d %v %d", p.name, e.Step.ID, e.Undo, p.count("start")))
	case event.StepProgress:
		if e.Phase == event.Settling {
			what := "settled"
			if strings.Contains(e.Detail, "the last holder of the site lock did not release it") {
				what = "quarantined"
			}
			p.s.reach(what)
		}
	}
}

// count counts something that the process does, from 1.
func (p *process) count(what string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[what]++
	return p.counts[what]
}

func (p *process) until(t *time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return *t
}

func (p *process) set(t *time.Time, to time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*t = to
}

// awake returns when the process is not stopped; with an error when it is dead.
func (p *process) awake() error {
	time.Sleep(time.Until(p.until(&p.sleeps)))
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return errDead
	}
	return nil
}

// doom marks that the process loses its lock.
func (p *process) doom() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.doomed = true
}

// die ends the process: nothing that it does from here on has an effect.
func (p *process) die() {
	p.mu.Lock()
	p.dead = true
	p.mu.Unlock()
	p.s.log("%s dies", p.name)
	_ = p.kv.KV.Close()
	p.leave()
	p.cancel()
}

// standStill stops the process for longer than its lease lives.
func (p *process) standStill() {
	p.standStillFor(ttl + p.s.pace(2*time.Minute, "%s still", p.name))
}

func (p *process) standStillFor(d time.Duration) {
	p.doom()
	p.kv.KV.Pause()
	p.s.log("%s stands still for %s", p.name, d)
	p.set(&p.sleeps, time.Now().Add(d))
	p.leave()
}

func (p *process) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.gone {
		p.gone = true
		close(p.away)
	}
}

func (p *process) ctrlC() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.stopped {
		p.stopped = true
		close(p.interrupt)
	}
}

func (p *process) isDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

func (p *process) stoodStill() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.sleeps.IsZero()
}

func (p *process) isDoomed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.doomed
}
