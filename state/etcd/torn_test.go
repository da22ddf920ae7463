package etcd_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"converge.dev/converge/internal/torture"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
	"converge.dev/converge/state/etcd"
)

// The environment says what the other process of these tests does. It is a separate process because it is killed, and because
// damage must not end the process that judges it.
func init() {
	role, dir := os.Getenv("CONVERGE_TORN_ROLE"), os.Getenv("CONVERGE_TORN_DIR")
	if role == "" {
		return
	}
	var err error
	switch role {
	case "write":
		err = writeForEver(dir)
	case "open":
		err = openAndRead(dir)
	}
	if err != nil {
		fmt.Println("error:", strings.ReplaceAll(err.Error(), "\n", " "))
		os.Exit(1)
	}
	os.Exit(0)
}

const names = 40 // of things that are recorded again and again

// written returns the record that the nth commit writes. Its size varies from small to more than a page.
func written(n int) state.Record {
	return state.Record{
		Ref: schema.Ref{Scope: "site", Kind: "far.net", Name: fmt.Sprint("n", n%names)}, ID: fmt.Sprint(n),
		Spec: schema.Object{"pad": strings.Repeat(fmt.Sprintf("%04d ", n), 1+n*37%1200)},
	}
}

// writeForEver commits one record after another, and reports each. With a limit, it closes the store after so many.
func writeForEver(dir string) error {
	kv, err := etcd.Open(context.Background(), etcd.Options{Dir: dir})
	if err != nil {
		return err
	}
	s := state.New(kv, "s")
	limit := 0
	if text := os.Getenv("CONVERGE_TORN_LIMIT"); text != "" {
		if _, err := fmt.Sscan(text, &limit); err != nil {
			return err
		}
	}
	for n := 1; ; n++ {
		if n-1 == limit && limit > 0 {
			return kv.Close()
		}
		if _, err := s.Commit(context.Background(), nil, []state.Op{s.RecordOp(written(n))}); err != nil {
			return err
		}
		fmt.Println(n)
	}
}

// openAndRead opens the store, reports what it holds, and writes to it.
func openAndRead(dir string) error {
	// Root may do anything; another user finds out what it may not do.
	if uid := os.Getenv("CONVERGE_TORN_UID"); uid != "" {
		var id int
		if _, err := fmt.Sscan(uid, &id); err != nil {
			return err
		}
		if err := syscall.Setuid(id); err != nil {
			return err
		}
	}
	if os.Getenv("CONVERGE_TORN_READONLY") != "" { // in a mount namespace of this process
		for _, m := range []struct {
			source string
			flags  uintptr
		}{{"none", syscall.MS_REC | syscall.MS_PRIVATE}, {dir, syscall.MS_BIND}, {"none", syscall.MS_REMOUNT | syscall.MS_BIND | syscall.MS_RDONLY}} {
			at := dir
			if m.flags&syscall.MS_PRIVATE != 0 {
				at = "/"
			}
			if err := syscall.Mount(m.source, at, "", m.flags, ""); err != nil {
				return fmt.Errorf("mount: %w", err)
			}
		}
	}
	ctx := context.Background()
	kv, err := etcd.Open(ctx, etcd.Options{Dir: dir})
	if err != nil {
		return err
	}
	fmt.Println("opened")
	s := state.New(kv, "s")
	records, err := s.Records(ctx)
	if err != nil {
		return err
	}
	for _, r := range records {
		n := 0
		_, err := fmt.Sscan(r.ID, &n)
		if want := written(n); err != nil || r.Ref != want.Ref || r.Spec["pad"] != want.Spec["pad"] {
			fmt.Println("wrong:", r.Ref, r.ID) // intact by its checksum, and not what was written
		}
		fmt.Println("has", n)
	}
	// A member that continues must really do so: what it accepts from now on is there after the next start.
	last := state.Record{Ref: schema.Ref{Scope: "site", Kind: "far.net", Name: "last"}, ID: "last"}
	for range 5 {
		if _, err := s.Commit(ctx, nil, []state.Op{s.RecordOp(last)}); err != nil {
			return err
		}
	}
	if err := kv.Close(); err != nil {
		return err
	}
	if kv, err = etcd.Open(ctx, etcd.Options{Dir: dir}); err != nil {
		return err
	}
	if _, err := state.New(kv, "s").Record(ctx, last.Ref); err != nil {
		fmt.Println("wrong: after the next start:", err)
	}
	fmt.Println("goes on")
	return kv.Close()
}

