package command

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine"
	"converge.dev/converge/engine/drift"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/secret/sealed"
	"converge.dev/converge/internal/files"
	"converge.dev/converge/internal/nearest"
	"converge.dev/converge/internal/retry"
	"converge.dev/converge/internal/reverse"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide"
	"converge.dev/converge/schema"
	"converge.dev/converge/site"
	"converge.dev/converge/site/api"
	"converge.dev/converge/state"
	"converge.dev/converge/trust"
)

// serving are the flags of a site agent.
type serving struct {
	listen string
	hosts  []string
	mode   string
	sweep  time.Duration
	trust  string
	socket string

	http, metrics string // addresses; empty or none: not served
}

// The defaults of a site agent, below the directory of the store.
const (
	trustDir   = "trust"
	serveSock  = "serve.sock"
	nodesPort  = "7443"
	serveSweep = 10 * time.Minute

	serveHTTP    = "127.0.0.1:7480"
	serveMetrics = "127.0.0.1:7490"
	noAddress    = "none" // nothing is served
)

func (a *app) serveCommand() *cobra.Command {
	var f serving
	var untilEOF bool
	c := &cobra.Command{
		Use:   "serve",
		Short: "Keep the site as its document says",
		Long: `Run the site agent until it is interrupted: follow the document and the site, report
drift to the store (drift/latest, status), and apply what the mode allows. Node agents
connect to it; so do commands on this machine, through its socket.

In mode observe it only reports. In mode approve it also applies what people approve with
converge approve. In mode enforce it also applies, without asking, what interrupts nothing
and can be undone exactly, within the budgets; anything else waits for converge approve,
or converge apply. The document's policy.reconcile can lower the mode for some kinds and
scopes, never raise it: of the two, the more careful one holds.
Runs are the same as those of converge apply, under the same lock: both exclude each
other run by run, converge runs lists them all, and a hold or a freeze stops both.

How it stands is served by HTTP: /healthz, /readyz, /state, and the data of the site
below /v1 (-http); /metrics for Prometheus on a port of its own (-metrics). Reading
knows no users: by default both listen on this machine only. Writing (the document,
approvals, holds, cancelling) needs TLS and a client certificate that has the role, as
https.clients.roles of converge.yaml says.

The keys that nodes trust are in a directory that converge trust init makes.`,
		Example: `  converge trust init -roots=/media/usb site.cue
  converge serve -mode=enforce
  converge serve -listen=:7443 -host=site.example`,
		Args: exactly(0),
	}
	p := c.Flags()
	p.StringVar(&f.listen, "listen", "127.0.0.1:"+nodesPort, "`address` to listen on for node agents, HOST:PORT")
	p.StringSliceVar(&f.hosts, "host", nil, "comma-separated `names` by which node agents reach it; default: the host of -listen")
	p.StringVar(&f.mode, "mode", string(site.Observe), "the most that it may do by itself, a `mode`: observe, approve or enforce")
	p.DurationVar(&f.sweep, "sweep", serveSweep, "observe everything again after each `duration`")
	trustDirFlag(c, &f.trust)
	p.StringVar(&f.socket, "socket", "", "`path` of the socket for commands on this machine; default: serve.sock in -data-dir")
	p.StringVar(&f.http, "http", serveHTTP, "`address` for health, state and the API, HOST:PORT, or none")
	p.StringVar(&f.metrics, "metrics", serveMetrics, "`address` for metrics, HOST:PORT, or none")
	untilEOFFlag(c, &untilEOF)
	_ = c.RegisterFlagCompletionFunc("mode", cobra.FixedCompletions(modes(), cobra.ShellCompDirectiveNoFileComp))
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := f.check(); err != nil {
			return err
		}
		ctx, stop := a.untilEOF(c.Context(), untilEOF)
		defer stop()
		return a.serve(ctx, f)
	}
	return c
}

func modes() (words []string) {
	for _, m := range site.Modes {
		words = append(words, string(m))
	}
	return words
}

