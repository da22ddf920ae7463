package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

const (
	site = "test"
	ttl  = state.DefaultTTL

	// The maximum, once nothing goes wrong any more, until the site is as the document says.
	maxActions = 16
	maxHours   = 4 * time.Hour
)

// A sim is one seed.
type sim struct {
	t       testing.TB
	seed    uint64
	rng     *rand.Rand
	far     *fake.World
	direct  *providers.Set
	root    *mem.KV
	raw     *state.Store
	kinds   schema.Kinds
	tester  *enginetest.Site
	profile map[string]string

	processes int
	wg        sync.WaitGroup
	calm      atomic.Bool
	faults    []fake.Fault

	mu        sync.Mutex
	moment    int
	effects   int
	epoch     int64
	changed   map[target]int // moment of the last call
	looked    map[target]int // moment of the last observation
	touched   map[target]int // moment at which another client changed it last
	remains   map[schema.Ref]bool
	foreign   map[target]bool
	handed    map[target]bool
	blindness map[string]int
	views     map[target][]view
	starts    map[string]*start
	broken    []string

	tmu     sync.Mutex
	trace   trace
	reached map[string]int
	decoded map[string]*journal.Record
}

// simulate plays one seed, in a bubble.
func simulate(t testing.TB, seed uint64) *sim {
	rng := rand.New(rand.NewPCG(seed, 0))
	profile := map[string]string{}
	for _, kind := range slices.Sorted(maps.Keys(choices)) {
		profile[kind] = choices[kind][rng.IntN(len(choices[kind]))]
	}
	s := newSim(t, seed, rng, profile)
	s.play()
	return s
}

// newSim returns an empty site, whose kinds have the given profiles.
func newSim(t testing.TB, seed uint64, rng *rand.Rand, profile map[string]string) *sim {
	s := &sim{
		t: t, seed: seed, rng: rng, kinds: enginetest.Kinds(), root: mem.New(mem.Options{}), profile: profile,
		changed: map[target]int{}, looked: map[target]int{}, touched: map[target]int{}, foreign: map[target]bool{}, handed: map[target]bool{}, blindness: map[string]int{},
		views: map[target][]view{}, starts: map[string]*start{}, remains: map[schema.Ref]bool{}, reached: map[string]int{}, decoded: map[string]*journal.Record{},
		trace: trace{start: time.Now()},
	}
	s.raw = state.New(s.root, site)
	s.far = fake.New(s.kinds)
	s.far.Traits = map[string]providers.Traits{}
	for kind, name := range profile {
		s.far.Traits[kind] = profiles[name]
		s.reach("profile " + name)
	}
	s.far.Hook = s.hook
	s.tester = &enginetest.Site{Kinds: s.kinds}
	var err error
	s.direct, err = providers.NewSet(s.far.Provider("far", schema.ScopeSite), s.far.Provider("near", "n1"), s.far.Provider("near", "n2"))
	if err != nil {
		t.Fatal(err)
	}
	s.direct.Each(func(scope string, k providers.Served, _ *providers.Provider) { s.remember(scope, k.Name) })
	s.log("profiles %v", s.profile)
	return s
}

func (s *sim) play() {
	deletable := func(kind string) bool { return s.far.Traits[kind].Delete != providers.Never }
	first := s.tester.Document(s.t, document(s.rng, deletable))
	second := s.tester.Document(s.t, document(s.rng, deletable))
	for i := range s.rng.IntN(3) {
		id := fmt.Sprintf("theirs%d", i)
		at := target{"n1", "near.bridge", id}
		s.put(at, providers.Thing{ID: id, Name: id, Spec: schema.Object{"mode": "theirs"}})
		s.foreign[at] = true
	}
	p := s.start(1)
	res, err := s.apply(p, first, engine.ApplyOptions{})
	if err != nil || res.Run.Status != state.RunApplied {
		s.wrongly("the start is not reached: %s %v %v", res.Run.Status, res.Differences, err)
		return
	}
	time.Sleep(2 * late)
	s.storm(second)
	s.peace(second)
	s.wg.Wait()
}

