package host

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/host/spec"
	"converge.dev/converge/providers/sysfs"
	"converge.dev/converge/schema"
)

const linkKind = "host.link"

// links is the kind host.link.
type links struct {
	network *Network // nil: there is none to ask
	kernel  sysfs.Kernel
	permit  *providers.Permit
}

func (k *links) served() providers.Served {
	t := sysfs.Traits()
	t.CutsOff = true
	t.Serial = true
	t.SetLast = []string{"state", "mtu"}
	t.Overlap = []string{"addresses", "routes", "interfaces"}
	return providers.Served{Name: linkKind, Traits: t, Kind: k, Watch: k.watch}
}

// A refusal is an error with its class.
type refusal struct {
	class providers.Class
	error
}

func refuse(class providers.Class, format string, args ...any) error {
	return &refusal{class, fmt.Errorf(format, args...)}
}

// List implements [providers.Kind].
func (k *links) List(context.Context) iter.Seq2[providers.Thing, error] {
	return providers.Listed(func() ([]providers.Thing, error) { return k.observe(nil) })
}

// Get implements [providers.Kind].
func (k *links) Get(_ context.Context, ids []string) ([]providers.Thing, error) {
	return k.observe(ids)
}

// observe returns the things with the given ids; all when ids is nil.
func (k *links) observe(ids []string) ([]providers.Thing, error) {
	v, err := k.network.look()
	if err != nil {
		return nil, &providers.Error{Op: "observe", Kind: linkKind, Class: classOf(err, providers.Transient), Err: err}
	}
	var things []providers.Thing
	for _, l := range v.links {
		if ids != nil && !slices.Contains(ids, l.Attrs().Name) {
			continue
		}
		if th, ok := k.thing(v, l); ok {
			things = append(things, th)
		}
	}
	slices.SortFunc(things, func(a, b providers.Thing) int { return strings.Compare(a.ID, b.ID) })
	return things, nil
}

// thing returns a link as an object; ok is false when it is none.
func (k *links) thing(v *view, l netlink.Link) (th providers.Thing, ok bool) {
	a := l.Attrs()
	if v.typeOf(l) == "" {
		return th, false
	}
	s, besides := v.spec(l)
	if !configured(s) {
		return th, false
	}
	st := spec.LinkStatus{Ifindex: new(int64(a.Index)), Carrier: new(a.RawFlags&syscall.IFF_UP != 0 && a.RawFlags&lowerUp != 0)}
	if len(a.HardwareAddr) > 0 {
		st.MAC = new(a.HardwareAddr.String())
	}
	if speed, err := k.kernel.Number("class/net/" + a.Name + "/speed"); err == nil && speed > 0 && s.Type == physical && k.network.o.Namespace == "" {
		st.Speed = &speed
	}
	for p, x := range v.addresses(l) {
		if x.Flags&duplicate != 0 {
			besides = fmt.Sprintf("the address %s is not used, for another machine has it", p.Addr())
		}
	}
	th = providers.Thing{ID: a.Name, Name: a.Name, Spec: s.Object(), Status: st.Object(), Phase: providers.Ready, Detail: besides, Passing: k.passing(v, l, s)}
	th.Version = schema.Object{"spec": map[string]any(th.Spec), "more": besides}.Digest()[:16]
	return th, true
}

const (
	lowerUp   = 1 << 16 // IFF_LOWER_UP: the operational state follows it within a second
	duplicate = 0x08    // IFA_F_DADFAILED
)

// theirs are names that programs give to links that they make and remove by themselves.
var theirs = []struct {
	name *regexp.Regexp
	who  string
}{
	{regexp.MustCompile(`^(docker0|docker_gwbridge|br-[0-9a-f]{12})$`), "Docker"},
	{regexp.MustCompile(`^virbr[0-9]+(-nic)?$`), "libvirt"},
	{regexp.MustCompile(`^(podman|cni-podman)[0-9]+$`), "Podman"},
	{regexp.MustCompile(`^(lxc|lxd|incus)br[0-9]+$`), "LXC"},
	{regexp.MustCompile(`^(cni|cbr|kube-bridge|kube-ipvs|nodelocaldns|weave|cilium_).*$`), "Kubernetes"},
}

// representor is the name of the port of a switch that stands for a virtual function, or a part of one.
var representor = regexp.MustCompile(`^(c[0-9]+)?pf[0-9]+(vf|sf)[0-9]+$`)

