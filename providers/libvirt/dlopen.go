//go:build linux && cgo && libvirt_dlopen

package libvirt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	virt "libvirt.org/go/libvirt"

	"converge.dev/converge/providers"
)

// classes says what the error codes of libvirt mean for a call. A code that is not here is Unknown: libvirt uses the most frequent
// ones, ERR_INTERNAL_ERROR and ERR_OPERATION_FAILED, for anything.
var classes = map[virt.ErrorNumber]providers.Class{
	virt.ERR_NO_SUPPORT:            providers.Unsupported,
	virt.ERR_OPERATION_UNSUPPORTED: providers.Unsupported,
	virt.ERR_ARGUMENT_UNSUPPORTED:  providers.Unsupported,

	virt.ERR_NO_NETWORK:      providers.Absent,
	virt.ERR_NO_STORAGE_POOL: providers.Absent,
	virt.ERR_NO_STORAGE_VOL:  providers.Absent,
	virt.ERR_NO_DOMAIN:       providers.Absent,

	virt.ERR_NETWORK_EXIST:     providers.Exists,
	virt.ERR_STORAGE_VOL_EXIST: providers.Exists,
	virt.ERR_DOM_EXIST:         providers.Exists,

	virt.ERR_DEVICE_MISSING: providers.Absent,

	virt.ERR_INVALID_ARG:        providers.Invalid,
	virt.ERR_XML_ERROR:          providers.Invalid,
	virt.ERR_XML_DETAIL:         providers.Invalid,
	virt.ERR_XML_INVALID_SCHEMA: providers.Invalid,
	virt.ERR_CONFIG_UNSUPPORTED: providers.Invalid,
	virt.ERR_OPERATION_INVALID:  providers.Invalid,
	virt.ERR_INVALID_MAC:        providers.Invalid,
	virt.ERR_OVERFLOW:           providers.Invalid,

	virt.ERR_AUTH_FAILED:      providers.Denied,
	virt.ERR_AUTH_CANCELLED:   providers.Denied,
	virt.ERR_AUTH_UNAVAILABLE: providers.Denied,
	virt.ERR_ACCESS_DENIED:    providers.Denied,
	virt.ERR_OPERATION_DENIED: providers.Denied,

	virt.ERR_RESOURCE_BUSY: providers.Busy,
}

// events starts what delivers events and ends of connections. The library has one loop for the whole process, which cannot be ended.
var events = sync.OnceValues(runLoop)

// library implements conn with the library of libvirt, which is loaded when the first function of it is called.
type library struct {
	*wire
	held map[called]handle // of a session: what it has found
}

// A wire is a connection of the library.
type wire struct {
	c       *virt.Connect
	loop    *loop
	watches []int // what the loop watches for the connection
	ended   chan struct{}
	told    []func() error // each ends a registration for events
	files   sync.Map       // POOL/NAME of the volumes that are being created or deleted
	pools   sync.Map       // UUIDs of the pools that are directories, by name, as they were seen last
	sizes   sync.Map       // how many volumes a pool had when they were listed last, by its name
	uuids   sync.Map       // of networks, by name, as they were seen last

	// memory says that this is the test driver: it keeps one definition of an object, whether it runs or not, except of a domain, and builds nothing.
	memory bool
}

// dial connects.
func dial(uri string, event func(o object, name string, ends bool)) (conn, error) {
	loop, err := events()
	if err != nil {
		return nil, err
	}
	l := &library{wire: &wire{loop: loop, ended: make(chan struct{})}}
	l.watches = loop.during(func() { l.c, err = virt.NewConnect(uri) })
	if err != nil {
		return nil, err
	}
	c := l.c
	end := sync.OnceFunc(func() { close(l.ended) })
	driver, err := c.GetType()
	l.memory = driver == "TEST"
	err = errors.Join(err, l.notify(event),
		unless(virt.ERR_NO_SUPPORT, c.RegisterCloseCallback(func(*virt.Connect, virt.ConnectCloseReason) { end() })), // the test driver has no server
	)
	if err != nil {
		shut(l)
		return nil, err
	}
	return l, nil
}

