package ovs_test

import (
	"crypto/tls"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/ovn-org/libovsdb/ovsdb"

	"converge.dev/converge/internal/ovstest"
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/ovs"
	"converge.dev/converge/providers/ovs/vswitch"
	"converge.dev/converge/schema"
)

// lawFlows is a bridge whose flow table is left to its clients.
var lawFlows = providertest.Made{Kind: "ovs.bridge", Name: "br-flow", Spec: schema.Object{"datapath_type": ovstest.Datapath, "fail_mode": "secure"}}

var flowSetCases = []providertest.Case{{
	Kind: "ovs.flow_set", Name: "slice", Needs: []providertest.Made{lawFlows},
	Want: schema.Object{"bridge": lawFlows.Name, "flows": []any{
		`in_port="br-flow",actions=normal`, "table=1,priority=7,dl_type=0x0800,nw_proto=6,nw_src=10.1.2.3/8,actions=mod_vlan_vid:5,resubmit(,2)",
	}},
	Update: schema.Object{"bridge": lawFlows.Name, "flows": []any{
		`in_port="br-flow",actions=drop`, "table=2,actions=move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[],in_port",
	}},
	Invalid: schema.Object{"bridge": lawFlows.Name, "flows": []any{"table=3,actions=drop", "table=4,actions=group:99"}},
	Other: func(i int) providertest.Made {
		name := "other-" + string(rune('a'+i%26))
		return providertest.Made{Kind: "ovs.flow_set", Name: name, Spec: schema.Object{"bridge": lawFlows.Name, "flows": []any{
			"table=9,priority=" + string(rune('1'+i%8)) + ",actions=drop",
		}}}
	},
}}

