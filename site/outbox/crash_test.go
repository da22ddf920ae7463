package outbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/site"
	"converge.dev/converge/site/outbox"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

var errCrashed = errors.New("the process is dead")

// A process is one that sends events. It dies when its fuse says so, in the middle of whatever it does.
type process struct {
	box   *outbox.Outbox
	store *state.Store
	stop  func()
	ended chan struct{}

	mu     sync.Mutex
	points int
	fuse   func(point int) bool // whether it dies at this point: before or after a use of the store, or a request
	flaky  func(done bool) error
	dead   bool
}

// at passes a point.
func (p *process) at(done bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.points++
	if !p.dead && p.fuse != nil && p.fuse(p.points) {
		p.dead = true
		go p.stop()
	}
	if p.dead {
		return errCrashed
	}
	if p.flaky != nil {
		return p.flaky(done)
	}
	return nil
}

func (p *process) isDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

// RoundTrip implements [http.RoundTripper] between the process and the cloud.
func (p *process) roundTrip(c *cloud, r *http.Request) (*http.Response, error) {
	if p.at(false); p.isDead() {
		return nil, errCrashed
	}
	answer, err := c.RoundTrip(r)
	if p.at(true); p.isDead() {
		return nil, errCrashed
	}
	return answer, err
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// start starts a process on the store of the bed.
func (b *bed) start(fuse func(int) bool, flaky func(bool) error) *process {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{stop: cancel, ended: make(chan struct{}), fuse: fuse, flaky: flaky}
	p.store = state.New(b.kv.Connect(mem.Options{Fault: func(c mem.Call) error { return p.at(c.Done) }}), fra1.Name)
	p.box = b.new(func(o *outbox.Options) {
		o.Store, o.Transport = p.store, roundTripper(func(r *http.Request) (*http.Response, error) { return p.roundTrip(b.cloud, r) })
	})
	go func() {
		defer close(p.ended)
		p.box.Run(ctx)
	}()
	return p
}

func (p *process) end() {
	p.stop()
	<-p.ended
}

// A story is what happens at a site, and what of it the cloud must be told.
type story struct {
	*bed
	status         site.Status // as published
	runs, statuses []string    // in order
	waits          string
}

func (s *story) run(i int) {
	s.put(ended(i, nil))
	s.runs = append(s.runs, fmt.Sprintf("run/run-%04d", i))
}

// become publishes a status by a process, which may die over it.
func (s *story) become(p *process, phase site.Phase) {
	was := s.status
	is := site.Status{Phase: phase, Since: time.Now().UTC()}
	with, then := p.box.Said(was, is)
	body, _ := json.Marshal(is)
	if p.store.Publish(context.Background(), "status", body, with...) == nil {
		then()
	}
	now, err := s.store.Published(context.Background(), "status")
	if err != nil && !errors.Is(err, state.ErrNotFound) {
		s.Fatal(err)
	}
	if string(now) == string(body) { // it has taken place, whatever the process was told
		s.status = is
		if len(with) > 0 {
			s.statuses = append(s.statuses, string(was.Phase)+string(phase))
		}
	}
}

func (s *story) wait() {
	s.waits = fmt.Sprintf("plan/%d", time.Now().UnixNano())
	if err := s.store.SetWaiting(context.Background(), &state.Waiting{Approval: s.waits[5:], Plan: s.waits, Site: fra1, Since: time.Now()}, []byte("{}")); err != nil {
		s.Fatal(err)
	}
}

func (s *story) node(connected bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes = []site.NodeStatus{{Name: "n1", Connected: connected, Since: time.Now()}}
}

// check checks what the cloud was told in the end.
func (s *story) check(name string) {
	s.Helper()
	got := first(s, s.cloud.events())
	var runs, statuses []string
	sequence, waits, node := "", "", ""
	for _, e := range got {
		switch strings.TrimPrefix(e.Type, "dev.converge.") {
		case outbox.RunEnded:
			runs = append(runs, e.Subject)
		case outbox.StatusChanged:
			if e.Sequence != "" {
				var is site.Status
				_ = json.Unmarshal(e.Data, &is)
				statuses = append(statuses, string(is.Phase))
			}
		case outbox.ApprovalWaiting:
			waits = e.Subject
		case outbox.NodeConnected:
			if node == connectedNode {
				s.Errorf("%s: the node is connected twice", name)
			}
			node = connectedNode
		case outbox.NodeLost:
			node = lostNode
		}
		if e.Sequence != "" {
			if e.Sequence <= sequence {
				s.Errorf("%s: %s came after %s", name, e.Sequence, sequence)
			}
			sequence = e.Sequence
		}
	}
	if !slices.Equal(runs, s.runs) {
		s.Errorf("%s: runs %v, told %v", name, s.runs, runs)
	}
	if len(statuses) != len(s.statuses) {
		s.Errorf("%s: statuses %v, told %v", name, s.statuses, statuses)
	}
	for i := range min(len(statuses), len(s.statuses)) {
		if !strings.HasSuffix(s.statuses[i], statuses[i]) {
			s.Errorf("%s: statuses %v, told %v", name, s.statuses, statuses)
		}
	}
	if waits != s.waits {
		s.Errorf("%s: %q waits, told %q", name, s.waits, waits)
	}
	if node == connectedNode {
		s.Errorf("%s: that the node is lost was not told", name)
	}
	if d := s.delivery(); d.Refused != 0 || d.Unsaid != 0 {
		s.Errorf("%s: %+v", name, d)
	}
	if left := s.bed.waits(); len(left) != 0 {
		s.Errorf("%s: %d events wait", name, len(left))
	}
	if s.Failed() {
		s.Logf("log: %s", s.logged())
	}
}

const (
	connectedNode = "connected"
	lostNode      = "lost"
)

// Wherever a process dies, between the store, the receiver and the store again, the next one tells everything that is kept, in order; what
// comes twice is the same.
func TestCrashAnywhere(t *testing.T) {
	points := 0
	for at := 1; ; at++ {
		died := false
		synctest.Test(t, func(t *testing.T) {
			s := &story{bed: newBed(t), status: site.Status{Phase: site.InSync}}
			first := s.start(nil, nil)
			synctest.Wait()
			first.end()
			s.node(true)
			p := s.start(func(point int) bool { return point == at }, nil)
			pass(time.Second)
			s.run(1)
			pass(time.Second)
			s.become(p, site.Failed)
			pass(time.Second)
			s.run(2)
			s.run(3)
			s.wait()
			pass(time.Second)
			s.become(p, site.InSync)
			s.node(false)
			pass(time.Minute)
			s.run(4)
			pass(time.Minute)
			died = p.isDead()
			points = p.points
			p.end()
			last := s.start(nil, nil)
			pass(time.Hour)
			last.end()
			s.check(fmt.Sprintf("dead at point %d", at))
		})
		if !died || t.Failed() {
			break
		}
	}
	if points < 50 && !t.Failed() {
		t.Errorf("there are only %d points", points)
	}
}

// Whatever the receiver, the store and the processes do, nothing that is kept is lost, and it comes in order.
func TestRandomOutages(t *testing.T) {
	for seed := range uint64(150) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 7))
			var mu sync.Mutex // of r
			pick := func(n int) int {
				mu.Lock()
				defer mu.Unlock()
				return r.IntN(n)
			}
			chance := func(percent int) bool { return pick(100) < percent }
			s := &story{bed: newBed(t), status: site.Status{Phase: site.InSync}}
			var healthy atomic.Bool
			s.cloud.answer = func(int, received) (int, http.Header, error) {
				switch {
				case healthy.Load() || chance(40):
					return 204, nil, nil
				case chance(20):
					return 200, nil, errLost
				case chance(20):
					return 0, nil, errHang
				case chance(30):
					return 0, nil, errReset
				case chance(20):
					return 429, http.Header{"Retry-After": {"30"}}, nil
				case chance(20):
					return 401, http.Header{}, nil
				}
				return 500, http.Header{}, nil
			}
			flaky := func(done bool) error {
				switch {
				case !chance(5):
					return nil
				case done:
					return fmt.Errorf("the reply is lost: %w", state.ErrUnknown)
				}
				return errors.New("the store does not answer")
			}
			fuse := func(int) bool { return chance(2) }
			first := s.start(nil, nil)
			synctest.Wait()
			first.end()
			all := []*process{s.start(fuse, flaky)}
			for i := range 20 + pick(20) {
				switch pick(8) {
				case 0, 1, 2:
					s.run(i)
				case 3:
					p := all[len(all)-1]
					if s.status.Phase == site.Failed {
						s.become(p, site.InSync)
					} else {
						s.become(p, site.Failed)
					}
				case 4:
					s.node(chance(50))
				case 5: // another one keeps the site; the one before may not know that yet
					all = append(all, s.start(fuse, flaky))
					if len(all) > 2 || chance(50) {
						all[len(all)-2].end()
					}
				}
				if all[len(all)-1].isDead() {
					all = append(all, s.start(fuse, flaky))
				}
				pass(time.Duration(pick(100)) * time.Second)
			}
			s.wait()
			for _, p := range all {
				p.end()
			}
			healthy.Store(true)
			s.node(false)
			last := s.start(nil, nil)
			pass(2 * time.Hour)
			last.end()
			s.check(fmt.Sprintf("seed %d", seed))
		})
		if t.Failed() {
			return
		}
	}
}