func (f *serving) check() error {
	for flag, address := range map[string]string{"http": f.http, "metrics": f.metrics} {
		if _, _, err := net.SplitHostPort(address); address != "" && address != noAddress && err != nil {
			return &view.Problem{What: fmt.Sprintf("invalid -%s %q: want HOST:PORT, or none", flag, address)}
		}
	}
	switch host, _, err := net.SplitHostPort(f.listen); {
	case err != nil:
		return &view.Problem{What: fmt.Sprintf("invalid -listen %q: want HOST:PORT", f.listen)}
	case !slices.Contains(modes(), f.mode):
		return &view.Problem{What: fmt.Sprintf("invalid -mode %q", f.mode), Fix: "Use " + strings.Join(modes(), ", ") + "." + nearest.DidYouMean(f.mode, modes())}
	case f.sweep < time.Second:
		return &view.Problem{What: fmt.Sprintf("invalid -sweep %v: want at least 1s", f.sweep)}
	case len(f.hosts) == 0 && (host == "" || net.ParseIP(host).IsUnspecified()):
		if name, err := os.Hostname(); err == nil {
			f.hosts = []string{name}
		}
	case len(f.hosts) == 0:
		f.hosts = []string{host}
	}
	return nil
}

// authority opens the keys of the site. The directory is that of a flag, or below that of the store.
func (a *app) authority(dir string) (*trust.Authority, string, error) {
	if dir == "" {
		store, err := a.storeDir(nil)
		if err != nil {
			return nil, "", err
		}
		dir = filepath.Join(store, trustDir)
	}
	authority, err := trust.Open(dir, trust.Options{Dev: true}) // which uses root keys that are there, and wants none
	if errors.Is(err, fs.ErrNotExist) {
		return nil, dir, &view.Problem{What: "the site has no keys for its nodes yet", Where: dir, Fix: "Make them with converge trust init, or name their directory with -trust-dir.", Err: err}
	}
	if err != nil {
		return nil, dir, &view.Problem{What: "the keys of the site cannot be used", Where: err.Error(), Err: err}
	}
	return authority, dir, nil
}

