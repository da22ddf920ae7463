package remote_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/agent/task"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/providers/remote"
)

// A trial is a call that meets a fault, and what must come of it.
type trial struct {
	name  string
	epoch int64                   // of the call; 1 when zero
	meet  func(*testing.T, *site) // arranges the fault before the call

	class providers.Class // of the error; empty: success
	over  bool            // nothing more will come of it
	asked int             // how often the far side was asked to do it
	made  int             // how often it has done it

	// mend makes everything work again. Then the same call with the same key has its effect if it has had none, and otherwise ends as
	// in onceMore.
	mend func(*testing.T, *site)
}

// onceMore is what the second of two calls that are the same gets when the first had its effect: it is another task, so the far side is asked.
var onceMore = map[string]providers.Class{task.Create: providers.Exists, task.Update: providers.Conflict, task.Delete: ""}

// later does something on another goroutine when some time has passed, unless the test has ended.
func (n *node) later(d time.Duration, do func()) {
	go func() {
		select {
		case <-time.After(d):
			do()
		case <-n.t.Context().Done():
		}
	}()
}

// dying ends the agent in the middle of the first change, at a moment of it, and starts another.
func dying(at fake.Moment) func(*testing.T, *site) {
	return func(_ *testing.T, s *site) {
		begun, die, died := make(chan bool), make(chan bool), false
		s.world.Hook = func(op string, when fake.Moment, _ providers.Call) {
			if op == "observe" || when != at || died {
				return
			}
			died = true
			close(begun)
			<-die
			runtime.Goexit() // as nothing after this would run in a process that was killed
		}
		go func() {
			<-begun
			s.crash()
			close(die)
			synctest.Wait()
			s.start()
			s.connect()
			_ = s.beat(1)
		}()
	}
}

