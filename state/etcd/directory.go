package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A NoAnswerError reports that the process that holds the directory of a store does not serve it: it is suspended, or hangs.
type NoAnswerError struct {
	Dir     string
	PID     int       // 0 when unknown
	Since   time.Time // zero when unknown; then there is no Command either
	Command string    // as in its Options
}

// Error implements error.
func (e *NoAnswerError) Error() string {
	switch {
	case e.PID == 0:
		return e.Dir + " is held by another process, which does not answer"
	case e.Since.IsZero():
		return fmt.Sprintf("%s is held by PID %d, which does not answer", e.Dir, e.PID)
	}
	return fmt.Sprintf("%s has been held by PID %d since %s (%s), which does not answer", e.Dir, e.PID, e.Since.Format(time.DateTime), e.Command)
}

const (
	lockName   = "lock"
	ownersName = "owners"
	dataName   = "etcd"
	dbName     = "snap/db"
	walName    = "wal"
	// unbegunName is the name of an empty file that exists until etcd has answered from the data for the first time. Etcd
	// cannot continue from what it leaves when its very first start is interrupted: a log without the entry that makes it a
	// member never has a leader.
	unbegunName = "etcd.unbegun"
)

// A directory is shared by the processes that use a store. One of them has it locked, runs etcd on its data, and serves
// the others at its socket. The kernel releases everything when a process ends, in whatever way, so nothing here is ever
// stale: the contents of the lock file count only while it is locked, and the process that locks it replaces the socket.
type directory struct {
	places
	path    string
	command string
	lock    *os.File
	owners  *os.File
	owner   int64 // the byte of owners that is locked while this process uses the directory
	leases  atomic.Int64
}

// openDirectory opens the directory, and creates it when it is missing.
func openDirectory(path, command string) (_ *directory, err error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	d := &directory{path: path, command: strings.Join(strings.Fields(command), " ")}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	if d.dir, err = os.Open(path); err != nil {
		return nil, err
	}
	if err := private(d.dir); err != nil {
		return nil, err
	}
	if err := d.openLock(); err != nil {
		return nil, err
	}
	if d.owners, err = d.create(ownersName); err != nil {
		return nil, err
	}
	return d, d.own()
}

// unwritable adds to an error what to do where nothing can be written: the store cannot be used without writing.
func unwritable(err error) error {
	const reading = "even read-only commands write there: "
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w; %smake it and everything in it writable for you, or run converge as its owner", err, reading)
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w; %smount it read-write, or use a copy elsewhere", err, reading)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("%w; even read-only commands write there: free some space", err)
	}
	return err
}

