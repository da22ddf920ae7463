package carbide_test

import (
	"fmt"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "carbide")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	certificateDir = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}
