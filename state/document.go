package state

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"time"

	"converge.dev/converge/schema"
	"converge.dev/converge/schema/signed"
)

// AnyRevision lets [Store.PutDocument] overwrite whatever is there.
const AnyRevision = -1

// ErrLastSerial reports that the document already has the largest serial.
var ErrLastSerial = errors.New("the document has no serials left")

// keepRevisions is how many revisions of the document are kept at least. A tenth more may accumulate before the oldest are
// removed, so that not every write pays for it.
const keepRevisions = 100

// A ConflictError reports that the document was not written because it is not, or no longer, as the writer assumed.
// It wraps ErrGuard.
type ConflictError struct {
	Head   Head // the newest revision; the zero Head when there is none
	Wanted string
}

// Error implements error.
func (e *ConflictError) Error() string {
	if e.Head.Serial == 0 {
		return "the site has no document yet: " + e.Wanted
	}
	return fmt.Sprintf("the document is at serial %d (revision %d, written %s by %s): %s",
		e.Head.Serial, e.Head.Revision, e.Head.At.UTC().Format(time.DateTime), e.Head.By, e.Wanted)
}

// Unwrap returns ErrGuard.
func (e *ConflictError) Unwrap() error { return ErrGuard }

// PutDocument makes body the newest revision of the site's document and returns its head. Digest is the hex SHA-256 of
// body. A serial of 0 stands for the next one; any other must be above that of the newest revision, and at most
// [schema.MaxSerial]. IfRevision is the [Head.Revision] that the writer has seen, 0 for "there is none", [AnyRevision]
// for any; if it does not match, PutDocument fails with a *ConflictError. A body that is already the newest revision
// changes nothing and returns that.
func (s *Store) PutDocument(ctx context.Context, body []byte, digest string, serial int64, by string, ifRevision int64) (Head, error) {
	return s.PutSigned(ctx, body, digest, nil, serial, by, ifRevision)
}

// PutSigned is PutDocument for a document with a signature, which is stored beside it and is not checked here. The newest
// revision, put again with another signature, keeps its serial and receives that signature; put again without one, it keeps its
// own.
func (s *Store) PutSigned(ctx context.Context, body []byte, digest string, sig *signed.Signature, serial int64, by string, ifRevision int64) (Head, error) {
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != digest {
		return Head{}, fmt.Errorf("put the document: %w: the digest does not match the content", ErrInvalid)
	}
	var err error
	for range 10 { // each retry means that another writer was faster
		var head Head
		head, err = s.putDocument(ctx, body, digest, sig, serial, by, ifRevision)
		if err == nil {
			_ = s.trim(ctx, head) // the document is written; the next writer removes what is left
			return head, nil
		}
		var conflict *ConflictError
		if errors.As(err, &conflict) || !errors.Is(err, ErrGuard) && !errors.Is(err, ErrUnknown) {
			break
		}
	}
	return Head{}, fmt.Errorf("put the document: %w", err)
}

// putDocument makes one try. It fails with ErrGuard when the store changed between its reads and its write.
func (s *Store) putDocument(ctx context.Context, body []byte, digest string, sig *signed.Signature, serial int64, by string, ifRevision int64) (Head, error) {
	head, err := s.Head(ctx)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return Head{}, err
	}
	swept, err := s.kv.Get(ctx, s.key("document/swept"))
	if err != nil {
		return Head{}, err
	}
	switch {
	case head.Serial > 0 && head.Digest == digest && (sig == nil || reflect.DeepEqual(sig, head.Signature)):
		return head, nil
	case ifRevision != AnyRevision && ifRevision != head.Revision:
		return Head{}, &ConflictError{head, fmt.Sprintf("expected revision %d", ifRevision)}
	}
	if serial, err = head.next(digest, serial); err != nil {
		return Head{}, err
	}
	chunks, err := s.putChunks(ctx, s.key("document/chunk")+"/", body, head.Chunks)
	if err != nil {
		return Head{}, err
	}
	next := Head{Serial: serial, Digest: digest, Size: len(body), Chunks: chunks, By: by, At: time.Now().UTC(), Signature: sig}
	next.Revision, err = s.kv.Commit(ctx,
		[]Guard{
			{Key: s.key("document/head"), Revision: head.Revision},
			{Key: s.key("document/swept"), Revision: swept.Modified},
		},
		[]Op{
			s.put(s.key("document/head"), next),
			s.put(s.logKey(serial), next),
		})
	return next, err
}

