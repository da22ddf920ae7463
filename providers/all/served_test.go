package all

import (
	"encoding/json"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/providers/wire"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
)

// Two processes use one world together through the process that has it open; without that, what they need is unknown.
func TestServedWorld(t *testing.T) {
	t.Parallel()
	sch, err := kinds.New()
	must(t, err)
	world := fake.New(sch.Kinds())
	must(t, world.Put("n1", "ovs.bridge", providers.Thing{ID: "br0", Spec: schema.Object{}}))
	dir := t.TempDir()
	o := Options{Config: Config{Fake: &Fake{Server: "unix:node.sock"}}, Dir: dir, Kinds: sch.Kinds()}
	need := providers.Need{Scope: "n1", Provider: "ovs"}
	if err := open(t, o, need).Failure("n1", "ovs"); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("nobody serves it: %v", err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "node.sock"))
	must(t, err)
	s := grpc.NewServer()
	must(t, wire.Serve(s, nil, world.Provider("ovs", "n1")))
	go func() { _ = s.Serve(l) }()
	defer s.Stop()
	for range 2 {
		things, err := open(t, o, need).All()[0].Kinds[0].Kind.Get(t.Context(), []string{"br0"})
		if err != nil || len(things) != 1 {
			t.Errorf("%v, %v", things, err)
		}
	}
	if needs, err := New(o).Offers(); err != nil || len(needs) != 1 || needs[0] != need {
		t.Errorf("it offers %v, %v", needs, err)
	}
	if err := open(t, o, providers.Need{Scope: "n1", Provider: "pci"}).Failure("n1", "pci"); err == nil {
		t.Error("it serves what it does not")
	}
}

func TestWrongFake(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{}`: "fake.world is missing", `{"world": "w", "server": "unix:s"}`: "different things", `{"server": "s"}`: "no unix:PATH", `{"server": "unix:"}`: "no unix:PATH",
	} {
		var f Fake
		must(t, json.Unmarshal([]byte(text), &f))
		if _, err := New(Options{Config: Config{Fake: &f}}).Open(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