// ofctl runs ovs-ofctl on a bridge of a real switch and returns what it prints.
func ofctl(t *testing.T, s *ovstest.Switch, verb, bridge string, args ...string) string {
	t.Helper()
	out, err := s.Command(t, "ovs-ofctl", append([]string{"--timeout=20", "-O", "OpenFlow13,OpenFlow14", "--no-stats", "--no-names", verb, bridge}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ovs-ofctl %s %q: %v: %s", verb, args, err, out)
	}
	return string(out)
}

// flowsOf returns the flows of all bridges of a switch; none when it is in memory.
func flowsOf(t *testing.T, s *ovstest.Switch) string {
	t.Helper()
	if !s.Real {
		return ""
	}
	var out []string
	for _, b := range s.Rows(t, vswitch.BridgeTable) {
		name, _ := b["name"].(string)
		for line := range strings.Lines(ofctl(t, s, "dump-flows", name)) {
			out = append(out, name+line)
		}
	}
	slices.Sort(out)
	return strings.Join(out, "")
}

// cookieOf returns the cookie of a flow set, as its status says.
func cookieOf(t *testing.T, s *ovstest.Switch, id string) string {
	t.Helper()
	n := newNode(t, s, ovs.Options{})
	cookie, _ := n.look("ovs.flow_set", id).Status["cookie"].(string)
	return cookie
}

// newFlowing returns a node with a bridge br0, its port p0 and the flow set f0 on it.
func newFlowing(t *testing.T, s *ovstest.Switch, o ovs.Options) *node {
	t.Helper()
	n := newNode(t, s, o)
	n.must(n.create("ovs.bridge", "br0", lawFlows.Spec))
	n.must(n.create("ovs.port", "p0", aPort))
	n.must(n.create("ovs.flow_set", "f0", flowSet("table=5,actions=drop")))
	return n
}

// flowSet returns the spec of a flow set of br0.
func flowSet(flows ...string) schema.Object {
	return schema.Object{"bridge": "br0", "flows": anys(flows)}
}

func anys(texts []string) []any {
	out := []any{}
	for _, s := range texts {
		out = append(out, s)
	}
	return out
}

// has checks which flows a flow set has.
func (n *node) has(name string, flows ...string) {
	n.Helper()
	slices.Sort(flows)
	if d := cmp.Diff(anys(flows), n.look("ovs.flow_set", name).Spec["flows"]); d != "" {
		n.Errorf("flow set %s has other flows (-want +got):\n%s", name, d)
	}
}

// syntaxes are flows in many forms. The switch rewrites most of them.
var syntaxes = []string{
	`in_port="p0",actions=output:"br0"`,
	"in_port=LOCAL,actions=normal",
	"table=1,tcp,tp_dst=80,actions=mod_vlan_vid:5,NORMAL",
	"table=1,priority=0,actions=drop",
	"table=1,priority=65535,actions=",
	"table=1,priority=7,dl_type=0x0800,nw_proto=6,nw_src=10.1.2.3/255.0.0.0,actions=mod_nw_dst:1.2.3.4,mod_tp_dst:8080,resubmit(,2)",
	"table=1,priority=8,ip,nw_src=10.1.2.3/8,nw_frag=later,nw_tos=4,actions=mod_nw_ecn:1,exit",
	"table=1,priority=9,ipv6,ipv6_src=2001:0DB8::1/64,actions=dec_ttl(1,2),set_queue:3,output:1,pop_queue",
	"table=1,priority=10,vlan_tci=0x1000/0x1000,actions=strip_vlan,output:1",
	"table=1,priority=11,dl_vlan=10,dl_vlan_pcp=3,actions=pop_vlan,in_port",
	"table=1,priority=12,dl_dst=01:00:00:00:00:00/01:00:00:00:00:00,actions=push_vlan:0x8100,set_field:4196->vlan_vid,output:1",
	"table=1,priority=13,icmp6,icmp_type=135,nd_target=fe80::1,actions=goto_table:8",
	"table=8,priority=3,arp,arp_tpa=10.0.0.1,actions=move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[],mod_dl_src:00:00:00:00:00:01,load:0x2->NXM_OF_ARP_OP[],IN_PORT",
	"table=8,priority=4,ipv6,actions=load:0x5->NXM_NX_REG0[0..15],output:NXM_NX_REG0[0..15],ct_clear",
	"table=8,priority=5,in_port=1,actions=controller(max_len=100),LOCAL,flood,all",
	"table=8,priority=6,udp,tp_src=0x10/0xfff0,actions=enqueue:1:2",
	"table=8,priority=7,reg0=5,tun_id=0x10,actions=move:NXM_NX_TUN_ID[0..31]->NXM_NX_REG1[],set_tunnel:5,clone(output:1),output:1",
	"table=8,priority=8,metadata=0x1234/0xff00,actions=write_actions(output:1),write_metadata:0x1,goto_table:9",
	"table=8,priority=9,metadata=0x1,actions=clear_actions,write_metadata:0x1/0xf,goto_table:9",
	"table=8,priority=10,ct_state=+trk+new,ct_zone=5,ct_mark=1,ip,actions=ct(commit,zone=5,nat(src=10.0.0.240-10.0.0.250),exec(load:0x7->NXM_NX_CT_MARK[],set_field:1->ct_label)),NORMAL",
	"table=8,priority=11,ct_state=-trk,ip,actions=ct(table=3,zone=NXM_NX_REG0[0..15])",
	"table=8,priority=13,ip,ip_src=10.0.0.1,actions=conjunction(1,1/2)",
	"table=8,priority=14,conj_id=1,ip,actions=note:00.11.22",
	"table=8,priority=15,reg1=0x5/0xff,xxreg1=0,actions=push:NXM_NX_REG1[],pop:NXM_NX_REG2[]",
	`table=8,priority=16,ip,actions=bundle(eth_src,50,hrw,ofport,members:"p0",2),multipath(eth_src,50,modulo_n,2,0,NXM_NX_REG0[0..15])`,
	"table=8,priority=17,tcp_dst=80,tcp,tcp_flags=+syn-ack,actions=output(port=1,max_len=100)",
	"table=8,priority=18,pkt_mark=5,actions=sample(probability=100,collector_set_id=1),check_pkt_larger(1500)->NXM_NX_REG0[0]",
	"table=8,priority=19,mpls,mpls_label=5,actions=dec_mpls_ttl,set_mpls_tc:3",
	"table=8,priority=20,ip,actions=set_field:0x5/0xf->reg3,set_field:10.0.0.1->tun_dst",
	"table=8,priority=21,ip,nw_ttl=64,actions=mod_nw_ttl:5,mod_nw_tos:4,set_tunnel64:0x500000000",
	"table=8,priority=22,sctp,sctp_dst=5,actions=mod_tp_src:5,group:1",
	"table=8,priority=23,tun_src=1.2.3.4,tun_flags=+oam,actions=meter:1,output:1",
	"table=8,priority=24 ip  actions=output:1 , output:2",
	" priority=25, table=9 , udp actions=output:1",
	"table=8,priority=0x20,udp6,actions=mod_vlan_pcp:3",
	"table=8,priority=27,actions=controller",
	"table=8,priority=28,actions=controller(reason=no_match,id=5,userdata=01.02)",
	"table=8,priority=29,dl_src=0A:00:00:00:00:01,actions=goto_table:200",
	`table=8,priority=30,rarp,actions=load:0->OXM_OF_IN_PORT[],resubmit:"p0",resubmit("p0",2)`,
	"table=8,priority=31,vlan_vid=0x1005/0x1fff,actions=set_field:5101->vlan_vid",
	"table=8,priority=32,actions=bundle_load(eth_src,50,hrw,ofport,NXM_NX_REG0[],members:1)",
}

// TestFlowSyntax: what is read back equals what was declared, in whatever form, and nothing more than that is on the switch.
func TestFlowSyntax(t *testing.T) {
	s := ovstest.Start(t)
	n := newFlowing(t, s, ovs.Options{})
	ofctl(t, s, "add-group", "br0", "group_id=1,type=all,bucket=output:1")
	ofctl(t, s, "add-meter", "br0", "meter=1,kbps,band=type=drop,rate=100")
	flows := slices.Clone(syntaxes)
	n.must(n.create("ovs.flow_set", "all", flowSet(flows...)))
	n.has("all", flows...)
	if got := strings.Count(flowsOf(t, s), cookieOf(t, s, "all")); got != len(flows) {
		t.Errorf("the switch has %d flows of %d", got, len(flows))
	}
	seen := n.look("ovs.flow_set", "all")
	n.still(func() { n.must(n.update("ovs.flow_set", "all", nil)) })
	if got := n.look("ovs.flow_set", "all"); got.Version != seen.Version {
		t.Errorf("an update without a difference changed it:\n%s", cmp.Diff(seen, got))
	}
	n.must(n.update("ovs.flow_set", "all", flowSet(flows[:2]...)))
	n.has("all", flows[:2]...)
	n.must(n.delete("ovs.flow_set", "all"))
	n.has("f0", "table=5,actions=drop")
	if out := flowsOf(t, s); strings.Count(out, "cookie=") != 1 {
		t.Errorf("after the delete there are still\n%s", out)
	}
}

// still runs f and checks that the database and the flows are as before.
func (n *node) still(f func()) {
	n.Helper()
	before := flowsOf(n.T, n.s)
	n.unchanged(f)
	if d := cmp.Diff(before, flowsOf(n.T, n.s)); d != "" {
		n.Errorf("the flows changed (-before +after):\n%s", d)
	}
}

// TestRefusedFlows: what is refused leaves nothing behind, and no text is read as more than one flow.
func TestRefusedFlows(t *testing.T) {
	s := ovstest.Start(t)
	n := newFlowing(t, s, ovs.Options{})
	n.must(n.create("ovs.bridge", "br1", aBridge))
	n.must(n.create("ovs.bridge", "br2", schema.Object{"datapath_type": ovstest.Datapath, "fail_mode": "secure", "protocols": []any{"OpenFlow13"}}))
	ofctl(t, s, "add-flow", "br0", "cookie=0x77,table=6,ip,actions=normal")
	refused := map[string]string{
		"ip,idle_timeout=5,actions=drop":             "has idle:5",
		"ip,hard_timeout=5,actions=drop":             "has hard:5",
		"ip,importance=5,send_flow_rem,actions=drop": "has importance:5 send_flow_rem",
		"ip,check_overlap,reset_counts,actions=drop": "check_overlap",
		"ip,no_packet_counts,actions=drop":           "no_packet_counts",
		"ip,cookie=7,actions=drop":                   "cannot have another",
		"cookie=0x77/-1,ip,actions=drop":             "cookie mask",
		"actions=learn(cookie=" + cookieOf(t, s, "f0") + ",NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[])": "cannot have another",
		"actions=learn(table=10,delete_learned,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[])":             "cannot have the action learn",
		"tcp,actions=fin_timeout(idle_timeout=5),normal":                                       "cannot have the action fin_timeout",
		"actions=clone(learn(table=10,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[]))":                     "cannot have the action learn",
		"delete table=6,actions=drop":                                                          "delete",
		"ip,actions=drop\ndelete table=6":                                                      "one line",
		"ip,actions=drop # and more":                                                           "without #",
		"--help,actions=drop":                                                                  "--help",
		"-V":                                                                                   "-V",
		"":                                                                                     "must specify an action",
		"ip":                                                                                   "must specify an action",
		"ip,actions=fly":                                                                       "unknown action fly",
		"nw_src=10.0.0.1,actions=drop":                                                         "has no effect",
		"ip,tp_dst=80,actions=drop":                                                            "has no effect",
		"in_port=p0,actions=drop":                                                              "double quotes",
		"actions=p0":                                                                           "p0",
		`actions=output:"p0`:                                                                   "p0",
		"table=300,actions=drop":                                                               "unknown table",
		"ip,actions=mod_tp_dst:5":                                                              "cannot be expressed",
		"actions=group:99":                                                                     "OFPBAC_BAD_OUT_GROUP",
		"actions=meter:99,drop":                                                                "99",
		"actions=goto_table:0":                                                                 "table",
	}
	n.still(func() {
		for flow, why := range refused {
			n.fails(n.create("ovs.flow_set", "f1", flowSet("table=7,actions=drop", flow)), providers.Invalid, why)
		}
		n.fails(n.update("ovs.flow_set", "f0", flowSet("table=7,actions=drop", "actions=group:99")), providers.Invalid, "OFPBAC_BAD_OUT_GROUP")
		n.fails(n.create("ovs.flow_set", "f1", flowSet("ip,actions=drop", "dl_type=0x800,table=0,actions=normal")), providers.Invalid, "keeps one of the two")
		n.fails(n.create("ovs.flow_set", "f1", flowSet(`in_port="p9",actions=drop`)), providers.Absent, `no port "p9"`)
		n.fails(n.create("ovs.flow_set", "f1", flowSet(`in_port="br1",actions=drop`)), providers.Absent, `no port "br1"`)
		n.fails(n.create("ovs.flow_set", "f0", flowSet("table=7,actions=drop")), providers.Exists, "bridge br0")
		n.fails(n.create("ovs.flow_set", "f1", flowSet("table=6,ip,actions=drop")), providers.Denied, "cookie 0x77")
		n.fails(n.create("ovs.flow_set", "f1", flowSet("table=5,actions=normal")), providers.Denied, cookieOf(t, s, "f0"))
		n.fails(n.update("ovs.flow_set", "f0", flowSet("table=6,ip,actions=drop")), providers.Denied, "cookie 0x77")
		for bridge, why := range map[string]string{"br1": "fail_mode secure", "br2": "does not accept OpenFlow14", "br9": "does not exist"} {
			class := map[bool]providers.Class{true: providers.Absent, false: providers.Invalid}[bridge == "br9"]
			n.fails(n.create("ovs.flow_set", "f1", schema.Object{"bridge": bridge, "flows": []any{"actions=drop"}}), class, why)
		}
		n.fails(n.update("ovs.flow_set", "f0", schema.Object{"bridge": "br2"}), providers.Invalid, "br2")
		key := "converge.dev/flow_set/f7"
		n.fails(n.create("ovs.bridge", "br3", schema.Object{"external_ids": map[string]any{key: "x"}}), providers.Invalid, key)
		n.fails(n.update("ovs.bridge", "br0", schema.Object{"external_ids": map[string]any{key: "x"}}), providers.Invalid, key)
		n.fails(n.delete("ovs.bridge", "br0"), providers.Invalid, "flow set f0")
	})
	n.has("f0", "table=5,actions=drop")
}

// TestForeignFlowsSurvive: neither the flows of others nor those of other sets are lost, whatever happens to a set.
func TestForeignFlowsSurvive(t *testing.T) {
	s := ovstest.Start(t)
	n := newFlowing(t, s, ovs.Options{})
	for _, flow := range []string{"table=5,ip,actions=drop", "cookie=0xc0e5000000000001,table=5,tcp,actions=drop", "cookie=0x1,actions=normal"} {
		ofctl(t, s, "add-flow", "br0", flow)
	}
	theirs := flowsOf(t, s)
	n.must(n.create("ovs.flow_set", "f1", flowSet("table=5,udp,actions=drop", "table=6,actions=drop")))
	n.must(n.update("ovs.flow_set", "f1", flowSet("table=5,udp,actions=normal")))
	n.must(n.update("ovs.flow_set", "f1", flowSet()))
	n.has("f1")
	n.must(n.update("ovs.flow_set", "f1", flowSet("table=6,actions=normal")))
	n.must(n.update("ovs.bridge", "br0", schema.Object{"external_ids": map[string]any{"slice": "a"}}))
	if d := cmp.Diff(map[string]any{"slice": "a"}, n.look("ovs.bridge", "br0").Spec["external_ids"]); d != "" {
		t.Errorf("the flow sets of a bridge are among its notes (-want +got):\n%s", d)
	}
	n.has("f1", "table=6,actions=normal")
	n.must(n.delete("ovs.flow_set", "f1"))
	if d := cmp.Diff(theirs, flowsOf(t, s)); d != "" {
		t.Errorf("flows of others changed (-before +after):\n%s", d)
	}
}

// TestFlowSetsOfOnePlace: of two sets that take the same place in a table at the same time, one is refused, and the other has its flow.
func TestFlowSetsOfOnePlace(t *testing.T) {
	n := newFlowing(t, ovstest.Start(t), ovs.Options{})
	for range 3 {
		sets := map[string]string{"a": "table=7,ip,actions=drop", "b": "table=7,dl_type=0x800,actions=normal"}
		var mu sync.Mutex
		var wg sync.WaitGroup
		refused := map[string]error{}
		for name, flow := range sets {
			wg.Go(func() {
				err := n.create("ovs.flow_set", name, flowSet(flow))
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					refused[name] = err
				}
			})
		}
		wg.Wait()
		if len(refused) != 1 {
			t.Fatalf("refused are %v", refused)
		}
		for name, flow := range sets {
			if err := refused[name]; err == nil {
				n.has(name, flow)
				n.must(n.delete("ovs.flow_set", name))
			} else if providers.ClassOf(err) != providers.Denied {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// TestFlowDrift: what others do to the flows of a set is seen, and an update makes it undone.
func TestFlowDrift(t *testing.T) {
	s := ovstest.Start(t)
	n := newFlowing(t, s, ovs.Options{})
	declared := []string{"table=5,actions=drop", "table=5,priority=3,ip,nw_src=10.1.2.3/8,actions=resubmit(,6)", `table=6,in_port="p0",actions=drop`}
	n.must(n.update("ovs.flow_set", "f0", flowSet(declared...)))
	intact := flowsOf(t, s)
	cookie := "cookie=" + cookieOf(t, s, "f0")
	for name, drift := range map[string]struct {
		verb, flow string
		has        []string
	}{
		"a missing flow": {"del-flows", "table=5,ip", []string{declared[0], declared[2]}},
		"another action": {"mod-flows", "table=6,actions=normal", []string{declared[0], declared[1], "table=6,in_port=1,actions=NORMAL"}},
		"another flow":   {"add-flow", cookie + ",table=9,arp,actions=drop", append([]string{"table=9,arp,actions=drop"}, declared...)},
		"a timeout": {"add-flow", cookie + ",table=5,idle_timeout=999,send_flow_rem,actions=drop", []string{
			"table=5,idle_timeout=999,send_flow_rem,actions=drop", declared[1], declared[2],
		}},
		"another cookie": {"add-flow", "cookie=0x5,table=9,arp,actions=drop", declared},
		"none left":      {"del-flows", cookie + "/-1", nil},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			n := &node{t, s, n.p}
			ofctl(t, s, drift.verb, "br0", drift.flow)
			n.has("f0", drift.has...)
			n.must(n.update("ovs.flow_set", "f0", flowSet(declared...)))
			n.has("f0", declared...)
			ofctl(t, s, "del-flows", "br0", "cookie=0x5/-1")
			if d := cmp.Diff(intact, flowsOf(t, s)); d != "" {
				t.Errorf("it is not as before (-before +after):\n%s", d)
			}
		})
	}

	// A port with another number is another port.
	n.must(n.delete("ovs.port", "p0"))
	n.has("f0", declared[0], declared[1], "table=6,in_port=1,actions=drop")
	n.must(n.create("ovs.port", "p0", schema.Object{"bridge": "br0", "interface": map[string]any{"type": "internal", "ofport_request": int64(40)}}))
	n.has("f0", declared[0], declared[1], "table=6,in_port=1,actions=drop")
	n.must(n.update("ovs.flow_set", "f0", flowSet(declared...)))
	n.has("f0", declared...)
	if out := flowsOf(t, s); !strings.Contains(out, "in_port=40 ") || strings.Contains(out, "in_port=1 ") {
		t.Errorf("the flows have another port:\n%s", out)
	}
}

// TestFlowsAreLost: ovs-vswitchd does not keep flows. While it is dead they are unknown, and then they are missing.
func TestFlowsAreLost(t *testing.T) {
	s := ovstest.Start(t)
	n := newFlowing(t, s, ovs.Options{})
	s.Kill(t)
	_, err := providers.Collect(n.kind("ovs.flow_set").List(t.Context()))
	n.fails(err, providers.Transient, "br0.mgmt")
	n.fails(n.create("ovs.flow_set", "f1", flowSet("table=7,actions=drop")), providers.Transient, "br0.mgmt")
	s.Restart(t)
	s.Settle(t)
	n.has("f0")
	n.must(n.update("ovs.flow_set", "f0", flowSet("table=5,actions=drop")))
	n.has("f0", "table=5,actions=drop")
}

// TestFlowSetOfUnknownEnd has what an interrupted change leaves: a set without its flows, and flows without a set.
func TestFlowSetOfUnknownEnd(t *testing.T) {
	s := ovstest.Start(t)
	n := newFlowing(t, s, ovs.Options{})
	seen, note := n.look("ovs.flow_set", "f0"), noteOf(t, s, "f0")
	ofctl(t, s, "del-flows", "br0", "table=5")
	n.has("f0")
	n.must(n.delete("ovs.flow_set", "f0"))
	ofctl(t, s, "add-flow", "br0", "cookie="+seen.Status["cookie"].(string)+",table=3,actions=normal")
	if got := n.list("ovs.flow_set"); len(got) != 0 {
		t.Errorf("there are %q", got)
	}
	n.must(n.create("ovs.flow_set", "f0", flowSet("table=5,actions=drop")))
	n.has("f0", "table=5,actions=drop")

	// The switch stops after the database has the change.
	r, endpoint := newRelay(t, s, nil)
	slow := newNode(t, s, ovs.Options{Endpoint: endpoint, RunDir: runDir(s), Settle: time.Second})
	r.on(func() fate { s.Freeze(t); return passed })
	slow.fails(slow.update("ovs.flow_set", "f0", flowSet("table=8,actions=drop")), providers.Unknown)
	_, err := providers.Collect(slow.kind("ovs.flow_set").List(t.Context()))
	slow.fails(err, providers.Transient)
	s.Thaw(t)
	s.Settle(t)
	n.must(n.update("ovs.flow_set", "f0", flowSet("table=5,actions=drop")))
	n.has("f0", "table=5,actions=drop")
	if got := noteOf(t, s, "f0"); got != note {
		t.Errorf("the note is %q, want %q", got, note)
	}
}

// runDir returns the run directory of a switch.
func runDir(s *ovstest.Switch) string { return filepath.Dir(strings.TrimPrefix(s.Endpoint, "unix:")) }

// noteOf returns what the bridge br0 has noted of a flow set.
func noteOf(t *testing.T, s *ovstest.Switch, name string) string {
	t.Helper()
	note, _ := s.Row(t, vswitch.BridgeTable, "br0")["external_ids"].(ovsdb.OvsMap).GoMap["converge.dev/flow_set/"+name].(string)
	return note
}

// TestFlowSetChangesInBetween makes another client change the bridge between what a verb reads and what it sends.
func TestFlowSetChangesInBetween(t *testing.T) {
	s := ovstest.Start(t)
	noted := func(name, note string) func(t *testing.T, s *ovstest.Switch) {
		return func(t *testing.T, s *ovstest.Switch) {
			s.Set(t, vswitch.BridgeTable, "br0", "external_ids", ofMap(t, map[string]string{"converge.dev/flow_set/" + name: note}))
		}
	}
	mode := func(t *testing.T, s *ovstest.Switch) { s.Set(t, vswitch.BridgeTable, "br0", "fail_mode", "standalone") }
	update := func(n *node) error { return n.update("ovs.flow_set", "f0", flowSet("table=6,actions=drop")) }
	for _, c := range []meddling{
		{"another declaration before an update", noted("f0", "\ntable=9,actions=drop"), update, providers.Conflict},
		{"another declaration before a delete", noted("f0", "\ntable=9,actions=drop"), func(n *node) error { return n.delete("ovs.flow_set", "f0") }, providers.Conflict},
		{"no set before a delete", noted("f7", ""), func(n *node) error { return n.delete("ovs.flow_set", "f0") }, providers.Conflict},
		{"another fail_mode before an update", mode, update, providers.Conflict},
		{
			"another fail_mode before a create", mode,
			func(n *node) error { return n.create("ovs.flow_set", "f1", flowSet("table=6,actions=drop")) }, providers.Conflict,
		},
		{
			"a late create of the same set", func(t *testing.T, s *ovstest.Switch) {
				other := newNode(t, s, ovs.Options{})
				other.must(other.create("ovs.flow_set", "f1", flowSet("table=6,actions=drop")))
			},
			func(n *node) error { return n.create("ovs.flow_set", "f1", flowSet("table=6,actions=drop")) }, providers.Exists,
		},
		{
			"another set of that name", noted("f1", "x"),
			func(n *node) error { return n.create("ovs.flow_set", "f1", flowSet("table=6,actions=drop")) }, providers.Exists,
		},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			s.Clear(t)
			r, endpoint := newRelay(t, s, nil)
			n := newFlowing(t, s, ovs.Options{Endpoint: endpoint, RunDir: runDir(s)})
			var theirs string
			r.on(func() fate {
				c.change(t, s)
				s.Settle(t)
				theirs = s.Dump(t) + flowsOf(t, s)
				return passed
			})
			n.fails(c.act(n), c.class)
			if d := cmp.Diff(theirs, s.Dump(t)+flowsOf(t, s)); d != "" {
				t.Errorf("what the others did is not what is there (-theirs +now):\n%s", d)
			}
		})
	}
}

