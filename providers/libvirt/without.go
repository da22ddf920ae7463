//go:build !linux || !cgo || !libvirt_dlopen

package libvirt

import "errors"

// dial fails: the library of libvirt is used through cgo, and a program that has to be linked with it would not start where it is
// not installed.
func dial(string, func(object, string, bool)) (conn, error) {
	return nil, errors.New("this program was built without support for libvirt; to have it, build converge on Linux with cgo and the tag libvirt_dlopen, as make build does")
}
