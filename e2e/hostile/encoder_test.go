package hostile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/ovn-org/libovsdb/ovsdb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/ovstest"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/providers/ovs"
	"converge.dev/converge/providers/ovs/vswitch"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/load"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// An expectation is what the far side must hold of one resource of a batch.
type expectation struct {
	*position
	ref   schema.Ref
	texts []string          // each is there, exactly
	pairs map[string]string // each is a member of the map at the position
}

// A batch is one document with as many hostile texts as fit, each in a resource of its own or, for members of maps, as many
// in one resource as the far side allows.
type batch struct {
	doc    map[string]any
	expect []expectation
	count  map[string]int // resources made so far, by kind
}

// nameless is the kind of which the service keeps no text, not even its name.
const nameless = "carbide.vpc_peering"

// far lists the places where a provider has its own form of a text.
func far(all []*position, provider string) (some []*position) {
	for _, p := range all {
		sort, _, _ := strings.Cut(p.where, " ")
		switch {
		case !strings.HasPrefix(p.kind, provider+"."), sort == "head", sort == "node":
		case p.field != nil && (p.field.Computed || p.field.Ref != ""):
		case p.kind == "carbide.instance" && slices.Contains([]string{"interfaces", "infiniband", "nvlink", "spx"}, p.path0()):
			// An address, a network or a device: the simulated machines are fixed.
		case p.path0() == "placement": // for the planner alone
		case p.kind == "carbide.operating_system" && (p.path0() == "artifacts" || p.path0() == "parameters") && strings.HasSuffix(p.where, ".name"):
			// Templates have names of their own.
		case p.where == "key queues": // a number, and its value the name of a queue
		case p.isSecret(): // the far side has what is found there
		case p.kind == nameless:
		case p.where == "value routing_profile", p.kind == "carbide.expected_rack" && p.where == "value profile": // one that the site has
		default:
			some = append(some, p)
		}
	}
	return some
}

// accepted returns the texts that are due and that the schema accepts in a place, each once.
func accepted(t *testing.T, p *position, due func(text int) bool) (texts []string) {
	for j, h := range hostiles {
		if h.broken || !due(j) || slices.Contains(texts, h.text) {
			continue
		}
		if doc, _ := load.Document(t.Context(), embedded(t), load.Options{}, load.Source{Name: "hostile.json", Data: p.with(h)}); doc != nil {
			texts = append(texts, h.text)
		}
	}
	return texts
}

// differInLower leaves out texts that differ from another one only in case.
func differInLower(texts []string) (out []string) {
	seen := map[string]bool{}
	for _, s := range texts {
		if lower := strings.ToLower(s); !seen[lower] {
			seen[lower] = true
			out = append(out, s)
		}
	}
	return out
}

// fill adds the texts of a place to the batch. Vary makes the i-th resource of a kind one that may exist beside the others.
func (b *batch) fill(t *testing.T, p *position, texts []string, vary func(kind string, i int, spec map[string]any) (name string)) {
	t.Helper()
	var doc schema.Object
	if err := json.Unmarshal(p.doc, &doc); err != nil {
		t.Fatal(err)
	}
	at := place(p.ref)
	base := lookup(doc, at).(map[string]any)
	if spec, ok := doc[at[0]].(map[string]any); ok && len(at) == 3 {
		delete(spec[at[1]].(map[string]any), p.ref.Name)
	} else {
		delete(lookup(doc, at[:len(at)-1]).(map[string]any), p.ref.Name)
	}
	merge(b.doc, doc) // what the resource needs

	add := func(spec map[string]any, name string, e expectation) {
		i := b.count[p.kind]
		b.count[p.kind]++
		other := vary(p.kind, i, spec)
		if name == "" {
			name = other
		}
		e.position, e.ref = p, schema.Ref{Scope: p.ref.Scope, Kind: p.kind, Name: name}
		to := place(e.ref)
		merge(b.doc, nest(to[:len(to)-1]))
		set(b.doc, to, spec)
		b.expect = append(b.expect, e)
	}
	inMap := p.isKey || p.field != nil && len(p.path) > 1 && lookupMap(base, p.path[:len(p.path)-1])
	if !inMap {
		for _, text := range texts {
			spec := schema.Clone(base).(map[string]any)
			if p.where == "name" {
				add(spec, text, expectation{texts: []string{text}})
				continue
			}
			set(spec, p.path, text)
			add(spec, "", expectation{texts: []string{text}})
		}
		return
	}
	size := 400
	if strings.HasPrefix(p.kind, "carbide.") {
		size = 9 // labels
	}
	if p.kind == "carbide.machine" {
		size = 7 // those of its rack and slot stay
	}
	for some := range slices.Chunk(texts, size) {
		members, pairs := map[string]any{}, map[string]string{}
		for i, text := range some {
			key, value := fmt.Sprintf("key-%d", i), text
			if p.isKey {
				key, value = text, fmt.Sprintf("value %d", i)
			}
			members[key], pairs[key] = value, value
		}
		spec := schema.Clone(base).(map[string]any)
		set(spec, p.path[:len(p.path)-1], members)
		add(spec, "", expectation{pairs: pairs})
	}
}

