package fake_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"golang.org/x/sys/unix"
)

// byHand is a file written by hand, with no more than necessary.
const byHand = `{
  "faults": [{"op": "update", "ref": "lab.switch", "class": "denied"}],
  "things": {
    "site": {"lab.owner": {"o1": {"name": "acme", "spec": {"title": "Acme"}}}},
    "n1": {"lab.switch": {"s1": {"spec": {}}, "s2": {"spec": {"extra": 12345678901234567, "enabled": true}, "phase": "failed"}}}
  }
}`

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "world.json")
	must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return string(b)
}

// What is in the file is in the world, and the other way round.
func TestFileRoundTrip(t *testing.T) {
	path := write(t, byHand)
	w := openWorld(t, path)
	switches := of(t, w, node, "lab.switch")
	s1, _ := look(t, switches, "s1")
	s2, _ := look(t, switches, "s2")
	if s1.Name != "s1" || s1.Phase != providers.Ready || s1.Version == "" || s2.Phase != providers.Failed || s2.Spec["extra"] != int64(12345678901234567) {
		t.Errorf("the world has %+v and %+v", s1, s2)
	}
	must(t, w.Close())
	if got := read(t, path); got != byHand {
		t.Errorf("nothing changed and the file is\n%s", got)
	}

	w = openWorld(t, path)
	switches = of(t, w, node, "lab.switch")
	must(t, switches.Create(t.Context(), call("lab.switch", "s3", schema.Object{"enabled": true})))
	c := call("lab.switch", "s1", schema.Object{})
	c.Version = s1.Version
	wantClass(t, switches.Update(t.Context(), c), providers.Denied)
	snapshot := w.Snapshot()
	must(t, w.Close())
	if got := read(t, path); got != snapshot {
		t.Errorf("the file is\n%s\nwant\n%s", got, snapshot)
	}
	info, err := os.Stat(path)
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the file has mode %o, want 600", info.Mode().Perm())
	}
	left, err := os.ReadDir(filepath.Dir(path))
	must(t, err)
	if len(left) != 1 {
		t.Errorf("the folder holds %v, want the world alone", left)
	}

	w = openWorld(t, path)
	if got := w.Snapshot(); got != snapshot {
		t.Errorf("read again the world is\n%s\nwant\n%s", got, snapshot)
	}
	th, _ := look(t, of(t, w, node, "lab.switch"), "s3")
	if want := call("lab.switch", "s3", nil).Mark; th.Mark != want {
		t.Errorf("the mark came back as %v, want %v", th.Mark, want)
	}
	c.Version = s1.Version
	must(t, of(t, w, node, "lab.switch").Update(t.Context(), c)) // the fault had ended, and remains so
}