// unless returns an error that is not of a code.
func unless(code virt.ErrorNumber, err error) error {
	if errors.Is(err, code) {
		return nil
	}
	return err
}

// session finds each object once. Where libvirt finds one by its name it looks at all, and waits for each that is being started or stopped.
func (l *library) session() (conn, func()) {
	s := &library{l.wire, map[called]handle{}}
	return s, func() {
		for _, h := range s.held {
			free(h)
		}
	}
}

// hold keeps a handle for the rest of a session, in the place of the one that it has.
func (l *library) hold(o object, name string, h handle) {
	if l.held == nil {
		return
	}
	l.forget(o, name)
	if h.Ref() == nil {
		l.held[called{o, name}] = h
	}
}

// forget has an object looked up again.
func (l *library) forget(o object, name string) {
	if h, ok := l.held[called{o, name}]; ok {
		delete(l.held, called{o, name})
		free(h)
	}
}

// close ends the registrations first: each has the connection open.
func (l *library) close() {
	for _, end := range l.told {
		_ = end()
	}
	_ = l.c.UnregisterCloseCallback()
	_, _ = l.c.Close() // all that is left of a lost connection is memory
}

// hangUp ends the calls that wait for a server that does not answer. The library has probes of its own for that (virConnectSetKeepAlive), but they
// end only one of the calls: of several, the others wait for ever, and the library (9.0) crashes when the server goes on. A socket
// that ends, ends them all.
func (l *library) hangUp() { l.loop.hangUp(l.watches) }

func (l *library) lost() <-chan struct{} { return l.ended }

func (l *library) alive() bool {
	alive, err := l.c.IsAlive()
	return err == nil && alive
}

// begin checks that a call can be made.
func (l *library) begin(ctx context.Context) error {
	if ctx.Err() != nil {
		return &lost{unsent: true, err: context.Cause(ctx)}
	}
	if !l.alive() {
		return &lost{unsent: true, err: errors.New("the connection to libvirt is lost")}
	}
	return nil
}

// result turns an error of a call into one of the interface. The errors of the library's own transport have a domain of their own, which
// those of the server never have.
func (l *library) result(err error) error {
	if err == nil || errors.As(err, new(*answer)) { // of a call within a call
		return err
	}
	var v virt.Error
	if !errors.As(err, &v) || v.Domain == virt.FROM_RPC || !l.alive() {
		return &lost{err: err}
	}
	class, ok := classes[v.Code]
	if !ok {
		class = providers.Unknown
	}
	return &answer{class: class, code: codeOf(v.Code), err: messageOf(v)}
}

func codeOf(n virt.ErrorNumber) string { return strconv.Itoa(int(n)) }

// messageOf returns an error of libvirt without the numbers around it.
func messageOf(err error) error {
	var v virt.Error
	if errors.As(err, &v) {
		return errors.New(v.Message)
	}
	return err
}

// A handle is a network, a pool or a domain.
type handle interface {
	Ref() error
	Free() error
	GetName() (string, error)
	IsActive() (bool, error)
	IsPersistent() (bool, error)
	GetAutostart() (bool, error)
	SetAutostart(on bool) error
	Destroy() error
	Undefine() error
}

// lookup finds an object. Who gets it frees it.
func (l *library) lookup(o object, name string) (h handle, err error) {
	if h, ok := l.held[called{o, name}]; ok {
		return h, h.Ref()
	}
	switch o {
	case poolObject:
		h, err = handleOf(l.c.LookupStoragePoolByName(name))
	case domainObject:
		h, err = handleOf(l.c.LookupDomainByName(name))
	default:
		h, err = handleOf(l.network(name))
	}
	if err != nil {
		return nil, err
	}
	l.hold(o, name, h)
	return h, nil
}

// network finds a network. libvirt finds one by its UUID at once, and by its name only while none is being started or stopped.
func (l *library) network(name string) (*virt.Network, error) {
	if uuid, ok := l.uuids.Load(name); ok {
		if n, err := l.c.LookupNetworkByUUIDString(uuid.(string)); err == nil {
			if is, err := n.GetName(); err == nil && is == name {
				return n, nil
			}
			free(n)
		}
	}
	n, err := l.c.LookupNetworkByName(name)
	if err == nil {
		l.saw(name, n)
	}
	return n, err
}

