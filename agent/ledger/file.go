package ledger

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"converge.dev/converge/internal/files"
)

// The buckets of the file. Entries and results have the position as their key, so that they are in order.
var (
	stateBucket, stateKey = []byte("ledger"), []byte("state")
	entryBucket           = []byte("entries")
	resultBucket          = []byte("results")
)

// version is the first byte of every value; a checksum follows, then the contents.
const version = 1

// patience is how long the previous owner may still hold the file: a process that it has just forked has it open until it executes
// its own program.
const patience = time.Second

// A state is what the file holds besides entries and results.
type state struct {
	Epoch  int64     `json:"epoch"`
	Floor  Position  `json:"floor"`
	Headed bool      `json:"headed"` // a head has set the floor
	Time   time.Time `json:"time"`   // of the newest head

	// All entries together, so that one that has vanished is missed, whatever has made it vanish.
	Count int `json:"count"`
	Sum   sum `json:"sum"` // of their checksums, by exclusive or
}

func (s *state) add(x sum) {
	for i := range s.Sum {
		s.Sum[i] ^= x[i]
	}
}

func (s *state) remove(e *entry) {
	s.Count--
	s.add(e.sum)
}

// A record is an entry in the file. It is started when it has no Result.
type record struct {
	ID      string    `json:"id"`
	Digest  string    `json:"digest"`
	Key     string    `json:"key,omitempty"`
	Action  string    `json:"action"`
	Expires time.Time `json:"expires"`
	Result  []byte    `json:"result,omitempty"` // checksum of the result
}

func (p Position) key() []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(p.Epoch)), uint64(p.Seq))
}

// checksum covers where a value is, too.
func checksum(bucket, key []byte, version byte, data []byte) (s sum) {
	h := sha256.New()
	for _, b := range [][]byte{bucket, key, {version}} {
		_, _ = h.Write([]byte{byte(len(b))})
		_, _ = h.Write(b)
	}
	_, _ = h.Write(data)
	h.Sum(s[:0])
	return s
}

func seal(bucket, key, data []byte) ([]byte, sum) {
	s := checksum(bucket, key, version, data)
	return slices.Concat([]byte{version}, s[:], data), s
}

// unseal is the inverse of seal. Data are valid as long as value is.
func unseal(bucket, key, value []byte) (data []byte, s sum, err error) {
	if len(value) < 1+len(s) {
		return nil, s, errors.New("it is missing or cut off")
	}
	s, data = sum(value[1:]), value[1+len(s):]
	switch {
	case s != checksum(bucket, key, value[0], data):
		return nil, s, errors.New("its checksum does not match")
	case value[0] > version:
		return nil, s, errNewer
	case value[0] != version:
		return nil, s, fmt.Errorf("its version is %d", value[0])
	}
	return data, s, nil
}

var errNewer = errors.New("its version is newer")

func (l *Ledger) damaged(what string, err error) error {
	return &DamagedError{Path: l.path, What: what, Newer: errors.Is(err, errNewer), Err: err}
}

// Open opens the ledger at path, and creates a new one, accessible only to its owner, when there is no file; the directory must
// exist. It fails with files.ErrInUse when another process has it open, and with a [*DamagedError] when it cannot be read.
func Open(path string, o Options) (*Ledger, error) {
	l := &Ledger{path: path, now: o.Now, keep: cmp.Or(o.Keep, keepDefault), gone: map[Position]bool{}}
	if l.now == nil {
		l.now = time.Now
	}
	if l.keep < 0 {
		return nil, fmt.Errorf("open the ledger %s: Keep is %d, but must not be negative", path, l.keep)
	}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		if err := create(path); err != nil {
			return nil, fmt.Errorf("create the ledger %s: %w", path, err)
		}
	}
	var err error
	l.db, err = bolt.Open(path, 0, options(func(string, int, fs.FileMode) (*os.File, error) { return l.open() }))
	if err == nil {
		if err = l.db.View(l.load); err != nil {
			err = errors.Join(err, l.db.Close())
		}
	}
	var damaged *DamagedError
	switch {
	case err == nil:
		return l, nil
	case errors.As(err, &damaged):
		return nil, err
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum), errors.Is(err, berrors.ErrVersionMismatch):
		return nil, l.damaged("the file", err)
	}
	return nil, fmt.Errorf("open the ledger %s: %w", path, err)
}