// A file that does not fit the kinds is refused, with the reason, and left as it is.
func TestFileRefused(t *testing.T) {
	for _, c := range []struct{ text, says string }{
		{`{"things": {"n1": {"lab.switch": {"s1": {"spec": {"speed": 1}}}}}}`, "n1/lab.switch s1: unknown field speed"},
		{`{"things": {"n1": {"lab.lamp": {"s1": {"spec": {}}}}}}`, "unknown kind lab.lamp"},
		{`{"things": {"site": {"lab.switch": {"s1": {"spec": {}}}}}}`, "does not exist in scope site"},
		{`{"things": {"n1": {"lab.switch": {"s1": null}}}}`, "the object is null"},
		{`{"things": {"n1": {"lab.switch": {"s1": {"spec": {}, "mark": "mine"}}}}}`, `"mine" is not an ownership mark`},
		{`{"things": {"n1": {"lab.switch": {"s1": {"spce": {}}}}}}`, `/things/n1/lab.switch/s1/spce: unknown object member name`},
		{`{"things": {"site": {"lab.owner": {"o": {"spec": {}, "status": {"title": "x"}}}}}}`, "no computed field named title"},
		{`{"faults": [{"op": "erase"}]}`, "fault: op"},
		{`{"late": [{"op": "create", "ref": "n1/lab.lamp/x", "id": "x", "due": "2026-01-01T00:00:00Z"}]}`, "unknown kind lab.lamp"},
		{`{"late": [{"op": "create", "ref": "site/lab.switch/x", "id": "x", "due": "2026-01-01T00:00:00Z"}]}`, "does not exist in scope site"},
		{`{"late": [{"op": "erase", "ref": "n1/lab.switch/x", "id": "x", "due": "2026-01-01T00:00:00Z"}]}`, `op is "erase"`},
		{`{"late": [{"op": "create", "ref": "n1/lab.switch/x", "id": "x", "mark": "mine", "due": "2026-01-01T00:00:00Z"}]}`, `"mine" is not an ownership mark`},
		{"{\n\n  \"things\": 7}", "line 3"},
		{"{\n\"things\": {}", "unexpected EOF"},
		{`{} {}`, "after top-level value"},
	} {
		path := write(t, c.text)
		w, err := fake.Open(path, kinds)
		if err == nil {
			t.Errorf("%s was accepted", c.text)
			must(t, w.Close())
			continue
		}
		if !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: error is %v, want it to say %q and the path", c.text, err, c.says)
		}
		if read(t, path) != c.text {
			t.Errorf("%s was changed", c.text)
		}
		if _, err := os.Stat(path + ".journal"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: a journal was left behind: %v", c.text, err)
		}
	}
}

// One process at a time has the world.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "world.json")
	w := openWorld(t, path)
	if _, err := fake.Open(path, kinds); err == nil || !strings.Contains(err.Error(), "another process has it open") {
		t.Errorf("the second open gave %v, want it to say that another process has the world", err)
	}
	must(t, w.Put(node, "lab.switch", providers.Thing{ID: "s1"}))
	must(t, w.Close())
	if _, ok := look(t, of(t, openWorld(t, path), node, "lab.switch"), "s1"); !ok {
		t.Error("the thing that was made before the lock went over is lost")
	}
}

// changes makes five changes of all sorts, and returns the journal and the dump of the world after each.
func changes(t *testing.T) (journal string, dumps []string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "world.json")
	w := openWorld(t, path)
	dumps = append(dumps, w.Snapshot())
	for _, change := range []error{
		w.Put(node, "lab.switch", providers.Thing{ID: "s1", Spec: schema.Object{"extra": "ü\n"}}),
		w.Fail(fake.Fault{Op: "create"}),
		w.Put(node, "lab.switch", providers.Thing{ID: "s2"}),
		w.Remove(node, "lab.switch", "s1"),
		w.Put(schema.ScopeSite, "lab.owner", providers.Thing{ID: "o"}),
	} {
		must(t, change)
	}
	journal = read(t, path+".journal")
	for i := range strings.Count(journal, "\n") {
		dumps = append(dumps, recovered(t, "", strings.Join(strings.SplitAfter(journal, "\n")[:i+1], "")))
	}
	if dumps[len(dumps)-1] != w.Snapshot() {
		t.Errorf("the whole journal gives\n%s\nwant\n%s", dumps[len(dumps)-1], w.Snapshot())
	}
	return journal, dumps
}

// recovered returns the world that is found after a crash.
func recovered(t *testing.T, file, journal string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "world.json")
	if file != "" {
		must(t, os.WriteFile(path, []byte(file), 0o600))
	}
	must(t, os.WriteFile(path+".journal", []byte(journal), 0o600))
	w := openWorld(t, path)
	defer func() { must(t, w.Close()) }()
	return w.Snapshot()
}

// A crash anywhere in the journal leaves the world after the last complete change; one between the writing of the file and
// the emptying of the journal, the world itself.
func TestTorn(t *testing.T) {
	journal, dumps := changes(t)
	for n := range len(journal) + 1 {
		if near := journal[max(n-2, 0):min(n+2, len(journal))]; n%16 > 0 && !strings.Contains(near, "\n") {
			continue // somewhere in the middle of a record is like anywhere else in it
		}
		whole := strings.Count(journal[:n], "\n")
		if got := recovered(t, "", journal[:n]); got != dumps[whole] {
			t.Fatalf("%d bytes of the journal give\n%s\nwant\n%s", n, got, dumps[whole])
		}
	}
	last := dumps[len(dumps)-1]
	if got := recovered(t, last, journal); got != last {
		t.Errorf("the journal over its own file gives\n%s\nwant\n%s", got, last)
	}
}

