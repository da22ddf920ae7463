// Package cidata writes and reads seeds of cloud-init: ISO 9660 images labelled cidata, with the files that its data source NoCloud
// looks for.
//
// An image is a function of the contents, without a time or anything else of its own, and all images have the same size. Its file names
// are in Rock Ridge, which Linux and BSD read, and in Joliet, which Windows reads.
//
// [Read] accepts what [Seed.Image] writes and nothing else: an image of which one byte differs, because somebody else has changed it or
// because only a part of it was written, is an error.
package cidata

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
)

// Size is the size of an image in bytes.
const Size = 256 << 10

// Without the bytes from Descriptor to DescriptorEnd, an image is no file system to anybody.
const (
	Descriptor    = 16 * sector
	DescriptorEnd = Descriptor + sector
)

// Seed is what is in an image.
type Seed struct {
	MetaData      string
	UserData      string
	NetworkConfig string // empty: there is no such file
	VendorData    string // empty: there is no such file
}

const sector = 2048

// Only root may read, because there may be passwords in the files.
const (
	rootMode = 0o040500
	fileMode = 0o100400
)

// The sectors of an image.
const (
	primarySector = 16 + iota
	jolietSector
	endSector
	primaryTable // of paths, with little-endian numbers; the big-endian one follows
	_
	jolietTable
	_
	primaryRoot
	jolietRoot
	firstFile
	sectors = Size / sector
)

// sumAt is where a volume descriptor has bytes for applications: the digest of the image, taken with zeros in its place.
const sumAt = Descriptor + 883

// A file is a file of an image.
type file struct {
	name, iso string // iso: the name without Rock Ridge
	text      *string
	optional  bool
}

// files returns all files that an image may have, in the order of their names.
func (s *Seed) files() []file {
	return []file{
		{"meta-data", "METADATA.;1", &s.MetaData, false},
		{"network-config", "NETCONF.;1", &s.NetworkConfig, true},
		{"user-data", "USERDATA.;1", &s.UserData, false},
		{"vendor-data", "VENDDATA.;1", &s.VendorData, true},
	}
}

// Image returns the image. The texts have to be UTF-8, and to fit.
func (s Seed) Image() ([]byte, error) {
	image := make([]byte, Size)
	at := func(n int) []byte { return image[n*sector : (n+1)*sector] }
	primary := slices.Concat(
		record(primaryRoot, sector, directory, "\x00", rockRidge("", rootMode, true)),
		record(primaryRoot, sector, directory, "\x01", rockRidge("", rootMode, false)))
	joliet := slices.Concat(record(jolietRoot, sector, directory, "\x00", nil), record(jolietRoot, sector, directory, "\x01", nil))
	next := firstFile
	for _, f := range s.files() {
		text := *f.text
		if !utf8.ValidString(text) {
			return nil, fmt.Errorf("%s is not UTF-8 text", f.name)
		}
		if f.optional && text == "" {
			continue
		}
		used := (len(text) + sector - 1) / sector
		if used > sectors-next {
			return nil, fmt.Errorf("the contents are too long for an image of %d bytes", Size)
		}
		copy(image[next*sector:], text)
		primary = append(primary, record(next, len(text), 0, f.iso, rockRidge(f.name, fileMode, false))...)
		joliet = append(joliet, record(next, len(text), 0, wide(f.name+";1"), nil)...)
		next += used
	}
	copy(at(primarySector), descriptor(1, "", func(s string) string { return s }, primaryTable, primaryRoot))
	copy(at(jolietSector), descriptor(2, "%/E", wide, jolietTable, jolietRoot))
	copy(at(endSector), "\xffCD001\x01")
	copy(at(primaryRoot), primary)
	copy(at(jolietRoot), joliet)
	for table, root := range map[int]uint32{primaryTable: primaryRoot, jolietTable: jolietRoot} {
		copy(at(table), pathTable(binary.LittleEndian, root))
		copy(at(table+1), pathTable(binary.BigEndian, root))
	}
	sum := sha256.Sum256(image)
	copy(image[sumAt:], sum[:])
	return image, nil
}