// options are those of the file. Its list of free pages is made anew whenever it is opened: it is short, and one that is damaged
// would lead to pages in use being overwritten.
func options(open func(string, int, fs.FileMode) (*os.File, error)) *bolt.Options {
	return &bolt.Options{Timeout: patience, PageSize: pageSize, NoFreelistSync: true, FreelistType: bolt.FreelistMapType, OpenFile: open}
}

// create makes an empty ledger. It has its name only when it is complete, so that a file that is empty or cut off is never a new one.
func create(path string) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(tmp.Name())) }()
	if err := tmp.Close(); err != nil {
		return err
	}
	db, err := bolt.Open(tmp.Name(), 0o600, options(nil))
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		for _, name := range [][]byte{stateBucket, entryBucket, resultBucket} {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		return state{}.put(tx)
	})
	if err = errors.Join(err, db.Close()); err != nil {
		return err
	}
	if err := os.Link(tmp.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) { // another process may have been faster
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// open opens and locks the file and checks its pages, because bbolt trusts them.
func (l *Ledger) open() (_ *os.File, err error) {
	f, err := os.OpenFile(l.path, os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w, but %s", files.ErrNotRegular, files.Kind(info.Mode()))
	}
	if err := files.Private(l.path, info); err != nil {
		return nil, err
	}
	for begin := time.Now(); ; time.Sleep(patience / 20) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, err
		}
		if time.Since(begin) > patience {
			return nil, fmt.Errorf("%w (lock on %s)", files.ErrInUse, l.path)
		}
	}
	var broken *pageError
	if err := checkPages(f); errors.As(err, &broken) {
		return nil, l.damaged(broken.where, broken.err)
	} else if err != nil {
		return nil, err
	}
	return f, nil
}

// load reads all but the results.
func (l *Ledger) load(tx *bolt.Tx) error {
	for _, name := range [][]byte{stateBucket, entryBucket, resultBucket} {
		if tx.Bucket(name) == nil {
			return l.damaged("bucket "+string(name), errors.New("it is missing"))
		}
	}
	data, _, err := unseal(stateBucket, stateKey, tx.Bucket(stateBucket).Get(stateKey))
	if err == nil {
		err = json.Unmarshal(data, &l.state, json.RejectUnknownMembers(true))
	}
	if err != nil {
		return l.damaged("the state", err)
	}
	var found state
	err = tx.Bucket(entryBucket).ForEach(func(key, value []byte) error {
		e, err := decode(key, value)
		if err != nil {
			return l.damaged(fmt.Sprintf("entry %x", key), err)
		}
		found.Count++
		found.add(e.sum)
		l.order = append(l.order, e)
		return nil
	})
	if err != nil {
		return err
	}
	if found.Count != l.state.Count || found.Sum != l.state.Sum {
		return l.damaged("the list of entries", fmt.Errorf("%d are there, which are not the %d that were written", found.Count, l.state.Count))
	}
	return nil
}

// decode returns an entry of an earlier process.
func decode(key, value []byte) (*entry, error) {
	data, s, err := unseal(entryBucket, key, value)
	if err != nil {
		return nil, err
	}
	if len(key) != 16 {
		return nil, errors.New("its key is not a position")
	}
	var r record
	if err := json.Unmarshal(data, &r, json.RejectUnknownMembers(true)); err != nil {
		return nil, err
	}
	e := &entry{sum: s, Entry: Entry{
		Epoch: int64(binary.BigEndian.Uint64(key)), Seq: int64(binary.BigEndian.Uint64(key[8:])),
		ID: r.ID, Digest: r.Digest, Key: r.Key, Action: r.Action, Expires: r.Expires,
	}}
	if r.Result != nil {
		if len(r.Result) != len(e.digest) {
			return nil, errors.New("the checksum of its result is not one")
		}
		e.finished, e.digest = true, sum(r.Result)
	}
	return e, nil
}

