package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
	"converge.dev/converge/state"
	"converge.dev/converge/state/etcd"
)

// known are the kinds of the embedded schema, compiled once.
var known = sync.OnceValues(func() (schema.Kinds, error) {
	s, err := kinds.New()
	if err != nil {
		return nil, err
	}
	return s.Kinds(), nil
})

// releasing stops a process when its run has ended and the lock is about to be released: then the journal of the world is
// complete, and the process has not yet folded it into the world's file.
const releasing = "lock.release.before"

// A site is a folder with a world, an embedded store, two documents and a saved plan.
type site struct {
	dir     string
	flags   []string // of apply and resume
	approve []string // of apply
	history *history
	said    []string // what was run so far, for people
}

// A template is a site on which a plan is about to be applied, and a reference for the result.
type template struct {
	site
	plan   *plan.Plan
	exit   int    // with which the apply must end
	before string // the world before and, where a failure was repaired, after it
	after  string
	counts map[change]int // of the effects without a crash
	points map[string]int // how often the apply passes each point
	holds  []string       // scopes that are held at the end
}

// heldAfter is what an end holds: the revision of the document that was not reached, and the site that is in between. The
// plan is the second revision, and what cannot be undone is on the site.
var heldAfter = map[int][]string{3: {"serial:2"}, 4: {"serial:2", "site"}}

// makeTemplate draws a plan and determines its result.
func makeTemplate(seed int) (*template, error) {
	r := rand.New(rand.NewPCG(uint64(seed), 1))
	f := familyOf(seed)
	d := draw(r, f)
	dir, err := os.MkdirTemp(scratch, fmt.Sprintf("plan-%d-", seed))
	if err != nil {
		return nil, err
	}
	t := &template{site: site{dir: dir, history: &history{marks: map[place]string{}}}}
	for name, content := range map[string][]byte{
		"converge.yaml": []byte("fake: {world: world.json}\n"),
		"before.json":   text(d.before), "after.json": text(d.after), "world.json": text(object{"things": d.foreign}),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(t.must(0, "apply", "-auto-approve", "before.json"), t.must(0, "plan", "-out=plan", "after.json")); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(filepath.Join(dir, "plan"))
	if err != nil {
		return nil, err
	}
	saved, err := plan.DecodeFile(data)
	if err != nil {
		return nil, err
	}
	t.plan = saved.Plan
	var declared []fault
	if declared, t.exit, err = faults(r, f, t.plan); err != nil {
		return nil, err
	}
	if err := t.declare(declared); err != nil {
		return nil, err
	}
	t.flags = []string{fmt.Sprintf("-parallelism=%d", []int{1, 3, 10}[r.IntN(3)])}
	if len(t.plan.Irreversible()) > 0 {
		t.approve = []string{"-approve=" + t.plan.Approval()}
	}
	if t.history, err = beginHistory(filepath.Join(dir, "world.json")); err != nil {
		return nil, err
	}
	if t.before, err = t.dump(); err != nil {
		return nil, err
	}
	return t, t.refer()
}

// refer makes the reference.
func (t *template) refer() error {
	s, err := t.copy("reference")
	if err != nil {
		return err
	}
	defer s.remove()
	p, err := s.apply("")
	if err != nil {
		return err
	}
	if p.code() != t.exit {
		return fmt.Errorf("without a crash the plan ends with %d, want %d\n%s", p.code(), t.exit, s.report())
	}
	t.points = map[string]int{}
	for _, point := range p.passed() {
		t.points[point]++
	}
	if err := s.look(func(ctx context.Context, store *state.Store) error {
		holds, err := store.Holds(ctx)
		for _, h := range holds {
			t.holds = append(t.holds, h.Scope)
		}
		return err
	}); err != nil {
		return err
	}
	if want := heldAfter[t.exit]; !slices.Equal(t.holds, want) {
		return fmt.Errorf("without a crash %q are held, want %q", t.holds, want)
	}
	if t.exit == 4 {
		if err := errors.Join(s.declare(nil), s.must(0, s.resuming()...)); err != nil {
			return err
		}
	}
	if t.after, err = s.dump(); err != nil {
		return err
	}
	if changed := t.after != t.before; changed != (t.exit != 3) {
		return fmt.Errorf("without a crash the plan ends with %d, and that the world changed is %v\n%s", t.exit, changed, s.report())
	}
	t.counts = s.history.counts()
	return s.settled(t.document())
}

// document returns the one that the site conforms to at the end.
func (t *template) document() string {
	if t.exit == 3 {
		return "before.json"
	}
	return "after.json"
}

// copy copies the folder.
func (t *template) copy(name string) (*site, error) {
	dir, err := os.MkdirTemp(scratch, filepath.Base(t.dir)+"-"+name+"-")
	if err != nil {
		return nil, err
	}
	// Etcd preallocates space that it does not use yet.
	out, err := exec.Command("cp", "-a", "--sparse=always", t.dir+"/.", dir).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("copy %s: %w: %s", t.dir, err, out)
	}
	return &site{dir: dir, flags: t.flags, approve: t.approve, history: t.history.clone()}, nil
}

