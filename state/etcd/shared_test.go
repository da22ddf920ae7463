package etcd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"converge.dev/converge/internal/statetest"
	"converge.dev/converge/state"
)

// holding starts another process that opens the directory, takes the lock of site s, and waits.
func holding(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	cmd := child(t, "hold", dir)
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kill(cmd) })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the other process says %q, %v", line, err)
	}
	return cmd
}

func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// TestSharedLaws: through the socket of another process the store obeys the same laws, however long the path of its directory is.
func TestSharedLaws(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 200), ".converge")
	first, second := openDir(t, Options{Dir: dir}), openDir(t, Options{Dir: dir})
	if !first.share.serves() || second.share.serves() {
		t.Fatal("not the first serves the second")
	}
	statetest.KV(t, func(*testing.T) state.KV { return second })
	statetest.Store(t, func(*testing.T) state.KV { return second })
}

// TestHandedOver: when the process that serves the store ends, one of the others takes over, and nothing that they hold is lost.
func TestHandedOver(t *testing.T) {
	o := Options{Dir: t.TempDir()}
	users := []*kv{openDir(t, o), openDir(t, o), openDir(t, o), openDir(t, o)}
	work := users[3]
	lock, err := state.New(work, "s").Lock(t.Context(), state.LockInfo{Who: "last"}, state.LockOptions{TTL: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for i, u := range users[:3] {
		if _, err := lock.Commit(t.Context(), nil, []state.Op{{Key: "/a", Value: fmt.Append(nil, i)}}); err != nil {
			t.Fatal(err)
		}
		if err := u.Close(); err != nil {
			t.Error(err)
		}
		if it, err := work.Get(t.Context(), "/a"); err != nil || string(it.Value) != fmt.Sprint(i) {
			t.Fatalf("after the one that served has ended: %q, %v; want %d", it.Value, err, i)
		}
		if _, err := lock.Commit(t.Context(), nil, []state.Op{{Key: "/b"}}); err != nil {
			t.Fatalf("under the lock: %v", err)
		}
	}
	if !work.share.serves() {
		t.Error("the last one does not serve itself")
	}
	var locked *state.LockedError
	if _, err := state.New(openDir(t, o), "s").Lock(t.Context(), state.LockInfo{}, state.LockOptions{}); !errors.As(err, &locked) || locked.Info.Who != "last" {
		t.Errorf("a second lock: %v", err)
	}
	if err := errors.Join(lock.Held(), lock.Close()); err != nil {
		t.Error(err)
	}
}

// TestKilledServer: the users of four processes count together, while the process that serves them is killed.
func TestKilledServer(t *testing.T) {
	dir := t.TempDir()
	server := holding(t, dir)
	o := Options{Dir: dir}
	const users, each = 4, 50
	var counting sync.WaitGroup
	var once sync.Once
	for range users {
		kv := openDir(t, o)
		counting.Go(func() {
			for i := range each {
				if i == each/2 {
					once.Do(func() { kill(server) })
				}
				if err := count(t.Context(), kv); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	counting.Wait()
	it, err := openDir(t, o).Get(t.Context(), "/count")
	if err != nil || strings.Count(string(it.Value), "\n") != users*each {
		t.Errorf("%d lines, %v; want %d", strings.Count(string(it.Value), "\n"), err, users*each)
	}
	if it, err := openDir(t, o).Get(t.Context(), "/a"); err != nil || string(it.Value) != "written" {
		t.Errorf("what the killed one wrote: %q, %v", it.Value, err)
	}
}

// count adds a line of its own under a key, exactly once: an unknown outcome is settled by reading.
func count(ctx context.Context, kv *kv) error {
	id, err := kv.share.lease()
	if err != nil {
		return err
	}
	line := strconv.FormatInt(int64(id), 10) + "\n"
	for {
		it, err := kv.Get(ctx, "/count")
		if err != nil {
			return err
		}
		if strings.Contains(string(it.Value), line) {
			return nil
		}
		_, err = kv.Commit(ctx, []state.Guard{{Key: "/count", Revision: it.Modified}}, []state.Op{{Key: "/count", Value: append(it.Value, line...)}})
		if err != nil && !errors.Is(err, state.ErrGuard) && !errors.Is(err, state.ErrUnknown) {
			return err
		}
		if err == nil {
			return nil
		}
	}
}

// TestLockOfKilledServer: a lock outlives the process through which it was taken, and the lock of that process does not.
func TestLockOfKilledServer(t *testing.T) {
	dir := t.TempDir()
	server := holding(t, dir)
	kv := openDir(t, Options{Dir: dir})
	lock, err := state.New(kv, "mine").Lock(t.Context(), state.LockInfo{}, state.LockOptions{TTL: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	var locked *state.LockedError
	if _, err := state.New(kv, "s").Lock(t.Context(), state.LockInfo{}, state.LockOptions{}); !errors.As(err, &locked) {
		t.Errorf("the lock of the other: %v", err)
	}
	kill(server)
	if _, err := lock.Commit(t.Context(), nil, []state.Op{{Key: "/b"}}); err != nil && !errors.Is(err, state.ErrUnknown) {
		t.Errorf("under the lock: %v", err)
	}
	theirs, err := state.New(openDir(t, Options{Dir: dir}), "s").Lock(t.Context(), state.LockInfo{}, state.LockOptions{})
	if err != nil {
		t.Fatalf("the lock of the killed one, which had an hour to go: %v", err)
	}
	if err := errors.Join(theirs.Close(), lock.Held()); err != nil {
		t.Error(err)
	}
}

// TestKilledUser: the lock of a killed user blocks nobody, although the server continues.
func TestKilledUser(t *testing.T) {
	dir := t.TempDir()
	server := openDir(t, Options{Dir: dir})
	kill(holding(t, dir))
	if !server.share.serves() {
		t.Error("the server does not serve any more")
	}
	l, err := state.New(openDir(t, Options{Dir: dir}), "s").Lock(t.Context(), state.LockInfo{}, state.LockOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if l.Epoch() != 2 {
		t.Errorf("epoch %d, want 2", l.Epoch())
	}
}

// TestNoOwnersFile: when the file that lists the owners was removed, no live owner counts as dead, neither for the process
// that recreates it nor for those after it.
func TestNoOwnersFile(t *testing.T) {
	dir := t.TempDir()
	holding(t, dir)
	if err := os.Remove(filepath.Join(dir, ownersName)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		var locked *state.LockedError
		if l, err := state.New(openDir(t, Options{Dir: dir}), "s").Lock(t.Context(), state.LockInfo{}, state.LockOptions{}); !errors.As(err, &locked) {
			t.Errorf("the lock of one that lives: %v", err)
			if err == nil {
				_ = l.Close()
			}
		}
	}
}

// TestSuspendedServer: a process that holds the store and is suspended is named, to new processes and to existing ones; when
// it continues, so do they.
func TestSuspendedServer(t *testing.T) {
	dir := t.TempDir()
	server := holding(t, dir)
	kv := openDir(t, Options{Dir: dir})
	if err := server.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	named := func(what string, err error) {
		t.Helper()
		var silent *NoAnswerError
		want := fmt.Sprintf("%s has been held by PID %d since ", dir, server.Process.Pid)
		if !errors.As(err, &silent) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "(converge apply site.cue), which does not answer") {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := Open(t.Context(), Options{Dir: dir})
	named("open", err)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = kv.Get(ctx, "/a")
	named("read", err)
	if err := server.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if it, err := kv.Get(t.Context(), "/a"); err != nil || string(it.Value) != "written" {
		t.Errorf("when it goes on: %q, %v", it.Value, err)
	}
}

// TestModes: a directory in which others can replace the data is refused, with the way out.
func TestModes(t *testing.T) {
	for mode, ok := range map[os.FileMode]bool{0o700: true, 0o755: true, 0o777: false, 0o720: false, 0o702: false} {
		dir := filepath.Join(t.TempDir(), ".converge")
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, mode)); err != nil {
			t.Fatal(err)
		}
		kv, err := Open(t.Context(), Options{Dir: dir})
		if err == nil {
			err = kv.Close()
		}
		if ok && err != nil || !ok && (!errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "chmod 700 "+dir)) {
			t.Errorf("mode %v: %v", mode, err)
		}
		if ok {
			continue
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("mode %v: %v was made in it, %v", mode, left, err)
		}
	}
	if os.Geteuid() != 0 {
		return
	}
	dir := t.TempDir()
	if err := os.Chown(dir, 12345, -1); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Options{Dir: dir}); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "12345") {
		t.Errorf("another's directory: %v", err)
	}
}
