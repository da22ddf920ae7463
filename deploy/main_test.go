package deploy_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// scratch is a directory for the tests of this package.
var scratch string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if scratch, err = os.MkdirTemp("", "deploy"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(scratch)
		return m.Run()
	}())
}

// built builds the program once, for the tests that ask it.
var built = sync.OnceValues(func() (string, error) {
	path := filepath.Join(scratch, "converge")
	out, err := exec.Command("go", "build", "-o", path, "../cmd/converge").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the program: %w\n%s", err, out)
	}
	return path, nil
})

// converge runs the program in a directory, with nothing in its environment but what is given.
func converge(t *testing.T, dir string, environ []string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	var out, diagnostics strings.Builder
	cmd := exec.Command(path, args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, append([]string{"HOME=" + dir}, environ...), &out, &diagnostics
	err = cmd.Run()
	return out.String(), diagnostics.String(), err
}

// tool finds a program of a Debian package. Without it the test is skipped, unless real systems are required and .ci/deps installs it.
func tool(t *testing.T, name, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	required := regexp.MustCompile(`(?m)^need ` + regexp.QuoteMeta(name) + ` `).MatchString(read(t, "../.ci/deps"))
	if os.Getenv("CONVERGE_REAL") == "1" && required {
		t.Fatalf("%s is missing: install the package %s", name, pkg)
	}
	t.Skipf("%s is missing: install the package %s", name, pkg)
	return ""
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
