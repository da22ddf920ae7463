package config

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"converge.dev/converge/internal/files"
	"converge.dev/converge/providers"
)

// A Setting is one with the value that counts.
type Setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"` // empty: it is not set
	Source Source `json:"source"`
}

// A Source says where the value of a setting comes from. A flag counts more than the environment, that more than the file, and that
// more than the default.
type Source string

// The sources.
const (
	FromDefault Source = "default"
	FromFile    Source = "file"
	FromEnv     Source = "environment"
	FromFlag    Source = "flag"
)

// Settings lists the settings of the file of a node agent, with their defaults. Paths are as they are used. An address with a user or a
// password in it is not shown.
func (a *Agent) Settings() ([]Setting, error) {
	data, err := files.Read(a.Path, maxSize)
	if err != nil {
		return nil, err
	}
	var written map[string]yaml.Node
	if err := yaml.Unmarshal(data, &written); err != nil {
		return nil, fmt.Errorf("%s: it is not a list of settings", a.Path)
	}
	var list []Setting
	add := func(name, value string) {
		s := Setting{name, value, FromDefault}
		if _, ok := written[name]; ok {
			s.Source = FromFile
		}
		if providers.NamesUser(value) {
			s.Value = "(sensitive)"
		}
		list = append(list, s)
	}
	add("servers", strings.Join(a.Servers, ","))
	add("dir", a.Dir)
	add("guard", a.Guard)
	add("probes", strings.Join(a.Probes, ","))
	world := ""
	if a.Fake != nil {
		world = a.Fake.World + a.Fake.Server // one of them is empty
	}
	add("fake", world)
	add("libvirt", string(a.Libvirt))
	add("libvirt_images", a.Images)
	add("ovs", string(a.OVS))
	add("sysfs", string(a.Sysfs))
	return list, nil
}
