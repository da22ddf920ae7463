package libvirt

import (
	"bytes"
	"context"
	"io"

	"converge.dev/converge/providers"
)

// An object is a sort of thing that libvirt defines, stores, starts and stops by name.
type object int

// The sorts of objects.
const (
	networkObject object = iota
	poolObject
	domainObject
)

// A dialer connects. Event is called with the name of each object that is defined or started, and with ends of each that is undefined or
// stopped, until the connection is closed.
type dialer func(uri string, event func(o object, name string, ends bool)) (conn, error)

// A conn is one connection to libvirt, in the terms of its API: objects by their names, definitions as XML. Its methods may be called
// at the same time. When libvirt answers with an error, theirs is an *answer, otherwise a *lost. A call whose context has ended is not
// made; one that has begun goes on until libvirt answers or the connection is lost.
type conn interface {
	// read returns the objects with the given names, all when names is nil. Those that do not exist are left out.
	read(ctx context.Context, o object, names []string) ([]definition, error)
	define(ctx context.Context, o object, xml string) error
	undefine(ctx context.Context, o object, name string) error
	start(ctx context.Context, o object, name string) error
	stop(ctx context.Context, o object, name string) error
	autostart(ctx context.Context, o object, name string, on bool) error

	// directories returns the names of the pools that are directories, of those with the given names, of all when names is nil.
	directories(ctx context.Context, names []string) ([]string, error)
	// build makes the directory of a stopped pool when that does not exist.
	build(ctx context.Context, pool string) error
	// volumes returns the definitions of the volumes of a pool with the given names, of all when names is nil. Those that do not exist
	// are left out; when one cannot be read because its file is gone, it fails.
	volumes(ctx context.Context, pool string, names []string) ([]string, error)
	// volumeAt returns the pool and the name of the volume with a path; empty when there is none.
	volumeAt(ctx context.Context, path string) (pool, name string, err error)
	createVolume(ctx context.Context, pool, xml string) error
	// copyVolume creates a volume with the contents of another, in the format of its definition. A raw copy of a raw volume has the capacity
	// of its definition, when that is larger; any other has the capacity of the other volume.
	copyVolume(ctx context.Context, pool, xml, fromPool, from string) error
	resizeVolume(ctx context.Context, pool, name string, bytes uint64) error
	deleteVolume(ctx context.Context, pool, name string) error
	// upload writes bytes that it reads into a volume, from an offset on. When libvirt answers with an error, or they cannot be read, a part
	// may be written.
	upload(ctx context.Context, pool, name string, offset, bytes uint64, r io.Reader) error
	// download writes the first bytes of a volume, fewer when it is shorter.
	download(ctx context.Context, pool, name string, bytes uint64, w io.Writer) error

	// power changes how a running domain runs; startPaused starts it.
	power(ctx context.Context, domain string, how powerChange) error
	// change attaches, detaches or updates a device of a running domain, and not of the stored one.
	change(ctx context.Context, domain string, how deviceChange, xml string) error
	// annotate replaces one of the texts of a running domain, and not of the stored one.
	annotate(ctx context.Context, domain string, which annotation, text string) error
	// keeps returns what libvirt keeps for a domain besides its definition, and would lose with it.
	keeps(ctx context.Context, domain string) ([]string, error)
	// domains returns the definitions of all domains; of those that run, as they run.
	domains(ctx context.Context) ([]definition, error)
	// resizeDisk resizes a disk of a running domain, and its image.
	resizeDisk(ctx context.Context, domain, device string, bytes uint64) error

	// updateHost changes the DHCP reservations of a network: as it is stored, as it runs, or both.
	updateHost(ctx context.Context, network string, how hostUpdate, xml string, stored, running bool) error

	version(ctx context.Context) (string, error)
	// session returns the connection for calls that are made one after the other, until end.
	session() (c conn, end func())
	// hangUp ends the connection: the calls that wait end as lost.
	hangUp()
	alive() bool
	lost() <-chan struct{} // closed once the connection is lost, where libvirt tells
	close()
}

// A definition is an object as libvirt has it.
type definition struct {
	name      string
	stored    string // XML; of an object that is not stored, because it ends with its run: as it runs
	running   string // XML; empty while it is stopped
	transient bool   // it is not stored
	autostart bool
	state     string // of a domain: running, paused, stopped or crashed
}

// A called is an object by its name.
type called struct {
	object
	name string
}

// A hostUpdate is a way to change DHCP reservations.
type hostUpdate int

// The ways.
const (
	addHost hostUpdate = iota
	modifyHost
	deleteHost
)

// A powerChange is a way to change how a domain runs.
type powerChange int

// The ways.
const (
	startPaused powerChange = iota
	shutDown                // the guest is asked
	suspend
	resume
)

// A deviceChange is a way to change the devices of a running domain.
type deviceChange int

// The ways.
const (
	attachDevice deviceChange = iota
	updateDevice
	detachDevice
)

// An annotation is a text that a domain carries.
type annotation int

// The texts.
const (
	titleText annotation = iota
	descriptionText
	noteText // the element of the note in its metadata
)

// An answer is an error with which libvirt has answered a call.
type answer struct {
	class providers.Class // what it says about the call; Unknown where libvirt has no better word
	code  string
	err   error
}

func (a *answer) Error() string { return a.err.Error() }
func (a *answer) Unwrap() error { return a.err }

// A lost is the error of a call that libvirt has not answered.
type lost struct {
	unsent bool // the call was not made
	err    error
}

func (l *lost) Error() string { return l.err.Error() }
func (l *lost) Unwrap() error { return l.err }

// beginning returns the first bytes of a volume, fewer when it is shorter.
func beginning(ctx context.Context, c conn, pool, name string, size uint64) ([]byte, error) {
	var b bytes.Buffer
	err := c.download(ctx, pool, name, size, &b)
	return b.Bytes(), err
}
