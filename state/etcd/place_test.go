package etcd

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"converge.dev/converge/state"
)

// TestAway: a write after the files were moved away is never reported as written, whichever process serves the store, and
// nothing is written after it. Once they are put back, everything that was reported as written is there.
func TestAway(t *testing.T) {
	for name, part := range map[string]string{
		"directory": ".",
		"data":      dataName,
		"log":       dataName + "/member/" + walName,
		"segments":  dataName + "/member/" + walName + "/*.wal",
		"data file": dataName + "/member/" + dbName,
	} {
		for _, served := range []bool{false, true} {
			where := "own"
			if served {
				where = "served by another"
			}
			t.Run(name+", "+where, func(t *testing.T) {
				dir, aside := filepath.Join(t.TempDir(), "store"), t.TempDir()
				end := func() {}
				if served {
					cmd := holding(t, dir)
					end = func() { kill(cmd) }
				}
				kv := openDir(t, Options{Dir: dir})
				if _, err := kv.Commit(t.Context(), nil, []state.Op{{Key: "/b", Value: []byte("kept")}}); err != nil {
					t.Fatal(err)
				}
				moved, err := filepath.Glob(filepath.Join(dir, part))
				if err != nil || len(moved) == 0 {
					t.Fatalf("%v, %v", moved, err)
				}
				for _, path := range moved {
					if err := os.Rename(path, filepath.Join(aside, filepath.Base(path))); err != nil {
						t.Fatal(err)
					}
				}
				_, err = kv.Commit(t.Context(), nil, []state.Op{{Key: "/c", Value: []byte("lost")}})
				if !errors.Is(err, state.ErrUnknown) {
					t.Fatalf("a write into files that are away: %v", err)
				}
				var away *AwayError
				if _, err := kv.Commit(t.Context(), nil, []state.Op{{Key: "/d"}}); !errors.As(err, &away) || away.Dir != dir {
					t.Errorf("the next write: %v", err)
				}
				if _, err := kv.Get(t.Context(), "/c"); !errors.As(err, &away) {
					t.Errorf("a read: %v", err)
				}
				end()
				if err := kv.Close(); err != nil {
					t.Error(err)
				}
				for _, path := range moved {
					if err := os.Rename(filepath.Join(aside, filepath.Base(path)), path); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	}
}

// TestPutBack: a store that was moved away and back has everything that was reported as written.
func TestPutBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	cmd := holding(t, dir)
	for _, way := range [][2]string{{dir, dir + ".aside"}, {dir + ".aside", dir}} {
		if err := os.Rename(way[0], way[1]); err != nil {
			t.Fatal(err)
		}
	}
	kill(cmd)
	if it, err := openDir(t, Options{Dir: dir}).Get(t.Context(), "/a"); err != nil || string(it.Value) != "written" {
		t.Errorf("what was written is %q, %v", it.Value, err)
	}
}

// TestNeverAnew: a process that has used a store does not create a new one in its place when the process that served it ends.
func TestNeverAnew(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	cmd := holding(t, dir)
	kv := openDir(t, Options{Dir: dir})
	if err := os.RemoveAll(filepath.Join(dir, dataName)); err != nil {
		t.Fatal(err)
	}
	kill(cmd)
	if it, err := kv.Get(t.Context(), "/a"); err == nil {
		t.Errorf("read %q from a store that is gone", it.Value)
	}
	if Exists(dir) {
		t.Error("a new store was begun")
	}
}

// TestNoLockFile: the lock file may be gone while a process serves. Others find it at the socket; where that is gone as well
// they report which process has the data open, and not that these are damaged.
func TestNoLockFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	cmd := holding(t, dir)
	remove := func(names ...string) {
		for _, name := range names {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove(lockName)
	second := openDir(t, Options{Dir: dir})
	if it, err := second.Get(t.Context(), "/a"); err != nil || string(it.Value) != "written" {
		t.Errorf("without the lock file: %q, %v", it.Value, err)
	}
	remove(lockName, "socket")
	var none *NoAnswerError
	if kv, err := Open(t.Context(), Options{Dir: dir}); !errors.As(err, &none) || none.PID != cmd.Process.Pid {
		t.Errorf("without lock file and socket: %v", err)
		if err == nil {
			_ = kv.Close()
		}
	}
	kill(cmd)
	if it, err := second.Get(t.Context(), "/a"); err != nil || string(it.Value) != "written" {
		t.Errorf("taken over: %q, %v", it.Value, err)
	}
}
