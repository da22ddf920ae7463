package site

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"converge.dev/converge/internal/retry"
	"converge.dev/converge/internal/reverse"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/remote"
	"converge.dev/converge/providers/remote/remotepb"
	"converge.dev/converge/providers/wire"
	"converge.dev/converge/providers/wire/wirepb"
)

// NodesOptions make [Nodes]. All are required unless they say otherwise.
type NodesOptions struct {
	Site string                                             // its id
	Who  func(tls.ConnectionState) (node string, err error) // whose connection it is, from its verified certificate; an error when it is not admitted
	// Replaced reports whether the node is known to have a newer certificate. It asks nobody: connections outlive a store that is away.
	Replaced func(tls.ConnectionState) bool
	Key      func() (ed25519.PrivateKey, int64, error) // signs tasks, and the version of the trust document that announced it
	Epoch    func(context.Context) (int64, error)      // the newest epoch of the site lock
	// Keeps says whether what nodes list of a kind may be kept from one list to the next, which are then cheaper: its things show no
	// secrets.
	Keeps func(kind string) bool
	// Changed is called whenever a node has come or gone, or serves something else. Optional.
	Changed func()
	Logger  *slog.Logger
}

// Nodes are the nodes whose agents are, or were, connected to this process.
type Nodes struct {
	o NodesOptions

	mu      sync.Mutex
	nodes   map[string]*node
	renewed []string // nodes that have come or gone since Renewed was called

	led   chan struct{} // closed, and replaced, when leads changes
	leads bool          // this process keeps the site: its heads count

	hearing hearing

	heads sync.Mutex // one reading of the epoch at a time
	epoch int64      // for heads
	read  time.Time  // when it was read
}

// NewNodes returns no nodes: they come by [Nodes.Attend].
func NewNodes(o NodesOptions) *Nodes {
	return &Nodes{o: o, nodes: map[string]*node{}, led: make(chan struct{})}
}

// Lead says whether this process keeps the site. Only then it brings the nodes heads, without which they change nothing: another
// process does not know which tasks were sent.
func (n *Nodes) Lead(leads bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.leads = leads
	close(n.led)
	n.led = make(chan struct{})
}

// leading returns whether this process keeps the site, and a channel that is closed when that changes.
func (n *Nodes) leading() (leads bool, changes <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.leads, n.led
}

// A node is one that was connected at least once. It implements remote.Line.
type node struct {
	name  string
	tasks remote.Sequence
	lists *wire.Memory

	mu       sync.Mutex
	nth      int           // how often it has come
	conn     *reverse.Conn // nil while it is away
	came     chan struct{} // closed when it comes
	since    time.Time     // when it came, or went
	standing Standing

	hung  int       // how often in a row it was asked on this connection and did not answer
	aside time.Time // until then it is not asked, so that it keeps nobody waiting
}

// A Standing is what a node reports with each heartbeat.
type Standing struct {
	Epoch, Seq int64
	Running    int       // tasks in progress
	Trust      int64     // version of the trust document
	Agent      string    // version of the agent
	Providers  []string  // what it serves
	Missing    []Missing // what is configured there and could not be opened
	Unwell     []Missing // what it serves and whose far side is unavailable
	Heard      time.Time // when it last answered
}

// A Missing is a provider of a node that could not be opened, or whose far side is unavailable.
type Missing struct{ Provider, Why string }

// A NodeStatus says how a node stands.
type NodeStatus struct {
	Name      string
	Connected bool
	Since     time.Time // when it came, or went
	Address   string    // from which it is connected
	Hung      bool      // it is connected, and does not answer
	Standing
}

// Health says in a word how the agent of a node does, and why it is not ok.
func (s *NodeStatus) Health() (word, why string) {
	switch {
	case !s.Connected:
		return NodeAway, "it is not connected"
	case s.Hung:
		return NodeHung, "it is connected, and does not answer"
	case len(s.Missing) > 0:
		return NodeDegraded, s.Missing[0].Provider + " could not be opened: " + s.Missing[0].Why
	case len(s.Unwell) > 0:
		return NodeDegraded, s.Unwell[0].Provider + " is unavailable: " + s.Unwell[0].Why
	}
	return NodeOK, ""
}

// The words for the health of a node.
const (
	NodeOK       = "ok"
	NodeDegraded = "degraded" // something that it should serve is missing or unavailable
	NodeHung     = "hung"
	NodeAway     = "away"
)

// beat is how often a node gets a head: often enough that one that misses a few is not stale.
const beat = 20 * time.Second