// apply applies the saved plan.
func (s *site) apply(rules string) (*process, error) {
	return s.run(rules, slices.Concat([]string{"apply"}, s.flags, s.approve, []string{"plan"})...)
}

func (s *site) resuming() []string { return append([]string{"resume"}, s.flags...) }

func (s *site) remove() { _ = os.RemoveAll(s.dir) }

// run runs converge until it has ended. It records the effects that it had.
func (s *site) run(rules string, args ...string) (*process, error) {
	if !strings.Contains(rules, releasing) {
		rules = strings.TrimPrefix(rules+";"+releasing+"=stop", ";")
	}
	p, err := start(s.dir, rules, args...)
	if err != nil {
		return nil, err
	}
	var seen []byte
	held := false
	for {
		stopped, err := p.next()
		if err != nil {
			return nil, err
		}
		if !stopped {
			break
		}
		if seen, err = journalOf(s.dir); err != nil {
			return nil, err
		}
		held = true
		if err := p.wake(); err != nil {
			return nil, err
		}
	}
	s.said = append(s.said, p.report())
	switch {
	case strings.Contains(p.said(), "panic:") || strings.Contains(p.said(), "goroutine "):
		return nil, fmt.Errorf("it panicked:\n%s", p.report())
	case p.killed(): // its journal continues with the next process
	case p.status.Signaled():
		return nil, fmt.Errorf("it ended by %s:\n%s", p.status.Signal(), p.report())
	case !held && slices.Contains(p.passed(), releasing):
		return nil, fmt.Errorf("it went on while it was to stand still:\n%s", p.report())
	default:
		err = s.history.add(seen)
	}
	return p, err
}

// must runs converge, which must end with that status.
func (s *site) must(code int, args ...string) error {
	p, err := s.run("", args...)
	if err == nil && p.code() != code {
		err = fmt.Errorf("it ended with %d, want %d:\n%s", p.code(), code, p.report())
	}
	return err
}

// report returns what was run in the folder.
func (s *site) report() string { return strings.Join(s.said, "\n") }

// dump returns what the world holds.
func (s *site) dump() (string, error) {
	k, err := known()
	if err != nil {
		return "", err
	}
	for deadline := time.Now().Add(torture.Patience); ; {
		w, err := fake.Open(filepath.Join(s.dir, "world.json"), k)
		// A child that is about to start has copies of our files for a moment, including closed ones and their locks.
		if errors.Is(err, syscall.EWOULDBLOCK) && time.Now().Before(deadline) {
			runtime.Gosched()
			continue
		}
		if err != nil {
			return "", err
		}
		return w.Dump(), w.Close()
	}
}

// declare replaces the faults of the world, which no process has open.
func (s *site) declare(all []fault) error {
	if _, err := s.dump(); err != nil { // so that its journal is in the file
		return err
	}
	path := filepath.Join(s.dir, "world.json")
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var world map[string]json.RawMessage
	if err := json.Unmarshal(data, &world); err != nil {
		return err
	}
	delete(world, "faults")
	if len(all) > 0 {
		world["faults"] = text(all)
	}
	return os.WriteFile(path, text(world), 0o600)
}

// look reads the store.
func (s *site) look(at func(context.Context, *state.Store) error) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), torture.Patience)
	defer cancel()
	kv, err := etcd.Open(ctx, etcd.Options{Dir: filepath.Join(s.dir, ".converge"), Command: "a test"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, kv.Close()) }()
	return at(ctx, state.New(kv, "fra1"))
}

// last returns the newest run and the intents in its journal, after checking that they are readable.
func last(ctx context.Context, store *state.Store, p *plan.Plan) (run state.Run, intents map[change]int, err error) {
	runs, err := store.Runs(ctx)
	if err != nil {
		return run, nil, err
	}
	if len(runs) == 0 {
		return run, nil, errors.New("the store has no run")
	}
	log, err := journal.Read(ctx, store, runs[0].ID)
	if err != nil {
		return run, nil, err
	}
	intents = map[change]int{}
	for _, rec := range log.Records {
		if rec.Kind == journal.Intent {
			intents[change{string(rec.Action), place{rec.Ref.Scope, rec.Ref.Kind, rec.ExternalID}}]++
		}
	}
	_, err = journal.Sum(log.Records, len(p.Steps))
	return runs[0], intents, err
}

