// Package host is the provider of what belongs to a node's kernel as a whole: its huge pages, and facts about
// the machine.
package host

import (
	"context"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/sysfs"
)

// Config is the root of sysfs; see [sysfs.Config].
type Config struct{ sysfs.Config }

// Open serves the kinds of a node.
func (c Config) Open(_ context.Context, at providers.Opening) (*providers.Provider, error) {
	k, closing, err := c.Kernel(at)
	if err != nil {
		return nil, err
	}
	return New(at.Scope, k, closing), nil
}

// New serves the kinds of a node with a kernel; closing may be nil.
func New(node string, k sysfs.Kernel, closing func() error) *providers.Provider {
	return sysfs.Provider("host", node, k, closing,
		sysfs.Kind{Name: "host.hugepages", Traits: sysfs.Traits(), Noun: hugepages{}},
		sysfs.Kind{Name: "host.facts", Traits: sysfs.FactTraits(), Noun: sysfs.Facts(listFacts)},
	)
}
