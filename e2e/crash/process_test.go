package crash

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"converge.dev/converge/internal/torture"
)

// A process is a run of converge that may be killed or stopped at a point.
type process struct {
	args   string
	rules  string
	cmd    *exec.Cmd
	out    *os.File // both outputs, one after the other
	log    string   // file of the points that were passed
	slow   atomic.Bool
	watch  *time.Timer
	status syscall.WaitStatus
}

var serial atomic.Int64

// start starts converge in a folder. Rules are those of package failpoint; env is added to its environment.
func start(dir, rules string, args ...string) (*process, error) {
	p := &process{args: strings.Join(args, " "), rules: rules, log: filepath.Join(dir, fmt.Sprintf("points.%d", serial.Add(1)))}
	var err error
	if p.out, err = os.Create(p.log + ".out"); err != nil {
		return nil, err
	}
	// The wait is for files of which a starting child of ours has copies; see [site.dump].
	p.cmd = exec.Command(binary, append(slices.Clone(args), "-lock-timeout=90s")...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, p.out, p.out
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + os.TempDir(), "CONVERGE_FAILPOINT=" + rules, "CONVERGE_FAILPOINT_LOG=" + p.log}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.watch = time.AfterFunc(torture.Patience, func() {
		p.slow.Store(true)
		_ = p.cmd.Process.Kill()
	})
	return p, nil
}

// next waits until the process has stopped or ended, and reports which.
func (p *process) next() (stopped bool, err error) {
	for {
		_, err = syscall.Wait4(p.cmd.Process.Pid, &p.status, syscall.WUNTRACED, nil)
		if err != syscall.EINTR {
			break
		}
	}
	if err != nil {
		return false, fmt.Errorf("wait for converge %s: %w", p.args, err)
	}
	if p.status.Stopped() {
		return true, nil
	}
	p.watch.Stop()
	_ = p.out.Close()
	if p.slow.Load() {
		return false, fmt.Errorf("converge %s took longer than %s:\n%s", p.args, torture.Patience, p.said())
	}
	return false, p.cmd.Process.Release()
}

// wake lets a stopped process continue.
func (p *process) wake() error { return syscall.Kill(p.cmd.Process.Pid, syscall.SIGCONT) }

// killed reports whether the process was ended by SIGKILL, as a rule demanded.
func (p *process) killed() bool { return p.status.Signaled() && p.status.Signal() == syscall.SIGKILL }

// code returns the exit status; -1 when a signal ended the process.
func (p *process) code() int {
	if p.status.Exited() {
		return p.status.ExitStatus()
	}
	return -1
}

// said returns all output of the process.
func (p *process) said() string {
	text, err := os.ReadFile(p.log + ".out")
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// passed returns the points that the process passed, in order.
func (p *process) passed() []string {
	text, err := os.ReadFile(p.log)
	if err != nil { // it passed none
		return nil
	}
	text, _, _ = cutLast(text, '\n') // the last line of a killed process may be torn
	if len(text) == 0 {
		return nil
	}
	return strings.Split(string(text), "\n")
}

func cutLast(b []byte, sep byte) (before, after []byte, found bool) {
	if i := bytes.LastIndexByte(b, sep); i >= 0 {
		return b[:i], b[i+1:], true
	}
	return nil, b, false
}

// report returns a description for people who investigate a failure.
func (p *process) report() string {
	how := fmt.Sprintf("exit status %d", p.code())
	if p.killed() {
		how = "killed"
	}
	return fmt.Sprintf("$ CONVERGE_FAILPOINT='%s' converge %s    # %s\n%s", p.rules, p.args, how, p.said())
}
