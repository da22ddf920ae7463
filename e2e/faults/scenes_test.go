package faults

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
	"converge.dev/converge/schema/load"
)

// siteID is the UUID of the site of all cells.
const siteID = "6a1d0f5e-4b7c-4e0a-8f2b-93c5d1e7a640"

// A scene is what happens to x.
type scene struct {
	name  string // of the kind, or what is particular
	way   string // create, update, delete
	ref   schema.Ref
	first *schema.Document
	last  *schema.Document
}

func (s *scene) String() string { return s.name + "/" + s.way }

// A subject is a kind, or a part of it, with two states of one resource of it.
type subject struct {
	name  string // of the scenes; the kind's noun unless that is not enough
	noun  string
	x     string // the name of the resource; x when empty
	needs string // what else the documents have
	one   string
	two   string // empty: it cannot change
	ways  string // empty: create, update and delete
}

// hostIDs are the hosts of every site: the same options make the same machines.
var hostIDs = sync.OnceValues(func() ([]string, error) { return hostsOf(worldOptions()) })

func hostsOf(o carbidesim.Options) ([]string, error) {
	w, err := carbidesim.New(o)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, o := range w.Objects() {
		if o.Kind == "machine" && strings.HasPrefix(o.ID, "fm100ht") {
			ids = append(ids, o.ID)
		}
	}
	return ids, w.Close()
}

// worldOptions are those of every site. What takes its time takes none, but that ids of NVLink partitions are free again is as
// far away as the late bound, as it is on a real site.
func worldOptions() carbidesim.Options {
	timing := carbidesim.FastTiming
	timing.Purge = late
	return carbidesim.Options{
		Timing: timing, Hosts: carbidesim.Hosts{Count: 2},
		Rules: carbidesim.Rules{
			RoutingProfiles: []carbidesim.RoutingProfile{{Name: "internal"}},
			Peering:         carbidesim.PeeringMixed,
		},
	}
}