// create opens a file of the directory, and creates it when it is missing. The file is written to, so a link in its place must not
// lead to another.
func (d *directory) create(name string) (*os.File, error) {
	return os.OpenFile(filepath.Join(d.path, name), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
}

// openLock opens the lock file, again when it is no longer the one that others find.
func (d *directory) openLock() error {
	if d.lock != nil && d.same(d.lock) == nil {
		return nil
	}
	f, err := d.create(lockName)
	if err != nil {
		return err
	}
	if d.lock != nil {
		_ = d.lock.Close()
	}
	d.lock = f
	return nil
}

// private refuses a directory in which somebody else could replace the data, or answer in place of the store.
func private(dir *os.File) error {
	info, err := dir.Stat()
	if err != nil {
		return err
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok && int(s.Uid) != os.Geteuid() {
		return fmt.Errorf("%s is owned by the user with id %d, not by you (%d): %w; run converge as its owner, or change the owner with chown -R",
			dir.Name(), s.Uid, os.Geteuid(), fs.ErrPermission)
	}
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		return fmt.Errorf("%s has mode %04o, so others can replace its contents: %w; check its contents, then run: chmod 700 %[1]s",
			dir.Name(), mode, fs.ErrPermission)
	}
	return nil
}

// Close releases everything, the right to serve last.
func (d *directory) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forget()
	var errs []error
	for _, f := range []*os.File{d.owners, d.lock, d.dir} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// tryLock takes the right to serve the store, unless another process has it. The lock file of that process may have been
// removed, in which case it is found at the socket.
func (d *directory) tryLock() (bool, error) {
	if err := d.kept(); err != nil {
		return false, err
	}
	if err := d.openLock(); err != nil {
		return false, err
	}
	err := unix.Flock(int(d.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK), errors.Is(err, unix.EINTR):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("lock %s: %w", d.lock.Name(), err)
	}
	if conn, err := net.Dial("unix", d.socket()); err == nil {
		return false, errors.Join(conn.Close(), d.unlock())
	}
	if err = d.lock.Truncate(0); err == nil {
		_, err = d.lock.WriteAt(fmt.Appendf(nil, "%d %s %s\n", os.Getpid(), time.Now().UTC().Format(time.RFC3339), d.command), 0)
	}
	if err != nil {
		return false, errors.Join(fmt.Errorf("write %s: %w", d.lock.Name(), err), d.unlock())
	}
	return true, nil
}

func (d *directory) unlock() error { return unix.Flock(int(d.lock.Fd()), unix.LOCK_UN) }

// holder returns the process that has the right to serve, as an error. Where the lock file does not name it, the kernel
// may know which process has the data open.
func (d *directory) holder() *NoAnswerError {
	e := &NoAnswerError{Dir: d.path, PID: locker(d.data(dbName))}
	f, err := os.OpenFile(filepath.Join(d.path, lockName), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return e
	}
	defer f.Close()
	text, _ := io.ReadAll(io.LimitReader(f, 4096))
	words := strings.SplitN(strings.TrimSpace(string(text)), " ", 3)
	if len(words) < 2 {
		return e
	}
	n, nerr := strconv.Atoi(words[0])
	since, terr := time.Parse(time.RFC3339, words[1])
	if nerr == nil && terr == nil && (e.PID == 0 || e.PID == n) {
		e.PID, e.Since, e.Command = n, since, strings.Join(words[2:], "")
	}
	return e
}

// locker returns the process that has a file locked; 0 when it is unknown.
func locker(path string) int {
	var file unix.Stat_t
	locks, err := os.ReadFile("/proc/locks")
	if err != nil || unix.Stat(path, &file) != nil {
		return 0
	}
	at := fmt.Sprintf("%02x:%02x:%d", unix.Major(file.Dev), unix.Minor(file.Dev), file.Ino)
	for line := range strings.Lines(string(locks)) { // 1: FLOCK  ADVISORY  WRITE 4711 fe:01:1234 0 EOF
		words := strings.Fields(line)
		if len(words) > 5 && words[1] == "FLOCK" && words[5] == at {
			pid, _ := strconv.Atoi(words[4])
			return max(pid, 0) // in another PID namespace: 0, or -1
		}
	}
	return 0
}

// begin creates the data folder when it is missing, or anew when what is in it was never used. The caller has the right
// to serve.
func (d *directory) begin() error {
	data, mark := filepath.Join(d.path, dataName), filepath.Join(d.path, unbegunName)
	_, err := os.Lstat(mark)
	switch {
	case err == nil: // nothing in there was ever acknowledged
		if err := os.RemoveAll(data); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	case Exists(d.path):
		return nil
	default:
		f, err := os.OpenFile(mark, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Close(), d.dir.Sync()); err != nil {
			return err
		}
	}
	return os.Mkdir(data, 0o700)
}

// begun records that etcd has answered from the data. That is durable before anything may be written.
func (d *directory) begun() error {
	err := os.Remove(filepath.Join(d.path, unbegunName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, d.dir.Sync())
}

// socket returns the path of the socket. It leads through the open directory, because the path of a socket has at most 108 bytes.
func (d *directory) socket() string { return fmt.Sprintf("/proc/self/fd/%d/socket", d.dir.Fd()) }

// listen creates the socket, in place of one left behind by a process that was killed. The caller has the right to serve.
func (d *directory) listen() (net.Listener, error) {
	if err := os.Remove(d.socket()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var modeErr error
	c := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error { // the file has the mode of the socket
		return errors.Join(conn.Control(func(fd uintptr) { modeErr = unix.Fchmod(int(fd), 0o600) }), modeErr)
	}}
	return c.Listen(context.Background(), "unix", d.socket())
}

// own locks a byte of the file of owners that no process has locked.
func (d *directory) own() error {
	for {
		d.owner = 1 + rand.Int64N(1<<ownerBits-1)
		err := unix.FcntlFlock(d.owners.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: d.owner, Len: 1})
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// The id of a lease holds, from its first bits to its last, its owner, the file of owners in which the owner has a byte, and a
// number among the leases of that owner.
const (
	ownerBits = 23
	fileBits  = 16
	countBits = 24
)

// lease returns a new lease id, unique within the process.
func (d *directory) lease() (clientv3.LeaseID, error) {
	file, err := d.ownersFile()
	return clientv3.LeaseID(d.owner<<(fileBits+countBits) | file<<countBits | d.leases.Add(1)&(1<<countBits-1)), err
}

// ownersFile returns a number that distinguishes the file of owners from another created in its place: while a process has a
// byte of it locked, no other file has its number.
func (d *directory) ownersFile() (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(d.owners.Fd()), &st); err != nil {
		return 0, err
	}
	n := st.Ino ^ st.Dev
	return int64((n ^ n>>16 ^ n>>32 ^ n>>48) & (1<<fileBits - 1)), nil
}

// gone reports whether the process that owns a lease no longer uses the directory. For a process with its byte in another
// file, which was removed or was elsewhere, that is unknown: its leases run out.
func (d *directory) gone(id clientv3.LeaseID) (bool, error) {
	file, err := d.ownersFile()
	owner := int64(id) >> (fileBits + countBits)
	if err != nil || int64(id)>>countBits&(1<<fileBits-1) != file || owner == d.owner { // a byte that this process has locked itself looks free to it
		return false, err
	}
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: owner, Len: 1}
	err = unix.FcntlFlock(d.owners.Fd(), unix.F_OFD_GETLK, &l)
	return err == nil && l.Type == unix.F_UNLCK, err
}

// Exists reports whether a directory holds a store.
func Exists(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, dataName))
	return !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR)
}
