package secrets

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"converge.dev/converge/internal/torture"
	"converge.dev/converge/state"
	"converge.dev/converge/state/etcd"
)

// binary is the program under test, built once.
var binary string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "secrets")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		if binary, err = build(dir); err != nil {
			fmt.Fprintln(os.Stderr, "build the program under test:", err)
			return 1
		}
		return m.Run()
	}())
}

// build builds the program with the kind that has secrets, and its provider.
func build(dir string) (string, error) {
	here, err := os.Getwd()
	if err != nil {
		return "", err
	}
	root := filepath.Dir(filepath.Dir(here))
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{
		filepath.Join(root, "schema", "far", "account.cue"):     filepath.Join(here, "testdata", "account.cue"),
		filepath.Join(root, "providers", "all", "far_test_.go"): filepath.Join(here, "testdata", "far.go"),
	}})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, overlay, 0o600); err != nil {
		return "", err
	}
	out := filepath.Join(dir, "converge")
	cmd := exec.Command("go", "build", "-tags=libvirt_dlopen", "-overlay", path, "-o", out, filepath.Join(root, "cmd", "converge"))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return out, cmd.Run()
}

// A site is a folder in which the program is run, and all its output there.
type site struct {
	*testing.T
	dir    string
	env    map[string]string
	said   []place
	number int // of commands so far
}

func newSite(t *testing.T) *site {
	return &site{T: t, dir: t.TempDir(), env: map[string]string{}}
}

func (s *site) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// write writes a file into the folder.
func (s *site) write(name, text string) {
	s.Helper()
	path := filepath.Join(s.dir, name)
	s.must(os.MkdirAll(filepath.Dir(path), 0o700))
	s.must(os.WriteFile(path, []byte(text), 0o600))
}

// read reads a file of the folder.
func (s *site) read(name string) string {
	s.Helper()
	b, err := os.ReadFile(filepath.Join(s.dir, name))
	s.must(err)
	return string(b)
}

// A result is the output of a command.
type result struct {
	status         int
	stdout, stderr string
}

func (r result) all() string { return r.stdout + r.stderr }

func (s *site) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = s.dir
	cmd.Env = []string{"HOME=" + s.dir, "PATH=/usr/bin:/bin", "CONVERGE_LOG=trace", "CONVERGE_LOG_PATH=" + filepath.Join(s.dir, "log.txt")}
	for name, value := range s.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return cmd
}

// run runs the program and keeps its output. It fails unless the status is among the wanted ones.
func (s *site) run(want []int, args ...string) result {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), torture.Patience)
	defer cancel()
	cmd := s.command(ctx, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.Fatal(err)
	}
	r := result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
	s.keep(r, args...)
	if !slices.Contains(want, r.status) {
		s.Fatalf("converge %s: status %d, want %v\n%s\n%s", strings.Join(args, " "), r.status, want, r.stdout, r.stderr)
	}
	return r
}

func (s *site) keep(r result, args ...string) {
	s.number++
	name := fmt.Sprintf("%d: converge %s", s.number, strings.Join(args[:min(len(args), 3)], " "))
	s.said = append(s.said, place{"standard output of " + name, []byte(r.stdout)}, place{"standard error of " + name, []byte(r.stderr)})
}

var (
	done     = []int{0}
	failed   = []int{1}
	reverted = []int{3}
	partial  = []int{4}
	refused  = []int{7}
)

var (
	approval = regexp.MustCompile(`-approve=([0-9a-f]+)`)
	heldBy   = regexp.MustCompile(`converge hold release (serial:[0-9]+)`)
)

// apply applies with everything that this requires: a revision that ended reverted is released, and the approval that the
// program requires is given.
func (s *site) apply(want []int, args ...string) result {
	s.Helper()
	args = append([]string{"apply"}, args...)
	for {
		r := s.run(append(slices.Clone(want), 7), args...)
		asked, held := approval.FindStringSubmatch(r.all()), heldBy.FindStringSubmatch(r.all())
		switch {
		case r.status == 7 && held != nil:
			s.run(done, "hold", "release", held[1])
		case r.status == 7 && asked != nil && !slices.Contains(args, asked[0]):
			args = slices.Insert(args, 1, asked[0])
		case !slices.Contains(want, r.status):
			s.Fatalf("converge %s: status %d, want %v\n%s", strings.Join(args, " "), r.status, want, r.all())
		default:
			return r
		}
	}
}