// serve runs a site agent until ctx is done.
func (a *app) serve(ctx context.Context, f serving) (err error) {
	if err := a.logAsService("serve"); err != nil {
		return err
	}
	s, err := a.openOr(ctx, nil, nil, create)
	if err != nil {
		return err
	}
	if server, err := a.server(s.conf); err != nil || a.remote(server) {
		return cmp.Or(err, error(&view.Problem{What: "a site agent needs the store itself, not another site agent", Where: "the server is " + server.Address, Fix: "Remove it, or name etcd with -etcd-endpoints."}))
	}
	keys, err := s.siteKeys(f.trust)
	if err != nil {
		return err
	}
	s.id = keys.Site().ID
	socket := f.socket
	if socket == "" {
		dir, err := a.storeDir(nil)
		if err != nil {
			return err
		}
		socket = filepath.Join(dir, serveSock)
	}

	ctx, stop := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop(nil)
	admission := trust.NewAdmission(s.store)
	var agent *site.Agent // is there before the first node can come
	nodes := site.NewNodes(site.NodesOptions{
		Site: keys.Site().ID,
		Who: func(c tls.ConnectionState) (string, error) {
			node, err := trust.NodeOf(c)
			if err != nil {
				return "", err
			}
			return node, admission.Check(node, c.PeerCertificates[0].SerialNumber)
		},
		Replaced: func(c tls.ConnectionState) bool {
			node, err := trust.NodeOf(c)
			return err == nil && admission.Replaced(node, c.PeerCertificates[0].SerialNumber)
		},
		Key: func() (ed25519.PrivateKey, int64, error) {
			key, _, err := keys.SignKey()
			return key, keys.Document().Version, err
		},
		Epoch: s.store.Epoch, Keeps: s.discreet, Changed: func() { agent.Look(); s.inventory.Soon() }, Logger: a.log,
	})
	s.far = &farSide{open: nodes.Open, offers: func(context.Context) ([]providers.Need, error) { return nodes.Reached(), nil }}
	if s.certs, err = s.openCertificates(ctx, f, keys); err != nil {
		return err
	}
	shown := s.api(f, nodes, keys)
	if err = s.openEvents(keys.Site(), nodes, shown); err != nil {
		return err
	}
	s.inventory = site.NewInventory(site.InventoryOptions{
		Engine: func() (*engine.Engine, error) { return s.engineOf(func(event.Event) {}) }, Site: keys.Site(),
		Reached: func() []providers.Need { return s.reached(ctx) }, Taken: shown.Inventoried, Every: f.sweep, Logger: s.log,
	})
	if agent, err = s.siteAgent(ctx, f, nodes, keys.Site().ID, shown); err != nil {
		return err
	}

	// Node agents, and those that enrol.
	l, err := net.Listen("tcp", f.listen)
	if err != nil {
		return &view.Problem{What: "cannot listen on the address", Where: err.Error(), Fix: "Choose another with -listen=HOST:PORT.", Err: err}
	}
	port := reverse.Listen(l, reverse.Options{TLS: keys.TLS(admission.Check, f.hosts...), Node: nodes.Attend, Logger: a.log})
	defer port.Close()
	public := grpc.NewServer(grpc.Creds(reverse.Credentials()), grpc.ConnectionTimeout(20*time.Second), grpc.MaxRecvMsgSize(64<<10), grpc.MaxConcurrentStreams(4),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: 30 * time.Second, MaxConnectionAge: 2 * time.Minute, MaxConnectionAgeGrace: 10 * time.Second})) // strangers are let in
	trust.Serve(public, keys, s.store, a.log)
	nodes.Hear(public)
	running.Go(func() { _ = public.Serve(port) })
	defer public.Stop()
	running.Go(func() { s.admitNodes(ctx, admission, nodes) })
	running.Go(func() { s.renewKeys(ctx, keys) })

	// Commands on this machine.
	beside, err := listenLocal(socket)
	if err != nil {
		return err
	}
	local := grpc.NewServer()
	site.Relay(local, nodes, a.log)
	running.Go(func() { _ = local.Serve(beside) })
	defer local.Stop()

	until, closeWeb := context.WithCancel(context.WithoutCancel(ctx)) // until the last run has ended
	defer closeWeb()
	for _, w := range []web{{"http", f.http, shown.Handler(), s.certs.tls(until, &running)}, {"metrics", f.metrics, shown.Metrics(), nil}} {
		if err := a.serveWeb(until, &running, shown, w); err != nil {
			return err
		}
	}

	a.log.Info("site agent started", "site", s.site, "mode", f.mode, "listen", l.Addr().String(), "socket", socket)
	if err = s.keep(ctx, agent, nodes, shown); a.signal.Load() != nil || errors.Is(context.Cause(ctx), io.EOF) {
		a.log.Info("site agent stopped")
		return nil
	}
	return err
}

// A web is what is served by HTTP at one address, which a flag says.
type web struct {
	flag, address string
	handler       http.Handler
	tls           *tls.Config // nil: without TLS
}

// serveWeb serves one of them until ctx is done.
func (a *app) serveWeb(ctx context.Context, running *sync.WaitGroup, shown *api.API, w web) error {
	if w.address == "" || w.address == noAddress {
		return nil
	}
	l, err := net.Listen("tcp", w.address)
	if err != nil {
		return &view.Problem{What: "cannot listen on the address", Where: err.Error(), Fix: fmt.Sprintf("Choose another with -%s=HOST:PORT, or none with -%[1]s=none.", w.flag), Err: err}
	}
	a.log.Info("serving "+w.flag, "address", l.Addr().String(), "tls", w.tls != nil)
	if w.flag == "http" && w.tls == nil && !carbide.Local(l.Addr().String()) {
		a.log.Warn("what is served to other machines has no TLS: anyone on the network path can read and change it; set https in converge.yaml", "address", l.Addr().String())
	}
	running.Go(func() {
		if err := shown.ServeTLS(ctx, l, w.handler, w.tls); err != nil {
			a.log.Error("no longer serving "+w.flag, "error", err)
		}
	})
	return nil
}

