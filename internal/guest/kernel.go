package guest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// kernels has a directory for each unpacked kernel: the image kernel and lib/modules. .ci/deps writes it.
const kernels = "/var/cache/converge/guest"

// kernel is an unpacked kernel.
type kernel struct{ dir, version string }

// newest finds the kernel that .ci/deps unpacked last.
func newest() (kernel, error) {
	images, err := filepath.Glob(filepath.Join(kernels, "*", "kernel"))
	if err != nil {
		return kernel{}, err
	}
	var k kernel
	var last int64
	for _, image := range images {
		dir := filepath.Dir(image)
		if info, err := os.Stat(dir); err == nil && info.ModTime().UnixNano() > last {
			k, last = kernel{dir, filepath.Base(dir)}, info.ModTime().UnixNano()
		}
	}
	if k.dir == "" {
		return kernel{}, errors.New("there is no kernel in " + kernels)
	}
	return k, nil
}

func (k kernel) image() string { return filepath.Join(k.dir, "kernel") }

// allModules is the directory of the kernel's modules.
func (k kernel) allModules() string { return filepath.Join(k.dir, "lib", "modules") }

// modules lists the files of the named modules and of what they need, in the order of loading.
func (k kernel) modules(names ...string) ([]string, error) {
	var files []string
	for _, name := range names {
		cmd := exec.Command(sbin("modprobe"), "-d", k.dir, "-S", k.version, "--show-depends", name)
		cmd.Env = append(os.Environ(), "LC_ALL=C")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%w: %s", err, stderr.String())
		}
		for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
			verb, rest, _ := strings.Cut(s.Text(), " ")
			file, _, _ := strings.Cut(rest, " ") // parameters follow
			if verb == "insmod" && !slices.Contains(files, file) {
				files = append(files, file)
			}
		}
	}
	return files, nil
}

// sbin finds a program of administrators, which is not in everybody's PATH.
func sbin(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	return filepath.Join("/usr/sbin", name)
}

// turn waits until no other guest runs on this computer and keeps others waiting until the file is closed. go test runs
// packages side by side, and two emulated processors are more than a small computer has.
func turn(ctx context.Context) (*os.File, error) {
	f, err := os.Open(kernels) // every user can lock a directory that it can read
	if err != nil {
		return nil, err
	}
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch err {
		case nil:
			return f, nil
		case unix.EWOULDBLOCK, unix.EINTR:
		default:
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", kernels, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("another guest runs for too long: %w", context.Cause(ctx))
		case <-again.C:
		}
	}
}
