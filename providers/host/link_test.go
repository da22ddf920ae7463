package host_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"converge.dev/converge/internal/kerneltest"
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/host"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
)

// required names the variable that makes a missing privilege or program an error instead of a reason to skip.
const required = "CONVERGE_REAL"

// A net is a network namespace of a real kernel, with veth pairs c0/p0, c1/p1, … The c count as network cards of the node, the p are
// the far ends.
type net struct {
	t    testing.TB
	path string
}

// newNet makes a namespace that lasts until the test ends.
func newNet(t testing.TB, cards int) net {
	t.Helper()
	missing := func(format string, args ...any) {
		t.Helper()
		if os.Getenv(required) != "" {
			t.Fatalf(format, args...)
		}
		t.Skipf(format+"; %s=1 makes this an error", append(args, required)...)
	}
	if os.Geteuid() != 0 {
		missing("network namespaces need root")
	}
	for _, p := range []string{"ip", "nsenter"} {
		if _, err := exec.LookPath(p); err != nil {
			missing("there is no %s", p)
		}
	}
	first := exec.Command("cat") // it ends with its input, also when the test dies
	first.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	in, err := first.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Start(); err != nil {
		missing("network namespaces cannot be made: %v", err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = first.Wait()
	})
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", first.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	n := net{t, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.Fd())}
	var batch strings.Builder
	for i := range cards {
		fmt.Fprintf(&batch, "link add c%d type veth peer name p%d\nlink set p%d up\n", i, i, i)
	}
	if _, err := n.run(batch.String(), "-batch", "-"); err != nil {
		t.Fatal(err)
	}
	return n
}

// try runs the command ip in the namespace.
func (n net) try(args string) (string, error) {
	return n.run("", strings.Fields(args)...)
}

