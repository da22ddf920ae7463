package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/carbidesim/devcert"
	"converge.dev/converge/internal/files"
)

func (a *app) devCommand() *cobra.Command {
	return group("dev", "Rehearse without a site", "Simulated systems for development and rehearsal without a site.", a.devSiteCommand(), a.devCarbideCommand(), a.devWorldCommand())
}

// simulating are the flags of the simulator.
type simulating struct {
	listen   string
	world    string
	tlsDir   string
	plain    bool
	roles    bool
	fast     bool
	machines int
	seed     uint64
	version  string
	faults   []string
}

func (a *app) devCarbideCommand() *cobra.Command {
	var f simulating
	var control string
	c := &cobra.Command{
		Use:   "carbide",
		Short: "Run a simulated Carbide site until it is interrupted",
		Long: `Run a simulated Carbide site until it is interrupted, and print the settings for
converge.yaml. It follows the rules and the timing of the real service; with -fast it
goes through the same states in milliseconds.

The other commands inspect and control it through its control socket.`,
		Example: `  converge dev carbide -fast -machines=16
  converge dev carbide -world=carbide.json
  converge dev carbide fault '{"method": "CreateVpc", "effect": "reply-lost"}'
  converge dev carbide call FindVpcIds '{}'
  converge dev carbide dump`,
		Args: subcommand,
	}
	c.PersistentFlags().StringVar(&control, "control", "", "`path` of the control socket (default dev/carbide.sock in -data-dir)")
	p := c.Flags()
	p.StringVar(&f.listen, "listen", "127.0.0.1:1079", "`address` to listen on, HOST:PORT; port 0 picks a free one")
	p.StringVar(&f.world, "world", "", "keep the world in this `file`")
	p.StringVar(&f.tlsDir, "tls-dir", "", "`dir`ectory of the certificates, created when missing (default dev/tls in -data-dir)")
	p.BoolVar(&f.plain, "plain", false, "serve without TLS")
	p.BoolVar(&f.roles, "roles", false, "permit only the calls that a real site permits its agent, so no SKUs")
	p.BoolVar(&f.fast, "fast", false, "complete every operation in milliseconds")
	p.IntVar(&f.machines, "machines", 8, "`n`umber of machines at the site")
	p.Uint64Var(&f.seed, "seed", 0, "seed, a `n`umber: a different one gives different ids and machines")
	p.StringVar(&f.version, "generation", string(carbidesim.May), "`version` of the service to simulate: may, august (v2.0), september or next")
	_ = c.RegisterFlagCompletionFunc("generation", cobra.FixedCompletions(generations(), cobra.ShellCompDirectiveNoFileComp))
	p.StringArrayVar(&f.faults, "fault", nil, "fault to inject, as `json`; may be repeated")
	c.RunE = func(c *cobra.Command, _ []string) error { return a.simulate(c.Context(), f, a.controlPath(control)) }

	steer := func(use, short, long, example string, args cobra.PositionalArgs, do func(context.Context, *carbidesim.Control, []string) error) *cobra.Command {
		child := &cobra.Command{Use: use, Short: short, Long: long, Example: example, Args: args}
		child.RunE = func(c *cobra.Command, args []string) error {
			client := carbidesim.NewControl(a.controlPath(control))
			defer client.Close()
			err := do(c.Context(), client, args)
			var unreached *net.OpError
			switch {
			case errors.As(err, &unreached) && unreached.Op == "dial":
				return &view.Problem{What: "no simulated site is reachable", Where: a.controlPath(control) + ": " + unreached.Err.Error(), Fix: "Start one with converge dev carbide, or give the directory of a running one with -data-dir, or its control socket with -control.", Err: err}
			case err != nil:
				return &view.Problem{What: "the request to the simulator failed", Where: err.Error(), Fix: "Its control socket is " + a.controlPath(control) + "; choose another with -control.", Err: err}
			}
			return nil
		}
		c.AddCommand(child)
		return child
	}
	var full bool
	dump := steer("dump", "Print the simulated world", "Print the live world without tokens, times and burned ids; with -full, print everything.", "  converge dev carbide dump",
		exactly(0), func(ctx context.Context, c *carbidesim.Control, _ []string) error {
			world, err := c.World(ctx, full)
			_, _ = a.out.Write(world)
			return err
		})
	dump.Flags().BoolVar(&full, "full", false, "everything")
	steer("fault [JSON | clear]", "Inject a fault", `Inject a fault, list the faults that can still occur, or clear them. The effects are
before, after, reply-lost, cut, slow, hang, late, half and stale.`, `  converge dev carbide fault '{"method": "CreateVpc", "nth": 2, "effect": "hang"}'
  converge dev carbide fault clear`, between(0, 1), a.steerFault)
	steer("call METHOD [JSON]", "Make a call as another client", "Make a call as another client, bypassing converge. The request is JSON; - reads it from standard input.",
		`  converge dev carbide call DeleteVpc '{"id": {"value": "5a2f…"}}'`, between(1, 2), a.steerCall)
	steer("advance DURATION", "Move the simulated clock", "Move the simulated clock forward.", "  converge dev carbide advance 10m", exactly(1),
		func(ctx context.Context, c *carbidesim.Control, args []string) error {
			d, err := time.ParseDuration(args[0])
			if err != nil {
				return err
			}
			return c.Advance(ctx, d)
		})
	steer("calls", "Count the calls so far", "Print how often each method has been called.", "  converge dev carbide calls", exactly(0),
		func(ctx context.Context, c *carbidesim.Control, _ []string) error {
			calls, err := c.Calls(ctx)
			if err != nil {
				return err
			}
			if a.flags.json {
				return a.printJSON(calls)
			}
			for _, name := range slices.Sorted(maps.Keys(calls)) {
				a.print(fmt.Sprintf("%6d %s\n", calls[name], name))
			}
			return nil
		})
	return c
}

