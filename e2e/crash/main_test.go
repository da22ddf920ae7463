package crash

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"converge.dev/converge/internal/torture"
)

var (
	onlyPlan = flag.Int("crash.plan", -1, "try one plan only, at all points that it reaches")
	keep     = flag.String("crash.keep", "", "copy the folders of failed sites into this folder")
)

// binary is converge with failpoints.
var binary string

// scratch is where sites are created. Memory is used if available: a killed process loses nothing that it wrote to a
// file, so a disk would only take more time.
var scratch string

func TestMain(m *testing.M) {
	flag.Parse()
	torture.Together(8) // they wait for leases to expire
	os.Exit(func() int {
		var err error
		if scratch, err = os.MkdirTemp("/dev/shm", "crash"); err != nil {
			scratch, err = os.MkdirTemp("", "crash")
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(scratch)
		binary = filepath.Join(scratch, "converge")
		build := exec.Command("go", "build", "-tags=failpoint,libvirt_dlopen", "-o", binary, "../../cmd/converge")
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "build the program under test:", err)
			return 1
		}
		return m.Run()
	}())
}