// Read returns the contents of an image that [Seed.Image] has written.
func Read(image []byte) (Seed, error) {
	var s Seed
	if len(image) != Size {
		return Seed{}, fmt.Errorf("it has %d bytes, and an image has %d", len(image), Size)
	}
	root := image[primaryRoot*sector : (primaryRoot+1)*sector]
	for len(root) > 33 && root[0] != 0 {
		n := int(root[0])
		if n <= 33 || n > len(root) || 33+int(root[32]) > n {
			return Seed{}, errNotOurs
		}
		r := root[:n]
		root = root[n:]
		for _, f := range s.files() {
			if string(r[33:33+r[32]]) != f.iso {
				continue
			}
			from, size := uint64(binary.LittleEndian.Uint32(r[2:]))*sector, uint64(binary.LittleEndian.Uint32(r[10:]))
			if from+size > Size {
				return Seed{}, errNotOurs
			}
			*f.text = string(image[from : from+size])
		}
	}
	if again, err := s.Image(); err != nil || !bytes.Equal(again, image) {
		return Seed{}, errNotOurs
	}
	return s, nil
}

var errNotOurs = errors.New("it is not an image as this program writes it")

// both returns a number in both byte orders.
func both(n int) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(n))
	return binary.BigEndian.AppendUint32(b, uint32(n))
}

// both16 returns a small number in both byte orders.
func both16(n int) []byte {
	return []byte{byte(n), byte(n >> 8), byte(n >> 8), byte(n)}
}

// wide returns a text in UTF-16, as Joliet has it.
func wide(s string) string {
	var b []byte
	for _, u := range utf16.Encode([]rune(s)) {
		b = binary.BigEndian.AppendUint16(b, u)
	}
	return string(b)
}

// day is the date of everything in an image: the first of January 1980.
var day = []byte{80, 1, 1, 0, 0, 0, 0}

// descriptor returns the descriptor of a volume with one directory.
func descriptor(kind byte, escape string, text func(string) string, table, root int) []byte {
	d := make([]byte, sector)
	fill := func(from, to int, s string) { // spaces are as wide as other letters
		for pad := text(" "); from+len(s)+len(pad) <= to; {
			s += pad
		}
		copy(d[from:to], s)
	}
	d[0] = kind
	copy(d[1:], "CD001\x01")
	fill(8, 40, "")
	fill(40, 72, text("cidata"))
	copy(d[80:], both(sectors))
	copy(d[88:120], escape)
	copy(d[120:], both16(1))
	copy(d[124:], both16(1))
	copy(d[128:], both16(sector))
	copy(d[132:], both(len(pathTable(binary.LittleEndian, 0))))
	binary.LittleEndian.PutUint32(d[140:], uint32(table))
	binary.BigEndian.PutUint32(d[148:], uint32(table+1))
	copy(d[156:190], record(root, sector, directory, "\x00", nil))
	fill(190, 318, "")
	fill(318, 446, "")
	fill(446, 574, "")
	fill(574, 702, text("CONVERGE"))
	fill(702, 739, "")
	fill(739, 776, "")
	fill(776, 813, "")
	for at := 813; at < 881; at += 17 {
		copy(d[at:], "0000000000000000\x00") // no time
	}
	d[881] = 1
	return d
}

// An order is an order of bytes.
type order interface {
	AppendUint32(b []byte, v uint32) []byte
	AppendUint16(b []byte, v uint16) []byte
}

// pathTable returns a table of paths with the root directory alone.
func pathTable(o order, root uint32) []byte {
	return append(o.AppendUint16(o.AppendUint32([]byte{1, 0}, root), 1), 0, 0)
}

// record returns a record of a directory: of a file or, with a name of one byte that is 0 or 1, of the directory itself or the one above.
func record(extent, size int, flags byte, name string, system []byte) []byte {
	r := make([]byte, 33, 255)
	copy(r[2:], both(extent))
	copy(r[10:], both(size))
	copy(r[18:], day)
	r[25] = flags
	copy(r[28:], both16(1))
	r[32] = byte(len(name))
	r = append(r, name...)
	if len(r)%2 != 0 {
		r = append(r, 0)
	}
	r = append(r, system...)
	if len(r)%2 != 0 {
		r = append(r, 0)
	}
	r[0] = byte(len(r))
	return r
}

// directory is the flag of a record of a directory.
const directory = 2

// rockRidge returns what Rock Ridge adds to a record: the name, if it is another one, and who may read it. The first record of the
// root also says that this is Rock Ridge.
func rockRidge(name string, mode int, first bool) []byte {
	var b []byte
	add := func(sign string, data ...byte) {
		b = append(append(b, sign[0], sign[1], byte(4+len(data)), 1), data...)
	}
	if first {
		add("SP", 0xbe, 0xef, 0)
	}
	add("PX", slices.Concat(both(mode), both(1), both(0), both(0))...)
	if name != "" {
		add("NM", append([]byte{0}, name...)...)
	}
	if first {
		add("ER", append([]byte{10, 0, 0, 1}, "RRIP_1991A"...)...)
	}
	return b
}
