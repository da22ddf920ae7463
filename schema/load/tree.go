package load

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"converge.dev/converge/internal/files"
)

// A tree is the part of the file system that a folder of CUE may be read from: its module, which is the nearest folder
// above it with a cue.mod, or the folder itself when there is none. Links do not lead out of it, so that a document that
// somebody else wrote cannot cause other files of this machine to be read and shown in messages.
//
// It serves as the file system of the CUE library, under the absolute names of the files.
type tree struct {
	root  *os.Root
	dir   string            // absolute, without links
	given map[string][]byte // files that have been read, by absolute name
}

// openTree opens the tree of a folder and returns the folder's absolute name. Links in that name are followed.
func openTree(folder string) (*tree, string, error) {
	abs, err := filepath.Abs(folder)
	if err != nil {
		return nil, "", err
	}
	if abs, err = filepath.EvalSymlinks(abs); err != nil {
		return nil, "", err
	}
	dir := abs
	for d := abs; ; d = filepath.Dir(d) {
		if info, err := os.Stat(filepath.Join(d, "cue.mod")); err == nil && info.IsDir() {
			dir = d
			break
		}
		if d == filepath.Dir(d) {
			break
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, "", err
	}
	return &tree{root: root, dir: dir}, abs, nil
}

func (t *tree) close() { _ = t.root.Close() }

// below returns the name within the tree of an absolute name.
func (t *tree) below(abs string) (string, bool) {
	rel, err := filepath.Rel(t.dir, abs)
	return rel, err == nil && filepath.IsLocal(rel)
}

// read reads a file by its absolute name.
func (t *tree) read(abs string) ([]byte, error) {
	if data, ok := t.given[abs]; ok {
		return data, nil
	}
	name, ok := t.below(abs)
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: abs, Err: fs.ErrNotExist}
	}
	return files.ReadIn(t.root, name, maxSize)
}

// absolute returns the absolute name for a name of package fs.
func absolute(name string) string { return filepath.FromSlash(path.Join("/", name)) }

// Open implements fs.FS.
func (t *tree) Open(name string) (fs.File, error) {
	abs := absolute(name)
	info, err := t.Stat(name)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		below, _ := t.below(abs)
		return t.root.Open(below)
	}
	data, err := t.read(abs)
	if err != nil {
		return nil, err
	}
	if filepath.Ext(abs) == ".cue" {
		if at := notText(data); at >= 0 {
			return nil, fmt.Errorf("%s is not text: byte %d is %#02x", abs, at, data[at])
		}
	}
	return &opened{bytes.NewReader(data), info}, nil
}

// Stat implements fs.StatFS.
func (t *tree) Stat(name string) (fs.FileInfo, error) {
	abs := absolute(name)
	if data, ok := t.given[abs]; ok {
		return givenInfo{filepath.Base(abs), int64(len(data))}, nil
	}
	below, ok := t.below(abs)
	if !ok {
		return nil, &fs.PathError{Op: "stat", Path: abs, Err: fs.ErrNotExist}
	}
	return files.StatIn(t.root, below)
}

// opened is a file that has been read.
type opened struct {
	*bytes.Reader
	info fs.FileInfo
}

func (f *opened) Stat() (fs.FileInfo, error) { return f.info, nil }
func (f *opened) Close() error               { return nil }

// givenInfo describes a file that was given as data.
type givenInfo struct {
	name string
	size int64
}

func (i givenInfo) Name() string       { return i.name }
func (i givenInfo) Size() int64        { return i.size }
func (i givenInfo) Mode() fs.FileMode  { return 0o400 }
func (i givenInfo) ModTime() time.Time { return time.Time{} }
func (i givenInfo) IsDir() bool        { return false }
func (i givenInfo) Sys() any           { return nil }

// notText returns the index of the first byte that is not UTF-8 text; -1 when all of it is text.
func notText(data []byte) int {
	for i := 0; i < len(data); {
		if data[i] == 0 {
			return i
		}
		if data[i] < utf8.RuneSelf {
			i++
			continue
		}
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return -1
}

// hidden reports whether a file or folder of that name is ignored in its folder, as in CUE.
func hidden(name string) bool { return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") }
