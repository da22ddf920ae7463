package ledger

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// AfterWrite makes every write that succeeds report what f returns.
func (l *Ledger) AfterWrite(f func() error) { l.after = f }

// FillDisk makes every write to the open file fail with ENOSPC, until the function that it returns is called.
func (l *Ledger) FillDisk(t testing.TB) (free func()) {
	t.Helper()
	names, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	fd := -1
	for _, name := range names {
		if to, err := os.Readlink(name); err == nil && to == l.path {
			fd, _ = strconv.Atoi(filepath.Base(name))
		}
	}
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil || fd < 0 {
		t.Fatal(fd, err)
	}
	defer full.Close()
	saved, err := syscall.Dup(fd)
	if err != nil {
		t.Fatal(err)
	}
	syscall.CloseOnExec(saved)
	if err := syscall.Dup3(int(full.Fd()), fd, syscall.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	return func() {
		defer syscall.Close(saved)
		if to, _ := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)); to != "/dev/full" {
			return // closed meanwhile
		}
		if err := syscall.Dup3(saved, fd, syscall.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
	}
}

// Meddle changes what is in a closed ledger.
func Meddle(t testing.TB, path, what string) {
	t.Helper()
	db, err := bolt.Open(path, 0, options(nil))
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		entries := tx.Bucket(entryBucket)
		first, second := Position{1, 1}.key(), Position{1, 2}.key()
		switch what {
		case "state of a newer version":
			data := []byte("not JSON")
			s := checksum(stateBucket, stateKey, version+1, data)
			return tx.Bucket(stateBucket).Put(stateKey, slices.Concat([]byte{version + 1}, s[:], data))
		case "entry is gone":
			return entries.Delete(second)
		case "entry was moved":
			return entries.Put(second, slices.Clone(entries.Get(first)))
		}
		// The result of the first task is another one.
		value, _ := seal(resultBucket, first, []byte("forged"))
		return tx.Bucket(resultBucket).Put(first, value)
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}
