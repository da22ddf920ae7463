package command

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"

	"google.golang.org/grpc"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/internal/files"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/providers/wire"
	"converge.dev/converge/schema"
)

// The uplink of a rehearsed node: the link that its connections go through.
const (
	uplinkKind = "host.link"
	uplinkName = "uplink"
)

// nodeSock is the socket at which the world of a node is served to its agent and its guard, in the folder of the node.
const nodeSock = "node.sock"

// A devNode is a rehearsed machine: a world, which stays when the processes of the node end, as the kernel of a machine does, and the
// cable that its connections go through.
type devNode struct {
	world  *fake.World
	server *grpc.Server
	served chan error // has the end of server
	cable  *cable
}

// startNode starts a rehearsed machine. A new one has nothing but its uplink, with an address.
func (a *app) startNode(name, dir, address string, kinds schema.Kinds) (*devNode, error) {
	world, err := fake.Open(filepath.Join(dir, worldName), kinds)
	if errors.Is(err, files.ErrInUse) {
		return nil, &view.Problem{What: "another process has the world of node " + name + " open", Where: filepath.Join(dir, worldName), Fix: "Stop the other converge dev site, or choose another directory.", Err: err}
	}
	if err != nil {
		return nil, err
	}
	n := &devNode{world: world, served: make(chan error, 1), cable: &cable{world, name, address}}
	cuts := fake.NodeTraits()
	cuts.CutsOff, cuts.Mark = true, false // as real links: a change may cut the node off, and there is no place for a mark
	world.Traits = map[string]providers.Traits{uplinkKind: cuts}
	err = world.Serve()
	if err == nil && len(world.Scopes()) == 0 {
		err = world.Put(name, uplinkKind, providers.Thing{ID: uplinkName, Spec: schema.Object{"type": "physical", "state": "up", "addresses": []any{address}}})
	}
	n.server = grpc.NewServer()
	if err == nil {
		err = wire.Serve(n.server, a.log, providersOf(world, name, kinds)...)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the world of node %s: %w", name, err), world.Close())
	}
	l, err := listenLocal(filepath.Join(dir, nodeSock))
	if err != nil {
		return nil, errors.Join(err, world.Close())
	}
	go func() { n.served <- n.server.Serve(l) }()
	return n, nil
}

// providersOf returns the providers of everything that a node can have.
func providersOf(world *fake.World, node string, kinds schema.Kinds) (all []*providers.Provider) {
	var names []string
	for _, kind := range kinds.Names() {
		if name := (schema.Ref{Kind: kind}).Provider(); kinds[kind].Node && !slices.Contains(names, name) {
			names = append(names, name)
			all = append(all, world.Provider(name, node))
		}
	}
	return all
}

// stop ends the machine and writes its world to its file.
func (n *devNode) stop() error {
	n.server.Stop()
	return errors.Join(<-n.served, n.world.Close())
}

// A cable carries the connections of a rehearsed node to its site, as long as the uplink in the world of the node is there, is up and has
// its address. Otherwise no byte passes, in either direction: a connection ends when the next one is sent, and a new one is refused. So
// an answer to the change that takes the uplink away does not arrive, as with a network card.
//
// It does not model what TCP makes of a short interruption, which here ends every connection, nor that without a cable one end learns
// only after a time that the other does not answer. Other properties of the uplink, such as its MTU, make no difference, nor do other
// links, routes and bridges.
type cable struct {
	world   *fake.World
	node    string
	address string // of the uplink, with the length of its prefix
}

// plugged reports whether bytes pass.
func (c *cable) plugged() bool {
	spec, ok := c.world.Spec(c.node, uplinkKind, uplinkName)
	addresses, _ := spec["addresses"].([]any)
	return ok && spec["state"] != "down" && slices.Contains(addresses, any(c.address))
}

// lay carries what connects to l on to an address, until ctx is done. It closes l.
func (c *cable) lay(ctx context.Context, l net.Listener, to string) {
	var carried sync.WaitGroup
	defer carried.Wait()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		near, err := l.Accept()
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			carried.Go(func() { c.carry(ctx, near, to) })
		}
	}
}

// carry carries one connection.
func (c *cable) carry(ctx context.Context, near net.Conn, to string) {
	defer near.Close()
	var far net.Conn
	err := errors.New("the cable is not plugged in")
	if c.plugged() {
		far, err = new(net.Dialer).DialContext(ctx, "tcp", to)
	}
	if err != nil {
		if tcp, ok := near.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a reset, as of a port at which nobody listens
		}
		return
	}
	defer far.Close()
	defer context.AfterFunc(ctx, func() { _, _ = near.Close(), far.Close() })()
	var back sync.WaitGroup
	defer back.Wait()
	back.Go(func() { c.pass(near, far) })
	c.pass(far, near)
}

// pass passes on what arrives at one end, and closes both when nothing more can pass.
func (c *cable) pass(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 && c.plugged() {
			_, werr := to.Write(buffer[:n])
			err = errors.Join(err, werr)
		} else if n > 0 {
			return
		}
		if err != nil {
			return
		}
	}
}
