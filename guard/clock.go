package guard

import (
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"converge.dev/converge/internal/files"
)

// bootID returns the id that the kernel chose when the machine was started.
func bootID() (string, error) {
	const path = "/proc/sys/kernel/random/boot_id"
	b, err := files.Read(path, 128)
	if id := strings.TrimSpace(string(b)); err == nil && id != "" {
		return id, nil
	}
	return "", fmt.Errorf("read the id of this boot from %s: %w", path, err)
}

// uptime returns how long the machine runs, including the time in which it was suspended. Nobody can set this clock.
func uptime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(fmt.Sprintf("guard: read the boot clock: %v", err)) // every Linux has it
	}
	return time.Duration(t.Nano())
}