// A stale update or delete of a set is refused, whether its flows or its declaration have changed since.
func TestFlowSetIsStale(t *testing.T) {
	s := ovstest.Start(t)
	n := newFlowing(t, s, ovs.Options{})
	for _, change := range []func(){
		func() { ofctl(t, s, "add-flow", "br0", "cookie="+cookieOf(t, s, "f0")+",table=9,actions=drop") },
		func() { n.must(n.update("ovs.flow_set", "f0", flowSet("table=6,actions=drop"))) },
		func() {
			n.must(n.delete("ovs.flow_set", "f0"))
			c := call("ovs.flow_set", "f0", flowSet("table=6,actions=drop"))
			c.Mark.Incarnation = 2
			n.must(n.kind("ovs.flow_set").Create(t.Context(), c))
		},
	} {
		seen := n.look("ovs.flow_set", "f0")
		change()
		n.still(func() {
			n.fails(n.updateSeen("ovs.flow_set", seen, flowSet("table=7,actions=drop")), providers.Conflict)
			n.fails(n.deleteSeen("ovs.flow_set", seen), providers.Conflict)
		})
	}
}

// An epoch that was replaced changes no flows, even though the switch knows of none.
func TestFlowsAreFenced(t *testing.T) {
	s := ovstest.Start(t)
	r, endpoint := newRelay(t, s, nil)
	n := newFlowing(t, s, ovs.Options{Endpoint: endpoint, RunDir: runDir(s)})
	newer := newNode(t, s, ovs.Options{})
	takeOver := func(epoch int64) func() fate {
		return func() fate {
			newer.must(newer.p.Fence(t.Context(), epoch))
			return passed
		}
	}
	flows := flowsOf(t, s)
	r.on(takeOver(7))
	n.fails(n.update("ovs.flow_set", "f0", flowSet("table=7,actions=drop")), providers.Transient, "another lock holder")
	n.fails(n.update("ovs.flow_set", "f0", flowSet("table=7,actions=drop")), providers.Denied, "epoch 7")
	n.fails(n.delete("ovs.flow_set", "f0"), providers.Denied, "epoch 7")
	n.fails(n.create("ovs.flow_set", "f1", flowSet("table=7,actions=drop")), providers.Denied, "epoch 7")
	if d := cmp.Diff(flows, flowsOf(t, s)); d != "" {
		t.Errorf("the flows changed (-before +after):\n%s", d)
	}
}

