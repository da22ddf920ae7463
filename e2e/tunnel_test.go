package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"converge.dev/converge/internal/ovstest"
	"converge.dev/converge/internal/retry"
	"converge.dev/converge/providers/ovs/vswitch"
	"converge.dev/converge/schema/kinds"
	"converge.dev/converge/schema/load"
)

// An overlay is the site of examples/overlay on three real switches. What lies under it belongs to others: bridges with the addresses
// that the tunnels lead to, in a row.
type overlay struct {
	*site
	names    []string
	switches []*ovstest.Switch
	probes   []*net.UDPConn
}

func newOverlay(t *testing.T) *overlay {
	t.Helper()
	o := &overlay{site: newSite(t), names: []string{"gpu-01", "gpu-02", "gpu-03"}}
	config := "nodes:\n"
	for n, name := range o.names {
		s := ovstest.Start(t)
		o.switches = append(o.switches, s)
		config += fmt.Sprintf("  %s: {ovs: %s}\n", name, s.Endpoint)
		s.Vsctl(t, "add-br", "br-phy", "--", "set", "bridge", "br-phy", "datapath_type=netdev")
		o.address(s, "br-phy", fmt.Sprintf("10.0.0.%d/24", n+1))
		if n > 0 {
			ovstest.Link(t, o.switches[n-1], "right", s, "left")
			o.switches[n-1].Vsctl(t, "add-port", "br-phy", "right")
			s.Vsctl(t, "add-port", "br-phy", "left")
		}
	}
	o.must(os.CopyFS(filepath.Join(o.dir, "doc"), os.DirFS("../examples/overlay")))
	o.userspace("doc")
	o.write("converge.yaml", config)
	return o
}

// address gives an interface of a node an address.
func (o *overlay) address(s *ovstest.Switch, name, prefix string) {
	o.Helper()
	for _, args := range [][]string{{"address", "add", prefix, "dev", name}, {"link", "set", name, "up"}} {
		if out, err := s.Command(o.T, "ip", args...).CombinedOutput(); err != nil {
			o.Fatalf("ip %q: %v: %s", args, err, out)
		}
	}
}

// reach checks that the probes of some nodes get what the probe of each of the others sends.
func (o *overlay) reach(when string, nodes ...int) {
	o.Helper()
	for _, from := range nodes {
		for _, to := range nodes {
			if from == to {
				continue
			}
			text := fmt.Sprintf("from %s to %s %s", o.names[from], o.names[to], when)
			err := retry.Policy{First: time.Millisecond}.Do(o.ctx, func() (over bool, err error) {
				return o.arrives(from, to, text)
			})
			if err != nil {
				o.Fatalf("nothing arrives %s: %v", text, err)
			}
		}
	}
}

// arrives sends a packet from one probe to another and reports whether it arrived soon, where packets may be waiting from before.
func (o *overlay) arrives(from, to int, text string) (bool, error) {
	o.Helper()
	if _, err := o.probes[from].WriteTo([]byte(text), o.probes[to].LocalAddr()); err != nil {
		return false, err
	}
	o.must(o.probes[to].SetReadDeadline(time.Now().Add(100 * time.Millisecond)))
	got := make([]byte, 200)
	for {
		n, _, err := o.probes[to].ReadFrom(got)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return false, err
		}
		o.must(err)
		if string(got[:n]) == text {
			return true, nil
		}
	}
}

// keys gives the tunnels of each node the key of that node.
func (o *overlay) keys(keys ...string) {
	o.Helper()
	var of strings.Builder
	for n, key := range keys {
		fmt.Fprintf(&of, "%q: %q, ", o.names[n], key)
	}
	text, err := os.ReadFile("../examples/overlay/site.cue")
	o.must(err)
	changed := strings.Replace(string(text), "key: _vni", "key: {"+of.String()+"}[here]", 1)
	if changed == string(text) {
		o.Fatal("the example has no key to change")
	}
	o.write("doc/site.cue", changed)
}

// One document makes a network of three nodes, through which packets go from each to each. A key is changed where it is, and until
// both ends have it, nothing passes. In the end the switches are as before.
func TestTunnelsBetweenNodes(t *testing.T) {
	t.Parallel()
	o := newOverlay(t)
	var before []string
	for _, s := range o.switches {
		before = append(before, s.Dump(t))
	}
	o.run(0, "validate", "-strict", "doc")
	o.run(0, "apply", "-auto-approve", "doc").says("12 added")
	o.run(0, "plan", "-detailed-exitcode", "doc").says("No changes")
	o.run(0, "drift").says("No drift")
	for n, s := range o.switches {
		o.address(s, "probe", fmt.Sprintf("192.168.77.%d/24", n+1))
		o.probes = append(o.probes, s.Socket(t, fmt.Sprintf("192.168.77.%d:7", n+1)))
	}
	o.reach("when they were made", 0, 1, 2)

	o.keys("5002", "5001", "5001")
	o.run(2, "plan", "-detailed-exitcode", "doc").says("0 to add, 2 to change, 0 to destroy", "gpu-01/ovs.port/to-gpu-02", `"5001" → "5002"`, "CV1182")
	o.run(0, "apply", "-auto-approve", "doc").says("2 changed")
	o.reach("between the others", 1, 2)
	for range 3 {
		if there, _ := o.arrives(0, 1, "with another key"); there {
			t.Error("a packet passed a tunnel whose ends have different keys")
		}
	}
	o.keys("5002", "5002", "5002")
	o.run(0, "apply", "-auto-approve", "doc").says("4 changed")
	o.reach("with the new key", 0, 1, 2)
	o.run(0, "plan", "-detailed-exitcode", "doc").says("No changes")

	o.run(0, "destroy", "-auto-approve").says("12 destroyed")
	for n, s := range o.switches {
		if after := s.Dump(t); after != before[n] {
			t.Errorf("%s is not as it was:\n%s", o.names[n], difference(before[n], after))
		}
	}
}