// saw notes the UUID of a network, which the library knows without a call.
func (l *library) saw(name string, n *virt.Network) {
	if uuid, err := n.GetUUIDString(); err == nil {
		l.uuids.Store(name, uuid)
	}
}

// handleOf keeps a nil pointer from becoming a handle.
func handleOf[H handle](h H, err error) (handle, error) {
	if err != nil {
		return nil, err
	}
	return h, nil
}

// with makes calls about one object.
func (l *library) with(ctx context.Context, o object, name string, call func(h handle) error) error {
	if err := l.begin(ctx); err != nil {
		return err
	}
	h, err := l.lookup(o, name)
	if err != nil {
		err = l.result(err)
		if cut := (*lost)(nil); errors.As(err, &cut) {
			cut.unsent = true // the call itself
		}
		return err
	}
	defer free(h)
	if err = call(h); isAbsent(err) {
		l.forget(o, name) // another one may have the name by now
	}
	return l.result(err)
}

// free releases what the library holds of an object.
func free(h interface{ Free() error }) { _ = h.Free() }

func (l *library) read(ctx context.Context, o object, names []string) ([]definition, error) {
	if err := l.begin(ctx); err != nil {
		return nil, err
	}
	handles, seen, err := l.handles(o, names)
	defer func() {
		for _, h := range handles {
			free(h)
		}
	}()
	if err != nil {
		return nil, l.result(err)
	}
	var found []definition
	for _, h := range handles {
		if err := l.begin(ctx); err != nil {
			return nil, err
		}
		switch d, err := l.definition(h, seen); {
		case isAbsent(err): // it was deleted meanwhile
			if name, err := h.GetName(); err == nil {
				l.forget(o, name)
			}
		case err != nil:
			return nil, l.result(err)
		default:
			found = append(found, d)
		}
	}
	return found, nil
}

// isAbsent reports whether an error says that an object does not exist.
func isAbsent(err error) bool {
	return errors.Is(err, virt.ERR_NO_NETWORK) || errors.Is(err, virt.ERR_NO_STORAGE_POOL) ||
		errors.Is(err, virt.ERR_NO_STORAGE_VOL) || errors.Is(err, virt.ERR_NO_DOMAIN)
}

// A sieve is what libvirt can list objects by.
type sieve int

// The sieves; the last three are those of domains.
const (
	isAny sieve = iota
	isActive
	isPersistent
	isAutostarted
	isRunning
	isPaused
	isOff
)

// list returns the objects that are held back by a sieve.
func (l *library) list(o object, by sieve) (found []handle, err error) {
	switch o {
	case poolObject:
		flags := []virt.ConnectListAllStoragePoolsFlags{
			0, virt.CONNECT_LIST_STORAGE_POOLS_ACTIVE, virt.CONNECT_LIST_STORAGE_POOLS_PERSISTENT, virt.CONNECT_LIST_STORAGE_POOLS_AUTOSTART,
		}
		pools, err := l.c.ListAllStoragePools(flags[by])
		for i := range pools {
			found = append(found, &pools[i])
		}
		return found, err
	case domainObject:
		flags := []virt.ConnectListAllDomainsFlags{
			0, virt.CONNECT_LIST_DOMAINS_ACTIVE, virt.CONNECT_LIST_DOMAINS_PERSISTENT, virt.CONNECT_LIST_DOMAINS_AUTOSTART,
			virt.CONNECT_LIST_DOMAINS_RUNNING, virt.CONNECT_LIST_DOMAINS_PAUSED, virt.CONNECT_LIST_DOMAINS_SHUTOFF,
		}
		domains, err := l.c.ListAllDomains(flags[by])
		for i := range domains {
			found = append(found, &domains[i])
		}
		return found, err
	}
	flags := []virt.ConnectListAllNetworksFlags{
		0, virt.CONNECT_LIST_NETWORKS_ACTIVE, virt.CONNECT_LIST_NETWORKS_PERSISTENT, virt.CONNECT_LIST_NETWORKS_AUTOSTART,
	}
	networks, err := l.c.ListAllNetworks(flags[by])
	for i := range networks {
		found = append(found, &networks[i])
		if name, err := networks[i].GetName(); err == nil { // the library knows it without a call
			l.saw(name, &networks[i])
		}
	}
	return found, err
}

