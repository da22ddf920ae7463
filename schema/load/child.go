package load

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"converge.dev/converge/schema/internal/message"
)

// Limits bound one evaluation in a child process. Zero fields take the value of [DefaultLimits].
type Limits struct {
	Time   time.Duration // CPU time, so that a busy machine refuses nothing; a child may wait long for it
	Memory int64         // bytes resident
}

// waits is how many times its CPU time an evaluation may take in total.
const waits = 20

// DefaultLimits leave ample room for a site of 10 000 resources made by comprehensions, and refuse a document that burns
// CPU time within two seconds.
var DefaultLimits = Limits{Time: 1700 * time.Millisecond, Memory: 256 << 20}

// A request is what the child reads, an answer what it writes. The data of the sources follow the request verbatim:
// encoded with it, each would be in memory several times.
type request struct {
	Sources []Source // without data
	Sizes   []int    // of the data
	Limits  Limits
}

// encode returns a reader of the request; the caller must not modify the data of sources meanwhile.
func (r request) encode(sources []Source) (io.Reader, error) {
	var head bytes.Buffer
	parts := []io.Reader{&head}
	for _, s := range sources {
		r.Sizes = append(r.Sizes, len(s.Data))
		parts = append(parts, bytes.NewReader(s.Data))
		s.Data = nil
		r.Sources = append(r.Sources, s)
	}
	return io.MultiReader(parts...), gob.NewEncoder(&head).Encode(r)
}

// decode reads a request with the data of its sources.
func (r *request) decode(in io.Reader) error {
	buffered := bufio.NewReader(in) // so that package gob reads no further than it must
	if err := gob.NewDecoder(buffered).Decode(r); err != nil {
		return err
	}
	if len(r.Sizes) != len(r.Sources) {
		return errors.New("it does not state the size of every source")
	}
	for i, size := range r.Sizes {
		if size == 0 {
			continue
		}
		if size < 0 || size > maxSize {
			return fmt.Errorf("invalid source size of %d bytes", size)
		}
		r.Sources[i].Data = make([]byte, size)
		if _, err := io.ReadFull(buffered, r.Sources[i].Data); err != nil {
			return err
		}
	}
	return nil
}

type answer struct {
	Evaluated   *Evaluated
	Diagnostics Diagnostics
}

// ChildEvaluator evaluates in a child process that argv starts, which must do nothing but call [EvaluateMain]. A child
// that exceeds the limits is killed with all its descendants, as it is when ctx is cancelled; the diagnostic then says
// what to do. The child has no environment, and the working directory of the parent.
func ChildEvaluator(argv []string, limits Limits) Evaluator {
	limits.Time = cmp.Or(limits.Time, DefaultLimits.Time)
	limits.Memory = cmp.Or(limits.Memory, DefaultLimits.Memory)
	return func(ctx context.Context, sources []Source) (*Evaluated, Diagnostics) {
		in, err := request{Limits: limits}.encode(sources)
		if err != nil {
			return nil, childFailed(codeEvaluation, "Evaluating %s failed: %v.", names(sources), err)
		}
		out, err := runChild(ctx, argv, limits, in)
		switch {
		case ctx.Err() != nil:
			return nil, childFailed(codeInterrupted, "Evaluating %s was cancelled: %v.", names(sources), context.Cause(ctx))
		case errors.Is(err, errTime):
			return nil, childFailed(codeLimit, "Evaluating %s used more than %v of CPU time. Simplify it, or raise -eval-timeout.", names(sources), limits.Time)
		case errors.Is(err, errWait):
			return nil, childFailed(codeLimit, "Evaluating %s did not finish within %v: it was waiting for a file, or for a CPU on a busy machine. Try again, or raise -eval-timeout.", names(sources), waits*limits.Time)
		case errors.Is(err, errMemory):
			return nil, childFailed(codeLimit, "Evaluating %s used more than %d MiB of memory. Simplify it, or raise -eval-memory.", names(sources), limits.Memory>>20)
		case err != nil:
			return nil, childFailed(codeEvaluation, "Evaluating %s failed: %v.", names(sources), err)
		}
		var a answer
		if err := gob.NewDecoder(out).Decode(&a); err != nil {
			return nil, childFailed(codeEvaluation, "Evaluating %s failed: the result could not be read: %v.", names(sources), err)
		}
		return a.Evaluated, a.Diagnostics
	}
}

