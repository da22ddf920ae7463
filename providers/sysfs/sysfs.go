// Package sysfs is what the providers of the kernel's own objects share: access to the files through which Linux shows and
// changes them, and the verbs of the contract on top of that.
//
// # The kernel's answers
//
// A file of sysfs is a command and its state at once. It is written with one write, to a file that exists: nothing is ever created
// or truncated. A write that succeeds proves little: the kernel allocates fewer huge pages than requested, or leaves a function
// without a driver, and reports no error. So a verb reads back what it has written, and puts back what the kernel did not do.
//
// # What is ours
//
// The kernel has no place for an ownership mark. The objects of these kinds are what is not as the kernel would have it by
// itself: a driver override, virtual functions, huge pages. Deleting one leads back to what the kernel does by itself. What
// others have set is reported, and adopted only if the document says so.
package sysfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"converge.dev/converge/providers"
)

// A Tree is a tree of files of the kernel, such as /sys. Paths are relative to its root. Errors wrap the kernel's errno.
type Tree interface {
	// Read returns the content of a file without the newline at its end.
	Read(path string) (string, error)
	// Write writes a value with one call to a file that exists, and returns the kernel's answer.
	Write(path, value string) error
	// Readlink returns the target of a symbolic link.
	Readlink(path string) (string, error)
	// ReadDir returns the names in a directory, sorted.
	ReadDir(path string) ([]string, error)
}

// A Kernel is what a running kernel shows of itself.
type Kernel struct {
	Sys  Tree // /sys
	Proc Tree // /proc; nil: it is not there, and what is in use is unknown
}

// Link returns the last element of the target of a symbolic link: sysfs refers to objects by such links. It is empty when there is
// no link.
func (k Kernel) Link(path string) (string, error) {
	to, err := k.Sys.Readlink(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.EINVAL): // EINVAL: not a link, as in a copied tree
		return "", nil
	case err != nil:
		return "", err
	}
	return filepath.Base(to), nil
}

// Attribute returns the content of a file; empty when there is no such file, or the kernel cannot say.
func (k Kernel) Attribute(path string) string {
	text, err := k.Sys.Read(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(text)
}

// Exists reports whether there is a directory.
func (k Kernel) Exists(dir string) bool {
	_, err := k.Sys.ReadDir(dir)
	return err == nil
}

// List returns the names in a directory; none when it does not exist.
func (k Kernel) List(dir string) ([]string, error) {
	names, err := k.Sys.ReadDir(dir)
	if Gone(err) {
		return nil, nil
	}
	return names, err
}

// Gone reports whether an error means that an object does not exist, or is being removed.
func Gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.ENXIO)
}

// Config is the root of sysfs of a node, nodes.NAME.sysfs of converge.yaml. Empty: it is not configured.
type Config string

// DefaultRoot is where sysfs is mounted on every Linux machine.
const DefaultRoot = "/sys"

// Configured reports whether the node's kernel can be reached.
func (c Config) Configured() bool { return c != "" }

// Check returns nil: whether a path leads to a sysfs is found out by opening it.
func (c Config) Check(string) error { return nil }

// Kernel opens the tree, and the proc file system next to it. It fails where there is no sysfs.
func (c Config) Kernel(at providers.Opening) (k Kernel, closing func() error, err error) {
	root := at.Path(string(c))
	if root == "" {
		return k, nil, fmt.Errorf("sysfs of node %s is not configured; set its root: nodes: {%s: {sysfs: %q}}", at.Scope, at.Scope, DefaultRoot)
	}
	sys, err := open(root)
	if err != nil {
		return k, nil, err
	}
	k.Sys, closing = sys, sys.root.Close
	if !k.Exists("bus") || !k.Exists("devices") {
		return k, nil, errors.Join(fmt.Errorf("%s is not a sysfs: it has no directories bus and devices", root), closing())
	}
	if proc, err := open(filepath.Join(filepath.Dir(root), "proc")); err == nil {
		k.Proc, closing = proc, func() error { return errors.Join(sys.root.Close(), proc.root.Close()) }
	}
	return k, closing, nil
}

// A dir is the tree below a directory of the file system. Links that lead out of it are not followed.
type dir struct {
	root *os.Root
	live bool // it is the kernel's own; a copy of it, such as one in a support bundle, can only be read
}

func open(path string) (dir, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return dir{}, err
	}
	var on unix.Statfs_t
	err = unix.Statfs(path, &on)
	return dir{root, on.Type == unix.SYSFS_MAGIC}, err
}

func (d dir) Read(path string) (string, error) {
	b, err := d.root.ReadFile(path)
	return strings.TrimSuffix(string(b), "\n"), err
}

func (d dir) Write(path, value string) (err error) {
	if !d.live {
		return Refuse(providers.Denied, "%s is a copy of a sysfs: it can be observed, but no kernel acts on what is written there", d.root.Name())
	}
	f, err := d.root.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = f.WriteString(value)
	return err
}

func (d dir) Readlink(path string) (string, error) { return d.root.Readlink(path) }

func (d dir) ReadDir(path string) ([]string, error) {
	f, err := d.root.Open(path)
	if err != nil {
		return nil, err
	}
	names, err := f.Readdirnames(-1)
	slices.Sort(names)
	return names, errors.Join(err, f.Close())
}

// A Change is the kernel as a verb writes to it.
type Change struct {
	Kernel
	Node string // for messages

	ctx    context.Context
	permit *providers.Permit
	wrote  bool
}

// Write writes to a file of sysfs, unless the call or its permit has ended.
func (c *Change) Write(path, value string) error {
	if c.ctx.Err() != nil {
		return &fault{providers.Transient, context.Cause(c.ctx)}
	}
	if err := c.permit.Check(); err != nil {
		return &fault{providers.Transient, err}
	}
	err := c.Sys.Write(path, value)
	c.wrote = c.wrote || err == nil
	return err
}

// Undone records that everything written so far was put back, so that the verb has had no effect.
func (c *Change) Undone() { c.wrote = false }
