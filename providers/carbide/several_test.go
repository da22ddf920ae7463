package carbide_test

import (
	"testing"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/providertest"
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

// TestExcuseEndsWithTheInstance: a host that an instance turned off halfway leaves under maintenance can take another one.
func TestExcuseEndsWithTheInstance(t *testing.T) {
	host := hosts(t)[0]
	timed(t, carbidesim.Options{Hosts: lawHosts}, func(s *site) {
		c := s.powered(host)
		if err := s.Inject(carbidesim.Fault{Method: "UpdatePowerOption", Effect: carbidesim.Before, Code: codes.OutOfRange}); err != nil {
			s.Fatal(err)
		}
		s.class("to turn it off in part", s.update("instance", "web", c.ID, schema.Object{"power": "off"}), unknown)
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
