package all

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"converge.dev/converge/providers/carbide"
	"converge.dev/converge/schema"
)

// Config says how providers are reached, as a part of converge.yaml. Paths are relative to the folder of that file.
type Config struct {
	Carbide *Carbide        `json:"carbide,omitempty" yaml:"carbide,omitempty"`
	Nodes   map[string]Node `json:"nodes,omitempty" yaml:"nodes,omitempty"` // by the node's name
	Fake    *Fake           `json:"fake,omitempty" yaml:"fake,omitempty"`   // instead of all others
}

// Carbide says how to reach the site's control service.
type Carbide struct {
	Address       string `json:"address" yaml:"address"` // HOST:PORT or unix:PATH
	TLS           TLS    `json:"tls,omitzero" yaml:"tls,omitempty"`
	AllowInsecure bool   `json:"allow_insecure,omitempty" yaml:"allow_insecure,omitempty"` // no TLS to another machine
	Parallel      int    `json:"parallel,omitempty" yaml:"parallel,omitempty"`             // concurrent calls, of all steps that -parallelism lets run; zero: the provider's choice
	Late          string `json:"late,omitempty" yaml:"late,omitempty"`                     // how late an unanswered call may have its effect; empty: 1m
}

// TLS says how both sides authenticate each other. Files are PEM.
type TLS struct {
	Mode       string `json:"mode,omitempty" yaml:"mode,omitempty"` // off, server or mutual; empty: mutual
	CA         string `json:"ca,omitempty" yaml:"ca,omitempty"`     // file of the authorities; empty: the system's
	Cert       string `json:"cert,omitempty" yaml:"cert,omitempty"` // file of our certificate
	Key        string `json:"key,omitempty" yaml:"key,omitempty"`   // file of its key
	ServerName string `json:"server_name,omitempty" yaml:"server_name,omitempty"`
}

// Node says how to reach what runs on a node.
type Node struct {
	OVS string `json:"ovs,omitempty" yaml:"ovs,omitempty"` // unix:PATH of the database's socket
}

// Fake serves every kind in every scope from one file, for rehearsals and tests. See package fake.
type Fake struct {
	World string `json:"world" yaml:"world"` // path of the file; a missing file is an empty world
}

// check reports everything in the configuration that cannot work, whatever the far sides say.
func (c Config) check() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Fake != nil {
		if c.Fake.World == "" {
			wrong(`fake.world is missing: name the file of the world, for example "world.json"`)
		}
		if c.Carbide != nil || len(c.Nodes) > 0 {
			wrong("fake serves everything, so carbide and nodes beside it would have no effect: keep one or the other")
		}
	}
	if c.Carbide != nil {
		errs = append(errs, c.Carbide.check())
	}
	for _, name := range slices.Sorted(maps.Keys(c.Nodes)) {
		if name == schema.ScopeSite {
			wrong("nodes.%s: this is the scope of the site itself: no node can have the name", name)
		}
		if at := c.Nodes[name].OVS; named(at) {
			wrong("nodes.%s.ovs names a user or a password: leave that out of the address", name)
		} else if at != "" && (!strings.HasPrefix(at, "unix:") || at == "unix:") {
			wrong(`nodes.%s.ovs is %q: want the socket of its database, for example "unix:/run/openvswitch/db.sock"`, name, at)
		}
	}
	return errors.Join(errs...)
}

// named reports whether an address contains a user, and maybe a password, which would be shown with it.
func named(address string) bool {
	return !strings.HasPrefix(address, "unix:") && strings.Contains(address, "@")
}

func (c *Carbide) check() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Address == "" {
		wrong("carbide.address is missing: want HOST:PORT or unix:PATH")
	}
	if d, err := time.ParseDuration(c.Late); c.Late != "" && (err != nil || d <= 0) {
		wrong("carbide.late is %q: want a time such as 30s or 2m, or leave it out", c.Late)
	}
	if named(c.Address) {
		wrong("carbide.address names a user or a password: leave that out of the address")
	}
	if c.Parallel < 0 {
		wrong("carbide.parallel is %d: want a number of calls, or leave it out", c.Parallel)
	}
	t := c.TLS
	switch mode := carbide.TLSMode(t.Mode); mode {
	case carbide.Mutual, "":
		if (t.Cert == "") != (t.Key == "") {
			wrong("carbide.tls: a certificate and its key belong together: give both cert and key")
		} else if t.Cert == "" {
			wrong("carbide.tls.mode is mutual, which needs a certificate of ours: give cert and key, or another mode")
		}
	case carbide.Server:
		if t.Cert != "" || t.Key != "" {
			wrong("carbide.tls.mode is server, where we show no certificate: leave out cert and key, or set mode: mutual")
		}
	case carbide.Off:
		if t != (TLS{Mode: t.Mode}) {
			wrong("carbide.tls.mode is off, so nothing else under tls would have an effect: leave it out, or set another mode")
		}
	default:
		wrong("carbide.tls.mode is %q: want %s, %s or %s", t.Mode, carbide.Off, carbide.Server, carbide.Mutual)
	}
	return errors.Join(errs...)
}

// in returns the configuration with relative paths resolved against dir.
func (c Config) in(dir string) Config {
	path := func(p string) string {
		if p == "" || filepath.IsAbs(p) {
			return p
		}
		return filepath.Join(dir, p)
	}
	socket := func(address string) string {
		if p, ok := strings.CutPrefix(address, "unix:"); ok && !strings.HasPrefix(p, "/") {
			return "unix:" + path(p)
		}
		return address
	}
	if c.Carbide != nil {
		at := *c.Carbide
		at.Address = socket(at.Address)
		at.TLS.CA, at.TLS.Cert, at.TLS.Key = path(at.TLS.CA), path(at.TLS.Cert), path(at.TLS.Key)
		c.Carbide = &at
	}
	nodes := make(map[string]Node, len(c.Nodes))
	for name, n := range c.Nodes {
		n.OVS = socket(n.OVS)
		nodes[name] = n
	}
	c.Nodes = nodes
	if c.Fake != nil {
		c.Fake = &Fake{World: path(c.Fake.World)}
	}
	return c
}
