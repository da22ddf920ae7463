package rules_test

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
	"converge.dev/converge/schema/rules"
)

// A network is bridges and tunnels of nodes a, b and so on, whose addresses end in 1, 2 and so on. It is what is changed in a full mesh
// of three.
type network struct {
	bridge, port map[string]any // fields of all bridges, and of all tunnels
	options      map[string]any // of all tunnels
	of           map[string]any // fields of some tunnels, by their names; nil: there is none
	more         map[string]any // resources by their paths below a node
}

var embedded = sync.OnceValues(kinds.New)

// site returns the site of a network.
func (n network) site(t *testing.T) *rules.Site {
	t.Helper()
	var resources []*rules.Resource
	add := func(path string, spec map[string]any) { resources = append(resources, resource(t, path, spec)) }
	for i, here := range []string{"a", "b", "c"} {
		bridge := map[string]any{}
		maps.Copy(bridge, n.bridge)
		add(here+"/ovs/bridge/br", bridge)
		for j, there := range []string{"a", "b", "c"} {
			name := here + there
			changed, isChanged := n.of[name]
			if i == j || isChanged && changed == nil {
				continue
			}
			options := map[string]any{"local_ip": fmt.Sprintf("10.0.0.%d", i+1), "remote_ip": fmt.Sprintf("10.0.0.%d", j+1), "key": "7"}
			maps.Copy(options, n.options)
			port := map[string]any{"bridge": "br"}
			maps.Copy(port, n.port)
			sort := "vxlan"
			if fields, ok := changed.(map[string]any); ok {
				for field, v := range fields {
					switch field {
					case "type":
						sort = v.(string)
					case "local_ip", "remote_ip", "key", "in_key", "out_key", "dst_port":
						if options[field] = v; v == "" {
							delete(options, field)
						}
					default:
						port[field] = v
					}
				}
			}
			port["interface"] = map[string]any{"type": sort, "options": options}
			add(here+"/ovs/port/"+name, port)
		}
	}
	for path, spec := range n.more {
		add(path, spec.(map[string]any))
	}
	return accepted(t, resources...)
}

// resource returns what a document has at a path below nodes.
func resource(t *testing.T, path string, spec map[string]any) *rules.Resource {
	t.Helper()
	s, err := embedded()
	if err != nil {
		t.Fatal(err)
	}
	return rules.NewResource(s.Kinds(), strings.Split("nodes/"+path, "/"), spec)
}

func accepted(t *testing.T, resources ...*rules.Resource) *rules.Site {
	t.Helper()
	s, err := embedded()
	if err != nil {
		t.Fatal(err)
	}
	site := rules.NewSite(s.Kinds(), nil, resources)
	for _, r := range site.Resources {
		if r.Spec["external"] != nil {
			site.AcceptExternal(r)
		} else {
			site.Accept(r)
		}
	}
	return site
}

// problems returns what was found: the codes and the names of the ports.
func problems(t *testing.T, found rules.Findings) (got []string) {
	t.Helper()
	for _, p := range found.Problems {
		got = append(got, p.Rule.Code+" "+p.Of.Ref.Name)
		if p.Warning != (p.Rule.Code >= "CV1182") {
			t.Errorf("%s is a warning: %v", p.Rule.Code, p.Warning)
		}
	}
	return got
}