func childFailed(code, format string, args ...any) Diagnostics {
	return Diagnostics{{Severity: Error, Code: code, Summary: summaries[code], Detail: fmt.Sprintf(format, args...)}}
}

// names lists the sources for a message.
func names(sources []Source) string {
	var list []string
	for i, s := range sources {
		if i == 3 {
			list = append(list, fmt.Sprintf("and %d more", len(sources)-i))
			break
		}
		list = append(list, message.Printable(s.Name))
	}
	return strings.Join(list, ", ")
}

var (
	errTime   = errors.New("time limit")
	errWait   = errors.New("wait limit")
	errMemory = errors.New("memory limit")
)

// runChild runs argv within limits and returns its output.
func runChild(ctx context.Context, argv []string, limits Limits, in io.Reader) (*bytes.Buffer, error) {
	limited, cancel := context.WithTimeoutCause(ctx, waits*limits.Time, errWait)
	defer cancel()
	limited, stop := context.WithCancelCause(limited)
	defer stop(nil)
	var out bytes.Buffer
	var complaint tail
	cmd := exec.CommandContext(limited, argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &complaint
	// Memory is bounded, so less time need be spent on saving it.
	cmd.Env = []string{"GOGC=200", "GOMEMLIMIT=" + strconv.FormatInt(limits.Memory*7/8, 10)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that one signal reaches all
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-limited.Done():
				return
			case <-tick.C:
				// A part is reserved for what it allocates until that is noticed and it is killed.
				if resident(cmd.Process.Pid) > limits.Memory-limits.Memory/16 {
					stop(errMemory)
				} else if worked(cmd.Process.Pid) > limits.Time {
					stop(errTime)
				}
			}
		}
	}()
	err := cmd.Wait()
	cause := context.Cause(limited)
	cancel()
	<-watched
	switch {
	case err == nil:
		return &out, nil
	case cause == errMemory, cause == errTime, cause == errWait:
		return nil, cause
	case cmd.ProcessState != nil && cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime() > limits.Time: // the child limits itself too
		return nil, errTime
	case len(complaint) > 0:
		return nil, fmt.Errorf("%w: %s", err, message.Printable(strings.ReplaceAll(string(complaint), "\n", " ")))
	}
	return nil, err
}

// resident returns the resident memory of a process in bytes; 0 when it is unknown.
func resident(pid int) int64 {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(b))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// worked returns the CPU time of a process; 0 when it is unknown.
func worked(pid int) time.Duration {
	const scheduled = 2 // the clock that counts scheduled CPU time; see clock_getcpuclockid(3)
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// A tail keeps the start of the output of a failing child.
type tail []byte

func (t *tail) Write(b []byte) (int, error) {
	*t = append(*t, b[:min(len(b), max(0, 300-len(*t)))]...)
	return len(b), nil
}

// EvaluateMain is the child process of [ChildEvaluator]: it reads the sources, evaluates them and writes the answer. It
// also limits itself, so that it does not outlive a parent that was killed.
func EvaluateMain(stdin io.Reader, stdout io.Writer) error {
	var r request
	if err := r.decode(stdin); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	if r.Limits.Memory > 0 {
		debug.SetMemoryLimit(r.Limits.Memory * 7 / 8)
	}
	if r.Limits.Time > 0 {
		time.AfterFunc((waits+1)*r.Limits.Time, func() { os.Exit(1) })
		seconds := uint64(r.Limits.Time/time.Second + 1)
		if err := syscall.Setrlimit(syscall.RLIMIT_CPU, &syscall.Rlimit{Cur: seconds, Max: seconds + 1}); err != nil {
			return fmt.Errorf("set the CPU time limit: %w", err)
		}
	}
	var a answer
	a.Evaluated, a.Diagnostics = evaluateHere(context.Background(), r.Sources)
	return gob.NewEncoder(stdout).Encode(a)
}
