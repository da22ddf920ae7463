// Package pages checks the data file of etcd in a process of its own, because bbolt reads pages in its own goroutines, where a
// damaged one ends the process.
//
// That process is the program that this package is in, started once more. It ends before most other packages are initialized,
// which would take it longer than the check. Go initializes packages by their names, once those that they import are. So this one
// imports nothing that comes late: neither os/exec, nor runtime/debug, nor etcd.
package pages

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// Variable is an environment variable that names a data file. A process that has it checks that file, all but what its keys mean,
// and does nothing else. It prints the number of the last log entry that is in the file, or says what is wrong and exits with 1.
const Variable = "CONVERGE_CHECK_DATA"

// maxMemory bounds the memory of that process. The largest store takes a part of it; a page that claims to span millions of
// pages would take all of the machine's.
const maxMemory = 512 << 20

// orphaned is how long a check may go on when the process that waits for it was killed.
const orphaned = 2 * time.Minute

// releaseTimeout is how long the previous owner may still hold the data.
const releaseTimeout = 20 * time.Second

// init is all that such a process does.
func init() {
	file := os.Getenv(Variable)
	if file == "" {
		return
	}
	time.AfterFunc(orphaned, func() { os.Exit(1) })
	err := unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: maxMemory, Max: maxMemory})
	if err != nil {
		fmt.Fprintln(os.Stderr, "limit the memory:", err)
		os.Exit(1)
	}
	applied, err := check(file)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(applied)
	os.Exit(0)
}

// Open opens the data file for reading. The previous owner of the store may have just forked another process, which inherits
// everything that it holds until it executes its own program. On a busy machine that takes seconds.
func Open(file string) (*bolt.DB, error) {
	return bolt.Open(file, 0o400, &bolt.Options{ReadOnly: true, Timeout: releaseTimeout})
}

// check reads pages as bbolt does when it opens the file for writing, after it has found every page as bbolt writes one. Bbolt
// itself trusts what a page says of its entries, and would read or copy memory behind the end of the file.
func check(file string) (applied uint64, err error) {
	db, err := Open(file)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	err = db.View(func(tx *bolt.Tx) error {
		size := db.Info().PageSize
		t := tree{file: f, size: size, seen: make([]bool, int(tx.Size())/size)}
		if err := t.page(uint64(tx.Cursor().Bucket().Root()), true); err != nil {
			return err
		}
		if err, wrong := <-tx.Check(); wrong {
			return err
		}
		if meta := tx.Bucket([]byte("meta")); meta != nil {
			if v := meta.Get([]byte("consistent_index")); len(v) == 8 {
				applied = binary.BigEndian.Uint64(v)
			}
		}
		return nil
	})
	return applied, err
}

// A tree is a data file whose pages are being read, each at most once. Its layout is that of bbolt's internal/common/page.go.
type tree struct {
	file *os.File
	size int    // bytes of a page
	seen []bool // by number of a page that is in use
}

const (
	header  = 16 // bytes at the beginning of a page: its number, kind and length
	entry   = 16 // bytes of an entry of a page: where its key and value are
	branch  = 1
	leaf    = 2
	buckets = 1 // the flag of an entry whose value is a bucket
)

var native = binary.NativeEndian // bbolt writes structs as they are in memory

// page reads a page and all below it. Top is set where the values are the buckets.
func (t *tree) page(number uint64, top bool) error {
	if number < 2 || number >= uint64(len(t.seen)) { // the first two say where the tree begins
		return fmt.Errorf("page %d is not one of the %d pages of the tree", number, len(t.seen))
	}
	data := make([]byte, t.size)
	at := int64(number) * int64(t.size)
	if _, err := t.file.ReadAt(data, at); err != nil {
		return fmt.Errorf("page %d: %w", number, err)
	}
	last := number + uint64(native.Uint32(data[12:]))
	if last >= uint64(len(t.seen)) {
		return fmt.Errorf("page %d extends to page %d, but there are only %d", number, last, len(t.seen))
	}
	for i := number; i <= last; i++ {
		if t.seen[i] {
			return fmt.Errorf("page %d is used twice", i)
		}
		t.seen[i] = true
	}
	if last > number {
		data = make([]byte, int(last-number+1)*t.size)
		if _, err := t.file.ReadAt(data, at); err != nil {
			return fmt.Errorf("page %d: %w", number, err)
		}
	}
	if stated := native.Uint64(data); stated != number {
		return fmt.Errorf("page %d says that it is page %d", number, stated)
	}
	if err := t.entries(data, top); err != nil {
		return fmt.Errorf("page %d: %w", number, err)
	}
	return nil
}

// entries reads the entries of a page and the pages that they name. Keys and values follow each other without gaps, behind the
// entries and in their order.
func (t *tree) entries(data []byte, top bool) error {
	if len(data) < header {
		return fmt.Errorf("%d bytes are no page", len(data))
	}
	kind, count := native.Uint16(data[8:]), int(native.Uint16(data[10:]))
	if count == 0 && kind == branch {
		return errors.New("it leads to no other page")
	}
	if kind != branch && kind != leaf {
		return fmt.Errorf("its kind is %#x", kind)
	}
	next := header + count*entry
	if next > len(data) {
		return fmt.Errorf("%d entries do not fit", count)
	}
	for i := range count {
		begin := header + i*entry
		e := data[begin : begin+entry]
		if kind == branch {
			key := int(native.Uint32(e[4:]))
			if begin+int(native.Uint32(e)) != next || key > len(data)-next {
				return fmt.Errorf("entry %d is not where it should be", i)
			}
			if key == 0 {
				return fmt.Errorf("entry %d has no key", i)
			}
			next += key
			if err := t.page(native.Uint64(e[8:]), top); err != nil {
				return err
			}
			continue
		}
		flags, key, value := native.Uint32(e), int(native.Uint32(e[8:])), int(native.Uint32(e[12:]))
		if begin+int(native.Uint32(e[4:])) != next || key > len(data)-next || value > len(data)-next-key {
			return fmt.Errorf("entry %d is not where it should be", i)
		}
		if key == 0 {
			return fmt.Errorf("entry %d has no key", i)
		}
		next += key + value
		if top != (flags == buckets) || !top && flags != 0 {
			return fmt.Errorf("the kind of entry %d is %#x", i, flags)
		}
		if top {
			if err := t.bucket(data[next-value : next]); err != nil {
				return fmt.Errorf("bucket %q: %w", data[next-value-key:next-value], err)
			}
		}
	}
	return nil
}

// bucket reads a bucket, which names its first page, or is small and contains that page.
func (t *tree) bucket(value []byte) error {
	if len(value) < header { // the number of the page, and a counter
		return fmt.Errorf("%d bytes are no bucket", len(value))
	}
	if number := native.Uint64(value); number != 0 {
		return t.page(number, false)
	}
	if kind := value[header:]; len(kind) >= header && native.Uint16(kind[8:]) != leaf {
		return errors.New("it has branches, but no page of its own")
	}
	return t.entries(value[header:], false)
}