// tried are tunnels, alone or two of one node: a type and its options. None with the extension gbp works: in the userspace
// datapath, OVS makes and drops such a tunnel in turn, whenever anything is configured.
var tried = [][]string{
	{"vxlan remote_ip=10.0.0.2", "vxlan remote_ip=10.0.0.2"},
	{"vxlan remote_ip=10.0.0.2", "vxlan remote_ip=10.0.0.2 key=0 dst_port=4789"},
	{"vxlan remote_ip=10.0.0.2 key=1", "vxlan remote_ip=10.0.0.2 key=2"},
	{"vxlan remote_ip=10.0.0.2 key=16", "vxlan remote_ip=10.0.0.2 key=0x10"},
	{"vxlan remote_ip=10.0.0.2 key=010", "vxlan remote_ip=10.0.0.2 key=8"},
	{"vxlan remote_ip=10.0.0.2 key=flow", "vxlan remote_ip=10.0.0.2 key=1"},
	{"vxlan remote_ip=10.0.0.2 key=flow", "vxlan remote_ip=10.0.0.2"},
	{"vxlan remote_ip=10.0.0.2 key=flow", "vxlan remote_ip=10.0.0.2 key=flow"},
	{"vxlan remote_ip=10.0.0.2 in_key=5", "vxlan remote_ip=10.0.0.2 key=5"},
	{"vxlan remote_ip=10.0.0.2 in_key=5 out_key=6", "vxlan remote_ip=10.0.0.2 in_key=5 out_key=7"},
	{"vxlan remote_ip=10.0.0.2 in_key=5 out_key=6", "vxlan remote_ip=10.0.0.2 in_key=7 out_key=6"},
	{"vxlan remote_ip=flow", "vxlan remote_ip=flow"},
	{"vxlan remote_ip=flow", "vxlan remote_ip=10.0.0.2"},
	{"vxlan remote_ip=flow local_ip=flow", "vxlan remote_ip=flow"},
	{"vxlan remote_ip=flow local_ip=10.0.0.1", "vxlan remote_ip=flow"},
	{"vxlan remote_ip=10.0.0.2 local_ip=10.0.0.1", "vxlan remote_ip=10.0.0.2"},
	{"vxlan remote_ip=10.0.0.2 local_ip=10.0.0.1", "vxlan remote_ip=10.0.0.2 local_ip=10.0.0.9"},
	{"vxlan remote_ip=10.0.0.2 local_ip=10.0.0.1", "vxlan remote_ip=10.0.0.2 local_ip=10.0.0.1"},
	{"vxlan remote_ip=fd00::2", "vxlan remote_ip=fd00:0::2"},
	{"vxlan remote_ip=::ffff:10.0.0.2", "vxlan remote_ip=10.0.0.2"},
	{"vxlan remote_ip=10.0.0.2", "vxlan remote_ip=10.0.0.2 dst_port=8472"},
	{"vxlan remote_ip=10.0.0.2", "vxlan remote_ip=10.0.0.2 egress_pkt_mark=1"},
	{"vxlan remote_ip=10.0.0.2", "vxlan remote_ip=10.0.0.2 tos=8 ttl=9 df_default=false"},
	{"vxlan remote_ip=10.0.0.2", "vxlan remote_ip=10.0.0.3 exts=gbp"},
	{"vxlan remote_ip=10.0.0.2 exts=gpe key=1", "vxlan remote_ip=10.0.0.2 key=2"},
	{"vxlan remote_ip=10.0.0.2", "geneve remote_ip=10.0.0.2"},
	{"vxlan remote_ip=10.0.0.2 dst_port=6081", "geneve remote_ip=10.0.0.2"},
	{"vxlan remote_ip=10.0.0.2 dst_port=2152", "gtpu remote_ip=10.0.0.2"},
	{"geneve remote_ip=10.0.0.2", "geneve remote_ip=10.0.0.2 dst_port=6081"},
	{"gtpu remote_ip=10.0.0.2", "gtpu remote_ip=10.0.0.2 dst_port=2152"},
	{"bareudp remote_ip=10.0.0.2 dst_port=6635 payload_type=mpls", "bareudp remote_ip=10.0.0.2 dst_port=6635 payload_type=mpls"},
	{"gre remote_ip=10.0.0.2", "gre remote_ip=10.0.0.2 seq=true"},
	{"gre remote_ip=10.0.0.2", "gre remote_ip=10.0.0.2 packet_type=legacy_l3"},
	{"gre remote_ip=fd00::2", "ip6gre remote_ip=fd00::2"},
	{"gre remote_ip=10.0.0.2", "erspan remote_ip=10.0.0.2 erspan_ver=1 erspan_idx=1"},
	{"erspan remote_ip=10.0.0.2 erspan_ver=1 erspan_idx=1 key=1", "erspan remote_ip=10.0.0.2 erspan_ver=1 erspan_idx=2 key=1"},
	{"vxlan"}, {"geneve key=1"}, {"gre"}, {"ip6gre"}, {"erspan"}, {"ip6erspan"}, {"gtpu"}, {"bareudp dst_port=6635"},
	{"vxlan remote_ip=gpu-02"}, {"vxlan remote_ip=localhost"}, {"vxlan remote_ip=10.0.0.2/24"}, {"vxlan remote_ip=010.0.0.2"}, {"vxlan remote_ip=[fd00::2]"},
	{"vxlan remote_ip=fe80::2%eth0"}, {"vxlan remote_ip=224.0.0.1"}, {"vxlan remote_ip=ff02::1"}, {"vxlan remote_ip=10.0.0.2 local_ip=flow"},
	{"vxlan remote_ip=10.0.0.2 local_ip=fd00::1"}, {"ip6gre remote_ip=10.0.0.2"}, {"gre remote_ip=fd00::2"}, {"gre remote_ip=10.0.0.2 key=16777216"},
	{"patch"}, {"patch peer=a"},
}

