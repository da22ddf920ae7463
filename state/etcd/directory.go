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
	PID     int // 0 when it has not said so yet
	Since   time.Time
	Command string // as in its Options
}

// Error implements error.
func (e *InUseError) Error() string {
	if e.PID == 0 {
		return e.Dir + " is in use by another process"
	}
	return fmt.Sprintf("%s is in use by PID %d since %s (%s)", e.Dir, e.PID, e.Since.Format(time.DateTime), e.Command)
}

// signing is how long a holder may take from locking the directory to saying who it is.
const signing = time.Second

// lockDir takes a directory for this process, making it when it is missing. The kernel gives it back when the process ends
// in whatever way, so a lock is never stale; what the file says counts only while it is locked.
func lockDir(ctx context.Context, dir, command string, wait time.Duration) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	// The file is written into, so a link in its place must not lead to another.
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
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
		_, err = f.WriteAt(fmt.Appendf(nil, "%d %s %s\n", os.Getpid(), time.Now().UTC().Format(time.RFC3339), strings.Join(strings.Fields(command), " ")), 0)
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
	words := strings.SplitN(strings.TrimSpace(string(text)), " ", 3)
	if len(words) < 2 {
		return e
	}
	n, nerr := strconv.Atoi(words[0])
	since, terr := time.Parse(time.RFC3339, words[1])
	if nerr == nil && terr == nil {
		e.PID, e.Since, e.Command = n, since, strings.Join(words[2:], "")
	}
	return e
}
