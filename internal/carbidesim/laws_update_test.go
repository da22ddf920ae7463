package carbidesim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/providers/carbide/forge"
)

// noMetadata are the kinds that have none, or only a name, and are never updated with one.
const noMetadata = "tenant_keyset vpc_peering network_segment operating_system os_image dpu_extension_service sku"

// What a token looks like, which updates change it, and how a wrong one is refused.
func TestEveryToken(t *testing.T) {
	type tokens struct {
		name      string // in the refusal
		malformed codes.Code
		still     bool // no update changes it
	}
	const internal = codes.Internal
	obey(t, Options{}, map[string]tokens{
		"tenant":                   {"tenant", internal, false},
		"vpc":                      {"vpc", codes.InvalidArgument, false},
		"network_security_group":   {"NetworkSecurityGroup", internal, false},
		"ib_partition":             {"IBPartition", internal, true},
		"nvlink_logical_partition": {"LogicalPartition", internal, true},
		"instance_type":            {"InstanceType", internal, false},
		"compute_allocation":       {"ComputeAllocation", internal, false},
		"instance":                 {"instance", internal, false},
		"machine":                  {"machine", internal, false},
		// Those of key sets are the client's own, those of extension services are counters.
	}, noMetadata+" vpc_prefix spx_partition expected_machine expected_switch expected_power_shelf expected_rack", func(b *workbench, s subject, want tokens) {
		id := s.begin(b, named("first"))
		first := s.look(b, id).token
		was, err := parseToken(first)
		if err != nil || was.Microseconds != b.clock.Now().UnixMicro() || s.create != nil && was.Number != 1 {
			b.Fatalf("first token %q: %v", first, err)
		}
		update := func(token *string) error { return s.update(b, id, 1, named("first"), token) }
		number := was.Number
		for range 2 { // the second one changes only the token
			b.clock.pass(time.Second)
			if err := update(nil); err != nil {
				b.Fatal(err)
			}
			number++
			moved := token{number, b.clock.Now().UnixMicro()}
			if want.still {
				moved = was
			}
			if got := s.look(b, id).token; got != moved.String() {
				b.Errorf("after an update the token is %s, want %s", got, moved)
			}
		}
		now := s.look(b, id).token
		stale := "V9-T9"
		if !want.still {
			stale = first
		}
		did := " of type " + want.name + " was intended to be modified did not have the expected version "
		for _, token := range []string{stale, strings.Replace(now, "-T", "-T1", 1), strings.Replace(now, "V", "V1", 1)} {
			b.refuses(update(&token), codes.FailedPrecondition, did+token)
		}
		for _, token := range []string{"", "7", "V3", "V3-T", "V-T3", "V0-T3", "T3-V3", "V1-T1-T1"} {
			b.refuses(update(&token), want.malformed, "version")
		}
		if got := s.look(b, id).token; got != now {
			b.Errorf("refused updates have moved the token to %s", got)
		}
		blank := "  " + now + "\t"
		b.refuses(update(&blank), codes.OK, "")
	})
}