var trials = []trial{
	{name: "nothing", asked: 1, made: 1},
	{name: "the request is lost", asked: 1, made: 1, meet: func(_ *testing.T, s *site) { s.calls.fail(lost) }},
	{name: "the answer is lost", asked: 1, made: 1, meet: func(_ *testing.T, s *site) { s.calls.fail(unanswered) }},
	{name: "many answers are lost", asked: 1, made: 1, meet: func(_ *testing.T, s *site) { s.calls.fail(unanswered, unanswered, lost, unanswered) }},
	{name: "the request arrives twice at the same time", asked: 1, made: 1, meet: func(_ *testing.T, s *site) { s.calls.fail(twice) }},
	{name: "the connection ends after the effect, and another comes", asked: 1, made: 1, meet: func(_ *testing.T, s *site) {
		s.calls.fail(func(ctx context.Context, deliver func(context.Context) error) error {
			_ = deliver(ctx)
			s.cut()
			s.later(20*time.Second, s.connect)
			return errCut
		})
	}},
	{name: "the connection ends during the effect, and another comes", asked: 1, made: 1, meet: func(_ *testing.T, s *site) {
		s.world.Hook = func(op string, when fake.Moment, _ providers.Call) {
			if op != "observe" && when == fake.Before {
				s.cut()
				s.later(5*time.Second, s.connect)
				time.Sleep(10 * time.Second) // it goes on when the new connection is there
			}
		}
	}},
	{name: "there is no connection at first", asked: 1, made: 1, meet: func(_ *testing.T, s *site) {
		s.cut()
		s.later(10*time.Second, s.connect)
	}},
	{name: "there is no connection while the task is good", class: providers.Transient, meet: func(_ *testing.T, s *site) {
		s.cut()
	}, mend: func(_ *testing.T, s *site) { s.connect() }},
	{name: "the answer is lost, and the node does not come back", class: providers.Unknown, asked: 1, made: 1, meet: func(_ *testing.T, s *site) {
		s.calls.fail(func(ctx context.Context, deliver func(context.Context) error) error {
			_ = deliver(ctx)
			s.cut()
			return errCut
		})
	}, mend: func(_ *testing.T, s *site) { s.connect() }},
	{name: "the connection is silent after the effect", class: providers.Unknown, asked: 1, made: 1, meet: func(_ *testing.T, s *site) { s.calls.fail(silent) }},
	{name: "the answer is lost, and the node comes back when the task has expired", asked: 1, made: 1, meet: func(_ *testing.T, s *site) {
		s.calls.fail(func(ctx context.Context, deliver func(context.Context) error) error {
			_ = deliver(ctx)
			s.cut()
			s.later(3*time.Minute, s.connect)
			return errCut
		})
	}},
	{name: "the request is lost, and the node comes back when the task has expired", class: providers.Transient, meet: func(_ *testing.T, s *site) {
		s.calls.fail(func(context.Context, func(context.Context) error) error {
			s.cut()
			s.later(3*time.Minute, s.connect)
			return errCut
		})
	}},
	{name: "the task expires on its way", class: providers.Transient, meet: func(_ *testing.T, s *site) { s.calls.fail(after(2 * time.Minute)) }},
	{name: "the agent dies before the effect", class: providers.Unknown, over: true, meet: dying(fake.Before), mend: func(_ *testing.T, s *site) { s.world.Hook = nil }},
	{name: "the agent dies after the effect", class: providers.Unknown, over: true, asked: 1, made: 1, meet: dying(fake.After)},
	{name: "the agent restarts when the result is stored", asked: 1, made: 1, meet: func(_ *testing.T, s *site) {
		s.calls.fail(func(ctx context.Context, deliver func(context.Context) error) error {
			_ = deliver(ctx)
			s.restart()
			return errCut
		})
	}},
	{name: "the agent restarts without its ledger", class: providers.Unknown, asked: 1, made: 1, meet: func(t *testing.T, s *site) {
		s.calls.fail(func(ctx context.Context, deliver func(context.Context) error) error {
			_ = deliver(ctx)
			s.stop()
			s.lose()
			s.start()
			s.connect()
			s.later(time.Second, func() { _ = s.beat(1) })
			return errCut
		})
	}},
	{name: "the agent restarts without its ledger, and gets no head", class: providers.Unknown, asked: 1, made: 1, meet: func(t *testing.T, s *site) {
		s.calls.fail(func(ctx context.Context, deliver func(context.Context) error) error {
			_ = deliver(ctx)
			s.stop()
			s.lose()
			s.start()
			s.connect()
			return errCut
		})
	}, mend: func(_ *testing.T, s *site) { _ = s.beat(1) }},
	{name: "the site lock has been taken over", class: providers.Denied, meet: func(t *testing.T, s *site) { fence(t, s.site(), 2) }},
	{name: "the epoch was not fenced", epoch: 2, class: providers.Transient, meet: func(*testing.T, *site) {}, mend: func(t *testing.T, s *site) { fence(t, s, 2) }},
	{name: "there was no head for long", class: providers.Transient, meet: func(*testing.T, *site) { time.Sleep(remote.Stale + time.Second) },
		mend: func(_ *testing.T, s *site) { _ = s.beat(1) }},
	{name: "the node signs with another key", class: providers.Unknown, asked: 1, made: 1, meet: func(_ *testing.T, s *site) { s.renew(key("thief")) },
		mend: func(_ *testing.T, s *site) { s.connect() }},
	{name: "the node renews its key, and connects again", asked: 1, made: 1, meet: func(_ *testing.T, s *site) {
		s.renew(key("node, renewed"))
		s.later(time.Minute, s.connect)
	}},
	{name: "the node does not know the site's key", class: providers.Transient, meet: func(_ *testing.T, s *site) { s.signer = key("thief") },
		mend: func(_ *testing.T, s *site) { s.signer = key("site") }},
	{name: "the far side is unavailable", class: providers.Transient, asked: 1, meet: func(t *testing.T, s *site) {
		if err := s.world.Fail(fake.Fault{Op: "any"}); err != nil {
			t.Fatal(err)
		}
	}},
	{name: "the answer with an error is lost", class: providers.Busy, asked: 1, meet: func(t *testing.T, s *site) {
		if err := s.world.Fail(fake.Fault{Op: "any", Class: providers.Busy}); err != nil {
			t.Fatal(err)
		}
		s.calls.fail(unanswered)
	}},
}

