// Command init is the first process of a guest: it mounts what a test expects, loads modules, runs one test binary and
// reports its exit code to QEMU. Nothing else runs in the guest.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"

	"converge.dev/converge/internal/guest/order"
)

func main() {
	code, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "init:", err) // to the console
		code = order.Broken
	}
	end(code)
}

func run() (code int, err error) {
	for _, m := range []struct{ kind, at string }{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}} {
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil {
			return 0, fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	content, err := os.ReadFile(order.File)
	if err != nil {
		return 0, err
	}
	var o order.Order
	if err := json.Unmarshal(content, &o); err != nil {
		return 0, err
	}
	for _, m := range o.Modules {
		if err := load(m); err != nil {
			return 0, fmt.Errorf("load %s: %w", m, err)
		}
	}
	result, err := open(order.Result)
	if err != nil {
		return 0, err
	}
	// Held open to the end, so that the settings stay and no byte is dropped when a test closes it.
	if _, err := open(order.Requests); err != nil {
		return 0, err
	}
	cmd := exec.Command(order.Test, o.Args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = order.Dir, o.Env, result, result
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		err = nil
	}
	if err != nil {
		return 0, err
	}
	return cmd.ProcessState.ExitCode(), drain(result)
}

func load(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != unix.EEXIST {
		return err
	}
	return nil
}

// open opens a serial port that changes nothing of what passes through it: no echo, no carriage returns.
func open(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	t.Iflag, t.Oflag, t.Lflag = 0, 0, 0
	t.Cflag = unix.CS8 | unix.CREAD | unix.CLOCAL | unix.B115200
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return f, nil
}

// drain waits until the port has sent everything. QEMU ends at once when it is told to, and what is in the port is lost.
func drain(port *os.File) error { return unix.IoctlSetInt(int(port.Fd()), unix.TCSBRK, 1) }

// end makes QEMU exit. Powering off is what is left when that fails; QEMU then exits with 0, which is no verdict.
func end(code int) {
	if err := drain(os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "init: drain the console:", err)
	}
	if port, err := os.OpenFile("/dev/port", os.O_WRONLY, 0); err == nil {
		_, err = port.WriteAt([]byte{byte(code + order.Ended)}, order.ExitPort)
		fmt.Fprintln(os.Stderr, "init: exit:", err)
	}
	err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	fmt.Fprintln(os.Stderr, "init: power off:", err)
}
