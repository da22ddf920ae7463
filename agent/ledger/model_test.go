package ledger_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"converge.dev/converge/agent/ledger"
)

// A model says what a ledger should answer, in the simplest way. Phase is that of an entry: running, over (finished, but the result
// is in memory only), finished or interrupted.
type model struct {
	epoch   int64
	floor   ledger.Position
	headed  bool
	time    time.Time
	entries map[ledger.Position]modelEntry
}

type modelEntry struct {
	ledger.Entry
	phase, result string
}

func (m model) clone() model {
	m.entries = maps.Clone(m.entries)
	return m
}

func (m model) positions() []ledger.Position {
	return slices.SortedFunc(maps.Keys(m.entries), ledger.Position.Compare)
}

// become changes the phase of the entries that are in one.
func (m model) become(from, to string) {
	for at, e := range m.entries {
		if e.phase == from {
			e.phase = to
			m.entries[at] = e
		}
	}
}

// A walk is a ledger beside its model and beside what the model says is on disk.
type walk struct {
	*world
	rt        *rapid.T
	mem, disk model
	runs      map[ledger.Position]*ledger.Run
	disks     string // the condition of the disk: "", full, or unsure, which writes but reports a failure
	free      func() // when it is full
	reached   map[string]int
}

var errUnsure = errors.New("the disk did not say")

// write carries out a change of the model, and reports whether the ledger should say that it was written.
func (w *walk) write(change func(*model)) bool {
	if w.disks == "full" {
		return false
	}
	next := w.mem.clone()
	change(&next)
	next.become("over", "finished")
	w.disk = next.clone()
	if w.disks == "" {
		w.mem = next
	}
	return w.disks == ""
}

// flush is what most calls begin with.
func (w *walk) flush() {
	for _, e := range w.mem.entries {
		if e.phase == "over" {
			w.write(func(*model) {})
			return
		}
	}
}

func (w *walk) expect(what string, written bool, err error) {
	w.reached[fmt.Sprint(what, " written ", written)]++
	if written != (err == nil) {
		w.rt.Fatalf("%s: %v; should be written: %v", what, err, written)
	}
}

func (w *walk) clock() time.Time {
	if w.now.Before(w.mem.time) {
		return w.mem.time
	}
	return w.now
}

// answer is what Begin and Outcome should say about an entry.
func (w *walk) answer(e modelEntry) string {
	switch e.phase {
	case "over", "finished":
		return "stored " + e.result
	case "running":
		return "wait"
	}
	return e.phase
}

func describe(b ledger.Begun, err error) string {
	var refused *ledger.RefusedError
	switch b := b.(type) {
	case *ledger.Run:
		return "run"
	case ledger.Stored:
		return "stored " + string(b.Result)
	case ledger.Wait:
		return "wait"
	case ledger.Interrupted:
		return "interrupted"
	}
	if errors.As(err, &refused) {
		return string(refused.Reason)
	}
	if err != nil {
		return "not written"
	}
	return "not known"
}

func (w *walk) begin(rt *rapid.T) {
	e := task(max(1, w.mem.epoch+rapid.SampledFrom([]int64{0, 0, 0, 0, 0, -1, 1}).Draw(rt, "epoch")), rapid.Int64Range(1, 12).Draw(rt, "seq"))
	e.Digest = rapid.SampledFrom([]string{"a", "a", "a", "b"}).Draw(rt, "digest")
	e.Key = rapid.SampledFrom([]string{"k", "l", "m", ""}).Draw(rt, "key")
	e.Expires = w.now.Add(time.Duration(rapid.IntRange(-2, 8).Draw(rt, "expires")) * time.Minute)
	at := ledger.Position{Epoch: e.Epoch, Seq: e.Seq}
	w.flush()
	known, ok := w.mem.entries[at]
	var want string
	switch {
	case e.Epoch < w.mem.epoch:
		want = "epoch"
	case e.Epoch > w.mem.epoch:
		want = "unfenced"
	case ok && known.Digest == e.Digest:
		want = w.answer(known)
	case !w.mem.headed:
		want = "new"
	case ok, at.Compare(w.mem.floor) <= 0:
		want = "seq"
	case w.clock().After(e.Expires.Add(time.Minute)):
		want = "expired"
	default:
		w.prune()
		want = "not written"
		if w.write(func(m *model) { m.entries[at] = modelEntry{e, "running", ""} }) {
			want = "run"
		}
	}
	b, err := w.Begin(e)
	if got := describe(b, err); got != want {
		rt.Fatalf("begin %+v: %s, %v; want %s", e, got, err, want)
	}
	w.reached["begin "+strings.Split(want, " ")[0]]++
	if r, ok := b.(*ledger.Run); ok {
		w.runs[at] = r
	}
}

