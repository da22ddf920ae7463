package main

import (
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDrainUnderSignals drains a terminal while the process gets signals, as it does when what a test has left behind ends.
func TestDrainUnderSignals(t *testing.T) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	port, err := open("/dev/pts/" + strconv.Itoa(n))
	if err != nil {
		t.Fatal(err)
	}
	defer port.Close()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Kill(os.Getpid(), unix.SIGCHLD)
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	for range 200_000 {
		if err := drain(port); err != nil {
			t.Fatal(err)
		}
	}
}
