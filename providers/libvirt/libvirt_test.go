package libvirt

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/libvirt/spec"
	"converge.dev/converge/schema"
)

func TestConfig(t *testing.T) {
	for uri, says := range map[Config]string{
		"":                                          "",
		DefaultURI:                                  "",
		"test:///srv/node.xml":                      "",
		"qemu+tls://gpu-01.example/system":          "",
		"qemu+ssh://root@gpu-01/system":             "contains a user or a password",
		"qemu+unix://me:secret@/system":             "contains a user or a password",
		"qemu+unix:root@host":                       "contains a user or a password",
		"unix:/run/libvirt/libvirt-sock":            "want the URI of libvirt",
		"/run/libvirt/libvirt-sock":                 "want the URI of libvirt",
		"xen:///system":                             "want the URI of libvirt",
		"qemu":                                      "want the URI of libvirt",
		"qemu+unix:///system?socket=%zz":            "",
		"qemu+unix://me:secret@host\x7f/system?x=y": "is not a URI",
	} {
		err := uri.Check("nodes.n1.libvirt")
		switch {
		case says == "" && err != nil:
			t.Errorf("%q is refused: %v", uri, err)
		case says != "" && (err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "nodes.n1.libvirt")):
			t.Errorf("%q: the error is %v, want it to say %q", uri, err, says)
		case err != nil && strings.Contains(err.Error(), "secret"):
			t.Errorf("%q: the error shows the password: %v", uri, err)
		}
	}
}

func TestResolved(t *testing.T) {
	at := providers.Opening{Dir: "/etc/site"}
	for uri, want := range map[Config]string{
		DefaultURI:                                DefaultURI,
		"qemu+unix:///system?socket=run/sock":     "qemu+unix:///system?socket=%2Fetc%2Fsite%2Frun%2Fsock",
		"qemu+tls://n1/system?pkipath=pki":        "qemu+tls://n1/system?pkipath=%2Fetc%2Fsite%2Fpki",
		"qemu+unix:///system?socket=/a%20b%23c/s": "qemu+unix:///system?socket=/a%20b%23c/s",
		"test:///srv/node.xml":                    "test:///srv/node.xml",
	} {
		if got := uri.resolved(at); got != want {
			t.Errorf("%s is %s from there, want %s", uri, got, want)
		}
	}
	_, err := Config("").Open(t.Context(), providers.Opening{Scope: "n1"})
	if err == nil || !strings.Contains(err.Error(), "nodes: {n1: {libvirt: ") {
		t.Errorf("what is not configured gave %v, want it to say what to write", err)
	}
}

// asWritten is a definition with addresses in all forms that libvirt has.
const asWritten = `<network connections='2'>
  <name>net</name><uuid>0a1b2c3d-0000-4000-8000-000000000001</uuid>
  <forward dev='eth0' mode='nat'><nat><port start='1024' end='65535'/></nat><interface dev='eth0'/></forward>
  <bridge name='virbr7' stp='on' delay='0'/><mtu size='1400'/><mac address='52:54:00:00:00:01'/><domain name='a.example'/>
  <ip address='10.1.0.1' netmask='255.255.240.0'><dhcp><range start='10.1.0.9' end='10.1.0.99'/></dhcp></ip>
  <ip family='ipv4' address='192.168.3.1'/>
  <ip family='ipv6' address='fd00::1' prefix='64'/>
</network>`

func TestDescribed(t *testing.T) {
	s, err := networkSpec(definition{name: "net", stored: asWritten, running: asWritten, autostart: true})
	if err != nil {
		t.Fatal(err)
	}
	want := schema.Object{
		"active": true, "autostart": true, "in_effect": true, "uuid": "0a1b2c3d-0000-4000-8000-000000000001",
		"forward_mode": "nat", "forward_dev": "eth0", "bridge": "virbr7", "mtu": int64(1400), "mac": "52:54:00:00:00:01", "domain": "a.example",
		"ips": []any{
			map[string]any{"address": "10.1.0.1/20", "dhcp_ranges": []any{map[string]any{"start": "10.1.0.9", "end": "10.1.0.99"}}},
			map[string]any{"address": "192.168.3.1/24", "dhcp_ranges": []any{}},
			map[string]any{"address": "fd00::1/64", "dhcp_ranges": []any{}},
		},
		"port_groups": []any{},
	}
	if d := cmp.Diff(want, s.Object()); d != "" {
		t.Errorf("it is described otherwise (-want +is):\n%s", d)
	}
	if extras, err := extrasOf(asWritten); err != nil || len(extras) > 0 {
		t.Errorf("what libvirt fills in counts as that of others: %q (%v)", extras, err)
	}
}

// A spec that is written over a definition is what is read from it, and what the spec does not describe stays.
func TestDescribe(t *testing.T) {
	n, err := parseNetwork(strings.Replace(asWritten, "</network>", "<dns><txt name='a' value='b'/></dns><portgroup name='old'/></network>", 1))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []spec.Network{
		{ForwardMode: new("route"), Bridge: new("virbr7"), IPs: []spec.NetworkIP{{Address: "fd00::1/64", DHCPRanges: []spec.DHCPRange{}}}, PortGroups: []spec.PortGroup{}},
		{ForwardMode: new("none"), MTU: new(int64(9000)), IPs: []spec.NetworkIP{}, PortGroups: []spec.PortGroup{}},
		{ForwardMode: new("bridge"), Bridge: new("br0"), Virtualport: new("openvswitch"), IPs: []spec.NetworkIP{}, PortGroups: []spec.PortGroup{
			{Name: "one", Default: true, VLANs: []int64{42}}, {Name: "two", VLANs: []int64{5, 7}},
		}},
	} {
		if err := describe(n, &want); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want.Object(), described(n).Object()); d != "" {
			t.Errorf("it is read otherwise than it was written (-want +is):\n%s", d)
		}
		if n.DNS == nil {
			t.Error("it lost the DNS records of others")
		}
	}
	text, err := n.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	extras, err := extrasOf(text)
	if err != nil || !slices.Contains(extras, "network/dns/txt") {
		t.Errorf("the DNS records count as ours: %q (%v)", extras, err)
	}
}