func (a *app) controlPath(path string) string {
	if path != "" {
		return path
	}
	dir, err := a.storeDir(nil)
	if err != nil { // a folder above that cannot be read does not matter
		dir = storeName
	}
	return filepath.Join(dir, "dev", "carbide.sock")
}

func (a *app) steerFault(ctx context.Context, c *carbidesim.Control, args []string) error {
	switch {
	case len(args) == 0:
		faults, err := c.Faults(ctx)
		if err != nil {
			return err
		}
		return a.printJSON(faults)
	case args[0] == "clear":
		return c.ClearFaults(ctx)
	}
	fault, err := readFault(args[0])
	if err != nil {
		return err
	}
	return c.Inject(ctx, fault)
}

func readFault(text string) (f carbidesim.Fault, err error) {
	if err = json.Unmarshal([]byte(text), &f); err != nil {
		err = fmt.Errorf(`%w; want JSON such as {"method": "CreateVpc", "effect": "reply-lost"}`, err)
	}
	return f, err
}

func (a *app) steerCall(ctx context.Context, c *carbidesim.Control, args []string) error {
	request := []byte("{}")
	if len(args) == 2 {
		request = []byte(args[1])
	}
	if string(request) == "-" {
		var err error
		if request, err = io.ReadAll(a.sys.Stdin); err != nil {
			return err
		}
	}
	reply, err := c.Call(ctx, args[0], request)
	_, _ = a.out.Write(reply)
	return err
}

// generations are the values of -generation.
func generations() []string {
	words := make([]string, len(carbidesim.Generations))
	for i, g := range carbidesim.Generations {
		words[i] = string(g)
	}
	return words
}

// mostMachines is how many machines fit into the networks of a simulated site.
const mostMachines = 100_000

