package libvirt

import (
	"slices"
	"testing"

	"converge.dev/converge/schema"
)

// Only a pool that is created gets a directory. One that exists may have a directory that is not mounted.
func TestBuiltOnce(t *testing.T) {
	f := newFake()
	var calls []string
	f.fail = func(call string) error { calls = append(calls, call); return nil }
	p := f.open(t)
	c := calling("libvirt.pool", "p")
	c.Want = schema.Object{"path": "/srv/p", "active": false}
	if err := served(t, p, "libvirt.pool").Kind.Create(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if err := updated(t, p, "libvirt.pool", "p", schema.Object{"active": true}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"define p", "build p", "autostart p", "start p"}; !slices.Equal(calls, want) {
		t.Errorf("the calls were %q, want %q", calls, want)
	}
}
