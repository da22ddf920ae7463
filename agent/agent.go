// Package agent is the node agent: it makes the providers of a machine a part of its site.
//
// It dials the site and is called over that connection (package reverse); nothing listens on the node. What it obeys is verified by
// package task, and what it did is in package ledger. It decides nothing: what should be, in which order, and what is undone, is
// decided by the engine at the site, for which a node is a set of providers like any other.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"converge.dev/converge/agent/ledger"
	"converge.dev/converge/agent/task"
	"converge.dev/converge/guard"
	"converge.dev/converge/internal/retry"
	"converge.dev/converge/internal/reverse"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/remote"
	"converge.dev/converge/providers/remote/remotepb"
	"converge.dev/converge/schema"
	"converge.dev/converge/trust"
)

// Options say what an agent serves, and where its site is. All are required unless they say otherwise.
type Options struct {
	Dir     string   // of the identity that the node got when it enrolled, and of its ledger
	Servers []string // HOST:PORT of every replica of the site agent; the agent is connected to all of them

	// Open opens what the node is configured to serve. What cannot be opened is a failure of the set, and is tried again.
	Open func(ctx context.Context, site schema.Site, needs []providers.Need) (*providers.Set, error)
	// Offers lists what the node is configured to serve.
	Offers func(node string) ([]providers.Need, error)

	// Guard makes a provider undo by itself what cuts the node off. Optional.
	Guard func(schema.Site, *providers.Provider) (*providers.Provider, error)
	// Undo is the program that Guard uses, of which the status tells. Optional.
	Undo *guard.Client

	// Local listens for those on this machine who ask how the agent stands, such as [ListenLocal]. That it cannot is logged. Optional.
	Local func(dir string) (net.Listener, error)
	Log   *Log // optional; of what they can read

	Version string // of the agent
	Logger  *slog.Logger
	Ready   func()                                                      // optional; called once, when the agent serves what it can and dials its site
	Dial    func(ctx context.Context, address string) (net.Conn, error) // optional; TCP
	Now     func() time.Time                                            // optional; time.Now
}

// ledgerName is the file of the ledger in the directory of an agent.
const ledgerName = "ledger.db"

// An agent is one that runs.
type agent struct {
	Options
	id   *trust.Identity
	book *ledger.Ledger
	node *remote.Node

	mu      sync.Mutex
	set     *providers.Set // what is open
	serves  []*providers.Provider
	missing map[string]error        // what could not be opened
	servers map[string]*grpc.Server // that of the last connection to each address
	anew    int                     // how often all connections were to be made anew
	refused bool                    // a site agent refuses the certificate, and none has accepted it since

	started  time.Time
	contacts map[string]*contact // by address
	pulses   map[string]*pulse   // of those that can say how they stand, by name
	renewal  struct {            // the last try; err is nil when it succeeded
		err error
		at  time.Time
	}

	tend chan struct{} // has an element while the site has a newer trust document
}

