package guard

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"converge.dev/converge/providers"
)

// The program is spoken to in lines of JSON: a request, and its reply. The connection of an arming lasts as long as the call: the
// program may tell that its time is over, and the agent says how it ended.

// Bounds of the protocol.
const (
	maxLine  = 2 << 20 // bytes of a message
	maxConns = 256
	readIn   = 10 * time.Second // for a request to arrive
	writeIn  = 5 * time.Second  // for a message to be taken
)

// A request is the first line of a connection.
type request struct {
	Version int           `json:"version"`
	Op      string        `json:"op"` // arm, settle, fence, open
	ID      string        `json:"id,omitzero"`
	Epoch   int64         `json:"epoch,omitzero"`
	Keep    bool          `json:"keep,omitzero"`
	Within  time.Duration `json:"within,omitzero"`
	Probes  []string      `json:"probes,omitzero"`
	Change  *change       `json:"change,omitzero"`
}

// A reply is what the program writes.
type reply struct {
	Failure *failure `json:"failure,omitzero"`
	Kept    bool     `json:"kept,omitzero"`
	Open    []Open   `json:"open,omitzero"`
	Over    bool     `json:"over,omitzero"` // while a call is in progress: it is to end
}

// A failure is an error on the wire.
type failure struct {
	Class  providers.Class `json:"class"`
	Text   string          `json:"text"`
	Stored int64           `json:"stored,omitzero"` // of a providers.OutdatedError
	Asked  int64           `json:"asked,omitzero"`
}

// An ending is how a call ended.
type ending struct {
	Withdraw bool   `json:"withdraw,omitzero"` // it had no effect, and will have none
	Unknown  bool   `json:"unknown,omitzero"`  // it may still have an effect
	Chosen   string `json:"chosen,omitzero"`   // the id that the far side chose for a thing
}

// Open is a guard without a verdict, or one that failed.
type Open struct {
	ID        string        `json:"id"`
	Epoch     int64         `json:"epoch"` // of the lock holder who armed it
	Changes   []Change      `json:"changes"`
	Remaining time.Duration `json:"remaining"` // until its changes are undone; not negative

	// Failed is why its changes could not be undone so far, or why it cannot be read: then nothing but the name of its files, as ID, is known
	// of it. A person has to look at the node. Empty: its time is not over.
	Failed string `json:"failed,omitzero"`
}

// A Change is one that a guard would undo.
type Change struct {
	Op  string `json:"op"`  // create, update, delete
	Ref string `json:"ref"` // of the resource, as text
}

// A fault is an error of a request with its class.
type fault struct {
	class providers.Class
	err   error
}

func (f *fault) Error() string { return f.err.Error() }
func (f *fault) Unwrap() error { return f.err }

func faultf(class providers.Class, format string, args ...any) error {
	return &fault{class, fmt.Errorf(format, args...)}
}

// failureOf returns an error as it is sent.
func failureOf(err error) *failure {
	if err == nil {
		return nil
	}
	f := &failure{Class: providers.Transient, Text: err.Error()}
	var of *fault
	if errors.As(err, &of) {
		f.Class = of.class
	}
	var outdated *providers.OutdatedError
	if errors.As(err, &outdated) {
		f.Stored, f.Asked = outdated.Stored, outdated.Epoch
	}
	return f
}

// lines reads and writes messages.
type lines struct {
	conn net.Conn
	in   *bufio.Scanner
}

func newLines(conn net.Conn) *lines {
	in := bufio.NewScanner(conn)
	in.Buffer(nil, maxLine)
	return &lines{conn, in}
}

func (l *lines) read(what any) error {
	if !l.in.Scan() {
		if err := l.in.Err(); err != nil {
			return err
		}
		return errors.New("the connection has ended")
	}
	if err := json.Unmarshal(l.in.Bytes(), what, strict()); err != nil {
		return errors.New("the message is not in the form of this version: use the same version of converge for agent and guard")
	}
	return nil
}

func (l *lines) write(what any) error {
	b, err := json.Marshal(what, strict())
	if err != nil {
		return errors.New("want texts in UTF-8, and numbers that JSON has")
	}
	if len(b) >= maxLine {
		return fmt.Errorf("the message has %d bytes; at most %d are allowed", len(b), maxLine)
	}
	if err := l.conn.SetWriteDeadline(time.Now().Add(writeIn)); err != nil {
		return err
	}
	_, err = l.conn.Write(append(b, '\n'))
	return err
}

