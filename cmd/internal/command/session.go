package command

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"converge.dev/converge/cmd/internal/config"
	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine"
	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/secret"
	"converge.dev/converge/engine/survey"
	"converge.dev/converge/internal/nearest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/all"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
	"converge.dev/converge/site"
	"converge.dev/converge/site/outbox"
	"converge.dev/converge/state"
	"converge.dev/converge/state/etcd"
)

// A session is the connection of a command to one site.
type session struct {
	*app
	conf  *config.File
	kv    state.KV
	store *state.Store
	site  string // its name
	id    string // its id; a site agent's alone
	only  bool   // it is the only one in the store, and was not named
	looks bool   // the command plans or surveys, and writes nothing
	place string // of the store

	opening sync.Mutex
	opened  *all.Opener // guarded by opening; see opens

	far   *farSide     // nil when there is no site agent
	certs certificates // of a site agent

	inventory *site.Inventory // of a site agent

	events *outbox.Outbox // tells the cloud what happens; nil when it is told nothing
}

// schema compiles the embedded schema, once.
func (a *app) schema() (*kinds.Schema, error) {
	if a.loaded != nil {
		return a.loaded, nil
	}
	s, err := kinds.New()
	if err != nil {
		return nil, err
	}
	a.loaded = s
	maps.Copy(a.kinds, s.Kinds()) // the view has held the map from the start
	return s, nil
}

// configuration reads the file that -config names, or converge.yaml of the workspace; without one, it is empty.
func (a *app) configuration(documents []string) (*config.File, error) {
	path, err := a.configPath(documents)
	if err != nil || path == "" {
		return &config.File{}, err
	}
	conf, err := config.Read(path)
	if err != nil {
		return nil, unusable(err)
	}
	return conf, nil
}

func unusable(err error) error {
	return &view.Problem{What: "the configuration cannot be used", Where: err.Error(), Err: err}
}

var errOtherSite = errors.New("another site is meant")

// open connects to the store of a site. The site is that of the document, when there is one; otherwise the one that the
// flag, the environment or the configuration names; otherwise the only one in the store. Only a document creates a site:
// a named one must be in the store. It fails when there is no store.
func (a *app) open(ctx context.Context, doc *schema.Document, documents []string) (*session, error) {
	s, err := a.openOr(ctx, doc, documents, refuse)
	if err != nil || doc != nil || s.only {
		return s, err
	}
	return s, s.known(ctx)
}

