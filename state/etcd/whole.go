package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
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

	"converge.dev/converge/state/etcd/pages"
)

// whole detects, before etcd starts, that the data are damaged, or that the write-ahead log ends before they do: something
// acknowledged was lost. Etcd would trust such a log; it would hang, or drop the next writes as already applied.
func whole(ctx context.Context, data string) error {
	file := filepath.Join(data, "member", dbName)
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return nil // etcd recreates it from the log, or reports that it cannot
	}
	applied, err := appliedEntry(ctx, file)
	if err != nil {
		return fmt.Errorf("read the data file: %w", err)
	}
	last, err := lastEntry(filepath.Join(data, "member", walName))
	if err != nil {
		return fmt.Errorf("read the write-ahead log: %w", err)
	}
	if applied > last {
		return fmt.Errorf("its write-ahead log ends at entry %d, but its data contains entry %d: the end of the log is lost", last, applied)
	}
	return nil
}

// appliedEntry returns the number of the last log entry in the data file, after another process has checked the whole file.
func appliedEntry(ctx context.Context, file string) (applied uint64, err error) {
	db, err := pages.Open(file) // opened here, where a failure is more than a text
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errSlow)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe") // even when a newer one is in its place
	cmd.Env = []string{pages.Variable + "=" + file}
	out, err := cmd.Output()
	var failed *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case errors.As(err, &failed) && failed.Exited():
		reason, _, _ := strings.Cut(string(failed.Stderr), "\n")
		return 0, errors.New(reason)
	case err != nil:
		return 0, fmt.Errorf("%w: %w", errUnchecked, err)
	}
	if _, err = fmt.Sscan(string(out), &applied); err != nil {
		return 0, err
	}
	return applied, db.View(revisions)
}

// revisions parses the keys of the data file as etcd will, which does so in a goroutine of its own, where a panic ends the process.
func revisions(tx *bolt.Tx) (err error) {
	var key []byte
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("key %x is not a revision: %v", key, p)
		}
	}()
	b := tx.Bucket([]byte("key"))
	if b == nil {
		return nil
	}
	c := b.Cursor()
	for key, _ = c.First(); key != nil; key, _ = c.Next() {
		mvcc.BytesToBucketKey(key)
		if len(key) > len(mvcc.NewRevBytes()) && !mvcc.IsTombstone(key) { // what was deleted would exist again
			return fmt.Errorf("key %x is not a revision: its mark is unknown", key)
		}
	}
	return nil
}

// lastEntry returns the number of the last complete entry of the log. A torn entry after it was never acknowledged.
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

// advised turns the error that keeps a member from starting into a *DamagedDataError, unless the error itself has another cause.
func advised(dir string, err error) error {
	for _, plain := range []error{fs.ErrPermission, unix.EROFS, unix.ENOSPC, unix.EDQUOT, unix.EFBIG, unix.EMFILE, unix.ENFILE, unix.ENOMEM, errSlow, errUnchecked} {
		if errors.Is(err, plain) {
			return err
		}
	}
	return &DamagedDataError{Dir: dir, Err: err}
}

// A DamagedDataError reports that the data of an embedded store cannot be used.
type DamagedDataError struct {
	Dir string // where they are
	Err error
}

func (e *DamagedDataError) Error() string {
	return fmt.Sprintf("its data is corrupt: %v; move %s away, and put a backup copy in its place", e.Err, e.Dir)
}

// Unwrap returns the cause.
func (e *DamagedDataError) Unwrap() error { return e.Err }

// startTimeout is how long a member may take to answer: a start that reads a long log from a slow disk takes seconds.
const startTimeout = time.Minute

// held reports whether a member did not start because another process has its data open.
func held(err error) bool {
	return errors.Is(err, berrors.ErrTimeout) || errors.Is(err, fileutil.ErrLocked)
}

var errUnchecked = errors.New("the check could not be run")

var errSlow = fmt.Errorf("it did not answer within %s", startTimeout)