// next returns the serial of a document that is put on top of the head: its own, the head's when it is the same document, or
// the next one for 0.
func (h Head) next(digest string, serial int64) (int64, error) {
	switch {
	case h.Serial > 0 && h.Digest == digest:
		return h.Serial, nil
	case h.Serial >= schema.MaxSerial:
		return 0, fmt.Errorf("%w: the newest revision has %d, the largest possible, so none can follow it", ErrLastSerial, h.Serial)
	case serial > schema.MaxSerial:
		return 0, fmt.Errorf("%w: serial %d is above %d, the largest possible", ErrInvalid, serial, int64(schema.MaxSerial))
	case serial == 0:
		return h.Serial + 1, nil
	case serial <= h.Serial:
		return 0, &ConflictError{h, fmt.Sprintf("serial %d is not higher", serial)}
	}
	return serial, nil
}

// NextSerial returns the serial that a document would have if it were put now, and fails as [Store.PutDocument] would
// because of its serial. It writes nothing.
func (s *Store) NextSerial(ctx context.Context, digest string, serial int64) (int64, error) {
	head, err := s.Head(ctx)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return 0, err
	}
	return head.next(digest, serial)
}

func (s *Store) logKey(serial int64) string {
	return s.key("document/log", fmt.Sprintf("%019d", serial))
}

// trim removes the oldest revisions and the chunks that no kept revision refers to. It is guarded by the head: when
// another writer is faster, the next write trims. A chunk may only be removed together with a rise of document/swept,
// because a writer may be relying on it at that moment.
func (s *Store) trim(ctx context.Context, head Head) error {
	log, items, err := list[Head](ctx, s, s.key("document/log")+"/")
	if err != nil || len(log) <= keepRevisions+keepRevisions/10 {
		return err
	}
	cutoff := len(log) - keepRevisions
	keep := map[string]bool{}
	for _, h := range log[cutoff:] {
		for _, d := range h.Chunks {
			keep[s.key("document/chunk", d)] = true
		}
	}
	var remove []Op
	for _, it := range items[:cutoff] { // before the chunks, so that no listed revision ever lacks one
		remove = append(remove, Op{Key: it.Key, Delete: true})
	}
	chunks, err := s.kv.List(ctx, s.key("document/chunk")+"/")
	if err != nil {
		return err
	}
	for _, it := range chunks {
		if !keep[it.Key] {
			remove = append(remove, Op{Key: it.Key, Delete: true})
		}
	}
	swept := s.put(s.key("document/swept"), map[string]int64{"serial": head.Serial})
	for len(remove) > 0 {
		n := min(len(remove), MaxOps-1)
		_, err := s.kv.Commit(ctx,
			[]Guard{{Key: s.key("document/head"), Revision: head.Revision}},
			append([]Op{swept}, remove[:n]...))
		if errors.Is(err, ErrGuard) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("remove old revisions of the document: %w", err)
		}
		remove = remove[n:]
	}
	return nil
}

// Head reads the head of the newest revision of the document; ErrNotFound when the site has none.
func (s *Store) Head(ctx context.Context) (Head, error) {
	h, it, err := read[Head](ctx, s, s.key("document/head"))
	h.Revision = it.Modified
	return h, err
}

// Document reads one revision of the document, the newest for serial 0, and verifies that its bytes match its
// digest. It fails with ErrNotFound when there is no such revision, or no longer.
func (s *Store) Document(ctx context.Context, serial int64) (Head, []byte, error) {
	key := s.key("document/head")
	if serial != 0 {
		key = s.logKey(serial)
	}
	h, it, err := read[Head](ctx, s, key)
	if err != nil {
		return h, nil, err
	}
	h.Revision = it.Modified
	body, err := s.chunks(ctx, s.key("document/chunk")+"/", h.Chunks)
	if err != nil {
		return h, nil, fmt.Errorf("read the document with serial %d: %w", h.Serial, err)
	}
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != h.Digest {
		return h, nil, &DamagedError{key, "its chunks do not match its digest"}
	}
	return h, body, nil
}

// History reads the heads of the kept revisions of the document, newest first.
func (s *Store) History(ctx context.Context) ([]Head, error) {
	log, items, err := list[Head](ctx, s, s.key("document/log")+"/")
	if err != nil {
		return nil, err
	}
	heads := make([]Head, len(log))
	for i := range log {
		log[i].Revision = items[i].Modified
		heads[len(log)-1-i] = log[i]
	}
	return heads, nil
}