// keep runs the agent whenever no other replica keeps the site, until ctx is done.
func (s *session) keep(ctx context.Context, agent *site.Agent, nodes *site.Nodes, shown *api.API) error {
	take := func(answered func()) (*state.Keeper, error) {
		return s.store.Keep(ctx, state.KeeperInfo{Who: who(), PID: os.Getpid(), Version: s.sys.Version}, 0, func(i state.KeeperInfo) {
			answered()
			s.log.Info("another site agent keeps the site; this one waits", "who", i.Who, "pid", i.PID, "since", i.Since)
			shown.Waits(i)
		})
	}
	return keepOn(ctx, s.log, take, func(k *state.Keeper) error {
		s.log.Info("this site agent keeps the site")
		nodes.Lead(true)
		shown.Keeps()
		run := beside(agent.Run, s.inventory.Run)
		if s.events != nil {
			run = beside(run, s.events.Run)
		}
		if s.certs.carbide != nil {
			run = beside(run, s.certs.carbide.Run)
		}
		defer shown.Yields()
		defer nodes.Lead(false)
		return run(k.Context(ctx))
	})
}

// retaking is how soon it is tried again to keep the site: when the store is back, that must not take long.
var retaking = retry.Policy{First: time.Second, Cap: 10 * time.Second}