// passing returns why a link is not to be taken over; empty when it may be.
func (k *links) passing(v *view, l netlink.Link, s spec.Link) string {
	a := l.Attrs()
	if s.Type != physical {
		for _, t := range theirs {
			if t.name.MatchString(a.Name) {
				return "its name is one of those of " + t.who
			}
		}
	}
	if master := v.links[a.MasterIndex]; a.MasterIndex != 0 && (master == nil || v.typeOf(master) == "") {
		return "it is a port of " + v.nameOf(a.MasterIndex) + ", which converge does not manage"
	}
	if parent := v.links[a.ParentIndex]; s.Type == vlan && v.typeOf(parent) == "" {
		return "its parent " + parent.Attrs().Name + " is of a type that converge does not manage"
	}
	if s.Type == physical && k.network.o.Namespace == "" && representor.MatchString(k.kernel.Attribute("class/net/"+a.Name+"/phys_port_name")) {
		return "it stands for a virtual function"
	}
	return ""
}

// A transaction is the requests of one change.
type transaction struct {
	ctx     context.Context
	network *Network
	permit  *providers.Permit
	wrote   bool
	leading bool // leads back to what was: also when the call has ended meanwhile
}

// do makes one request.
func (tx *transaction) do(request func() error) error {
	if tx.ctx.Err() != nil && !tx.leading {
		return refuse(providers.Transient, "%w", context.Cause(tx.ctx))
	}
	if err := tx.permit.Check(); err != nil {
		return refuse(providers.Transient, "%w", err)
	}
	err := tx.network.ask(request)
	tx.wrote = tx.wrote || err == nil || errors.Is(err, syscall.EAGAIN) // without an answer it may still happen
	return err
}

// back does what leads back, after a change has failed. The change has had no effect if that succeeds.
func (tx *transaction) back(undo func() error) error {
	if !tx.wrote {
		return nil
	}
	tx.leading = true
	if err := undo(); err != nil {
		return fmt.Errorf("it could not be put back: %w", err)
	}
	tx.wrote = false
	return nil
}

// change makes a change while no other one runs. do gets what is there, and the link if it is an object.
func (k *links) change(ctx context.Context, op string, c providers.Call, do func(tx *transaction, v *view, have *providers.Thing) error) error {
	tx := &transaction{ctx: ctx, network: k.network, permit: k.permit}
	err := func() error {
		select {
		case k.network.turn <- struct{}{}:
			defer func() { <-k.network.turn }()
		case <-ctx.Done():
			return refuse(providers.Transient, "%w", context.Cause(ctx))
		}
		v, err := k.network.look()
		if err != nil {
			return refuse(providers.Transient, "%w", err)
		}
		var have *providers.Thing
		if l := v.named(c.ID); l != nil {
			if th, ok := k.thing(v, l); ok {
				have = &th
			}
		}
		if have != nil && c.Version != "" && c.Version != have.Version {
			return refuse(providers.Conflict, "it has changed since it was observed")
		}
		return do(tx, v, have)
	}()
	if err == nil {
		return nil
	}
	e := &providers.Error{Op: op, Ref: c.Ref, Kind: linkKind, Class: classOf(err, providers.Unknown), Err: err}
	if tx.wrote {
		e.Class, e.Over = providers.Unknown, true
	}
	return e
}

// classOf returns the class of an error of this kind, or of one of the kernel.
func classOf(err error, otherwise providers.Class) providers.Class {
	is := func(errnos ...syscall.Errno) bool {
		return slices.ContainsFunc(errnos, func(e syscall.Errno) bool { return errors.Is(err, e) })
	}
	var r *refusal
	switch {
	case errors.As(err, &r):
		return r.class
	case is(syscall.ENODEV):
		return providers.Absent
	case is(syscall.EBUSY):
		return providers.Busy
	case is(syscall.EPERM):
		return providers.Denied
	case is(syscall.EEXIST):
		return providers.Denied // of an address or a route of others
	case is(syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.EADDRNOTAVAIL, syscall.ENETDOWN, syscall.ELOOP, syscall.ENOBUFS, syscall.EACCES, syscall.EINVAL, syscall.ERANGE):
		return providers.Invalid
	case is(syscall.EOPNOTSUPP):
		return providers.Unsupported
	}
	return otherwise
}