func fence(t *testing.T, s *site, epoch int64) {
	t.Helper()
	if err := s.p.Fence(t.Context(), epoch); err != nil {
		t.Fatal(err)
	}
}

// TestFaults: whatever happens to a call, its effect happens at most once, and its caller is told the truth.
func TestFaults(t *testing.T) {
	for _, op := range []string{task.Create, task.Update, task.Delete} {
		for _, c := range trials {
			t.Run(op+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { c.run(t, op) })
			})
		}
	}
}

func (c *trial) run(t *testing.T, op string) {
	s := newNode(t, newWorld()).site()
	fence(t, s, 1)
	call := s.prepare(op, "run/1/step/1")
	call.Epoch = max(c.epoch, 1)
	if c.meet != nil {
		c.meet(t, s)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	if c.name != "there was no head for long" && c.name != "the agent restarts without its ledger, and gets no head" {
		s.beating(t.Context(), 1)
	}
	err := s.do(ctx, op, call)
	told(t, err, op, c.class, c.over)
	if asked, made := s.requests(); asked != c.asked || made != c.made {
		t.Errorf("the far side was asked %d times and did it %d times, want %d and %d", asked, made, c.asked, c.made)
	}
	if c.class == providers.Denied {
		var outdated *providers.OutdatedError
		if !errors.As(err, &outdated) || outdated.Stored != 2 || outdated.Epoch != 1 {
			t.Errorf("it does not say that the lock was taken over: %+v", outdated)
		}
		return
	}

	if c.mend != nil {
		c.mend(t, s)
	}
	if err := s.world.Mend(); err != nil {
		t.Fatal(err)
	}
	want := providers.Class("")
	if c.made > 0 {
		want = onceMore[op]
	}
	again, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	told(t, s.do(again, op, call), op, want, false)
	if _, made := s.requests(); made != 1 && (op != task.Delete || made > 2) { // to delete what is absent succeeds
		t.Errorf("after another attempt the far side has done it %d times", made)
	}
}

// told checks an error.
func told(t *testing.T, err error, op string, class providers.Class, over bool) {
	t.Helper()
	if class == "" {
		if err != nil {
			t.Errorf("%s: %v (%s), want success", op, err, providers.ClassOf(err))
		}
		return
	}
	var e *providers.Error
	if !errors.As(err, &e) || e.Class != class || providers.Over(err) != over {
		t.Errorf("%s: %v (%s, over %v), want %s, over %v", op, err, providers.ClassOf(err), providers.Over(err), class, over)
		return
	}
	if e.Op != op || e.Ref != refTo("s1") {
		t.Errorf("the error is one of %q of %q, want %s of %s", e.Op, e.Ref, op, refTo("s1"))
	}
}

// TestOldRequest: a task that is delivered again after a long time is answered from the ledger, also by another process.
func TestOldRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newNode(t, newWorld()).site()
		s.beating(t.Context(), 1)
		if err := s.do(t.Context(), task.Create, s.prepare(task.Create, "k")); err != nil {
			t.Fatal(err)
		}
		old, _ := s.calls.last()
		digest, err := task.Digest(old.GetTask())
		if err != nil {
			t.Fatal(err)
		}
		for _, again := range []func(){func() {}, s.restart} {
			again()
			time.Sleep(7 * time.Minute)
			r, err := s.raw(old.GetTask())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := task.OpenResult(r.GetResult(), public(s.key), nodeName, digest); err != nil {
				t.Error(err)
			}
		}
		if asked, _ := s.requests(); asked != 1 {
			t.Errorf("the far side was asked %d times", asked)
		}
	})
}

