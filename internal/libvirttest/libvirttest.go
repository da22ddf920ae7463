// Package libvirttest gives tests a libvirt of their own: [Start] a real libvirtd on a private host. [Library] says whether there is
// a library of libvirt, whose test driver plays a node in memory.
//
// A [Host] has network, processes and directories of its own; nothing on the machine is touched. Tests change and read it like other
// clients do, past the provider under test.
package libvirttest

import (
	"os"
	"path/filepath"
	"testing"
)

// Installed reports whether the library of libvirt is installed.
func Installed() bool {
	for _, dir := range []string{"/lib*", "/lib/*", "/usr/lib*", "/usr/lib/*", "/usr/local/lib"} {
		if found, _ := filepath.Glob(filepath.Join(dir, "libvirt.so.0")); len(found) > 0 {
			return true
		}
	}
	return false
}

// Library skips the test when the library of libvirt is not installed, or fails it when the environment sets Required.
func Library(t testing.TB) {
	t.Helper()
	if Installed() {
		return
	}
	if os.Getenv(Required) != "" {
		t.Fatalf("%s is set, but there is no libvirt.so.0", Required)
	}
	t.Skipf("there is no libvirt.so.0: the test needs the package libvirt0; %s=1 makes this an error", Required)
}
