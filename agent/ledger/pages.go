package ledger

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
)

// The layout of a file of bbolt, version 2: internal/common/{meta,page,inode}.go there. The first two pages are descriptions, of which
// the one with the higher transaction counts.
const (
	pageSize = 4096
	magic    = 0xED0CDAED
	layout   = 2
	metaSize = 56 // bytes of a description without its checksum

	header  = 16 // bytes at the beginning of a page: its number, kind and length
	element = 16 // bytes of an element of a page: where its key and value are
	branch  = 1
	leaf    = 2
	buckets = 1 // the flag of an element whose value is a bucket
)

var native = binary.NativeEndian // bbolt writes structs as they are in memory

// A pageError says what is damaged.
type pageError struct {
	where string
	err   error
}

func (e *pageError) Error() string { return e.where + ": " + e.err.Error() }

func bad(where, why string, args ...any) error { return &pageError{where, fmt.Errorf(why, args...)} }

// checkPages reads every page in use as bbolt writes them. Bbolt itself trusts what a page says of its elements, and a damaged one
// would make it read behind the end of the file, which ends the process. It fails with a *pageError.
//
// Both descriptions must be valid. Bbolt would make do with one, which may be the older: it would undo what was acknowledged. A
// crash does not leave such a file: a description is smaller than a sector.
func checkPages(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	var newest []byte
	for i := range 2 {
		page, where := make([]byte, header+metaSize+8), fmt.Sprintf("description %d", i)
		if info.Size() < int64(i+1)*pageSize {
			return bad(where, "the file has only %d bytes", info.Size())
		}
		if _, err := f.ReadAt(page, int64(i)*pageSize); err != nil {
			return err
		}
		meta := page[header:]
		h := fnv.New64a()
		_, _ = h.Write(meta[:metaSize])
		switch {
		case native.Uint64(meta[metaSize:]) != h.Sum64():
			return bad(where, "its checksum does not match")
		case native.Uint32(meta) != magic || native.Uint32(meta[4:]) != layout || native.Uint32(meta[8:]) != pageSize:
			return bad(where, "it is not that of a ledger")
		case newest == nil || native.Uint64(meta[48:]) > native.Uint64(newest[48:]):
			newest = meta
		}
	}
	root, free, count := native.Uint64(newest[16:]), native.Uint64(newest[32:]), native.Uint64(newest[40:])
	if free != ^uint64(0) {
		return bad("the list of free pages", "there should be none")
	}
	if count > uint64(info.Size())/pageSize {
		return bad("the file", "it is cut off: it should have %d pages, but has %d bytes", count, info.Size())
	}
	t := &tree{file: f, seen: make([]bool, count)}
	return t.page(root, nil, true)
}

// A tree is a file whose pages are being read, each at most once.
type tree struct {
	file *os.File
	seen []bool // by number of a page that is in use
	last []byte // key of the bucket that is being read; nil at its beginning
}

// page reads a page and all below it, whose keys must not be lower than low. Top is set where the values are the buckets.
func (t *tree) page(number uint64, low []byte, top bool) error {
	where := fmt.Sprintf("page %d", number)
	if number < 2 || number >= uint64(len(t.seen)) {
		return bad(where, "it is not one of the %d pages of the file", len(t.seen))
	}
	data := make([]byte, pageSize)
	if _, err := t.file.ReadAt(data, int64(number)*pageSize); err != nil {
		return err
	}
	if stated := native.Uint64(data); stated != number {
		return bad(where, "it says that it is page %d", stated)
	}
	more := uint64(native.Uint32(data[12:]))
	if number+more >= uint64(len(t.seen)) {
		return bad(where, "it extends to page %d, but there are only %d", number+more, len(t.seen))
	}
	for i := number; i <= number+more; i++ {
		if t.seen[i] {
			return bad(where, "page %d is used twice", i)
		}
		t.seen[i] = true
	}
	if more > 0 {
		data = make([]byte, (more+1)*pageSize)
		if _, err := t.file.ReadAt(data, int64(number)*pageSize); err != nil {
			return err
		}
	}
	return t.elements(where, data, low, top)
}

// elements reads the elements of a page and the pages that they name. Keys and values follow each other without gaps, behind
// the elements and in their order.
func (t *tree) elements(where string, data, low []byte, top bool) error {
	if len(data) < header {
		return bad(where, "%d bytes are no page", len(data))
	}
	kind, count := native.Uint16(data[8:]), int(native.Uint16(data[10:]))
	next := header + count*element
	switch {
	case kind != branch && kind != leaf:
		return bad(where, "its kind is %#x", kind)
	case kind == branch && (count == 0 || top):
		return bad(where, "it cannot be a branch")
	case next > len(data):
		return bad(where, "%d elements do not fit", count)
	}
	for i := range count {
		begin := header + i*element
		el := data[begin : begin+element]
		// A branch has position, size of key and page; a leaf has flags, position, size of key and of value.
		flags, at, size, value := uint32(0), native.Uint32(el), int(native.Uint32(el[4:])), 0
		if kind == leaf {
			flags, at, size, value = at, native.Uint32(el[4:]), int(native.Uint32(el[8:])), int(native.Uint32(el[12:]))
		}
		if begin+int(at) != next || size == 0 || size > len(data)-next || value > len(data)-next-size {
			return bad(where, "element %d is not where it should be", i)
		}
		key := data[next : next+size]
		if bytes.Compare(key, low) < 0 || t.last != nil && bytes.Compare(key, t.last) <= 0 {
			return bad(where, "the keys are not in order")
		}
		next += size + value
		if kind == branch {
			if err := t.page(native.Uint64(el[8:]), key, false); err != nil {
				return err
			}
			continue
		}
		if top != (flags == buckets) || !top && flags != 0 {
			return bad(where, "the kind of element %d is %#x", i, flags)
		}
		t.last = key
		if top {
			t.last = nil
			if err := t.bucket(fmt.Sprintf("bucket %q", key), data[next-value:next]); err != nil {
				return err
			}
			t.last = key
		}
	}
	return nil
}

// bucket reads a bucket, which names its first page, or is small and contains that page.
func (t *tree) bucket(where string, value []byte) error {
	if len(value) < header { // the number of the page, and a counter
		return bad(where, "%d bytes are no bucket", len(value))
	}
	if number := native.Uint64(value); number != 0 {
		return t.page(number, nil, false)
	}
	if inline := value[header:]; len(inline) >= header && native.Uint16(inline[8:]) != leaf {
		return &pageError{where, errors.New("it has branches, but no page of its own")}
	}
	return t.elements(where, value[header:], nil, false)
}