// lookupMap reports whether the place is a map with free keys: those of testdata/site.json have one member.
func lookupMap(spec map[string]any, path []string) bool {
	m, ok := lookup(spec, path).(map[string]any)
	return ok && len(m) == 1 && slices.Contains([]string{"labels", "other_config", "external_ids", "options", "bfd", "lldp"}, path[len(path)-1])
}

func nest(path []string) map[string]any {
	out := map[string]any{}
	at := out
	for _, name := range path {
		next := map[string]any{}
		at[name] = next
		at = next
	}
	return out
}

// merge copies into into what is only in from.
func merge(into, from map[string]any) {
	for name, v := range from {
		have, both := into[name].(map[string]any)
		more, ok := v.(map[string]any)
		if both && ok {
			merge(have, more)
		} else if _, there := into[name]; !there {
			into[name] = v
		}
	}
}

// apply loads the batch and applies it through real providers. It returns the store with its records.
func (b *batch) apply(t *testing.T, ps ...*providers.Provider) *state.Store {
	t.Helper()
	text, err := json.Marshal(b.doc)
	if err != nil {
		t.Fatal(err)
	}
	doc, ds := load.Document(t.Context(), embedded(t), load.Options{}, load.Source{Name: "batch.json", Data: text})
	if doc == nil {
		t.Fatalf("what is valid one by one is not together: %v", ds.Err())
	}
	store := state.New(mem.New(mem.Options{}), doc.Site.Name)
	open := func(context.Context, schema.Site, []providers.Need) (*providers.Set, error) {
		return providers.NewSet(ps...)
	}
	if _, err := converged(t.Context(), embedded(t).Kinds(), store, doc, open); err != nil {
		t.Fatalf("%.2000s", err)
	}
	return store
}

// TestTortureHostileSwitch makes a database of Open vSwitch hold every text that its kinds accept. Each kind has its own
// switch, because a port must not have the name of a bridge.
func TestTortureHostileSwitch(t *testing.T) {
	all := positions(t)
	reached := torture.Cover(t, "places", []string{
		"ovs.bridge name", "ovs.port name", "ovs.mirror name", "ovs.controller name", "ovs.qos name", "ovs.queue name",
		"ovs.bridge key external_ids", "ovs.bridge key other_config", "ovs.bridge value external_ids.slice", "ovs.bridge value other_config.hwaddr",
		"ovs.controller key external_ids", "ovs.controller key other_config",
		"ovs.controller value external_ids.slice", "ovs.controller value other_config.dscp",
		"ovs.mirror key external_ids", "ovs.mirror value external_ids.slice",
		"ovs.port key external_ids", "ovs.port key other_config", "ovs.port value external_ids.slice", "ovs.port value other_config.qos",
		"ovs.port key interface.bfd", "ovs.port key interface.lldp", "ovs.port value interface.bfd.enable", "ovs.port value interface.lldp.enable",
		"ovs.port key interface.external_ids", "ovs.port key interface.other_config", "ovs.port key interface.options",
		"ovs.port value interface.external_ids.iface-id", "ovs.port value interface.other_config.mtu", "ovs.port value interface.options.key",
		"ovs.qos key external_ids", "ovs.qos key other_config", "ovs.qos value external_ids.slice", "ovs.qos value other_config.max-rate",
		"ovs.queue key external_ids", "ovs.queue key other_config", "ovs.queue value external_ids.slice", "ovs.queue value other_config.min-rate",
		"ovs.setting name", "ovs.setting value value",
	})
	values, rows := 0, 0
	for _, kind := range []string{"ovs.bridge", "ovs.controller", "ovs.port", "ovs.mirror", "ovs.qos", "ovs.queue", "ovs.setting"} {
		places := slices.DeleteFunc(far(all, "ovs"), func(p *position) bool {
			return p.kind != kind || strings.Contains(p.where, "interfaces") // which are written like interface, and have names of their own
		})
		v, r := fillSwitch(t, places, reached)
		values, rows = values+v, rows+r
	}
	torture.Report(t, "J", "OVSDB holds exactly %d hostile values in %d rows: %s", values, rows, reached)
}