// storm is the time in which things go wrong.
func (s *sim) storm(doc *schema.Document) {
	s.farFaults(doc)
	parallelism := []int{1, 4}[s.rng.IntN(2)]
	policy := []apply.OnFailure{apply.Rollback, apply.Rollback, apply.Stop, apply.Continue}[s.rng.IntN(4)]
	p := s.troubled(parallelism, 2)
	s.reach("apply " + string(policy))
	done := s.in(p, func() {
		s.apply(p, doc, engine.ApplyOptions{OnFailure: policy, Interrupt: p.interrupt, AllowPartial: s.seed%2 == 0})
	})
	if s.rng.IntN(5) == 0 {
		q := s.troubled(1, 1)
		after := s.pace(20*time.Second, "second")
		s.reach("two at once")
		other := s.in(q, func() {
			time.Sleep(after)
			s.command(q, doc, "apply", "")
		})
		wait(q, other)
	}
	wait(p, done)
	for range s.rng.IntN(4) {
		p := s.troubled([]int{1, 4}[s.rng.IntN(2)], s.rng.IntN(2))
		what := []string{"resume", "resume", "rollback", "apply", "release"}[s.rng.IntN(5)]
		id := ""
		wait(p, s.in(p, func() { s.command(p, doc, what, id) }))
	}
}

// in does something as a process, concurrently with everything else.
func (s *sim) in(p *process, do func()) <-chan struct{} {
	done := make(chan struct{})
	s.wg.Go(func() {
		defer close(done)
		do()
	})
	return done
}

// wait waits until a process has finished, or has left.
func wait(p *process, done <-chan struct{}) {
	select {
	case <-done:
	case <-p.away:
	}
}

var (
	storeFaults = []string{"die before commit", "die after commit", "commit lost", "commit unknown", "stand still at commit", "stand still after commit", "lease lapses",
		"lease lapses after", "store away", "quorum gone", "stopped at commit"}
	callFaults = []string{"die before call", "die after call", "stand still before call", "stand still after call", "panic before call", "panic after call",
		"ctrl-c", "stopped after call", "blinded", "lapse after call", "third party edits", "third party deletes", "third party makes"}
	effects = []string{"before", "after", "late", "slow", "failed"}
)

// troubled returns a process with as many mishaps of its own.
func (s *sim) troubled(parallelism, mishaps int) *process {
	p := s.start(parallelism)
	s.reach(fmt.Sprintf("parallelism %d", parallelism))
	for range mishaps {
		if s.rng.IntN(2) == 0 {
			nth := fmt.Sprintf("%s %d", workCommit, 1+s.rng.IntN(25))
			if s.rng.IntN(6) == 0 {
				nth = fmt.Sprintf("%s %d", leaderCommit, 1+s.rng.IntN(5))
			}
			p.storeFaults[nth] = storeFaults[s.rng.IntN(len(storeFaults))]
		} else {
			p.farFaults[1+s.rng.IntN(8)] = callFaults[s.rng.IntN(len(callFaults))]
		}
	}
	return p
}

// farFaults makes calls on some things go wrong.
func (s *sim) farFaults(doc *schema.Document) {
	classes := []providers.Class{providers.Transient, providers.Busy, providers.Conflict, providers.Exists, providers.Absent, providers.Denied, providers.Invalid, providers.Unknown}
	for range s.rng.IntN(4) {
		r := doc.Resources[s.rng.IntN(len(doc.Resources))].Ref
		f := fake.Fault{
			Op: []string{"create", "update", "delete"}[s.rng.IntN(3)], Ref: r.String(), Nth: 1 + s.rng.IntN(2), Times: 1 + s.rng.IntN(3),
			Effect: fake.Effect(effects[s.rng.IntN(len(effects))]),
		}
		switch f.Effect {
		case fake.EffectBefore:
			f.Class = classes[s.rng.IntN(len(classes))]
			if s.rng.IntN(4) == 0 {
				f.Times = 12 // longer than any retries
			}
		case fake.EffectAfter:
			f.Class = []providers.Class{providers.Unknown, providers.Unknown, providers.Transient, providers.Invalid}[s.rng.IntN(4)]
		case fake.EffectLate:
			if f.Delay = fake.Duration(s.pace(late, "late %v", f)); s.far.Traits[r.Kind].EffectWithin == 0 {
				f.Effect, f.Class = fake.EffectAfter, providers.Unknown // such a kind has no late calls
			}
		case fake.EffectSlow:
			f.Delay = fake.Duration(s.pace(40*time.Second, "slow %v", f))
			if s.far.Traits[r.Kind].ReadyWithin == 0 {
				f.Delay = fake.Duration(time.Millisecond) // such a kind is ready on return
				f.Effect, f.Class = fake.EffectBefore, providers.Busy
			}
		}
		s.log("fault %+v", f)
		s.faults = append(s.faults, f)
		s.reach("effect " + string(f.Effect))
		if err := s.far.Fail(f); err != nil {
			s.t.Fatal(err)
		}
	}
}

