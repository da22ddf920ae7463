// Package files opens and replaces files whose paths come from outside: from a command line, a configuration or a
// document. Whatever is at such a path, opening it does not block, reading it stops at a limit, and replacing it never
// puts a file in the place of something else.
//
// Every path must name a regular file. A named pipe, a device, a socket or a folder is an error that says so. A link is
// followed when the user named it; below an [os.Root] it must not lead out of that folder.
package files

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// openFlags prevent blocking on something that replaced a regular file after it was checked, and prevent a terminal from
// becoming the process's own.
const openFlags = os.O_RDONLY | syscall.O_NONBLOCK | syscall.O_NOCTTY

// ErrNotRegular is in the error for something that exists and is not a regular file.
var ErrNotRegular = errors.New("not a regular file")

// ErrLeadsOut is in the error for a path that leads, by a link or otherwise, out of its folder.
var ErrLeadsOut = errors.New("the path leads outside the directory")

// ErrInUse is in the error for a file that another process has locked.
var ErrInUse = errors.New("another process has it open")

// A TooLargeError says that a file is larger than its reader accepts.
type TooLargeError struct {
	Path  string
	Size  int64 // the size that the file reports; 0 when it reports none
	Limit int64
}

// Error implements error.
func (e *TooLargeError) Error() string {
	if e.Size == 0 {
		return fmt.Sprintf("%s is too large: the limit is %s", e.Path, Size(e.Limit))
	}
	return fmt.Sprintf("%s has %d bytes, the limit is %s", e.Path, e.Size, Size(e.Limit))
}

// Size returns a number of bytes in words.
func Size(n int64) string {
	for _, unit := range []struct {
		size int64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= unit.size && n%unit.size == 0 {
			return fmt.Sprintf("%d %s", n/unit.size, unit.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

// Open opens a regular file for reading.
func Open(path string) (*os.File, error) {
	return open(path, path, os.Stat, func(name string) (*os.File, error) { return os.OpenFile(name, openFlags, 0) })
}

// OpenIn opens a regular file below root.
func OpenIn(root *os.Root, name string) (*os.File, error) {
	f, err := open(filepath.Join(root.Name(), name), name, root.Stat, func(name string) (*os.File, error) { return root.OpenFile(name, openFlags, 0) })
	return f, leadsOut(root, name, err)
}

// StatIn describes what is at name below root.
func StatIn(root *os.Root, name string) (fs.FileInfo, error) {
	info, err := root.Stat(name)
	return info, leadsOut(root, name, err)
}

// leadsOut explains the error for what root does not follow; package os does not name it.
func leadsOut(root *os.Root, name string, err error) error {
	var wrong *fs.PathError
	if errors.As(err, &wrong) && strings.Contains(wrong.Err.Error(), "escapes") {
		return &fs.PathError{Op: "open", Path: filepath.Join(root.Name(), name), Err: fmt.Errorf("%w %s, and only files in it are read", ErrLeadsOut, root.Name())}
	}
	return err
}

// open checks before it opens: opening a device can have an effect of its own.
func open(path, name string, stat func(string) (fs.FileInfo, error), open func(string) (*os.File, error)) (*os.File, error) {
	info, err := stat(name)
	if err == nil {
		err = regular("open", path, info)
	}
	if err != nil {
		return nil, err
	}
	f, err := open(name)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil {
		err = regular("open", path, info)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func regular(op, path string, info fs.FileInfo) error {
	if info.Mode().IsRegular() {
		return nil
	}
	return &fs.PathError{Op: op, Path: path, Err: notRegular(info.Mode())}
}

type notRegular fs.FileMode

func (m notRegular) Error() string { return "it is " + Kind(fs.FileMode(m)) + ", not a regular file" }

func (m notRegular) Is(target error) bool { return target == ErrNotRegular }

// Kind returns in words what a file is.
func Kind(m fs.FileMode) string {
	switch {
	case m.IsRegular():
		return "a regular file"
	case m.IsDir():
		return "a directory"
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeSymlink != 0:
		return "a symbolic link"
	}
	return "a device"
}

// Read reads a regular file of at most limit bytes; a larger one is a *[TooLargeError], and is not read.
func Read(path string, limit int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	return readAll(f, path, limit)
}

// ReadIn is [Read] below root.
func ReadIn(root *os.Root, name string, limit int64) ([]byte, error) {
	f, err := OpenIn(root, name)
	if err != nil {
		return nil, err
	}
	return readAll(f, filepath.Join(root.Name(), name), limit)
}

// ReadPrivate is [Read] for a file that others on this machine must not know or change, such as a private key.
func ReadPrivate(path string, limit int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		err = Private(path, info)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return readAll(f, path, limit)
}

// Private refuses a file that everybody on this machine may read or write. Access of the group is allowed: certificates are
// often shared with a service that way.
func Private(path string, info fs.FileInfo) error {
	if mode := info.Mode().Perm(); mode&0o006 != 0 {
		return fmt.Errorf("anyone on this machine can read or write %s (mode %04o): run chmod o-rw on it", path, mode)
	}
	return nil
}

// PrivateDir makes a directory and those above it, accessible only to their owner. One that exists must be so, too.
func PrivateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s is %s with mode %04o: want a directory that only its owner can enter, chmod 700", dir, Kind(info.Mode()), info.Mode().Perm())
	}
	return nil
}

func readAll(f *os.File, path string, limit int64) (data []byte, err error) {
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > limit {
		return nil, &TooLargeError{path, info.Size(), limit}
	}
	var b bytes.Buffer
	b.Grow(int(info.Size()) + bytes.MinRead)
	if _, err := b.ReadFrom(io.LimitReader(f, limit+1)); err != nil { // it may be growing
		return nil, err
	}
	if int64(b.Len()) > limit {
		return nil, &TooLargeError{Path: path, Limit: limit}
	}
	return b.Bytes(), nil
}

// Replaceable returns why [Replace] would refuse path, so that the work before it is not lost.
func Replaceable(path string) error {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	// The links there, such as /dev/stdout, stand for what a process has open: replacing them with a file would break others.
	if dir == "/dev" || strings.HasPrefix(dir+"/", "/proc/") || strings.HasPrefix(dir+"/", "/sys/") {
		return &fs.PathError{Op: "write", Path: path, Err: errors.New("files do not belong there: choose another path")}
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // including a link to nothing: the link is replaced
	}
	if err != nil {
		return err
	}
	return regular("write", path, info)
}

// Replace writes a file so that at all times the old or the new one exists. Something that exists is replaced only when it
// is a regular file, or a link to one; then the link is replaced.
func Replace(path string, data []byte, mode fs.FileMode) (err error) {
	if err := Replaceable(path); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}

// Append opens a regular file for appending, and creates it when there is none, accessible only to its owner.
func Append(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil {
		if err := regular("open", path, info); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		err = regular("open", path, info)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Lock opens a file exclusively for reading and writing, and creates it when there is none: until it is closed every other
// Lock fails with [ErrInUse], in any process. The holder may remove the file.
func Lock(path string) (*os.File, error) {
	for {
		// The file is written to, so a link in its place must not lead to another.
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
		if err != nil {
			return nil, err
		}
		mine, err := f.Stat()
		if err == nil {
			err = regular("open", path, mine)
		}
		if err == nil {
			err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
			if errors.Is(err, syscall.EWOULDBLOCK) {
				err = fmt.Errorf("%w (lock on %s)", ErrInUse, path)
			}
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		// The previous holder may have removed it, perhaps between our open and our lock.
		now, err := os.Stat(path)
		if err == nil && os.SameFile(mine, now) {
			return f, nil
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
}