// subjects are all kinds, so that every method of theirs is met.
func subjects(host string) []subject {
	const rule = `{id: "%s", direction: "ingress", protocol: "tcp", action: "%s", priority: %d, src_prefix: "0.0.0.0/0", dst_prefix: "0.0.0.0/0", dst_ports: {start: 443, end: 443}}`
	const nets = `vpc: net: {tenant: "acme", virtualization: "fnn"}
		vpc_prefix: links: {vpc: "net", prefix: "10.1.0.0/16"}`
	instance := func(more string) string {
		return fmt.Sprintf(`{tenant: "acme", machine: %q, interfaces: [{vpc_prefix: "links"}], %s}`, host, more)
	}
	const bmc = `bmc_username: "root", bmc_password: {from: "env:SECRET"}, `
	return []subject{
		{noun: "tenant", one: `{display_name: "First"}`, two: `{display_name: "Second"}`},
		{noun: "tenant_keyset", one: `{tenant: "acme", keys: ["ssh-ed25519 AAAA one"]}`, two: `{tenant: "acme", keys: ["ssh-ed25519 AAAA two"]}`},
		{noun: "vpc", one: `{tenant: "acme", labels: n: "1"}`, two: `{tenant: "acme", labels: n: "2"}`},
		{name: "vpc fabric", noun: "vpc", ways: "update", one: `{tenant: "acme", virtualization: "fnn"}`, two: `{tenant: "acme", virtualization: "flat"}`},
		{name: "vpc whole", noun: "vpc", ways: "update", one: `{tenant: "acme", virtualization: "fnn", labels: n: "1"}`, two: `{tenant: "acme", virtualization: "flat", labels: n: "2"}`},
		{
			noun: "vpc_prefix", needs: `vpc: net: tenant: "acme"`,
			one: `{vpc: "net", prefix: "10.1.0.0/16", labels: n: "1"}`, two: `{vpc: "net", prefix: "10.1.0.0/16", labels: n: "2"}`,
		},
		{noun: "network_segment", needs: `vpc: net: tenant: "acme"`, one: `{vpc: "net", prefixes: [{prefix: "10.2.0.0/24"}]}`},
		{
			noun: "network_security_group", one: `{tenant: "acme", rules: [` + fmt.Sprintf(rule, "a", "permit", 100) + `]}`,
			two: `{tenant: "acme", description: "other", rules: [` + fmt.Sprintf(rule, "a", "permit", 100) + `]}`,
		},
		{
			name: "network_security_group rules", noun: "network_security_group", ways: "update",
			one: `{tenant: "acme", rules: [` + fmt.Sprintf(rule, "a", "permit", 100) + `]}`,
			two: `{tenant: "acme", rules: [` + strings.Replace(fmt.Sprintf(rule, "b", "permit", 100), "443", "80", 2) + `]}`,
		},
		{noun: "instance_type", one: `{labels: n: "1"}`, two: `{labels: n: "2"}`},
		{
			noun: "compute_allocation", needs: `instance_type: any: {}`,
			one: `{tenant: "acme", instance_type: "any", count: 0, labels: n: "1"}`, two: `{tenant: "acme", instance_type: "any", count: 0, labels: n: "2"}`,
		},
		{noun: "instance", needs: nets, one: instance(`os: ipxe: "#!ipxe", labels: n: "1"`), two: instance(`os: ipxe: "#!ipxe", labels: n: "2"`)},
		{name: "instance boots", noun: "instance", needs: nets, ways: "update", one: instance(`os: ipxe: "#!ipxe one"`), two: instance(`os: ipxe: "#!ipxe two"`)},
		{name: "instance off", noun: "instance", needs: nets, one: instance(`os: ipxe: "#!ipxe", power: "off"`), two: instance(`os: ipxe: "#!ipxe", power: "on"`)},
		{name: "instance on", noun: "instance", needs: nets, ways: "update", one: instance(`os: ipxe: "#!ipxe", power: "on"`), two: instance(`os: ipxe: "#!ipxe", power: "off"`)},
		{
			noun: "expected_machine", one: `{` + bmc + `bmc_mac_address: "0a:00:00:00:00:01", chassis_serial_number: "SN-1", labels: n: "1"}`,
			two: `{` + bmc + `bmc_mac_address: "0a:00:00:00:00:01", chassis_serial_number: "SN-1", labels: n: "2"}`,
		},
		{
			noun: "expected_switch", one: `{` + bmc + `bmc_mac_address: "0a:00:00:00:00:01", switch_serial_number: "SN-1", labels: n: "1"}`,
			two: `{` + bmc + `bmc_mac_address: "0a:00:00:00:00:01", switch_serial_number: "SN-1", labels: n: "2"}`,
		},
		{
			noun: "expected_power_shelf", one: `{` + bmc + `bmc_mac_address: "0a:00:00:00:00:01", shelf_serial_number: "SN-1", labels: n: "1"}`,
			two: `{` + bmc + `bmc_mac_address: "0a:00:00:00:00:01", shelf_serial_number: "SN-1", labels: n: "2"}`,
		},
		{noun: "sku", one: `{description: "one", chassis: {model: "m", architecture: "x86_64"}}`, two: `{description: "two", chassis: {model: "m", architecture: "x86_64"}}`},
		{
			name: "sku parts", noun: "sku", ways: "update", one: `{chassis: {model: "m", architecture: "x86_64"}}`,
			two: `{chassis: {model: "n", architecture: "x86_64"}}`,
		},
		{name: "machine", noun: "machine", x: host, ways: "update", one: `{labels: n: "1"}`, two: `{labels: n: "2"}`},
		{name: "machine maintenance", noun: "machine", x: host, ways: "update", one: `{}`, two: `{maintenance: reference: "OPS-1234"}`},
		{name: "machine type", noun: "machine", x: host, needs: `instance_type: any: {}`, ways: "update", one: `{}`, two: `{instance_type: "any"}`},
		{
			name: "machine sku", noun: "machine", x: host, needs: `sku: any: chassis: {model: "m", architecture: "x86_64"}`,
			ways: "update", one: `{}`, two: `{sku: "any"}`,
		},
		{
			name: "machine whole", noun: "machine", x: host, needs: `instance_type: any: {}, sku: {any: chassis: {model: "m", architecture: "x86_64"}, other: chassis: {model: "n", architecture: "x86_64"}}`,
			ways: "update", one: `{sku: "other"}`, two: `{sku: "any", labels: n: "1", maintenance: reference: "OPS-1234", instance_type: "any"}`,
		},
		{noun: "vpc_peering", needs: `vpc: {aa: tenant: "acme", bb: tenant: "acme"}`, one: `{vpcs: ["aa", "bb"]}`},
		{noun: "ib_partition", one: `{tenant: "acme", labels: n: "1"}`, two: `{tenant: "acme", labels: n: "2"}`},
		{noun: "nvlink_logical_partition", one: `{tenant: "acme", description: "one"}`, two: `{tenant: "acme", description: "two"}`},
		{noun: "spx_partition", one: `{tenant: "acme"}`},
		{
			noun: "operating_system", one: `{tenant: "acme", script: "#!ipxe one"}`, two: `{tenant: "acme", script: "#!ipxe two"}`,
		},
		{
			noun: "os_image", one: `{tenant: "acme", source_url: "https://images.example/a", digest: "sha256:aa", description: "one"}`,
			two: `{tenant: "acme", source_url: "https://images.example/a", digest: "sha256:aa", description: "two"}`,
		},
		{
			noun: "dpu_extension_service", one: `{tenant: "acme", manifest: "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a}]}"}`,
			two: `{tenant: "acme", manifest: "apiVersion: v1\nkind: Pod\nmetadata: {name: b}\nspec: {containers: [{name: b}]}"}`,
		},
	}
}