// unwell is how soon a node is asked again where something is unavailable, which may have been about to begin.
var unwell = retry.Policy{First: time.Second, Cap: beat}

// mute is how long after it answered last a node that is connected counts as hung.
const mute = 3 * beat

// mostProviders is how many providers of a node are taken note of.
const mostProviders = 64

// clip cuts a text of a node.
func clip(text string) string {
	const most = 1 << 10
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// patience is how long after it went a call waits for a node to come back: longer than it takes a running agent whose connection broke.
// What is away for longer fails at once, since the looks at all other nodes would wait with it.
const patience = 3 * time.Second

// Attend takes the connection of a node into use, until it ends. A connection that the same node had before is closed: its agent has
// been started anew, or has given it up.
func (n *Nodes) Attend(c *reverse.Conn) {
	name, err := n.o.Who(c.State())
	if err != nil {
		n.o.Logger.Warn("a connection is refused", "from", c.RemoteAddr().String(), "error", err)
		c.Close()
		return
	}
	log := n.o.Logger.With("node", name)
	nd := n.node(name)
	leads, changes := n.leading()
	standing, err := n.beat(nd, c, leads)
	if err != nil {
		log.Warn("a node connected, but does not answer", "from", c.RemoteAddr().String(), "error", err)
		c.Close()
		return
	}
	if was := nd.enter(c, standing); was != nil { // its agent was started anew; or two machines have the same identity
		log.Warn("a connection of a node is replaced by another one", "was", was.RemoteAddr().String(), "is", c.RemoteAddr().String())
	}
	log.Info("node connected", "from", c.RemoteAddr().String(), "agent", standing.Agent, "providers", standing.Providers)
	n.changed(name)
	defer func() {
		if nd.leave(c) {
			log.Info("node disconnected", "error", c.Err())
			n.changed(name)
		}
	}()
	if _, err := n.o.Who(c.State()); err != nil { // it was refused before there was a connection that Refuse could end
		log.Warn("a connection is refused", "from", c.RemoteAddr().String(), "error", err)
		c.Close()
		return
	}
	replaced := 0 // times that it was found so
	next := unwell.Pauses()
	rest := func() time.Duration {
		if len(standing.Unwell) > 0 {
			return next()
		}
		next = unwell.Pauses()
		return beat
	}
	tick := time.NewTimer(rest())
	defer tick.Stop()
	void := time.NewTimer(time.Until(c.State().PeerCertificates[0].NotAfter))
	defer void.Stop()
	for {
		select {
		case <-c.Done():
			return
		case <-void.C:
			log.Warn("the certificate of a node has expired")
			c.Close()
			continue
		case <-changes:
		case <-tick.C:
		}
		if n.o.Replaced(c.State()) {
			if replaced++; replaced > 1 { // a node that has just renewed its certificate comes with the new one by itself
				log.Warn("a node has a newer certificate than this connection")
				c.Close()
				continue
			}
		}
		leads, changes = n.leading()
		if s, err := n.beat(nd, c, leads); err != nil {
			log.Warn("a heartbeat failed", "error", err)
		} else {
			standing = s
			nd.heard(c, s)
		}
		tick.Reset(rest())
	}
}

// changed tells that a node has come or gone.
func (n *Nodes) changed(name string) {
	n.mu.Lock()
	n.renewed = append(n.renewed, name)
	n.mu.Unlock()
	if n.o.Changed != nil {
		n.o.Changed()
	}
}

// node returns the node of that name, and creates it.
func (n *Nodes) node(name string) *node {
	n.mu.Lock()
	defer n.mu.Unlock()
	nd := n.nodes[name]
	if nd == nil {
		nd = &node{name: name, lists: wire.NewMemory(n.o.Keeps), came: make(chan struct{})}
		n.nodes[name] = nd
	}
	return nd
}

// a line is a connection that has not been taken into use yet.
type line struct{ conn *reverse.Conn }

func (l line) Conn(context.Context) (grpc.ClientConnInterface, ed25519.PublicKey, error) {
	return l.conn, keyOf(l.conn), nil
}

func keyOf(c *reverse.Conn) ed25519.PublicKey {
	key, _ := c.State().PeerCertificates[0].PublicKey.(ed25519.PublicKey)
	return key
}

// beat asks a node how it stands, and brings it a head if this process leads.
func (n *Nodes) beat(nd *node, c *reverse.Conn, leads bool) (Standing, error) {
	ctx, cancel := context.WithTimeout(context.Background(), beat)
	defer cancel()
	s, err := n.ask(ctx, n.options(nd, line{c}), leads)
	if err != nil {
		return Standing{}, err
	}
	heard := Standing{
		Epoch: s.GetEpoch(), Seq: s.GetSeq(), Running: int(s.GetRunning()), Trust: s.GetTrust(), Agent: s.GetAgent(), Providers: s.GetProviders(), Heard: time.Now(),
	}
	heard.Providers = heard.Providers[:min(len(heard.Providers), mostProviders)]
	heard.Missing, heard.Unwell = missing(s.GetMissing()), missing(s.GetUnwell())
	return heard, nil
}

// missing returns what a node says that it lacks, up to a limit.
func missing(said []*wirepb.Missing) (list []Missing) {
	for _, m := range said[:min(len(said), mostProviders)] {
		list = append(list, Missing{clip(m.GetName()), clip(m.GetWhy())})
	}
	return list
}

func (n *Nodes) ask(ctx context.Context, o remote.Options, leads bool) (*remotepb.Standing, error) {
	if !leads {
		return remote.Ask(ctx, o)
	}
	epoch, err := n.recent(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the epoch of the site: %w", err)
	}
	return remote.Beat(ctx, o, epoch)
}

// recent returns the epoch of the site as it was a moment ago, which is enough for a head: the nodes take a newer one from a fence.
func (n *Nodes) recent(ctx context.Context) (int64, error) {
	n.heads.Lock()
	defer n.heads.Unlock()
	if time.Since(n.read) < beat/4 {
		return n.epoch, nil
	}
	epoch, err := n.o.Epoch(ctx)
	if err == nil {
		n.epoch, n.read = epoch, time.Now()
	}
	return epoch, err
}

// current fails when an epoch is not that of the present holder of the site lock.
func (n *Nodes) current(ctx context.Context, epoch int64) error {
	now, err := n.o.Epoch(ctx)
	switch {
	case err != nil:
		return &providers.Error{Op: "relay", Class: providers.Transient, Err: fmt.Errorf("read the epoch of the site: %w", err)}
	case now != epoch:
		return &providers.Error{Op: "relay", Class: providers.Denied, Err: &providers.OutdatedError{On: "the site", Stored: now, Epoch: epoch}}
	}
	return nil
}

func (n *Nodes) options(nd *node, at remote.Line) remote.Options {
	return remote.Options{
		Site: n.o.Site, Node: nd.name, Line: at, Tasks: &nd.tasks, Key: n.o.Key, Silent: nd.silent, Memory: nd.lists, Logger: n.o.Logger,
		Anew: func(ctx context.Context) error { return n.hearing.from(ctx, nd.name, at) },
	}
}

// heard keeps what a node answered, unless it has another connection by now.
func (nd *node) heard(c *reverse.Conn, s Standing) {
	nd.mu.Lock()
	defer nd.mu.Unlock()
	if nd.conn == c {
		nd.standing = s
	}
}

// enter takes a connection into use, and returns the one that it replaces; nil for none.
func (nd *node) enter(c *reverse.Conn, s Standing) (replaced *reverse.Conn) {
	nd.mu.Lock()
	defer nd.mu.Unlock()
	if nd.conn != nil {
		replaced = nd.conn
		nd.conn.Close()
	} else {
		close(nd.came)
	}
	nd.conn, nd.standing, nd.since = c, s, time.Now()
	nd.nth++
	nd.hung, nd.aside = 0, time.Time{}
	return replaced
}

// silent sets a node aside for a while that has not answered, each time for twice as long.
func (nd *node) silent() {
	nd.mu.Lock()
	defer nd.mu.Unlock()
	if time.Now().Before(nd.aside) { // calls at the same time count once
		return
	}
	nd.aside = time.Now().Add(min(longAside, firstAside<<min(nd.hung, 8)))
	nd.hung++
}

// How long a node is set aside that does not answer.
const (
	firstAside = 2 * time.Minute
	longAside  = time.Hour
)

// leave reports whether the connection was in use, and no longer is.
func (nd *node) leave(c *reverse.Conn) bool {
	nd.mu.Lock()
	defer nd.mu.Unlock()
	if nd.conn != c {
		return false
	}
	nd.conn, nd.came, nd.since = nil, make(chan struct{}), time.Now()
	return true
}

// Conn implements remote.Line.
func (nd *node) Conn(ctx context.Context) (grpc.ClientConnInterface, ed25519.PublicKey, error) {
	for {
		nd.mu.Lock()
		c, came, since, aside := nd.conn, nd.came, nd.since, nd.aside
		nd.mu.Unlock()
		if c != nil && time.Now().Before(aside) {
			return nil, nil, fmt.Errorf("node %s is connected, but does not answer; it is asked again at %s", nd.name, aside.UTC().Format(time.RFC3339))
		}
		if c != nil {
			return c, keyOf(c), nil
		}
		late := time.NewTimer(time.Until(since.Add(patience)))
		select {
		case <-came:
		case <-ctx.Done():
		case <-late.C:
			return nil, nil, awayError(nd.name, since)
		}
		late.Stop()
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
	}
}

func awayError(name string, since time.Time) error {
	if since.IsZero() {
		return fmt.Errorf("node %s is not connected: is its agent running, and enrolled at this site?", name)
	}
	return fmt.Errorf("node %s is not connected since %s", name, since.UTC().Format(time.RFC3339))
}

// Open returns what is needed of nodes, concurrently; a node that is not connected, or does not serve it, is a failure of the set.
func (n *Nodes) Open(ctx context.Context, needs []providers.Need) (*providers.Set, error) {
	byNode := map[string][]providers.Need{}
	for _, need := range needs {
		byNode[need.Scope] = append(byNode[need.Scope], need)
	}
	all, err := providers.NewSet()
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var group errgroup.Group
	for name, wanted := range byNode {
		group.Go(func() error {
			nd := n.node(name)
			one, cancel := context.WithTimeout(ctx, beat/2) // one that hangs keeps nobody waiting
			defer cancel()
			set, err := remote.Open(one, n.options(nd, nd), wanted)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				return all.Join(set)
			}
			for _, need := range wanted {
				all.Fail(need.Scope, need.Provider, err)
			}
			return context.Cause(ctx)
		})
	}
	return all, group.Wait()
}