// TestWaiting: a task that arrives again while it runs waits for its end, and its caller may give up.
func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newNode(t, newWorld()).site()
		release := make(chan bool)
		s.world.Hook = func(op string, when fake.Moment, _ providers.Call) {
			if op == "create" && when == fake.Before {
				<-release
			}
		}
		ctx, giveUp := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.do(ctx, task.Create, s.prepare(task.Create, "k")) }()
		synctest.Wait()
		giveUp()
		told(t, <-ended, task.Create, providers.Unknown, false)

		sent, _ := s.calls.last()
		answers := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := s.raw(sent.GetTask())
				answers <- err
			}()
		}
		synctest.Wait()
		if len(answers) != 0 {
			t.Error("it was answered before it had ended")
		}
		close(release)
		if err := errors.Join(<-answers, <-answers); err != nil {
			t.Error(err)
		}
		if asked, made := s.requests(); asked != 1 || made != 1 {
			t.Errorf("the far side was asked %d times and did it %d times", asked, made)
		}
	})
}

// TestEnding: an agent that ends in good order ends what runs first, and stores how.
func TestEnding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newNode(t, newWorld()).site()
		s.world.Hook = func(op string, when fake.Moment, _ providers.Call) {
			if op == "create" && when == fake.Before {
				time.Sleep(10 * time.Second)
			}
		}
		s.later(time.Second, func() {
			s.restart()
			_ = s.beat(1)
		})
		told(t, s.do(t.Context(), task.Create, s.prepare(task.Create, "k")), task.Create, providers.Transient, false)
		if asked, made := s.requests(); made != 0 {
			t.Errorf("the far side was asked %d times and did it %d times", asked, made)
		}
	})
}

// TestHeads: without a head nothing runs, however the agent was started; with one it does.
func TestHeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newNode(t, newWorld()).site()
		call := s.prepare(task.Create, "k")
		for range 3 {
			time.Sleep(remote.Stale + time.Second)
			told(t, s.do(t.Context(), task.Create, call), task.Create, providers.Transient, false)
		}
		if err := s.p.Fence(t.Context(), 1); providers.ClassOf(err) != providers.Transient {
			t.Errorf("fenced without a head: %v", err)
		}
		s.restart()
		told(t, s.do(t.Context(), task.Create, call), task.Create, providers.Transient, false)
		if asked, _ := s.requests(); asked != 0 {
			t.Fatalf("the far side was asked %d times", asked)
		}
		if err := s.beat(1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(remote.Stale)
		told(t, s.do(t.Context(), task.Create, call), task.Create, "", false)
	})
}

// TestUnsent: a call that could not be sent is given up when its task has expired, and one that cannot even be numbered at once.
func TestUnsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newWorld())
		s, fresh := n.site(), n.site()
		fence(t, s, 1)
		call := s.prepare(task.Create, "k")
		n.cut()
		began := time.Now()
		told(t, fresh.do(t.Context(), task.Create, call), task.Create, providers.Transient, false)
		if d := time.Since(began); d != 0 {
			t.Errorf("the call without a number took %v", d)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		told(t, s.do(ctx, task.Create, call), task.Create, providers.Transient, false)
		if d := time.Since(began); d < remote.Start || d > remote.Start+10*time.Second {
			t.Errorf("it was given up after %v", d)
		}
	})
}

// TestManyCalls: calls for different things at the same time over a line that breaks all the time have their effect once each.
func TestManyCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newNode(t, newWorld()).site()
		s.beating(t.Context(), 1)
		const n = 40
		for i := range 3 * n {
			s.calls.fail([]fault{lost, unanswered, twice, nil, unanswered}[i%5])
		}
		ended := make(chan error, n)
		for i := range n {
			go func() {
				name := fmt.Sprint("s", i)
				c := s.prepare(task.Create, name)
				c.Ref, c.ID, c.Mark.Ref = refTo(name), name, refTo(name)
				ended <- s.do(t.Context(), task.Create, c)
			}()
		}
		for range n {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		if asked, made := s.requests(); asked != n || made != n {
			t.Errorf("the far side was asked %d times and did it %d times, want %d", asked, made, n)
		}
	})
}