// fillSwitch creates a switch with everything that some places accept.
func fillSwitch(t *testing.T, places []*position, reached *torture.Coverage) (values, rows int) {
	t.Helper()
	s := ovstest.Fake(t)
	p, err := ovs.Open(t.Context(), ovs.Options{Endpoint: s.Endpoint, Node: "gpu-01", Site: "7d9f1c62-3a54-4b0e-9c86-2f1d8e5b7a30"})
	if err != nil {
		t.Fatal(err)
	}
	b := &batch{doc: map[string]any{}, count: map[string]int{}}
	for i, p := range places {
		some := accepted(t, p, func(j int) bool { return (i+j)%torture.Scale(7, 2, 1) == 0 })
		values += len(some)
		b.fill(t, p, some, func(kind string, i int, spec map[string]any) string {
			if kind == "ovs.controller" { // a bridge has a target once
				spec["target"] = fmt.Sprintf("tcp:192.0.2.1:%d", i)
			}
			if kind == "ovs.mirror" { // a bridge has 32 at most
				bridge := fmt.Sprintf("mirrored-%d", i/30)
				set(b.doc, []string{"nodes", "gpu-01", "ovs", "bridge", bridge}, map[string]any{"datapath_type": ovstest.Datapath})
				for name := range spec {
					if name != "external_ids" {
						delete(spec, name)
					}
				}
				spec["bridge"], spec["select_all"], spec["output_vlan"] = bridge, true, 7
			}
			if i, ok := spec["interface"].(map[string]any); ok {
				delete(i, "mac") // which only one has
			}
			return fmt.Sprintf("thing-%d", i)
		})
	}
	b.apply(t, p)
	tables := map[string][]ovsdb.Row{}
	for _, table := range []string{vswitch.BridgeTable, vswitch.ControllerTable, vswitch.PortTable, vswitch.InterfaceTable, vswitch.MirrorTable, vswitch.QoSTable, vswitch.QueueTable} {
		tables[table] = s.Rows(t, table)
	}
	settings, _ := s.Rows(t, vswitch.OpenvSwitchTable)[0]["other_config"].(ovsdb.OvsMap)
	for _, e := range b.expect {
		if e.kind == "ovs.setting" {
			reached.Reach(e.String())
			if got, ok := settings.GoMap[e.ref.Name]; !ok || e.where != "name" && got != e.texts[0] {
				t.Errorf("%s: the database has other_config[%q] = %q, want %q", e.position, e.ref.Name, got, e.texts[0])
			}
			continue
		}
		table, column := vswitch.BridgeTable, ""
		name := func(r ovsdb.Row) any { return r["name"] }
		switch {
		case e.kind == "ovs.controller", e.kind == "ovs.qos", e.kind == "ovs.queue":
			table = map[string]string{"ovs.controller": vswitch.ControllerTable, "ovs.qos": vswitch.QoSTable, "ovs.queue": vswitch.QueueTable}[e.kind]
			name = func(r ovsdb.Row) any { return r["external_ids"].(ovsdb.OvsMap).GoMap["converge.dev/name"] }
		case e.kind == "ovs.mirror":
			table = vswitch.MirrorTable
		case e.kind == "ovs.port" && len(e.path) > 1 && e.path[0] == "interface":
			table = vswitch.InterfaceTable
		case e.kind == "ovs.port":
			table = vswitch.PortTable
		}
		i := slices.IndexFunc(tables[table], func(r ovsdb.Row) bool { return name(r) == e.ref.Name })
		if i < 0 {
			t.Errorf("%s: the database has no %s called %q", e.position, table, e.ref.Name)
			continue
		}
		reached.Reach(e.String())
		if e.pairs != nil {
			column = e.path[len(e.path)-2]
		}
		for key, want := range e.pairs {
			m, _ := tables[table][i][column].(ovsdb.OvsMap)
			if got, ok := m.GoMap[key]; !ok || got != want {
				t.Errorf("%s: the database has %s[%q] = %q, want %q", e.position, column, key, got, want)
			}
		}
	}
	return values, len(b.expect)
}