// After a crash the world continues, and can crash again.
func TestTornTwice(t *testing.T) {
	journal, _ := changes(t)
	path := filepath.Join(t.TempDir(), "world.json")
	must(t, os.WriteFile(path+".journal", []byte(journal[:len(journal)-5]), 0o600))
	w := openWorld(t, path)
	must(t, w.Remove(node, "lab.switch", "s2"))
	if got := recovered(t, "", read(t, path+".journal")); got != w.Snapshot() {
		t.Errorf("after the second crash the world is\n%s\nwant\n%s", got, w.Snapshot())
	}
}

// A fault that has ended does not return after a crash.
func TestFaultCountSurvivesCrash(t *testing.T) {
	path := write(t, byHand)
	w := openWorld(t, path)
	wantClass(t, of(t, w, node, "lab.switch").Update(t.Context(), call("lab.switch", "s1", schema.Object{})), providers.Denied)
	if got := recovered(t, byHand, read(t, path+".journal")); !strings.Contains(got, `"seen": 1`) {
		t.Errorf("the world does not know that the fault has struck:\n%s", got)
	}
}

// A journal that is damaged where no crash damages it is not guessed at.
func TestDamagedJournal(t *testing.T) {
	journal, _ := changes(t)
	path := filepath.Join(t.TempDir(), "world.json")
	must(t, os.WriteFile(path+".journal", []byte(strings.Replace(journal, "{", "[", 1)), 0o600))
	if _, err := fake.Open(path, kinds); err == nil || !strings.Contains(err.Error(), "record 1") {
		t.Errorf("open gave %v, want it to name record 1", err)
	}
	if _, err := os.Stat(path + ".journal"); err != nil {
		t.Errorf("the damaged journal was taken away: %v", err)
	}
}

// A killed process loses nothing that it has confirmed.
func TestKilled(t *testing.T) {
	const victim = "FAKE_WORLD_OF_VICTIM"
	if path := os.Getenv(victim); path != "" {
		w, err := fake.Open(path, kinds)
		must(t, err)
		w.Hook = func(_ string, at fake.Moment, c providers.Call) {
			if at == fake.After && c.Ref.Name == "s7" {
				must(t, unix.Kill(os.Getpid(), unix.SIGKILL))
				select {}
			}
		}
		switches := of(t, w, node, "lab.switch")
		for i := range 10 {
			must(t, switches.Create(t.Context(), call("lab.switch", fmt.Sprintf("s%d", i), schema.Object{})))
		}
		return
	}
	path := filepath.Join(t.TempDir(), "world.json")
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$")
	cmd.Env = append(os.Environ(), victim+"="+path)
	if out, err := cmd.CombinedOutput(); err == nil || bytes.Contains(out, []byte("FAIL")) {
		t.Fatalf("the victim was not killed: %v\n%s", err, out)
	}
	things, err := providers.Collect(of(t, openWorld(t, path), node, "lab.switch").List(t.Context()))
	must(t, err)
	if len(things) != 8 {
		t.Errorf("%d things survived, want s0 to s7", len(things))
	}
}

