package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sync/errgroup"

	"converge.dev/converge/schema"
)

// Records reads all recorded resources, in the order of their refs.
func (s *Store) Records(ctx context.Context) ([]Record, error) {
	return s.records(ctx, s.key("resource")+"/")
}

// RecordsOf reads the recorded resources of one kind in a scope, in the order of their names.
func (s *Store) RecordsOf(ctx context.Context, scope, kind string) ([]Record, error) {
	return s.records(ctx, s.key("resource", scope, kind)+"/")
}

func (s *Store) records(ctx context.Context, prefix string) ([]Record, error) {
	items, err := s.kv.List(ctx, prefix)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", prefix, err)
	}
	// Decoding costs more than reading, and every plan begins with it.
	records := make([]Record, len(items))
	const batch = 256
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for from := 0; from < len(items); from += batch {
		g.Go(func() error {
			r := newRecordReader()
			for i := from; i < min(from+batch, len(items)); i++ {
				if err := r.read(items[i], &records[i]); err != nil {
					return err
				}
				if items[i].Key != s.recordKey(records[i].Ref) {
					return &DamagedError{items[i].Key, "it contains the record of " + records[i].Ref.String()}
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return inOrder(records), nil
}

// inOrder returns records in the order of their refs, in which keys are not: the site comes before its nodes. They are too large to
// be moved as often as sorting moves what it sorts.
func inOrder(records []Record) []Record {
	if slices.IsSortedFunc(records, ByRef) {
		return records
	}
	order := make([]*Record, len(records))
	for i := range records {
		order[i] = &records[i]
	}
	slices.SortFunc(order, func(a, b *Record) int { return a.Ref.Compare(b.Ref) })
	sorted := make([]Record, len(records))
	for i, r := range order {
		sorted[i] = *r
	}
	return sorted
}

// Record reads one recorded resource; ErrNotFound when it is not recorded.
func (s *Store) Record(ctx context.Context, ref schema.Ref) (Record, error) {
	var r Record
	key := s.recordKey(ref)
	it, err := s.kv.Get(ctx, key)
	if err != nil {
		return r, fmt.Errorf("read %s: %w", key, err)
	}
	if it.Modified == 0 {
		return r, fmt.Errorf("%s: %w", key, ErrNotFound)
	}
	if err := newRecordReader().read(it, &r); err != nil {
		return Record{}, err
	}
	if r.Ref != ref {
		return Record{}, &DamagedError{key, "it contains the record of " + r.Ref.String()}
	}
	return r, nil
}

// RecordOp writes a record, in place of any other of its ref.
func (s *Store) RecordOp(r Record) Op { return s.put(s.recordKey(r.Ref), r) }

// ForgetOp removes the record of a resource.
func (s *Store) ForgetOp(ref schema.Ref) Op { return Op{Key: s.recordKey(ref), Delete: true} }

func (s *Store) recordKey(ref schema.Ref) string { return s.key("resource", ref.String()) }

// A recordReader decodes records several times faster than package encoding/json.
type recordReader struct {
	options json.Options
	decoder *jsontext.Decoder
	source  *bytes.Reader
}

func newRecordReader() *recordReader {
	r := &recordReader{source: bytes.NewReader(nil)}
	r.decoder = jsontext.NewDecoder(r.source)
	objects := schema.NewObjectReader() // all records of a kind share their names
	r.options = json.WithUnmarshalers(json.UnmarshalFromFunc(func(d *jsontext.Decoder, o *schema.Object) (err error) {
		*o, err = objects.Read(d)
		return err
	}))
	return r
}

func (r *recordReader) read(it Item, into *Record) error {
	if err := check(it); err != nil {
		return err
	}
	r.source.Reset(it.Value)
	r.decoder.Reset(r.source)
	if err := json.UnmarshalDecode(r.decoder, into, r.options); err != nil {
		return &DamagedError{it.Key, err.Error()}
	}
	if _, err := r.decoder.ReadToken(); !errors.Is(err, io.EOF) {
		return &DamagedError{it.Key, "extra data after the record"}
	}
	return nil
}