// settled fails unless the site conforms to a document: a second plan does nothing, nothing has drifted, nothing is stray.
func (s *site) settled(document string) error {
	if err := s.must(0, "plan", "-detailed-exitcode", document); err != nil {
		return fmt.Errorf("the second plan: %w", err)
	}
	p, err := s.run("", "drift", "-json")
	if err != nil {
		return err
	}
	var report struct {
		Complete bool              `json:"complete"`
		Recorded int               `json:"recorded"`
		Drifted  []json.RawMessage `json:"drifted"`
		Strays   []json.RawMessage `json:"strays"`
	}
	said := p.said()
	if i := strings.Index(said, "{"); i >= 0 { // after a warning
		said = said[i:]
	}
	if err := json.NewDecoder(strings.NewReader(said)).Decode(&report); err != nil {
		return fmt.Errorf("drift: %w:\n%s", err, p.report())
	}
	if p.code() != 0 || !report.Complete || report.Recorded == 0 || len(report.Drifted) != 0 || len(report.Strays) != 0 {
		return fmt.Errorf("the site has drifted:\n%s", p.report())
	}
	return nil
}

// statusOf is the stored status of a run that ends with an exit status.
var statusOf = map[int]state.RunStatus{0: state.RunApplied, 3: state.RunReverted, 4: state.RunPartial}

// proven fails unless the site ended as the reference did.
func (s *site) proven(t *template) error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	var run state.Run
	var intents map[change]int
	reads := func(ctx context.Context, store *state.Store) (err error) {
		run, intents, err = last(ctx, store, t.plan)
		return err
	}
	err := s.look(func(ctx context.Context, store *state.Store) error {
		if err := reads(ctx, store); err != nil {
			return err
		}
		if run.Status != statusOf[t.exit] {
			wrong("run %s is stored as %s: %s, want %s", run.ID, run.Status, run.Message, statusOf[t.exit])
		}
		holds, err := store.Holds(ctx)
		var held []string
		for _, h := range holds {
			held = append(held, h.Scope)
		}
		if !slices.Equal(held, t.holds) {
			wrong("held are %q, want %q", held, t.holds)
		}
		if holder, lerr := store.LockInfo(ctx); lerr != nil || holder != nil {
			wrong("the lock is held by %v (%v)", holder, lerr)
		}
		if frozen, ferr := store.Frozen(ctx); ferr != nil || frozen != nil {
			wrong("the site is frozen: %v (%v)", frozen, ferr)
		}
		return err
	})
	if err != nil {
		return err
	}
	if t.exit == 4 {
		if err := errors.Join(s.declare(nil), s.must(0, s.resuming()...), s.look(reads)); err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	effects, err := journalOf(s.dir)
	if err == nil {
		err = s.history.add(effects) // where the last process that changed something was killed
	}
	if err != nil {
		return err
	}
	dump, err := s.dump()
	if err != nil {
		return err
	}
	if dump != t.after {
		wrong("the world is not as it is without a crash:\n%s", difference(t.after, dump))
	}
	counts := s.history.counts()
	for c, n := range counts {
		if n > intents[c] {
			wrong("%s of %s happened %d times, and the journal has %d intents", c.op, c.at, n, intents[c])
		}
	}
	for c, n := range counts {
		most := t.counts[c]
		if t.exit == 3 { // how much is done before the failing step is random
			most = t.most(c)
		}
		if n > most {
			wrong("%s of %s happened %d times, at most %d are right", c.op, c.at, n, most)
		}
	}
	for c, n := range t.counts {
		if t.exit != 3 && counts[c] < n {
			wrong("%s of %s happened %d times, want %d", c.op, c.at, counts[c], n)
		}
	}
	for _, w := range s.history.wrong {
		wrong("%s", w)
	}
	if err := s.settled(t.document()); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// most returns how often a change is right in a run that is undone: as often as the steps require it, and their inverses.
func (t *template) most(c change) (n int) {
	for i := range t.plan.Steps {
		s := &t.plan.Steps[i]
		if (place{s.Ref.Scope, s.Ref.Kind, s.ExternalID}) != c.at {
			continue
		}
		if string(s.Action) == c.op {
			n++
		}
		if s.Undo.Reversible() && string(s.Inverse()) == c.op {
			n++
		}
	}
	return n
}

// difference returns the lines that only one of two texts has.
func difference(want, got string) string {
	count := map[string]int{}
	for l := range strings.Lines(want) {
		count[l]--
	}
	for l := range strings.Lines(got) {
		count[l]++
	}
	var lines []string
	for l, n := range count {
		switch {
		case n < 0:
			lines = append(lines, "- "+l)
		case n > 0:
			lines = append(lines, "+ "+l)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}
