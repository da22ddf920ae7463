package main

import (
	"fmt"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// crashByAbort makes a crash of the process end it with SIGABRT, which a shell shows as 134. Go's own status for that is 2,
// and that means differences. The kernel must not write the memory of the process to a file then, for it holds secrets.
func crashByAbort() error {
	var core unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &core); err != nil {
		return fmt.Errorf("read the limit of core files: %w", err)
	}
	core.Cur = min(core.Max, 1) // not 0: a program that the kernel hands the memory to gets it whatever the limit, save at 1
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &core); err != nil {
		return fmt.Errorf("forbid core files: %w", err)
	}
	debug.SetTraceback("crash")
	return nil
}
