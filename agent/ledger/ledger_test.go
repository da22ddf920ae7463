package ledger_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"converge.dev/converge/agent/ledger"
	"converge.dev/converge/internal/files"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// A process that has this variable opens the ledger that it names, begins a task and waits.
const holdVariable = "LEDGER_TEST_HOLD"

func TestMain(m *testing.M) {
	if path := os.Getenv(holdVariable); path != "" {
		l, err := ledger.Open(path, ledger.Options{Now: func() time.Time { return start }})
		if err == nil {
			_, err = l.Begin(task(1, 2))
		}
		fmt.Println("held", err)
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	os.Exit(m.Run())
}

// A world is a ledger with its clock.
type world struct {
	*ledger.Ledger
	t    testing.TB
	path string
	now  time.Time
	keep int
}

// fresh returns a ledger of epoch 1 that has taken a head.
func fresh(t testing.TB, keep int) *world {
	t.Helper()
	w := empty(t, keep)
	w.ok(w.Head(1, 0, start))
	return w
}

func empty(t testing.TB, keep int) *world {
	t.Helper()
	w := &world{t: t, path: filepath.Join(t.TempDir(), "ledger"), now: start, keep: keep}
	w.open(w.path)
	t.Cleanup(func() { _ = w.Close() })
	return w
}

func (w *world) open(path string) {
	w.t.Helper()
	l, err := ledger.Open(path, ledger.Options{Now: func() time.Time { return w.now }, Keep: w.keep})
	w.ok(err)
	w.Ledger, w.path = l, path
}

// restart closes the ledger and opens it again.
func (w *world) restart() {
	w.t.Helper()
	w.ok(w.Close())
	w.open(w.path)
}

// crash opens a copy of the file, as it would be found had the process been killed now.
func (w *world) crash() {
	w.t.Helper()
	data, err := os.ReadFile(w.path)
	w.ok(err)
	path := w.path + "+"
	w.ok(os.WriteFile(path, data, 0o600))
	_ = w.Close()
	w.ok(os.Remove(w.path))
	w.open(path)
}

func (w *world) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) run(e ledger.Entry) *ledger.Run {
	w.t.Helper()
	b, err := w.Begin(e)
	r, ok := b.(*ledger.Run)
	if err != nil || !ok {
		w.t.Fatalf("%s: %T, %v; want to run it", e.ID, b, err)
	}
	return r
}

// stored expects that a task has this result.
func (w *world) stored(e ledger.Entry, result string) {
	w.t.Helper()
	b, err := w.Begin(e)
	s, ok := b.(ledger.Stored)
	if err != nil || !ok || string(s.Result) != result {
		w.t.Fatalf("%s: %T %v, %v; want the result %s", e.ID, b, b, err, result)
	}
}

func (w *world) interrupted(e ledger.Entry) {
	w.t.Helper()
	if b, err := w.Begin(e); err != nil || b != (ledger.Interrupted{}) {
		w.t.Fatalf("%s: %T, %v; want interrupted", e.ID, b, err)
	}
}

func (w *world) refused(e ledger.Entry, want ledger.Reason) {
	w.t.Helper()
	b, err := w.Begin(e)
	var refused *ledger.RefusedError
	if b != nil || !errors.As(err, &refused) || refused.Reason != want {
		w.t.Fatalf("%s: %T, %v; want refused for %s", e.ID, b, err, want)
	}
}

// task returns a task that expires ten minutes after start, with a key of its own.
func task(epoch, seq int64) ledger.Entry {
	id := fmt.Sprintf("task-%d-%d", epoch, seq)
	return ledger.Entry{Epoch: epoch, Seq: seq, ID: id, Digest: "digest-" + id, Key: "key-" + id, Action: "create", Expires: start.Add(10 * time.Minute)}
}

func TestReplayReturnsStoredResult(t *testing.T) {
	w := fresh(t, 0)
	w.ok(w.run(task(1, 1)).Finish([]byte("signed")))
	w.stored(task(1, 1), "signed")
	w.restart()
	w.stored(task(1, 1), "signed")
	w.now = start.Add(time.Hour) // even when it has expired
	w.stored(task(1, 1), "signed")
	other := task(1, 1)
	other.Digest = "another"
	w.refused(other, ledger.RefusedSeq)
}

