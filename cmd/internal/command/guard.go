package command

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"converge.dev/converge/agent"
	"converge.dev/converge/cmd/internal/config"
	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/guard"
	"converge.dev/converge/internal/files"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/all"
	"converge.dev/converge/schema"
)

func (a *app) agentGuardCommand() *cobra.Command {
	var untilEOF bool
	c := &cobra.Command{
		Use:   "guard",
		Short: "Undo what cuts this node off, until interrupted",
		Long: `Run the guard of this node, beside its agent and as a process of its own. Before the agent
changes a link, an address, a route or a bridge that its connection to the site may go
through, it tells the guard how to undo the change. The guard undoes it after two minutes,
or after a restart of the machine, unless the site has reached the node over new
connections by then. It needs neither the agent nor the site for that.

agent.yaml, or the file that -config names, has its directory: guard. Without that the
node has no guard, and its changes are not guarded. With probes (tcp:ADDRESS:PORT), a
change is kept only while each of them accepts a connection.`,
		Example: `  converge agent guard
  converge agent guard -config=/etc/converge/agent.yaml`,
		Args: exactly(0),
	}
	untilEOFFlag(c, &untilEOF)
	c.RunE = func(c *cobra.Command, _ []string) error {
		ctx, stop := a.untilEOF(c.Context(), untilEOF)
		defer stop()
		return a.runGuard(ctx)
	}
	return c
}

// runGuard runs the guard of a node until ctx is done.
func (a *app) runGuard(ctx context.Context) error {
	if err := a.logAsService("guard"); err != nil {
		return err
	}
	conf, err := a.agentConfig()
	if err != nil {
		return err
	}
	if conf.Guard == "" {
		return &view.Problem{What: "the node has no guard", Where: conf.Path, Fix: "Name its directory in that file: guard: /var/lib/converge/guard"}
	}
	sch, err := a.schema()
	if err != nil {
		return err
	}
	kinds := sch.Kinds()
	err = guard.Run(ctx, guard.Options{
		Dir: conf.Guard, Logger: a.log, Ready: a.tellReady,
		Open: func(ctx context.Context, s guard.Source) (*providers.Provider, error) {
			var from origin
			if err := json.Unmarshal(s.Settings, &from); err != nil {
				return nil, err
			}
			set, err := all.New(all.Options{Config: from.Config, Dir: from.Dir, Kinds: kinds, Site: s.Site, Logger: a.log}).Open(ctx, providers.Need{Scope: s.Scope, Provider: s.Provider})
			if err != nil {
				return nil, err
			}
			if err := set.Failure(s.Scope, s.Provider); err != nil {
				return nil, err
			}
			return set.All()[0], nil
		},
		Equal: func(kind string, x, y schema.Object) bool {
			k := kinds[kind]
			if k == nil {
				return x.Equal(y)
			}
			x, y = x.Clone(), y.Clone()
			k.Normalize(x)
			k.Normalize(y)
			return x.Equal(y)
		},
	})
	switch {
	case ctx.Err() != nil:
		a.log.Info("guard stopped")
		return nil
	case errors.Is(err, files.ErrInUse):
		return &view.Problem{What: "a guard is already running here", Where: conf.Guard, Err: err}
	}
	return err
}

// tellReady tells the service manager that started this process, if one did, that what waits for it can go on.
func (a *app) tellReady() {
	if _, err := daemon.SdNotify(true, daemon.SdNotifyReady); err != nil {
		a.log.Warn("the service manager could not be told that this process is ready", "error", err)
	}
}

// An origin is how a provider is opened that undoes a change. It is kept with the change, so that the guard needs no other file.
type origin struct {
	Config all.Config `json:"config"`
	Dir    string     `json:"dir"`
}

// guarded returns what makes a provider of a node undo by itself what cuts the node off; nil when the node has no guard.
func guarded(conf *config.Agent) func(schema.Site, *providers.Provider) (*providers.Provider, error) {
	if conf.Guard == "" {
		return nil
	}
	client, path := guard.Dial(conf.Guard), agent.Path{Servers: conf.Servers}
	return func(site schema.Site, p *providers.Provider) (*providers.Provider, error) {
		dir, err := filepath.Abs(filepath.Dir(conf.Path))
		if err != nil {
			return nil, err
		}
		settings, err := json.Marshal(origin{conf.Providers(p.Scope), dir})
		if err != nil {
			return nil, err
		}
		return guard.Around{
			Client: client, Reaches: path.Crosses, Probes: conf.Probes,
			Source: guard.Source{Provider: p.Name, Scope: p.Scope, Site: site, Settings: settings},
		}.Wrap(p), nil
	}
}