// result reads the result of a finished entry.
func (l *Ledger) result(e *entry) (result []byte, err error) {
	err = l.db.View(func(tx *bolt.Tx) error {
		key := e.position().key()
		data, s, err := unseal(resultBucket, key, tx.Bucket(resultBucket).Get(key))
		if err == nil && s != e.digest {
			err = errors.New("it is another one")
		}
		if err != nil {
			return l.damaged("the result of task "+e.ID, err)
		}
		result = slices.Clone(data)
		return nil
	})
	return result, err
}

func (s state) put(tx *bolt.Tx) error {
	data, err := json.Marshal(&s)
	if err != nil {
		return err
	}
	value, _ := seal(stateBucket, stateKey, data)
	return tx.Bucket(stateBucket).Put(stateKey, value)
}

// A write is an entry as it will be in the file, with its result when it is finished.
type write struct {
	e             *entry
	record        []byte
	sum           sum
	result        []byte
	resultSum     sum
	resultPresent bool
}

func newWrite(e *entry) (write, error) {
	w := write{e: e, resultPresent: e.try.over}
	key := e.position().key()
	r := record{ID: e.ID, Digest: e.Digest, Key: e.Key, Action: e.Action, Expires: e.Expires}
	if w.resultPresent {
		w.result, w.resultSum = seal(resultBucket, key, e.try.result)
		r.Result = w.resultSum[:]
	}
	data, err := json.Marshal(&r)
	w.record, w.sum = seal(entryBucket, key, data)
	return w, err
}

// flush tries again to write results that could not be written. Its failure changes nothing: they stay in memory.
func (l *Ledger) flush() {
	if len(l.unsaved) > 0 {
		_ = l.commit(l.state, nil)
	}
}

// commit makes next the state, writes the entry that begins when there is one, and all that earlier commits could not write.
//
// When it fails, the file may hold the change or not; bbolt cannot tell. So all that a later commit writes follows from memory alone
// and makes the file whole again, whichever it is. That holds after a failed sync, too, when the kernel drops what it could not write:
// pages in use were synced by an earlier commit, or are written by this one.
func (l *Ledger) commit(next state, began *entry) error {
	if l.db == nil {
		return errClosed
	}
	var writes []write
	for _, e := range slices.Concat(l.unsaved, []*entry{began}) {
		if e == nil {
			continue
		}
		w, err := newWrite(e)
		if err != nil {
			return err
		}
		if e == began {
			next.Count++
		} else {
			next.add(e.sum)
		}
		next.add(w.sum)
		writes = append(writes, w)
	}
	err := l.db.Update(func(tx *bolt.Tx) error {
		entries, results := tx.Bucket(entryBucket), tx.Bucket(resultBucket)
		entries.FillPercent, results.FillPercent = 0.9, 0.9 // most keys come in order
		for at := range l.gone {
			if err := errors.Join(entries.Delete(at.key()), results.Delete(at.key())); err != nil {
				return err
			}
		}
		for _, w := range writes {
			key := w.e.position().key()
			if err := entries.Put(key, w.record); err != nil {
				return err
			}
			if w.resultPresent {
				if err := results.Put(key, w.result); err != nil {
					return err
				}
			}
		}
		return next.put(tx)
	})
	if err == nil && l.after != nil {
		err = l.after()
	}
	if err != nil {
		if began != nil {
			l.gone[began.position()] = true
		}
		return fmt.Errorf("write the ledger %s: %w", l.path, err)
	}
	for _, w := range writes {
		w.e.sum = w.sum
		if w.resultPresent {
			w.e.finished, w.e.digest, w.e.try = true, w.resultSum, nil
		}
	}
	l.state, l.unsaved = next, nil
	clear(l.gone)
	return nil
}