// serve answers until ctx ends.
func (p *program) serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	slots := make(chan struct{}, maxConns)
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			var again interface{ Temporary() bool }
			if !errors.As(err, &again) || !again.Temporary() {
				return err
			}
			p.Logger.Warn("a connection cannot be accepted", "error", err)
			pause(ctx, firstPause, nil)
			<-slots
			continue
		}
		p.tending.Go(func() {
			defer func() { <-slots }()
			p.answer(ctx, conn)
		})
	}
}

// answer serves one connection.
func (p *program) answer(ctx context.Context, conn net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	l := newLines(conn)
	var r request
	err := conn.SetReadDeadline(time.Now().Add(readIn))
	if err == nil {
		err = l.read(&r)
	}
	if err == nil {
		err = conn.SetReadDeadline(time.Time{})
	}
	if err == nil && r.Version != version {
		err = fmt.Errorf("the message has version %d, this program speaks version %d", r.Version, version)
	}
	if err != nil {
		_ = l.write(reply{Failure: failureOf(err)})
		return
	}
	// What comes next says how a call ended, or that the caller is gone: then nobody waits for an answer.
	ended := make(chan ending, 1)
	p.tending.Go(func() {
		defer cancel()
		var e ending
		if err := l.read(&e); err == nil {
			ended <- e
			// The connection is read until its end, to notice that.
			for l.in.Scan() {
			}
		}
	})
	if r.Op == "arm" {
		p.flight(ctx, l, r, ended)
		return
	}
	var out reply
	switch r.Op {
	case "settle":
		out.Kept, err = p.settle(ctx, r)
	case "fence":
		err = p.fence(ctx, r.Epoch)
	case "open":
		out.Open = p.open()
	default:
		err = faultf(providers.Unsupported, "the guard does not know the request %q", r.Op)
	}
	out.Failure = failureOf(err)
	_ = l.write(out)
}

// flight arms a change and waits until its call has ended.
func (p *program) flight(ctx context.Context, l *lines, r request, ended <-chan ending) {
	g, f, err := p.arm(ctx, r)
	if err != nil {
		_ = l.write(reply{Failure: failureOf(err)})
		return
	}
	// From here on the agent may make the call, unless it has gone: the connection tells.
	if err := l.write(reply{}); err != nil {
		p.landed(g, f, ending{Unknown: true})
		return
	}
	over := f.over
	for {
		select {
		case <-over:
			over = nil
			_ = l.write(reply{Over: true})
		case e := <-ended:
			_ = l.write(reply{Failure: failureOf(p.landed(g, f, e))})
			return
		case <-ctx.Done():
			select {
			case e := <-ended: // it came with the end of the connection
				_ = p.landed(g, f, e)
			default:
				_ = p.landed(g, f, ending{Unknown: true})
			}
			return
		}
	}
}

