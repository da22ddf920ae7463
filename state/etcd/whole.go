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
	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
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
	file := filepath.Join(data, "member", dbName)
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return nil // etcd makes it anew from the log, or says that it cannot
	}
	applied, err := appliedEntry(file)
	if err != nil {
		return fmt.Errorf("read the data file: %w", err)
	}
	last, err := lastEntry(filepath.Join(data, "member", walName))
	if err != nil {
		return fmt.Errorf("read the write-ahead log: %w", err)
	}
	if applied > last {
		return fmt.Errorf("its write-ahead log ends with entry %d, and its data have entry %d: the end of the log is lost", last, applied)
	}
	return nil
}

// appliedEntry gives the number of the last entry of the log that is in the data file, all of which it has looked at.
func appliedEntry(name string) (applied uint64, err error) {
	// Whoever had the store last may have started another process at that moment, which holds all that it held until it is a
	// program of its own. On a busy machine that takes seconds.
	db, err := bolt.Open(name, 0o400, &bolt.Options{ReadOnly: true, Timeout: releaseTimeout})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	f, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	file, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, unix.Munmap(file)) }()
	err = db.View(func(tx *bolt.Tx) error {
		if err := check(tx, file); err != nil {
			return err
		}
		if keys := tx.Bucket([]byte("key")); keys != nil {
			if err := keys.ForEach(func(k, _ []byte) error { return revision(k) }); err != nil {
				return err
			}
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

// revision looks at a key of the data file as etcd will, in a goroutine of its own, where a panic ends the process.
func revision(key []byte) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("key %x is not a revision: %v", key, p)
		}
	}()
	mvcc.BytesToBucketKey(key)
	if len(key) > len(mvcc.NewRevBytes()) && !mvcc.IsTombstone(key) { // what was deleted would be there again
		return fmt.Errorf("key %x is not a revision: its mark is unknown", key)
	}
	return nil
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
	for _, plain := range []error{fs.ErrPermission, unix.EROFS, unix.ENOSPC, unix.EDQUOT, unix.EFBIG, unix.EMFILE, unix.ENFILE, unix.ENOMEM, errSlow} {
		if errors.Is(err, plain) {
			return err
		}
	}
	return fmt.Errorf("its data are damaged: %w; move %s away, put a copy from a backup in its place, and say so with: converge state restored", err, dir)
}

// releaseTimeout is how long the data may still be held by whoever had them last.
const releaseTimeout = 20 * time.Second

// startTimeout is how long a member may take to answer: a start that reads a long log from a slow disk takes seconds.
const startTimeout = time.Minute

// held tells whether a member did not start because another process has its data open.
func held(err error) bool {
	return errors.Is(err, berrors.ErrTimeout) || errors.Is(err, fileutil.ErrLocked)
}

var errSlow = fmt.Errorf("it did not answer within %s", startTimeout)