// A view has the names of the objects that a sieve has held back. Of a nil view, libvirt is asked about each object.
type view map[sieve]map[string]bool

// asleep returns the view of a domain that does not run.
func asleep(name string) view { return view{isActive: {}, isOff: {name: true}} }

// of returns the view in which to look for an object: none for one that is gone or new since the lists were made, as each of them is of
// another moment. All others are stored or run.
func (v view) of(name string) view {
	if v[isPersistent][name] || v[isActive][name] {
		return v
	}
	return nil
}

// look lists objects by some sieves: a few calls, where asking about each object would take as many for each.
func (l *library) look(o object, sieves ...sieve) (view, error) {
	seen := view{}
	for _, by := range sieves {
		handles, err := l.list(o, by)
		seen[by] = make(map[string]bool, len(handles))
		for _, h := range handles {
			if name, err := h.GetName(); err == nil { // the library knows it without a call
				seen[by][name] = true
			}
			free(h)
		}
		if err != nil {
			return nil, err
		}
	}
	return seen, nil
}

// is reports whether an object is among those that a sieve holds back, which is asked where there is no list.
func (v view) is(by sieve, name string, ask func() (bool, error)) (bool, error) {
	if v[by] == nil {
		return ask()
	}
	return v[by][name], nil
}

// among returns what tells whether a name is one of some; all are when names is nil.
func among(names []string) func(name string) bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return func(name string) bool { return names == nil || set[name] }
}

// few is how many objects are asked for one by one; it takes up to seven calls for each. Of more, lists are made, which takes as many for all.
const few = 10

// handles finds objects by name; all when names is nil. With those of lists comes what there is to see of them at once.
func (l *library) handles(o object, names []string) (found []handle, seen func(name string) view, err error) {
	if names == nil || len(names) > few {
		if found, err = l.list(o, isAny); err != nil {
			return found, nil, err
		}
		wanted := among(names)
		found = slices.DeleteFunc(found, func(h handle) bool {
			name, err := h.GetName() // the library knows it without a call
			other := err == nil && !wanted(name)
			if other {
				free(h)
			}
			return other
		})
		sieves := []sieve{isActive, isPersistent, isAutostarted}
		if o == domainObject {
			sieves = append(sieves, isRunning, isPaused, isOff)
		}
		all, err := l.look(o, sieves...)
		return found, all.of, err
	}
	views := map[string]view{}
	for _, name := range names {
		_, held := l.held[called{o, name}]
		h, err := l.lookup(o, name)
		switch {
		case isAbsent(err):
			continue
		case err != nil:
			return found, nil, err
		}
		found = append(found, h)
		if d, ok := h.(*virt.Domain); ok && !held {
			if _, err := d.GetID(); err != nil { // as of the lookup, without another call: only one that runs has an id
				views[name] = asleep(name)
			}
		}
	}
	return found, func(name string) view { return views[name] }, nil
}