// openOr is open for a site that may be new; m says what to do about a store that does not exist.
func (a *app) openOr(ctx context.Context, doc *schema.Document, documents []string, m missing) (*session, error) {
	conf, err := a.configuration(documents)
	if err != nil {
		return nil, err
	}
	s := &session{app: a, conf: conf}
	named := cmp.Or(a.flags.site, a.env[envSite], conf.Site)
	if doc != nil {
		if named != "" && named != doc.Site.Name {
			return nil, &view.Problem{
				What:  "the document is for another site",
				Where: "the document names " + doc.Site.Name + "; -site, " + envSite + " or " + config.Name + " names " + named,
				Fix:   "Correct one of them.",
				Err:   errOtherSite,
			}
		}
		named = doc.Site.Name
	}
	if s.kv, s.place, err = a.openStore(ctx, conf, documents, m); err != nil {
		return nil, err
	}
	if s.site = named; s.site == "" {
		if s.site, err = a.onlySite(ctx, s.kv, m); err != nil {
			return nil, err
		}
		s.only = true
	}
	s.store = state.New(s.kv, s.site)
	server, err := a.server(conf)
	if err == nil && server.Address != "" {
		s.far, err = a.relay(server, conf)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// openStore opens etcd, or the embedded store, and returns where that is. It is closed at the end of the command.
func (a *app) openStore(ctx context.Context, conf *config.File, documents []string, m missing) (kv state.KV, place string, err error) {
	o := etcd.Options{
		Endpoints: a.flags.endpoints, CA: cmp.Or(a.flags.ca, conf.Etcd.CA), Cert: cmp.Or(a.flags.cert, conf.Etcd.Cert),
		Key:     cmp.Or(a.flags.key, conf.Etcd.Key),
		Command: "converge " + strings.Join(a.sys.Args, " "), Logger: a.log,
	}
	server, err := a.server(conf)
	if err != nil {
		return nil, "", err
	}
	switch {
	case a.remote(server):
		o.Endpoints, o.CA, o.Cert, o.Key = []string{server.Address}, server.CA, server.Cert, server.Key
		o.Place = "the site agent at " + server.Address
	case len(o.Endpoints) == 0:
		o.Endpoints = conf.Etcd.Endpoints
	}
	if endpoint := conf.Etcd.Refused(o.Endpoints); endpoint != "" {
		return nil, "", &view.Problem{
			What: "etcd at " + endpoint + " is on another machine: without TLS, anyone in between could change the site",
			Fix:  "Use an https:// endpoint. If the network in between is trusted, set etcd: {allow_insecure: true} in " + config.Name + ".",
		}
	}
	if place = cmp.Or(o.Place, "etcd at "+strings.Join(o.Endpoints, ",")); len(o.Endpoints) > 0 {
		kv, err = etcd.Open(ctx, o)
	} else if o.Dir, err = a.storeDir(documents); err == nil {
		place = o.Dir
		kv, err = a.embedded(ctx, o, m)
	}
	if err != nil {
		if refused := untaken(server, err); refused != nil && a.remote(server) {
			err = refused
		}
		return nil, "", err
	}
	a.closers = append(a.closers, func() {
		if err := kv.Close(); err != nil {
			a.log.Warn("failed to close the store", "error", err)
		}
	})
	return kv, place, nil
}

// known fails when the store knows nothing about the site.
func (s *session) known(ctx context.Context) error {
	sites, err := state.Sites(ctx, s.kv)
	if err != nil || slices.Contains(sites, s.site) {
		return err
	}
	where := "It has no sites yet."
	if len(sites) > 0 {
		where = "It has: " + strings.Join(sites, ", ")
	}
	return &view.Problem{
		What: "the store has no site " + s.site, Where: where,
		Fix: trimmed(nearest.DidYouMean(s.site, sites), "Start a site with its document: converge plan site.cue, or converge put site.cue"),
	}
}

// unnamed stands for the name of a site that has none yet.
const unnamed = "(unnamed)"

// errNoSite says that no site was named, and that the store has none.
var errNoSite = errors.New("no site yet")

// onlySite returns the only site of a store; m says whether there has to be one.
func (a *app) onlySite(ctx context.Context, kv state.KV, m missing) (string, error) {
	sites, err := state.Sites(ctx, kv)
	if err != nil {
		return "", err
	}
	switch len(sites) {
	case 0:
		if m == look {
			return unnamed, nil
		}
		return "", &view.Problem{What: "the store has no sites yet", Fix: a.firstDocument(), Err: errNoSite}
	case 1:
		return sites[0], nil
	}
	return "", &view.Problem{What: "the store has several sites", Where: strings.Join(sites, ", "), Fix: "Choose one with -site=NAME."}
}

// engine returns the engine of the site, whose events the view shows. It is closed at the end of the command.
func (s *session) engine() (*engine.Engine, error) {
	return s.engineFor(func(e event.Event) {
		if _, ok := e.(event.RunStarted); ok {
			s.started()
		}
		s.view.Event(e)
	})
}

// engineFor is engine for who shows its events otherwise.
func (s *session) engineFor(emit event.Sink) (*engine.Engine, error) {
	e, err := s.engineOf(emit)
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, func() {
		if err := e.Close(); err != nil {
			s.view.Warn("failed to close the providers: " + err.Error())
		}
	})
	return e, nil
}

// engineOf is engineFor for who closes it.
func (s *session) engineOf(emit event.Sink) (*engine.Engine, error) {
	sch, err := s.schema()
	if err != nil {
		return nil, err
	}
	return engine.New(engine.Options{
		Kinds: sch.Kinds(), Store: s.store, Open: s.opener(), Who: who(), Version: s.sys.Version, PID: os.Getpid(), MaxDestroy: string(s.conf.Policy.MaxDestroy),
		Secrets:     secret.Options{Scrubber: s.scrubber, Source: s.secrets()},
		Parallelism: s.flags.parallelism, LockWait: s.flags.lockTimeout, Retry: apply.Retry{Guard: time.Duration(s.conf.Policy.Guard)}, Looks: s.looks, Logger: s.log, Emit: s.traced(emit),
		Shown: func(i survey.Item) survey.Item { return view.MaskItem(i, s.kinds[i.Kind]) },
	}), nil
}

// secrets returns where documents find secrets.
func (s *session) secrets() secret.Source {
	return secret.Source{Lookup: s.env.lookup, Names: s.conf.Secrets.Env, Dir: s.conf.Secrets.Dir}
}

// opens returns what opens the providers that are configured. All engines of the session share it, because some far sides have room for
// one only: a site agent keeps the site and records the inventory at the same time.
func (s *session) opens(site schema.Site) *all.Opener {
	s.opening.Lock()
	defer s.opening.Unlock()
	if s.opened == nil {
		s.opened = all.New(all.Options{Config: s.conf.Config, Dir: s.conf.Dir(), Kinds: s.kinds, Site: site, Trace: s.env[envTrace], Logger: s.log})
	}
	return s.opened
}

// configured lists the providers that are configured.
func (s *session) configured() ([]providers.Need, error) {
	s.opening.Lock()
	defer s.opening.Unlock()
	opener := s.opened
	if opener == nil { // no engine opens anything before this ends
		opener = all.New(all.Options{Config: s.conf.Config, Dir: s.conf.Dir(), Kinds: s.kinds})
	}
	return opener.Offers()
}

// opener returns the function that connects to the providers that an engine needs: by itself, or through the site agent where the
// configuration does not say how a node is reached.
func (s *session) opener() func(context.Context, schema.Site, []providers.Need) (*providers.Set, error) {
	return func(ctx context.Context, site schema.Site, needs []providers.Need) (*providers.Set, error) {
		near, far := s.split(needs)
		set, err := s.opens(site).Open(ctx, near...)
		if err != nil {
			return nil, &view.Problem{What: "the providers cannot be opened", Where: err.Error(), Fix: s.whereConfig(), Err: err}
		}
		if len(far) == 0 {
			return set, nil
		}
		more, err := s.far.open(ctx, far)
		if err == nil {
			err = set.Join(more)
		}
		if err != nil {
			return nil, errors.Join(err, set.Close())
		}
		return set, nil
	}
}

// A far side reaches the nodes of the site by their agents.
type farSide struct {
	open   func(ctx context.Context, needs []providers.Need) (*providers.Set, error)
	offers func(ctx context.Context) ([]providers.Need, error) // what the connected ones serve

	standings func(ctx context.Context) ([]site.NodeStatus, error) // how they stand; nil in the site agent itself
}

// split returns what is reached as the configuration says, and what through the site agent.
func (s *session) split(needs []providers.Need) (near, far []providers.Need) {
	for _, n := range needs {
		_, configured := s.conf.Nodes[n.Scope]
		if s.far == nil || n.Scope == schema.ScopeSite || configured || s.conf.Fake != nil {
			near = append(near, n)
		} else {
			far = append(far, n)
		}
	}
	return near, far
}

// whereConfig returns which configuration was used.
func (s *session) whereConfig() string {
	if s.conf.Path == "" {
		return "There is no " + config.Name + " next to the document, in the current directory, or above; it defines how to reach the providers."
	}
	return "The configuration is " + s.conf.Path + "."
}

// amend calls do while the lock of the site is held and no run is open.
func (s *session) amend(ctx context.Context, operation string, do func(context.Context, *state.Lock) error) error {
	e, err := s.engine()
	if err != nil {
		return err
	}
	return e.Amend(ctx, operation, do)
}
