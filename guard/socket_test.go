package guard_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// logger closes up when the program says that it has started.
func logger(up chan struct{}) *slog.Logger {
	return slog.New(slog.NewTextHandler(&started{up: up}, nil))
}

type started struct {
	once sync.Once
	up   chan struct{}
}

func (s *started) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "guard started") {
		s.once.Do(func() { close(s.up) })
	}
	return len(p), nil
}

// modes checks that nobody else can access a directory.
func modes(t *testing.T, dir string) {
	t.Helper()
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%s: %v, %v", dir, info.Mode(), err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if info, err := os.Lstat(filepath.Join(dir, e.Name())); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", e.Name(), info.Mode(), err)
		}
	}
}