func TestTasksArriveInAnyOrder(t *testing.T) {
	w := fresh(t, 0)
	for _, seq := range []int64{5, 2, 9, 1} {
		w.ok(w.run(task(1, seq)).Finish(nil))
	}
	if s := w.Standing(); s.Seq != 9 || s.Epoch != 1 || len(s.Running) > 0 || !s.Floor.Equal(start) {
		t.Errorf("%+v", s)
	}
	w.restart()
	w.stored(task(1, 2), "")
	w.run(task(1, 3))
}

func TestReplayAfterPruneIsRefused(t *testing.T) {
	w := fresh(t, 2)
	for seq := int64(1); seq <= 5; seq++ {
		w.ok(w.run(task(1, seq)).Finish([]byte("r")))
	}
	w.now = start.Add(11 * time.Minute)
	late := task(1, 6) // within the skew nothing is pruned
	late.Expires = w.now
	w.ok(w.run(late).Finish(nil))
	w.stored(task(1, 1), "r")
	w.now = w.now.Add(time.Second)
	late = task(1, 7)
	late.Expires = w.now
	w.run(late)
	w.now = start // the clock going back does not bring them back
	for range 2 {
		for seq := int64(1); seq <= 3; seq++ {
			w.refused(task(1, seq), ledger.RefusedSeq)
		}
		w.stored(task(1, 4), "r")
		w.stored(task(1, 5), "r")
		if o, err := w.Outcome(task(1, 3).Key); err != nil || o.Begun != nil || o.Floor != (ledger.Position{Epoch: 1, Seq: 3}) {
			t.Errorf("%+v, %v", o, err)
		}
		w.restart()
	}
}

// What runs is not pruned, however old it is.
func TestRunningIsNotPruned(t *testing.T) {
	w := fresh(t, 1)
	r := w.run(task(1, 1))
	for seq := int64(2); seq <= 4; seq++ {
		w.ok(w.run(task(1, seq)).Finish(nil))
	}
	w.now = start.Add(time.Hour)
	late := task(1, 5)
	late.Expires = w.now
	w.run(late)
	if b, err := w.Begin(task(1, 1)); err != nil {
		t.Fatalf("%T, %v", b, err)
	}
	w.ok(r.Finish([]byte("at last")))
	w.restart()
	w.stored(task(1, 1), "at last")
}

func TestLostLedger(t *testing.T) {
	t.Run("without a head", func(t *testing.T) {
		w := empty(t, 0)
		w.refused(task(1, 1), ledger.RefusedUnfenced)
	})
	t.Run("with a head", func(t *testing.T) {
		w := empty(t, 0)
		w.ok(w.Head(3, 7, start))
		for range 2 {
			w.refused(task(2, 9), ledger.RefusedEpoch)
			w.refused(task(3, 7), ledger.RefusedSeq)
			if s := w.Standing(); s.Epoch != 3 || s.Seq != 7 {
				t.Errorf("%+v", s)
			}
			w.restart()
		}
		w.run(task(3, 8))
	})
	// The leader of the same epoch fences again when the node connects again, and does not know that the file was lost.
	t.Run("fenced before the head", func(t *testing.T) {
		w := empty(t, 0)
		if _, err := w.Fence(3); err != nil {
			t.Fatal(err)
		}
		w.refused(task(3, 7), ledger.RefusedNew)
		if o, err := w.Outcome("key"); err != nil || o.Begun != nil || o.Floor.Compare(ledger.Position{Epoch: 1 << 60, Seq: 1 << 60}) < 0 {
			t.Errorf("%+v, %v", o, err)
		}
		w.restart()
		w.refused(task(3, 7), ledger.RefusedNew)
		w.ok(w.Head(3, 7, start))
		w.refused(task(3, 7), ledger.RefusedSeq)
		w.run(task(3, 8))
	})
	t.Run("head of a newer leader", func(t *testing.T) {
		w := empty(t, 0)
		if _, err := w.Fence(3); err != nil {
			t.Fatal(err)
		}
		w.ok(w.Head(4, 2, start))
		w.refused(task(3, 100), ledger.RefusedSeq)
		w.refused(task(4, 3), ledger.RefusedUnfenced)
		if _, err := w.Fence(4); err != nil {
			t.Fatal(err)
		}
		w.refused(task(4, 2), ledger.RefusedSeq)
		w.run(task(4, 3))
	})
}

