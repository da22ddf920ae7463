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
// others have set is reported, and adopted only if the document says so. Facts are objects too, which can only be looked at.
//
// # Copies
//
// The root may be a copy of a machine's sysfs, such as one in a support bundle. Copies lack what nobody could read, and have
// folders, or files with the target, where a machine has links. They are read as far as that goes: what cannot be read as what it
// should be is not there.
package sysfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

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
	Sys       Tree   // /sys
	Processes Tree   // /proc; nil: it cannot be seen, and what is in use is unknown
	Unseen    string // why not
	Machine   Tree   // /proc, for what it tells of the machine as a whole; nil: there is none
	Run       Tree   // /run; nil: there is none
	Debian    bool   // the packages of the machine are those of Debian, which leave a note in /run when they need a reboot

	// Claim reports whether a block device is claimed for exclusive use, by whatever part of the kernel. Nil: there is nobody to ask.
	Claim func(block string) (bool, error)

	VFs VFs // nil: there are no network interfaces to ask, for the trees are copies

	// Events calls changed after each event of a PCI function, from its return until end is called. Nil: there are none.
	Events func(changed func()) (end func(), err error)
	Poll   time.Duration // how often a watch reads all objects; zero: as often as the constant [Poll] says
}

// Proc returns the tree of /proc. It fails when that cannot be seen, and says why.
func (k Kernel) Proc() (Tree, error) {
	if k.Processes == nil {
		return nil, errors.New(k.Unseen)
	}
	return k.Processes, nil
}

// Claimed reports whether a block device is claimed for exclusive use.
func (k Kernel) Claimed(block string) (bool, error) {
	if k.Claim == nil {
		return false, nil
	}
	return k.Claim(block)
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
	return plain(filepath.Base(to)), nil
}

// Attribute returns the content of a file; empty when there is no such file, or the kernel cannot say.
func (k Kernel) Attribute(path string) string { return Text(k.Sys, path) }

// Text returns the content of a file of a tree, which may be nil; empty when there is no such file, or it cannot be read.
func Text(t Tree, path string) string {
	if t == nil {
		return ""
	}
	text, err := t.Read(path)
	if err != nil {
		return ""
	}
	return plain(text)
}

// plain returns what a file says without what surrounds that, and makes it valid text.
func plain(text string) string {
	text, _, _ = strings.Cut(text, "\x00")
	return strings.ToValidUTF8(strings.TrimSpace(text), "\uFFFD")
}

// Number returns the number in a file. A file without one, which only a copy has, is as good as none.
func (k Kernel) Number(path string) (int64, error) {
	text, err := k.Sys.Read(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(plain(text), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s has no number: %w", path, fs.ErrNotExist)
	}
	return n, nil
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

// Names returns the names in a directory; none when it cannot be read.
func (k Kernel) Names(dir string) []string {
	names, err := k.List(dir)
	if err != nil {
		return nil
	}
	return names
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

// marks are folders of which a copy of a sysfs has at least one.
var marks = []string{"bus", "class", "devices/system"}

// Kernel opens the tree, and the trees proc and run next to it. It fails where there is neither a sysfs nor a copy of one.
func (c Config) Kernel(at providers.Opening) (k Kernel, closing func() error, err error) {
	root := at.Path(string(c))
	if root == "" {
		return k, nil, fmt.Errorf("sysfs of node %s is not configured; set its root: nodes: {%s: {sysfs: %q}}", at.Scope, at.Scope, DefaultRoot)
	}
	root = filepath.Clean(root)
	sys, err := open(root)
	if err != nil {
		return k, nil, err
	}
	sys.copied = !sys.live
	opened := []dir{sys}
	closing = func() (err error) {
		for _, d := range opened {
			err = errors.Join(err, d.root.Close())
		}
		return err
	}
	k.Sys = sys
	switch {
	case sys.copied && !slices.ContainsFunc(marks, k.Exists):
		return k, nil, errors.Join(fmt.Errorf("%s is not a sysfs, nor a copy of one: it has none of the directories %s", root, strings.Join(marks, ", ")), closing())
	case sys.live && (!k.Exists("bus") || !k.Exists("devices")):
		return k, nil, errors.Join(fmt.Errorf("%s is not the root of a sysfs: it has no directories bus and devices", root), closing())
	}
	if sys.live {
		k.Claim, k.Events, k.VFs = claimed, pciEvents, links{sys}
	}
	real, err := filepath.EvalSymlinks(root)
	if err != nil {
		return k, nil, errors.Join(err, closing())
	}
	beside, err := open(filepath.Dir(real))
	if err != nil {
		return k, nil, errors.Join(err, closing())
	}
	opened = append(opened, beside)
	beside.copied = sys.copied
	if sys.copied && filepath.Dir(real) == "/" { // what is there is of the machine that this program runs on
		k.Unseen = "it is not in the copy"
		return k, closing, nil
	}
	for _, name := range []string{"run", "var/run"} {
		if run, err := beside.open(name); err == nil {
			opened = append(opened, run)
			k.Run = run
			break
		}
	}
	_, err = beside.ReadDir("var/lib/dpkg")
	k.Debian = err == nil
	path := filepath.Join(filepath.Dir(real), "proc")
	proc, err := beside.open("proc")
	if err != nil {
		k.Unseen = err.Error()
		return k, closing, nil
	}
	opened = append(opened, proc)
	if sys.live == (proc.kind == unix.PROC_SUPER_MAGIC) {
		k.Machine = proc
	}
	if k.Unseen = blind(sys, proc, path); k.Unseen == "" {
		k.Processes = proc
	} else { // in a container, /run is that of the container
		k.Run = nil
	}
	return k, closing, nil
}

// blind returns why a proc file system does not show all processes of a live machine; empty when it does.
func blind(sys, proc dir, path string) string {
	if !sys.live {
		return ""
	}
	if proc.kind != unix.PROC_SUPER_MAGIC {
		return path + " is not a proc file system"
	}
	const initial = "pid:[4026531836]" // PROC_PID_INIT_INO of the kernel
	switch namespace, err := proc.Readlink("1/ns/pid"); {
	case err != nil:
		return "the processes of others cannot be seen: " + err.Error()
	case namespace != initial:
		return path + " is that of a container: it does not show the processes of the node"
	}
	if _, err := proc.ReadDir("1/fd"); err != nil {
		return "the files of other processes cannot be seen: " + err.Error()
	}
	return ""
}

// claimed tries to claim a block device. The kernel refuses that while a file system, swap, a volume manager or a program that wants
// nobody beside it has the device, or a partition of it.
func claimed(block string) (bool, error) {
	f, err := os.OpenFile("/dev/"+block, os.O_RDONLY|os.O_EXCL|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, unix.EBUSY):
		return true, nil
	case errors.Is(err, unix.ENOMEDIUM):
		return false, nil
	case err != nil:
		return false, err
	}
	return false, f.Close()
}

// A dir is the tree below a directory of the file system. Links that lead out of it are not followed.
type dir struct {
	root   *os.Root
	kind   int64 // of the file system
	live   bool  // it is the kernel's own sysfs, which can be written
	copied bool  // it is a copy of one
}

func open(path string) (dir, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return dir{}, err
	}
	return known(root)
}

// open opens a directory below, which is as much of a copy.
func (d dir) open(name string) (dir, error) {
	root, err := d.root.OpenRoot(name)
	if err != nil {
		return dir{}, err
	}
	below, err := known(root)
	below.copied = d.copied
	return below, err
}

// known finds out what file system a directory is on.
func known(root *os.Root) (dir, error) {
	f, err := root.Open(".")
	if err != nil {
		return dir{}, errors.Join(err, root.Close())
	}
	defer f.Close()
	var on unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &on); err != nil {
		return dir{}, errors.Join(err, root.Close())
	}
	return dir{root: root, kind: int64(on.Type), live: on.Type == unix.SYSFS_MAGIC}, nil
}