// Create implements [providers.Kind].
func (k *links) Create(ctx context.Context, c providers.Call) error {
	return k.change(ctx, "create", c, func(tx *transaction, v *view, have *providers.Thing) error {
		if have != nil {
			return refuse(providers.Exists, "%s is set already, and not by converge", c.ID)
		}
		w, err := wanted(c.Want)
		if err != nil {
			return err
		}
		there := v.named(c.ID)
		switch {
		case there == nil && w.Type == physical:
			return refuse(providers.Absent, "the node has no network interface %s", c.ID)
		case there != nil && (w.Type != physical || v.typeOf(there) != physical):
			return refuse(providers.Exists, "the node has an interface %s already, of the type %s", c.ID, there.Type())
		}
		if err := w.fits(v, c.ID); err != nil {
			return err
		}
		undo := func() error { return k.reach(tx, c.ID, unconfigured()) }
		if there == nil {
			if err := tx.do(func() error { return k.network.handle.LinkAdd(w.link(v, c.ID)) }); err != nil {
				return fmt.Errorf("add a link of the type %s: %w", w.Type, err)
			}
			undo = func() error { return k.remove(tx, c.ID) }
		}
		if err := k.reach(tx, c.ID, w); err != nil {
			return errors.Join(err, tx.back(undo))
		}
		return nil
	})
}

// Update implements [providers.Kind].
func (k *links) Update(ctx context.Context, c providers.Call) error {
	return k.change(ctx, "update", c, func(tx *transaction, v *view, have *providers.Thing) error {
		if have == nil {
			return refuse(providers.Absent, "there is no interface %s that is set", c.ID)
		}
		w, err := wanted(c.Want)
		if err != nil {
			return err
		}
		was, err := wanted(have.Spec)
		if err != nil {
			return err
		}
		if w.Type != was.Type {
			return refuse(providers.Conflict, "%s is of the type %s, not %s", c.ID, was.Type, w.Type)
		}
		if err := w.fits(v, c.ID); err != nil {
			return err
		}
		if isUp(was.Link) && !isUp(w.Link) {
			if err := unused(v, c.ID); err != nil {
				return err
			}
		}
		if r := v.flushed(v.named(c.ID), w.addresses); r != "" {
			return refuse(providers.Denied, "the kernel would remove %s together with the addresses of %s, and nothing would bring it back; add an address of another network first, or take that route over", r, c.ID)
		}
		if err := k.reach(tx, c.ID, w); err != nil {
			return errors.Join(err, tx.back(func() error { return k.reach(tx, c.ID, was) }))
		}
		return nil
	})
}

// Delete implements [providers.Kind].
func (k *links) Delete(ctx context.Context, c providers.Call) error {
	return k.change(ctx, "delete", c, func(tx *transaction, v *view, have *providers.Thing) error {
		if have == nil {
			return nil
		}
		if err := unused(v, c.ID); err != nil {
			return err
		}
		was, err := wanted(have.Spec)
		if err != nil {
			return err
		}
		if was.Type != physical {
			return k.remove(tx, c.ID)
		}
		if err := k.reach(tx, c.ID, unconfigured()); err != nil {
			return errors.Join(err, tx.back(func() error { return k.reach(tx, c.ID, was) }))
		}
		return nil
	})
}

// unused fails when others use a link.
func unused(v *view, name string) error {
	for _, u := range v.uses(v.named(name)) {
		return refuse(providers.Denied, "%s is in use: %s", name, u.why)
	}
	return nil
}

// obstacles implements [providers.Obstacles].
func (k *links) obstacles(_ context.Context, deletes, changes []providers.Target) ([]providers.Obstacle, error) {
	deletes = slices.DeleteFunc(slices.Clone(deletes), func(t providers.Target) bool { return t.Kind != linkKind })
	if len(deletes) == 0 || k.network == nil {
		return nil, nil
	}
	v, err := k.network.look()
	if err != nil {
		return nil, &providers.Error{Op: "observe", Kind: linkKind, Class: providers.Transient, Err: err}
	}
	var found []providers.Obstacle
	for _, t := range deletes {
		l := v.named(t.ID)
		if l == nil {
			continue
		}
		for _, u := range v.uses(l) {
			by := providers.Target{Kind: linkKind, ID: u.by}
			if u.by == "" || !slices.Contains(deletes, by) && !slices.Contains(changes, by) {
				found = append(found, providers.Obstacle{Target: t, Why: u.why})
			}
		}
	}
	return found, nil
}

