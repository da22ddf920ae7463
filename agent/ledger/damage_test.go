package ledger_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"converge.dev/converge/agent/ledger"
)

const page = 4096

// furnished returns the path of a closed ledger with entries on several pages and a result that takes pages of its own.
func furnished(t testing.TB, n int64) string {
	t.Helper()
	w := fresh(t, 0)
	for seq := int64(1); seq <= n; seq++ {
		r := w.run(task(1, seq))
		if seq%5 > 0 {
			w.ok(r.Finish(bytes.Repeat([]byte{byte(seq)}, int(seq%7)*900)))
		}
	}
	w.ok(w.Close())
	return w.path
}

// tell returns all that a ledger says of n tasks and then does with one more. Damaged results are counted, and left out. It fails with a
// *ledger.DamagedError when the ledger cannot be opened.
func tell(t testing.TB, path string, n int64) (lines []string, damaged int, err error) {
	t.Helper()
	w := &world{t: t, now: start}
	o := ledger.Options{Now: func() time.Time { return start }}
	if w.Ledger, err = ledger.Open(path, o); err != nil {
		return nil, 0, err
	}
	defer func() { _ = w.Close() }()
	lines = append(lines, fmt.Sprintf("%+v", w.Standing()))
	for seq := int64(1); seq <= n; seq++ {
		b, err := w.Begin(task(1, seq))
		var broken *ledger.DamagedError
		if errors.As(err, &broken) {
			damaged++
			lines = append(lines, "")
			continue
		}
		lines = append(lines, fmt.Sprintf("%d %v", seq, describe(b, err)))
	}
	return lines, damaged, nil
}

// Whichever bit is flipped, the ledger says that it is damaged, or says what it said before, but for one result.
func TestBitFlips(t *testing.T) {
	const n = 40
	path := furnished(t, n)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want, _, err := tell(t, path, n)
	if err != nil {
		t.Fatal(err)
	}
	step := 797                                                // bits; coprime to all that is regular in the file
	every, err := strconv.Atoi(os.Getenv("LEDGER_TEST_FLIPS")) // 1 takes a quarter of an hour
	if err == nil {
		step = every
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	set := func(at int, b byte) {
		if _, err := f.WriteAt([]byte{b}, int64(at)); err != nil {
			t.Fatal(err)
		}
	}
	counts := map[string]int{}
	var bits []int
	for at := range whole {
		if at < 2*page && at%page < 80 { // the descriptions, of which only the newer one matters to bbolt
			bits = append(bits, at*8+at%8)
		}
	}
	for bit := 0; bit < len(whole)*8; bit += step {
		if inPage := bit / 8 % page; inPage > 400 && bit/step%8 > 0 && every == 0 {
			continue // fewer where there are mostly values
		}
		bits = append(bits, bit)
	}
	for _, bit := range bits {
		set(bit/8, whole[bit/8]^1<<(bit%8))
		got, results, err := tell(t, path, n)
		set(bit/8, whole[bit/8])
		var damaged *ledger.DamagedError
		switch {
		case errors.As(err, &damaged):
			counts["found"]++
			continue
		case err != nil:
			t.Fatalf("bit %d: %v", bit, err)
		case results > 1:
			t.Fatalf("bit %d: %d results are damaged", bit, results)
		}
		counts[fmt.Sprint("harmless but for results ", results)]++
		for i, line := range got {
			if line != "" && line != want[i] {
				t.Fatalf("bit %d: %s; want %s", bit, line, want[i])
			}
		}
	}
	t.Log(counts)
	if counts["found"] == 0 || counts["harmless but for results 1"] == 0 {
		t.Error("nothing was found")
	}
}

// A ledger whose last write was cut off is as it was before or after that write, or it says that it is damaged. The last is the case only
// when its description is torn, which disks do not do.
func TestTornWrites(t *testing.T) {
	const n = 40
	path := furnished(t, n)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, now: start}
	w.open(path)
	w.run(task(1, n+1))
	w.ok(w.Close())
	after, err := os.ReadFile(path)
	if err != nil || len(after) < len(before) {
		t.Fatal(err)
	}
	before = append(before, make([]byte, len(after)-len(before))...)
	dir := t.TempDir()
	look := func(what string, data []byte, want ...string) {
		t.Helper()
		path := filepath.Join(dir, "ledger")
		w.ok(os.WriteFile(path, data, 0o600))
		l, err := ledger.Open(path, ledger.Options{Now: func() time.Time { return start }})
		got := "damaged"
		var damaged *ledger.DamagedError
		switch {
		case err == nil:
			o, err := l.Outcome(task(1, n+1).Key)
			got = describe(o.Begun, err)
			w.ok(l.Close())
		case !errors.As(err, &damaged):
			t.Fatal(err)
		}
		if !strings.Contains(strings.Join(want, "|"), got) {
			t.Errorf("%s: %s, %v; want %v", what, got, err, want)
		}
	}
	data, meta := bytes.Clone(before), -1
	for at := 0; at < len(after); at += page {
		if bytes.Equal(before[at:at+page], after[at:at+page]) {
			continue
		}
		if at < 2*page {
			if meta >= 0 {
				t.Fatal("both descriptions have changed")
			}
			meta = at
			continue
		}
		for _, cut := range []int{1, 16, 512, page} {
			copy(data[at:at+cut], after[at:])
			look(fmt.Sprint("page ", at/page, " cut at ", cut), data, "not known")
		}
	}
	for cut := range 16 + 64 {
		copy(data[meta:meta+cut], after[meta:])
		look(fmt.Sprint("description cut at ", cut), data, "not known", "damaged", "interrupted")
	}
	copy(data[meta:meta+page], after[meta:])
	look("whole", data, "interrupted")
}

