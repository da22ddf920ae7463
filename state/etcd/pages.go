package etcd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// A tree is the data file of a member as bbolt lays it out: pages of a B+ tree, of which a bucket is a branch of its own.
//
// It is looked at here and not by bbolt, because bbolt does so when it opens the file, in a goroutine of its own, where a
// damaged page ends the process instead of being an error. What is asked for is what bbolt asks for: every page that is
// referred to is in the file, once, of the right type, and the keys are in order.
//
// Layout (go.etcd.io/bbolt/internal/common, the same since version 1): a page begins with its number (8 bytes), its type
// (2), how many elements it has (2), and how many pages more it takes (4). An element of a branch is the offset of its key
// from the element (4), the key's size (4), and the number of a page (8). One of a leaf is its flags (4), the offset of its
// key from the element (4), the key's size (4), and the size of the value (4), which comes after the key. The value of a
// bucket begins with the number of its first page (8), 0 when that page is in the value itself, and a counter (8).
type tree struct {
	file []byte
	size uint64 // of a page
	seen []bool // which pages something has referred to
}

const (
	pageHeader, element         = 16, 16
	branchPage, leafPage        = 1, 2
	bucketFlag           uint32 = 1
)

// check gives the first thing that is wrong in the data file.
func check(tx *bolt.Tx, file []byte) error {
	size := uint64(tx.DB().Info().PageSize)
	if int64(len(file)) < tx.Size() {
		return fmt.Errorf("the file has %d bytes, and %d are in use", len(file), tx.Size())
	}
	t := &tree{file: file, size: size, seen: make([]bool, uint64(tx.Size())/size)}
	t.seen[0], t.seen[1] = true, true // where the tree begins; bbolt has read that
	_, err := t.page(uint64(tx.Cursor().Bucket().Root()), nil, nil)
	return err
}

// page visits a page and all below it. Keys are at least the first one, and less than the second; nil is no bound. It gives
// the last key.
func (t *tree) page(id uint64, least, below []byte) (last []byte, err error) {
	if id >= uint64(len(t.seen)) {
		return nil, fmt.Errorf("page %d is referred to, and there are %d", id, len(t.seen))
	}
	p := t.file[id*t.size:]
	kind, count, more := binary.NativeEndian.Uint16(p[8:]), int(binary.NativeEndian.Uint16(p[10:])), uint64(binary.NativeEndian.Uint32(p[12:]))
	if own := binary.NativeEndian.Uint64(p); own != id || kind != branchPage && kind != leafPage || id+more >= uint64(len(t.seen)) {
		return nil, fmt.Errorf("page %d is none: number %d, type %d, %d pages more", id, own, kind, more)
	}
	for i := id; i <= id+more; i++ {
		if t.seen[i] {
			return nil, fmt.Errorf("page %d is referred to twice", i)
		}
		t.seen[i] = true
	}
	p = p[:(1+more)*t.size]
	if kind == branchPage && count == 0 {
		return nil, fmt.Errorf("page %d is a branch that leads nowhere", id)
	}
	last = least
	for i := range count {
		key, value, flags, err := t.element(p, kind, i)
		if err != nil {
			return nil, fmt.Errorf("page %d: %w", id, err)
		}
		if order := bytes.Compare(last, key); last != nil && (order > 0 || order == 0 && i > 0) || below != nil && bytes.Compare(key, below) >= 0 {
			return nil, fmt.Errorf("page %d: key %d is out of order", id, i)
		}
		last = key
		switch {
		case kind == branchPage:
			end := below
			if i+1 < count {
				if end, _, _, err = t.element(p, kind, i+1); err != nil {
					return nil, fmt.Errorf("page %d: %w", id, err)
				}
			}
			if last, err = t.page(binary.NativeEndian.Uint64(value), key, end); err != nil {
				return nil, err
			}
		case flags&bucketFlag != 0:
			if len(value) < 16 {
				return nil, fmt.Errorf("page %d: bucket %q has no beginning", id, key)
			}
			if root := binary.NativeEndian.Uint64(value); root != 0 {
				if _, err := t.page(root, nil, nil); err != nil {
					return nil, fmt.Errorf("bucket %q: %w", key, err)
				}
			}
		}
	}
	return last, nil
}

// element gives the key of an element and its value, which in a branch is the number of a page.
func (t *tree) element(p []byte, kind uint16, i int) (key, value []byte, flags uint32, err error) {
	at := pageHeader + i*element
	if at+element > len(p) {
		return nil, nil, 0, errors.New("it has not as many elements as it says")
	}
	word := func(n int) uint64 { return uint64(binary.NativeEndian.Uint32(p[at+n:])) }
	if kind == branchPage {
		from, to := uint64(at)+word(0), uint64(at)+word(0)+word(4)
		if to > uint64(len(p)) {
			return nil, nil, 0, fmt.Errorf("element %d ends behind its end", i)
		}
		return p[from:to], p[at+8 : at+element], 0, nil
	}
	from := uint64(at) + word(4)
	middle := from + word(8)
	to := middle + word(12)
	if to > uint64(len(p)) {
		return nil, nil, 0, fmt.Errorf("element %d ends behind its end", i)
	}
	return p[from:middle], p[middle:to], uint32(word(0)), nil
}
