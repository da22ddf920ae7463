package all

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide"
	"converge.dev/converge/providers/host"
	"converge.dev/converge/providers/libvirt"
	"converge.dev/converge/providers/ovs"
	"converge.dev/converge/providers/pci"
	"converge.dev/converge/providers/sysfs"
	"converge.dev/converge/schema"
)

// Config says how providers are reached, as a part of converge.yaml. Paths are relative to the folder of that file. Each provider
// brings its own part.
type Config struct {
	Carbide *carbide.Config `json:"carbide,omitempty" yaml:"carbide,omitempty"`
	Nodes   map[string]Node `json:"nodes,omitempty" yaml:"nodes,omitempty"` // by the node's name
	Fake    *Fake           `json:"fake,omitempty" yaml:"fake,omitempty"`   // instead of all others
}

// Node says how to reach what runs on a node.
type Node struct {
	Libvirt libvirt.Config `json:"libvirt,omitempty" yaml:"libvirt,omitempty"`
	Images  string         `json:"libvirt_images,omitempty" yaml:"libvirt_images,omitempty"` // directory of images that may be uploaded to libvirt
	OVS     ovs.Config     `json:"ovs,omitempty" yaml:"ovs,omitempty"`
	Sysfs   sysfs.Config   `json:"sysfs,omitempty" yaml:"sysfs,omitempty"`
}

// sites and nodes list all providers by name, with their parts of the configuration. A new provider is one more line in one of them.
var (
	sites = map[string]func(Config) connection{
		"carbide": func(c Config) connection { return c.Carbide },
	}
	nodes = map[string]func(Node) connection{
		"host":    func(n Node) connection { return host.Config{Config: n.Sysfs} },
		"libvirt": func(n Node) connection { return libvirt.WithImages{Config: n.Libvirt, Images: n.Images} },
		"ovs":     func(n Node) connection { return n.OVS },
		"pci":     func(n Node) connection { return pci.Config{Config: n.Sysfs} },
	}
)

// A connection is how a provider is reached. What is not configured is one, too: of it, Check returns nil, and Open returns an error that
// says what to write.
type connection interface {
	Configured() bool
	Check(setting string) error // setting is where it is in converge.yaml, for messages
	Open(ctx context.Context, at providers.Opening) (*providers.Provider, error)
}

// Fake serves every kind in every scope from one world, for rehearsals and tests. See package fake. Only one process can have the file of
// a world open; those that need it together, as an agent and its guard do, use one that serves it.
type Fake struct {
	World  string `json:"world,omitempty" yaml:"world,omitempty"`   // path of the file; a missing file is an empty world
	Server string `json:"server,omitempty" yaml:"server,omitempty"` // unix:PATH, the socket of a process that serves a world as package wire does; instead of World
}

// check returns what is wrong with how the world is reached.
func (f *Fake) check() error {
	path, ok := strings.CutPrefix(f.Server, "unix:")
	switch {
	case f.Server != "" && f.World != "":
		return errors.New("fake.world and fake.server say different things: keep one of them")
	case f.Server != "" && (!ok || path == ""):
		return fmt.Errorf("fake.server: %q is no unix:PATH", f.Server)
	case f.Server == "" && f.World == "":
		return errors.New(`fake.world is missing: set it to the world file, for example "world.json"`)
	}
	return nil
}

// connection returns how a provider is reached in a scope. It fails when there is no such provider there.
func (c Config) connection(n providers.Need) (connection, error) {
	onSite, onNode := sites[n.Provider], nodes[n.Provider]
	switch {
	case onSite == nil && onNode == nil:
		return nil, fmt.Errorf("unknown provider %s", n.Provider)
	case n.Scope == schema.ScopeSite && onSite == nil:
		return nil, fmt.Errorf("%s serves nodes, not the site", n.Provider)
	case n.Scope == schema.ScopeSite:
		return onSite(c), nil
	case onNode == nil:
		return nil, fmt.Errorf("%s serves the site, not node %s", n.Provider, n.Scope)
	}
	return onNode(c.Nodes[n.Scope]), nil
}

// configured lists what the configuration can reach, in order: first the site, then the nodes.
func (c Config) configured() (reached []providers.Need) {
	for _, name := range slices.Sorted(maps.Keys(sites)) {
		if sites[name](c).Configured() {
			reached = append(reached, providers.Need{Scope: schema.ScopeSite, Provider: name})
		}
	}
	for _, scope := range slices.Sorted(maps.Keys(c.Nodes)) {
		for _, name := range slices.Sorted(maps.Keys(nodes)) {
			if nodes[name](c.Nodes[scope]).Configured() {
				reached = append(reached, providers.Need{Scope: scope, Provider: name})
			}
		}
	}
	return reached
}

// check returns everything in the configuration that cannot work, whatever the far sides say.
func (c Config) check() error {
	var errs []error
	if c.Fake != nil {
		errs = append(errs, c.Fake.check())
		if c.Carbide != nil || len(c.Nodes) > 0 {
			errs = append(errs, errors.New("fake serves everything, so carbide and nodes would have no effect: keep one or the other"))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(sites)) {
		errs = append(errs, sites[name](c).Check(name))
	}
	for _, scope := range slices.Sorted(maps.Keys(c.Nodes)) {
		if scope == schema.ScopeSite {
			errs = append(errs, fmt.Errorf("nodes.%s: this is the scope of the site itself: no node can have this name", scope))
		}
		for _, name := range slices.Sorted(maps.Keys(nodes)) {
			errs = append(errs, nodes[name](c.Nodes[scope]).Check("nodes."+scope+"."+name))
		}
	}
	return errors.Join(errs...)
}
