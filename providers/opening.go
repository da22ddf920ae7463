package providers

import (
	"log/slog"
	"path/filepath"
	"strings"

	"converge.dev/converge/schema"
)

// An Opening says where a provider is opened and for what; how its far side is reached is the provider's own configuration.
type Opening struct {
	Scope  string       // schema.ScopeSite or a node's name
	Site   schema.Site  // required
	Dir    string       // the folder of converge.yaml, to which the paths in it are relative
	Trace  string       // optional: W3C trace context of the command, for far sides that accept one
	Logger *slog.Logger // required
}

// Path returns a path of the configuration as it is from here; empty stays empty.
func (o Opening) Path(path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(o.Dir, path)
}

// Address returns an address of the configuration as it is from here. Only that of a socket, unix:PATH, has a path.
func (o Opening) Address(address string) string {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		return "unix:" + o.Path(path)
	}
	return address
}

// NamesUser reports whether an address contains a user, and maybe a password, which would be shown with it.
func NamesUser(address string) bool {
	return !strings.HasPrefix(address, "unix:") && strings.Contains(address, "@")
}
