package libvirt

import (
	"strings"
	"testing"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

const (
	hostA = "<host mac='52:54:00:00:00:0A' name='a' ip='10.0.0.2'/>"
	hostB = "<host mac='52:54:00:00:00:0b' name='b' ip='10.0.0.3'/>"
)

// A reservation does not get what another one has: libvirt would overwrite that one.
func TestModifyTaken(t *testing.T) {
	moved := strings.Replace(hostA, "10.0.0.2", "10.0.0.7", 1)
	for name, c := range map[string]struct {
		stored, running string
		fields          schema.Object
	}{
		"address":              {hostA + hostB, hostA + hostB, schema.Object{"ip": "10.0.0.2"}},
		"MAC address":          {hostA + hostB, hostA + hostB, schema.Object{"mac": "52:54:00:00:00:0a"}},
		"address that runs":    {moved + hostB, hostA + hostB, schema.Object{"ip": "10.0.0.2"}},
		"address not in use":   {hostA + hostB, moved + hostB, schema.Object{"ip": "10.0.0.2"}},
		"name where it is not": {hostB, hostA + strings.Replace(hostB, "mac='52:54:00:00:00:0b'", "mac='52:54:00:00:00:0c'", 1), schema.Object{"mac": "52:54:00:00:00:0a"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			f.put(networkObject, "net", reserved(c.stored), reserved(c.running))
			before := f.objects[networkObject]["net"]
			expect(t, updated(t, f.open(t), "libvirt.dhcp_host", "net/b", c.fields), providers.Exists, false, "reservation a ")
			if now := f.objects[networkObject]["net"]; now != before {
				t.Errorf("the network is now %v", now)
			}
		})
	}
}

// When the second half of a change fails, the first one is not forgotten because the second is undone.
func TestHalfModified(t *testing.T) {
	f := newFake()
	f.put(networkObject, "net", reserved(hostB), reserved(hostB))
	f.fail = func(call string) error {
		if call == "modify 52:54:00:00:00:0c running net" {
			return refusal("no")
		}
		return nil
	}
	expect(t, updated(t, f.open(t), "libvirt.dhcp_host", "net/b", schema.Object{"mac": "52:54:00:00:00:0c"}), providers.Unknown, true, "no")
	now := f.objects[networkObject]["net"]
	if !strings.Contains(now.stored, "00:0c") || !strings.Contains(now.running, "00:0b") {
		t.Errorf("the network is now %v", now)
	}
}

// A reservation is there all the time, whatever it is changed in.
func TestModifiedInPlace(t *testing.T) {
	for name, c := range map[string]struct{ host, id string }{
		"named":        {hostB, "b"},
		"without name": {strings.Replace(hostB, "name='b' ", "", 1), "52:54:00:00:00:0b"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			f.put(networkObject, "net", reserved(c.host), "")
			f.fail = func(call string) error {
				if !strings.HasPrefix(call, "modify ") {
					return refusal("no")
				}
				return nil
			}
			if err := updated(t, f.open(t), "libvirt.dhcp_host", "net/"+c.id, schema.Object{"mac": "52:54:00:00:00:0c", "ip": "10.0.0.4"}); err != nil {
				t.Error(err)
			}
			if now := f.objects[networkObject]["net"].stored; !strings.Contains(now, "00:0c") || !strings.Contains(now, "10.0.0.4") || strings.Contains(now, `mac="52:54:00:00:00:0b"`) {
				t.Errorf("the network is now %v", now)
			}
		})
	}
}