// Run serves the node until ctx is done, and then returns its cause. Tasks in progress are cancelled, and their results stored. It
// fails at once when the node has not enrolled, or when its ledger is damaged or in use.
func Run(ctx context.Context, o Options) (err error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Dial == nil {
		o.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
	}
	id, err := trust.OpenIdentity(o.Dir, trust.IdentityOptions{Now: o.Now, Dial: o.Dial})
	if err != nil {
		return err
	}
	book, err := ledger.Open(filepath.Join(o.Dir, ledgerName), ledger.Options{Now: o.Now})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, book.Close()) }()
	a := &agent{Options: o, id: id, book: book, missing: map[string]error{}, servers: map[string]*grpc.Server{}, tend: make(chan struct{}, 1)}
	a.started, a.contacts, a.pulses = o.Now(), map[string]*contact{}, map[string]*pulse{}
	a.node = remote.NewNode(remote.NodeOptions{
		Name: id.Node(),
		Tasks: &task.Checker{
			Site: id.Site().ID, Node: id.Node(), Keys: a.keys, Now: o.Now,
			Floor: func() time.Time { return book.Standing().Floor },
		},
		Ledger: book, Key: id.NodeKey, Trust: func() int64 { return id.Document().Version }, Behind: a.behind, Unwell: a.unwell, Version: o.Version, Now: o.Now, Logger: o.Logger,
	})
	if a.set, err = providers.NewSet(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.set.Close()) }()
	defer a.node.Close() // before the providers that its tasks use

	var running sync.WaitGroup
	defer running.Wait()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if err := a.open(ctx); err != nil {
		return err
	}
	o.Logger.Info("agent started", "node", id.Node(), "site", id.Site().Name, "servers", o.Servers)
	for _, server := range o.Servers {
		running.Go(func() {
			anew := 0 // when it was dialled
			dial := func(ctx context.Context) (net.Conn, error) {
				anew = a.anews()
				return a.Dial(ctx, server)
			}
			_ = reverse.Keep(ctx, id.Node(), dial, id.TLS(), func(o ...grpc.ServerOption) *grpc.Server { return a.serve(server, anew, o) },
				o.Logger.With("server", server), func(t reverse.Turn) { a.told(server, t) })
		})
	}
	if o.Ready != nil {
		o.Ready()
	}
	running.Go(func() { a.reopen(ctx) })
	running.Go(func() { a.renew(ctx) })
	running.Go(func() { a.feel(ctx) })
	if o.Local != nil {
		if l, err := o.Local(o.Dir); err != nil {
			o.Logger.Warn("nobody on this machine can ask how the agent stands", "error", err)
		} else {
			running.Go(func() { a.serveLocal(ctx, l) })
		}
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// keys are the keys whose signature makes a task, according to the newest trust document.
func (a *agent) keys() []task.Key {
	d := a.id.Document()
	keys := make([]task.Key, len(d.Tasks))
	for i, k := range d.Tasks {
		keys[i] = task.Key(k)
	}
	return keys
}

// open opens what is configured and not open yet.
func (a *agent) open(ctx context.Context) error {
	needs, err := a.Offers(a.id.Node())
	if err != nil {
		return err
	}
	var wanted []providers.Need
	for _, n := range needs {
		if !a.opened(n) {
			wanted = append(wanted, n)
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	set, err := a.Open(ctx, a.id.Site(), wanted)
	if err != nil {
		return err
	}
	more := set.All()
	for i, p := range more {
		if a.Guard == nil {
			break
		}
		if more[i], err = a.Guard(a.id.Site(), p); err != nil {
			return errors.Join(err, set.Close())
		}
	}
	a.mu.Lock()
	for _, n := range wanted {
		if err := set.Failure(n.Scope, n.Provider); err != nil {
			a.missing[n.Provider] = err
		} else {
			delete(a.missing, n.Provider)
		}
	}
	if len(more) > 0 {
		a.serves = append(a.serves, more...)
		defer a.reconnect() // connections that are made from now on serve it, too
	}
	defer a.mu.Unlock()
	return a.set.Join(set)
}

func (a *agent) opened(n providers.Need) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.serves {
		if p.Scope == n.Scope && p.Name == n.Provider {
			return true
		}
	}
	return false
}

// every is how often those are asked how they stand that can say it, and how often at least it is tried again what has failed.
const every = 10 * time.Second

// again is how soon it is tried again what has failed: an agent may have begun before what it needs.
var again = retry.Policy{First: time.Second, Cap: every}

// reopen goes on trying to open what is missing.
func (a *agent) reopen(ctx context.Context) {
	said := ""
	for next := again.Pauses(); retry.Sleep(ctx, next()) == nil; {
		err := a.open(ctx)
		if ctx.Err() != nil {
			return
		}
		said = a.complain("providers could not be opened", err, said)
	}
}

// complain logs what has failed, unless that has been said: said is the text of the last failure, empty when it was none. It returns that
// of this one.
func (a *agent) complain(what string, err error, said string) string {
	if err == nil {
		return ""
	}
	level := slog.LevelWarn
	if err.Error() == said {
		level = slog.LevelDebug
	}
	a.Logger.Log(context.Background(), level, what, "error", err)
	return err.Error()
}

// serve makes the server for one connection to an address, which was dialled when all connections had been made anew so often.
func (a *agent) serve(address string, anew int, o []grpc.ServerOption) *grpc.Server {
	s := grpc.NewServer(append(o, a.asks(address)...)...)
	a.mu.Lock()
	defer a.mu.Unlock()
	report := func(ctx context.Context, words [][]byte) error { return a.report(ctx, address, words) }
	if err := a.node.Serve(s, a.serves, a.missing, report); err != nil { // which no connection can change
		a.Logger.Error("the node cannot be served", "error", err)
	}
	a.servers[address] = s
	if anew != a.anew { // it was to end before the site had accepted it
		go s.Stop()
	}
	return s
}

// report says words to the site at an address, each over a new connection.
func (a *agent) report(ctx context.Context, server string, words [][]byte) error {
	for _, word := range words {
		conn, err := grpc.NewClient("passthrough:///"+server, grpc.WithTransportCredentials(credentials.NewTLS(a.id.TLS())), grpc.WithContextDialer(a.Dial))
		if err != nil {
			return err
		}
		_, err = remotepb.NewSiteClient(conn).Hear(ctx, &remotepb.HearRequest{Word: word})
		if err = errors.Join(err, conn.Close()); err != nil {
			return err
		}
	}
	return nil
}

// behind makes the trust document be fetched soon.
func (a *agent) behind() {
	select {
	case a.tend <- struct{}{}:
	default:
	}
}

// renew replaces the certificate in time, and keeps the trust document current.
func (a *agent) renew(ctx context.Context) {
	said := ""
	for {
		next := min(max(a.id.RenewAt().Sub(a.Now()), 0), time.Hour)
		err := a.refresh(ctx, false)
		if ctx.Err() != nil {
			return
		}
		if said = a.complain("the certificate or the trust document could not be renewed", err, said); err != nil {
			next = every
		}
		timer := time.NewTimer(max(next, every))
		select {
		case <-timer.C:
		case <-a.tend:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// refresh asks the first server that answers for newer trust documents, and for a new certificate when it is time, or forced.
func (a *agent) refresh(ctx context.Context, force bool) (err error) {
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.renewal.err, a.renewal.at = err, a.Now()
	}()
	var errs []error
	for _, server := range a.Servers {
		err := a.refreshAt(ctx, server, force)
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", server, err))
	}
	return errors.Join(errs...)
}

func (a *agent) refreshAt(ctx context.Context, server string, force bool) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	behind := a.id.CatchUp(ctx, server) // first: without the newest trust document, the site may be a stranger
	if !force && a.Now().Before(a.id.RenewAt()) {
		return behind
	}
	conn, err := grpc.NewClient("passthrough:///"+server, grpc.WithTransportCredentials(credentials.NewTLS(a.id.RenewTLS())), grpc.WithContextDialer(a.Dial))
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := a.id.Renew(ctx, conn); trust.Unreached(err) { // so was it before; once is enough to say
		return err
	} else if err != nil {
		return errors.Join(err, behind)
	}
	a.Logger.Info("certificate renewed", "not_after", a.id.Certificate().NotAfter)
	a.reconnect() // the certificate of the present connections is void
	return nil
}

// reconnect ends all connections; new ones are made after the pause that package reverse makes.
func (a *agent) reconnect() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.anew++
	for _, s := range a.servers {
		go s.Stop()
	}
}

// anews returns how often all connections were to be made anew.
func (a *agent) anews() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.anew
}