// remove deletes a link that is not physical.
func (k *links) remove(tx *transaction, name string) error {
	v, err := k.network.look()
	if err != nil {
		return err
	}
	l := v.named(name)
	if l == nil {
		return nil
	}
	err = tx.do(func() error { return k.network.handle.LinkDel(l) })
	if gone(err) {
		return nil
	}
	return err
}

// A wish is a spec in the kernel's terms.
type wish struct {
	spec.Link
	addresses []netip.Prefix
	routes    []route
}

// unconfigured is what a physical link is by itself.
func unconfigured() wish {
	return wish{Link: spec.Link{Type: physical, State: new("down"), MTU: new(int64(defaultMTU))}}
}

// wanted reads a spec. What the kernel would understand differently, or drop without a word, is refused here.
func wanted(o schema.Object) (w wish, err error) {
	invalid := func(format string, args ...any) error { return refuse(providers.Invalid, format, args...) }
	if err := w.Read(o); err != nil {
		return w, invalid("invalid spec: %w", err)
	}
	switch {
	case w.Type == vlan && (w.Parent == nil || w.VLAN == nil):
		return w, invalid("a VLAN needs parent and vlan")
	case w.Type != vlan && (w.Parent != nil || w.VLAN != nil):
		return w, invalid("only a VLAN has parent and vlan")
	case w.Type != bridge && len(w.Interfaces) > 0:
		return w, invalid("only a bridge has interfaces")
	case !isUp(w.Link) && len(w.Routes) > 0:
		return w, invalid("an interface that is down has no routes")
	}
	for _, text := range w.Addresses {
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
			return w, invalid("the address %s: %w", text, err)
		case p.String() != text:
			return w, invalid("write the address %s as %s", text, p)
		case w.MTU != nil && *w.MTU < leastMTUOfV6 && p.Addr().Is6():
			return w, invalid("the IPv6 address %s needs an mtu of at least %d", text, leastMTUOfV6)
		case p.Addr().IsLinkLocalUnicast() && p.Addr().Is6():
			return w, invalid("the address %s is link-local: the kernel chooses those", text)
		}
		w.addresses = append(w.addresses, p)
	}
	for _, s := range w.Routes {
		r := route{onLink: s.OnLink != nil && *s.OnLink}
		if r.to, err = netip.ParsePrefix(s.To); err == nil && s.Via != nil {
			r.via, err = netip.ParseAddr(*s.Via)
		}
		switch {
		case err != nil:
			return w, invalid("the route to %s: %w", s.To, err)
		case r.to.Masked().String() != s.To:
			return w, invalid("write the destination %s as %s", s.To, r.to.Masked())
		case r.via.IsValid() && (r.via.Is4() != r.to.Addr().Is4() || r.via.String() != *s.Via):
			return w, invalid("the router %s does not fit the destination %s, or is not in its short form", *s.Via, s.To)
		case r.onLink && !r.via.IsValid():
			return w, invalid("the route to %s has on_link and no via", s.To)
		}
		switch {
		case s.Metric != nil:
			r.metric = *s.Metric
		case r.to.Addr().Is6():
			r.metric = defaultMetric
		}
		w.routes = append(w.routes, r)
	}
	return w, nil
}

// fits fails when the links that a wish names are not there, or others'.
func (w wish) fits(v *view, name string) error {
	if w.Parent != nil && v.named(*w.Parent) == nil {
		return refuse(providers.Absent, "the node has no network interface %s", *w.Parent)
	}
	for _, p := range w.Interfaces {
		l := v.named(p)
		if l == nil {
			return refuse(providers.Absent, "the node has no network interface %s", p)
		}
		if v.typeOf(l) == "" {
			return refuse(providers.Invalid, "%s is of the type %s, which is not managed as a port of a bridge", p, l.Type())
		}
		if m := l.Attrs().MasterIndex; m != 0 && v.nameOf(m) != name {
			return refuse(providers.Denied, "%s is a port of %s", p, v.nameOf(m))
		}
	}
	return nil
}

// link returns a new link. What one request can set is not seen half done.
func (w wish) link(v *view, name string) netlink.Link {
	a := netlink.NewLinkAttrs()
	a.Name = name
	if w.MTU != nil {
		a.MTU = number(*w.MTU)
	}
	if isUp(w.Link) {
		a.Flags = net.FlagUp
	}
	switch w.Type {
	case vlan:
		a.ParentIndex = v.named(*w.Parent).Attrs().Index
		return &netlink.Vlan{LinkAttrs: a, VlanId: number(*w.VLAN), VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}
	case bridge:
		return &netlink.Bridge{LinkAttrs: a}
	}
	return &netlink.Dummy{LinkAttrs: a}
}