func (n net) run(input string, args ...string) (string, error) {
	cmd := exec.Command("nsenter", append([]string{"--net=" + n.path, "ip"}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("ip %s: %w: %s", args, err, out)
	}
	return string(out), err
}

func (n net) ip(args string) string {
	n.t.Helper()
	out, err := n.try(args)
	if err != nil {
		n.t.Fatal(err)
	}
	return out
}

// has reports whether the kernel can make links of a type: modules may be missing.
func (n net) has(typ string) bool {
	_, err := n.try("link add probe " + typ)
	if err == nil {
		n.ip("link del probe")
	}
	return err == nil
}

// open connects a provider to the namespace.
func (n net) open() *providers.Provider {
	n.t.Helper()
	network, err := host.OpenNetwork(host.NetworkOptions{Namespace: n.path, Cards: []string{"veth"}})
	if err != nil {
		n.t.Fatal(err)
	}
	return host.Serve(host.Options{Node: "gpu-01", Kernel: kerneltest.New(n.t, kerneltest.Machine{}).Kernel(), Network: network})
}

// links opens a provider that is closed with the test, and returns its links.
func (n net) links() providers.Served {
	n.t.Helper()
	p := n.open()
	n.t.Cleanup(func() {
		if err := p.Close(); err != nil {
			n.t.Error(err)
		}
	})
	for _, k := range p.Kinds {
		if k.Name == "host.link" {
			return k
		}
	}
	n.t.Fatal("links are not served")
	return providers.Served{}
}

// dump returns everything in the namespace that can be set, as the command ip shows it, without the far ends.
func (n net) dump() string {
	n.t.Helper()
	all, err := n.run("link show\naddr show\nroute show table main\n", "-o", "-batch", "-")
	if err != nil {
		n.t.Fatal(err)
	}
	var b strings.Builder
	for line := range strings.Lines(all + n.ip("-6 route show table main")) {
		if strings.Contains(line, "fe80::") || strings.HasPrefix(line, "multicast") || strings.Contains(line, ":") && strings.Contains(line, "proto kernel metric 256") {
			continue
		}
		fmt.Fprintln(&b, strings.Join(stable(strings.Fields(line)), " "))
	}
	return b.String()
}

// stable returns the words of a line of ip without what changes by itself: states that follow within a second, timers, duplicate
// detection, and the numbers of links.
func stable(words []string) []string {
	var kept []string
	for i := 0; i < len(words); i++ {
		switch w := words[i]; {
		case i == 0 && strings.HasSuffix(w, ":"), w == "tentative", w == "linkdown":
		case slices.Contains([]string{"state", "link/ether", "qdisc", "valid_lft", "preferred_lft"}, w):
			i++
		case strings.HasPrefix(w, "<"):
			kept = append(kept, fmt.Sprint(strings.Contains(w, "UP,") || strings.Contains(w, ",UP")))
		default:
			kept = append(kept, w)
		}
	}
	return kept
}

func (n net) ref(name string) schema.Ref {
	return schema.Ref{Scope: "gpu-01", Kind: "host.link", Name: name}
}

func (n net) call(name string, want schema.Object) providers.Call {
	return providers.Call{Ref: n.ref(name), ID: name, Want: want}
}

// get returns a thing.
func get(t *testing.T, k providers.Served, id string) (providers.Thing, bool) {
	t.Helper()
	things, err := k.Kind.Get(t.Context(), []string{id})
	if err != nil {
		t.Fatal(err)
	}
	if len(things) == 0 {
		return providers.Thing{}, false
	}
	return things[0], true
}

func card(spec schema.Object) schema.Object {
	o := schema.Object{"type": "physical", "state": "up"}
	for f, v := range spec {
		o[f] = v
	}
	return o
}

func route(to string, more ...string) map[string]any {
	r := map[string]any{"to": to}
	for i := 0; i < len(more); i += 2 {
		r[more[i]] = more[i+1]
	}
	return r
}

func TestLinkLaws(t *testing.T) {
	schemas, err := kinds.New()
	if err != nil {
		t.Fatal(err)
	}
	addresses := []any{"192.0.2.7/24", "192.0.2.8/24", "2001:db8::7/64"}
	invalid := []any{route("198.51.100.0/24", "via", "203.0.113.1")}
	cases := []providertest.Case{{
		Kind: "host.link", Name: "c0",
		Want: card(schema.Object{"mtu": int64(1400), "addresses": addresses, "routes": []any{
			route("0.0.0.0/0", "via", "192.0.2.1"), route("198.51.100.0/24"), map[string]any{"to": "2001:db8:1::/48", "via": "2001:db8::1", "metric": int64(50)},
		}}),
		Update: card(schema.Object{"mtu": int64(9000), "addresses": []any{"192.0.2.8/24", "203.0.113.7/32"}, "routes": []any{
			route("0.0.0.0/0", "via", "192.0.2.2"), map[string]any{"to": "198.51.100.0/24", "via": "203.0.113.1", "on_link": true, "metric": int64(7)},
		}}),
		Invalid: card(schema.Object{"mtu": int64(1400), "addresses": addresses, "routes": invalid}),
		Other: func(i int) providertest.Made {
			return providertest.Made{Kind: "host.link", Name: fmt.Sprintf("c%d", 1+i), Spec: card(schema.Object{"addresses": []any{fmt.Sprintf("10.0.%d.1/24", i)}})}
		},
	}, {
		Kind: "host.link", Name: "br0",
		Needs: []providertest.Made{{Kind: "host.link", Name: "c0", Spec: card(nil)}, {Kind: "host.link", Name: "c1", Spec: card(nil)}},
		Want:  schema.Object{"type": "bridge", "state": "up", "interfaces": []any{"c0", "c1"}, "mtu": int64(1400), "addresses": addresses},
		Update: schema.Object{"type": "bridge", "state": "down", "interfaces": []any{"c1"}, "mtu": int64(1300), "addresses": []any{
			"192.0.2.8/24", "2001:db8::7/64"}},
		Invalid: schema.Object{"type": "bridge", "state": "up", "addresses": addresses, "routes": invalid},
		Other: func(i int) providertest.Made {
			return providertest.Made{Kind: "host.link", Name: fmt.Sprintf("br%d", 1+i), Spec: schema.Object{"type": "bridge", "state": "up"}}
		},
	}}
	probe := newNet(t, 1)
	if probe.has("type dummy") {
		cases = append(cases, providertest.Case{
			Kind: "host.link", Name: "d0",
			Want:    schema.Object{"type": "dummy", "state": "up", "addresses": addresses},
			Update:  schema.Object{"type": "dummy", "state": "down", "mtu": int64(9000)},
			Invalid: schema.Object{"type": "dummy", "state": "up", "addresses": addresses, "routes": invalid},
		})
	}
	if probe.has("link c0 type vlan id 7") {
		cases = append(cases, providertest.Case{
			Kind: "host.link", Name: "c0.7",
			Needs:   []providertest.Made{{Kind: "host.link", Name: "c0", Spec: card(nil)}},
			Want:    schema.Object{"type": "vlan", "parent": "c0", "vlan": int64(7), "state": "up", "addresses": addresses},
			Update:  schema.Object{"type": "vlan", "parent": "c0", "vlan": int64(7), "state": "up", "mtu": int64(1400)},
			Invalid: schema.Object{"type": "vlan", "parent": "c0", "vlan": int64(7), "state": "up", "addresses": addresses, "routes": invalid},
			Other: func(i int) providertest.Made {
				return providertest.Made{Kind: "host.link", Name: fmt.Sprintf("c0.%d", 100+i), Spec: schema.Object{"type": "vlan", "parent": "c0", "vlan": int64(100 + i), "state": "up"}}
			},
		})
	}
	for i, c := range cases {
		providertest.Run(t, providertest.Suite{
			Kinds: schema.Kinds{"host.link": schemas.Kinds()["host.link"]}, // the other kinds have theirs in TestLaws
			Cases: []providertest.Case{c}, Parallel: true, Direct: i > 0,
			Open: func(t *testing.T) providertest.World {
				cards := 3
				if c.Name == "c0" {
					cards = 12
				}
				n := newNet(t, cards)
				p := n.open()
				p.Kinds = slices.DeleteFunc(p.Kinds, func(k providers.Served) bool { return k.Name != "host.link" })
				return providertest.World{Provider: p, Dump: n.dump, Meddle: func(_, id string) { n.ip("addr add 10.9.9.9/32 dev " + id) }}
			},
		})
	}
}

var errNone = errors.New("no error")

func class(t *testing.T, what string, err error, want providers.Class, text string) {
	t.Helper()
	if err == nil {
		err = errNone
	}
	if providers.ClassOf(err) != want || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: the error is %v, of class %s; want %s: %s", what, err, providers.ClassOf(err), want, text)
	}
}

