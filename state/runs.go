package state

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// NewRunID names a run that starts at t, for example 20261120-121537.042-9f3a01. Names sort by time, which is wrong
// where a clock was set.
func NewRunID(t time.Time) string {
	var b [3]byte
	_, _ = rand.Read(b[:]) // never fails
	return t.UTC().Format("20060102-150405.000") + "-" + hex.EncodeToString(b[:])
}

// PutRunOp writes a run, in place of its stored state.
func (s *Store) PutRunOp(r Run) Op { return s.put(s.key("run", r.ID), r) }

// Run reads one run; ErrNotFound when there is none of that name.
func (s *Store) Run(ctx context.Context, id string) (Run, error) {
	r, _, err := read[Run](ctx, s, s.key("run", id))
	return r, err
}

// Runs reads all runs, newest first: in the order in which they were stored, whatever the clocks of their processes said.
func (s *Store) Runs(ctx context.Context) ([]Run, error) {
	rs, items, err := list[Run](ctx, s, s.key("run")+"/")
	rs = asStored(rs, items)
	slices.Reverse(rs)
	return rs, err
}

// asStored returns values, as they were listed with their items, in the order in which they were created; those of one transaction in the
// order of their keys.
func asStored[T any](vs []T, items []Item) []T {
	at := make([]int, len(vs))
	for i := range at {
		at[i] = i
	}
	slices.SortStableFunc(at, func(a, b int) int { return cmp.Compare(items[a].Created, items[b].Created) })
	sorted := make([]T, len(vs))
	for i, j := range at {
		sorted[i] = vs[j]
	}
	return sorted
}

// DropRunOps remove a run and its journal. Its plan goes with [Store.DropBlobs].
func (s *Store) DropRunOps(id string) []Op {
	return []Op{{Key: s.key("run", id), Delete: true}, {Key: s.JournalPrefix(id), Delete: true, Prefix: true}}
}

type spent struct {
	Run string `json:"run"`
}

// SpentOp records that a plan was applied by a run.
func (s *Store) SpentOp(digest, run string) Op {
	return s.put(s.key("spent", digest), spent{run})
}

// UnspentGuard holds while a plan has not been applied.
func (s *Store) UnspentGuard(digest string) Guard { return Guard{Key: s.key("spent", digest)} }

// Spent returns the run that applied a plan; ok is false when none did.
func (s *Store) Spent(ctx context.Context, digest string) (run string, ok bool, err error) {
	v, _, err := read[spent](ctx, s, s.key("spent", digest))
	if errors.Is(err, ErrNotFound) {
		return "", false, nil
	}
	return v.Run, err == nil, err
}

// Publish writes a JSON body for the cloud to read: key is status, or begins with drift/. With is written in the same transaction.
func (s *Store) Publish(ctx context.Context, key string, body []byte, with ...Op) error {
	if key != "status" && !strings.HasPrefix(key, "drift/") {
		return fmt.Errorf("publish %s: %w: only status and drift/… can be published", key, ErrInvalid)
	}
	if !json.Valid(body) {
		return fmt.Errorf("publish %s: %w: the body is not JSON", key, ErrInvalid)
	}
	if _, err := s.kv.Commit(ctx, nil, append(with, Op{Key: s.key(key), Value: body})); err != nil {
		return fmt.Errorf("publish %s: %w", key, err)
	}
	return nil
}

// Published reads what Publish wrote; ErrNotFound when nothing was.
func (s *Store) Published(ctx context.Context, key string) ([]byte, error) {
	it, err := s.kv.Get(ctx, s.key(key))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	if it.Modified == 0 {
		return nil, fmt.Errorf("%s: %w", key, ErrNotFound)
	}
	return it.Value, nil
}
