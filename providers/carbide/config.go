package carbide

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/enrol"
)

// Config says how to reach the site's control service, as carbide of converge.yaml. Nil: it is not configured.
type Config struct {
	Address       string `json:"address" yaml:"address"` // HOST:PORT or unix:PATH
	TLS           TLS    `json:"tls,omitzero" yaml:"tls,omitempty"`
	AllowInsecure bool   `json:"allow_insecure,omitempty" yaml:"allow_insecure,omitempty"` // no TLS to another machine
	Parallel      int    `json:"parallel,omitempty" yaml:"parallel,omitempty"`             // concurrent calls, of all steps that -parallelism lets run; zero: the provider's choice
	Late          string `json:"late,omitempty" yaml:"late,omitempty"`                     // how late an unanswered call may have its effect; empty: 1m

	Enrol *enrol.Config `json:"enrol,omitempty" yaml:"enrol,omitempty"` // how the site agent gets the client certificate; nil: somebody else puts it there
}

// files returns the files of TLS: by default those in which the site agent stores what it has enrolled for.
func (c *Config) files() TLS {
	t := c.TLS
	if c.Enrol != nil && c.Enrol.Store.Files != nil && (t.Mode == "" || t.Mode == Mutual) && t.Cert == "" && t.Key == "" {
		ca, identity := c.Enrol.Store.Files.Paths()
		t.CA, t.Cert, t.Key = cmp.Or(t.CA, ca), identity, identity
	}
	return t
}

// Configured reports whether the site has a control service.
func (c *Config) Configured() bool { return c != nil }

// Check returns everything that cannot work, whatever the service says; setting is where it is in converge.yaml.
func (c *Config) Check(setting string) error {
	if c == nil {
		return nil
	}
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(setting+format, args...)) }
	if c.Address == "" {
		wrong(".address is missing: want HOST:PORT or unix:PATH")
	}
	if d, err := time.ParseDuration(c.Late); c.Late != "" && (err != nil || d <= 0) {
		wrong(".late is %q: want a duration such as 30s or 2m, or omit it", c.Late)
	}
	if providers.NamesUser(c.Address) {
		wrong(".address contains a user or a password: remove it from the address")
	}
	if c.Parallel < 0 {
		wrong(".parallel is %d: want a number of calls, or omit it", c.Parallel)
	}
	if c.Enrol != nil {
		if err := c.Enrol.Check(setting + ".enrol"); err != nil {
			errs = append(errs, err)
		}
	}
	t := c.files()
	switch t.Mode {
	case Mutual, "":
		if (t.Cert == "") != (t.Key == "") {
			wrong(".tls: a certificate and its key belong together: set both cert and key")
		} else if t.Cert == "" {
			wrong(".tls.mode is mutual, which needs a client certificate: set cert and key, or choose another mode")
		}
	case Server:
		if t.Cert != "" || t.Key != "" {
			wrong(".tls.mode is server, which uses no client certificate: remove cert and key, or set mode: mutual")
		}
	case Off:
		if t != (TLS{Mode: t.Mode}) {
			wrong(".tls.mode is off, so nothing else under tls has an effect: remove it, or set another mode")
		}
	default:
		wrong(".tls.mode is %q: want %s, %s or %s", t.Mode, Off, Server, Mutual)
	}
	return errors.Join(errs...)
}

// Open connects to it.
func (c *Config) Open(ctx context.Context, at providers.Opening) (*providers.Provider, error) {
	if c == nil {
		return nil, errors.New(`the site's Carbide service is not configured; set its address: carbide: {address: "HOST:PORT"}`)
	}
	var late time.Duration
	if c.Late != "" {
		var err error
		if late, err = time.ParseDuration(c.Late); err != nil {
			return nil, fmt.Errorf("carbide.late: %w", err)
		}
	}
	tls := c.files()
	tls.CA, tls.Cert, tls.Key = at.Path(tls.CA), at.Path(tls.Cert), at.Path(tls.Key)
	p, err := Open(ctx, Options{
		Address: at.Address(c.Address), TLS: tls, AllowInsecure: c.AllowInsecure,
		Parallel: c.Parallel, Late: late, Trace: at.Trace, Logger: at.Logger,
	})
	if c.Enrol != nil && errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: the site has not enrolled yet, which converge serve does (carbide.enrol)", err)
	}
	return p, err
}