// definition reads an object.
func (l *library) definition(h handle, views func(name string) view) (d definition, err error) {
	read := func(inactive bool) (string, error) {
		stored := inactive && !l.memory
		switch h := h.(type) {
		case *virt.StoragePool:
			if stored {
				return h.GetXMLDesc(virt.STORAGE_XML_INACTIVE)
			}
			return h.GetXMLDesc(0)
		case *virt.Network:
			if stored {
				return h.GetXMLDesc(virt.NETWORK_XML_INACTIVE)
			}
			return h.GetXMLDesc(0)
		case *virt.Domain:
			return domainXML(h, inactive)
		}
		return "", fmt.Errorf("there is no XML of a %T", h)
	}
	if d.name, err = h.GetName(); err != nil {
		return d, err
	}
	seen := views(d.name)
	stays, err := seen.is(isPersistent, d.name, h.IsPersistent)
	if err != nil {
		return d, err
	}
	d.transient = !stays
	runs, err := seen.is(isActive, d.name, h.IsActive)
	if err != nil {
		return d, err
	}
	if runs {
		if d.running, err = read(false); err != nil {
			return d, err
		}
	}
	if d.stored = d.running; stays {
		if d.stored, err = read(true); err != nil {
			return d, err
		}
		d.autostart, err = seen.is(isAutostarted, d.name, h.GetAutostart)
	}
	if domain, ok := h.(*virt.Domain); ok && err == nil {
		d.state, err = stateOf(domain, d, seen)
	}
	return d, err
}

// domainXML returns the definition of a domain with its passwords: without them, they would be lost when it is defined again.
func domainXML(d *virt.Domain, stored bool) (string, error) {
	if stored {
		return d.GetXMLDesc(virt.DOMAIN_XML_SECURE | virt.DOMAIN_XML_INACTIVE)
	}
	return d.GetXMLDesc(virt.DOMAIN_XML_SECURE)
}

// stateOf returns the state of a domain whose definition was read. It asks when it has seen none that goes with that.
func stateOf(domain *virt.Domain, d definition, seen view) (string, error) {
	switch runs := d.running != ""; {
	case runs && seen[isRunning][d.name]:
		return "running", nil
	case runs && seen[isPaused][d.name]:
		return "paused", nil
	case !runs && seen[isOff][d.name]:
		return "stopped", nil
	}
	state, _, err := domain.GetState()
	switch state {
	case virt.DOMAIN_SHUTOFF:
		return "stopped", err
	case virt.DOMAIN_CRASHED:
		return "crashed", err
	case virt.DOMAIN_PAUSED:
		return "paused", err
	}
	return "running", err
}

// define defines an object. ERR_OPERATION_FAILED means that another one has its name, its UUID or its directory; of a domain, anything.
func (l *library) define(ctx context.Context, o object, xml string) error {
	if err := l.begin(ctx); err != nil {
		return err
	}
	var h handle
	var err error
	switch o {
	case poolObject:
		h, err = handleOf(l.c.StoragePoolDefineXML(xml, 0))
	case domainObject:
		h, err = handleOf(l.c.DomainDefineXML(xml))
	default:
		var n *virt.Network
		if n, err = l.c.NetworkDefineXML(xml); err == nil {
			if name, err := n.GetName(); err == nil {
				l.saw(name, n)
			}
		}
		h, err = handleOf(n, err)
	}
	if o != domainObject && errors.Is(err, virt.ERR_OPERATION_FAILED) {
		return &answer{class: providers.Exists, code: codeOf(virt.ERR_OPERATION_FAILED), err: messageOf(err)}
	}
	if err != nil {
		return l.result(err)
	}
	defer free(h)
	if name, err := h.GetName(); err == nil { // the library knows it without a call
		l.hold(o, name, h)
	}
	return nil
}

func (l *library) undefine(ctx context.Context, o object, name string) error {
	defer l.forget(o, name)
	return l.with(ctx, o, name, func(h handle) error {
		d, ok := h.(*virt.Domain)
		if !ok {
			return h.Undefine()
		}
		xml, err := domainXML(d, true)
		switch {
		case err != nil:
			return err
		case strings.Contains(xml, "<nvram"): // libvirt refuses to undefine the domain unless it is told what to do with that
			return d.UndefineFlags(virt.DOMAIN_UNDEFINE_NVRAM)
		}
		return d.Undefine()
	})
}

func (l *library) start(ctx context.Context, o object, name string) error {
	return l.with(ctx, o, name, func(h handle) error {
		switch h := h.(type) {
		case *virt.StoragePool:
			return h.Create(virt.STORAGE_POOL_CREATE_NORMAL)
		case *virt.Network:
			return h.Create()
		case *virt.Domain:
			return h.Create()
		}
		return fmt.Errorf("a %T cannot be started", h)
	})
}