// Renewed lists the nodes that have come or gone since it was called last: what they serve may be something else than before. One that
// is gone fails at once when its providers are opened anew; those that were open would be asked again and again.
func (n *Nodes) Renewed() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	renewed := n.renewed
	n.renewed = nil
	slices.Sort(renewed)
	return slices.Compact(renewed)
}

// Refuse ends the connection of a node, if it is connected; what is in flight on it fails at once. What it listed is forgotten.
func (n *Nodes) Refuse(name string) {
	nd := n.known(name)
	if nd == nil {
		return
	}
	defer nd.lists.Forget()
	nd.mu.Lock()
	defer nd.mu.Unlock()
	if nd.conn != nil {
		nd.conn.Close()
	}
}

// known returns the node of that name; nil when it was never connected here.
func (n *Nodes) known(name string) *node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.nodes[name]
}

// connected fails when a node is not connected.
func (n *Nodes) connected(name string) error {
	nd := n.known(name)
	if nd == nil {
		return awayError(name, time.Time{})
	}
	nd.mu.Lock()
	defer nd.mu.Unlock()
	if nd.conn == nil {
		return awayError(name, nd.since)
	}
	return nil
}

// standing returns what a node reported last, and how often it has come.
func (n *Nodes) standing(name string) (nth int, s Standing) {
	nd := n.known(name)
	if nd == nil {
		return 0, s
	}
	nd.mu.Lock()
	defer nd.mu.Unlock()
	return nd.nth, nd.standing
}

// Reached lists what the connected nodes serve.
func (n *Nodes) Reached() (needs []providers.Need) {
	for _, s := range n.Status() {
		if !s.Connected {
			continue
		}
		for _, p := range s.Providers {
			needs = append(needs, providers.Need{Scope: s.Name, Provider: p})
		}
	}
	return needs
}

// Status returns how each node stands, by name.
func (n *Nodes) Status() []NodeStatus {
	n.mu.Lock()
	all := slices.Collect(maps.Values(n.nodes))
	n.mu.Unlock()
	var list []NodeStatus
	for _, nd := range all {
		nd.mu.Lock()
		s := NodeStatus{Name: nd.name, Connected: nd.conn != nil, Since: nd.since, Standing: nd.standing}
		if nd.conn != nil {
			s.Address = nd.conn.RemoteAddr().String()
			s.Hung = time.Now().Before(nd.aside) || time.Since(s.Heard) > mute
		}
		nd.mu.Unlock()
		if !s.Since.IsZero() { // asked for, but never connected
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b NodeStatus) int { return strings.Compare(a.Name, b.Name) })
	return list
}
