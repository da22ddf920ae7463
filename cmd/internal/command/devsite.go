package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/config"
	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/retry"
	"converge.dev/converge/schema"
	"converge.dev/converge/site"
	"converge.dev/converge/state"
	"converge.dev/converge/trust"
)

// devDir is the default directory of a development site; mostNodes is how many node agents one machine runs.
const (
	devDir    = "dev-site"
	mostNodes = 200
)

// A devSite is a whole site on one machine.
type devSite struct {
	serving
	dir   string
	nodes int
}

func (a *app) devSiteCommand() *cobra.Command {
	var d devSite
	c := &cobra.Command{
		Use:   "site [DIR]",
		Short: "Run a whole site on this machine until it is interrupted",
		Long: `Run a whole site on this machine: a simulated Carbide service, a site agent with its
store, and a node agent for each node, in a process of its own. What a node has is kept
in a file, agents/NODE/world.json, so nothing has to be installed. All files are in DIR
(default: dev-site); when it exists, the site goes on as it was.

In another terminal, in DIR: change site.cue and write it to the store with converge put,
look at converge plan, drift, runs and agent list, or change the world of a node and
see it put right.`,
		Example: `  converge dev site -nodes=2
  converge dev site -nodes=5 -mode=observe lab`,
		Args: between(0, 1),
	}
	p := c.Flags()
	p.IntVar(&d.nodes, "nodes", 2, "`n`umber of nodes")
	p.StringVar(&d.mode, "mode", string(site.Enforce), "what the site agent may do by itself, a `mode`: observe, approve or enforce")
	p.StringVar(&d.listen, "listen", "127.0.0.1:0", "`address` of the site agent, HOST:PORT; port 0 picks a free one")
	p.DurationVar(&d.sweep, "sweep", time.Minute, "observe everything again after each `duration`")
	_ = c.RegisterFlagCompletionFunc("mode", cobra.FixedCompletions(modes(), cobra.ShellCompDirectiveNoFileComp))
	c.RunE = func(c *cobra.Command, args []string) error {
		if d.dir = devDir; len(args) == 1 {
			d.dir = args[0]
		}
		if d.nodes < 0 || d.nodes > mostNodes {
			return &view.Problem{What: fmt.Sprintf("invalid -nodes %d: want 0 to %d", d.nodes, mostNodes)}
		}
		if err := d.check(); err != nil {
			return err
		}
		return a.devSite(c.Context(), d)
	}
	return c
}

// node returns the name of the nth node, from 0.
func (devSite) node(n int) string { return fmt.Sprintf("gpu-%02d", n+1) }

