package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/spf13/cobra"

	"converge.dev/converge/agent"
	"converge.dev/converge/cmd/internal/config"
	"converge.dev/converge/cmd/internal/view"
)

// asking is how long an agent may take to say how it stands.
const asking = 10 * time.Second

// agentConfig reads the file of this machine's agent: the one that -config names, or agent.yaml in the working directory.
func (a *app) agentConfig() (*config.Agent, error) {
	conf, err := config.ReadAgent(cmp.Or(a.flags.config, config.AgentName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &view.Problem{
			What: "the configuration of the agent cannot be found", Where: err.Error(),
			Fix: "Name its file with -config=FILE; converge agent install-script makes it /etc/converge/agent.yaml.", Err: err,
		}
	}
	if err != nil {
		return nil, unusable(err)
	}
	return conf, nil
}

// local returns how the agent of this machine is asked, and what its file says.
func (a *app) local() (*agent.Local, *config.Agent, error) {
	conf, err := a.agentConfig()
	if err != nil {
		return nil, nil, err
	}
	return agent.AskLocal(conf.Dir), conf, nil
}

// away explains why an agent cannot be asked.
func away(err error) error {
	var gone *agent.AwayError
	switch {
	case !errors.As(err, &gone):
		return err
	case errors.Is(err, fs.ErrPermission):
		return &view.Problem{What: "the agent may not be asked", Where: gone.Error(), Fix: "Only the user that it runs as can ask it, mostly root.", Err: err}
	}
	return &view.Problem{
		What: "no agent is running here", Where: gone.Error(),
		Fix: "Start it with converge agent run, or systemctl start converge-agent. If it runs with another file, name that with -config=FILE.", Err: err,
	}
}

// asked asks the agent of this machine something.
func asked[T any](ctx context.Context, a *app, within time.Duration, ask func(context.Context, *agent.Local) (T, error)) (answer T, err error) {
	local, _, err := a.local()
	if err != nil {
		return answer, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, within, &view.Problem{What: "the agent does not answer", Where: fmt.Sprintf("it was asked %v ago", within)})
	defer cancel()
	answer, err = ask(ctx, local)
	return answer, away(err)
}

func (a *app) agentStatusCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "status", Short: "Show how the agent of this node stands", Args: exactly(0),
		Long: `Ask the agent that runs on this machine how it stands, through its socket (agent.sock in
its directory): what is wrong first, then its connections, its certificate, its tasks, its
providers and its guard. agent.yaml, or the file that -config names, says where it is.`,
		Example: `  converge agent status
  converge agent status -config=/etc/converge/agent.yaml -json`,
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		s, err := asked(c.Context(), a, asking, func(ctx context.Context, l *agent.Local) (agent.Status, error) { return l.Status(ctx) })
		if err != nil {
			return err
		}
		if a.flags.json {
			return a.printJSON(s)
		}
		a.print(view.AgentText(&s, a.style(a.sys.Stdout)))
		return nil
	}
	return c
}

func (a *app) agentHealthCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "health", Short: "Say in a line whether the agent of this node is well", Args: exactly(0),
		Long: `Ask the agent that runs on this machine whether all is well: print one line, and exit with
0 when it is and with 1 when something is wrong, or no agent runs. That one of several
site agents cannot be reached is not wrong.`,
		Example: `  converge agent health
  converge agent health -config=/etc/converge/agent.yaml || echo "look at this node"`,
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		s, err := asked(c.Context(), a, asking, func(ctx context.Context, l *agent.Local) (agent.Status, error) { return l.Status(ctx) })
		if err != nil {
			return err
		}
		if a.flags.json {
			err = a.printJSON(map[string]any{"node": s.Node, "health": s.Health, "problems": s.Problems, "version": s.Version, "tasks_open": len(s.Tasks.Open)})
		} else {
			a.print(view.AgentHealth(&s, a.style(a.sys.Stdout)))
		}
		if err == nil && s.Health != agent.OK {
			err = outcome(exitError)
		}
		return err
	}
	return c
}

func (a *app) agentConfigCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "config", Short: "Show the settings of the agent of this node", Args: exactly(0),
		Long: `Show the settings that the agent of this node has when it is started now, and where each
value comes from: flag, environment, file or default, in this order. No agent has to run.`,
		Example: `  converge agent config
  converge agent config -config=/etc/converge/agent.yaml -json`,
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		_, conf, err := a.local()
		if err != nil {
			return err
		}
		settings, err := conf.Settings()
		if err != nil {
			return err
		}
		add := func(name, flag, value, env, otherwise string) {
			s := config.Setting{Name: name, Value: cmp.Or(value, otherwise), Source: config.FromDefault}
			switch {
			case c.Flags().Changed(flag):
				s.Source = config.FromFlag
			case a.env[env] != "":
				s.Source = config.FromEnv
			}
			settings = append(settings, s)
		}
		add("config", "config", a.flags.config, envConfig, config.AgentName)
		add("log-level", "log-level", a.flags.logLevel, envLog, "info")
		add("log-format", "log-format", a.flags.logForm, envLogFormat, logText)
		if a.flags.json {
			return a.printJSON(map[string]any{"settings": settings})
		}
		a.print(view.SettingsText(settings, a.style(a.sys.Stdout)))
		return nil
	}
	return c
}

