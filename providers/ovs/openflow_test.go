package ovs

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What ovs-ofctl 3.1 prints, which TestFlowSyntax compares with what it prints here.
const (
	aDump = ` cookie=0x0, priority=5,ip,nw_src=10.0.0.0/8 actions=set_field:10.1.1.1->ip_dst,resubmit(,2)
 cookie=0xc0e5000000000001, table=4, actions=ct(commit,table=10),resubmit(,10)
 cookie=0x6, idle_timeout=5, send_flow_rem check_overlap reset_counts importance=3, ip actions=drop
 cookie=0x7, table=8, hard_timeout=9, priority=7 actions=drop
 table=5, ip actions=drop
 actions=drop
`
	aParse = `usable protocols: any
chosen protocol: OXM-OpenFlow14
OFPT_FLOW_MOD (OF1.4) (xid=0x1): ADD priority=5,ip,nw_src=10.0.0.0/8 cookie:0x1 actions=set_field:10.1.1.1->ip_dst,resubmit(,2)
OFPT_FLOW_MOD (OF1.4) (xid=0x2): ADD table:4 cookie:0x2 actions=ct(commit,table=10),resubmit(,10)
OFPT_FLOW_MOD (OF1.4) (xid=0x3): ADD cookie:0x3 actions=drop
`
)

func texts(flows []flow) (out []string) {
	for _, f := range flows {
		out = append(out, f.String())
	}
	return out
}

func TestReadFlows(t *testing.T) {
	there, err := readDump(aDump)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"table=0,priority=5,ip,nw_src=10.0.0.0/8,actions=set_field:10.1.1.1->ip_dst,resubmit(,2)",
		"table=4,actions=ct(commit,table=10),resubmit(,10)",
		"table=0,ip,idle_timeout=5,send_flow_rem,check_overlap,reset_counts,importance=3,actions=drop",
		"table=8,priority=7,hard_timeout=9,actions=drop",
		"table=5,ip,actions=drop",
		"table=0,actions=drop",
	}
	if d := cmp.Diff(want, texts(there)); d != "" {
		t.Errorf("the dump is read as (-want +got):\n%s", d)
	}
	if there[1].cookie != 0xc0e5000000000001 {
		t.Errorf("the cookie is %#x", there[1].cookie)
	}
	wanted, err := readParsed(aParse, 3)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if !wanted[i].is(there[i]) {
			t.Errorf("%s is not %s", wanted[i], there[i])
		}
	}
	if d := cmp.Diff("table=0,actions=drop", wanted[2].String()); d != "" {
		t.Error(d)
	}
}

// TestReadOtherFlows has output that is none of a flow set, or no flows.
func TestReadOtherFlows(t *testing.T) {
	for line, why := range map[string]string{
		"OFPT_FLOW_MOD (OF1.4) (xid=0x1): ADD ip cookie:0x2 actions=drop":                             "cannot have another",
		"OFPT_FLOW_MOD (OF1.4) (xid=0x1): ADD ip cookie:0x1 actions=learn(cookie=0xc0e5000000000001)": "cannot have another",
		"OFPT_FLOW_MOD (OF1.4) (xid=0x1): ADD ip cookie:0x1 idle:5 send_flow_rem actions=drop":        "has idle:5 send_flow_rem",
		"OFPT_FLOW_MOD (OF1.4) (xid=0x1): DEL ip cookie:0x1 actions=drop":                             "reads it as",
		"OFPT_FLOW_MOD (OF1.5) (xid=0x1): ADD ip cookie:0x1 actions=drop":                             "reads it as",
	} {
		_, err := readParsed(line+"\n", 1)
		if bad := (*badFlow)(nil); !errors.As(err, &bad) || bad.at != 0 || !strings.Contains(bad.why, why) {
			t.Errorf("%s: %v", line, err)
		}
	}
	for _, n := range []int{2, 4} {
		if _, err := readParsed(aParse, n); err == nil {
			t.Errorf("three flows are read as %d", n)
		}
	}
	for _, out := range []string{"nonsense\n", " cookie=0x1, table=x, actions=drop\n", " cookie=0x11111111111111111, ip actions=drop\n", "\n"} {
		if flows, err := readDump(out); err == nil {
			t.Errorf("%q is read as %q", out, texts(flows))
		}
	}
}

// The cookie of a set is ours, and stays the same: flows that are on switches must be found by later versions.
func TestCookies(t *testing.T) {
	if got := cookieOf("slice"); got != 0xc0e5d659c47855cd {
		t.Errorf("the cookie of slice is %#x", got)
	}
	if got := cookieOf("slices"); got>>48 != 0xc0e5 || got == cookieOf("slice") {
		t.Errorf("the cookie of slices is %#x", got)
	}
}

// The socket of a bridge is in the run directory, whatever the bridge is called.
func TestManagementSocket(t *testing.T) {
	for _, c := range []struct{ endpoint, run, bridge, want string }{
		{"unix:/run/openvswitch/db.sock", "", "br0", "unix:/run/openvswitch/br0.mgmt"},
		{"unix:/elsewhere/db.sock", "/run/openvswitch", "br0", "unix:/run/openvswitch/br0.mgmt"},
		{"ssl:192.0.2.1:6640", "/run/openvswitch", "--help", "unix:/run/openvswitch/--help.mgmt"},
		{"ssl:192.0.2.1:6640", "", "br0", ""},
		{"unix:/run/openvswitch/db.sock", "", "../libvirt/x", ""},
	} {
		d := &db{Options: Options{Endpoint: c.endpoint, RunDir: c.run}}
		if got, err := d.management(c.bridge); got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("bridge %s of %s: %q, %v; want %q", c.bridge, c.endpoint, got, err, c.want)
		}
	}
}