// arm stores how a change is undone.
func (p *program) arm(ctx context.Context, r request) (*guarded, *flight, error) {
	name, err := fileName(r.ID)
	if err != nil {
		return nil, nil, &fault{providers.Invalid, err}
	}
	switch {
	case r.Within < minWithin || r.Within > maxWithin:
		return nil, nil, faultf(providers.Invalid, "the guard %s has %v: choose %v to %v", r.ID, r.Within, minWithin, maxWithin)
	case r.Change == nil || r.Epoch < 0:
		return nil, nil, faultf(providers.Invalid, "there is no change to guard")
	}
	if err := errors.Join(r.Change.check(), CheckProbes(r.Probes)); err != nil {
		return nil, nil, &fault{providers.Invalid, err}
	}
	p.mu.Lock()
	_, err = p.admit(name, r)
	p.mu.Unlock()
	if err != nil {
		return nil, nil, err
	}
	if err := p.rehearse(ctx, r); err != nil {
		return nil, nil, err
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	g, err := p.admit(name, r)
	if err != nil {
		return nil, nil, err
	}
	now := p.now()
	next := &capsule{ID: r.ID, terms: terms{Epoch: r.Epoch, Boot: now.Boot, Deadline: now.At + r.Within, Within: r.Within}}
	if g != nil {
		c := *g.capsule
		next = &c
	}
	ch := *r.Change
	ch.Number = next.Next
	next.Next++
	next.Changes = append(slices.Clone(next.Changes), ch)
	if len(next.Changes) > maxChanges {
		return nil, nil, faultf(providers.Invalid, "the guard %s has %d changes, the most that are allowed", r.ID, maxChanges)
	}
	next.Probes = slices.Concat(next.Probes, r.Probes)
	slices.Sort(next.Probes)
	if next.Probes = slices.Compact(next.Probes); len(next.Probes) > maxProbes {
		return nil, nil, faultf(providers.Invalid, "the guard %s has %d probes: at most %d are allowed", r.ID, len(next.Probes), maxProbes)
	}
	if err := p.disk.replace(name+capsuleFile, next); err != nil {
		// It may be on disk all the same. Where the guard is new it is removed. Otherwise its file has one change too many, of a thing
		// that is as it was before.
		if g == nil {
			if rerr := p.disk.remove(name + capsuleFile); rerr != nil {
				next.Changes = nil // until the deadline there is a guard that changes nothing
				p.add(next, name)
			}
		}
		return nil, nil, faultf(providers.Transient, "the guard cannot store how to undo the change: %w", err)
	}
	if g == nil {
		g = p.add(next, name)
	}
	g.capsule = next
	f := &flight{number: ch.Number, over: make(chan struct{})}
	g.flights[f] = true
	p.tell()
	p.Logger.Info("a change is guarded", "guard", r.ID, "op", ch.Op, "ref", ch.Ref.String(), "remaining", next.Deadline-now.At)
	return g, f, nil
}

// add makes a new guard known. The caller has the lock.
func (p *program) add(c *capsule, name string) *guarded {
	g := newGuarded(c, name)
	p.guards[c.ID] = g
	p.tending.Go(func() { p.tend(p.running, g) })
	return g
}

// admit returns the guard to which a change is added, nil when it is a new one, or why that is refused. The caller has the lock.
func (p *program) admit(name string, r request) (*guarded, error) {
	if err := p.damaged[name]; err != nil {
		return nil, p.unreadable(name, err)
	}
	if r.Epoch < p.fenced {
		return nil, &fault{providers.Denied, &providers.OutdatedError{On: "the guard of " + r.Change.Ref.Scope, Stored: p.fenced, Epoch: r.Epoch}}
	}
	for id, other := range p.guards {
		if id != r.ID && (other.verdict == open || other.verdict == undoing && !other.undone) &&
			slices.ContainsFunc(other.capsule.Changes, func(c change) bool { return c.key() == r.Change.key() }) {
			return nil, faultf(providers.Busy, "the guard %s would undo another change of it: settle that first", id)
		}
	}
	g := p.guards[r.ID]
	if g == nil {
		return nil, nil
	}
	if err := admit(g.standing, r.Epoch, p.now()); err != nil {
		return nil, faultf(providers.Denied, "no change can be added to the guard %s: %w", r.ID, err)
	}
	return g, nil
}

func (p *program) unreadable(name string, err error) error {
	return faultf(providers.Unknown, "the guard cannot read %s: %w; look at what it guards, then move its files away and start the guard again",
		filepath.Join(p.Dir, name+capsuleFile), err)
}

// rehearse checks that a change could be undone, and that what has to work after that works now.
func (p *program) rehearse(ctx context.Context, r request) error {
	opened := map[string]*providers.Provider{}
	_, err := p.source(ctx, opened, r.Change.Source, r.Change.Ref.Kind)
	for _, o := range opened {
		err = errors.Join(err, o.Close())
	}
	if err != nil {
		return faultf(providers.Transient, "the guard could not undo the change: %w", err)
	}
	if err := p.works(ctx, r.Probes); err != nil {
		return faultf(providers.Transient, "what must work after the change does not work before it: %w", err)
	}
	return nil
}

// works fails when a probe does, and says which.
func (p *program) works(ctx context.Context, probes []string) error {
	var failed []string
	for _, done := range p.probe(ctx, probes) {
		if done.Error != "" {
			failed = append(failed, done.Probe+": "+done.Error)
		}
	}
	if len(failed) > 0 {
		return errors.New(strings.Join(failed, "; "))
	}
	return nil
}

// landed takes note of how a call ended.
func (p *program) landed(g *guarded, f *flight, e ending) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.tell()
	delete(g.flights, f)
	at := slices.IndexFunc(g.capsule.Changes, func(c change) bool { return c.Number == f.number })
	if at < 0 {
		return nil
	}
	ch := g.capsule.Changes[at]
	if e.Unknown {
		g.late = max(g.late, p.Uptime()+ch.Late)
	}
	if e.Chosen == "" && (!e.Withdraw || g.verdict != open) || e.Chosen != "" && (g.verdict == kept || g.undone) {
		return nil
	}
	next := *g.capsule
	if e.Chosen == "" {
		if len(next.Changes) == 1 {
			if err := p.disk.remove(g.name + capsuleFile); err != nil {
				return fmt.Errorf("the guard cannot withdraw the change, and will undo it: %w", err)
			}
			g.gone = true
			delete(p.guards, next.ID)
			return nil
		}
		next.Changes = slices.Delete(slices.Clone(next.Changes), at, at+1)
	} else {
		next.Changes = slices.Clone(next.Changes)
		next.Changes[at].ID = e.Chosen
	}
	if err := p.disk.replace(g.name+capsuleFile, &next); err != nil {
		if e.Chosen != "" { // what is in memory is undone by this process
			g.capsule = &next
		}
		return fmt.Errorf("the guard cannot store how the change ended: %w", err)
	}
	g.capsule = &next
	return nil
}