// simulate serves a simulated site until ctx ends.
func (a *app) simulate(ctx context.Context, f simulating, control string) (err error) {
	if f.machines < 0 || f.machines > mostMachines {
		return &view.Problem{What: fmt.Sprintf("invalid -machines %d: want 0 to %d", f.machines, mostMachines)}
	}
	if words := generations(); !slices.Contains(words, f.version) {
		return &view.Problem{What: fmt.Sprintf("invalid -generation %s: want one of %s", f.version, strings.Join(words, ", "))}
	}
	o := carbidesim.Options{
		Generation: carbidesim.Generation(f.version), Seed: f.seed, File: f.world, Hosts: carbidesim.Hosts{Count: f.machines, Lived: true},
		Rules: carbidesim.Rules{Peering: carbidesim.PeeringMixed},
	}
	if f.fast {
		o.Timing = carbidesim.FastTiming
	}
	world, err := carbidesim.New(o)
	if errors.Is(err, files.ErrInUse) {
		return &view.Problem{What: "another simulated site is using this world file", Where: f.world, Fix: "Stop it, or choose another file with -world.", Err: err}
	}
	if err != nil {
		return err
	}
	defer func() {
		if cerr := world.Close(); err == nil {
			err = cerr
		}
	}()
	for _, text := range f.faults {
		fault, err := readFault(text)
		if err == nil {
			err = world.Inject(fault)
		}
		if err != nil {
			return &view.Problem{What: "-fault: " + err.Error()}
		}
	}
	if err := os.MkdirAll(filepath.Dir(control), 0o700); err != nil {
		return err
	}
	so := carbidesim.ServerOptions{Control: control}
	var certs devcert.Files
	if !f.plain {
		if certs, err = a.certificates(f); err != nil {
			return err
		}
		so.CertFile, so.KeyFile, so.ClientCA = certs.ServerCert, certs.ServerKey, certs.CA
		if f.roles {
			so.Roles = carbidesim.DefaultRoles
		}
	}
	server, err := carbidesim.NewServer(world, so)
	switch {
	case errors.Is(err, carbidesim.ErrInUse):
		return &view.Problem{What: "a simulated site is already running here", Where: control, Fix: "Stop it, or choose another directory with -data-dir, or another control socket with -control.", Err: err}
	case err != nil:
		return &view.Problem{What: "the simulated site could not be started", Where: err.Error(), Err: err}
	}
	defer server.Stop()
	l, err := net.Listen("tcp", f.listen)
	if err != nil {
		return &view.Problem{What: "cannot listen on the address", Where: err.Error(), Fix: "Choose another with -listen=HOST:PORT; port 0 picks a free one.", Err: err}
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	a.announce(l.Addr().String(), certs, control)
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		a.view.Note("The simulated site has stopped.")
		server.Stop()
		<-ended
		return nil
	}
}

// certificates returns the certificates of the simulated site with absolute paths.
func (a *app) certificates(f simulating) (devcert.Files, error) {
	dir := f.tlsDir
	if dir == "" {
		store, err := a.storeDir(nil)
		if err != nil {
			return devcert.Files{}, err
		}
		dir = filepath.Join(store, "dev", "tls")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return devcert.Files{}, err
	}
	hosts := []string{"localhost", "127.0.0.1", "::1"}
	if host, _, err := net.SplitHostPort(f.listen); err == nil && host != "" && !slices.Contains(hosts, host) {
		hosts = append(hosts, host)
	}
	return devcert.Ensure(dir, hosts...)
}

// announce prints what converge.yaml has to contain.
func (a *app) announce(address string, certs devcert.Files, control string) {
	if a.flags.json {
		_ = a.printJSON(map[string]any{"address": address, "control": control, "ca": certs.CA, "cert": certs.ClientCert, "key": certs.ClientKey})
		return
	}
	text := "# A simulated Carbide site is ready. Add this to converge.yaml:\ncarbide:\n  address: " + address + "\n"
	if certs.CA == "" {
		text += "  tls: {mode: \"off\"}\n"
	} else {
		text += fmt.Sprintf("  tls:\n    ca: %s\n    cert: %s\n    key: %s\n", certs.CA, certs.ClientCert, certs.ClientKey)
	}
	a.print(text)
	a.view.Note("Control socket: " + control + "\nPress Ctrl-C to stop it.")
}
