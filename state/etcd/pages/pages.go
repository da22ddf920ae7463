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

// check reads pages as bbolt does when it opens the file for writing, and finds out where pages and values end, which bbolt does
// not.
func check(file string) (applied uint64, err error) {
	db, err := Open(file)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var read byte
	err = db.View(func(tx *bolt.Tx) error {
		if err, wrong := <-tx.Check(); wrong {
			return err
		}
		end := int(tx.Size()) / tx.DB().Info().PageSize
		next := 0
		for next < end {
			p, err := tx.Page(next)
			if err != nil {
				return err
			}
			if next++; p.Type != "free" {
				next += p.OverflowCount
			}
		}
		if next > end {
			return fmt.Errorf("the last page extends to page %d, but there are only %d", next, end)
		}
		return tx.ForEach(func(bucket []byte, b *bolt.Bucket) error {
			if b.Root() == 0 && b.Stats().BranchPageN > 0 { // nothing would return from it; the check of bbolt leaves it out
				return fmt.Errorf("bucket %q has branches, but no page of its own", bucket)
			}
			c := b.Cursor()
			for k, v := c.First(); k != nil; k, v = c.Next() {
				for i := len(v) - 1; i >= 0; i -= os.Getpagesize() {
					read ^= v[i] // faults when it is beyond the file, or cannot be read
				}
				if string(bucket) == "meta" && string(k) == "consistent_index" && len(v) == 8 {
					applied = binary.BigEndian.Uint64(v)
				}
			}
			return nil
		})
	})
	return applied, err
}
