package libvirt

import (
	"context"
	"encoding/xml"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"libvirt.org/go/libvirtxml"

	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// A fake is a libvirt in memory, for what neither the test driver nor a real libvirtd does when it is asked to: fail halfway.
type fake struct {
	mu      sync.Mutex
	objects map[object]map[string]definition
	files   map[string]map[string]string // definitions of volumes, by pool and name
	data    map[string][]byte            // what is in volumes, by POOL/NAME
	guests  []definition
	kept    []string // what is kept for each domain
	ended   chan struct{}
	gone    atomic.Bool   // the connection is lost
	deaf    atomic.Bool   // probes are not answered
	hung    chan struct{} // closed when the connection is ended from this side
	closed  atomic.Bool
	images  string // the directory of images that may be uploaded

	// fail gets each call that changes something, such as "stop net", and returns the error that it fails with.
	fail func(call string) error
	// effect makes a call that fails have its effect all the same.
	effect bool
	// cut is how much of each upload is written; negative: all.
	cut int
	// observing is called by each look at objects.
	observing func(ctx context.Context)
	unread    func() error // what a download ends with before it begins; nil: nothing
}

func newFake() *fake {
	return &fake{
		objects: map[object]map[string]definition{networkObject: {}, poolObject: {}, domainObject: {}}, files: map[string]map[string]string{},
		data: map[string][]byte{}, ended: make(chan struct{}), hung: make(chan struct{}), cut: -1, fail: func(string) error { return nil }, observing: func(context.Context) {},
	}
}

// refusal is an error of libvirt that says nothing about its reason.
func refusal(says string) error {
	return &answer{class: providers.Unknown, code: "1", err: errorText(says)}
}

type errorText string

func (e errorText) Error() string { return string(e) }

func (f *fake) act(call string, o object, name string, effect func(d *definition)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.fail(call + " " + name)
	if err != nil && !f.effect {
		return err
	}
	d := f.objects[o][name]
	d.name = name
	effect(&d)
	if f.objects[o][name] = d; d.stored == "" && d.running == "" {
		delete(f.objects[o], name)
	}
	return err
}

func (f *fake) read(ctx context.Context, o object, names []string) ([]definition, error) {
	if f.observing(ctx); f.gone.Load() {
		return nil, &lost{err: errorText("end of file")}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var found []definition
	for _, name := range slices.Sorted(maps.Keys(f.objects[o])) {
		if names == nil || slices.Contains(names, name) {
			found = append(found, f.objects[o][name])
		}
	}
	return found, nil
}

func (f *fake) define(_ context.Context, o object, text string) error {
	var named struct {
		Name string `xml:"name"`
	}
	if err := xml.Unmarshal([]byte(text), &named); err != nil {
		return err
	}
	return f.act("define", o, named.Name, func(d *definition) { d.stored = text })
}

func (f *fake) undefine(_ context.Context, o object, name string) error {
	return f.act("undefine", o, name, func(d *definition) { d.stored = "" })
}

func (f *fake) start(_ context.Context, o object, name string) error {
	return f.act("start", o, name, func(d *definition) { d.running, d.state = d.stored, runs(o) })
}

func (f *fake) build(_ context.Context, pool string) error { return f.fail("build " + pool) }

func (f *fake) stop(_ context.Context, o object, name string) error {
	return f.act("stop", o, name, func(d *definition) { d.running, d.state = "", "" })
}

// runs is the state of a running object.
func runs(o object) string {
	if o == domainObject {
		return "running"
	}
	return ""
}

func (f *fake) autostart(_ context.Context, o object, name string, on bool) error {
	return f.act("autostart", o, name, func(d *definition) { d.autostart = on })
}

func (f *fake) directories(ctx context.Context, named []string) ([]string, error) {
	ds, err := f.read(ctx, poolObject, named)
	var names []string
	for _, d := range ds {
		if strings.Contains(d.stored, "<pool type='dir'>") || strings.Contains(d.stored, `<pool type="dir">`) {
			names = append(names, d.name)
		}
	}
	return names, err
}

func (f *fake) volumes(_ context.Context, pool string, names []string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d, ok := f.objects[poolObject][pool]; ok && d.running == "" {
		return nil, &answer{class: providers.Invalid, err: errorText("storage pool '" + pool + "' is not active")}
	}
	var found []string
	for _, name := range slices.Sorted(maps.Keys(f.files[pool])) {
		if names == nil || slices.Contains(names, name) {
			found = append(found, f.files[pool][name])
		}
	}
	return found, nil
}

func (f *fake) volumeAt(_ context.Context, path string) (pool, name string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for pool, files := range f.files {
		for name, text := range files {
			own, _, _ := strings.Cut(text, "<backingStore>") // which has a path, too
			if strings.Contains(own, "<path>"+strings.ReplaceAll(path, "//", "/")+"</path>") {
				return pool, name, nil
			}
		}
	}
	return "", "", nil
}

func (f *fake) createVolume(_ context.Context, pool, text string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var v libvirtxml.StorageVolume
	if err := v.Unmarshal(text); err != nil {
		return err
	}
	at := pool + "/" + v.Name
	err := f.fail("create " + at)
	switch {
	case err != nil && !f.effect:
		return err
	case f.objects[poolObject][pool].running == "":
		return &answer{class: providers.Absent, err: errorText("no storage pool is running with that name")}
	case f.files[pool][v.Name] != "":
		return &answer{class: providers.Exists, err: errorText("storage volume exists already")}
	}
	v.Target.Path = "/srv/" + at
	if f.files[pool] == nil {
		f.files[pool] = map[string]string{}
	}
	f.files[pool][v.Name], _ = v.Marshal()
	f.data[at] = make([]byte, v.Capacity.Value)
	return err
}

// copyVolume does what libvirt does: only a raw copy of a raw volume gets the capacity of its definition.
func (f *fake) copyVolume(ctx context.Context, pool, text, fromPool, from string) error {
	f.mu.Lock()
	source := f.files[fromPool][from]
	data := slices.Clone(f.data[fromPool+"/"+from])
	f.mu.Unlock()
	var v, of libvirtxml.StorageVolume
	if err := errors.Join(v.Unmarshal(text), of.Unmarshal(source)); err != nil {
		return err
	}
	if source == "" {
		return &answer{class: providers.Absent, err: errorText("no storage volume with that name")}
	}
	if v.Capacity.Value < of.Capacity.Value || v.Target.Format.Type != "raw" || of.Target.Format.Type != "raw" {
		v.Capacity.Value = of.Capacity.Value
	}
	text, err := v.Marshal()
	if err != nil {
		return err
	}
	err = f.createVolume(ctx, pool, text)
	f.mu.Lock()
	defer f.mu.Unlock()
	if at := pool + "/" + v.Name; f.data[at] != nil {
		copy(f.data[at], data)
	}
	return err
}

// upload writes what comes before a cut, and then fails.
func (f *fake) upload(_ context.Context, pool, name string, offset, bytes uint64, r io.Reader) error {
	b, unread := io.ReadAll(io.LimitReader(r, int64(bytes)))
	f.mu.Lock()
	defer f.mu.Unlock()
	at := pool + "/" + name
	err := f.fail("upload " + at)
	if f.files[pool][name] == "" {
		return &answer{class: providers.Absent, err: errorText("no storage volume with that name")}
	}
	if err == nil || f.effect {
		if f.cut >= 0 {
			b = b[:min(len(b), f.cut)]
		}
		f.data[at] = append(f.data[at], make([]byte, max(int(offset)+len(b)-len(f.data[at]), 0))...)
		copy(f.data[at][offset:], b)
		f.notice(pool, name)
	}
	if unread != nil {
		return &lost{err: unread}
	}
	return err
}

// notice gives a qcow2 volume the capacity that its header says.
func (f *fake) notice(pool, name string) {
	var v libvirtxml.StorageVolume
	if err := v.Unmarshal(f.files[pool][name]); err != nil {
		panic(err)
	}
	if q, err := readQcow2(f.data[pool+"/"+name]); err == nil && v.Target.Format.Type == "qcow2" {
		v.Capacity.Value = uint64(q.size)
		f.files[pool][name], _ = v.Marshal()
	}
}

func (f *fake) download(_ context.Context, pool, name string, bytes uint64, w io.Writer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unread != nil {
		if err := f.unread(); err != nil {
			return err
		}
	}
	if f.files[pool][name] == "" {
		return &answer{class: providers.Absent, err: errorText("no storage volume with that name")}
	}
	data := f.data[pool+"/"+name]
	_, err := w.Write(data[:min(uint64(len(data)), bytes)])
	return err
}

func (f *fake) resizeVolume(_ context.Context, pool, name string, bytes uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.fail("resize " + pool + "/" + name)
	if err != nil && !f.effect {
		return err
	}
	var v libvirtxml.StorageVolume
	if err := v.Unmarshal(f.files[pool][name]); err != nil {
		return err
	}
	v.Capacity.Value = bytes
	f.files[pool][name], _ = v.Marshal()
	at := pool + "/" + name
	f.data[at] = append(f.data[at], make([]byte, max(int(bytes)-len(f.data[at]), 0))...)
	return err
}

func (f *fake) deleteVolume(_ context.Context, pool, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.fail("delete " + pool + "/" + name)
	if err != nil && !f.effect {
		return err
	}
	delete(f.files[pool], name)
	delete(f.data, pool+"/"+name)
	return err
}

func (f *fake) power(_ context.Context, domain string, how powerChange) error {
	call := map[powerChange]string{startPaused: "start paused", shutDown: "shut down", suspend: "suspend", resume: "resume"}[how]
	return f.act(call, domainObject, domain, func(d *definition) {
		switch how {
		case startPaused:
			d.running, d.state = d.stored, "paused"
		case suspend:
			d.state = "paused"
		case resume:
			d.state = "running"
		}
	}) // a guest that is asked to shut down does nothing
}

func (f *fake) annotate(_ context.Context, domain string, which annotation, text string) error {
	call := map[annotation]string{titleText: "title", descriptionText: "description", noteText: "note"}[which]
	return f.act(call, domainObject, domain, func(d *definition) {
		n, err := parseDomain(d.running)
		if err != nil {
			panic(err)
		}
		switch which {
		case titleText:
			n.Title = text
		case descriptionText:
			n.Description = text
		case noteText:
			n.Metadata = &libvirtxml.DomainMetadata{XML: strings.Replace(text, "<domain", "<converge:domain xmlns:converge='"+noteSpace+"'", 1)}
		}
		if d.running, err = n.Marshal(); err != nil {
			panic(err)
		}
	})
}

// change attaches and detaches devices at once, as QEMU does when the guest agrees.
func (f *fake) change(_ context.Context, domain string, how deviceChange, text string) error {
	call := map[deviceChange]string{attachDevice: "attach", updateDevice: "update", detachDevice: "detach"}[how]
	var (
		disk libvirtxml.DomainDisk
		card libvirtxml.DomainInterface
		pci  libvirtxml.DomainHostdev
	)
	return f.act(call+" "+text[1:strings.IndexAny(text, " >")], domainObject, domain, func(d *definition) {
		n, err := parseDomain(d.running)
		if err != nil {
			panic(err)
		}
		switch {
		case disk.Unmarshal(text) == nil:
			n.Devices.Disks = exchanged(n.Devices.Disks, disk, how, func(o libvirtxml.DomainDisk) bool { return o.Target.Dev == disk.Target.Dev })
		case card.Unmarshal(text) == nil:
			n.Devices.Interfaces = exchanged(n.Devices.Interfaces, card, how, func(o libvirtxml.DomainInterface) bool { return o.MAC.Address == card.MAC.Address })
		case pci.Unmarshal(text) == nil:
			n.Devices.Hostdevs = exchanged(n.Devices.Hostdevs, pci, how, func(o libvirtxml.DomainHostdev) bool { return functionOf(&o) == functionOf(&pci) })
		}
		if d.running, err = n.Marshal(); err != nil {
			panic(err)
		}
	})
}

func exchanged[T any](all []T, one T, how deviceChange, same func(T) bool) []T {
	switch i := slices.IndexFunc(all, same); {
	case how == attachDevice:
		return append(all, one)
	case how == detachDevice:
		return slices.Delete(all, i, i+1)
	default:
		all[i] = one
		return all
	}
}

func (f *fake) keeps(context.Context, string) ([]string, error) { return f.kept, nil }

func (f *fake) domains(context.Context) ([]definition, error) { return f.guests, nil }

func (f *fake) resizeDisk(_ context.Context, domain, device string, _ uint64) error {
	return f.fail("resize disk " + device + " of " + domain)
}

// updateHost does what libvirt does: a new reservation must differ from all others in everything, a changed one replaces the first that
// it equals in anything, and one is deleted that has all that is given.
func (f *fake) updateHost(_ context.Context, network string, how hostUpdate, text string, stored, running bool) error {
	var h libvirtxml.NetworkDHCPHost
	if err := xml.Unmarshal([]byte(text), &h); err != nil {
		return err
	}
	anything := func(o libvirtxml.NetworkDHCPHost) bool {
		return h.MAC != "" && strings.EqualFold(o.MAC, h.MAC) || h.IP != "" && o.IP == h.IP || h.Name != "" && o.Name == h.Name
	}
	everything := func(o libvirtxml.NetworkDHCPHost) bool {
		return (h.MAC == "" || strings.EqualFold(o.MAC, h.MAC)) && (h.IP == "" || o.IP == h.IP) && (h.Name == "" || o.Name == h.Name)
	}
	edit := func(text string) (string, error) {
		var n libvirtxml.Network
		if err := n.Unmarshal(text); err != nil {
			return "", err
		}
		if n.IPs[0].DHCP == nil {
			n.IPs[0].DHCP = &libvirtxml.NetworkDHCP{}
		}
		hosts := &n.IPs[0].DHCP.Hosts
		i := slices.IndexFunc(*hosts, anything)
		switch {
		case how == addHost && i >= 0:
			return "", &answer{class: providers.Invalid, err: errorText("there is an existing dhcp host entry")}
		case how == addHost:
			*hosts = append(*hosts, h)
		case how == deleteHost:
			*hosts = slices.DeleteFunc(*hosts, everything)
		case i < 0:
			return "", &answer{class: providers.Invalid, err: errorText("couldn't locate an existing dhcp host entry")}
		default:
			(*hosts)[i] = h
		}
		return n.Marshal()
	}
	side := map[bool]string{true: "stored", false: "running"}[stored]
	var failed error
	err := f.act([]string{"add", "modify", "delete"}[how]+" "+h.MAC+" "+side, networkObject, network, func(d *definition) {
		now := *d
		if stored {
			if now.stored, failed = edit(d.stored); failed != nil {
				return
			}
		}
		if running {
			if now.running, failed = edit(d.running); failed != nil {
				return
			}
		}
		*d = now
	})
	if err == nil {
		err = failed
	}
	return err
}

func (f *fake) close() {
	if f.deaf.Load() {
		<-f.hung
	}
	f.closed.Store(true)
}

func (f *fake) session() (conn, func()) { return f, func() {} }

func (f *fake) hangUp() {
	if !f.gone.Swap(true) {
		close(f.hung)
	}
}

func (f *fake) version(context.Context) (string, error) {
	if f.deaf.Load() {
		<-f.hung
		return "", &lost{err: errorText("end of file")}
	}
	return "fake", nil
}

func (f *fake) alive() bool           { return !f.gone.Load() }
func (f *fake) lost() <-chan struct{} { return f.ended }

// put gives the fake an object that is stored, and that runs as running says.
func (f *fake) put(o object, name, stored, running string) {
	f.objects[o][name] = definition{name: name, stored: stored, running: running, autostart: true}
	if d := f.objects[o][name]; running != "" {
		d.state = runs(o)
		f.objects[o][name] = d
	}
}

// open serves the fake.
func (f *fake) open(t *testing.T) *providers.Provider {
	t.Helper()
	p, err := open(t.Context(), Options{URI: "test:///fake", Node: "n1", Site: providertest.Site, Images: f.images, Poll: 10 * time.Millisecond},
		func(string, func(object, string, bool)) (conn, error) { return f, nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// served returns one of the provider's kinds.
func served(t *testing.T, p *providers.Provider, name string) providers.Served {
	t.Helper()
	for _, k := range p.Kinds {
		if k.Name == name {
			return k
		}
	}
	t.Fatalf("there is no kind %s", name)
	return providers.Served{}
}

// updated changes fields of a thing from what they are.
func updated(t *testing.T, p *providers.Provider, name, id string, fields schema.Object) error {
	t.Helper()
	k := served(t, p, name).Kind
	things, err := k.Get(t.Context(), []string{id})
	if err != nil || len(things) != 1 {
		t.Fatalf("looking at %s %s shows %d things (%v)", name, id, len(things), err)
	}
	c := calling(name, id)
	c.Have, c.Want, c.Version = things[0].Spec, things[0].Spec.Clone(), things[0].Version
	maps.Copy(c.Want, fields)
	return k.Update(t.Context(), c)
}

func calling(kind, id string) providers.Call {
	return providers.Call{Ref: schema.Ref{Scope: "n1", Kind: kind, Name: id[strings.LastIndexByte(id, '/')+1:]}, ID: id, Epoch: 1}
}

// expect checks the class of an error, whether nothing more will come of the call, and what it says.
func expect(t *testing.T, err error, class providers.Class, over bool, says string) {
	t.Helper()
	if err == nil || providers.ClassOf(err) != class || providers.Over(err) != over || !strings.Contains(err.Error(), says) {
		t.Errorf("it ended as %s (over %t), want %s (over %t) and %q: %v", providers.ClassOf(err), providers.Over(err), class, over, says, err)
	}
}

// reserved is a network with reservations.
func reserved(hosts string) string {
	return "<network><name>net</name><bridge name='virbr7' stp='on' delay='0'/><ip address='10.0.0.1' netmask='255.255.255.0'><dhcp>" + hosts + "</dhcp></ip></network>"
}