// compiled is the embedded schema, compiled once.
var compiled = sync.OnceValues(kinds.New)

// scenes loads the documents of all subjects.
func scenes(t *testing.T) []*scene {
	t.Helper()
	known, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	hosts, err := hostIDs()
	if err != nil || len(hosts) == 0 {
		t.Fatalf("the site has no machines: %v", err)
	}
	document := func(s subject, x string) *schema.Document {
		text := fmt.Sprintf("apiVersion: \"converge.dev/v1\"\nsite: {name: \"grid\", id: %q}\npolicy: max_destroy: \"100%%\"\n"+
			"carbide: {\n\ttenant: acme: {}\n\t%s\n", siteID, s.needs)
		if x != "" {
			text += fmt.Sprintf("\t%s: %q: %s\n", s.noun, s.x, x)
		}
		doc, ds := load.Document(context.Background(), known, load.Options{}, load.Source{Name: "grid.cue", Data: []byte(text + "}\n")})
		if doc == nil {
			t.Fatalf("%s: %v\n%s", s.name, ds.Err(), text)
		}
		return doc
	}
	var all []*scene
	for _, s := range subjects(hosts[0]) {
		if s.name == "" {
			s.name = s.noun
		}
		if s.x == "" {
			s.x = "x1"
		}
		if s.ways == "" {
			s.ways = "create update delete"
		}
		ref := schema.Ref{Scope: schema.ScopeSite, Kind: "carbide." + s.noun, Name: s.x}
		none, one := document(s, ""), document(s, s.one)
		for _, way := range strings.Fields(s.ways) {
			sc := &scene{name: s.name, way: way, ref: ref}
			switch way {
			case "create":
				sc.first, sc.last = none, one
			case "delete":
				sc.first, sc.last = one, none
			case "update":
				if s.two == "" {
					continue
				}
				sc.first, sc.last = one, document(s, s.two)
			}
			all = append(all, sc)
		}
	}
	return all
}