func TestFilesThatAreNoLedger(t *testing.T) {
	path := furnished(t, 3)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"empty":   {},
		"short":   whole[:page],
		"cut off": whole[:len(whole)/2],
		"text":    bytes.Repeat([]byte("no ledger "), 4000),
		"zeros":   make([]byte, len(whole)),
	} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := ledger.Open(path, ledger.Options{})
		var damaged *ledger.DamagedError
		if !errors.As(err, &damaged) || damaged.Newer || damaged.Path != path {
			t.Errorf("%s: %v", name, err)
		}
		if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, data) {
			t.Errorf("%s: the file was changed, %v", name, err)
		}
	}
}

// Bbolt would go back to the older description when the newer is damaged, and forget what was acknowledged.
func TestEachDescriptionIsNeeded(t *testing.T) {
	for _, tasks := range []int64{4, 5} { // the last commit wrote the one or the other
		for at := range 2 {
			path := furnished(t, tasks)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			data[at*page+50] ^= 1
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			var damaged *ledger.DamagedError
			if _, err := ledger.Open(path, ledger.Options{}); !errors.As(err, &damaged) {
				t.Errorf("%d tasks, description %d: %v", tasks, at, err)
			}
		}
	}
}

// What a newer version wrote is not damage, and is not read either. Nor is an entry that is missing from an intact file.
func TestOtherContents(t *testing.T) {
	for name, newer := range map[string]bool{"state of a newer version": true, "entry is gone": false, "entry was moved": false} {
		path := furnished(t, 3)
		ledger.Meddle(t, path, name)
		_, err := ledger.Open(path, ledger.Options{})
		var damaged *ledger.DamagedError
		if !errors.As(err, &damaged) || damaged.Newer != newer {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A result that cannot be read is damage of that task alone, which is not run again either.
func TestOtherResult(t *testing.T) {
	path := furnished(t, 3)
	ledger.Meddle(t, path, "result is another one")
	w := &world{t: t, now: start}
	w.open(path)
	defer w.Close()
	var damaged *ledger.DamagedError
	if b, err := w.Begin(task(1, 1)); b != nil || !errors.As(err, &damaged) {
		t.Errorf("%T, %v", b, err)
	}
	if o, err := w.Outcome(task(1, 1).Key); o.Begun != nil || o.Entry.Seq != 1 || !errors.As(err, &damaged) {
		t.Errorf("%+v, %v", o, err)
	}
	w.run(task(1, 4))
}

// BenchmarkBeginFinish is what a task costs: two commits, each of which syncs twice. It reports the size of the file per entry.
func BenchmarkBeginFinish(b *testing.B) {
	w := fresh(b, 0)
	result := make([]byte, 600)
	seq := int64(0)
	for b.Loop() {
		seq++
		w.ok(w.run(task(1, seq)).Finish(result))
	}
	info, err := os.Stat(w.path)
	w.ok(err)
	b.ReportMetric(float64(info.Size())/float64(seq), "bytes/entry")
}

// BenchmarkOpen opens a ledger that is full.
func BenchmarkOpen(b *testing.B) {
	path := furnished(b, 4096)
	for b.Loop() {
		l, err := ledger.Open(path, ledger.Options{})
		if err != nil {
			b.Fatal(err)
		}
		_ = l.Close()
	}
}