// refused makes a call that is refused, and checks that nothing has changed.
func refused(t *testing.T, n net, what string, call func() error, want providers.Class, text string) {
	t.Helper()
	before := n.dump()
	class(t, what, call(), want, text)
	if d := cmp.Diff(before, n.dump()); d != "" {
		t.Errorf("%s changed something (-before +after):\n%s", what, d)
	}
}

// What the kernel refuses after a part of a change was made is put back.
func TestLinkRefusals(t *testing.T) {
	n := newNet(t, 1)
	k := n.links()
	if err := k.Kind.Create(t.Context(), n.call("c0", card(schema.Object{"addresses": []any{"192.0.2.7/24"}}))); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		spec  schema.Object
		class providers.Class
		text  string
	}{
		"a router that cannot be reached": {card(schema.Object{"mtu": int64(1400), "addresses": []any{"192.0.2.8/24"}, "routes": []any{route("198.51.100.0/24", "via", "203.0.113.1")}}), providers.Invalid, "add the route to 198.51.100.0/24"},
		"an MTU too small for IPv6":       {card(schema.Object{"mtu": int64(1000), "addresses": []any{"2001:db8::7/64"}}), providers.Invalid, "needs an mtu of at least 1280"},
		"a router of the other family":    {card(schema.Object{"routes": []any{route("198.51.100.0/24", "via", "2001:db8::1")}}), providers.Invalid, "does not fit"},
		"a destination with host bits":    {card(schema.Object{"routes": []any{route("198.51.100.7/24")}}), providers.Invalid, "write the destination 198.51.100.7/24 as 198.51.100.0/24"},
		"another spelling":                {card(schema.Object{"addresses": []any{"2001:db8:0::7/64"}}), providers.Invalid, "as 2001:db8::7/64"},
		"routes of what is down":          {schema.Object{"type": "physical", "state": "down", "routes": []any{route("198.51.100.0/24")}}, providers.Invalid, "has no routes"},
		"a link-local address":            {card(schema.Object{"addresses": []any{"fe80::7/64"}}), providers.Invalid, "link-local"},
		"a multicast address":             {card(schema.Object{"mtu": int64(1400), "addresses": []any{"192.0.2.9/24", "ff02::7/64"}}), providers.Invalid, "add the address ff02::7/64"},
		"ports of a card":                 {card(schema.Object{"interfaces": []any{"p0"}}), providers.Invalid, "only a bridge"},
		"a VLAN of a card":                {card(schema.Object{"vlan": int64(7)}), providers.Invalid, "only a VLAN"},
	} {
		refused(t, n, what, func() error { return k.Kind.Update(t.Context(), n.call("c0", c.spec)) }, c.class, c.text)
	}
	create := func(name string, spec schema.Object) func() error {
		return func() error { return k.Kind.Create(t.Context(), n.call(name, spec)) }
	}
	refused(t, n, "a card that is not there", create("c9", card(nil)), providers.Absent, "has no network interface c9")
	refused(t, n, "a bridge under the name of a card", create("p0", schema.Object{"type": "bridge"}), providers.Exists, "")
	refused(t, n, "a port that is not there", create("br0", schema.Object{"type": "bridge", "interfaces": []any{"c9"}}), providers.Absent, "c9")
	refused(t, n, "a VLAN of what is not there", create("v7", schema.Object{"type": "vlan", "parent": "c9", "vlan": int64(7)}), providers.Absent, "c9")
	refused(t, n, "a VLAN without a number", create("v7", schema.Object{"type": "vlan", "parent": "c0"}), providers.Invalid, "needs parent and vlan")
	n.ip("link add other type bridge")
	n.ip("link set p0 master other")
	refused(t, n, "the port of another bridge", create("br0", schema.Object{"type": "bridge", "interfaces": []any{"p0"}}), providers.Denied, "p0 is a port of other")
}