func (l *library) build(ctx context.Context, pool string) error {
	if l.memory {
		return nil
	}
	return l.withPool(ctx, pool, func(p *virt.StoragePool) error { return p.Build(virt.STORAGE_POOL_BUILD_NEW) })
}

func (l *library) stop(ctx context.Context, o object, name string) error {
	return l.with(ctx, o, name, handle.Destroy)
}

func (l *library) autostart(ctx context.Context, o object, name string, on bool) error {
	return l.with(ctx, o, name, func(h handle) error { return h.SetAutostart(on) })
}

// withPool makes calls about one pool.
func (l *library) withPool(ctx context.Context, name string, call func(p *virt.StoragePool) error) error {
	return l.with(ctx, poolObject, name, func(h handle) error { return call(h.(*virt.StoragePool)) })
}

func (l *library) updateHost(ctx context.Context, network string, how hostUpdate, xml string, stored, running bool) error {
	command := map[hostUpdate]virt.NetworkUpdateCommand{
		addHost: virt.NETWORK_UPDATE_COMMAND_ADD_LAST, modifyHost: virt.NETWORK_UPDATE_COMMAND_MODIFY, deleteHost: virt.NETWORK_UPDATE_COMMAND_DELETE,
	}[how]
	var flags virt.NetworkUpdateFlags
	if stored {
		flags |= virt.NETWORK_UPDATE_AFFECT_CONFIG
	}
	if running {
		flags |= virt.NETWORK_UPDATE_AFFECT_LIVE
	}
	return l.with(ctx, networkObject, network, func(h handle) error {
		return h.(*virt.Network).Update(command, virt.NETWORK_SECTION_IP_DHCP_HOST, -1, xml, flags)
	})
}

// notify has events told of all objects. The library takes each callback once for a connection.
func (l *library) notify(event func(o object, name string, ends bool)) error {
	tell := func(o object, h interface{ GetName() (string, error) }, ends bool) {
		if name, err := h.GetName(); err == nil { // the library knows it without a call
			event(o, name, ends)
		}
	}
	pools, err := l.c.StoragePoolEventLifecycleRegister(nil, func(_ *virt.Connect, p *virt.StoragePool, e *virt.StoragePoolEventLifecycle) {
		if name, err := p.GetName(); err == nil {
			l.pools.Delete(name) // it may be of another type by now
		}
		tell(poolObject, p, e.Event == virt.STORAGE_POOL_EVENT_STOPPED || e.Event == virt.STORAGE_POOL_EVENT_UNDEFINED || e.Event == virt.STORAGE_POOL_EVENT_DELETED)
	})
	if err != nil {
		return err
	}
	l.told = append(l.told, func() error { return l.c.StoragePoolEventDeregister(pools) })
	networks, err := l.c.NetworkEventLifecycleRegister(nil, func(_ *virt.Connect, n *virt.Network, e *virt.NetworkEventLifecycle) {
		tell(networkObject, n, e.Event == virt.NETWORK_EVENT_STOPPED || e.Event == virt.NETWORK_EVENT_UNDEFINED)
	})
	if err != nil {
		return err
	}
	l.told = append(l.told, func() error { return l.c.NetworkEventDeregister(networks) })
	domains, err := l.c.DomainEventLifecycleRegister(nil, func(_ *virt.Connect, d *virt.Domain, e *virt.DomainEventLifecycle) {
		tell(domainObject, d, e.Event == virt.DOMAIN_EVENT_STOPPED || e.Event == virt.DOMAIN_EVENT_UNDEFINED)
	})
	if err != nil {
		return err
	}
	l.told = append(l.told, func() error { return l.c.DomainEventDeregister(domains) })
	return nil
}

func (l *library) version(ctx context.Context) (string, error) {
	if err := l.begin(ctx); err != nil {
		return "", err
	}
	v, err := l.c.GetLibVersion()
	return fmt.Sprintf("libvirt %d.%d.%d", v/1e6, v/1e3%1e3, v%1e3), l.result(err)
}
