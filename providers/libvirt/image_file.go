package libvirt

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"converge.dev/converge/providers"
)

// An imageFile is an image on the machine that this program runs on. It is opened once: what was checked is what is uploaded.
type imageFile struct {
	path  string
	file  *os.File
	head  []byte // its first bytes, as they were checked; those are uploaded, whatever is in the file by then
	bytes int64  // of the file
	size  int64  // that a guest sees
	sum   string // the SHA-256 that it must have; empty: any
}

// headBytes is how much of an image is looked at.
const headBytes = 64 << 10

// openImage opens an image below the directory that the configuration allows, and checks that it fits a volume.
func (ch *change) openImage(path, sum, format string, capacity int64) (_ *imageFile, err error) {
	dir, node := ch.host.Images, ch.host.Node
	switch {
	case dir == "":
		return nil, refuse(providers.Invalid, "node %s has no directory of images; set it in converge.yaml: nodes: {%s: {libvirt_images: \"images\"}}", node, node)
	case !filepath.IsLocal(path):
		return nil, refuse(providers.Invalid, "the path %q leads out of the directory of images", path)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, refuse(providers.Invalid, "the directory of images of converge.yaml cannot be opened: %w", reason(err))
	}
	defer root.Close()
	file, err := root.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would be waited for; links that lead out are refused
	if err != nil {
		return nil, refuse(providers.Invalid, "the image: %w", err)
	}
	defer func() {
		if err != nil {
			file.Close()
		}
	}()
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, refuse(providers.Invalid, "the image: %w", err)
	case !info.Mode().IsRegular():
		return nil, refuse(providers.Invalid, "image %s is not a file", path)
	}
	i := &imageFile{path: path, file: file, bytes: info.Size(), sum: sum}
	i.head = make([]byte, min(i.bytes, headBytes))
	if _, err := io.ReadFull(file, i.head); err != nil {
		return nil, refuse(providers.Invalid, "image %s: %w", path, err)
	}
	if i.size, err = sizeOf(i.head, i.bytes, format); err != nil {
		return nil, refuse(providers.Invalid, "image %s: %w", path, err)
	}
	if i.size > capacity {
		return nil, refuse(providers.Invalid, "a capacity of %d bytes is too small for image %s, which has %d", capacity, path, i.size)
	}
	if sum == "" {
		return i, nil
	}
	r := i.contents(ch.ctx)
	if _, err := io.Copy(io.Discard, r); err != nil {
		return nil, refuse(providers.Invalid, "image %s: %w", path, err)
	}
	return i, r.verify()
}

// reason returns an error of a file without its path.
func reason(err error) error {
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}

// contents returns a reader of the whole image.
func (i *imageFile) contents(ctx context.Context) *imageReader {
	below := io.NewSectionReader(i.file, int64(len(i.head)), i.bytes-int64(len(i.head)))
	return &imageReader{ctx: ctx, image: i, r: io.MultiReader(bytes.NewReader(i.head), below), left: i.bytes, hash: sha256.New()}
}

// An imageReader reads an image, and notes what it was.
type imageReader struct {
	ctx   context.Context
	image *imageFile
	r     io.Reader
	left  int64
	hash  hash.Hash
	err   error // why it could not be read to its end
}

// Read implements [io.Reader].
func (r *imageReader) Read(b []byte) (int, error) {
	if r.ctx.Err() != nil {
		r.err = context.Cause(r.ctx)
		return 0, r.err
	}
	n, err := r.r.Read(b)
	r.hash.Write(b[:n])
	r.left -= int64(n)
	switch {
	case err == io.EOF && r.left > 0:
		err = errors.New("it became shorter while it was read")
		fallthrough
	case err != nil && err != io.EOF:
		r.err = err
	}
	return n, err
}

// verify reports whether what was read has the digest that the image must have.
func (r *imageReader) verify() error {
	if r.image.sum == "" {
		return nil
	}
	if is := hex.EncodeToString(r.hash.Sum(nil)); is != r.image.sum {
		return refuse(providers.Invalid, "image %s has the SHA-256 %s, and not %s", r.image.path, is, r.image.sum)
	}
	return nil
}

