package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// The service manager that starts the guard is told when what waits for it can go on.
func TestReadiness(t *testing.T) {
	program, err := exec.LookPath("converge")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "agent.yaml"), []byte("servers: ['127.0.0.1:7443']\nguard: undo\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "manager"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	guard := exec.CommandContext(t.Context(), program, "agent", "guard")
	guard.Dir = dir
	guard.Env = []string{"HOME=" + dir, "NOTIFY_SOCKET=" + filepath.Join(dir, "manager")}
	guard.Stderr = os.Stderr
	if err := guard.Start(); err != nil {
		t.Fatal(err)
	}
	told, said := make(chan error, 1), make([]byte, 64)
	var n int
	go func() {
		var err error
		n, err = manager.Read(said)
		told <- err
	}()
	select {
	case err = <-told:
	case <-time.After(5 * time.Minute):
		t.Fatal("the service manager was told nothing")
	}
	if err != nil || string(said[:n]) != "READY=1" {
		t.Errorf("the service manager was told %q, %v", said[:n], err)
	}
	if _, err := os.Stat(filepath.Join(dir, "undo", "guard.sock")); err != nil {
		t.Errorf("it is ready, and cannot be reached: %v", err)
	}
	_ = guard.Process.Signal(syscall.SIGTERM)
	if err := guard.Wait(); err != nil && guard.ProcessState.ExitCode() != 143 {
		t.Errorf("it ended with %v", err)
	}
}