// Two bridges with a set of one name, as after their notes were copied, do not hide each other.
func TestFlowSetsOfOneName(t *testing.T) {
	s := ovstest.Start(t)
	n := newFlowing(t, s, ovs.Options{})
	n.must(n.create("ovs.bridge", "br1", lawFlows.Spec))
	s.Set(t, vswitch.BridgeTable, "br1", "external_ids", ofMap(t, map[string]string{"converge.dev/flow_set/f0": "\nactions=drop"}))
	if d := cmp.Diff([]string{"br0/f0", "br1/f0"}, n.list("ovs.flow_set")); d != "" {
		t.Errorf("the sets are (-want +got):\n%s", d)
	}
	n.has("br0/f0", "table=5,actions=drop")
	n.has("br1/f0")
	s.Vsctl(t, "clear", "bridge", "br1", "external_ids")
	n.has("f0", "table=5,actions=drop")
}

// What flows need besides the database is said.
func TestFlowsNeed(t *testing.T) {
	s := ovstest.Start(t)
	n := newFlowing(t, s, ovs.Options{})
	elsewhere := newNode(t, s, ovs.Options{RunDir: t.TempDir()})
	_, err := elsewhere.kind("ovs.flow_set").Get(t.Context(), []string{"f0"})
	elsewhere.fails(err, providers.Transient, "br0.mgmt")
	if things, err := elsewhere.kind("ovs.flow_set").Get(t.Context(), []string{"f1"}); err != nil || len(things) > 0 {
		t.Errorf("of a set that does not exist it says %v, %v", things, err)
	}
	server, theirs := certificate(t)
	client, ours := certificate(t)
	_, endpoint := newRelay(t, s, &tls.Config{Certificates: []tls.Certificate{server}, ClientCAs: ours, ClientAuth: tls.RequireAndVerifyClientCert})
	conf := &tls.Config{Certificates: []tls.Certificate{client}, RootCAs: theirs}
	remote := newNode(t, s, ovs.Options{Endpoint: endpoint, TLS: conf})
	remote.fails(remote.create("ovs.flow_set", "f1", flowSet("table=6,actions=drop")), providers.Denied, "run directory")
	_, err = remote.kind("ovs.flow_set").Get(t.Context(), []string{"f0"})
	remote.fails(err, providers.Denied, "run directory")
	near := newNode(t, s, ovs.Options{Endpoint: endpoint, TLS: conf, RunDir: runDir(s)})
	near.has("f0", "table=5,actions=drop")
	t.Setenv("PATH", t.TempDir())
	n.fails(n.create("ovs.flow_set", "f1", flowSet("table=6,actions=drop")), providers.Denied, "the program ovs-ofctl")
	_, err = n.kind("ovs.flow_set").Get(t.Context(), []string{"f0"})
	n.fails(err, providers.Denied, "the program ovs-ofctl")
}

