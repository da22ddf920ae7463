package etcd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	bolt "go.etcd.io/bbolt"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/raft/v3"

	"converge.dev/converge/state"
	"converge.dev/converge/state/etcd/pages"
)

// TestMain lets the test binary act as the other process of a test.
func TestMain(m *testing.M) {
	if role := os.Getenv("CONVERGE_TEST_ROLE"); role != "" {
		if err := other(role, os.Getenv("CONVERGE_TEST_DIR")); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// other does the work of the other process.
func other(role, dir string) error {
	ctx := context.Background()
	kv, err := Open(ctx, Options{Dir: dir, Command: "converge apply site.cue"})
	if err != nil {
		return err
	}
	switch role {
	case "hold": // takes the lock, writes, and waits to be killed
		l, err := state.New(kv, "s").Lock(ctx, state.LockInfo{Who: "child"}, state.LockOptions{TTL: time.Hour})
		if err != nil {
			return err
		}
		if _, err := l.Commit(ctx, nil, []state.Op{{Key: "/a", Value: []byte("written")}}); err != nil {
			return err
		}
		fmt.Println("ready")
		_, err = bufio.NewReader(os.Stdin).ReadString('\n')
		return err
	case "fill": // writes until the disk is full: no file may grow beyond a limit
		signal.Ignore(syscall.SIGXFSZ)
		limit := unix.Rlimit{Cur: 10 << 20, Max: 10 << 20}
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
			return err
		}
		value := make([]byte, 1<<20)
		for i := range 100 {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			_, err := kv.Commit(ctx, nil, []state.Op{{Key: fmt.Sprint("/", i), Value: value}})
			cancel()
			if err != nil {
				fmt.Println("unknown:", errors.Is(err, state.ErrUnknown), "error:", err)
				_, again := kv.Commit(context.Background(), nil, []state.Op{{Key: "/x"}})
				fmt.Println("again unknown:", errors.Is(again, state.ErrUnknown), "error:", again)
				return kv.Close()
			}
		}
		return errors.New("the disk was never full")
	}
	return errors.New("no such role")
}

func child(t *testing.T, role, dir string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), "CONVERGE_TEST_ROLE="+role, "CONVERGE_TEST_DIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

func openDir(t *testing.T, o Options) *kv {
	t.Helper()
	k, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	return k.(*kv)
}

// TestKilled: what a process committed before it was killed is stored, and its locks block nobody.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	cmd := child(t, "hold", dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "ready\n" {
		t.Fatalf("the other process says %q, %v", line, err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	kv := openDir(t, Options{Dir: dir})
	if it, err := kv.Get(t.Context(), "/a"); err != nil || string(it.Value) != "written" {
		t.Errorf("what it wrote: %q, %v", it.Value, err)
	}
	l, err := state.New(kv, "s").Lock(t.Context(), state.LockInfo{}, state.LockOptions{})
	if err != nil {
		t.Fatalf("its lock, which had an hour to go: %v", err)
	}
	defer l.Close()
	if l.Epoch() != 2 {
		t.Errorf("epoch %d, want 2", l.Epoch())
	}
}

// TestKilledAtFirstStart: a process that is killed before its new store ever answered blocks nobody.
func TestKilledAtFirstStart(t *testing.T) {
	for range 8 {
		dir := filepath.Join(t.TempDir(), "store")
		cmd := child(t, "hold", dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for { // until there is a log, in which etcd has yet to become a member
			logs, err := filepath.Glob(filepath.Join(dir, dataName, "member", "wal", "*.wal"))
			if err != nil {
				t.Fatal(err)
			}
			if len(logs) > 0 {
				break
			}
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		kv, err := Open(ctx, Options{Dir: dir})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		if err := kv.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestInterruptedFirstStart is the same for an interrupt, wherever it comes.
func TestInterruptedFirstStart(t *testing.T) {
	for n := range 8 {
		dir := filepath.Join(t.TempDir(), "store")
		ctx, interrupt := context.WithTimeout(t.Context(), time.Duration(n)*10*time.Millisecond)
		if kv, err := Open(ctx, Options{Dir: dir}); err == nil {
			_ = kv.Close()
		}
		interrupt()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		kv, err := Open(ctx, Options{Dir: dir})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(filepath.Join(dir, unbegunName)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("what would be begun anew has been used: %v", err)
		}
		if _, err := kv.Commit(t.Context(), nil, []state.Op{{Key: "/a", Value: []byte("kept")}}); err != nil {
			t.Error(err)
		}
		if err := kv.Close(); err != nil {
			t.Error(err)
		}
		if it, err := openDir(t, Options{Dir: dir}).Get(t.Context(), "/a"); err != nil || string(it.Value) != "kept" {
			t.Errorf("what was written first is %q, %v", it.Value, err)
		}
	}
}

// TestPrivate: no other user can read the data or connect, and no port is opened.
func TestPrivate(t *testing.T) {
	ports := func() (n int) {
		for _, table := range []string{"tcp", "tcp6", "udp", "udp6"} {
			text, err := os.ReadFile("/proc/self/net/" + table)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			fds, err := os.ReadDir("/proc/self/fd")
			if err != nil {
				t.Fatal(err)
			}
			for _, fd := range fds {
				to, _ := os.Readlink("/proc/self/fd/" + fd.Name())
				if inode, ok := strings.CutPrefix(to, "socket:["); ok && strings.Contains(string(text), " "+strings.TrimSuffix(inode, "]")+" ") {
					n++
				}
			}
		}
		return n
	}
	dir := filepath.Join(t.TempDir(), ".converge")
	openDir(t, Options{Dir: dir})
	if n := ports(); n != 0 {
		t.Errorf("%d ports were opened", n)
	}
	var size int64
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o077 != 0 || d.Name() == "socket" && info.Mode().Type() != fs.ModeSocket {
			t.Errorf("%s has the mode %v", path, info.Mode())
		}
		if !d.IsDir() {
			size += info.Size()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if size > 32<<20 {
		t.Errorf("an empty store takes %d MiB", size>>20)
	}
}

// TestReopen: everything but the leases outlives the process, and a closed store says that it is closed.
func TestReopen(t *testing.T) {
	o := Options{Dir: t.TempDir()}
	var revision int64
	for i := range 3 {
		kv := openDir(t, o)
		if it, err := kv.Get(t.Context(), "/a"); err != nil || it.Modified != revision {
			t.Fatalf("revision %d, %v; want %d", it.Modified, err, revision)
		}
		l, err := kv.Lease(t.Context(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		revision, err = kv.Commit(t.Context(), []state.Guard{{Key: "/leased"}}, []state.Op{{Key: "/a"}, {Key: "/leased", Lease: l}})
		if err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		if err := errors.Join(kv.Close(), kv.Close(), l.Close()); err != nil {
			t.Error(err)
		}
		if _, err := kv.Get(t.Context(), "/a"); !errors.Is(err, errClosed) {
			t.Errorf("read from a closed store: %v", err)
		}
		if _, err := kv.Commit(t.Context(), nil, []state.Op{{Key: "/a"}}); !errors.Is(err, errClosed) || errors.Is(err, state.ErrUnknown) {
			t.Errorf("write to a closed store: %v", err)
		}
	}
}

// TestDamaged: damaged data are an error of Open and not the end of the process.
func TestDamaged(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, file string) error{
		"snap/db": func(t *testing.T, file string) error {
			return os.WriteFile(file, []byte(strings.Repeat("x", 1<<16)), 0o600)
		},
		"snap/db cut": func(t *testing.T, file string) error {
			return os.Truncate(strings.TrimSuffix(file, " cut"), 4096)
		},
		"wal/0000000000000000-0000000000000000.wal": func(t *testing.T, file string) error {
			return os.WriteFile(file, []byte(strings.Repeat("x", 1<<16)), 0o600)
		},
		"wal/0000000000000000-0000000000000000.wal flipped": func(t *testing.T, file string) error {
			f, err := os.OpenFile(strings.TrimSuffix(file, " flipped"), os.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			var b [1]byte
			if _, err := f.ReadAt(b[:], 1000); err != nil {
				return err
			}
			b[0] ^= 1
			_, err = f.WriteAt(b[:], 1000)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{Dir: t.TempDir()}
			kv, err := Open(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 20 {
				if _, err := kv.Commit(t.Context(), nil, []state.Op{{Key: fmt.Sprint("/", i), Value: make([]byte, 100)}}); err != nil {
					t.Fatal(err)
				}
			}
			if err := kv.Close(); err != nil {
				t.Fatal(err)
			}
			if err := damage(t, filepath.Join(o.Dir, "etcd", "member", name)); err != nil {
				t.Fatal(err)
			}
			kv, err = Open(t.Context(), o)
			if err == nil {
				_ = kv.Close()
				t.Fatal("opened")
			}
			if !strings.Contains(err.Error(), o.Dir) {
				t.Errorf("%v does not name the directory", err)
			}
			t.Log(err)
		})
	}
}

// TestFull: a full disk ends the store and not the process, and leaves open whether the last write counts.
func TestFull(t *testing.T) {
	out, err := child(t, "fill", t.TempDir()).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lines := strings.Split(string(out), "\n")
	if len(lines) < 2 || !strings.HasPrefix(lines[0], "unknown: true") || !strings.Contains(lines[0], "file too large") ||
		!strings.HasPrefix(lines[1], "again unknown: false") {
		t.Errorf("got\n%s", out)
	}
}

// TestHistory: a start drops history that is no longer read.
func TestHistory(t *testing.T) {
	o := Options{Dir: t.TempDir()}
	first := openDir(t, o)
	for i := range compactAfter + 100 {
		if _, err := first.Commit(t.Context(), nil, []state.Op{{Key: "/a", Value: fmt.Append(nil, i)}}); err != nil {
			t.Fatal(err)
		}
	}
	old := func(k *kv, back int64) error {
		it, err := k.Get(t.Context(), "/a")
		if err != nil {
			t.Fatal(err)
		}
		_, err = k.client.Get(t.Context(), "/a", clientv3.WithRev(it.Modified-back))
		return err
	}
	if err := old(first, compactAfter); err != nil {
		t.Errorf("history while it is open: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := openDir(t, o)
	if err := old(second, keepRevisions+1); !compacted(err) {
		t.Errorf("old history after a start: %v", err)
	}
	if err := old(second, keepRevisions-1); err != nil {
		t.Errorf("recent history after a start: %v", err)
	}
}

// TestEarlyElection repeats the message of etcd when its first election comes while it drops the log that it has just
// applied. Nothing is wrong then; any other fatal message ends the store.
func TestEarlyElection(t *testing.T) {
	kv := openDir(t, Options{Dir: t.TempDir()})
	etcd := etcdLogger(slog.New(slog.DiscardHandler), kv.share.member.end).Named("raft").Sugar()
	etcd.Panicf("error scanning unapplied entries [%d, %d): %v", 1, 121, raft.ErrCompacted)
	if _, err := kv.Commit(t.Context(), nil, []state.Op{{Key: "/a", Value: []byte("x")}}); err != nil {
		t.Errorf("after an early election: %v", err)
	}
	go etcd.Panicf("error scanning unapplied entries [%d, %d): %v", 1, 121, raft.ErrUnavailable)
	<-kv.life.Done()
	if err := context.Cause(kv.life); !strings.Contains(err.Error(), raft.ErrUnavailable.Error()) {
		t.Errorf("the store ended with %v", err)
	}
}

// TestCheckedEarly: the process that checks a data file is done before etcd is initialized, which would take it longer.
func TestCheckedEarly(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = []string{pages.Variable + "=" + filepath.Join(t.TempDir(), "none"), "GODEBUG=inittrace=1"}
	out, err := cmd.CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte("no such file")) || !bytes.Contains(out, []byte("init os ")) {
		t.Fatalf("%v: %s", err, out)
	}
	if bytes.Contains(out, []byte("init go.etcd.io/etcd/server/")) {
		t.Errorf("etcd was initialized first:\n%s", out)
	}
}

// TestChecked: a data file that kills the checking process is an error here, and not damage where it could not be checked.
func TestChecked(t *testing.T) {
	dir := t.TempDir()
	k := openDir(t, Options{Dir: dir})
	if _, err := k.Commit(t.Context(), nil, []state.Op{{Key: "/a", Value: []byte("written")}}); err != nil {
		t.Fatal(err)
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, dataName, "member", dbName)
	if applied, err := appliedEntry(t.Context(), file); err != nil || applied == 0 {
		t.Errorf("whole: entry %d, %v", applied, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := appliedEntry(ctx, file); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	db, err := pages.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	var root int64 // where the page is at which the tree begins
	err = db.View(func(tx *bolt.Tx) error {
		root = int64(tx.Cursor().Bucket().Root()) * int64(db.Info().PageSize)
		return nil
	})
	size := int64(db.Info().PageSize)
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	// branch makes a page a branch of one other, whose key is a byte behind it.
	branch := func(page []byte, number uint64) {
		binary.LittleEndian.PutUint16(page[8:], 1)
		binary.LittleEndian.PutUint16(page[10:], 1)
		binary.LittleEndian.PutUint32(page[16:], 16)
		binary.LittleEndian.PutUint32(page[20:], 1)
		binary.LittleEndian.PutUint64(page[24:], number)
	}
	for _, c := range []struct {
		name, says string
		damage     func(data []byte)
	}{
		{"a page that goes on behind the end", "extends to page", func(data []byte) { data[root+14] = 1 }},
		{"a branch that grows from itself", "is used twice", func(data []byte) { branch(data[root:], uint64(root/size)) }},
		{"a key that goes on behind its page", "entry 0 is not where it should be", func(data []byte) { data[root+16+11] = 1 }},
		{"a value that goes on behind its page", "entry 0 is not where it should be", func(data []byte) { data[root+16+15] = 1 }},
		{"a page with more entries than it has", "entry 0 is not where it should be", func(data []byte) { data[root+10] ^= 16 }},
		{"a page of an unknown kind", "its kind is 0x6", func(data []byte) { data[root+8] ^= 4 }},
		{"a page of another number", "says that it is page", func(data []byte) { data[root] ^= 1 }},
		{"a bucket that is a value", "the kind of entry 0 is 0x0", func(data []byte) { data[root+16] = 0 }},
		{"a branch that leads nowhere", "leads to no other page", func(data []byte) {
			branch(data[root:], 0)
			data[root+10] = 0
		}},
		{"a key of a small bucket that is empty", "has no key", func(data []byte) {
			head := append([]byte("meta"), make([]byte, 16)...)
			for at := bytes.Index(data, head); at >= 0; at = bytes.Index(data, head) {
				page := data[at+len(head):]
				last := page[16*binary.LittleEndian.Uint16(page[10:]):] // the entries follow the head of the page, which is as long as one
				binary.LittleEndian.PutUint32(last[8:], 0)
				data[at+len(head)-1] = 1 // so that it is not found again
			}
		}},
		{"a small bucket that contains itself", `bucket "meta": it has branches, but no page of its own`, func(data []byte) {
			head := append([]byte("meta"), make([]byte, 16)...) // its name, and that it has no page of its own
			for at := bytes.Index(data, head); at >= 0; at = bytes.Index(data, head) {
				branch(data[at+len(head):], 0)
				data[at+len(head)-1] = 1 // so that it is not found again
			}
		}},
	} {
		damaged := bytes.Clone(whole)
		c.damage(damaged)
		if err := os.WriteFile(file, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := appliedEntry(t.Context(), file); err == nil || errors.Is(err, errUnchecked) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	for name, key := range map[string]string{"short": "abc", "of an unknown mark": "\x00\x00\x00\x00\x00\x00\x00\x02_\x00\x00\x00\x00\x00\x00\x00\x00x"} {
		if err := os.WriteFile(file, whole, 0o600); err != nil {
			t.Fatal(err)
		}
		db, err := bolt.Open(file, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		err = db.Update(func(tx *bolt.Tx) error { return tx.Bucket([]byte("key")).Put([]byte(key), []byte("x")) })
		if err := errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
		if _, err := appliedEntry(t.Context(), file); err == nil || !strings.Contains(err.Error(), "is not a revision") {
			t.Errorf("a key %s: %v", name, err)
		}
	}
	if err := os.Truncate(file, int64(2*os.Getpagesize())); err != nil { // only what says where the tree begins, and nothing of it
		t.Fatal(err)
	}
	if _, err := appliedEntry(t.Context(), file); err == nil || errors.Is(err, errUnchecked) {
		t.Errorf("cut: %v", err)
	}
}