// apply plans and applies.
func (s *sim) apply(p *process, doc *schema.Document, o engine.ApplyOptions) (engine.Result, error) {
	defer p.engine.Close()
	pl, err := p.engine.Plan(p.ctx, doc, plan.Options{Unlimited: true, AllowMissing: true})
	if err != nil {
		if !p.isDead() {
			s.log("%s cannot plan: %s", p.name, firstLine(err))
			s.reach("no plan")
		}
		return engine.Result{}, err
	}
	s.checkUnknown(pl)
	s.handsOver(pl)
	s.log("%s plans:\n%s", p.name, enginetest.Text(pl))
	if len(pl.Irreversible()) > 0 {
		var missing *engine.ApprovalError
		if _, err := p.engine.Apply(p.ctx, pl, o); len(pl.Refusals) == 0 && (len(pl.Unknown) == 0 || o.AllowPartial) && !errors.As(err, &missing) {
			s.wrongly("what cannot be undone was not asked about: %v", err)
		}
		o.Approve = pl.Approval()
		s.reach("approved")
	}
	res, err := p.engine.Apply(p.ctx, pl, o)
	if !p.isDead() {
		s.ended(p, res, err)
	}
	return res, err
}

// command carries out a random command of an operator.
func (s *sim) command(p *process, doc *schema.Document, what, id string) (res engine.Result, err error) {
	defer p.engine.Close()
	s.log("%s: %s %s", p.name, what, id)
	s.reach("command " + what)
	switch what {
	case "apply":
		return s.apply(p, doc, engine.ApplyOptions{Interrupt: p.interrupt})
	case "release":
		s.tester.Store = s.raw
		s.tester.Release(s.t)
		return engine.Result{}, nil
	case "resume", "resume and continue":
		o := engine.ApplyOptions{Interrupt: p.interrupt}
		if what != "resume" {
			o.OnFailure = apply.Continue // a step that can never be done would keep the run open for ever
		}
		res, err = p.engine.Resume(p.ctx, id, o)
	case "rollback":
		res, err = p.engine.Rollback(p.ctx, id, engine.ApplyOptions{Interrupt: p.interrupt})
	}
	if !p.isDead() && !(err != nil && strings.Contains(err.Error(), "there is no run to")) {
		s.ended(p, res, err)
	}
	return res, err
}

