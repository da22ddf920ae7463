//go:build !linux || !cgo || !libvirt_dlopen

package libvirt

import (
	"strings"
	"testing"

	"converge.dev/converge/internal/providertest"
)

// A program without support for libvirt says so, and how to get one that has it.
func TestWithout(t *testing.T) {
	_, err := Open(t.Context(), Options{Node: "gpu-01", Site: providertest.Site})
	if err == nil || !strings.Contains(err.Error(), "built without support for libvirt; to have it, build converge on Linux with cgo and the tag libvirt_dlopen") {
		t.Errorf("it says %v", err)
	}
}