// What a real switch refuses is wrong in a document, too, and of two tunnels only what it refuses.
func TestTunnelRulesAreThoseOfTheSwitch(t *testing.T) {
	t.Parallel()
	s := ovstest.Start(t)
	s.Vsctl(t, "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev")
	s.Vsctl(t, "add-br", "br1", "--", "set", "bridge", "br1", "datapath_type=netdev")
	ports := []string{"a", "b"}
	nodes := map[string]any{}
	refused := map[string]string{} // nodes, and why
	for n, c := range tried {
		node, declared := fmt.Sprintf("node-%02d", n), map[string]any{}
		var why []string
		for i, text := range c {
			sort, settings, _ := strings.Cut(text, " ")
			args := []string{"--no-wait", "add-port", fmt.Sprintf("br%d", i), ports[i], "--", "set", "interface", ports[i], "type=" + sort}
			options := map[string]string{}
			for _, setting := range strings.Fields(settings) {
				name, value, _ := strings.Cut(setting, "=")
				options[name] = value
				args = append(args, fmt.Sprintf("options:%s=%q", name, value))
			}
			s.Vsctl(t, args...)
			s.Settle(t)
			declared[ports[i]] = map[string]any{"bridge": fmt.Sprintf("br%d", i), "interface": map[string]any{"type": sort, "options": options}}
		}
		for i := range c {
			if text, ok := s.Row(t, vswitch.InterfaceTable, ports[i])["error"].(string); ok {
				why = append(why, text)
			}
			s.Vsctl(t, "--no-wait", "del-port", ports[i])
		}
		s.Settle(t)
		bridge := map[string]any{"datapath_type": "netdev"}
		nodes[node] = map[string]any{"ovs": map[string]any{"bridge": map[string]any{"br0": bridge, "br1": bridge}, "port": declared}}
		if len(why) > 0 {
			refused[node] = strings.Join(why, "; ")
		}
	}
	document, err := json.Marshal(map[string]any{
		"apiVersion": "converge.dev/v1", "site": map[string]any{"name": "tried", "id": "0f0f6d4e-4a52-4a4e-9b1f-5d7c0b8a2e61"}, "nodes": nodes,
	})
	if err != nil {
		t.Fatal(err)
	}
	schemas, err := kinds.New()
	if err != nil {
		t.Fatal(err)
	}
	_, found := load.Document(t.Context(), schemas, load.Options{}, load.Source{Name: "tried.json", Data: document})
	for n, c := range tried {
		node := fmt.Sprintf("node-%02d", n)
		i := slices.IndexFunc(found, func(d load.Diagnostic) bool {
			return d.Severity == load.Error && strings.HasPrefix(d.Path, "nodes."+node+".")
		})
		switch why := refused[node]; {
		case i < 0 && why != "":
			t.Errorf("%q: the switch says %q, and the rules nothing", c, why)
		case i >= 0 && why == "":
			t.Errorf("%q: the switch takes it, and the rules say: %s", c, found[i].Detail)
		}
	}
	if len(refused) < 20 {
		t.Errorf("the switch refused only %v", refused)
	}
}