// What somebody else has configured is listed, and not taken over unasked.
func TestLinkOfOthers(t *testing.T) {
	n := newNet(t, 2)
	k := n.links()
	if _, ok := get(t, k, "c0"); ok {
		t.Error("a card that nobody has configured is an object")
	}
	n.ip("addr add 192.0.2.7/24 dev c0")
	th, ok := get(t, k, "c0")
	want := schema.Object{"type": "physical", "state": "down", "mtu": int64(1500), "addresses": []any{"192.0.2.7/24"}}
	if !ok || !th.Spec.Equal(want) {
		t.Fatalf("a card with an address is %v (%v), want %v", th.Spec, ok, want)
	}
	refused(t, n, "a create", func() error { return k.Kind.Create(t.Context(), n.call("c0", card(nil))) }, providers.Exists, "set already")

	n.ip("addr add 192.0.2.8/24 dev c0")
	stale := n.call("c0", card(nil))
	stale.Version = th.Version
	refused(t, n, "an update after a change", func() error { return k.Kind.Update(t.Context(), stale) }, providers.Conflict, "changed since")
	refused(t, n, "a delete after a change", func() error { return k.Kind.Delete(t.Context(), stale) }, providers.Conflict, "changed since")
}

// Addresses that end, and routes of other protocols, are nobody's drift. They survive changes, and keep the link.
func TestLinkLeavesOthersAlone(t *testing.T) {
	for what, c := range map[string]struct{ add, why string }{
		"an address from DHCP":  {"addr add 198.51.100.7/24 dev c0 valid_lft 3600 preferred_lft 3600", "198.51.100.7/24"},
		"a route of a daemon":   {"route add 198.51.100.0/24 via 192.0.2.1 proto bird", "198.51.100.0/24"},
		"a default route":       {"route add default via 192.0.2.1 proto dhcp", "the default route"},
		"a route with a source": {"route add 198.51.100.0/24 src 192.0.2.7 dev c0 proto static", "198.51.100.0/24"},
		"a link on top of it":   {"link add link c0 name over type macvlan", "over is on top of it"},
		"a bridge of somebody":  {"link set c0 master other", "it is a port of other"},
	} {
		t.Run(strings.ReplaceAll(what, " ", "-"), func(t *testing.T) {
			n := newNet(t, 1)
			n.ip("link add other type bridge")
			k := n.links()
			if err := k.Kind.Create(t.Context(), n.call("c0", card(schema.Object{"addresses": []any{"192.0.2.7/24"}}))); err != nil {
				t.Fatal(err)
			}
			before, _ := get(t, k, "c0")
			n.ip(c.add)
			if th, _ := get(t, k, "c0"); !th.Spec.Equal(before.Spec) {
				t.Errorf("the card is now %v", th.Spec)
			}
			saw := n.dump()
			if err := k.Kind.Update(t.Context(), n.call("c0", card(schema.Object{"addresses": []any{"192.0.2.7/24", "203.0.113.7/24"}, "routes": []any{route("203.0.114.0/24", "via", "203.0.113.1")}}))); err != nil {
				t.Error(err)
			}
			if err := k.Kind.Update(t.Context(), n.call("c0", card(schema.Object{"addresses": []any{"192.0.2.7/24"}}))); err != nil {
				t.Error(err)
			}
			if d := cmp.Diff(saw, n.dump()); d != "" {
				t.Errorf("updates have changed what is of others (-before +after):\n%s", d)
			}
			refused(t, n, "a delete", func() error { return k.Kind.Delete(t.Context(), n.call("c0", nil)) }, providers.Denied, c.why)
			refused(t, n, "switching it off", func() error {
				return k.Kind.Update(t.Context(), n.call("c0", schema.Object{"type": "physical", "state": "down", "addresses": []any{"192.0.2.7/24"}}))
			}, providers.Denied, c.why)
		})
	}
}

