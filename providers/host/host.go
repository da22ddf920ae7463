// Package host is the provider of what belongs to a node's kernel as a whole: its huge pages, its network links, and
// facts about the machine.
//
// # Links
//
// Links, their addresses and routes are set over netlink in the network namespace of this process, and as the kernel has no
// transactions, one request after the other, one change at a time. After the requests of a change everything is read again; what
// the kernel has not done, or has undone with a later request, is asked for once more, then the change is put back and refused.
// New addresses and routes are there before old ones go. The kernel has a place for a text at a link, its alias, but that belongs
// to the people of the node: links carry no mark, and their names identify them.
package host

import (
	"context"
	"errors"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/sysfs"
)

// Config is the root of sysfs; see [sysfs.Config].
type Config struct{ sysfs.Config }

// Open serves the kinds of a node. Links are served unless the root is a copy of a sysfs, which has none to ask.
func (c Config) Open(_ context.Context, at providers.Opening) (*providers.Provider, error) {
	k, closing, err := c.Kernel(at)
	if err != nil {
		return nil, err
	}
	o := Options{Node: at.Scope, Kernel: k, Close: closing}
	if k.VFs != nil {
		if o.Network, err = OpenNetwork(NetworkOptions{}); err != nil {
			return nil, errors.Join(err, closing())
		}
	}
	return Serve(o), nil
}

// Options are what a node consists of.
type Options struct {
	Node    string       // required
	Kernel  sysfs.Kernel // required
	Network *Network     // optional: without one, links are not served; the provider closes it
	Close   func() error // optional: called when the provider is closed
}

// New serves the kinds of a node with a kernel, but no links; closing may be nil.
func New(node string, k sysfs.Kernel, closing func() error) *providers.Provider {
	return Serve(Options{Node: node, Kernel: k, Close: closing})
}

// Serve serves the kinds of a node.
func Serve(o Options) *providers.Provider {
	files := sysfs.Provider("host", o.Node, o.Kernel, o.Close,
		sysfs.Kind{Name: "host.hugepages", Traits: sysfs.Traits(), Noun: hugepages{}},
		sysfs.Kind{Name: "host.facts", Traits: sysfs.FactTraits(), Noun: sysfs.Facts(listFacts)},
	)
	if o.Network == nil {
		return files
	}
	l := &links{network: o.Network, kernel: o.Kernel, permit: files.Permit}
	closing := func() error {
		o.Network.close()
		return files.Close()
	}
	p := providers.New("host", o.Node, closing, append(files.Kinds, l.served())...)
	p.Permit = files.Permit // which the kinds of sysfs check, too
	p.Obstacles = l.obstacles
	return p
}