// torn starts this test binary in a role.
func torn(ctx context.Context, role, dir string, env ...string) *exec.Cmd {
	exe, err := os.Executable()
	if err != nil {
		panic(err) // the running binary has a name
	}
	cmd := exec.CommandContext(ctx, exe)
	cmd.Env = append(append(os.Environ(), "CONVERGE_TORN_ROLE="+role, "CONVERGE_TORN_DIR="+dir), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// killed makes a store whose process was killed after a number of acknowledged commits, in the middle of the next, or one
// that was closed in order. It returns the number of the last acknowledged one.
func killed(t *testing.T, dir string, after int, closed bool) int {
	t.Helper()
	cmd := torn(t.Context(), "write", dir)
	if closed {
		cmd.Env = append(cmd.Env, fmt.Sprint("CONVERGE_TORN_LIMIT=", after))
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	acknowledged := 0
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		n := 0
		if _, err := fmt.Sscan(lines.Text(), &n); err != nil {
			t.Fatalf("the writer says %q", lines.Text())
		}
		if acknowledged = n; n == after && !closed {
			_ = cmd.Process.Kill()
		}
	}
	_ = cmd.Wait()
	if acknowledged < after {
		t.Fatalf("the writer ended after %d commits", acknowledged)
	}
	return acknowledged
}

// An opening is the result of opening a store.
type opening struct {
	outcome string
	text    string // the output of the process
}

// Outcomes.
const (
	recovered = "recovered" // everything acknowledged is there
	refused   = "refused"   // it says that the data are damaged, where, and what to do
	caught    = "caught"    // it opened, and the damaged value is named when it is read
	// What was cut off the log was not yet in the data file, where etcd writes it ten times a second. No log can distinguish
	// that from commits that were never made. Nothing like that is left when a store was closed in order.
	unknowable = "unknowable"
)

// reopen opens a store in another process and judges what it finds: acknowledged is the last commit that must be there, and
// flushed the last one that is in the data file.
func reopen(t *testing.T, dir string, acknowledged, flushed int) opening {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := torn(ctx, "open", dir)
	out, err := cmd.CombinedOutput()
	text := string(out)
	o := opening{text: text[:min(len(text), 3000)]}
	if lines := strings.Split(text, "\n"); len(lines) > 12 {
		o.text = strings.Join(append(slices.Clone(lines[:3]), lines[len(lines)-6:]...), "\n")
	}
	code := cmd.ProcessState.ExitCode()
	switch {
	case ctx.Err() != nil:
		o.outcome = "hangs"
		return o
	case code == 0, code == 1 && strings.Contains(text, "error:"):
	default:
		o.outcome = fmt.Sprintf("ended by %v", err)
		return o
	}
	_, problem, failed := strings.Cut(text, "error: ")
	switch {
	case strings.Contains(text, "wrong:"):
		o.outcome = "is wrong without a word"
	case failed && strings.HasPrefix(text, "opened"):
		o.outcome = "fails later without saying why"
		if strings.Contains(problem, "/converge/s/resource/") && strings.Contains(problem, "is corrupt") {
			o.outcome = caught
		} else if strings.Contains(problem, dir) && strings.Contains(problem, "is corrupt") {
			o.outcome = refused
		}
	case failed:
		o.outcome = "refuses without saying why"
		if strings.Contains(problem, dir) && strings.Contains(problem, "its data is corrupt") && strings.Contains(problem, "backup") {
			o.outcome = refused
		}
	default:
		o.outcome = recovered
		has := map[int]int{}
		for line := range strings.Lines(text) {
			n := 0
			if _, err := fmt.Sscanf(line, "has %d", &n); err == nil {
				has[n%names] = n
			}
		}
		for n := max(1, acknowledged-names+1); n <= acknowledged; n++ {
			if has[n%names] < n {
				o.outcome = fmt.Sprintf("lost commit %d of %d without a word", n, acknowledged)
				if n > flushed {
					o.outcome = unknowable
				}
				break
			}
		}
	}
	return o
}

// A wal is the last file of the write-ahead log of a member, cut into its records.
type wal struct {
	path  string
	text  []byte
	heads []int // where each record begins
	end   int   // where the next one would
}

func lastWAL(t *testing.T, dir string) *wal {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "etcd", "member", "wal", "*.wal"))
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	w := &wal{path: slices.Max(paths)}
	if w.text, err = os.ReadFile(w.path); err != nil {
		t.Fatal(err)
	}
	for w.end+8 <= len(w.text) {
		frame := binary.LittleEndian.Uint64(w.text[w.end:])
		if frame == 0 {
			break
		}
		size := int(frame & (1<<56 - 1))
		if frame>>63 != 0 {
			size += int(frame >> 56 & 7)
		}
		w.heads = append(w.heads, w.end)
		w.end += 8 + size
	}
	return w
}