// devSite runs a development site until ctx is done.
func (a *app) devSite(ctx context.Context, d devSite) (err error) {
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return err
	}
	if err := os.Chdir(d.dir); err != nil { // it is the workspace of everything below
		return err
	}
	if err := d.write(); err != nil {
		return err
	}
	doc, err := a.load(ctx, []string{documentName})
	if err != nil {
		return err
	}
	keys := filepath.Join(storeName, trustDir)
	if _, err := os.Stat(keys); errors.Is(err, fs.ErrNotExist) {
		about := schema.Site{Name: doc.Site.Name, ID: doc.Site.ID}
		if _, err := trust.Init(keys, about, 1, trust.NewRoots(1), trust.Options{Dev: true}); err != nil {
			return err
		}
	}
	stop, err := simulateCarbide(filepath.Join(storeName, "dev"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()

	ctx, end := context.WithCancelCause(ctx)
	var agents sync.WaitGroup
	defer agents.Wait()
	defer end(nil)
	return a.serve(ctx, d.serving, func(at serves) error {
		if _, err := at.store.Head(ctx); errors.Is(err, state.ErrNotFound) {
			if _, err := at.store.PutSigned(ctx, doc.JSON, doc.Digest, nil, doc.Site.Serial, who(), 0); err != nil {
				return err
			}
		}
		for n := range d.nodes {
			agents.Go(func() {
				if err := a.devAgent(ctx, at, d.node(n)); err != nil && ctx.Err() == nil {
					end(&view.Problem{What: "the agent of node " + d.node(n) + " ended", Where: err.Error(), Err: err})
				}
			})
		}
		where := "The site runs in " + d.dir + ". In another terminal: cd " + d.dir
		if d.dir == "." {
			where = "The site runs in this directory."
		}
		a.view.Note(where + "\nPress Ctrl-C to stop it.")
		return nil
	})
}

// write writes those files of a development site that do not exist yet.
func (d devSite) write() error {
	id := uuid.NewString()
	doc := `apiVersion: "converge.dev/v1"

site: {name: "dev", id: "` + id + `"}

carbide: {
	tenant: acme: {}
	vpc: prod: tenant: "acme"
}
`
	if d.nodes > 0 {
		doc += "\n// Each node has a bridge for its slices, with the port of the first one.\nnodes: {\n"
		for n := range d.nodes {
			doc += fmt.Sprintf("\t%q: ovs: {\n\t\tbridge: \"br-slice\": {fail_mode: \"secure\", mcast_snooping_enable: true}\n"+
				"\t\tport: \"slice-0\": {bridge: \"br-slice\", tag: 100, interface: type: \"internal\"}\n\t}\n", d.node(n))
		}
		doc += "}\n"
	}
	for name, text := range map[string]string{
		config.Name: "site: dev\n\n# The site agent, through which the nodes are reached.\nserver: unix:" + filepath.Join(storeName, serveSock) +
			"\n\n# The simulated Carbide service.\ncarbide:\n  address: unix:" + filepath.Join(storeName, "dev", "site.sock") + "\n  tls: {mode: \"off\"}\n",
		documentName: doc,
		ignoreName:   "/" + storeName + "/\n/agents/\n",
	} {
		if err := writeNew(name, []byte(text)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// simulateCarbide serves a simulated Carbide site with its world and its sockets in a directory, until stop is called.
func simulateCarbide(dir string) (stop func() error, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	world, err := carbidesim.New(carbidesim.Options{
		Generation: carbidesim.May, File: filepath.Join(dir, "carbide.json"), Hosts: carbidesim.Hosts{Count: 8, Lived: true}, Timing: carbidesim.FastTiming,
		Rules: carbidesim.Rules{Peering: carbidesim.PeeringMixed},
	})
	if err != nil {
		return nil, err
	}
	server, err := carbidesim.NewServer(world, carbidesim.ServerOptions{Control: filepath.Join(dir, "carbide.sock")})
	if err != nil {
		return nil, errors.Join(err, world.Close())
	}
	l, err := listenLocal(filepath.Join(dir, "site.sock"))
	if err != nil {
		server.Stop()
		return nil, errors.Join(err, world.Close())
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	return func() error {
		server.Stop()
		return errors.Join(<-ended, world.Close())
	}, nil
}

// devAgent runs the agent of a node in a process of its own, and enrols it before that if it has not enrolled yet.
func (a *app) devAgent(ctx context.Context, at serves, node string) error {
	dir := filepath.Join("agents", node)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(at.address)
	if err != nil {
		return err
	}
	address := net.JoinHostPort("127.0.0.1", port)
	path := filepath.Join(dir, config.AgentName)
	if err := os.WriteFile(path, []byte("servers: [\""+address+"\"]\nfake: {world: world.json}\n"), 0o600); err != nil {
		return err
	}
	identity := filepath.Join(dir, "identity")
	if _, err := trust.OpenIdentity(identity, trust.IdentityOptions{}); errors.Is(err, fs.ErrNotExist) {
		token, err := at.keys.CreateToken(ctx, at.store, node, trust.TokenOptions{By: who()})
		if err != nil {
			return err
		}
		enrol := a.itself(ctx, "agent", "bootstrap", "-server="+address, "-token-file=-", "-dir="+identity)
		enrol.Stdin = strings.NewReader(token)
		if out, err := enrol.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
		}
	}
	for pause := again.Pauses(); ; { // one that ends is started again, as a service manager would
		run := a.itself(ctx, "agent", "run", "-config="+path, "-until-eof", "-log-level=warn")
		pipe, err := run.StdinPipe() // it ends with this process, whatever happens to that
		if err != nil {
			return err
		}
		run.Stderr = a.sys.Stderr
		err = errors.Join(run.Run(), pipe.Close())
		if ctx.Err() != nil {
			return nil
		}
		a.log.Warn("a node agent has ended and is started again", "node", node, "error", err)
		if err := retry.Sleep(ctx, pause()); err != nil {
			return nil
		}
	}
}

// again is how soon a node agent that has ended is started again.
var again = retry.Policy{First: time.Second, Cap: time.Minute}

// itself returns a command of this program.
func (a *app) itself(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, a.sys.Executable, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what is typed at the terminal reaches it once, by Cancel
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = a.sys.Environ
	return cmd
}