// settle ends a guard, and waits until its changes are undone when they are not kept.
func (p *program) settle(ctx context.Context, r request) (bool, error) {
	name, err := fileName(r.ID)
	if err != nil {
		return false, &fault{providers.Invalid, err}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	g, err := p.settles(name, r)
	if err != nil {
		return false, err
	}
	if probes := g.capsule.Probes; r.Keep && g.verdict == open && len(probes) > 0 {
		p.mu.Unlock()
		failed := p.works(ctx, probes)
		p.mu.Lock()
		if g, err = p.settles(name, r); err != nil { // meanwhile anything may have happened
			return false, err
		}
		switch {
		case g.verdict != open:
		case failed != nil: // until the deadline it may work again
			return false, faultf(providers.Transient, "what must work after the change does not: %w", failed)
		case !slices.Equal(probes, g.capsule.Probes):
			return false, faultf(providers.Transient, "a change was added to the guard %s", r.ID)
		}
	}
	if g.verdict == open {
		v := settle(g.standing, r.Keep, p.now())
		if v == kept && len(g.flights) > 0 {
			return false, faultf(providers.Transient, "a change of the guard %s is still in progress", r.ID)
		}
		if err := p.decide(g, v); err != nil {
			return false, faultf(providers.Transient, "the guard cannot store the verdict: %w", err)
		}
	}
	return g.verdict == kept, p.settled(ctx, g)
}

// settles returns the guard that a request is to end. The lock is held.
func (p *program) settles(name string, r request) (*guarded, error) {
	if err := p.damaged[name]; err != nil {
		return nil, p.unreadable(name, err)
	}
	g := p.guards[r.ID]
	if g == nil {
		return nil, faultf(providers.Absent, "there is no guard %s", r.ID)
	}
	if oldest := max(g.Epoch, p.fenced); g.verdict == open && r.Epoch < oldest {
		return nil, &fault{providers.Denied, &providers.OutdatedError{On: "the guard " + r.ID, Stored: oldest, Epoch: r.Epoch}}
	}
	return g, nil
}

// settled waits until the changes of a guard that are not kept are undone. The caller has the lock, which is released meanwhile.
func (p *program) settled(ctx context.Context, g *guarded) error {
	for g.verdict != kept && !g.undone {
		if g.result != nil {
			return faultf(providers.Unknown, "the changes of the guard %s could not be undone: %s", g.capsule.ID, g.result.Why)
		}
		changed := p.changed
		p.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		p.mu.Lock()
		if ctx.Err() != nil {
			return faultf(providers.Transient, "the guard %s is still undoing its changes", g.capsule.ID)
		}
	}
	return nil
}

// fence undoes what was armed in an earlier epoch, and admits nothing of one from here on, in this process.
func (p *program) fence(ctx context.Context, epoch int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if epoch < p.fenced {
		return &fault{providers.Denied, &providers.OutdatedError{On: "the guard", Stored: p.fenced, Epoch: epoch}}
	}
	p.fenced = epoch
	for name, err := range p.damaged {
		return p.unreadable(name, err)
	}
	var older []*guarded
	for _, g := range p.guards {
		if g.Epoch >= epoch || g.verdict == kept || g.undone {
			continue
		}
		if g.verdict == open {
			if err := p.decide(g, undoing); err != nil {
				return faultf(providers.Transient, "the guard cannot store a verdict: %w", err)
			}
		}
		older = append(older, g)
	}
	for _, g := range older {
		if err := p.settled(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

// open lists the guards without a verdict, and those that failed, by id.
func (p *program) open() []Open {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := []Open{}
	now := p.now()
	for name, err := range p.damaged {
		all = append(all, Open{ID: name, Changes: []Change{}, Failed: p.unreadable(name, err).Error()})
	}
	for id, g := range p.guards {
		o := Open{ID: id, Epoch: g.Epoch, Changes: []Change{}}
		switch {
		case g.verdict == open:
		case g.verdict == undoing && !g.undone && g.result != nil:
			o.Failed = "what it guards could not be undone, which is tried every minute: " + g.result.Why
		default:
			continue
		}
		if do, left := judge(g.standing, now); do == wait {
			o.Remaining = left
		}
		for _, c := range g.capsule.Changes {
			o.Changes = append(o.Changes, Change{c.Op, c.Ref.String()})
		}
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b Open) int { return strings.Compare(a.ID, b.ID) })
	return all
}