// absent returns the error of a file that cannot be read: in a copy it is as good as not there.
func (d dir) absent(err error) error {
	if err == nil || !d.copied {
		return err
	}
	return fmt.Errorf("%w (%w)", err, fs.ErrNotExist)
}

func (d dir) Read(path string) (string, error) {
	if d.copied { // a pipe would be waited for
		if info, err := d.root.Stat(path); err == nil && !info.Mode().IsRegular() {
			return "", d.absent(syscall.EINVAL)
		}
	}
	b, err := d.root.ReadFile(path)
	return strings.TrimSuffix(string(b), "\n"), d.absent(err)
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

func (d dir) Readlink(path string) (string, error) {
	to, err := d.root.Readlink(path)
	if err != nil && d.copied {
		if text, rerr := d.Read(path); rerr == nil && strings.HasPrefix(text, "../") { // a file with the target in place of the link
			return text, nil
		}
	}
	return to, d.absent(err)
}

func (d dir) ReadDir(path string) ([]string, error) {
	f, err := d.root.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, d.absent(err)
	}
	names, err := f.Readdirnames(-1)
	slices.Sort(names)
	return names, d.absent(errors.Join(err, f.Close()))
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
	return c.request(func() error { return c.Sys.Write(path, value) })
}

// SetVF changes a virtual function of a network card, unless the call or its permit has ended.
func (c *Change) SetVF(iface string, number int, to Setting) error {
	return c.request(func() error { return c.VFs.Set(iface, number, to) })
}

func (c *Change) request(do func() error) error {
	if c.ctx.Err() != nil {
		return &fault{providers.Transient, context.Cause(c.ctx)}
	}
	if err := c.permit.Check(); err != nil {
		return &fault{providers.Transient, err}
	}
	err := do()
	c.wrote = c.wrote || err == nil
	return err
}

// Restore is Write for what leads back: it is done also when the call has ended meanwhile.
func (c *Change) Restore(path, value string) error {
	return c.restore(func() error { return c.Sys.Write(path, value) })
}

// RestoreVF is SetVF for what leads back.
func (c *Change) RestoreVF(iface string, number int, to Setting) error {
	return c.restore(func() error { return c.VFs.Set(iface, number, to) })
}

func (c *Change) restore(do func() error) error {
	if err := c.permit.Check(); err != nil {
		return &fault{providers.Transient, err}
	}
	return do()
}

// Wait waits for something that the kernel does a moment after a write, until it has happened, the time is over, or the call has ended.
func (c *Change) Wait(limit time.Duration, happened func() bool) {
	ctx, cancel := context.WithTimeout(c.ctx, limit)
	defer cancel()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for !happened() {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
	}
}

// Undone records that everything written so far was put back, so that the verb has had no effect.
func (c *Change) Undone() { c.wrote = false }
