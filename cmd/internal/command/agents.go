package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"converge.dev/converge/agent"
	"converge.dev/converge/cmd/internal/config"
	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/guard"
	"converge.dev/converge/internal/files"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/all"
	"converge.dev/converge/schema"
	"converge.dev/converge/site"
	"converge.dev/converge/trust"
)

func (a *app) agentCommand() *cobra.Command {
	return group("agent", "Node agents: machines of the site that run one", `A node agent makes the hypervisor, the switch and the devices of a machine a part of the
site. It dials the site agent (converge serve); nothing listens on the node.

To add a node: make a token at the site (agent token create), exchange it on the node
for a certificate (agent bootstrap), and run the agent there (agent run).`,
		a.agentTokenCommand(), a.agentBootstrapCommand(), a.agentRunCommand(), a.agentGuardCommand(), a.agentListCommand(), a.agentRevokeCommand(), a.agentDrainCommand(),
		a.agentStatusCommand(), a.agentHealthCommand(), a.agentConfigCommand(), a.agentRenewCommand(), a.agentResetClockCommand(), a.agentLogsCommand(), a.agentInstallScriptCommand())
}

func (a *app) agentTokenCommand() *cobra.Command {
	var ttl time.Duration
	var labels map[string]string
	var dir, out string
	c := &cobra.Command{
		Use:   "create NODE",
		Short: "Make a token with which a node can enrol once",
		Long: `Make a token with which the agent of a node can enrol, and print it. It is shown only
this once; the store has no more than its digest. The first machine that uses it becomes
that node. An earlier token of the node becomes void. With -out it is written to a file
that only its owner can read.`,
		Example: `  converge agent token create -out=gpu-01.token gpu-01
  converge agent token create -ttl=1h -label=rack=r7 gpu-01`,
		Args: exactly(1),
	}
	c.Flags().DurationVar(&ttl, "ttl", trust.DefaultTokenLife, fmt.Sprintf("`duration` for which it can be used, at most %v", trust.MaxTokenLife))
	c.Flags().StringToStringVar(&labels, "label", nil, "labels of the node, as `key=value`; may be repeated")
	c.Flags().StringVar(&out, "out", "", "write the token to this `file` instead of standard output")
	trustDirFlag(c, &dir)
	c.RunE = func(c *cobra.Command, args []string) error {
		ctx := c.Context()
		s, err := a.openOr(ctx, nil, nil, create)
		if err != nil {
			return err
		}
		keys, err := s.siteKeys(dir)
		if err != nil {
			return err
		}
		text, err := keys.CreateToken(ctx, s.store, args[0], trust.TokenOptions{By: who(), Labels: labels, TTL: ttl})
		if err != nil {
			return &view.Problem{What: "no token was made for node " + args[0], Where: err.Error(), Err: err}
		}
		a.acted = true
		if out != "" {
			if err := files.Replace(out, []byte(text+"\n"), 0o600); err != nil {
				return &view.Problem{What: "the token could not be written", Where: err.Error(), Fix: "Choose another file with -out; the token is void once there is another.", Err: err}
			}
			a.view.Note(fmt.Sprintf("The token is in %s, and valid for %v. On the node: converge agent bootstrap -server=HOST:PORT -token-file=FILE", out, ttl))
			return nil
		}
		if a.flags.json {
			return a.printJSON(map[string]any{"node": args[0], "token": text, "expires": time.Now().Add(ttl).UTC().Format(instant)})
		}
		a.print(text + "\n")
		a.view.Note(fmt.Sprintf("The token is valid for %v. On the node: converge agent bootstrap -server=HOST:PORT -token-file=FILE", ttl))
		return nil
	}
	return group("token", "Tokens with which nodes enrol", "A token lets one machine enrol as one node, once.", c)
}

// maxToken is the maximum size of a token.
const maxToken = 4 << 10

