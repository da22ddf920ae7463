package ovs_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"maps"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"converge.dev/converge/internal/ovstest"
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/ovs"
	"converge.dev/converge/providers/ovs/vswitch"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
	"github.com/ovn-org/libovsdb/ovsdb"
)

// on runs a test on the database in memory and on a real Open vSwitch.
func on(t *testing.T, test func(t *testing.T, s *ovstest.Switch)) {
	t.Run("fake", func(t *testing.T) { test(t, ovstest.Fake(t)) })
	t.Run("real", func(t *testing.T) { test(t, ovstest.Start(t)) })
}

// open connects a provider to a switch.
func open(t *testing.T, o ovs.Options) *providers.Provider {
	t.Helper()
	o.Node, o.Site = "gpu-01", providertest.Site
	p, err := ovs.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Examples of each kind, for the laws.
var (
	bridgeCases = []providertest.Case{{
		Kind: "ovs.bridge", Name: "br-slice",
		Want: schema.Object{
			"datapath_type": ovstest.Datapath, "fail_mode": "secure", "protocols": []any{"OpenFlow14", "OpenFlow10"},
			"other_config": map[string]any{"mac-table-size": "4096"}, "external_ids": map[string]any{"slice": "a"},
		},
		Update: schema.Object{
			"datapath_type": ovstest.Datapath, "stp_enable": true, "mcast_snooping_enable": true,
			"external_ids": map[string]any{"slice": "b", "owner": "acme"},
		},
		Invalid: schema.Object{"datapath_type": ovstest.Datapath, "protocols": []any{"OpenFlow99"}},
	}}
	portCases = []providertest.Case{
		{
			Kind: "ovs.port", Name: "tap-web", Needs: []providertest.Made{lawBridge, lawQoS},
			Want: schema.Object{
				"bridge": lawBridge.Name, "qos": lawQoS.Name, "tag": int64(42), "vlan_mode": "native-untagged", "trunks": []any{int64(7), int64(5)},
				"lacp": "passive", "interface": map[string]any{
					"type": "internal", "mac": "02:00:00:00:00:2a", "external_ids": map[string]any{"iface-id": "web"},
					"ingress_policing_rate": int64(10000), "ingress_policing_burst": int64(1000), "ingress_policing_kpkts_rate": int64(5),
					"ingress_policing_kpkts_burst": int64(2), "bfd": map[string]any{"enable": "true"}, "lldp": map[string]any{"enable": "true"},
					"cfm_mpid": int64(7),
				},
			},
			Update: schema.Object{
				"bridge": lawBridge.Name, "tag": int64(43), "protected": true, "external_ids": map[string]any{"owner": "acme"},
				"interface": map[string]any{"type": "internal", "mtu_request": int64(1400)},
			},
			Invalid: schema.Object{"bridge": lawBridge.Name, "tag": int64(5000), "interface": map[string]any{"type": "internal"}},
			Other:   func(i int) providertest.Made { return lawPort("tap-" + string(rune('a'+i%26))) },
		},
		{
			Kind: "ovs.port", Name: "vx-peer", Needs: []providertest.Made{lawBridge},
			Want: schema.Object{"bridge": lawBridge.Name, "interface": map[string]any{
				"type": "vxlan", "options": map[string]any{"remote_ip": "192.0.2.7", "key": "100"}, "ofport_request": int64(77),
			}},
			Update: schema.Object{"bridge": lawBridge.Name, "interface": map[string]any{
				"type": "vxlan", "options": map[string]any{"remote_ip": "192.0.2.8", "key": "100"},
			}},
			Single: true,
		},
		{
			Kind: "ovs.port", Name: "bond-up", Needs: []providertest.Made{lawBridge},
			Want: schema.Object{
				"bridge": lawBridge.Name, "bond_mode": "balance-slb", "bond_updelay": int64(200), "bond_downdelay": int64(100),
				"interfaces": map[string]any{
					"up-a": map[string]any{"type": "internal"}, "up-b": map[string]any{"type": "internal", "external_ids": map[string]any{"leaf": "1"}},
				},
			},
			Update: schema.Object{
				"bridge": lawBridge.Name, "lacp": "passive", "other_config": map[string]any{"lacp-time": "fast"}, "interfaces": map[string]any{
					"up-c": map[string]any{"type": "internal"}, "up-b": map[string]any{"type": "internal", "mtu_request": int64(1400)},
				},
			},
			Invalid: schema.Object{"bridge": lawBridge.Name, "interfaces": map[string]any{
				"up-a": map[string]any{"type": "internal", "ofport_request": int64(0)}, "up-b": map[string]any{"type": "internal"},
			}},
			Other: func(i int) providertest.Made { return lawPort("tap-" + string(rune('a'+i%26))) },
		},
	}
)

// lawBridge is created before what depends on a bridge.
var lawBridge = providertest.Made{Kind: "ovs.bridge", Name: "br-int", Spec: schema.Object{"datapath_type": ovstest.Datapath}}

// lawPort returns a port of that bridge.
func lawPort(name string) providertest.Made {
	return providertest.Made{Kind: "ovs.port", Name: name, Spec: schema.Object{
		"bridge": lawBridge.Name, "interface": map[string]any{"type": "internal"},
	}}
}

func TestLaws(t *testing.T) {
	cases := slices.Concat(
		bridgeCases,
		controllerCases,
		flowSetCases,
		mirrorCases,
		portCases,
		qosCases,
		queueCases,
		settingCases,
	)
	schemas, err := kinds.New()
	if err != nil {
		t.Fatal(err)
	}
	on(t, func(t *testing.T, s *ovstest.Switch) {
		// A database in memory has no flow table, and a substitute for ovs-ofctl would only share our view of what that prints.
		hasFlows := func(kind string) bool { return kind == "ovs.flow_set" }
		cases, kinds := slices.Clone(cases), maps.Clone(schemas.Kinds())
		if !s.Real {
			maps.DeleteFunc(kinds, func(kind string, _ *schema.Kind) bool { return hasFlows(kind) })
			cases = slices.DeleteFunc(cases, func(c providertest.Case) bool { return hasFlows(c.Kind) })
		}
		providertest.Run(t, providertest.Suite{
			Kinds:  kinds,
			Cases:  cases,
			Direct: s.Real,
			Open: func(t *testing.T) providertest.World {
				s := s
				if s.Real {
					s.Clear(t)
				} else {
					s = ovstest.Fake(t) // the server in memory goes on to send changes to every client that has left
				}
				p := open(t, ovs.Options{Endpoint: s.Endpoint})
				if !s.Real {
					p.Kinds = slices.DeleteFunc(p.Kinds, func(k providers.Served) bool { return hasFlows(k.Name) })
				}
				return providertest.World{
					Provider: p,
					Dump:     func() string { return s.Dump(t) + flowsOf(t, s) },
					Meddle:   func(kind, id string) { meddle(t, s, kind, id) },
				}
			},
		})
	})
}

// meddle adds a note to the row of a thing, or changes it where it has no row, like ovs-vsctl --no-wait.
func meddle(t *testing.T, s *ovstest.Switch, kind, id string) {
	t.Helper()
	if kind == "ovs.flow_set" {
		ofctl(t, s, "add-flow", lawFlows.Name, "cookie="+cookieOf(t, s, id)+",table=77,actions=drop")
		return
	}
	if kind == "ovs.setting" {
		setConfig(t, s, id, "theirs")
		return
	}
	table := map[string]string{
		"ovs.bridge": vswitch.BridgeTable, "ovs.controller": vswitch.ControllerTable,
		"ovs.mirror": vswitch.MirrorTable, "ovs.port": vswitch.PortTable,
		"ovs.qos": vswitch.QoSTable, "ovs.queue": vswitch.QueueTable,
	}[kind]
	where := ovsdb.NewCondition("name", ovsdb.ConditionEqual, id)
	if vswitch.Parsed().Table(table).Column("name") == nil {
		where = ovsdb.NewCondition("external_ids", ovsdb.ConditionIncludes, ofMap(t, map[string]string{"converge.dev/name": id}))
	}
	counted := s.Transact(t, ovsdb.Operation{
		Op: ovsdb.OperationMutate, Table: table, Where: []ovsdb.Condition{where},
		Mutations: []ovsdb.Mutation{{Column: "external_ids", Mutator: ovsdb.MutateOperationInsert, Value: ofMap(t, map[string]string{"note": "theirs"})}},
	})[0].Count
	if counted != 1 {
		t.Fatalf("%d rows are %s %s", counted, kind, id)
	}
}

func TestOpenRefuses(t *testing.T) {
	for name, o := range map[string]ovs.Options{
		"no node":           {Site: providertest.Site},
		"no site":           {Node: "gpu-01"},
		"neither unix":      {Node: "gpu-01", Site: providertest.Site, Endpoint: "tcp:127.0.0.1:6640"},
		"unix: is neither":  {Node: "gpu-01", Site: providertest.Site, Endpoint: "unix:"},
		"ssl: is neither":   {Node: "gpu-01", Site: providertest.Site, Endpoint: "ssl:", TLS: &tls.Config{}},
		"TLS configuration": {Node: "gpu-01", Site: providertest.Site, Endpoint: "ssl:127.0.0.1:6640"},
		"connect to unix:":  {Node: "gpu-01", Site: providertest.Site, Endpoint: "unix:" + t.TempDir() + "/none.sock"},
	} {
		p, err := ovs.Open(t.Context(), o)
		if err == nil {
			p.Close()
			t.Errorf("%s: it opened", name)
		} else if strings.Contains(name, " ") && !strings.HasPrefix(name, "no ") && !strings.Contains(err.Error(), name) {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
}

// A socket is found by its path, whatever is in it and wherever it begins, and never another one instead.
func TestSocketPaths(t *testing.T) {
	s := ovstest.Fake(t)
	socket, _ := strings.CutPrefix(s.Endpoint, "unix:")
	odd := filepath.Join(t.TempDir(), "a b#c%20d?e=f")
	if err := os.Symlink(filepath.Dir(socket), odd); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Dir(odd))
	name := filepath.Base(socket)
	for i, endpoint := range []string{
		"unix:" + filepath.Join(odd, name), "unix:" + filepath.Join(filepath.Base(odd), name), "unix:./" + filepath.Join(filepath.Base(odd), name),
	} {
		bridge := "br" + string(rune('0'+i))
		n := newNode(t, s, ovs.Options{Endpoint: endpoint})
		n.must(n.create("ovs.bridge", bridge, aBridge))
		if !strings.Contains(s.Dump(t), bridge) {
			t.Errorf("%s leads to another switch", endpoint)
		}
	}
}

func TestClosed(t *testing.T) {
	p := open(t, ovs.Options{Endpoint: ovstest.Fake(t).Endpoint})
	for range 2 {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := providers.Collect(p.Kinds[0].Kind.List(t.Context())); providers.ClassOf(err) != providers.Transient {
		t.Errorf("observing through a closed provider: %v", err)
	}
}

// TestTLS connects with certificates on both sides, and is refused without or with the wrong ones.
func TestTLS(t *testing.T) {
	s := ovstest.Fake(t)
	server, theirs := certificate(t)
	client, ours := certificate(t)
	_, endpoint := newRelay(t, s, &tls.Config{
		Certificates: []tls.Certificate{server}, ClientCAs: ours, ClientAuth: tls.RequireAndVerifyClientCert,
	})
	n := newNode(t, s, ovs.Options{Endpoint: endpoint, TLS: &tls.Config{Certificates: []tls.Certificate{client}, RootCAs: theirs}})
	n.must(n.create("ovs.bridge", "br0", aBridge))
	for name, conf := range map[string]*tls.Config{
		"no certificate":          {RootCAs: theirs},
		"another server expected": {Certificates: []tls.Certificate{client}, RootCAs: ours},
	} {
		o := ovs.Options{Node: "gpu-01", Site: providertest.Site, Endpoint: endpoint, TLS: conf}
		if p, err := ovs.Open(t.Context(), o); err == nil {
			p.Close()
			t.Errorf("%s: it opened", name)
		}
	}
}

// certificate returns a self-signed certificate, and a pool that trusts it.
func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// A database reports its identity, to every client and every time.
func TestIdentity(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		var ids []string
		for range 2 {
			p := open(t, ovs.Options{Endpoint: s.Endpoint})
			id, err := p.Identity(t.Context())
			if err != nil || id == "" {
				t.Fatalf("it calls itself %q (%v)", id, err)
			}
			ids = append(ids, id)
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if ids[0] != ids[1] {
			t.Errorf("one database calls itself %q and %q", ids[0], ids[1])
		}
	})
}
