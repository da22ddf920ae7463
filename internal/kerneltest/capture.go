package kerneltest

import (
	"embed"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Captures are the names of machines of which there is a copy of what their kernels show; see [Capture].
var Captures = []string{"arm", "gpu", "multipath", "sriov"}

//go:embed captures
var captures embed.FS

// Capture writes the copy of what the kernel of a machine shows into a new folder, and returns that: its folder sys is the copy of
// sysfs. A line of the file captures/NAME.txt is a file, PATH = TEXT, or a link, PATH -> TARGET. A text in double quotes is as in Go.
func Capture(t testing.TB, name string) string {
	t.Helper()
	text, err := captures.ReadFile("captures/" + name + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		file, content, isFile := strings.Cut(line, " =")
		link, target, _ := strings.Cut(line, " -> ")
		content = strings.TrimPrefix(content, " ")
		if unquoted, err := strconv.Unquote(content); err == nil {
			content = unquoted
		}
		at := filepath.Join(dir, file)
		if !isFile {
			at = filepath.Join(dir, link)
		}
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		if err == nil && isFile {
			err = os.WriteFile(at, []byte(content+"\n"), 0o644)
		} else if err == nil {
			err = os.Symlink(target, at)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Paths returns all files, links and folders below a folder, relative to it, sorted.
func Paths(t testing.TB, dir string) (all []string) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(dir), ".", func(p string, _ fs.DirEntry, err error) error {
		if p != "." {
			all = append(all, p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return all
}

// Remove takes something out of a copy until put is called.
func Remove(t testing.TB, dir, what string) (put func()) {
	t.Helper()
	at, aside := filepath.Join(dir, what), filepath.Join(t.TempDir(), path.Base(what))
	if err := os.Rename(at, aside); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Rename(aside, at); err != nil {
			t.Fatal(err)
		}
	}
}
