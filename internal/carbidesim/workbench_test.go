package carbidesim

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers/carbide/forge"
)

// workbench is a world behind a connection, with a clock controlled by the test.
type workbench struct {
	forge.ForgeClient
	*testing.T
	world *World
	clock *clock
}

type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

var ctx = context.Background()

// start makes a world and connects to it.
func start(t *testing.T, o Options) *workbench {
	t.Helper()
	c := &clock{now: time.Date(2026, 5, 30, 12, 0, 0, 0, time.UTC)}
	o.Now = c.Now
	w, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return &workbench{forge.NewForgeClient(dial(t, w)), t, w, c}
}

func dial(t testing.TB, w *World) *grpc.ClientConn {
	t.Helper()
	s, err := NewServer(w, ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l := bufconn.Listen(1 << 20)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///bench",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return conn
}

// ok returns the result of a call that has to succeed.
func ok[M any](m M, err error) M {
	if err != nil {
		panic(err)
	}
	return m
}

// refuses checks how a call was refused; the text is what its message must contain.
func (b *workbench) refuses(err error, code codes.Code, text string) {
	b.Helper()
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), text) {
		b.Errorf("got %v, want %s with %q", err, code, text)
	}
}

// refusal is one call that is refused.
type refusal struct {
	name string
	err  error
	code codes.Code
	text string
}

func (b *workbench) refusals(cases []refusal) {
	b.Helper()
	for _, c := range cases {
		if status.Code(c.err) != c.code || !strings.Contains(status.Convert(c.err).Message(), c.text) {
			b.Errorf("%s: got %v, want %s with %q", c.name, c.err, c.code, c.text)
		}
	}
}

// failed drops the result of a call that is expected to be refused.
func failed[M any](_ M, err error) error { return err }

func vpcID(id string) *forge.VpcId                 { return &forge.VpcId{Value: id} }
func segmentID(id string) *forge.NetworkSegmentId  { return &forge.NetworkSegmentId{Value: id} }
func prefixID(id string) *forge.VpcPrefixId        { return &forge.VpcPrefixId{Value: id} }
func instanceID(id string) *forge.InstanceId       { return &forge.InstanceId{Value: id} }
func named(name string) *forge.Metadata            { return &forge.Metadata{Name: name} }
func label(key string, value *string) *forge.Label { return &forge.Label{Key: key, Value: value} }
func text(s string) *string                        { return proto.String(s) }

// uid returns a UUID that ends in a number.
func uid(n byte) string {
	return "00000000-0000-4000-8000-0000000000" + string("0123456789abcdef"[n/16]) + string("0123456789abcdef"[n%16])
}

func (b *workbench) tenant(org string) {
	b.Helper()
	ok(b.CreateTenant(ctx, &forge.CreateTenantRequest{OrganizationId: org, Metadata: named(org)}))
}

func (b *workbench) vpc(id string, t forge.VpcVirtualizationType) *forge.Vpc {
	b.Helper()
	return ok(b.CreateVpc(ctx, &forge.VpcCreationRequest{
		Id: vpcID(id), TenantOrganizationId: "acme", Metadata: named("net"), NetworkVirtualizationType: &t,
	}))
}

func (b *workbench) findVpc(id string) *forge.Vpc {
	b.Helper()
	found := ok(b.FindVpcsByIds(ctx, &forge.VpcsByIdsRequest{VpcIds: []*forge.VpcId{vpcID(id)}})).Vpcs
	if len(found) != 1 {
		b.Fatalf("found %d VPCs with id %s", len(found), id)
	}
	return found[0]
}

// segment creates a segment with one prefix, whose gateway is the first address.
func (b *workbench) segment(id, vpc, prefix, gateway string) error {
	_, err := b.CreateNetworkSegment(ctx, &forge.NetworkSegmentCreationRequest{
		Id: segmentID(id), VpcId: vpcID(vpc), Name: "subnet",
		Prefixes: []*forge.NetworkPrefix{{Prefix: prefix, Gateway: &gateway}},
	})
	return err
}

// findSegment returns nil when there is none.
func (b *workbench) findSegment(id string) *forge.NetworkSegment {
	b.Helper()
	found := ok(b.FindNetworkSegmentsByIds(ctx, &forge.NetworkSegmentsByIdsRequest{
		NetworkSegmentsIds: []*forge.NetworkSegmentId{segmentID(id)}, IncludeNumFreeIps: true, IncludeHistory: true,
	})).NetworkSegments
	if len(found) == 0 {
		return nil
	}
	return found[0]
}

func (b *workbench) hosts(c *forge.MachineSearchConfig) []string {
	b.Helper()
	var out []string
	for _, id := range ok(b.FindMachineIds(ctx, c)).MachineIds {
		out = append(out, id.Id)
	}
	slices.Sort(out)
	return out
}

func (b *workbench) machine(id string) *forge.Machine {
	b.Helper()
	found := ok(b.FindMachinesByIds(ctx, &forge.MachinesByIdsRequest{MachineIds: []*forge.MachineId{{Id: id}}})).Machines
	if len(found) != 1 {
		b.Fatalf("found %d machines with id %s", len(found), id)
	}
	return found[0]
}

// findInstance returns nil when there is none.
func (b *workbench) findInstance(id string) *forge.Instance {
	b.Helper()
	found := ok(b.FindInstancesByIds(ctx, &forge.InstancesByIdsRequest{InstanceIds: []*forge.InstanceId{instanceID(id)}})).Instances
	if len(found) == 0 {
		return nil
	}
	return found[0]
}
