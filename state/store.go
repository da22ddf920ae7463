package state

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
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

// New derives the store of a site from a backend. The site is its name as validated by the schema: a lower-case label.
// Closing the backend remains with the caller.
func New(kv KV, site string) *Store {
	return &Store{kv: kv, prefix: "/converge/" + site + "/"}
}

// Sites lists the names of the sites in a backend.
func Sites(ctx context.Context, kv KV) ([]string, error) { return kv.Below(ctx, "/converge/") }

// Path is the place of the site in the backend, for messages: /converge/SITE.
func (s *Store) Path() string { return strings.TrimSuffix(s.prefix, "/") }

func (s *Store) key(parts ...string) string { return s.prefix + strings.Join(parts, "/") }

// JournalPrefix is the prefix of the keys of a run's journal records.
func (s *Store) JournalPrefix(run string) string { return s.key("journal", run) + "/" }

// JournalKey is the key of one journal record. Keys order as their numbers do.
func (s *Store) JournalKey(run string, seq int64) string {
	return fmt.Sprintf("%s%010d", s.JournalPrefix(run), seq)
}

// Get reads a key as given by JournalKey and its like; see [KV.Get].
func (s *Store) Get(ctx context.Context, key string) (Item, error) { return s.kv.Get(ctx, key) }

// List reads all keys with a prefix as given by JournalPrefix and its like; see [KV.List].
func (s *Store) List(ctx context.Context, prefix string) ([]Item, error) {
	return s.kv.List(ctx, prefix)
}

// Commit writes without the lock; see [KV.Commit]. It is for what needs no lock: a hold, a freeze, a release.
func (s *Store) Commit(ctx context.Context, guards []Guard, ops []Op) (int64, error) {
	return s.kv.Commit(ctx, guards, ops)
}

// version is the layout of the values in the store. It grows when an older program would misread a newer value.
const version = 1

var versionField = fmt.Appendf(nil, `{"v":%d,`, version)

// encode gives v, which must become a JSON object with at least one field, as stored: with its version in front.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil { // what is stored consists of JSON values only
		panic(fmt.Sprintf("state: encode a %T: %v", v, err))
	}
	return append(bytes.Clone(versionField), b[1:]...)
}

// decode reads what encode wrote. The error names the key.
func decode(it Item, into any) error {
	if err := checkVersion(it); err != nil {
		return err
	}
	if err := json.Unmarshal(it.Value, into); err != nil {
		return fmt.Errorf("%s is damaged: %w", it.Key, err)
	}
	return nil
}

func checkVersion(it Item) error {
	if bytes.HasPrefix(it.Value, versionField) {
		return nil
	}
	var head struct {
		V int `json:"v"`
	}
	if err := json.Unmarshal(it.Value, &head); err != nil {
		return fmt.Errorf("%s is damaged: %w", it.Key, err)
	}
	if head.V < 1 || head.V > version {
		return fmt.Errorf("%s has the layout %d, this program knows up to %d: use a newer converge", it.Key, head.V, version)
	}
	return nil
}

// read gets one stored value; it fails with ErrNotFound when there is none.
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

// list gets all stored values with a prefix, in the order of their keys.
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
