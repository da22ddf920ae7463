package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// An InUseError says that another process uses the directory of the embedded member.
type InUseError struct {
	Dir     string
	PID     int    // 0 when it has not said so yet
	Command string // as in its Options
}

// Error implements error.
func (e *InUseError) Error() string {
	if e.PID == 0 {
		return e.Dir + " is in use by another process"
	}
	return fmt.Sprintf("%s is in use by PID %d (%s)", e.Dir, e.PID, e.Command)
}

// signing is how long a holder may take from locking the directory to saying who it is.
const signing = time.Second

// lockDir takes a directory for this process, making it when it is missing. The kernel gives it back when the process ends
// in whatever way, so a lock is never stale; what the file says counts only while it is locked.
func lockDir(ctx context.Context, dir, command string, wait time.Duration) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(wait)
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return f, sign(f, command)
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		rest := time.Until(deadline)
		if rest <= 0 {
			if busy := inUse(f, dir); busy.PID != 0 || rest < -signing {
				_ = f.Close()
				return nil, busy
			}
			rest = signing / 100
		}
		select {
		case <-time.After(min(rest, 50*time.Millisecond)):
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("wait for %w: %w", inUse(f, dir), context.Cause(ctx))
		}
	}
}

// sign writes into the lock file who holds it.
func sign(f *os.File, command string) error {
	err := f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt(fmt.Appendf(nil, "%d %s\n", os.Getpid(), strings.Join(strings.Fields(command), " ")), 0)
	}
	if err != nil {
		_ = f.Close()
		return fmt.Errorf("write %s: %w", f.Name(), err)
	}
	return nil
}

func inUse(f *os.File, dir string) *InUseError {
	e := &InUseError{Dir: dir}
	text, _ := io.ReadAll(io.NewSectionReader(f, 0, 4096))
	pid, command, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	if n, err := strconv.Atoi(pid); err == nil {
		e.PID, e.Command = n, command
	}
	return e
}