func (w *walk) prune() {
	var old []ledger.Position
	for _, at := range w.mem.positions() {
		e := w.mem.entries[at]
		if (e.phase == "finished" || e.phase == "interrupted") && w.clock().After(e.Expires.Add(time.Minute)) {
			old = append(old, at)
		}
	}
	for _, at := range old[:max(0, len(old)-w.keep)] {
		w.reached["pruned"]++
		delete(w.mem.entries, at)
		if at.Compare(w.mem.floor) > 0 {
			w.mem.floor = at
		}
	}
}

func (w *walk) finish(rt *rapid.T) {
	if len(w.runs) == 0 {
		rt.Skip("nothing runs")
	}
	at := rapid.SampledFrom(slices.SortedFunc(maps.Keys(w.runs), ledger.Position.Compare)).Draw(rt, "which")
	result := rapid.StringMatching(`[a-z]{0,6}`).Draw(rt, "result")
	e := w.mem.entries[at]
	e.phase, e.result = "over", result
	w.mem.entries[at] = e
	w.expect("finish", w.write(func(*model) {}), w.runs[at].Finish([]byte(result)))
	delete(w.runs, at)
}

func (w *walk) fence(rt *rapid.T) {
	epoch := max(1, w.mem.epoch+rapid.Int64Range(-1, 1).Draw(rt, "epoch"))
	w.flush()
	s, err := w.Fence(epoch)
	var outdated *ledger.OutdatedError
	switch {
	case epoch < w.mem.epoch:
		if !errors.As(err, &outdated) || outdated.Stored != w.mem.epoch {
			rt.Fatalf("fenced for %d: %v", epoch, err)
		}
		return
	case epoch > w.mem.epoch:
		w.expect("fence", w.write(func(m *model) { m.epoch = epoch }), err)
	default:
		w.expect("fence again", true, err)
	}
	if err == nil && s.Epoch != epoch {
		rt.Fatalf("%+v", s)
	}
}

func (w *walk) head(rt *rapid.T) {
	epoch := max(1, w.mem.epoch+rapid.Int64Range(-1, 1).Draw(rt, "epoch"))
	seq := rapid.Int64Range(0, 6).Draw(rt, "seq")
	now := w.now.Add(time.Duration(rapid.IntRange(-3, 1).Draw(rt, "ahead")) * time.Minute)
	err := w.Head(epoch, seq, now)
	var outdated *ledger.OutdatedError
	switch {
	case epoch < w.mem.epoch:
		if !errors.As(err, &outdated) {
			rt.Fatalf("head of %d: %v", epoch, err)
		}
	case !w.mem.headed || now.After(w.mem.time):
		w.expect("head", w.write(func(m *model) {
			if now.After(m.time) {
				m.time = now
			}
			if !m.headed {
				m.headed = true
				if at := (ledger.Position{Epoch: epoch, Seq: seq}); at.Compare(m.floor) > 0 {
					m.floor = at
				}
				if m.epoch == 0 {
					m.epoch = epoch
				}
			}
		}), err)
	default:
		w.flush()
		w.expect("head again", true, err)
	}
}

func (w *walk) forget(*rapid.T) {
	w.expect("forget", w.write(func(m *model) { m.time, m.headed = time.Time{}, false }), w.ForgetTime())
}

