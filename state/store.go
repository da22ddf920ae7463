package state

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// A Store is the memory of one site. Its methods may be called at the same time.
//
// Methods that end in Op or whose result is a Guard do nothing by themselves: they build parts of a transaction that the
// holder of the lock commits with [Lock.Commit].
type Store struct {
	kv     KV
	prefix string
	codec  codec
}

// New returns the store of a site in a backend. The site is its name as validated by the schema: a lower-case label.
// The caller remains responsible for closing the backend.
func New(kv KV, site string) *Store {
	return &Store{kv: kv, prefix: "/converge/" + site + "/"}
}

// Sites lists the names of the sites in a backend: those with a document, one in the inbox, a record, a run, a hold, a node that
// may enrol, or a site agent. What else may lie there, such as the key of a site that was only planned once, makes no site.
func Sites(ctx context.Context, kv KV) ([]string, error) {
	names, err := kv.Below(ctx, "/converge/")
	if err != nil {
		return nil, err
	}
	var sites []string
	for _, name := range names {
		begun, err := New(kv, name).begun(ctx)
		if err != nil {
			return nil, err
		}
		if begun {
			sites = append(sites, name)
		}
	}
	return sites, nil
}

var ofSite = []string{"document", "inbox", "resource", "run", "hold", "freeze", "node", "keeper", "status"}

// begun reports whether the site is one. Nearly always one read decides it.
func (s *Store) begun(ctx context.Context) (bool, error) {
	for _, key := range []string{s.key("document/head"), s.key("inbox")} {
		if it, err := s.kv.Get(ctx, key); err != nil || it.Modified != 0 {
			return err == nil, err
		}
	}
	words, err := s.kv.Below(ctx, s.prefix)
	return slices.ContainsFunc(words, func(w string) bool { return slices.Contains(ofSite, w) }), err
}

// Path returns the place of the site in the backend, for messages: /converge/SITE.
func (s *Store) Path() string { return strings.TrimSuffix(s.prefix, "/") }

func (s *Store) key(parts ...string) string { return s.prefix + strings.Join(parts, "/") }

// JournalPrefix returns the prefix of the keys of a run's journal records.
func (s *Store) JournalPrefix(run string) string { return s.key("journal", run) + "/" }

// JournalHead returns the key that says how far a run's journal goes. It sorts after the records.
func (s *Store) JournalHead(run string) string { return s.JournalPrefix(run) + "head" }

// JournalKey returns the key of one journal record. Keys sort like their numbers.
func (s *Store) JournalKey(run string, seq int64) string {
	return fmt.Sprintf("%s%010d", s.JournalPrefix(run), seq)
}

// Get reads a key as returned by JournalKey and its like; see [KV.Get].
func (s *Store) Get(ctx context.Context, key string) (Item, error) { return s.kv.Get(ctx, key) }

// List reads all keys with a prefix as returned by JournalPrefix and its like; see [KV.List].
func (s *Store) List(ctx context.Context, prefix string) ([]Item, error) {
	return s.kv.List(ctx, prefix)
}

// Commit writes without the lock; see [KV.Commit]. It is for what needs no lock: a hold, a freeze, a release.
func (s *Store) Commit(ctx context.Context, guards []Guard, ops []Op) (int64, error) {
	return s.kv.Commit(ctx, guards, ops)
}

// version is the layout of the values in the store. It grows when an older program would misread a newer value.
const version = 1

var versionField = fmt.Appendf(nil, `{"v":%d,"sum":"`, version)

// sumSize is the length of a checksum as stored: half of a SHA-256 in hex would be 32; a quarter is plenty to detect
// damage by a disk.
const sumSize = 16

// encode returns v, which must encode to a JSON object with at least one field, as stored under a key: with its version
// and a checksum of the key and the rest in front. The checksum covers the key, so that a value under the wrong key is detected.
func encode(key string, v any) []byte {
	b, err := json.Marshal(v)
	if err != nil { // stored values consist of JSON values only
		panic(fmt.Sprintf("state: encode a %T: %v", v, err))
	}
	b = b[1:]
	out := make([]byte, 0, len(versionField)+sumSize+2+len(b))
	out = append(append(out, versionField...), checksum(key, b)...)
	return append(append(out, `",`...), b...)
}

// put writes a value under a key.
func (s *Store) put(key string, v any) Op { return Op{Key: key, Value: encode(key, v)} }

func checksum(key string, b []byte) string {
	h := sha256.New()
	_, _ = io.WriteString(h, key) // never fails
	_, _ = h.Write(b)             // begins with a quote, which no key contains, so that the boundary between the two is unambiguous
	return hex.EncodeToString(h.Sum(nil)[:sumSize/2])
}

// decode reads what encode wrote. The error names the key.
func decode(it Item, into any) error {
	if err := check(it); err != nil {
		return err
	}
	if err := json.Unmarshal(it.Value, into); err != nil {
		return &DamagedError{it.Key, err.Error()}
	}
	return nil
}

// A DamagedError reports that the value of a key is not what converge wrote there.
type DamagedError struct{ Key, Why string }

// Error implements error.
func (e *DamagedError) Error() string { return e.Key + " is corrupt: " + e.Why }

// check checks that a value is intact and of a version that this program knows.
func check(it Item) error {
	if rest, ok := bytes.CutPrefix(it.Value, versionField); ok && len(rest) > sumSize+2 {
		if checksum(it.Key, rest[sumSize+2:]) != string(rest[:sumSize]) || string(rest[sumSize:sumSize+2]) != `",` {
			return &DamagedError{it.Key, "its content does not match its checksum"}
		}
		return nil
	}
	var head struct {
		V int `json:"v"`
	}
	if err := json.Unmarshal(it.Value, &head); err != nil {
		return &DamagedError{it.Key, err.Error()}
	}
	if head.V > version {
		return fmt.Errorf("%s has layout %d, but this program supports up to %d: use a newer converge", it.Key, head.V, version)
	}
	return &DamagedError{it.Key, "it has no checksum"}
}

// read reads one stored value; it fails with ErrNotFound when there is none.
func read[T any](ctx context.Context, s *Store, key string) (T, Item, error) {
	var v T
	it, err := s.kv.Get(ctx, key)
	if err != nil {
		return v, it, fmt.Errorf("read %s: %w", key, err)
	}
	if it.Modified == 0 {
		return v, it, fmt.Errorf("%s: %w", key, ErrNotFound)
	}
	return v, it, decode(it, &v)
}

// list reads all stored values with a prefix, in the order of their keys.
func list[T any](ctx context.Context, s *Store, prefix string) ([]T, []Item, error) {
	items, err := s.kv.List(ctx, prefix)
	if err != nil {
		return nil, nil, fmt.Errorf("list %s: %w", prefix, err)
	}
	vs := make([]T, len(items))
	for i, it := range items {
		if err := decode(it, &vs[i]); err != nil {
			return nil, nil, err
		}
	}
	return vs, items, nil
}
