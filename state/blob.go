package state

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
)

// Bounds of the size of a chunk's plain text.
const (
	minChunk = 32 << 10
	maxChunk = 512 << 10
)

// PutBlob stores a body of any size and returns the digests by which [Store.Blob] finds it. An existing chunk is
// written again, which is harmless because its name depends on its content.
func (s *Store) PutBlob(ctx context.Context, body []byte) ([]string, error) {
	digests, err := s.putChunks(ctx, s.key("blob")+"/", body, nil)
	if err != nil {
		return nil, fmt.Errorf("store a blob: %w", err)
	}
	return digests, nil
}

// Blob reads the body that PutBlob stored. It fails with ErrNotFound when a part is missing, and names the key of a part
// whose bytes do not match its digest.
func (s *Store) Blob(ctx context.Context, digests []string) ([]byte, error) {
	return s.chunks(ctx, s.key("blob")+"/", digests)
}

// DropBlobs removes the parts of bodies that are not in keep. The lock guarantees that no process is storing one.
func (s *Store) DropBlobs(ctx context.Context, lock *Lock, keep map[string]bool) error {
	digests, err := s.kv.Below(ctx, s.key("blob")+"/")
	if err != nil {
		return fmt.Errorf("list the blobs: %w", err)
	}
	var ops []Op
	for i, d := range digests {
		if !keep[d] {
			ops = append(ops, Op{Key: s.key("blob", d), Delete: true})
		}
		if len(ops) == MaxOps || len(ops) > 0 && i == len(digests)-1 {
			if _, err := lock.Commit(ctx, nil, ops); err != nil {
				return fmt.Errorf("remove blobs: %w", err)
			}
			ops = nil
		}
	}
	return nil
}

// putChunks cuts a body, stores the chunks that are not in have, and returns the digests of all.
func (s *Store) putChunks(ctx context.Context, prefix string, body []byte, have []string) ([]string, error) {
	known := make(map[string]bool, len(have))
	for _, d := range have {
		known[d] = true
	}
	var (
		digests []string
		ops     []Op
		size    int
	)
	flush := func() error {
		if len(ops) == 0 {
			return nil
		}
		_, err := s.kv.Commit(ctx, nil, ops)
		if errors.Is(err, ErrUnknown) { // the same bytes under the same name: writing them again is harmless
			_, err = s.kv.Commit(ctx, nil, ops)
		}
		ops, size = nil, 0
		return err
	}
	for len(body) > 0 {
		n := cut(body)
		plain := body[:n]
		body = body[n:]
		sum := sha256.Sum256(plain)
		digest := hex.EncodeToString(sum[:])
		digests = append(digests, digest)
		if known[digest] {
			continue
		}
		known[digest] = true
		packed, err := s.codec.pack(plain)
		if err != nil {
			return nil, err
		}
		op := Op{Key: prefix + digest, Value: packed}
		if len(ops) == MaxOps || size+len(op.Key)+len(packed) > MaxBytes {
			if err := flush(); err != nil {
				return nil, err
			}
		}
		ops = append(ops, op)
		size += len(op.Key) + len(packed)
	}
	return digests, flush()
}

// chunks reads what putChunks stored.
func (s *Store) chunks(ctx context.Context, prefix string, digests []string) ([]byte, error) {
	parts := make([][]byte, len(digests))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i, digest := range digests {
		g.Go(func() error {
			key := prefix + digest
			it, err := s.kv.Get(ctx, key)
			if err != nil {
				return fmt.Errorf("read %s: %w", key, err)
			}
			if it.Modified == 0 {
				return fmt.Errorf("%s: %w", key, ErrNotFound)
			}
			parts[i], err = s.chunk(key, digest, it.Value)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return bytes.Join(parts, nil), nil
}

// chunk reads one chunk as it is stored.
func (s *Store) chunk(key, digest string, packed []byte) ([]byte, error) {
	plain, err := s.codec.unpack(packed)
	if err != nil {
		return nil, &DamagedError{key, err.Error()}
	}
	if sum := sha256.Sum256(plain); hex.EncodeToString(sum[:]) != digest {
		return nil, &DamagedError{key, "its content does not match its name"}
	}
	return plain, nil
}

// cut returns where the first chunk of body ends. The position depends only on the 64 bytes before it, so that an insertion
// moves the cuts around it and no others: two revisions of a document share all chunks but those that were edited.
func cut(body []byte) int {
	if len(body) <= minChunk {
		return len(body)
	}
	const mask = uint64(1<<17-1) << (64 - 17) // matches once in 128 KiB on average
	var h uint64
	for i := minChunk - 64; i < min(len(body), maxChunk); i++ {
		h = h<<1 + gear[body[i]]
		if i >= minChunk && h&mask == 0 {
			return i + 1
		}
	}
	return min(len(body), maxChunk)
}

// gear maps bytes to pseudo-random numbers. The numbers must never change: they decide where stored bodies are cut.
var gear = func() (t [256]uint64) {
	x := uint64(0)
	for i := range t { // splitmix64
		x += 0x9e3779b97f4a7c15
		z := x
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		t[i] = z ^ z>>31
	}
	return t
}()

// A codec packs chunks. Its parts are created when first needed: most commands never need them.
type codec struct {
	once sync.Once
	enc  *zstd.Encoder
	dec  *zstd.Decoder
	err  error
}

func (c *codec) open() error {
	c.once.Do(func() {
		var err error
		if c.enc, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(maxChunk)); err != nil {
			c.err = err
			return
		}
		// A chunk that unpacks to more than we ever packed is damaged or malicious.
		c.dec, c.err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(2), zstd.WithDecoderMaxMemory(maxChunk))
	})
	return c.err
}

func (c *codec) pack(plain []byte) ([]byte, error) {
	if err := c.open(); err != nil {
		return nil, err
	}
	return c.enc.EncodeAll(plain, nil), nil
}

func (c *codec) unpack(packed []byte) ([]byte, error) {
	if err := c.open(); err != nil {
		return nil, err
	}
	return c.dec.DecodeAll(packed, nil)
}