// newest returns the id of the newest run.
func (s *site) newest() string {
	s.Helper()
	var list struct{ Runs []struct{ ID string } }
	r := s.run(done, "runs", "-json")
	s.must(json.Unmarshal([]byte(r.stdout), &list))
	if len(list.Runs) == 0 {
		s.Fatalf("there is no run: %s", r.stdout)
	}
	return list.Runs[0].ID
}

// kill runs the program until the far side hangs in a call, and kills it there.
func (s *site) kill(args ...string) {
	s.Helper()
	for {
		r, over := s.start(args...)
		s.keep(r, args...)
		if !over {
			return
		}
		held := heldBy.FindStringSubmatch(r.all())
		if held == nil {
			s.Fatalf("converge %s: the far side was never called: %s", strings.Join(args, " "), r.all())
		}
		s.run(done, "hold", "release", held[1])
	}
}

// start runs the program until it hangs, and kills it, or until it ends.
func (s *site) start(args ...string) (r result, over bool) {
	s.Helper()
	hanging := filepath.Join(s.dir, "hanging")
	_ = os.Remove(hanging)
	ctx, cancel := context.WithTimeout(s.Context(), torture.Patience)
	defer cancel()
	cmd := s.command(ctx, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	s.must(cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for !over {
		select {
		case <-ended:
			over = true
		case <-look.C:
			if _, err := os.Stat(hanging); err == nil {
				s.must(cmd.Process.Kill())
				<-ended
				return result{-1, stdout.String(), stderr.String()}, false
			}
		}
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}, true
}

// mischief sets what the far side does with the secrets from now on; nothing when op is empty.
func (s *site) mischief(op, name, way, encoding string) {
	s.Helper()
	text := "[]"
	if op != "" {
		text = fmt.Sprintf(`[{"op": %q, "name": %q, "way": %q, "encoding": %q}]`, op, name, way, encoding)
	}
	s.write("far-mischief.json", text)
}

// store opens the store of the folder.
func (s *site) store() state.KV {
	s.Helper()
	kv, err := etcd.Open(s.Context(), etcd.Options{Dir: filepath.Join(s.dir, ".converge")})
	s.must(err)
	return kv
}

// places returns everything that was written: the output, the files of the folder that are the program's, and every key
// and value of the store.
func (s *site) places() (all []place, keys int) {
	s.Helper()
	all = slices.Clone(s.said)
	kv := s.store()
	items, err := kv.List(s.Context(), "/converge/")
	s.must(err)
	for _, it := range items {
		all = append(all, place{"key " + it.Key, append([]byte(it.Key+"\n"), it.Value...)}, place{"value of " + it.Key, it.Value})
	}
	s.must(kv.Close())
	return append(all, s.files(s.ours)...), len(items)
}

// files returns the files of the folder that are chosen by name.
func (s *site) files(chosen func(name string) bool) (all []place) {
	s.Helper()
	s.must(filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(s.dir, path)
		if err != nil || !d.Type().IsRegular() || !chosen(name) {
			return err
		}
		b, err := os.ReadFile(path)
		all = append(all, place{"file " + name, b})
		return err
	}))
	return all
}

// ours reports whether the program wrote a file. The rest is the far side, the documents and the secrets themselves.
func (s *site) ours(name string) bool {
	return strings.HasPrefix(name, ".converge/") || strings.HasSuffix(name, ".plan") || name == "log.txt"
}

// newCanary returns a secret that occurs nowhere else.
func newCanary(name, special string) canary {
	return canary{name, "cny-" + rand.Text()[:12] + special + rand.Text()[:12]}
}
