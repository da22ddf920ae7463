package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"converge.dev/converge/cmd/internal/config"
	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/files"
	"converge.dev/converge/internal/retry"
	"converge.dev/converge/schema"
	"converge.dev/converge/site"
	"converge.dev/converge/state"
	"converge.dev/converge/trust"
)

// devDir is the default directory of a development site; mostNodes and mostReplicas are how many
// node agents and site agents one machine runs.
const (
	devDir       = "dev-site"
	mostNodes    = 200
	mostReplicas = 9
)

// A devSite is a whole site on one machine.
type devSite struct {
	serving
	dir      string
	nodes    int
	replicas int
	logs     []string // flags of this command that its site agents get, too
}

func (a *app) devSiteCommand() *cobra.Command {
	var d devSite
	c := &cobra.Command{
		Use:   "site [DIR]",
		Short: "Run a whole site on this machine until it is interrupted",
		Long: `Run a whole site on this machine: a simulated Carbide service, site agents with their
store, and for each node an agent and a guard, all in processes of their own. One that is
killed is started again, as a service manager would. What a node has is kept in a file,
agents/NODE/world.json, so nothing has to be installed. Its uplink, a host.link, is the
cable to its site: while that is down, gone or without its address, the node is cut off.
All files are in DIR (default: dev-site); when it exists, the site goes on as it was.

In another terminal, in DIR: change site.cue and write it to the store with converge put,
look at converge plan, drift, runs and agent list, change the world of a node and see it
put right, apply a document that takes an uplink away, or kill the site agent that keeps
the site (converge lock status names it).`,
		Example: `  converge dev site -nodes=2
  converge dev site -nodes=5 -replicas=3 -mode=observe lab`,
		Args: between(0, 1),
	}
	p := c.Flags()
	p.IntVar(&d.nodes, "nodes", 2, "`n`umber of nodes")
	p.IntVar(&d.replicas, "replicas", 1, "`n`umber of site agents; one keeps the site, the others wait to take over")
	p.StringVar(&d.mode, "mode", string(site.Enforce), "what a site agent may do by itself, a `mode`: observe, approve or enforce")
	p.StringVar(&d.listen, "listen", "127.0.0.1:0", "`address` of the site agent, HOST:PORT, of others the next ports; 0 picks free ones")
	p.DurationVar(&d.sweep, "sweep", time.Minute, "observe everything again after each `duration`")
	p.StringVar(&d.http, "http", noAddress, "`address` for health, state and the API, as for -listen, or none")
	p.StringVar(&d.metrics, "metrics", noAddress, "`address` for metrics, as for -listen, or none")
	_ = c.RegisterFlagCompletionFunc("mode", cobra.FixedCompletions(modes(), cobra.ShellCompDirectiveNoFileComp))
	c.RunE = func(c *cobra.Command, args []string) error {
		if d.dir = devDir; len(args) == 1 {
			d.dir = args[0]
		}
		_, nodes := os.Stat(agentsDir)
		_, simulator := os.Stat(filepath.Join(storeName, "dev"))
		switch {
		case len(args) == 0 && nodes == nil && simulator == nil:
			return &view.Problem{
				What: "this is the directory of a development site",
				Fix:  "To go on with that: converge dev site . To make another, name its directory: converge dev site DIR",
			}
		case d.nodes < 0 || d.nodes > mostNodes:
			return &view.Problem{What: fmt.Sprintf("invalid -nodes %d: want 0 to %d", d.nodes, mostNodes)}
		case d.replicas < 1 || d.replicas > mostReplicas:
			return &view.Problem{What: fmt.Sprintf("invalid -replicas %d: want 1 to %d", d.replicas, mostReplicas)}
		}
		for flag, address := range map[string]string{"listen": d.listen, "http": d.http, "metrics": d.metrics} {
			if _, port, err := net.SplitHostPort(address); err == nil {
				if n, err := strconv.ParseUint(port, 10, 16); err != nil || int(n)+d.replicas > 1<<16 {
					return &view.Problem{What: fmt.Sprintf("invalid -%s %q: want a port by its number, with %d above it", flag, address, d.replicas-1)}
				}
			}
		}
		if err := d.check(); err != nil {
			return err
		}
		c.InheritedFlags().Visit(func(f *pflag.Flag) {
			if slices.Contains([]string{"log-level", "log-format", "parallelism"}, f.Name) || strings.HasPrefix(f.Name, "etcd-") {
				d.logs = append(d.logs, "-"+f.Name+"="+strings.Trim(f.Value.String(), "[]"))
			}
		})
		return a.devSite(c.Context(), d)
	}
	return c
}

// node returns the name of the nth node, from 0, and uplink the address of its uplink.
func (devSite) node(n int) string   { return fmt.Sprintf("gpu-%02d", n+1) }
func (devSite) uplink(n int) string { return fmt.Sprintf("192.0.2.%d/24", n+11) }