// TestFlowsTakeEffect asks a real switch what it does with packets.
func TestFlowsTakeEffect(t *testing.T) {
	s := ovstest.Start(t)
	n := newFlowing(t, s, ovs.Options{})
	n.must(n.create("ovs.port", "p1", aPort))
	trace := func(want string) {
		t.Helper()
		out, err := s.Command(t, "ovs-appctl", "ofproto/trace", "br0", "in_port=p0,tcp,nw_dst=10.0.0.1").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "Datapath actions: "+want+"\n") {
			t.Errorf("a packet does not get to %q: %v: %s", want, err, out)
		}
	}
	trace("drop")
	n.must(n.create("ovs.flow_set", "f1", flowSet(`in_port="p0",ip,nw_dst=10.0.0.0/8,actions=resubmit(,1)`, `table=1,actions=output:"p1"`)))
	out, err := s.Command(t, "ovs-appctl", "dpctl/show", "netdev@ovs-netdev").CombinedOutput()
	number := regexp.MustCompile(`port ([0-9]+): p1 `).FindStringSubmatch(string(out))
	if err != nil || number == nil {
		t.Fatalf("%v: %s", err, out)
	}
	trace(number[1])
	n.must(n.delete("ovs.flow_set", "f1"))
	trace("drop")
}