// When the disk is full, a call fails and has no effect.
func TestDiskFull(t *testing.T) {
	const victim = "FAKE_WORLD_ON_FULL_DISK"
	if path := os.Getenv(victim); path != "" {
		w, err := fake.Open(path, kinds)
		must(t, err)
		must(t, w.Put(node, "lab.switch", providers.Thing{ID: "s1"}))
		info, err := os.Stat(path + ".journal")
		must(t, err)
		// The next record fits in part.
		must(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: uint64(info.Size()) + 10, Max: unix.RLIM_INFINITY}))
		before := w.Snapshot()
		switches := of(t, w, node, "lab.switch")
		wantClass(t, switches.Create(t.Context(), call("lab.switch", "s2", schema.Object{})), providers.Transient)
		if got := w.Snapshot(); got != before {
			t.Errorf("the world is\n%s\nwant\n%s", got, before)
		}
		must(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}))
		must(t, switches.Create(t.Context(), call("lab.switch", "s3", schema.Object{})))
		return // without closing: only the journal has it
	}
	path := filepath.Join(t.TempDir(), "world.json")
	cmd := exec.Command(os.Args[0], "-test.run=^TestDiskFull$")
	cmd.Env = append(os.Environ(), victim+"="+path)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	w := openWorld(t, path)
	for id, want := range map[string]bool{"s1": true, "s2": false, "s3": true} {
		if _, ok := look(t, of(t, w, node, "lab.switch"), id); ok != want {
			t.Errorf("%s is there: %t, want %t", id, ok, want)
		}
	}
}

func BenchmarkCreate10000InFile(b *testing.B) {
	for b.Loop() {
		path := filepath.Join(b.TempDir(), "world.json")
		w, err := fake.Open(path, kinds)
		if err != nil {
			b.Fatal(err)
		}
		fill(b, w)
		if err := w.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpen10000(b *testing.B) {
	path := filepath.Join(b.TempDir(), "world.json")
	for i := range 2 {
		w, err := fake.Open(path, kinds)
		if err != nil {
			b.Fatal(err)
		}
		if i == 0 {
			fill(b, w)
		}
		if err := w.Close(); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		w, err := fake.Open(path, kinds)
		if err != nil {
			b.Fatal(err)
		}
		if err := w.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkObserve10000(b *testing.B) {
	w := fake.New(kinds)
	nets := fill(b, w)
	for b.Loop() {
		things, err := providers.Collect(nets.List(b.Context()))
		if err != nil || len(things) != 10_000 {
			b.Fatalf("%d things, %v", len(things), err)
		}
	}
}

// fill creates 10 000 nets of one owner.
func fill(b *testing.B, w *fake.World) providers.Kind {
	b.Helper()
	if err := w.Put(schema.ScopeSite, "lab.owner", providers.Thing{ID: "o"}); err != nil {
		b.Fatal(err)
	}
	var nets providers.Kind
	for _, k := range w.Provider("lab", schema.ScopeSite).Kinds {
		if k.Name == "lab.net" {
			nets = k.Kind
		}
	}
	for i := range 10_000 {
		ref := schema.Ref{Scope: schema.ScopeSite, Kind: "lab.net", Name: fmt.Sprintf("net-%d", i)}
		c := providers.Call{Ref: ref, ID: ref.Name, Mark: providers.Mark{Site: "s", Ref: ref, Incarnation: 1}, Want: schema.Object{
			"owner": "o", "labels": map[string]any{"env": "prod", "number": fmt.Sprint(i)},
			"ports": []any{map[string]any{"name": "a", "speed": int64(25)}},
		}}
		if err := nets.Create(b.Context(), c); err != nil {
			b.Fatal(err)
		}
	}
	return nets
}

// TestOpenOnlyRegular: what would block, or never end, is refused at once, as the world and as its journal.
func TestOpenOnlyRegular(t *testing.T) {
	dir := t.TempDir()
	must(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	must(t, syscall.Mkfifo(filepath.Join(dir, "world.journal"), 0o600))
	must(t, os.Symlink("/dev/zero", filepath.Join(dir, "device")))
	for name, want := range map[string]string{"pipe": "a named pipe", "world": "not a regular file", "device": "a device"} {
		w, err := fake.Open(filepath.Join(dir, name), nil)
		if err == nil {
			_ = w.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if info, err := os.Lstat(filepath.Join(dir, "pipe")); err != nil || info.Mode().IsRegular() {
		t.Errorf("the pipe was replaced: %v, %v", info, err)
	}
}