// An address is not removed with which the kernel would remove a route of others; with an address of another network the route stays.
func TestLinkRoutesOfOthersStay(t *testing.T) {
	for what, c := range map[string]struct {
		route string
		left  []any
		stays bool
	}{
		"the last address":             {"default via 192.0.2.1 proto dhcp", []any{}, false},
		"another address of its net":   {"default via 192.0.2.1 proto dhcp", []any{"192.0.2.8/24"}, false},
		"the source of a route":        {"198.51.100.0/24 via 192.0.2.1 proto bird src 192.0.2.7", []any{"203.0.113.7/24"}, false},
		"an address of another net":    {"198.51.100.0/24 dev c0 proto bird", []any{"203.0.113.7/24"}, true},
		"one that is left, and others": {"default via 192.0.2.1 proto dhcp", []any{"192.0.2.7/24"}, true},
	} {
		t.Run(strings.ReplaceAll(what, " ", "-"), func(t *testing.T) {
			n := newNet(t, 1)
			k := n.links()
			if err := k.Kind.Create(t.Context(), n.call("c0", card(schema.Object{"addresses": []any{"192.0.2.7/24"}}))); err != nil {
				t.Fatal(err)
			}
			n.ip("route add " + c.route)
			update := func() error {
				return k.Kind.Update(t.Context(), n.call("c0", card(schema.Object{"addresses": c.left})))
			}
			if !c.stays {
				refused(t, n, what, update, providers.Denied, "the kernel would remove")
				return
			}
			if err := update(); err != nil {
				t.Fatal(err)
			}
			if routes := n.dump(); !strings.Contains(routes, strings.Fields(c.route)[0]) {
				t.Errorf("the route is gone:\n%s", routes)
			}
		})
	}
}

