package guest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"converge.dev/converge/internal/guest/order"
)

// outcome is what is left of a guest.
type outcome struct {
	code    int    // exit code of the test binary, when there is a verdict
	verdict error  // why there is none
	output  []byte // of the test binary
	console []byte // of the kernel and its first process
}

// channels are the ways out of a guest, each a socket that QEMU connects to, in the order of the guest's serial ports; the last is
// QEMU's monitor.
var channels = []string{"console", "result", "requests", "qmp"}

// noPeer is what QEMU has to say of a network card without a network, as ours are.
var noPeer = regexp.MustCompile(`(?m)^.*has no peer\n`)

// boot runs the machine until its test has ended or ctx does. The error is for what keeps a guest from starting.
func boot(ctx context.Context, m Machine, k kernel, image string) (outcome, error) {
	args, err := m.command()
	if err != nil {
		return outcome{}, err
	}
	// A panic ends QEMU. The kernel must not judge the timer by how fast an emulated processor is: on a busy computer it panics.
	const kernelArgs = "console=ttyS0 panic=-1 quiet no_timer_check intel_iommu="
	iommu := "off"
	if m.IOMMU {
		iommu = "on"
	}
	args = append(args, "-kernel", k.image(), "-initrd", image, "-append", kernelArgs+iommu)
	dir, err := os.MkdirTemp("", "guest-") // not that of the test: the path of a socket must be short
	if err != nil {
		return outcome{}, err
	}
	defer os.RemoveAll(dir)
	listeners := map[string]net.Listener{}
	hangUp := func() {
		for _, l := range listeners {
			l.Close()
		}
	}
	defer hangUp()
	for _, name := range channels {
		path := filepath.Join(dir, name)
		if listeners[name], err = net.Listen("unix", path); err != nil {
			return outcome{}, err
		}
		args = append(args, "-chardev", "socket,id="+name+",path="+path)
		if name == "qmp" {
			args = append(args, "-mon", "mode=control,chardev="+name)
		} else {
			args = append(args, "-serial", "chardev:"+name)
		}
	}

	var result outcome
	var talk sync.WaitGroup
	collect := func(name string, into *[]byte) {
		talk.Go(func() {
			conn, err := listeners[name].Accept()
			if err != nil {
				return // QEMU has ended, and says why
			}
			defer conn.Close()
			*into, _ = io.ReadAll(conn) // whatever ends it, what came is what there is
		})
	}
	collect("console", &result.console)
	collect("result", &result.output)
	talk.Go(func() { m.serve(listeners["qmp"], listeners["requests"]) })

	program, firmware := m.emulator()
	cmd := exec.CommandContext(ctx, program, append(firmware, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	ended := make(chan error)
	go func() {
		runtime.LockOSThread() // with whose end, not that of the process, Pdeathsig comes
		defer runtime.UnlockOSThread()
		ended <- cmd.Run()
	}()
	err = <-ended
	hangUp()
	talk.Wait()
	result.code, result.verdict = verdict(ctx, cmd.ProcessState, err, noPeer.ReplaceAllString(stderr.String(), ""))
	return result, nil
}

// serve answers the requests of a guest, one after the other, until QEMU ends.
func (m Machine) serve(qmp, requests net.Listener) {
	control, err := qmp.Accept()
	if err != nil {
		return
	}
	defer control.Close()
	guest, err := requests.Accept()
	if err != nil {
		return
	}
	defer guest.Close()
	mon, err := converse(control)
	if err != nil {
		return
	}
	for lines := bufio.NewScanner(guest); lines.Scan(); {
		answer, err := m.answer(mon, lines.Text())
		if err != nil {
			answer = "error " + strings.ReplaceAll(err.Error(), "\n", " ")
		}
		if _, err := fmt.Fprintln(guest, answer); err != nil {
			return
		}
	}
}

// answer does what a line of a guest asks for, and returns the line that says so.
func (m Machine) answer(mon *monitor, line string) (string, error) {
	verb, name, _ := strings.Cut(line, " ")
	if verb == "address" {
		at, err := mon.address(name)
		return "ok " + at, err
	}
	d, ok := m.device(name)
	switch {
	case !ok:
		return "", fmt.Errorf("the machine %s has no device %q", m.Name, name)
	case verb == "plug":
		return "ok", mon.plug(d)
	case verb == "unplug":
		return "ok", mon.unplug(d)
	}
	return "", fmt.Errorf("nobody knows how to %q", line)
}

// verdict reads QEMU's end: an odd exit status is what the guest's first process wrote to isa-debug-exit, but 1 is QEMU's own.
func verdict(ctx context.Context, state *os.ProcessState, err error, stderr string) (code int, none error) {
	if stderr = strings.TrimSpace(stderr); stderr != "" {
		stderr = ": " + stderr
	}
	switch {
	case ctx.Err() != nil:
		return 0, fmt.Errorf("the guest did not end in time: %w", context.Cause(ctx))
	case state == nil:
		return 0, fmt.Errorf("QEMU did not start: %w", err)
	case !state.Exited():
		return 0, fmt.Errorf("QEMU was ended (%s)%s", state, stderr)
	case state.ExitCode() == 0:
		return 0, errors.New("the kernel panicked or powered off" + stderr)
	case state.ExitCode()%2 == 0 || state.ExitCode() == 1:
		return 0, fmt.Errorf("QEMU failed (%s)%s", state, stderr)
	}
	code = state.ExitCode()/2 - order.Ended
	if code == order.Broken {
		return 0, errors.New("the guest's first process could not run the test, or it was killed")
	}
	return code, nil
}