// of returns the address of the nth site agent, from 0, for a flag that says that of the first one.
func (devSite) of(n int, first, port string) string {
	host, given, err := net.SplitHostPort(first)
	switch {
	case err != nil: // none
		return first
	case given == "0": // nobody else listens there: connections and listeners with a free port are on 127.0.0.1
		return net.JoinHostPort(fmt.Sprintf("127.%d.%d.%d", 1+rand.N(254), rand.N(256), 1+rand.N(254)), port)
	}
	number, _ := strconv.Atoi(given)
	return net.JoinHostPort(host, strconv.Itoa(number+n))
}

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
	if err := a.logAsService("dev"); err != nil {
		return err
	}
	doc, err := a.load(ctx, []string{documentName})
	if err != nil {
		return err
	}
	sch, err := a.schema()
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
	tokens, err := a.devStore(ctx, d, doc)
	if err != nil {
		return err
	}
	stop, err := simulateCarbide(filepath.Join(storeName, "dev"))
	if errors.Is(err, files.ErrInUse) {
		return &view.Problem{
			What: "the development site in " + d.dir + " is already running", Where: err.Error(),
			Fix: "Stop it first, or name another directory: converge dev site DIR", Err: err,
		}
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()

	ctx, end := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer end(nil)
	failed := func(what string, err error) {
		if err != nil && ctx.Err() == nil {
			end(&view.Problem{What: what + " ended", Where: err.Error(), Err: err})
		}
	}
	replicas := make([]string, d.replicas)
	for n := range replicas {
		replicas[n] = d.of(n, d.listen, nodesPort)
		serve := a.devServe(d, n, replicas[n])
		running.Go(func() { failed(serve.name, a.keepUp(ctx, serve)) })
	}
	if err := a.answers(ctx, filepath.Join(storeName, serveSock)); err != nil {
		return err
	}
	for n := range d.nodes {
		name, dir := d.node(n), filepath.Join(agentsDir, d.node(n))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		node, err := a.startNode(name, dir, d.uplink(n), sch.Kinds())
		if err != nil {
			return err
		}
		var servers []string
		for _, to := range replicas {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return errors.Join(err, node.stop())
			}
			servers = append(servers, strconv.Quote(l.Addr().String()))
			running.Go(func() { node.cable.lay(ctx, l, to) })
		}
		running.Go(func() {
			failed("node "+name, a.devNode(ctx, name, dir, servers, tokens[name]))
			if err := node.stop(); err != nil {
				a.log.Error("the world of a node could not be written", "node", name, "error", err)
			}
		})
	}
	where := "The site runs in " + d.dir + ". In another terminal: cd " + d.dir
	if d.dir == "." {
		where = "The site runs in this directory."
	}
	a.view.Note(where + "\nPress Ctrl-C to stop it.")
	<-ctx.Done()
	if a.signal.Load() != nil {
		return nil
	}
	return context.Cause(ctx)
}