func (a *app) agentRenewCommand() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "renew-cert", Short: "Renew the certificate of this node", Args: exactly(0),
		Long: `Make the agent that runs on this machine renew its certificate, and print until when the
new one is valid. It does that by itself, from half of the life of the certificate; until
then nothing is done without -force. Its connections are made anew with it.`,
		Example: `  converge agent renew-cert
  converge agent renew-cert -force -config=/etc/converge/agent.yaml`,
	}
	c.Flags().BoolVar(&force, "force", false, "renew it although it is not due")
	c.RunE = func(c *cobra.Command, _ []string) error {
		ctx := c.Context()
		s, err := asked(ctx, a, asking, func(ctx context.Context, l *agent.Local) (agent.Status, error) { return l.Status(ctx) })
		if err != nil {
			return err
		}
		cert, renewed := s.Certificate, false
		if force || !s.Now.Before(cert.Renewal) {
			if cert, err = asked(ctx, a, time.Minute, func(ctx context.Context, l *agent.Local) (agent.Certificate, error) { return l.Renew(ctx) }); err != nil {
				return err
			}
			renewed = true
		}
		text := fmt.Sprintf("The certificate is not due until %s; it is valid until %s. To renew it now: converge agent renew-cert -force\n", view.At(cert.Renewal), view.At(cert.NotAfter))
		if renewed {
			text = fmt.Sprintf("The certificate was renewed, and is valid until %s.\n", view.At(cert.NotAfter))
		}
		return a.did(!renewed, map[string]any{
			"renewed": renewed, "serial": cert.Serial, "not_after": cert.NotAfter.UTC().Format(instant), "next_renewal": cert.Renewal.UTC().Format(instant),
		}, text)
	}
	return c
}

func (a *app) agentResetClockCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "reset-clock", Short: "Make the agent of this node believe the clock here again", Args: exactly(0),
		Long: `Make the agent that runs on this machine believe the clock here again. An agent takes it to be
at least as late as the newest head that its site has signed, so that nobody can turn back its
time. If the clocks of site and node were both ahead for a while, whatever the site signs once
they are right is refused, and converge agent status says so. Set the clock of this machine
right first: this is your word for it. What the node did is not forgotten; it goes on with the
next head of its site.`,
		Example: `  converge agent reset-clock
  converge agent reset-clock -config=/etc/converge/agent.yaml`,
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		head, err := asked(c.Context(), a, asking, func(ctx context.Context, l *agent.Local) (*time.Time, error) { return l.ResetClock(ctx) })
		if err != nil {
			return err
		}
		answer := map[string]any{"reset": head != nil}
		text := "No head of the site is later than the clock here: there is nothing to reset.\n"
		if head != nil {
			answer["newest_head"] = head.UTC().Format(instant)
			text = fmt.Sprintf("The newest head was of %s. The agent believes the clock here again, and goes on with the next head.\n", view.At(*head))
		}
		return a.did(head == nil, answer, text)
	}
	return c
}

// keptRecords is how many records of its log an agent keeps in memory.
const keptRecords = 1000

func (a *app) agentLogsCommand() *cobra.Command {
	var n int
	var follow bool
	c := &cobra.Command{
		Use: "logs", Short: "Show the newest records of the log of this node's agent", Args: exactly(0),
		Long: fmt.Sprintf(`Show the newest records of the log of the agent that runs on this machine, oldest first, as
text or, with -log-format=json or -json, as JSON, one a line. The agent keeps %d in memory,
at the level of its log; what it has logged before it was started is where its service
manager keeps it (journalctl -u converge-agent).`, keptRecords),
		Example: `  converge agent logs -lines=20
  converge agent logs -follow -log-format=json`,
	}
	c.Flags().IntVar(&n, "lines", 100, "the maximum `number` of records")
	c.Flags().BoolVar(&follow, "follow", false, "go on with those that come, until interrupted")
	c.RunE = func(c *cobra.Command, _ []string) error {
		local, _, err := a.local()
		if err != nil {
			return err
		}
		ctx, stop := context.WithCancel(c.Context())
		defer stop()
		err = local.Logs(ctx, &stopping{a.out, stop}, n, follow, a.flags.json || a.flags.logForm == logJSON)
		if ctx.Err() != nil && (follow && a.signal.Load() != nil || a.out.broken() != nil) { // to be interrupted is how following ends
			return nil
		}
		return away(err)
	}
	return c
}

// stopping is an output that ends what writes to it when its reader has gone.
type stopping struct {
	out  *output
	stop func()
}

// Write implements io.Writer.
func (s *stopping) Write(b []byte) (int, error) {
	n, err := s.out.Write(b)
	if s.out.broken() != nil {
		s.stop()
	}
	return n, err
}