// stop ends the process: by a crash, or after it has closed the ledger.
func (w *walk) stop(rt *rapid.T) {
	if rapid.Bool().Draw(rt, "crash") {
		w.crash()
		w.reached["crash"]++
	} else {
		w.flush()
		_ = w.Close()
		if w.free != nil { // it has the file open, too
			w.free()
			w.free = nil
		}
		w.open(w.path)
		w.reached["restart"]++
	}
	w.sound()
	w.runs = map[ledger.Position]*ledger.Run{}
	w.mem = w.disk.clone()
	w.mem.become("running", "interrupted")
	w.disk = w.mem.clone()
}

// sound ends what is wrong with the disk.
func (w *walk) sound() {
	if w.free != nil {
		w.free()
		w.free = nil
	}
	w.AfterWrite(nil)
	w.disks = ""
}

func (w *walk) spoil(rt *rapid.T) {
	w.sound()
	switch w.disks = rapid.SampledFrom([]string{"", "", "full", "unsure"}).Draw(rt, "disk"); w.disks {
	case "full":
		w.free = w.FillDisk(w.t)
	case "unsure":
		w.AfterWrite(func() error { return errUnsure })
	}
}

// check compares all that the ledger says without changing it, except that it may write results that it could not write.
func (w *walk) check(rt *rapid.T) {
	s := w.Standing()
	var seq int64
	if w.mem.floor.Epoch == w.mem.epoch {
		seq = w.mem.floor.Seq
	}
	var running []string
	for _, at := range w.mem.positions() {
		e := w.mem.entries[at]
		if at.Epoch == w.mem.epoch {
			seq = max(seq, at.Seq)
		}
		if e.phase == "running" {
			running = append(running, e.ID)
		}
	}
	var got []string
	for _, e := range s.Running {
		got = append(got, e.ID)
	}
	if s.Epoch != w.mem.epoch || s.Seq != seq || !s.Floor.Equal(w.mem.time) || !slices.Equal(got, running) {
		rt.Fatalf("%+v\nwant epoch %d, seq %d, floor %v, running %v", s, w.mem.epoch, seq, w.mem.time, running)
	}
	for _, key := range []string{"k", "l", "m"} {
		w.flush()
		want, floor := "not known", w.mem.floor
		for _, at := range w.mem.positions() {
			if e := w.mem.entries[at]; e.Key == key {
				want = e.ID + " " + w.answer(e)
			}
		}
		if !w.mem.headed {
			floor = ledger.Position{Epoch: math.MaxInt64, Seq: math.MaxInt64}
		}
		o, err := w.Outcome(key)
		said := describe(o.Begun, err)
		if o.Begun != nil {
			said = o.Entry.ID + " " + said
		}
		if said != want || o.Floor != floor {
			rt.Fatalf("outcome of %s: %s, %v, floor %v; want %s, floor %v", key, said, err, o.Floor, want, floor)
		}
	}
}

// Whatever happens in whatever order, the ledger says what the model says, after a crash too.
func TestModel(t *testing.T) {
	reached := map[string]int{}
	n := 0
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		n++
		w := &walk{world: &world{t: t, now: start, keep: 2}, rt: rt, runs: map[ledger.Position]*ledger.Run{}, reached: reached}
		w.mem = model{entries: map[ledger.Position]modelEntry{}}
		w.disk = w.mem.clone()
		w.open(fmt.Sprintf("%s/%d", dir, n))
		defer func() {
			w.sound()
			_ = w.Close()
			_ = os.Remove(w.path)
		}()
		if rapid.IntRange(0, 9).Draw(rt, "new") > 0 {
			w.expect("head", w.write(func(m *model) { m.epoch, m.headed, m.floor, m.time = 1, true, ledger.Position{Epoch: 1}, start }), w.Head(1, 0, start))
		}
		rt.Repeat(map[string]func(*rapid.T){
			"begin": w.begin, "begin2": w.begin, "begin3": w.begin, "finish": w.finish, "finish2": w.finish,
			"fence": w.fence, "head": w.head, "head2": w.head, "forget": w.forget, "stop": w.stop, "disk": w.spoil,
			"clock": func(rt *rapid.T) {
				w.now = w.now.Add(time.Duration(rapid.IntRange(-3, 6).Draw(rt, "minutes")) * time.Minute)
			},
			"": w.check,
		})
	})
	t.Log(reached)
}