// peace brings the site to its document once nothing goes wrong any more, and checks whether it stays there.
func (s *sim) peace(doc *schema.Document) {
	s.wg.Wait() // the dead and the stopped come to their end; when exactly does not follow from the seed
	const round = 10 * time.Second
	time.Sleep(time.Until(time.Now().Truncate(round).Add(2 * round)))
	s.calm.Store(true)
	s.far.Traits = maps.Clone(s.far.Traits)
	begin := time.Now()
	s.log("calm")
	s.clearFaults()
	for action := 1; ; action++ {
		if action > maxActions || time.Since(begin) > maxHours {
			s.wrongly("not converged after %d actions and %s", action-1, time.Since(begin))
			return
		}
		p := s.start(1)
		run := s.open()
		switch {
		case run != "":
			what := []string{"resume", "resume and continue", "rollback"}[s.rng.IntN(3)]
			res, err := s.command(p, doc, what, run)
			if err != nil || res.Run.Status == state.RunPartial {
				s.command(p, doc, "release", "")
			}
			if res.Run.Status == state.RunReverted && err == nil {
				time.Sleep(late + lag + time.Second)
				s.checkReverted(res.Run, ", and some time has passed")
			}
			continue
		}
		s.command(p, doc, "release", "")
		pl, err := p.engine.Plan(p.ctx, doc, plan.Options{Unlimited: true, AllowMissing: true, Replace: s.mend()})
		if err != nil {
			s.wrongly("plan in peace: %v", err)
			return
		}
		if pl.Empty() && len(pl.Refusals) == 0 && len(pl.Unknown) == 0 && !s.strays(pl) {
			break
		}
		if s.strays(pl) && pl.Empty() {
			if pl, err = p.engine.Plan(p.ctx, doc, plan.Options{Unlimited: true, AllowMissing: true, Sweep: true}); err != nil {
				s.wrongly("plan of a sweep: %v", err)
				return
			}
			if pl.Empty() {
				s.wrongly("what is left over is nobody's to remove:\n%s", enginetest.Text(pl))
				return
			}
			s.reach("swept")
		}
		if len(pl.Refusals) > 0 || len(pl.Unknown) > 0 {
			s.wrongly("the plan is refused in peace:\n%s", enginetest.Text(pl))
			return
		}
		s.log("%s plans in peace:\n%s", p.name, enginetest.Text(pl))
		s.handsOver(pl)
		res, err := p.engine.Apply(p.ctx, pl, engine.ApplyOptions{Approve: pl.Approval()})
		s.ended(p, res, err)
		p.engine.Close()
	}
	s.log("converged")
	time.Sleep(late + lag + time.Second)
	p := s.start(1)
	defer p.engine.Close()
	pl, err := p.engine.Plan(p.ctx, doc, plan.Options{Unlimited: true, AllowMissing: true})
	if err != nil || !pl.Empty() || s.strays(pl) {
		s.wrongly("it does not stay converged: %v\n%s", err, enginetest.Text(pl))
	}
	s.checkAlone()
	s.checkForeign()
}

// mend returns what has failed and must be replaced, and repairs on the far side what cannot be.
func (s *sim) mend() (replace []string) {
	for at, th := range s.things() {
		switch {
		case th.Phase != providers.Failed:
		case s.far.Traits[at.kind].Delete == providers.Never:
			s.put(at, providers.Thing{ID: at.id, Name: th.Name, Mark: providers.ParseMark(th.Mark), Spec: th.Spec})
		default:
			replace = append(replace, schema.Ref{Scope: at.scope, Kind: at.kind, Name: th.Name}.String())
		}
	}
	slices.Sort(replace)
	return replace
}

// open returns a run that has not ended.
func (s *sim) open() string {
	runs, err := s.raw.Runs(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, r := range runs {
		if r.Status == state.RunOpen {
			return r.ID
		}
	}
	return ""
}

// strays reports whether something of ours is left over. What can never be deleted is left on purpose.
func (s *sim) strays(p *plan.Plan) bool {
	return slices.ContainsFunc(p.Unmanaged, func(f plan.Unmanaged) bool {
		return (f.Stray || !s.foreign[target{f.Scope, f.Kind, f.ID}]) && s.far.Traits[f.Kind].Delete != providers.Never
	})
}

func (s *sim) log(format string, args ...any) {
	s.tmu.Lock()
	defer s.tmu.Unlock()
	s.trace.add(format, args...)
}

func (s *sim) reach(what string) {
	s.tmu.Lock()
	defer s.tmu.Unlock()
	s.reached[what]++
}

// clearFaults uses up the remaining faults of the far side, with calls about nothing.
func (s *sim) clearFaults() {
	for _, f := range s.faults {
		ref, err := schema.ParseRef(f.Ref)
		if err != nil {
			s.t.Fatal(err)
		}
		served, _, _ := s.direct.Find(ref.Scope, ref.Kind)
		verb := map[string]func(context.Context, providers.Call) error{
			"create": served.Kind.Create, "update": served.Kind.Update, "delete": served.Kind.Delete,
		}[f.Op]
		for range f.Nth + f.Times {
			_ = verb(context.Background(), providers.Call{Ref: ref})
		}
	}
}