func (a *app) agentBootstrapCommand() *cobra.Command {
	var server, token, dir, node string
	c := &cobra.Command{
		Use:   "bootstrap",
		Short: "Enrol this machine as a node",
		Long: `Make a key on this machine, and exchange a token for its certificate. The token says
which node it becomes, and how the site is recognized. The key never leaves the machine.
It may be repeated with the same token, for example when the connection broke.`,
		Example: `  converge agent bootstrap -server=site.example:7443 -token-file=gpu-01.token
  converge agent bootstrap -server=site.example:7443 -token-file=- < gpu-01.token`,
		Args: exactly(0),
	}
	c.Flags().StringVar(&server, "server", "", "`address` of the site agent, HOST:PORT")
	c.Flags().StringVar(&token, "token-file", "", "`file` with the token; - reads standard input")
	c.Flags().StringVar(&dir, "dir", "identity", "`dir`ectory of the identity of the node")
	c.Flags().StringVar(&node, "node", "", "the `name` of the node; a token for another one is refused")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if server == "" || token == "" {
			return &view.Problem{What: "-server and -token-file are required", Fix: "Make a token at the site: converge agent token create NODE"}
		}
		text, err := a.readToken(token)
		if err != nil {
			return err
		}
		if t, err := trust.ParseToken(text); err == nil && node != "" && t.Node != node {
			return &view.Problem{What: "the token is for node " + t.Node + ", not " + node, Fix: "At the site: converge agent token create " + node}
		}
		id, err := trust.Bootstrap(c.Context(), dir, text, server, trust.IdentityOptions{})
		if err != nil {
			p := &view.Problem{What: "the node has not enrolled", Where: err.Error(), Err: err}
			if trust.Unreached(err) {
				p.Fix = "Check that converge serve runs there, and that -server is the address that it listens on for nodes (-listen). The token is still good."
			}
			return p
		}
		a.acted = true
		if a.flags.json {
			return a.printJSON(map[string]any{"node": id.Node(), "site": id.Site().Name, "dir": dir, "not_after": id.Certificate().NotAfter.UTC().Format(instant)})
		}
		a.print(fmt.Sprintf("This machine is node %s of site %s.\nIts certificate is valid until %s, and is renewed by the agent: converge agent run\n",
			id.Node(), id.Site().Name, id.Certificate().NotAfter.Local().Format(time.RFC1123)))
		return nil
	}
	return c
}

// readToken reads a token from a file or standard input. No error repeats it.
func (a *app) readToken(path string) (string, error) {
	if path == "-" {
		b, err := io.ReadAll(io.LimitReader(a.sys.Stdin, maxToken))
		return strings.TrimSpace(string(b)), err
	}
	b, err := files.ReadPrivate(path, maxToken)
	if err != nil {
		return "", &view.Problem{What: "the token cannot be read", Where: err.Error(), Err: err}
	}
	return strings.TrimSpace(string(b)), nil
}

func (a *app) agentRunCommand() *cobra.Command {
	var untilEOF bool
	c := &cobra.Command{
		Use:   "run",
		Short: "Run the agent of this node until it is interrupted",
		Long: `Run the agent of this node: connect to the site agents that agent.yaml lists, and serve
what it configures. Changes are made only for tasks that the site has signed for this
node, each at most once. The certificate is renewed in time.

agent.yaml, or the file that -config names, has servers (a list of HOST:PORT), dir (of the identity and the ledger), and
how the node's own systems are reached, as in nodes of converge.yaml: libvirt, ovs, sysfs.
With guard (a directory), changes that may cut the node off from the site are undone
unless the site reaches it again: run converge agent guard as well.`,
		Example: `  converge agent run
  converge agent run -config=/etc/converge/agent.yaml`,
		Args: exactly(0),
	}
	untilEOFFlag(c, &untilEOF)
	c.RunE = func(c *cobra.Command, _ []string) error {
		ctx, stop := a.untilEOF(c.Context(), untilEOF)
		defer stop()
		return a.runAgent(ctx)
	}
	return c
}

// untilEOFFlag adds the flag of services that another process starts, and that end with it, whatever happens to that.
func untilEOFFlag(c *cobra.Command, until *bool) {
	c.Flags().BoolVar(until, "until-eof", false, "end when standard input ends")
}

// untilEOF returns a context that ends when standard input does, with io.EOF as its cause, if that is asked for.
func (a *app) untilEOF(ctx context.Context, asked bool) (context.Context, func()) {
	ctx, end := context.WithCancelCause(ctx)
	if asked {
		go func() {
			_, _ = io.Copy(io.Discard, a.sys.Stdin)
			end(io.EOF)
		}()
	}
	return ctx, func() { end(nil) }
}