// formats are the formats that libvirt recognizes by bytes at an offset, besides that of raw images, which have none. A raw volume that has
// them is one of that format as soon as libvirt looks at it.
var formats = []struct {
	offset int
	magic  string
	name   string
}{
	{0, qcow2Magic, "qcow2"}, {0, "QED\x00", "qed"}, {0, "KDMV", "vmdk"}, {0, "COWD", "vmdk"}, {0, "conectix", "vpc"},
	{64, "\x7f\x10\xda\xbe", "vdi"}, {0, "LUKS\xba\xbe", "luks"}, {0, "WithoutFreeSpace", "ploop"}, {0, "WithouFreSpacExt", "ploop"},
	{0, "Bochs Virtual HD Image", "bochs"}, {0, "#!/bin/sh\n#V2.0 Format\nmodprobe cloop file=$0 && mount -r -t iso9660 /dev/cloop $1\n", "cloop"},
	{0x8001, "CD001", "iso"}, {0, "OOOM", "cow"},
}

// sizeOf returns the size that a guest sees of an image. An image in another format, or one that leads to other files, is refused: whoever
// made it would choose what the guest gets to see of the node.
func sizeOf(head []byte, length int64, format string) (int64, error) {
	is := "raw"
	for _, f := range formats {
		if len(head) >= f.offset+len(f.magic) && string(head[f.offset:f.offset+len(f.magic)]) == f.magic {
			is = f.name
			break
		}
	}
	is = rawISO(is)
	switch {
	case is != format:
		return 0, fmt.Errorf("its format is %s, and that of the volume is %s", is, format)
	case is == "raw":
		return length, nil
	}
	q, err := readQcow2(head)
	if err == nil && q.backing {
		err = errors.New("it has a backing file")
	}
	return q.size, err
}

// backingFiles returns the paths of the files that an image is based on, the next one first, as far as they can be read.
func backingFiles(path string) (found []string) {
	const deepest = 64 // longer chains lead around in a circle
	for len(found) < deepest {
		next := backingFile(path)
		if next == "" {
			break
		}
		found, path = append(found, next), next
	}
	return found
}

// backingFile returns the path of the file that an image is based on; empty when there is none, or it cannot be read.
func backingFile(path string) string {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	head := make([]byte, qcow2Header2)
	if _, err := io.ReadFull(f, head); err != nil || !bytes.HasPrefix(head, []byte(qcow2Magic)) {
		return ""
	}
	at, length := binary.BigEndian.Uint64(head[qcow2Backing:]), binary.BigEndian.Uint32(head[qcow2BackingLength:])
	if at == 0 || at > math.MaxInt64 || length > 1<<10 {
		return ""
	}
	name := make([]byte, length)
	if _, err := f.ReadAt(name, int64(at)); err != nil || len(name) == 0 {
		return ""
	}
	next := strings.TrimPrefix(string(name), "file:")
	if filepath.IsAbs(next) {
		return next
	}
	return filepath.Join(filepath.Dir(path), next)
}

// A qcow2 is what the header of such an image says.
type qcow2 struct {
	size    int64 // that a guest sees
	backing bool  // it has a backing file
}

// What the header has, and where.
const (
	qcow2Magic         = "QFI\xfb"
	qcow2Version       = 4
	qcow2Backing       = 8  // where in the file the name of the backing file is
	qcow2BackingLength = 16 // of that name
	qcow2Size          = 24
	qcow2Encrypted     = 32
	qcow2Features      = 72 // since version 3
	qcow2Header2       = 72 // its length
	qcow2Header3       = 104
)

// The features of a qcow2 image without which it cannot be read.
const (
	qcow2Corrupt  = 1 << 1
	qcow2DataFile = 1 << 2 // what is in it is in another file
)

// readQcow2 reads the header of an image that can be read without any other file than a backing file.
func readQcow2(head []byte) (q qcow2, err error) {
	word := func(at int) uint32 { return binary.BigEndian.Uint32(head[at:]) }
	long := func(at int) uint64 { return binary.BigEndian.Uint64(head[at:]) }
	switch {
	case !bytes.HasPrefix(head, []byte(qcow2Magic)):
		return q, errors.New("it has no header of qcow2")
	case len(head) < qcow2Header2 || word(qcow2Version) == 3 && len(head) < qcow2Header3:
		return q, errors.New("its header is cut off")
	}
	version, features := word(qcow2Version), uint64(0)
	if version == 3 {
		features = long(qcow2Features)
	}
	switch {
	case version != 2 && version != 3:
		return q, fmt.Errorf("it is of version %d of qcow2, and only 2 and 3 are known", version)
	case features&qcow2DataFile != 0:
		return q, errors.New("its data is in another file")
	case features&qcow2Corrupt != 0:
		return q, errors.New("it is marked as corrupt")
	case word(qcow2Encrypted) != 0:
		return q, errors.New("it is encrypted")
	case long(qcow2Size) > math.MaxInt64:
		return q, errors.New("its size is not possible")
	}
	return qcow2{size: int64(long(qcow2Size)), backing: long(qcow2Backing) != 0}, nil
}