func TestFence(t *testing.T) {
	w := fresh(t, 0)
	old := w.run(task(1, 4))
	s, err := w.Fence(2)
	if err != nil || s.Epoch != 2 || s.Seq != 0 || !cmp.Equal(s.Running, []ledger.Entry{task(1, 4)}) {
		t.Fatalf("%+v, %v", s, err)
	}
	again, err := w.Fence(2)
	if err != nil || !cmp.Equal(s, again) {
		t.Errorf("%+v, %v", again, err)
	}
	var outdated *ledger.OutdatedError
	if _, err := w.Fence(1); !errors.As(err, &outdated) || *outdated != (ledger.OutdatedError{Stored: 2, Epoch: 1}) {
		t.Error(err)
	}
	if err := w.Head(1, 9, start.Add(time.Hour)); !errors.As(err, &outdated) || !w.Standing().Floor.Equal(start) {
		t.Error(err)
	}
	w.refused(task(1, 5), ledger.RefusedEpoch)
	w.refused(task(3, 1), ledger.RefusedUnfenced)
	// The sequence of the new epoch is its own, also for what ends later.
	fresh := w.run(task(2, 4))
	w.ok(old.Finish([]byte("old")))
	w.ok(fresh.Finish([]byte("new")))
	w.restart()
	w.stored(task(2, 4), "new")
	o, err := w.Outcome(task(1, 4).Key)
	if s, ok := o.Begun.(ledger.Stored); err != nil || !ok || string(s.Result) != "old" || !cmp.Equal(o.Entry, task(1, 4)) {
		t.Errorf("%+v, %v", o, err)
	}
	w.refused(task(1, 4), ledger.RefusedEpoch)
	if s := w.Standing(); s.Epoch != 2 || s.Seq != 4 {
		t.Errorf("%+v", s)
	}
}

func TestHead(t *testing.T) {
	w := fresh(t, 0)
	w.ok(w.Head(1, 50, start.Add(20*time.Minute)))
	w.ok(w.Head(1, 51, start.Add(10*time.Minute)))
	w.ok(w.Head(2, 3, start.Add(15*time.Minute)))
	for range 2 {
		if s := w.Standing(); s.Epoch != 1 || s.Seq != 0 || !s.Floor.Equal(start.Add(20*time.Minute)) {
			t.Errorf("%+v", s)
		}
		w.refused(task(1, 1), ledger.RefusedExpired) // the clock is behind
		w.restart()
	}
	e := task(1, 1)
	e.Expires = start.Add(19 * time.Minute) // 60 s of skew
	w.run(e)
}

// The time of heads is forgotten for good, and nothing else is.
func TestForgetTime(t *testing.T) {
	w := fresh(t, 0)
	w.ok(w.run(task(1, 4)).Finish([]byte("done")))
	w.ok(w.Head(1, 4, start.Add(48*time.Hour)))
	w.refused(task(1, 5), ledger.RefusedExpired)
	w.ok(w.ForgetTime())
	for range 2 {
		if s := w.Standing(); s.Epoch != 1 || s.Seq != 4 || !s.Floor.IsZero() {
			t.Errorf("%+v", s)
		}
		w.refused(task(1, 6), ledger.RefusedNew)
		w.stored(task(1, 4), "done")
		w.restart()
	}
	w.ok(w.Head(1, 6, start))
	w.refused(task(1, 5), ledger.RefusedSeq) // it may have been signed, and held back, while the clocks were ahead
	w.stored(task(1, 4), "done")
	w.run(task(1, 7))

	// A head that knows less does not lower the floor.
	w.ok(w.ForgetTime())
	w.ok(w.Head(1, 2, start))
	w.refused(task(1, 5), ledger.RefusedSeq)
	w.run(task(1, 8))
}

func TestExpired(t *testing.T) {
	w := fresh(t, 0)
	w.now = task(1, 1).Expires.Add(time.Minute)
	w.run(task(1, 1))
	w.now = w.now.Add(1)
	w.refused(task(1, 2), ledger.RefusedExpired)
}

func TestInterrupted(t *testing.T) {
	w := fresh(t, 1)
	w.run(task(1, 1))
	w.crash()
	for range 2 {
		w.interrupted(task(1, 1))
		if o, err := w.Outcome(task(1, 1).Key); err != nil || o.Begun != (ledger.Interrupted{}) {
			t.Errorf("%+v, %v", o, err)
		}
		if s := w.Standing(); len(s.Running) > 0 || s.Seq != 1 {
			t.Errorf("%+v", s)
		}
		w.restart()
	}
}