// TestTortureHostileCarbide makes the simulated service hold every text that the kinds of Carbide accept.
func TestTortureHostileCarbide(t *testing.T) {
	const hosts = 4000
	world, err := carbidesim.New(carbidesim.Options{
		Timing: carbidesim.FastTiming, Hosts: carbidesim.Hosts{Count: torture.Scale(500, hosts, hosts)},
		Rules: carbidesim.Rules{RoutingProfiles: []carbidesim.RoutingProfile{{Name: "external"}}, MaxIBPartitions: hosts},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := world.Close(); err != nil {
			t.Error(err)
		}
	})
	var machines []string
	for _, o := range world.Objects() {
		if m, ok := o.Message.(*forge.Machine); ok && strings.HasPrefix(o.ID, "fm100h") && m.GetState() == "Ready" {
			machines = append(machines, o.ID)
		}
	}
	p, err := carbide.Open(t.Context(), carbide.Options{Address: serve(t, world), TLS: carbide.TLS{Mode: carbide.Off}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	places := far(positions(t), "carbide")
	reached := torture.Cover(t, "kinds", slices.DeleteFunc(embedded(t).Kinds().Names(), func(k string) bool { return !strings.HasPrefix(k, "carbide.") || k == nameless }))
	b := &batch{doc: map[string]any{}, count: map[string]int{}}
	used := 0
	machine := func() string {
		used++
		if used > len(machines) {
			t.Fatalf("the world has %d machines, which is not enough", len(machines))
		}
		return machines[used-1]
	}
	values := 0
	for _, p := range places {
		if strings.HasPrefix(p.where, "value prefix") || p.where == "value pkey" || strings.Contains(p.where, "_address") || strings.HasSuffix(p.where, ".fixed_ip") {
			continue // each thing needs another one, so that many can be in one world; the round trip covers them
		}
		some := accepted(t, p, func(j int) bool { return p.due(j, 7) })
		switch {
		case p.kind == "carbide.dpu_extension_service" && p.where == "name":
			some = differInLower(some)
		case p.kind == "carbide.operating_system" && p.path0() == "parameters": // one that its template requires
			some = slices.DeleteFunc(some, func(text string) bool { return text == "" })
		}
		values += len(some)
		b.fill(t, p, some, func(kind string, i int, spec map[string]any) string {
			name := fmt.Sprintf("thing-%d", i)
			switch kind {
			case "carbide.vpc_prefix":
				spec["prefix"] = fmt.Sprintf("10.%d.%d.0/24", 64+i>>8, i&255)
			case "carbide.network_segment":
				spec["prefixes"] = []any{map[string]any{"prefix": fmt.Sprintf("172.%d.%d.0/24", 16+i>>8, i&255)}}
				delete(spec, "subdomain_id")
			case "carbide.instance":
				spec["machine"] = machine()
				spec["interfaces"] = []any{map[string]any{"vpc_prefix": "links"}}
				delete(spec, "instance_type")
				if h, _ := spec["hostname"].(string); h == "web-1" {
					delete(spec, "hostname")
				}
				for _, fabric := range []string{"infiniband", "nvlink", "spx", "dpu_extension_services"} {
					delete(spec, fabric)
				}
			case "carbide.ib_partition":
				delete(spec, "pkey")
			case "carbide.sku":
				set(spec, []string{"memory", "0", "capacity_mb"}, 1+i)
			case "carbide.expected_machine", "carbide.expected_power_shelf", "carbide.expected_switch":
				spec["bmc_mac_address"] = fmt.Sprintf("52:54:%02x:00:%02x:%02x", len(kind), i>>8, i&255)
				for _, unique := range []string{"bmc_ip_address", "nvos_ip_address", "nvos_mac_addresses"} {
					delete(spec, unique)
				}
				if nic, ok := lookup(spec, []string{"host_nics", "0"}).(map[string]any); ok {
					nic["mac_address"] = fmt.Sprintf("52:54:01:00:%02x:%02x", i>>8, i&255)
					delete(nic, "fixed_ip")
				}
			case "carbide.machine":
				name = machine()
				delete(spec, "instance_type")
			}
			return name
		})
	}
	// The template's own machine is not in this world.
	store := b.apply(t, p)
	records, err := store.Records(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ids := map[schema.Ref]string{}
	for _, r := range records {
		ids[r.Ref] = r.ID
	}
	objects := map[string]carbidesim.Object{}
	for _, o := range world.Objects() {
		objects[o.Kind+" "+o.ID] = o
	}
	for _, e := range b.expect {
		o, ok := objects[strings.TrimPrefix(e.kind, "carbide.")+" "+ids[e.ref]]
		if !ok {
			t.Errorf("%s: the service has no %s with id %q", e.position, e.ref, ids[e.ref])
			continue
		}
		reached.Reach(e.kind)
		have := stringsIn(o.Message.ProtoReflect())
		for _, want := range e.texts {
			if !slices.Contains(have, want) {
				t.Errorf("%s: the service has not %q but %.500q", e.position, want, have)
			}
		}
		labels := map[string]string{}
		if m, ok := o.Message.(interface{ GetMetadata() *forge.Metadata }); ok {
			for _, l := range m.GetMetadata().GetLabels() {
				labels[l.GetKey()] = l.GetValue()
			}
		}
		for key, want := range e.pairs {
			if got, ok := labels[key]; !ok || got != want {
				t.Errorf("%s: the service has label %q = %q, want %q", e.position, key, got, want)
			}
		}
	}
	torture.Report(t, "J", "the simulated service holds exactly %d hostile values in %d objects of %d places", values, len(b.expect), len(places))
}

// serve puts a world on the wire.
func serve(t *testing.T, w *carbidesim.World) string {
	t.Helper()
	s, err := carbidesim.NewServer(w, carbidesim.ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-ended; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// stringsIn lists all texts of a message.
func stringsIn(m protoreflect.Message) (all []string) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsList():
			for i := range v.List().Len() {
				switch f.Kind() {
				case protoreflect.MessageKind:
					all = append(all, stringsIn(v.List().Get(i).Message())...)
				case protoreflect.StringKind:
					all = append(all, v.List().Get(i).String())
				}
			}
		case f.IsMap():
		case f.Kind() == protoreflect.MessageKind:
			all = append(all, stringsIn(v.Message())...)
		case f.Kind() == protoreflect.StringKind:
			all = append(all, v.String())
		}
		return true
	})
	return all
}

// The rule about the reserved key and the providers mean the same key. Where keys have a form, it does not have that.
func TestReservedKeyIsTheMark(t *testing.T) {
	for _, p := range positions(t) {
		if !p.isKey {
			continue
		}
		doc, ds := load.Document(t.Context(), embedded(t), load.Options{}, load.Source{Name: "mark.json", Data: bytes.Replace(p.doc, []byte(placeholder), []byte(providers.MarkKey), 1)})
		if doc != nil || !slices.ContainsFunc(ds, func(d load.Diagnostic) bool { return d.Code == "CV1110" || d.Code == "CV1008" }) {
			t.Errorf("%s: a document may write the key %s: %v", p, providers.MarkKey, ds)
		}
	}
}