// A warning is given where it is certain that the document causes it, and nowhere else.
func TestTunnelsAcrossNodes(t *testing.T) {
	type fields = map[string]any
	protected := fields{"protected": true}
	one := func(name string, f fields) fields { return fields{name: f} }
	port := func(options fields, f fields) fields {
		p := fields{"bridge": "br", "interface": fields{"type": "vxlan", "options": options}}
		maps.Copy(p, f)
		return p
	}
	second := fields{
		"a/ovs/port/ab2": port(fields{"local_ip": "10.0.0.1", "remote_ip": "10.0.0.2", "key": "8"}, nil),
		"b/ovs/port/ba2": port(fields{"local_ip": "10.0.0.2", "remote_ip": "10.0.0.1", "key": "8"}, nil),
	}
	for name, c := range map[string]struct {
		network network
		want    []string
	}{
		"a mesh that floods in circles":    {network{}, []string{"CV1183 cb"}},
		"in one VLAN":                      {network{port: fields{"tag": int64(5)}}, []string{"CV1183 cb"}},
		"one end is protected":             {network{of: one("ab", protected)}, nil},
		"all are protected":                {network{port: protected}, nil},
		"one link less":                    {network{of: fields{"ab": nil, "ba": nil}}, nil},
		"one link has another VLAN":        {network{of: fields{"ab": fields{"tag": int64(5)}, "ba": fields{"tag": int64(5)}}}, nil},
		"one link has a trunk":             {network{of: fields{"ab": fields{"trunks": []any{int64(5)}}}}, nil},
		"a spanning tree":                  {network{bridge: fields{"rstp_enable": true}}, nil},
		"the other spanning tree":          {network{bridge: fields{"stp_enable": true}}, nil},
		"flows decide":                     {network{bridge: fields{"fail_mode": "secure"}}, nil},
		"bridges may be others'":           {network{bridge: fields{"lifecycle": fields{"adopt": "match"}}}, nil},
		"a controller decides":             {network{more: fields{"a/ovs/controller/c": fields{"bridge": "br", "target": "tcp:10.9.0.1:6653"}}}, nil},
		"keys are set by flows":            {network{options: fields{"key": "flow"}}, nil},
		"the address is in two nodes":      {network{of: fields{"ab": fields{"local_ip": "10.0.0.2"}}}, nil},
		"two tunnels between two":          {network{of: fields{"ac": nil, "ca": nil, "bc": nil, "cb": nil}, more: second}, []string{"CV1183 ba2"}},
		"no way back":                      {network{port: protected, of: fields{"ba": nil}}, []string{"CV1182 ab"}},
		"the way back is another type":     {network{port: protected, of: one("ba", fields{"type": "geneve"})}, []string{"CV1182 ab", "CV1182 ba"}},
		"it has another UDP port":          {network{port: protected, of: one("ba", fields{"dst_port": "8472"})}, []string{"CV1182 ab", "CV1182 ba"}},
		"it has another key":               {network{port: protected, of: one("ba", fields{"key": "8"})}, []string{"CV1182 ab", "CV1182 ba"}},
		"it has a key for each direction":  {network{port: protected, of: fields{"ba": fields{"in_key": "8"}, "ab": fields{"out_key": "0x8"}}}, nil},
		"it is in octal":                   {network{port: protected, of: one("ba", fields{"key": "07"})}, nil},
		"no number of C":                   {network{port: protected, of: one("ba", fields{"key": "0b111"})}, []string{"CV1181 ba"}},
		"it takes any key":                 {network{port: protected, of: one("ba", fields{"key": "flow"})}, nil},
		"it has any local address":         {network{port: protected, of: one("ba", fields{"local_ip": ""})}, nil},
		"it takes any remote address":      {network{port: protected, of: one("ba", fields{"remote_ip": "flow"})}, nil},
		"it leads elsewhere":               {network{port: protected, of: one("ba", fields{"remote_ip": "10.0.0.9"})}, []string{"CV1182 ab"}},
		"the other end is no node":         {network{port: protected, of: one("ab", fields{"remote_ip": "10.0.0.9"})}, []string{"CV1182 ba"}},
		"this end has any address":         {network{port: protected, of: fields{"ab": fields{"local_ip": ""}, "ba": nil}}, nil},
		"it may be a port of others":       {network{port: protected, of: fields{"ba": nil}, more: fields{"b/ovs/port/x": fields{"external": true}}}, nil},
		"it may be a port that is adopted": {network{port: protected, of: one("ba", fields{"key": "8", "lifecycle": fields{"adopt": "match"}})}, nil},
		"it may have a key of others":      {network{port: protected, of: one("ba", fields{"key": "8", "lifecycle": fields{"ignore": []any{"interface.options.key"}}})}, nil},
		"it gets what a mirror selects":    {network{port: protected, of: fields{"ba": nil}, more: fields{"a/ovs/mirror/m": fields{"bridge": "br", "output_port": "ab"}}}, nil},
		"two that are one":                 {network{port: protected, more: fields{"a/ovs/port/ab2": port(fields{"local_ip": "10.0.0.1", "remote_ip": "10.0.0.2", "key": "0x7"}, protected)}}, []string{"CV1180 ab2"}},
		"on another datapath":              {network{port: protected, more: fields{"a/ovs/bridge/user": fields{"datapath_type": "netdev"}, "a/ovs/port/ab2": port(fields{"local_ip": "10.0.0.1", "remote_ip": "10.0.0.2", "key": "7"}, fields{"bridge": "user"})}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, problems(t, c.network.site(t).Check(100))); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

// A loop is reported once, however many there are in a mesh. It takes minutes where a rule compares all tunnels with each other.
func TestLargeMesh(t *testing.T) {
	const nodes = 120
	var resources []*rules.Resource
	for i := range nodes {
		node := fmt.Sprintf("node-%03d", i)
		resources = append(resources, resource(t, node+"/ovs/bridge/br", map[string]any{}))
		for j := range nodes {
			if i != j {
				resources = append(resources, resource(t, fmt.Sprintf("%s/ovs/port/to-%03d", node, j), map[string]any{
					"bridge": "br", "interface": map[string]any{"type": "vxlan", "options": map[string]any{
						"local_ip": fmt.Sprintf("10.0.0.%d", i+1), "remote_ip": fmt.Sprintf("10.0.0.%d", j+1),
					}},
				}))
			}
		}
	}
	if found := accepted(t, resources...).Check(100); len(found.Problems) != 1 || found.Problems[0].Of.Ref != (schema.Ref{Scope: "node-002", Kind: "ovs.port", Name: "to-001"}) {
		t.Errorf("found %+v", found)
	}
}

// A revision is warned of what it causes, also by what it removes or changes elsewhere, and not of what has nothing to do with tunnels.
func TestTunnelsRevised(t *testing.T) {
	type fields = map[string]any
	tree := fields{"rstp_enable": true}
	oneWay := network{port: fields{"protected": true}, of: fields{"ba": nil}, more: fields{"b/ovs/port/x": fields{"external": true}}}
	for name, c := range map[string]struct {
		network network
		put     fields
		remove  string
		want    []string
	}{
		"the way back is removed":              {network: network{port: fields{"protected": true}}, remove: "b/ovs.port/ba", want: []string{"CV1182 ab"}},
		"the port that may be it is removed":   {network: oneWay, remove: "b/ovs.port/x", want: []string{"CV1182 ab"}},
		"the port is known now":                {network: oneWay, put: fields{"b/ovs/port/x": fields{"bridge": "br", "interface": fields{"type": "internal"}}}, want: []string{"CV1182 ab"}},
		"bridges without a spanning tree":      {network: network{bridge: tree}, put: fields{"a/ovs/bridge/br": fields{}, "b/ovs/bridge/br": fields{}, "c/ovs/bridge/br": fields{}}, want: []string{"CV1183 cb"}},
		"the controller is removed":            {network: network{more: fields{"a/ovs/controller/c": fields{"bridge": "br", "target": "tcp:10.9.0.1:6653"}}}, remove: "a/ovs.controller/c", want: []string{"CV1183 cb"}},
		"the mirror is removed":                {network: network{port: fields{"protected": true}, of: fields{"ba": nil}, more: fields{"a/ovs/mirror/m": fields{"bridge": "br", "output_port": "ab"}}}, remove: "a/ovs.mirror/m", want: []string{"CV1182 ab"}},
		"no tunnel, with the loop from before": {network: network{}, put: fields{"a/ovs/port/x": fields{"bridge": "br", "interface": fields{"type": "internal"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			site := c.network.site(t)
			site.Keep()
			site.Check(100)
			var put []*rules.Resource
			for path, spec := range c.put {
				put = append(put, accepted(t, resource(t, path, spec.(fields))).Resources...)
			}
			var remove []schema.Ref
			if ref, err := schema.ParseRef(c.remove); err == nil {
				remove = append(remove, ref)
			}
			if diff := cmp.Diff(c.want, problems(t, site.CheckAgain(site.Revise(put, remove), 100))); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}
