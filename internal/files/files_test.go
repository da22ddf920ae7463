package files

import (
	"bytes"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// odd creates one of each thing that is not a regular file, and returns their paths with the words for them.
func odd(t *testing.T, dir string) map[string]string {
	t.Helper()
	must(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	must(t, os.Mkdir(filepath.Join(dir, "folder"), 0o700))
	l, err := net.Listen("unix", filepath.Join(dir, "socket"))
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	for _, name := range []string{"pipe", "folder", "socket"} {
		must(t, os.Symlink(name, filepath.Join(dir, "link-"+name)))
	}
	return map[string]string{
		"pipe": "a named pipe", "folder": "a directory", "socket": "a socket",
		"link-pipe": "a named pipe", "link-folder": "a directory", "link-socket": "a socket",
	}
}

// TestReadOnlyRegular opens everything that is not a regular file, by its name and below a root: it is an error at once.
func TestReadOnlyRegular(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	must(t, err)
	defer root.Close()
	for name, kind := range odd(t, dir) {
		_, named := Read(filepath.Join(dir, name), 1<<20)
		_, below := ReadIn(root, name, 1<<20)
		for _, err := range []error{named, below} {
			if !errors.Is(err, ErrNotRegular) || !strings.Contains(err.Error(), kind) {
				t.Errorf("%s: %v, want %q", name, err, kind)
			}
		}
	}
	for _, name := range []string{"/dev/null", "/dev/zero"} {
		if _, err := Read(name, 1<<20); !errors.Is(err, ErrNotRegular) || !strings.Contains(err.Error(), "a device") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Read(filepath.Join(dir, "nothing"), 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing: %v", err)
	}
}

// TestReadIsBounded: a file of the limit itself is read, one byte more is not, and a size that is only claimed takes no memory.
func TestReadIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(path, bytes.Repeat([]byte("x"), 2048), 0o600))
	if b, err := Read(path, 2048); err != nil || len(b) != 2048 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	var large *TooLargeError
	if _, err := Read(path, 2047); !errors.As(err, &large) || large.Size != 2048 || large.Limit != 2047 {
		t.Errorf("%v", err)
	}
	must(t, os.Truncate(path, 20<<30))
	if _, err := Read(path, 1<<20); err == nil || !strings.Contains(err.Error(), "the limit is 1 MiB") {
		t.Errorf("%v", err)
	}
	if _, err := Read("/proc/self/maps", 10); !errors.As(err, &large) { // which claims to be empty
		t.Errorf("a file without a size: %v", err)
	}
}

func TestRootIsNotLeft(t *testing.T) {
	dir := t.TempDir()
	inside := filepath.Join(dir, "inside")
	must(t, os.Mkdir(inside, 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "secret"), []byte("x"), 0o600))
	must(t, os.WriteFile(filepath.Join(inside, "file"), []byte("y"), 0o600))
	must(t, os.Symlink("../secret", filepath.Join(inside, "out")))
	must(t, os.Symlink(filepath.Join(dir, "secret"), filepath.Join(inside, "absolute")))
	must(t, os.Symlink("file", filepath.Join(inside, "in")))
	root, err := os.OpenRoot(inside)
	must(t, err)
	defer root.Close()
	for _, name := range []string{"out", "absolute"} {
		_, read := ReadIn(root, name, 10)
		_, stat := StatIn(root, name)
		for _, err := range []error{read, stat} {
			if !errors.Is(err, ErrLeadsOut) || !strings.Contains(err.Error(), filepath.Join(inside, name)) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if b, err := ReadIn(root, "in", 10); err != nil || string(b) != "y" {
		t.Errorf("%q, %v", b, err)
	}
	if b, err := Read(filepath.Join(inside, "out"), 10); err != nil || string(b) != "x" {
		t.Errorf("a link that the user named: %q, %v", b, err)
	}
}

func TestReadPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	must(t, os.WriteFile(path, []byte("x"), 0o600))
	for mode, ok := range map[fs.FileMode]bool{0o600: true, 0o640: true, 0o400: true, 0o644: false, 0o602: false} {
		must(t, os.Chmod(path, mode))
		if _, err := ReadPrivate(path, 10); (err == nil) != ok || !ok && !strings.Contains(err.Error(), "chmod o-rw") {
			t.Errorf("%04o: %v", mode, err)
		}
	}
}

// TestReplace: only new names and regular files are replaced; everything else is unchanged.
func TestReplace(t *testing.T) {
	dir := t.TempDir()
	for name, kind := range odd(t, dir) {
		path := filepath.Join(dir, name)
		before, err := os.Lstat(path)
		must(t, err)
		if err := Replace(path, []byte("x"), 0o600); !errors.Is(err, ErrNotRegular) || !strings.Contains(err.Error(), kind) {
			t.Errorf("%s: %v", name, err)
		}
		if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
			t.Errorf("%s was replaced: %v", name, err)
		}
	}
	for _, path := range []string{"/dev/null", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/dev/converge-test"} {
		before, _ := os.Lstat(path)
		if err := Replaceable(path); err == nil || !strings.Contains(err.Error(), "choose another path") {
			t.Errorf("%s: %v", path, err)
		}
		if after, _ := os.Lstat(path); (before == nil) != (after == nil) {
			t.Errorf("%s came or went", path)
		}
	}

	target := filepath.Join(dir, "target")
	must(t, os.WriteFile(target, []byte("as it was"), 0o644))
	must(t, os.Symlink("target", filepath.Join(dir, "link")))
	must(t, os.Symlink("nothing", filepath.Join(dir, "dangling")))
	for _, name := range []string{"new", "link", "dangling", "new"} {
		path := filepath.Join(dir, name)
		must(t, Replace(path, []byte("plan"), 0o600))
		info, err := os.Lstat(path)
		must(t, err)
		if b, err := os.ReadFile(path); err != nil || string(b) != "plan" || info.Mode() != 0o600 {
			t.Errorf("%s: %q, %v, %v", name, b, info.Mode(), err)
		}
	}
	if b, err := os.ReadFile(target); err != nil || string(b) != "as it was" {
		t.Errorf("what the link led to: %q, %v", b, err)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".*.*"))
	must(t, err)
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := Replace(filepath.Join(dir, "missing", "x"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such folder: %v", err)
	}
}
