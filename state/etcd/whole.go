package etcd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
)

// whole finds, before etcd starts, that the write-ahead log ends before the data do: something that was acknowledged is
// lost. Etcd takes such a log for the whole truth; it hangs, or drops what it is given next as done already.
func whole(data string) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // a file that is cut ends in the middle of its map
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("read the data file: %v", p)
		}
	}()
	file := filepath.Join(data, "member", "snap", "db")
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return nil // etcd makes it anew from the log, or says that it cannot
	}
	applied, err := appliedEntry(file)
	if err != nil {
		return fmt.Errorf("read the data file: %w", err)
	}
	last, err := lastEntry(filepath.Join(data, "member", "wal"))
	if err != nil {
		return fmt.Errorf("read the write-ahead log: %w", err)
	}
	if applied > last {
		return fmt.Errorf("its write-ahead log ends with entry %d, and its data have entry %d: the end of the log is lost", last, applied)
	}
	return nil
}

// appliedEntry gives the number of the last entry of the log that is in the data file.
func appliedEntry(file string) (applied uint64, err error) {
	db, err := bolt.Open(file, 0o400, &bolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return 0, err
	}
	err = db.View(func(tx *bolt.Tx) error {
		if err := walk(tx); err != nil {
			return err
		}
		if meta := tx.Bucket([]byte("meta")); meta != nil {
			if v := meta.Get([]byte("consistent_index")); len(v) == 8 {
				applied = binary.BigEndian.Uint64(v)
			}
		}
		return nil
	})
	return applied, errors.Join(err, db.Close())
}

// walk visits everything in the data file, so that a page which is damaged shows here, where it is an error, and not in a
// goroutine of bbolt, where it ends the process. Etcd reads all pages at its start as well.
func walk(tx *bolt.Tx) error {
	left := tx.Size() / 8 // more keys cannot be in a file that size: pages that lead in a circle would never end
	return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
		c := b.Cursor()
		for k, _ := c.First(); k != nil; k, _ = c.Next() {
			if left--; left < 0 {
				return fmt.Errorf("bucket %q does not end", name)
			}
		}
		return nil
	})
}

// lastEntry gives the number of the last whole entry of the log. What is torn behind it was never acknowledged.
func lastEntry(dir string) (last uint64, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil || len(names) == 0 {
		return 0, err
	}
	slices.Sort(names)
	readers := make([]fileutil.FileReader, len(names))
	for i, name := range names {
		f, err := os.Open(name)
		if err != nil {
			return 0, err
		}
		defer f.Close()
		readers[i] = fileutil.NewFileReader(f)
	}
	decoder := wal.NewDecoder(readers...)
	rec := &walpb.Record{}
	for {
		err := decoder.Decode(rec)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return last, nil
		}
		if err != nil {
			return last, err
		}
		switch rec.GetType() {
		case wal.CrcType:
			if crc := decoder.LastCRC(); crc != 0 {
				if err := rec.Validate(crc); err != nil {
					return last, err
				}
			}
			decoder.UpdateCRC(rec.GetCrc())
		case wal.EntryType:
			var e raftpb.Entry
			if err := proto.Unmarshal(rec.Data, &e); err != nil {
				return last, err
			}
			last = max(last, e.GetIndex())
		case wal.SnapshotType:
			var s walpb.Snapshot
			if err := proto.Unmarshal(rec.Data, &s); err != nil {
				return last, err
			}
			last = max(last, s.GetIndex())
		}
	}
}

// advised adds to what keeps a member from starting what a person should do about it, where the reason is not one that he
// sees from the error itself.
func advised(dir string, err error) error {
	for _, plain := range []error{fs.ErrPermission, unix.EROFS, unix.ENOSPC, unix.EDQUOT, unix.EFBIG, unix.EMFILE, errSlow} {
		if errors.Is(err, plain) {
			return err
		}
	}
	return fmt.Errorf("its data are damaged: %w; move %s away, put a copy from a backup in its place, and say so with: converge state restored", err, dir)
}

// startTimeout is how long a member may take to answer: a start that reads a long log from a slow disk takes seconds.
const startTimeout = time.Minute

var errSlow = fmt.Errorf("it did not answer within %s", startTimeout)