// A request is one request to the kernel, in words.
type request struct {
	what string
	make func() error
}

// reach makes a link what is wanted. The kernel's success proves little, and some requests undo others: so it looks again, and asks
// again for what is missing.
func (k *links) reach(tx *transaction, name string, w wish) error {
	for round := 0; ; round++ {
		v, err := k.network.look()
		if err != nil {
			return err
		}
		l := v.named(name)
		if l == nil {
			return refuse(providers.Absent, "the interface %s is gone", name)
		}
		missing := k.missing(v, l, w)
		if len(missing) == 0 {
			return nil
		}
		if round == 3 {
			return refuse(providers.Invalid, "the kernel reported success, and did not %s", missing[0].what)
		}
		for _, r := range missing {
			if err := tx.do(r.make); err != nil {
				return fmt.Errorf("%s: %w", r.what, err)
			}
		}
	}
}

// missing returns the requests that are left to do, in their order: what is new comes before what is old.
func (k *links) missing(v *view, l netlink.Link, w wish) (requests []request) {
	a, h := l.Attrs(), k.network.handle
	add := func(make func() error, what string, args ...any) {
		requests = append(requests, request{fmt.Sprintf(what, args...), make})
	}
	remove := func(make func() error, what string, args ...any) {
		add(func() error {
			if err := make(); !gone(err) {
				return err
			}
			return nil
		}, what, args...)
	}
	is, _ := v.spec(l)
	up := isUp(w.Link)
	mtu := w.mtu(v, l)
	setMTU := func() { add(func() error { return h.LinkSetMTU(l, mtu) }, "set the MTU of %s to %d", a.Name, mtu) }
	if a.MTU < mtu {
		setMTU()
	}
	for _, p := range w.Interfaces {
		if port := v.named(p); port != nil && !slices.Contains(is.Interfaces, p) {
			add(func() error { return h.LinkSetMaster(port, l) }, "make %s a port of %s", p, a.Name)
		}
	}
	if up && !isUp(is) {
		add(func() error { return h.LinkSetUp(l) }, "switch %s on", a.Name)
	}

	have := v.addresses(l)
	for _, p := range w.addresses {
		if _, ok := have[p]; !ok {
			add(func() error { return h.AddrAdd(l, &netlink.Addr{IPNet: network(p)}) }, "add the address %s to %s", p, a.Name)
		}
	}
	static := v.static(l)
	for _, r := range w.routes {
		same := func(o route) bool { return o.to == r.to && o.metric == r.metric }
		switch {
		case slices.Contains(static, r):
		case slices.ContainsFunc(static, same):
			add(func() error { return h.RouteReplace(r.request(a.Index)) }, "change the route to %s", r.to)
		default:
			add(func() error { return h.RouteAdd(r.request(a.Index)) }, "add the route to %s", r.to)
		}
	}
	for _, r := range static {
		if !slices.ContainsFunc(w.routes, func(o route) bool { return o.to == r.to && o.metric == r.metric }) {
			remove(func() error { return h.RouteDel(r.request(a.Index)) }, "remove the route to %s", r.to)
		}
	}
	for p, x := range have {
		if !slices.Contains(w.addresses, p) {
			remove(func() error { return h.AddrDel(l, &x) }, "remove the address %s from %s", p, a.Name)
		}
	}
	for _, p := range is.Interfaces {
		if port := v.named(p); port != nil && !slices.Contains(w.Interfaces, p) {
			remove(func() error { return h.LinkSetNoMaster(port) }, "release %s from %s", p, a.Name)
		}
	}
	if !up && isUp(is) {
		add(func() error { return h.LinkSetDown(l) }, "switch %s off", a.Name)
	}
	if a.MTU > mtu {
		setMTU()
	}
	return requests
}

// mtu returns the MTU of a link.
func (w wish) mtu(v *view, l netlink.Link) int {
	if w.MTU != nil {
		return number(*w.MTU)
	}
	if parent := v.links[l.Attrs().ParentIndex]; w.Type == vlan && parent != nil {
		return parent.Attrs().MTU
	}
	return defaultMTU
}