// What else changes a token: a machine's, an instance's and a VPC's.
func TestWhatElseMovesTokens(t *testing.T) {
	b, hosts := withNetwork(t, 1)
	b.allocate(uid(9), hosts[0], onPrefix(uid(3)))
	if err := b.instanceType("gpu", "gpu"); err != nil {
		t.Fatal(err)
	}
	ok(b.ReleaseInstance(ctx, &forge.InstanceReleaseRequest{Id: instanceID(uid(9))}))
	b.world.Advance(RealTiming.Release)
	b.world.Advance(RealTiming.Cleanup)
	if err := b.addSKU(newSKU("dgx", "DGX")); err != nil {
		t.Fatal(err)
	}
	host := &forge.MachineId{Id: hosts[0]}
	remove := func() error {
		return failed(b.RemoveMachineInstanceTypeAssociation(ctx, &forge.RemoveMachineInstanceTypeAssociationRequest{MachineId: hosts[0]}))
	}
	machine := func() string { return b.machine(hosts[0]).Version }
	vpc := func() string { return b.findVpc(uid(1)).Version }
	prefix := &forge.VpcPrefixCreationRequest{Id: prefixID(uid(4)), VpcId: vpcID(uid(1)), Prefix: "10.8.0.0/24"}
	for _, c := range []struct {
		name  string
		token func() string
		do    func() error
		moves bool
	}{
		{"a type is given", machine, func() error { return b.associate("gpu", hosts[0]) }, true},
		{"it is taken", machine, remove, true},
		{"there is none to take", machine, remove, false},
		{"a type is given again", machine, func() error { return b.associate("gpu", hosts[0]) }, true},
		{"the type is deleted", machine, func() error {
			return failed(b.DeleteInstanceType(ctx, &forge.DeleteInstanceTypeRequest{Id: "gpu"}))
		}, true},
		{"a SKU is given", machine, func() error {
			return failed(b.AssignSkuToMachine(ctx, &forge.SkuMachinePair{MachineId: host, SkuId: "dgx"}))
		}, false},
		{"maintenance", machine, func() error {
			return failed(b.SetMaintenance(ctx, &forge.MaintenanceRequest{HostId: host, Reference: text("OPS-1234")}))
		}, false},
		{"a prefix is made", vpc, func() error { return failed(b.CreateVpcPrefix(ctx, prefix)) }, true},
		{"a prefix is renamed", vpc, func() error {
			return failed(b.UpdateVpcPrefix(ctx, &forge.VpcPrefixUpdateRequest{Id: prefixID(uid(4)), Metadata: named("links")}))
		}, false},
		{"a prefix is deleted", vpc, func() error {
			return failed(b.DeleteVpcPrefix(ctx, &forge.VpcPrefixDeletionRequest{Id: prefixID(uid(4))}))
		}, true},
		{"a segment is made", vpc, func() error { return b.segment(uid(5), uid(1), "10.9.0.0/24", "10.9.0.1") }, false},
		{"another type of VPC", vpc, func() error {
			return failed(b.UpdateVpcVirtualization(ctx, &forge.VpcUpdateVirtualizationRequest{Id: vpcID(uid(1)), NetworkVirtualizationType: ethernet.Enum()}))
		}, true},
	} {
		before := c.token()
		b.clock.pass(time.Second)
		if err := c.do(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if moved := c.token() != before; moved != c.moves {
			t.Errorf("%s: the token moved: %v", c.name, moved)
		}
	}
}

// An update replaces the metadata as a whole; without any it falls back to a default, or is refused.
func TestEveryUpdateReplaces(t *testing.T) {
	required := answer{codes.InvalidArgument, "metadata is required"}
	type replacement struct {
		without answer
		name    string // when it is not refused
	}
	obey(t, Options{}, map[string]replacement{
		"tenant":                   {required, ""},
		"vpc":                      {fine, "default_name"},
		"vpc_prefix":               {fine, "default_name"},
		"network_security_group":   {required, ""},
		"ib_partition":             {required, ""},
		"nvlink_logical_partition": {required, ""},
		"instance_type":            {required, ""},
		"compute_allocation":       {required, ""},
		"instance":                 {required, ""},
		"machine":                  {required, ""},
		"expected_machine":         {fine, ""},
		"expected_switch":          {fine, ""},
		"expected_power_shelf":     {fine, ""},
		"expected_rack":            {fine, ""},
	}, noMetadata+" spx_partition", func(b *workbench, s subject, want replacement) {
		rich := &forge.Metadata{Name: "rich", Description: "of words", Labels: []*forge.Label{label("env", text("prod"))}}
		if strings.HasSuffix(b.Name(), "/tenant") { // which has only a name
			rich = named("rich")
		}
		id := s.begin(b, rich)
		if err := s.update(b, id, 1, named("bare"), nil); err != nil {
			b.Fatal(err)
		}
		if m := s.look(b, id).meta; m.Name != "bare" || m.Description != "" || len(m.Labels) != 0 {
			b.Errorf("an update with a name left %v", m)
		}
		err := s.update(b, id, 1, nil, nil)
		b.refuses(err, want.without.code, want.without.text)
		if m := s.look(b, id).meta; err == nil && (m.Name != want.name || m.Description != "" || len(m.Labels) != 0) {
			b.Errorf("an update without metadata left %v", m)
		}
	})
}

// What an update leaves out, apart from metadata, is cleared too.
func TestUpdatesClearWhatTheyLack(t *testing.T) {
	b := start(t, Options{Rules: Rules{RoutingProfiles: profiles}})
	b.tenant("acme")
	if got := ok(b.UpdateTenant(ctx, &forge.UpdateTenantRequest{OrganizationId: "acme", Metadata: named("acme")})).Tenant; got.RoutingProfileType != nil {
		t.Errorf("the tenant has still %v", got)
	}
	if err := b.instanceType("gpu", "gpu", capability(forge.MachineCapabilityType_CAP_TYPE_GPU, "H100", 8)); err != nil {
		t.Fatal(err)
	}
	if got := ok(b.UpdateInstanceType(ctx, &forge.UpdateInstanceTypeRequest{Id: "gpu", Metadata: named("gpu")})).InstanceType; len(got.Attributes.GetDesiredCapabilities()) != 0 {
		t.Errorf("the instance type has still %v", got)
	}
	ok(b.CreateTenantKeyset(ctx, &forge.CreateTenantKeysetRequest{
		KeysetIdentifier: keysetOf("ops"), KeysetContent: &forge.TenantKeysetContent{PublicKeys: []*forge.TenantPublicKey{{PublicKey: "ssh-ed25519 AAAA"}}},
	}))
	ok(b.UpdateTenantKeyset(ctx, &forge.UpdateTenantKeysetRequest{KeysetIdentifier: keysetOf("ops")}))
	got := ok(b.FindTenantKeysetsByIds(ctx, &forge.TenantKeysetsByIdsRequest{KeysetIds: all([]string{"ops"}, keysetOf), IncludeKeyData: true})).Keyset[0]
	if len(got.KeysetContent.PublicKeys) != 0 {
		t.Errorf("the key set has still %v", got)
	}
}

// What metadata must look like when a thing is created and when it is changed.
func TestMetadataOfEveryKind(t *testing.T) {
	long := strings.Repeat("x", 256)
	labels := func(l ...*forge.Label) *forge.Metadata { return &forge.Metadata{Name: "labelled", Labels: l} }
	numbered := func(n int) *forge.Metadata {
		m := labels()
		for i := range n {
			m.Labels = append(m.Labels, label(fmt.Sprint("key", i), nil))
		}
		return m
	}
	const strict, brief, lenient, nameOnly = "strict", "brief", "lenient", "nameOnly"
	obey(t, Options{}, map[string]string{
		"tenant":                   nameOnly,
		"vpc":                      strict,
		"vpc_prefix":               strict,
		"network_security_group":   strict,
		"ib_partition":             strict,
		"nvlink_logical_partition": strict,
		"instance_type":            strict,
		"compute_allocation":       brief, // the database has less room
		"instance":                 strict,
		"machine":                  strict,
		"spx_partition":            lenient,
		"expected_machine":         lenient,
		// Those of expected switches, power shelves and racks are not checked, except for duplicate labels.
	}, noMetadata+" expected_switch expected_power_shelf expected_rack", func(b *workbench, s subject, rules string) {
		id := s.begin(b, named("first"))
		short := answer{codes.InvalidArgument, "2 to 256"}
		if rules == lenient {
			short = fine
		}
		described := &forge.Metadata{Name: "described", Description: strings.Repeat("é", 512)}
		if rules == brief {
			described.Description = described.Description[:256]
		}
		good, bad := fine, func(text string) answer { return answer{codes.InvalidArgument, text} }
		if rules == nameOnly {
			good = bad("neither description nor labels")
		}
		n := 1
		for _, c := range []struct {
			name string
			m    *forge.Metadata
			want answer
		}{
			{"shortest name", named("ab"), fine},
			{"longest name", named(long), fine},
			{"name of one byte", named("a"), short},
			{"no name", &forge.Metadata{}, short},
			{"long name", named(long + "x"), bad("to 256")},
			{"name not ASCII", named("prodé"), bad("ASCII")},
			{"description of any text", described, good},
			{"long description", &forge.Metadata{Name: "ok", Description: long + long + long + long + "x"}, bad("1024")},
			{"ten labels", numbered(10), good},
			{"longest key and value", labels(label(long[1:], text(long[1:]))), good},
			{"value not ASCII", labels(label("a", text("é"))), good},
			{"eleven labels", numbered(11), bad("10 labels")},
			{"key twice", labels(label("a", text("x")), label("a", nil)), bad("duplicate")},
			{"empty key", labels(label("", nil)), bad("key")},
			{"long key", labels(label(long, nil)), bad("key")},
			{"key not ASCII", labels(label("é", nil)), bad("ASCII")},
			{"long value", labels(label("a", text(long))), bad("255")},
		} {
			if s.update != nil {
				before := s.look(b, id)
				b.refusals([]refusal{{c.name + ", changed", s.update(b, id, 1, c.m, nil), c.want.code, c.want.text}})
				if after := s.look(b, id); c.want.code != codes.OK && (after.token != before.token || after.meta.Name != before.meta.Name) {
					b.Errorf("%s: a refused update left %v", c.name, after)
				}
			}
			if s.create != nil && (s.update == nil || c.want.code != codes.OK) {
				n++
				b.refusals([]refusal{{c.name + ", made", s.create(b, uid(byte(n)), 2, c.m), c.want.code, c.want.text}})
			}
		}
	})
}

// Labels are a map: their order is lost, and an empty value is none. Some kinds drop them.
func TestLabelsOfEveryKind(t *testing.T) {
	const kept, dropped = true, false
	obey(t, Options{}, map[string]bool{
		"vpc":                      kept,
		"vpc_prefix":               kept,
		"network_security_group":   kept,
		"ib_partition":             kept,
		"nvlink_logical_partition": dropped,
		"spx_partition":            dropped,
		"instance_type":            kept,
		"compute_allocation":       kept,
		"instance":                 kept,
		"machine":                  kept,
		"expected_machine":         kept,
		"expected_switch":          kept,
		"expected_power_shelf":     kept,
		"expected_rack":            kept,
	}, noMetadata+" tenant", func(b *workbench, s subject, kept bool) {
		m := named("labelled")
		for i := range 8 {
			m.Labels = append(m.Labels, label(fmt.Sprint("key", i), text("")))
		}
		m.Labels[7].Value = text("full")
		id := s.begin(b, m)
		orders := map[string]bool{}
		for range 30 {
			order := ""
			labels := s.look(b, id).meta.Labels
			if want := map[bool]int{true: 8, false: 0}[kept]; len(labels) != want {
				b.Fatalf("%d labels read back, want %d", len(labels), want)
			}
			for _, l := range labels {
				order += l.Key
				if (l.Value != nil) != (l.Key == "key7") || l.Value != nil && *l.Value != "full" {
					b.Fatalf("label %s reads back as %v", l.Key, l.Value)
				}
			}
			orders[order] = true
		}
		if kept && len(orders) < 2 {
			b.Error("labels always come in the same order")
		}
	})
}
