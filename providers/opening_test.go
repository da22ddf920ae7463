package providers_test

import (
	"testing"

	"converge.dev/converge/providers"
)

// Relative paths begin at the folder of the configuration.
func TestOpeningPaths(t *testing.T) {
	o := providers.Opening{Dir: "/etc/converge"}
	for path, want := range map[string]string{"": "", "ca.pem": "/etc/converge/ca.pem", "../k.pem": "/etc/k.pem", "/abs/c.pem": "/abs/c.pem"} {
		if got := o.Path(path); got != want {
			t.Errorf("the path %q is %q, want %q", path, got, want)
		}
	}
	for address, want := range map[string]string{"": "", "unix:": "unix:", "unix:db.sock": "unix:/etc/converge/db.sock", "unix:/run/db.sock": "unix:/run/db.sock", "carbide:443": "carbide:443"} {
		if got := o.Address(address); got != want {
			t.Errorf("the address %q is %q, want %q", address, got, want)
		}
	}
}

func TestNamesUser(t *testing.T) {
	for address, want := range map[string]bool{"h:1": false, "me@h:1": true, "me:secret@h:1": true, "unix:/run/a@b.sock": false} {
		if providers.NamesUser(address) != want {
			t.Errorf("%s names a user: %t, want %t", address, !want, want)
		}
	}
}