// entry finds a record that holds a commit: it contains the key that was written.
func (w *wal) entry(t *testing.T, n int) (from, to int) {
	t.Helper()
	want := []byte(fmt.Sprintf(`"id":"%d"`, n))
	for i := len(w.heads) - 1; i >= 0; i-- {
		from, to = w.heads[i], w.end
		if i+1 < len(w.heads) {
			to = w.heads[i+1]
		}
		if bytes.Contains(w.text[from:to], want) {
			return from, to
		}
	}
	t.Fatalf("commit %d is not in %s", n, w.path)
	return 0, 0
}

// sector is what a disk writes completely or not at all.
const sector = 512

// tear returns the beginning of a record that would come next, up to the end of a sector that it does not fill alone.
func (w *wal) tear(t *testing.T, rng *rand.Rand, n int) []byte {
	t.Helper()
	for ; ; n-- {
		from, to := w.entry(t, n)
		// Only where a whole sector is missing can the record be distinguished from one that was changed.
		if whole := (w.end+to-from)/sector - w.end/sector - 1; whole > 0 {
			cut := (w.end/sector + 1 + rng.IntN(whole)) * sector
			return w.text[from : from+cut-w.end]
		}
	}
}

// A spoiling damages the files of a member. It says which outcomes are good.
type spoiling struct {
	name string
	do   func(t *testing.T, rng *rand.Rand, dir string, acknowledged int)
	good []string
}

func rewrite(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func flip(t *testing.T, rng *rand.Rand, path string, from, to int) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text[from+rng.IntN(to-from)] ^= 1 << rng.IntN(8)
	rewrite(t, path, text)
}

func db(dir string) string { return filepath.Join(dir, "etcd", "member", "snap", "db") }

var commit = regexp.MustCompile(`"id":"([0-9]+)"`)