// Ports that are of virtual machines or containers are not those of the document, and keep the bridge.
func TestBridgeWithPortsOfOthers(t *testing.T) {
	n := newNet(t, 1)
	p := n.open()
	t.Cleanup(func() { p.Close() })
	k := p.Kinds[slices.IndexFunc(p.Kinds, func(k providers.Served) bool { return k.Name == "host.link" })]
	if err := k.Kind.Create(t.Context(), n.call("br0", schema.Object{"type": "bridge", "state": "up"})); err != nil {
		t.Fatal(err)
	}
	n.ip("link add link p0 name vm0 type macvlan")
	n.ip("link set vm0 master br0")
	want := schema.Object{"type": "bridge", "state": "up", "mtu": int64(1500), "interfaces": []any{"c0"}}
	if err := k.Kind.Update(t.Context(), n.call("br0", want)); err != nil {
		t.Fatal(err)
	}
	if th, _ := get(t, k, "br0"); !th.Spec.Equal(want) {
		t.Errorf("the bridge is %v", th.Spec)
	}
	if !strings.Contains(n.ip("link show master br0"), "vm0") {
		t.Error("the port of a machine was released")
	}
	refused(t, n, "a delete", func() error { return k.Kind.Delete(t.Context(), n.call("br0", nil)) }, providers.Denied, "vm0 is a port of it")
	found, err := p.Obstacles(t.Context(), []providers.Target{{Kind: "host.link", ID: "br0"}, {Kind: "host.link", ID: "c0"}}, nil)
	if err != nil || len(found) != 1 || found[0].ID != "br0" || found[0].Why != "vm0 is a port of it" {
		t.Errorf("in the way is %v (%v)", found, err)
	}
	found, err = p.Obstacles(t.Context(), []providers.Target{{Kind: "host.link", ID: "c0"}}, nil)
	if err != nil || len(found) != 1 || found[0].Why != "it is a port of br0" {
		t.Errorf("in the way of a port is %v (%v)", found, err)
	}
}

// An IPv4 address that comes first in its network takes the others with it when it is removed, and an MTU too small for IPv6 all
// IPv6 addresses: the kernel says nothing.
func TestLinkKeepsWhatTheKernelDrops(t *testing.T) {
	n := newNet(t, 1)
	k := n.links()
	steps := []schema.Object{
		card(schema.Object{"addresses": []any{"192.0.2.7/24", "192.0.2.8/24", "2001:db8::7/64"}, "routes": []any{route("0.0.0.0/0", "via", "192.0.2.1")}}),
		card(schema.Object{"addresses": []any{"192.0.2.8/24"}, "routes": []any{route("0.0.0.0/0", "via", "192.0.2.1")}, "mtu": int64(1000)}),
		{"type": "physical", "state": "down", "addresses": []any{"192.0.2.8/24", "2001:db8::7/64"}, "mtu": int64(1500)},
		card(schema.Object{"addresses": []any{"192.0.2.8/24", "2001:db8::7/64"}, "mtu": int64(1500), "routes": []any{map[string]any{"to": "::/0", "via": "2001:db8::1", "metric": int64(1024)}}}),
	}
	for i, want := range steps {
		verb := k.Kind.Update
		if i == 0 {
			verb = k.Kind.Create
		}
		if err := verb(t.Context(), n.call("c0", want)); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		th, _ := get(t, k, "c0")
		if want["mtu"] == nil {
			want["mtu"] = int64(1500)
		}
		if !th.Spec.Equal(want) {
			t.Errorf("step %d: the card is %v, want %v", i, th.Spec, want)
		}
	}
}

// An import leaves out what other programs have made for themselves.
func TestLinksOfOtherPrograms(t *testing.T) {
	n := newNet(t, 2)
	for _, cmd := range []string{"link add docker0 type bridge", "link add virbr0 type bridge", "link add br-0123456789ab type bridge", "link add br-lan type bridge",
		"link set c0 up", "link add link p1 name vm0 type macvlan", "link set lo up", "addr add 10.0.0.1/32 dev lo"} {
		n.ip(cmd)
	}
	things, err := providers.Collect(n.links().Kind.List(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, th := range things {
		got[th.ID] = th.Passing
	}
	want := map[string]string{
		"br-0123456789ab": "its name is one of those of Docker", "br-lan": "", "c0": "", "docker0": "its name is one of those of Docker", "p0": "", "p1": "",
		"virbr0": "its name is one of those of libvirt",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the links, and why they are left out (-want +got):\n%s", d)
	}
}

// A copy of a sysfs has no network to ask: it serves no links.
func TestNoLinks(t *testing.T) {
	p := host.New("gpu-01", kerneltest.New(t, kerneltest.Machine{}).Kernel(), nil)
	if slices.ContainsFunc(p.Kinds, func(k providers.Served) bool { return k.Name == "host.link" }) {
		t.Error("it serves links")
	}
}
