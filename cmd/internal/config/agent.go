package config

import (
	"cmp"
	"fmt"
	"net"
	"path/filepath"
	"slices"

	"converge.dev/converge/guard"
	"converge.dev/converge/internal/files"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/all"
	"converge.dev/converge/schema"
)

// AgentName is the default name of the file of a node agent.
const AgentName = "agent.yaml"

// An Agent is the contents of agent.yaml: what the agent of a node serves, and where its site is. Paths are relative to its folder.
type Agent struct {
	Servers  []string  `yaml:"servers"` // HOST:PORT of every replica of the site agent
	Dir      string    `yaml:"dir"`     // of its identity and its ledger; "identity" when empty
	Guard    string    `yaml:"guard"`   // directory of the guard, which converge agent guard serves; empty: there is none
	Probes   []string  `yaml:"probes"`  // tcp:ADDRESS:PORT: what must accept a connection for a change under guard to be kept
	Fake     *all.Fake `yaml:"fake"`    // everything from one world, for rehearsals, instead of all others
	all.Node `yaml:",inline"`

	Path string `yaml:"-"` // of the file
}

// ReadAgent reads the file of a node agent.
func ReadAgent(path string) (*Agent, error) {
	data, err := files.Read(path, maxSize)
	if err != nil {
		return nil, fmt.Errorf("read the agent's file: %w", err)
	}
	a, err := parse[Agent](data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	a.Path = path
	if a.Dir = cmp.Or(a.Dir, "identity"); !filepath.IsAbs(a.Dir) {
		a.Dir = filepath.Join(filepath.Dir(path), a.Dir)
	}
	if a.Guard != "" && !filepath.IsAbs(a.Guard) {
		a.Guard = filepath.Join(filepath.Dir(path), a.Guard)
	}
	if a.Guard != "" && a.Fake != nil && a.Fake.Server == "" {
		return nil, fmt.Errorf("%s: guard: the agent and the guard cannot both have a world's file open: name a process that serves it with fake.server", path)
	}
	if len(a.Probes) > 0 && a.Guard == "" {
		return nil, fmt.Errorf("%s: probes: the node has no guard that could try them: name its directory with guard", path)
	}
	if err := guard.CheckProbes(a.Probes); err != nil {
		return nil, fmt.Errorf("%s: probes: %w", path, err)
	}
	if len(a.Servers) == 0 {
		return nil, fmt.Errorf("%s: servers is missing: want the addresses of the site agent, such as [site.example:7443]", path)
	}
	for _, s := range a.Servers {
		if _, port, err := net.SplitHostPort(s); err != nil || port == "" {
			return nil, fmt.Errorf("%s: servers: %q is no HOST:PORT", path, s)
		}
	}
	return a, nil
}

// Providers returns how the providers of the node are reached, in the form of converge.yaml.
func (a *Agent) Providers(node string) all.Config {
	if a.Fake != nil {
		return all.Config{Fake: a.Fake}
	}
	return all.Config{Nodes: map[string]all.Node{node: a.Node}}
}

// Offers lists what the node is configured to serve.
func (a *Agent) Offers(node string, kinds schema.Kinds) ([]providers.Need, error) {
	if a.Fake == nil {
		return all.New(all.Options{Config: a.Providers(node), Kinds: kinds}).Offers()
	}
	var needs []providers.Need
	for _, kind := range kinds.Names() {
		need := providers.Need{Scope: node, Provider: schema.Ref{Kind: kind}.Provider()}
		if kinds[kind].Node && !slices.Contains(needs, need) {
			needs = append(needs, need)
		}
	}
	return needs, nil
}