// runAgent runs the agent of a node until ctx is done.
func (a *app) runAgent(ctx context.Context) error {
	if err := a.logAsService("agent"); err != nil {
		return err
	}
	conf, err := a.agentConfig()
	if err != nil {
		return err
	}
	if _, err := trust.OpenIdentity(conf.Dir, trust.IdentityOptions{}); errors.Is(err, fs.ErrNotExist) {
		return &view.Problem{What: "this machine has not enrolled", Where: conf.Dir, Fix: "Enrol it with converge agent bootstrap.", Err: err}
	}
	sch, err := a.schema()
	if err != nil {
		return err
	}
	var undo *guard.Client
	if conf.Guard != "" {
		undo = guard.Dial(conf.Guard)
	}
	collect.at(50) // the memory of a node is for its machines
	kept := agent.NewLog(keptRecords)
	a.alsoLog(kept.Handler)
	var opener *all.Opener
	err = agent.Run(ctx, agent.Options{
		Dir: conf.Dir, Servers: conf.Servers, Guard: guarded(conf), Ready: a.tellReady, Undo: undo, Version: a.sys.Version, Logger: a.log, Local: agent.ListenLocal, Log: kept,
		Offers: func(node string) ([]providers.Need, error) { return conf.Offers(node, sch.Kinds()) },
		Open: func(ctx context.Context, site schema.Site, needs []providers.Need) (*providers.Set, error) {
			if opener == nil {
				opener = all.New(all.Options{Config: conf.Providers(needs[0].Scope), Dir: filepath.Dir(conf.Path), Kinds: sch.Kinds(), Site: site, Logger: a.log, Control: true})
			}
			return opener.Open(ctx, needs...)
		},
	})
	switch {
	case ctx.Err() != nil:
		a.log.Info("agent stopped")
		return nil
	case errors.Is(err, files.ErrInUse):
		return &view.Problem{What: "an agent is already running here", Where: conf.Dir, Err: err}
	}
	return err
}

func (a *app) agentListCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "list", Short: "List the nodes that have enrolled, or may", Args: exactly(0),
		Long: `List the nodes that have a token or a certificate: their state, how their certificate
stands, their labels, and below why they are banned or on hold. The site agent on this
machine is asked for the rest, through its socket (-server, or server in converge.yaml):
whether they are connected or when they last answered, how they do, the version of their
agent, and the tasks in progress there.

Health is ok, degraded (something that the node should serve is missing or unavailable),
hung (it is connected, and does not answer) or away. Without a site agent it is -.`,
		Example: `  converge agent list
  converge agent list -server=unix:/var/lib/converge/serve.sock -json`,
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		s, err := a.open(c.Context(), nil, nil)
		if err != nil {
			return err
		}
		nodes, err := trust.Nodes(c.Context(), s.store)
		if err != nil {
			return err
		}
		holds, err := s.store.Holds(c.Context())
		if err != nil {
			return err
		}
		live, why := s.standings(c.Context())
		if why != "" && len(nodes) > 0 {
			a.view.Note(why)
		}
		if a.flags.json {
			return a.printJSON(view.NodesJSON(nodes, live, holds))
		}
		a.print(view.NodesText(nodes, live, holds, time.Now(), a.style(a.sys.Stdout)))
		return nil
	}
	return c
}

// standings asks the site agent how the nodes stand, by name; when it cannot be asked, why says so.
func (s *session) standings(ctx context.Context) (live map[string]site.NodeStatus, why string) {
	if s.far == nil {
		return nil, "How the nodes stand is not known without a site agent to ask: name its socket with -server=unix:PATH, or server in " + config.Name + "."
	}
	ctx, cancel := context.WithTimeout(ctx, asking)
	defer cancel()
	list, err := s.far.standings(ctx)
	if err != nil {
		return nil, "How the nodes stand is not known: " + err.Error()
	}
	live = make(map[string]site.NodeStatus, len(list))
	for _, n := range list {
		live[n.Name] = n
	}
	return live, ""
}

func (a *app) agentRevokeCommand() *cobra.Command {
	var reason string
	var undo bool
	c := &cobra.Command{
		Use:   "revoke NODE",
		Short: "Refuse a node from now on",
		Long: `Refuse a node from now on: its connections end, and neither its certificate nor its
token counts any more. What was made on it stays. With -undo its newest certificate
counts again.`,
		Example: `  converge agent revoke -reason="machine lost" gpu-01
  converge agent revoke -undo -reason="found again" gpu-01`,
		Args: exactly(1),
	}
	c.Flags().StringVar(&reason, "reason", "", "record `reason` in the audit log")
	c.Flags().BoolVar(&undo, "undo", false, "end the refusal")
	c.RunE = func(c *cobra.Command, args []string) error {
		s, err := a.open(c.Context(), nil, nil)
		if err != nil {
			return err
		}
		do, done := trust.Ban, "Node %s is refused from now on.\n"
		if undo {
			do, done = trust.Unban, "Node %s is admitted again.\n"
		}
		if err := do(c.Context(), s.store, args[0], reason, who()); err != nil {
			return &view.Problem{What: "nothing was changed for node " + args[0], Where: err.Error(), Fix: "To list the nodes: converge agent list", Err: err}
		}
		return a.did(false, map[string]any{"node": args[0], "refused": !undo}, fmt.Sprintf(done, args[0]))
	}
	return c
}