func TestOutcomeIsThatOfTheNewest(t *testing.T) {
	w := fresh(t, 0)
	first, second := task(1, 1), task(1, 2)
	second.Key = first.Key
	w.ok(w.run(first).Finish([]byte("1")))
	r := w.run(second)
	o, err := w.Outcome(first.Key)
	wait, ok := o.Begun.(ledger.Wait)
	if err != nil || !ok || o.Entry.Seq != 2 {
		t.Fatalf("%+v, %v", o, err)
	}
	w.ok(r.Finish([]byte("2")))
	if result, err := wait.Result(t.Context()); err != nil || string(result) != "2" {
		t.Errorf("%s, %v", result, err)
	}
	if o, err := w.Outcome("other"); err != nil || o.Begun != nil || o.Floor != (ledger.Position{Epoch: 1}) {
		t.Errorf("%+v, %v", o, err)
	}
	if _, err := w.Outcome(""); err == nil {
		t.Error("an empty key was accepted")
	}
}

// However often a task arrives at the same time, it runs once, and the others get its result.
func TestOneOfManyRuns(t *testing.T) {
	w := fresh(t, 0)
	var wg sync.WaitGroup
	results, runs := make(chan string, 20), make(chan *ledger.Run, 20)
	for range 20 {
		wg.Go(func() {
			switch b, err := w.Begin(task(1, 1)); b := b.(type) {
			case *ledger.Run:
				runs <- b
			case ledger.Wait:
				result, err := b.Result(t.Context())
				results <- fmt.Sprint(string(result), err)
			case ledger.Stored:
				results <- fmt.Sprint(string(b.Result), err)
			default:
				t.Errorf("%T, %v", b, err)
			}
		})
	}
	r := <-runs
	b, err := w.Begin(task(1, 1))
	wait, ok := b.(ledger.Wait)
	if err != nil || !ok {
		t.Fatalf("%T, %v", b, err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(io.ErrNoProgress)
	if _, err := wait.Result(ctx); !errors.Is(err, io.ErrNoProgress) {
		t.Error(err)
	}
	if len(results) > 0 {
		t.Error("somebody got a result before there was one")
	}
	w.ok(r.Finish([]byte("done")))
	wg.Wait()
	close(results)
	for got := range results {
		if got != "done<nil>" {
			t.Error(got)
		}
	}
	if len(runs) > 0 {
		t.Error("it ran more than once")
	}
}

func TestFinish(t *testing.T) {
	w := fresh(t, 0)
	r := w.run(task(1, 1))
	if err := r.Finish(make([]byte, ledger.MaxResult+1)); err == nil {
		t.Fatal("too large, but accepted")
	}
	if len(w.Standing().Running) != 1 {
		t.Fatal("a result that is too large has ended it")
	}
	large := strings.Repeat("x", ledger.MaxResult)
	w.ok(r.Finish([]byte(large)))
	w.ok(r.Finish([]byte(large)))
	if err := r.Finish([]byte("another")); err == nil {
		t.Error("finished twice")
	}
	w.restart()
	w.stored(task(1, 1), large)
}

func TestEntriesThatAreNone(t *testing.T) {
	w := fresh(t, 0)
	for name, spoil := range map[string]func(*ledger.Entry){
		"epoch":  func(e *ledger.Entry) { e.Epoch = 0 },
		"seq":    func(e *ledger.Entry) { e.Seq = -1 },
		"id":     func(e *ledger.Entry) { e.ID = "" },
		"digest": func(e *ledger.Entry) { e.Digest = "" },
		"action": func(e *ledger.Entry) { e.Action = "" },
		"expiry": func(e *ledger.Entry) { e.Expires = time.Time{} },
		"year":   func(e *ledger.Entry) { e.Expires = start.AddDate(9000, 0, 0) },
		"long":   func(e *ledger.Entry) { e.Key = strings.Repeat("k", 5000) },
		"utf-8":  func(e *ledger.Entry) { e.Key = "\xff" },
	} {
		e := task(1, 1)
		spoil(&e)
		if b, err := w.Begin(e); err == nil || b != nil {
			t.Errorf("%s: %T, %v", name, b, err)
		}
	}
	if _, err := w.Fence(0); err == nil {
		t.Error("fenced for epoch 0")
	}
	if w.Head(0, 1, start) == nil || w.Head(1, -1, start) == nil {
		t.Error("took a head that is none")
	}
}

// On a full disk nothing runs, and what has run is answered from memory and written when there is room.
func TestFullDisk(t *testing.T) {
	w := fresh(t, 0)
	r := w.run(task(1, 1))
	b, err := w.Begin(task(1, 1))
	w.ok(err)
	free := w.FillDisk(t)
	if b, err := w.Begin(task(1, 2)); b != nil || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("%T, %v", b, err)
	}
	if _, err := w.Fence(2); !errors.Is(err, syscall.ENOSPC) || w.Standing().Epoch != 1 {
		t.Fatal(err)
	}
	if err := w.Head(1, 1, start.Add(time.Minute)); !errors.Is(err, syscall.ENOSPC) || !w.Standing().Floor.Equal(start) {
		t.Fatal(err)
	}
	if err := r.Finish([]byte("done")); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	if result, err := b.(ledger.Wait).Result(t.Context()); err != nil || string(result) != "done" {
		t.Fatalf("%s, %v", result, err)
	}
	w.stored(task(1, 1), "done")
	if len(w.Standing().Running) > 0 {
		t.Error("it still runs")
	}
	free()
	w.stored(task(1, 1), "done") // and writes it
	w.crash()
	w.stored(task(1, 1), "done")
	w.run(task(1, 2))
}

func TestFullDiskThenCrash(t *testing.T) {
	w := fresh(t, 0)
	r := w.run(task(1, 1))
	free := w.FillDisk(t)
	if err := r.Finish([]byte("done")); err == nil {
		t.Fatal("written to a full disk")
	}
	if err := w.Close(); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	if _, err := w.Begin(task(1, 1)); err == nil {
		t.Fatal("begun in a ledger that is closed")
	}
	free()
	w.open(w.path)
	w.interrupted(task(1, 1))
}

func TestClosed(t *testing.T) {
	w := fresh(t, 0)
	r := w.run(task(1, 1))
	b, err := w.Begin(task(1, 1))
	w.ok(err)
	w.ok(w.Close())
	w.ok(w.Close())
	if err := r.Finish([]byte("late")); err == nil {
		t.Error("finished in a ledger that is closed")
	}
	if result, err := b.(ledger.Wait).Result(t.Context()); err != nil || string(result) != "late" {
		t.Errorf("%s, %v", result, err)
	}
	_, berr := w.Begin(task(1, 2))
	_, ferr := w.Fence(1)
	_, ferr2 := w.Fence(2)
	_, oerr := w.Outcome("k")
	if berr == nil || ferr == nil || ferr2 == nil || oerr == nil || w.ForgetTime() == nil || w.Head(1, 1, start) == nil || w.Head(1, 1, start.Add(1)) == nil {
		t.Error(berr, ferr, ferr2, oerr)
	}
}

func TestAnotherProcess(t *testing.T) {
	w := fresh(t, 0)
	w.ok(w.Close())
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), holdVariable+"="+w.path)
	in, err := cmd.StdinPipe()
	w.ok(err)
	defer in.Close()
	out, err := cmd.StdoutPipe()
	w.ok(err)
	w.ok(cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "held <nil>\n" {
		t.Fatal(line, err)
	}
	if _, err := ledger.Open(w.path, ledger.Options{}); !errors.Is(err, files.ErrInUse) {
		t.Error(err)
	}
	w.ok(cmd.Process.Kill())
	_ = cmd.Wait()
	w.open(w.path)
	w.interrupted(task(1, 2))
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "ledger")
	l, err := ledger.Open(path, ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
		t.Errorf("%v, %v: want the ledger alone", all, err)
	}
	if _, err := ledger.Open(filepath.Join(dir, "none", "ledger"), ledger.Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if _, err := ledger.Open(path, ledger.Options{Keep: -1}); err == nil {
		t.Error("Keep may be negative")
	}
	if _, err := ledger.Open(dir, ledger.Options{}); err == nil {
		t.Error("opened a directory")
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("elsewhere", link); err != nil {
		t.Fatal(err)
	}
	if _, err := ledger.Open(link, ledger.Options{}); err == nil {
		t.Error("followed a link")
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := ledger.Open(path, ledger.Options{}); err == nil {
		t.Error("everybody may write it")
	}
}
