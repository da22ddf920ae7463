package guest

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/u-root/u-root/pkg/cpio"

	"converge.dev/converge/internal/guest/order"
)

// build runs the go command and returns what it prints. What it builds needs no C library, unless the guest has one.
func build(cgo bool, verb string, args ...string) (string, error) {
	env := append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if cgo {
		env = append(env, "CGO_ENABLED=1")
		args = append([]string{"-tags=libvirt_dlopen"}, args...)
	}
	cmd := exec.Command("go", append([]string{verb}, args...)...)
	cmd.Env = env
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", cmd, err, out, stderr.String())
	}
	return string(out), nil
}

// writeImage writes a file that is the first file system of a guest: /init, the modules, the test binary of the package, programs,
// the order, and the package's testdata unless the guest finds them itself.
func writeImage(image, pkg string, programs []string, o order.Order) error {
	work, err := os.MkdirTemp("", "guest-build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	first, test := filepath.Join(work, "init"), filepath.Join(work, "test")
	if _, err := build(false, "build", "-buildvcs=false", "-ldflags=-s -w", "-o", first, "converge.dev/converge/internal/guest/init"); err != nil {
		return err
	}
	cgo := o.Userland
	if _, err := build(cgo, "test", "-c", "-ldflags=-s -w", "-o", test, pkg); err != nil {
		return err
	}
	content, err := json.Marshal(o)
	if err != nil {
		return err
	}
	records := []cpio.Record{
		cpio.Directory("proc", 0o755), cpio.Directory("sys", 0o755), cpio.Directory("dev", 0o755), cpio.Directory("run", 0o755),
		cpio.CharDev("dev/console", 0o600, 5, 1), // the kernel gives it to /init before anything is mounted
		cpio.StaticFile(order.File[1:], string(content), 0o644),
		cpio.Directory(order.Dir[1:], 0o755), cpio.Directory(order.Programs[1:], 0o755),
	}
	add := func(name, from string, perm uint64) error {
		if target, err := os.Readlink(from); err == nil {
			records = append(records, cpio.Symlink(name, target))
			return nil
		}
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
	for _, p := range programs {
		file := filepath.Join(work, path.Base(p))
		if _, err := build(cgo, "build", "-buildvcs=false", "-ldflags=-s -w", "-o", file, p); err != nil {
			return err
		}
		if err := add(filepath.Join(order.Programs[1:], path.Base(p)), file, 0o755); err != nil {
			return err
		}
	}
	for _, m := range o.Modules {
		if err := add(m[1:], m, 0o644); err != nil {
			return err
		}
	}
	if !o.Userland {
		if err := addTestdata(pkg, add); err != nil {
			return err
		}
	}
	f, err := os.Create(image)
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

// addTestdata adds the testdata of a package, if it has any. Each directory comes with what is in it.
func addTestdata(pkg string, add func(name, from string, perm uint64) error) error {
	root, err := folder(pkg)
	if err != nil {
		return err
	}
	return filepath.WalkDir(filepath.Join(root, "testdata"), func(file string, d fs.DirEntry, err error) error {
		switch {
		case os.IsNotExist(err) && filepath.Dir(file) == root:
			return fs.SkipAll
		case err != nil || d.IsDir():
			return err
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		return add(filepath.Join(order.Dir[1:], name), file, 0o644)
	})
}

// folder is where a package is.
func folder(pkg string) (string, error) {
	dir, err := build(false, "list", "-f", "{{.Dir}}", pkg)
	return strings.TrimSpace(dir), err
}
