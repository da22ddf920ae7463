package libvirt

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"converge.dev/converge/providers"
)

// Config is the URI of a node's libvirt, as nodes.NAME.libvirt of converge.yaml. Empty: it is not configured.
type Config string

// Configured reports whether the node has a libvirt.
func (c Config) Configured() bool { return c != "" }

// drivers are the drivers of libvirt that are supported: that of QEMU, and the one for tests, which plays a node in memory.
var drivers = []string{"qemu", "test"}

// Check returns what cannot work, whatever the far side says; setting is where it is in converge.yaml.
func (c Config) Check(setting string) error {
	if c == "" {
		return nil
	}
	u, err := url.Parse(string(c))
	if err != nil { // its text repeats the URI, with what should not be shown
		return fmt.Errorf("%s is not a URI: want that of libvirt, for example %q", setting, DefaultURI)
	}
	driver, _, _ := strings.Cut(u.Scheme, "+")
	switch {
	case u.User != nil || providers.NamesUser(u.Host+u.Opaque):
		return fmt.Errorf("%s contains a user or a password: remove it from the URI", setting)
	case !slices.Contains(drivers, driver) || u.Opaque != "" || u.Path == "":
		return fmt.Errorf("%s is %q: want the URI of libvirt, for example %q", setting, string(c), DefaultURI)
	}
	return nil
}

// Open connects to it.
func (c Config) Open(ctx context.Context, at providers.Opening) (*providers.Provider, error) {
	if c == "" {
		return nil, fmt.Errorf("libvirt on node %s is not configured; set its URI: nodes: {%s: {libvirt: %q}}", at.Scope, at.Scope, DefaultURI)
	}
	return c.open(ctx, at, "")
}

func (c Config) open(ctx context.Context, at providers.Opening, images string) (*providers.Provider, error) {
	return Open(ctx, Options{URI: c.resolved(at), Node: at.Scope, Site: at.Site.ID, Images: at.Path(images), Logger: at.Logger})
}

// WithImages is the libvirt of a node with the directory of images that may be uploaded to it, nodes.NAME.libvirt_images of converge.yaml.
type WithImages struct {
	Config
	Images string
}

// Check does what that of Config does.
func (c WithImages) Check(setting string) error {
	if c.Images != "" && !c.Configured() {
		return fmt.Errorf("%s_images has no effect: %s is missing", setting, setting)
	}
	return c.Config.Check(setting)
}

// Open connects to it.
func (c WithImages) Open(ctx context.Context, at providers.Opening) (*providers.Provider, error) {
	if !c.Configured() {
		return c.Config.Open(ctx, at) // which says what to write
	}
	return c.open(ctx, at, c.Images)
}

// pathParameters are the parameters of a URI that are paths.
var pathParameters = []string{"socket", "pkipath", "keyfile", "known_hosts"}

// resolved returns the URI with its paths as they are from here.
func (c Config) resolved(at providers.Opening) string {
	u, err := url.Parse(string(c))
	if err != nil {
		return string(c)
	}
	query, changed := u.Query(), false
	for _, name := range pathParameters {
		if path := query.Get(name); path != "" && !filepath.IsAbs(path) {
			query.Set(name, at.Path(path))
			changed = true
		}
	}
	if changed {
		u.RawQuery = query.Encode()
	}
	return u.String()
}