// newest returns the newest commit that is in the data file. The unfinished writes of its last transaction do not count: the
// bytes are in the file, and nothing refers to them.
func newest(t *testing.T, dir string) (n int) {
	t.Helper()
	data, err := bolt.Open(db(dir), 0o600, &bolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	err = data.View(func(tx *bolt.Tx) error {
		keys := tx.Bucket([]byte("key"))
		if keys == nil {
			return nil
		}
		return keys.ForEach(func(_, value []byte) error {
			if m := commit.FindSubmatch(value); m != nil {
				id, _ := strconv.Atoi(string(m[1]))
				n = max(n, id)
			}
			return nil
		})
	})
	if err := errors.Join(err, data.Close()); err != nil {
		t.Fatal(err)
	}
	return n
}

// inPage changes a page of the data file that is in use.
func inPage(t *testing.T, rng *rand.Rand, dir string, change func(page []byte)) {
	t.Helper()
	text, err := os.ReadFile(db(dir))
	if err != nil {
		t.Fatal(err)
	}
	const size = 4096
	var used [][]byte
	for page := range slices.Chunk(text[2*size:], size) { // after those that say where the tree begins
		if bytes.ContainsFunc(page, func(r rune) bool { return r != 0 }) {
			used = append(used, page)
		}
	}
	change(used[rng.IntN(len(used))])
	rewrite(t, db(dir), text)
}

var spoilings = []spoiling{
	{"nothing", func(*testing.T, *rand.Rand, string, int) {}, []string{recovered}},
	// A record that was being written when the machine died: it was never acknowledged.
	{"torn record at the end", func(t *testing.T, rng *rand.Rand, dir string, n int) {
		w := lastWAL(t, dir)
		copy(w.text[w.end:], w.tear(t, rng, n))
		rewrite(t, w.path, w.text)
	}, []string{recovered}},
	{"file cut behind a torn record", func(t *testing.T, rng *rand.Rand, dir string, n int) {
		w := lastWAL(t, dir)
		rewrite(t, w.path, append(slices.Clone(w.text[:w.end]), w.tear(t, rng, n)...))
	}, []string{recovered}},
	// What was acknowledged is damaged.
	{"flip in the last commit", func(t *testing.T, rng *rand.Rand, dir string, n int) {
		w := lastWAL(t, dir)
		from, to := w.entry(t, n)
		flip(t, rng, w.path, from+8, to)
	}, []string{refused}},
	{"flip in the log", func(t *testing.T, rng *rand.Rand, dir string, _ int) {
		w := lastWAL(t, dir)
		flip(t, rng, w.path, 0, w.end)
	}, []string{refused, recovered}}, // padding does not count
	{"log cut in the last commit", func(t *testing.T, rng *rand.Rand, dir string, n int) {
		w := lastWAL(t, dir)
		from, to := w.entry(t, n)
		rewrite(t, w.path, w.text[:from+rng.IntN(to-from)])
	}, []string{refused, recovered, unknowable}},
	{"log cut in the middle", func(t *testing.T, rng *rand.Rand, dir string, n int) {
		w := lastWAL(t, dir)
		rewrite(t, w.path, w.text[:w.end/4+rng.IntN(w.end/2)])
	}, []string{refused, unknowable}},
	{"log file missing", func(t *testing.T, _ *rand.Rand, dir string, _ int) {
		if err := os.Remove(lastWAL(t, dir).path); err != nil {
			t.Fatal(err)
		}
	}, []string{refused, unknowable}},
	{"log missing", func(t *testing.T, _ *rand.Rand, dir string, _ int) {
		if err := os.RemoveAll(filepath.Join(dir, "etcd", "member", "wal")); err != nil {
			t.Fatal(err)
		}
	}, []string{refused}},
	{"flip in the data", func(t *testing.T, rng *rand.Rand, dir string, _ int) {
		text, err := os.ReadFile(db(dir))
		if err != nil {
			t.Fatal(err)
		}
		flip(t, rng, db(dir), 0, len(text))
	}, []string{refused, recovered, caught}}, // most of the file is free, or the log repeats it
	{"flip in a value of the data", func(t *testing.T, rng *rand.Rand, dir string, n int) {
		text, err := os.ReadFile(db(dir))
		if err != nil {
			t.Fatal(err)
		}
		for i := n; i > 0; i-- { // the newest that is in the file already
			want := []byte(fmt.Sprintf(`"id":"%d"`, i))
			bent := bytes.ReplaceAll(text, want, bytes.Replace(want, []byte(`"id"`), []byte(`"ie"`), 1))
			if !bytes.Equal(bent, text) {
				rewrite(t, db(dir), bent)
				return
			}
		}
	}, []string{refused, recovered, caught}},
	{"page of the data zeroed", func(t *testing.T, rng *rand.Rand, dir string, _ int) {
		inPage(t, rng, dir, func(page []byte) { clear(page) })
	}, []string{refused, recovered, caught}},
	{"flip at the beginning of a page", func(t *testing.T, rng *rand.Rand, dir string, _ int) { // what says where things are
		inPage(t, rng, dir, func(page []byte) { page[rng.IntN(64)] ^= 1 << rng.IntN(8) })
	}, []string{refused, recovered, caught}},
	{"data cut", func(t *testing.T, rng *rand.Rand, dir string, _ int) {
		info, err := os.Stat(db(dir))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(db(dir), rng.Int64N(info.Size())); err != nil {
			t.Fatal(err)
		}
	}, []string{refused, recovered}},
	{"data missing", func(t *testing.T, _ *rand.Rand, dir string, _ int) {
		if err := os.Remove(db(dir)); err != nil {
			t.Fatal(err)
		}
	}, []string{refused, recovered}}, // the log may repeat all of it
}

// L: whatever a crash and a disk do to the files of a member, opening them recovers every acknowledged commit, or reports
// what is damaged; it neither hangs nor panics, and nothing that was acknowledged is silently lost.
func TestTortureTornFiles(t *testing.T) {
	var kinds []string
	for _, s := range spoilings {
		kinds = append(kinds, s.name)
	}
	damaged := torture.Cover(t, "kinds of damage", kinds)
	outcomes := torture.Cover(t, "outcomes", []string{recovered, refused})
	count := map[string]int{}
	begin, cases := time.Now(), 0
	var mu sync.Mutex
	t.Run("stores", func(t *testing.T) { // returns when all of them have ended
		for kill := range torture.Scale(1, 6, 200) { // six have each number of commits, killed and closed
			t.Run(fmt.Sprint(kill), func(t *testing.T) {
				t.Parallel() // most of it waits for a disk and for other processes
				rng := rand.New(rand.NewPCG(2, uint64(kill)))
				dir := t.TempDir()
				// Sometimes few commits, all in the log; sometimes more than etcd keeps there before it takes a snapshot.
				closed := kill%2 == 1
				acknowledged := killed(t, dir, []int{60, 300, 2500}[kill%3]+rng.IntN(200), closed)
				flushed := newest(t, dir)
				if closed && flushed < acknowledged {
					t.Fatalf("closed in order after %d commits, of which %d are in the data file", acknowledged, flushed)
				}
				for _, s := range spoilings {
					copied := filepath.Join(t.TempDir(), "store")
					copyStore(t, dir, copied)
					s.do(t, rng, copied, acknowledged)
					o := reopen(t, copied, acknowledged, flushed)
					damaged.Reach(s.name)
					if slices.Contains([]string{recovered, refused}, o.outcome) {
						outcomes.Reach(o.outcome)
					}
					mu.Lock()
					cases++
					count[s.name+": "+o.outcome]++
					mu.Unlock()
					if !slices.Contains(s.good, o.outcome) && !(o.outcome == unknowable && flushed == 0) { // there is only the log
						t.Errorf("store %d of %d commits, %s: it %s:\n%s", kill, acknowledged, s.name, o.outcome, o.text)
					}
					if err := os.RemoveAll(copied); err != nil {
						t.Error(err)
					}
				}
			})
		}
	})
	torture.Report(t, "L", "%d damaged stores in %s: %v", cases, time.Since(begin).Round(time.Second), count)
}

func copyStore(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		at := filepath.Join(to, strings.TrimPrefix(path, from))
		if d.IsDir() {
			return os.MkdirAll(at, 0o700)
		}
		if d.Type() == fs.ModeSocket { // a killed process left it behind; it is no data
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(at, text, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// L: a directory that may not be written or read is reported as such, and not as damaged.
func TestTortureForbiddenDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	const nobody = 65534
	cases := map[string]struct {
		spoil func(dir string) error
		env   string
		want  string
		flags uintptr
	}{
		"other owner": {func(string) error { return nil }, "CONVERGE_TORN_UID=65534", "permission denied", 0},
		"no permission to write": {func(dir string) error {
			return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
				mode := os.FileMode(0o400)
				if err == nil && d.IsDir() {
					mode = 0o500
				}
				return errors.Join(err, os.Chown(path, nobody, nobody), os.Chmod(path, mode))
			})
		}, "CONVERGE_TORN_UID=65534", "permission denied; even read-only commands write there: make it and everything in it writable", 0},
		"files of another owner": {func(dir string) error {
			return errors.Join(os.Chown(dir, nobody, nobody), os.Chown(filepath.Join(dir, "lock"), nobody, nobody))
		}, "CONVERGE_TORN_UID=65534", "permission denied; even read-only commands write there: make it and everything in it writable", 0},
		"read-only file system": {func(string) error { return nil }, "CONVERGE_TORN_READONLY=1", "read-only file system; even read-only commands write there: mount it read-write, or use a copy elsewhere", syscall.CLONE_NEWNS},
	}
	covered := torture.Cover(t, "directories", slices.Collect(maps.Keys(cases)))
	for name, c := range cases {
		top, err := os.MkdirTemp("", "torn") // where another user has access
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(top) })
		dir := filepath.Join(top, "store")
		acknowledged := killed(t, dir, 30, true)
		if err := errors.Join(os.Chmod(top, 0o755), c.spoil(dir)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		cmd := torn(ctx, "open", dir, c.env)
		cmd.SysProcAttr.Cloneflags = c.flags
		out, _ := cmd.CombinedOutput()
		late := ctx.Err()
		cancel()
		if text := string(out); late != nil || !strings.HasPrefix(text, "error:") || !strings.Contains(text, dir) || !strings.Contains(text, c.want) || strings.Contains(text, "corrupt") {
			t.Errorf("%s: %v, %s", name, late, text)
		}
		covered.Reach(name)
		// Nothing was lost by the attempt.
		err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			return errors.Join(err, os.Chown(path, 0, 0), os.Chmod(path, 0o700))
		})
		if err != nil {
			t.Fatal(err)
		}
		if o := reopen(t, dir, acknowledged, acknowledged); o.outcome != recovered {
			t.Errorf("%s: afterwards it %s: %s", name, o.outcome, o.text)
		}
	}
	torture.Report(t, "L", "forbidden directories: %s: each named, nothing lost", covered)
}