func TestValues(t *testing.T) {
	for _, c := range []struct {
		document, other string
		want            []string
	}{
		{"<a><b c='1'>t</b></a>", "<a>\n <b c='1'> t </b></a>", nil},
		{"<a><b c='1'>t</b><b/></a>", "<a><b c='2'>u</b></a>", []string{"a/b", "a/b/@c"}},
		{"<a xmlns:x='y'><x:o/></a>", "<a/>", []string{"a/o"}},
	} {
		have, err := values(c.document)
		there, err2 := values(c.other)
		if got := places(without(have, there)); !slices.Equal(got, c.want) || err != nil || err2 != nil {
			t.Errorf("%s without %s: %q, want %q (%v, %v)", c.document, c.other, got, c.want, err, err2)
		}
	}
	if _, err := values("<a"); err == nil {
		t.Error("half a document has values")
	}
}

// Pools of other types are not those of this kind.
func TestDirectory(t *testing.T) {
	pool := func(kind, path string) string {
		return "<pool type='" + kind + "'><name>p</name><uuid>u</uuid><target><path>" + path + "</path></target></pool>"
	}
	if p, err := directory(definition{stored: pool("logical", "/dev/vg0")}); err != nil || p != nil {
		t.Errorf("a volume group is a directory: %v (%v)", p, err)
	}
	p, err := directory(definition{stored: pool("dir", "/srv/new"), running: pool("dir", "/srv/old"), autostart: true})
	if err != nil {
		t.Fatal(err)
	}
	want := schema.Object{"active": true, "autostart": true, "in_effect": false, "path": "/srv/new", "uuid": "u"}
	if d := cmp.Diff(want, p.Object()); d != "" {
		t.Errorf("it is described otherwise (-want +is):\n%s", d)
	}
}

// Reservations are told apart by their names; where those are missing or repeated, by their MAC addresses.
func TestReservations(t *testing.T) {
	network := func(hosts string) string {
		return "<network><name>n</name><ip address='10.0.0.1' netmask='255.255.255.0'><dhcp>" + hosts + "</dhcp></ip></network>"
	}
	found, err := reservations(definition{
		stored:  network("<host mac='52:54:00:00:00:01' name='a' ip='10.0.0.2'/><host mac='52:54:00:00:00:02' name='a' ip='10.0.0.3'/><host mac='52:54:00:00:00:03' ip='10.0.0.4'/>"),
		running: network("<host mac='52:54:00:00:00:01' name='a' ip='10.0.0.9'/><host name='live' ip='10.0.0.5'/>"),
	})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for key, r := range found {
		got[key] = r.of().IP
		if r.stored == nil {
			got[key] += " running alone"
		}
	}
	want := map[string]string{"a": "10.0.0.2", "52:54:00:00:00:02": "10.0.0.3", "52:54:00:00:00:03": "10.0.0.4", "live": "10.0.0.5 running alone"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the reservations are others (-want +is):\n%s", d)
	}
}

// What libvirt does not answer is of unknown outcome once something was sent, and not before.
func TestClasses(t *testing.T) {
	k := &kind{name: "libvirt.pool"}
	ref := schema.Ref{Scope: "n1", Kind: "libvirt.pool", Name: "p"}
	cut, refused := &lost{err: filepath.ErrBadPattern}, &answer{class: providers.Exists, code: "9", err: filepath.ErrBadPattern}
	for _, c := range []struct {
		name string
		ch   *change
		err  error
		want providers.Class
		over bool
	}{
		{"reading, lost", nil, cut, providers.Transient, false},
		{"nothing sent, lost", &change{}, cut, providers.Transient, false},
		{"sent, lost", &change{sent: true}, cut, providers.Unknown, false},
		{"refused at first", &change{}, refused, providers.Exists, false},
		{"refused after an effect", &change{sent: true, did: true}, refused, providers.Unknown, true},
		{"refused without a reason", &change{}, &answer{class: providers.Unknown, err: filepath.ErrBadPattern}, providers.Unknown, true},
		{"not understood", nil, filepath.ErrBadPattern, providers.Transient, false},
		{"not understood before a change", &change{}, filepath.ErrBadPattern, providers.Invalid, false},
		{"not understood after an effect", &change{sent: true, did: true}, filepath.ErrBadPattern, providers.Unknown, true},
		{"refused by us after an effect", &change{sent: true, did: true}, refuse(providers.Invalid, "no"), providers.Unknown, true},
	} {
		err := k.fail("update", ref, c.err, c.ch)
		if providers.ClassOf(err) != c.want || providers.Over(err) != c.over {
			t.Errorf("%s: %s (over %t), want %s (over %t)", c.name, providers.ClassOf(err), providers.Over(err), c.want, c.over)
		}
	}
}
