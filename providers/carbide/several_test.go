package carbide_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

// TestMissingIsAskedForAgain: a reply cannot say that it is incomplete, so an object counts as absent only when it is missing
// twice, in reads by id and in lists.
func TestMissingIsAskedForAgain(t *testing.T) {
	s := newSite(t, carbidesim.Options{})
	one, two := s.make("vpc", "one", schema.Object{"tenant": "acme"}), s.make("vpc", "two", schema.Object{"tenant": "acme"})
	for _, ids := range [][]string{nil, {one.ID}, {one.ID, two.ID}} {
		if err := s.Inject(carbidesim.Fault{Method: "FindVpcsByIds", Effect: carbidesim.Half}); err != nil {
			t.Fatal(err)
		}
		want := len(ids)
		if ids == nil {
			want = 2
		}
		if things, err := providertest.Of(s.kind("vpc"))(t.Context(), ids); err != nil || len(things) != want {
			t.Errorf("of %v there are %d, %v; want %d", ids, len(things), err, want)
		}
	}
}

// TestFirstOfSeveralCalls: when the first call of several is refused and the object has changed, it may have had its effect,
// unless the service says that the version had moved before.
func TestFirstOfSeveralCalls(t *testing.T) {
	s := newSite(t, carbidesim.Options{Rules: carbidesim.Rules{RoutingProfiles: []carbidesim.RoutingProfile{{Name: "internal"}}}})
	s.make("tenant", "acme", schema.Object{"routing_profile": "internal"})
	c := s.make("vpc", "prod", schema.Object{"tenant": "acme", "virtualization": "fnn"})
	both := func() error {
		return s.update("vpc", "prod", c.ID, schema.Object{"virtualization": "flat", "labels": map[string]any{"a": "b"}})
	}
	if err := s.Inject(carbidesim.Fault{Method: "UpdateVpcVirtualization", Effect: carbidesim.Before, Code: codes.OutOfRange}); err != nil {
		t.Fatal(err)
	}
	s.class("a change that was refused", both(), invalid)

	late := s.change("vpc", "prod", c.ID, schema.Object{"virtualization": "flat", "labels": map[string]any{"a": "b"}})
	if _, err := s.Stranger().UpdateVpc(t.Context(), &forge.VpcUpdateRequest{
		Id: &forge.VpcId{Value: c.ID}, Metadata: &forge.Metadata{Name: "prod", Description: "by others"},
	}); err != nil {
		t.Fatal(err)
	}
	s.class("a change of what others have changed", s.kind("vpc").Update(t.Context(), late), conflict)

	if err := s.Inject(carbidesim.Fault{Method: "UpdateVpcVirtualization", Effect: carbidesim.After, Code: codes.OutOfRange}); err != nil {
		t.Fatal(err)
	}
	s.class("a change that was refused after the first of two calls was done", both(), unknown)
	if err := both(); err != nil {
		t.Errorf("the rest of it: %v", err)
	}
}

// TestRestOfSeveralCalls: when a later call of an update is refused, its error says that nothing more will come. It does
// not when that call may still have its effect, or when the far side goes on by itself with what it was asked before.
func TestRestOfSeveralCalls(t *testing.T) {
	s := newSite(t, carbidesim.Options{Rules: carbidesim.Rules{RoutingProfiles: []carbidesim.RoutingProfile{{Name: "internal"}}}})
	s.make("tenant", "acme", schema.Object{"routing_profile": "internal"})
	for code, want := range map[codes.Code]bool{
		codes.OutOfRange: true, codes.PermissionDenied: true, codes.NotFound: true, codes.ResourceExhausted: true,
		codes.Internal: false, codes.Unavailable: false, codes.DeadlineExceeded: false, codes.Canceled: false, codes.Unknown: false,
	} {
		for _, effect := range []carbidesim.Effect{carbidesim.Before, carbidesim.After} {
			name := strings.ToLower(fmt.Sprintf("%s-%s", code, effect))
			c := s.make("vpc", name, schema.Object{"tenant": "acme", "virtualization": "fnn"})
			if err := s.Inject(carbidesim.Fault{Method: "UpdateVpc", Effect: effect, Code: code}); err != nil {
				t.Fatal(err)
			}
			err := s.update("vpc", name, c.ID, schema.Object{"virtualization": "flat", "labels": map[string]any{"a": "b"}})
			what := fmt.Sprintf("%s of the second call, %s its effect", code, effect)
			s.class(what, err, unknown)
			if over := providers.Over(err); over != want {
				t.Errorf("%s: it is over: %v, want %v: %v", what, over, want, err)
			}
		}
	}
}

// TestExcuseEndsWithTheInstance: a host that an instance turned off halfway leaves under maintenance can take another one.
func TestExcuseEndsWithTheInstance(t *testing.T) {
	host := hosts(t)[0]
	timed(t, carbidesim.Options{Hosts: lawHosts}, func(s *site) {
		c := s.powered(host)
		if err := s.Inject(carbidesim.Fault{Method: "UpdatePowerOption", Effect: carbidesim.Before, Code: codes.OutOfRange}); err != nil {
			s.Fatal(err)
		}
		err := s.update("instance", "web", c.ID, schema.Object{"power": "off"})
		s.class("to turn it off in part", err, unknown)
		if providers.Over(err) {
			s.Error("it is said to be over, and the site may still turn it off")
		}
		if s.machine(host).MaintenanceReference == nil {
			s.Fatal("the host was not excused")
		}
		if err := s.kind("instance").Delete(s.Context(), c); err != nil {
			s.Fatal(err)
		}
		if m := s.machine(host); m.MaintenanceReference != nil {
			s.Errorf("the host stays under maintenance: %s", m.GetMaintenanceReference())
		}
	})
}