// keepOn takes the right to keep the site and does what that is for, again and again, until ctx is done. A store that is away is waited for:
// what nodes and people have connected to must not end with every outage of it. Only when it has never answered, this fails at once.
func keepOn(ctx context.Context, log *slog.Logger, take func(answered func()) (*state.Keeper, error), do func(*state.Keeper) error) error {
	known := false
	pauses := retaking.Pauses()
	for {
		k, err := take(func() { known = true })
		if err == nil {
			known, pauses = true, retaking.Pauses()
			err = do(k)
			if cerr := k.Close(); ctx.Err() != nil {
				return cmp.Or(err, cerr)
			}
		}
		switch {
		case errors.Is(err, state.ErrNotKeeper):
			log.Warn("this site agent no longer keeps the site", "error", err)
			continue
		case ctx.Err() != nil || !known:
			return err
		}
		pause := pauses()
		log.Warn("the site is not kept by this site agent, which tries again", "error", err, "pause", pause)
		if err := retry.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// beside returns run, beside which something else is done until it ends.
func beside(run func(context.Context) error, also func(context.Context)) func(context.Context) error {
	return func(ctx context.Context) error {
		until, stop := context.WithCancel(ctx)
		var running sync.WaitGroup
		defer running.Wait()
		defer stop()
		running.Go(func() { also(until) })
		return run(ctx)
	}
}

// discreet reports whether things of a kind show no secrets.
func (s *session) discreet(kind string) bool {
	k := s.kinds[kind]
	return k != nil && !sealed.Held(k)
}

// siteAgent returns the agent that keeps the site with this id.
func (s *session) siteAgent(ctx context.Context, f serving, nodes *site.Nodes, id string, shown *api.API) (*site.Agent, error) {
	e, err := s.engineFor(shown.Event)
	if err != nil {
		return nil, err
	}
	kept := newest{s: s}
	return site.New(site.Options{
		Engine: e, Store: s.store, Mode: site.Mode(f.mode), Sweep: f.sweep, Logger: s.log,
		Inbox: s.takeInbox,
		Desired: func(ctx context.Context) (*schema.Document, error) {
			doc, err := kept.read(ctx)
			if err == nil && doc.Site.ID != id {
				err = fmt.Errorf("the document is for the site with id %s, and the keys of the nodes for %s", doc.Site.ID, id)
			}
			return doc, err
		},
		Ended: func(run state.Run) { s.answerRun(run); s.inventory.Soon() }, Said: s.said(),
		Mask:    func(r *drift.Report) *drift.Report { return view.MaskDrift(r, s.kinds) },
		Reached: func() []providers.Need { return s.reached(ctx) },
		Renewed: nodes.Renewed, Rounded: shown.Rounded,
	}), nil
}

// reached lists what is configured, and what the connected nodes serve.
func (s *session) reached(ctx context.Context) []providers.Need {
	needs, err := s.offers(ctx)
	if err != nil { // none is configured, and no node is connected
		return nil
	}
	return needs
}

// api shows the site agent to programs.
func (s *session) api(f serving, nodes *site.Nodes, keys *trust.Authority) *api.API {
	return api.New(api.Options{
		Site: keys.Site(), Mode: f.mode, Version: s.sys.Version, Store: s.store, Sweep: f.sweep, Logger: s.log,
		Needs: func() []providers.Need { return s.reached(context.Background()) }, Nodes: nodes.Status, Trust: keys.Document,
		MaskRecord: func(r state.Record) state.Record { return view.MaskRecord(r, s.kinds[r.Ref.Kind]) },
		MaskDrift:  func(r *drift.Report) *drift.Report { return view.MaskDrift(r, s.kinds) },
		Scrub:      s.scrubber.ScrubText, Events: s.eventsStand, Writes: s.writes(), ShowPlan: s.planDocument,
		Operate: func(r grpc.ServiceRegistrar) { s.operate(r, nodes) },

		Certificates: s.certs.list, Enrolments: s.certs.enrolments(),
	})
}

// admitNodes ends the connections of nodes that are no longer admitted, until ctx is done.
func (s *session) admitNodes(ctx context.Context, m *trust.Admission, nodes *site.Nodes) {
	for ctx.Err() == nil {
		err := m.Run(ctx, func(node string, why error) {
			s.log.Warn("a node is refused", "node", node, "error", why)
			nodes.Refuse(node)
		})
		if ctx.Err() == nil {
			s.log.Warn("the nodes in the store can no longer be followed", "error", err)
			_ = retry.Sleep(ctx, time.Second)
		}
	}
}

// renewKeys uses what converge trust rotate has put in force, until ctx is done. Keys whose roots are with them it replaces itself.
func (s *session) renewKeys(ctx context.Context, keys *trust.Authority) {
	told := map[string]int{} // what was due, and how much of its life had passed then
	for retry.Sleep(ctx, time.Minute) == nil {
		if err := keys.Reload(); err != nil {
			s.log.Error("the keys that nodes trust cannot be read", "error", err)
			continue
		}
		if _, err := keys.Rotate(); err != nil {
			s.log.Debug("the keys that nodes trust were not replaced", "error", err) // what is due is said below
		}
		for _, alarm := range keys.Document().Alarms(time.Now()) {
			if told[alarm.What] == alarm.Share {
				continue
			}
			told[alarm.What] = alarm.Share
			s.log.Warn("the keys that nodes trust have to be replaced: converge trust rotate", "what", alarm.What, "percent", alarm.Share, "not_after", alarm.NotAfter)
		}
	}
}

// listenLocal listens on a socket that only this user can open.
func listenLocal(path string) (net.Listener, error) {
	if conn, err := net.Dial("unix", path); err == nil {
		conn.Close()
		return nil, &view.Problem{What: "a site agent is already running here", Where: path, Fix: "Stop it, or choose another socket with -socket."}
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return nil, &view.Problem{What: "the path of the socket is taken", Where: path + " is " + files.Kind(info.Mode()), Fix: "Choose another with -socket."}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // left by one that was killed
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, &view.Problem{What: "cannot listen on the socket", Where: err.Error(), Fix: "Choose another with -socket.", Err: err}
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}
