package guest

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/u-root/u-root/pkg/cpio"

	"converge.dev/converge/internal/guest/order"
)

// build runs the go command and returns what it prints. What it builds runs in the guest, where there is no C library.
func build(args ...string) (string, error) {
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", cmd, err, out, stderr.String())
	}
	return string(out), nil
}

// writeImage writes the first file system of a guest to a file: /init, the modules, the test binary of the package with its
// testdata, and the order.
func writeImage(file, pkg string, o order.Order) error {
	work, err := os.MkdirTemp("", "guest-build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	first, test := filepath.Join(work, "init"), filepath.Join(work, "test")
	if _, err := build("build", "-buildvcs=false", "-ldflags=-s -w", "-o", first, "converge.dev/converge/internal/guest/init"); err != nil {
		return err
	}
	if _, err := build("test", "-c", "-ldflags=-s -w", "-o", test, pkg); err != nil {
		return err
	}
	content, err := json.Marshal(o)
	if err != nil {
		return err
	}
	records := []cpio.Record{
		cpio.Directory("proc", 0o755), cpio.Directory("sys", 0o755), cpio.Directory("dev", 0o755), cpio.Directory("tmp", 0o1777),
		cpio.CharDev("dev/console", 0o600, 5, 1), // the kernel gives it to /init before anything is mounted
		cpio.StaticFile(order.File[1:], string(content), 0o644),
		cpio.Directory(order.Dir[1:], 0o755),
	}
	add := func(name, from string, perm uint64) error {
		content, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		records = append(records, cpio.StaticFile(name, string(content), perm))
		return nil
	}
	if err := add("init", first, 0o755); err != nil {
		return err
	}
	if err := add(order.Test[1:], test, 0o755); err != nil {
		return err
	}
	for _, m := range o.Modules {
		if err := add(m[1:], m, 0o644); err != nil {
			return err
		}
	}
	dir, err := build("list", "-f", "{{.Dir}}", pkg)
	if err != nil {
		return err
	}
	root := strings.TrimSpace(dir)
	err = filepath.WalkDir(filepath.Join(root, "testdata"), func(path string, d fs.DirEntry, err error) error {
		switch {
		case os.IsNotExist(err) && filepath.Dir(path) == root:
			return fs.SkipAll // a package need not have any
		case err != nil:
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		name = filepath.Join(order.Dir[1:], name)
		switch {
		case d.IsDir(): // each comes with what is in it
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			records = append(records, cpio.Symlink(name, target))
		default:
			return add(name, path, 0o644)
		}
		return nil
	})
	if err != nil {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	w := cpio.NewDedupWriter(cpio.Newc.Writer(f)) // which knows the directories that it has written
	if err := cpio.WriteRecordsAndDirs(w, records); err != nil {
		return err
	}
	if err := cpio.WriteTrailer(w); err != nil {
		return err
	}
	return f.Close()
}