// devStore writes the document to the store unless one is there, and returns a token for each node that has not enrolled. It leaves the
// store to the site agents.
func (a *app) devStore(ctx context.Context, d devSite, doc *schema.Document) (tokens map[string]string, err error) {
	before := len(a.closers)
	defer func() {
		for ; len(a.closers) > before; a.closers = a.closers[:len(a.closers)-1] {
			a.closers[len(a.closers)-1]()
		}
	}()
	s, err := a.openOr(ctx, nil, nil, create)
	if err != nil {
		return nil, err
	}
	if _, err := s.store.Head(ctx); errors.Is(err, state.ErrNotFound) {
		if _, err := s.store.PutSigned(ctx, doc.JSON, doc.Digest, nil, doc.Site.Serial, who(), 0); err != nil {
			return nil, err
		}
	}
	keys, _, err := a.authority("")
	if err != nil {
		return nil, err
	}
	tokens = map[string]string{}
	for n := range d.nodes {
		if _, err := trust.OpenIdentity(filepath.Join(agentsDir, d.node(n), identityDir), trust.IdentityOptions{}); errors.Is(err, fs.ErrNotExist) {
			if tokens[d.node(n)], err = keys.CreateToken(ctx, s.store, d.node(n), trust.TokenOptions{By: who()}); err != nil {
				return nil, err
			}
		}
	}
	return tokens, nil
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
		doc += "\n// Each node has a bridge for its slices, with the port of the first one, and the link by which it reaches the site.\nnodes: {\n"
		for n := range d.nodes {
			doc += fmt.Sprintf("\t%q: {\n\t\tovs: bridge: \"br-slice\": {fail_mode: \"secure\", mcast_snooping_enable: true}\n"+
				"\t\tovs: port: \"slice-0\": {bridge: \"br-slice\", tag: 100, interface: type: \"internal\"}\n"+
				"\t\thost: link: %s: {type: \"physical\", state: \"up\", addresses: [%q], lifecycle: adopt: \"match\"}\n\t}\n", d.node(n), uplinkName, d.uplink(n))
		}
		doc += "}\n"
	}
	for name, text := range map[string]string{
		config.Name: "site: dev\n\n# The site agent, through which the nodes are reached.\nserver: unix:" + filepath.Join(storeName, serveSock) +
			"\n\n# What cuts a node off is undone there, unless the node is reached anew within this time.\npolicy: {guard: 30s}\n\n# The simulated Carbide service.\ncarbide:\n  address: unix:" + filepath.Join(storeName, "dev", "site.sock") + "\n  tls: {mode: \"off\"}\n",
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

// identityDir is the folder of what a node got when it enrolled, in the folder of the node.
const identityDir = "identity"

// devServe returns how the nth site agent is run, from 0, which listens at an address.
func (a *app) devServe(d devSite, n int, address string) devProcess {
	p := devProcess{name: "site agent", args: append([]string{"serve", "-until-eof", "-host=127.0.0.1", "-listen=" + address, "-mode=" + d.mode, "-sweep=" + d.sweep.String()}, d.logs...)}
	p.args = append(p.args, "-http="+d.of(n, d.http, portOf(serveHTTP)), "-metrics="+d.of(n, d.metrics, portOf(serveMetrics)))
	if n > 0 { // commands on this machine use the socket of the first one
		p.name = fmt.Sprintf("site agent %d", n+1)
		p.args = append(p.args, "-socket="+filepath.Join(storeName, fmt.Sprintf("serve-%d.sock", n+1)))
	}
	return p
}

// portOf returns the port of an address that has one.
func portOf(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return port
}

// devNode enrols a node unless it has, and runs its agent and its guard until ctx is done. Servers are the addresses of the site, in YAML.
func (a *app) devNode(ctx context.Context, node, dir string, servers []string, token string) error {
	path := filepath.Join(dir, config.AgentName)
	text := "servers: [" + strings.Join(servers, ", ") + "]\nguard: guard\nfake: {server: \"unix:" + nodeSock + "\"}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	if token != "" {
		server, err := strconv.Unquote(servers[0])
		if err != nil {
			return err
		}
		enrol := a.itself(ctx, "agent", "bootstrap", "-server="+server, "-token-file=-", "-dir="+filepath.Join(dir, identityDir))
		enrol.Stdin = strings.NewReader(token)
		if out, err := enrol.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
		}
	}
	both, ctx := errgroup.WithContext(ctx)
	keepUp := func(service string) {
		both.Go(func() error {
			return a.keepUp(ctx, devProcess{"agent " + service + " of node " + node, []string{"agent", service, "-config=" + path, "-until-eof", "-log-level=warn"}})
		})
	}
	keepUp("guard")
	if err := a.answers(ctx, filepath.Join(dir, "guard", "guard.sock")); err == nil { // without it no run can begin on the node
		keepUp("run")
	}
	return both.Wait()
}

// A devProcess is a service of a development site.
type devProcess struct {
	name string
	args []string
}

// again is how soon a service that has ended is started again.
var again = retry.Policy{First: time.Second, Cap: time.Minute}

// keepUp runs a service until ctx is done, and starts it again when it ends, as a service manager would. It fails when the service does
// the first time: then something is wrong with what it was given.
func (a *app) keepUp(ctx context.Context, p devProcess) error {
	pause := again.Pauses()
	for first := true; ctx.Err() == nil; first = false {
		begun := time.Now()
		run := a.itself(ctx, p.args...)
		run.Stderr = a.sys.Stderr
		pipe, err := run.StdinPipe() // it ends with this process, whatever happens to that
		if err == nil {
			err = errors.Join(run.Run(), pipe.Close())
		}
		var exit *exec.ExitError
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && (!errors.As(err, &exit) || first && exit.Exited()):
			return err
		}
		if time.Since(begun) > again.Cap {
			pause = again.Pauses()
		}
		a.log.Warn("a process has ended and is started again", "process", p.name, "error", err)
		_ = retry.Sleep(ctx, pause())
	}
	return nil
}

// answers waits until something answers at a socket.
func (a *app) answers(ctx context.Context, socket string) error {
	return retry.Policy{First: 20 * time.Millisecond, Cap: 200 * time.Millisecond}.Do(ctx, func() (bool, error) {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return false, err
		}
		return true, conn.Close()
	})
}

// itself returns a command of this program.
func (a *app) itself(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, a.sys.Executable, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what is typed at the terminal reaches it once, by Cancel
	cmd.WaitDelay = 30 * time.Second
	cmd.Env = a.sys.Environ
	return cmd
}
