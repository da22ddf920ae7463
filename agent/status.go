package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"converge.dev/converge/agent/task"
	"converge.dev/converge/guard"
	"converge.dev/converge/internal/retry"
	"converge.dev/converge/internal/reverse"
)

// A Health says in a word how something stands.
type Health string

// The words. An agent is OK or Degraded; a provider is any of them but Degraded.
const (
	OK          Health = "ok"
	Degraded    Health = "degraded"    // something is wrong: see Problems
	Unavailable Health = "unavailable" // its far side does not answer, or refuses
	Missing     Health = "missing"     // it is configured and could not be opened
	Unknown     Health = "unknown"     // it was not asked yet, or cannot say
)

// A Status is how an agent stands.
type Status struct {
	Node    string    `json:"node"`
	Site    string    `json:"site"`
	SiteID  string    `json:"site_id"`
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	Now     time.Time `json:"now"` // by the clock of the agent

	// Ahead is the time of the newest head that the node has believed, when that is later than Now by more than clocks may differ. Until
	// then it refuses the heads and tasks that are signed now.
	Ahead *time.Time `json:"newest_head,omitempty"`

	Health   Health   `json:"health"`
	Problems []string `json:"problems"` // the worst first; empty when all is well

	Certificate Certificate      `json:"certificate"`
	Trust       Trust            `json:"trust"`
	Servers     []Server         `json:"servers"`                // in the order of the configuration
	Contact     *time.Time       `json:"last_contact,omitempty"` // when a site agent asked for something last
	Tasks       Tasks            `json:"tasks"`
	Providers   []ProviderStatus `json:"providers"` // by name
	Guard       Guard            `json:"guard"`
}

// A Certificate is that of the node.
type Certificate struct {
	Serial    string     `json:"serial"` // in hex
	NotBefore time.Time  `json:"not_before"`
	NotAfter  time.Time  `json:"not_after"`
	Renewal   time.Time  `json:"next_renewal"`
	Error     string     `json:"last_error,omitempty"` // why the last renewal failed; empty once one succeeded
	Failed    *time.Time `json:"failed,omitempty"`     // when that was
}

// A Trust is the newest trust document that the node believes.
type Trust struct {
	Version  int64     `json:"version"`
	NotAfter time.Time `json:"not_after"`
}

// A Server is a replica of the site agent.
type Server struct {
	Address   string     `json:"address"`
	Connected bool       `json:"connected"`
	Since     *time.Time `json:"since,omitempty"`      // when it was connected, or when the connection was found to be gone
	Error     string     `json:"last_error,omitempty"` // why it is not connected, or was not the last time
	Next      *time.Time `json:"next_try,omitempty"`
	Contact   *time.Time `json:"last_contact,omitempty"` // when it asked for something last
}

// Tasks are the changes that the node has made since its agent began.
type Tasks struct {
	Open   []Task `json:"open"` // in the order in which they began
	Done   int    `json:"done"`
	Failed int    `json:"failed"`
}

// A Task is one that is in progress.
type Task struct {
	Key    string    `json:"key"`
	Kind   string    `json:"kind"`
	Ref    string    `json:"ref"`
	Action string    `json:"action"`
	Since  time.Time `json:"since"`
}

// A ProviderStatus is how a provider of the node stands.
type ProviderStatus struct {
	Provider string     `json:"provider"`
	Scope    string     `json:"scope"`
	Health   Health     `json:"health"`
	Detail   string     `json:"detail,omitempty"` // why
	Since    *time.Time `json:"since,omitempty"`
}

// A GuardWord says what the guard of the node does.
type GuardWord string

// The words for a guard.
const (
	NoGuard     GuardWord = "none"   // the node has none
	AbsentGuard GuardWord = "absent" // it should have one, which does not answer
	IdleGuard   GuardWord = "idle"
	ArmedGuard  GuardWord = "armed"  // it undoes changes unless the site confirms them
	FailedGuard GuardWord = "failed" // it could not undo changes, or cannot read what it has to undo
)

// A Guard is that of the node.
type Guard struct {
	State GuardWord `json:"state"`
	Error string    `json:"error,omitempty"` // why it does not answer, or what failed
	Armed []Armed   `json:"armed,omitempty"`
}

// An Armed guard is one whose changes are undone unless they are confirmed.
type Armed struct {
	ID    string         `json:"id"` // of a run or a step, as the site has named it
	Epoch int64          `json:"epoch"`
	Until time.Time      `json:"until"`
	Of    []guard.Change `json:"changes"`
}

// A contact is what is known of the connection to one server.
type contact struct {
	Server
	asked time.Time
}

// told takes note of what happened to the connection to a server.
func (a *agent) told(address string, t reverse.Turn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, c := a.Now(), a.contactOf(address)
	if t.Connected {
		c.Connected, c.Since, c.Next, a.refused = true, &now, nil, false
		return
	}
	next := now.Add(t.Pause)
	if c.Connected || c.Since == nil {
		c.Since = &now
	}
	c.Connected, c.Next, c.Error = false, &next, t.Err.Error()
	if !errors.Is(t.Err, reverse.ErrRefused) {
		return
	}
	c.Error += ": " + readmit
	if !a.refused {
		a.refused = true
		a.Logger.Error(reverse.ErrRefused.Error()+": "+readmit, "node", a.id.Node(), "serial", a.id.Certificate().SerialNumber.Text(16))
	}
}

// readmit says what may be the matter with a certificate that the site refuses, and what an operator does.
const readmit = "it may have been revoked, or replaced by a newer one; at the site, converge agent list shows how the node stands. " +
	"To admit it again, run converge agent revoke -undo there; or make a token there with converge agent token create, and enrol this machine anew with converge agent bootstrap"

// contactOf returns what is known of a server. The lock is held.
func (a *agent) contactOf(address string) *contact {
	c := a.contacts[address]
	if c == nil {
		c = &contact{Server: Server{Address: address}}
		a.contacts[address] = c
	}
	return c
}

// asks returns options by which a server takes note of each call that comes from an address.
func (a *agent) asks(address string) []grpc.ServerOption {
	note := func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.contactOf(address).asked = a.Now()
	}
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, r any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			note()
			return next(ctx, r)
		}),
		grpc.ChainStreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			note()
			return next(srv, s)
		}),
	}
}

// A pulse is how a provider, or the guard, stood when it was asked last.
type pulse struct {
	err   error // why it, or its far side, is unavailable
	since time.Time
}

// asking is how long a provider may take to say how it stands.
const asking = 5 * time.Second

// errMute is why a provider counts as unavailable that does not say how it stands.
var errMute = errors.New("it does not say how it stands")

// theGuard is the guard among those that are asked how they stand.
const theGuard = "guard"

// feel asks the providers and the guard how they stand, until ctx is done. One that does not answer keeps nothing else waiting.
func (a *agent) feel(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	asked := map[string]bool{}
	for ctx.Err() == nil {
		for name, ask := range a.answering() {
			if !asked[name] {
				asked[name] = true
				running.Go(func() { a.follow(ctx, name, ask) })
			}
		}
		_ = retry.Sleep(ctx, every) // by then more may be open
	}
}

// answering returns how to ask those that can say how they stand, by name.
func (a *agent) answering() map[string]func(context.Context) error {
	all := map[string]func(context.Context) error{}
	if a.Undo != nil {
		all[theGuard] = func(ctx context.Context) error {
			open, err := a.Undo.Open(ctx)
			for _, o := range open {
				if o.Failed != "" {
					err = errors.Join(err, errors.New(o.Failed))
				}
			}
			return err
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.serves {
		if p.Health != nil {
			all[p.Name] = p.Health
		}
	}
	return all
}

// follow asks one of them how it stands until ctx is done, and more often while that is not well: it may be about to begin.
func (a *agent) follow(ctx context.Context, name string, ask func(context.Context) error) {
	next := again.Pauses()
	for ctx.Err() == nil {
		limit, cancel := context.WithTimeout(ctx, asking)
		answer := make(chan error, 1)
		go func() { answer <- ask(limit) }()
		var err error
		select {
		case err = <-answer:
		case <-limit.Done():
			if ctx.Err() == nil {
				a.felt(name, errMute)
			}
			err = <-answer // whatever ctx says: it is not asked again before
		}
		if err != nil && limit.Err() != nil {
			err = errMute
		}
		cancel()
		if ctx.Err() != nil {
			return
		}
		a.felt(name, err)
		pause := every
		if err != nil {
			pause = next()
		} else {
			next = again.Pauses()
		}
		_ = retry.Sleep(ctx, pause)
	}
}

// felt takes note of how one stands that was asked, keeps since when it has been like that, and logs when that begins.
func (a *agent) felt(name string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.pulses[name]
	if u == nil || (u.err == nil) != (err == nil) {
		switch {
		case err != nil:
			a.Logger.Warn(name+" is unavailable", "error", err)
		case u != nil:
			a.Logger.Info(name + " is available again")
		}
		u = &pulse{since: a.Now()}
		a.pulses[name] = u
	}
	u.err = err
}

// unwell returns why providers' far sides, or the guard, are unavailable, by name.
func (a *agent) unwell() map[string]error {
	a.mu.Lock()
	defer a.mu.Unlock()
	why := map[string]error{}
	for name, u := range a.pulses {
		if u.err != nil {
			why[name] = u.err
		}
	}
	return why
}

// status returns how the agent stands. It waits for the guard alone, and only until ctx is done.
func (a *agent) status(ctx context.Context) Status {
	cert, doc, now := a.id.Certificate(), a.id.Document(), a.Now()
	s := Status{
		Node: a.id.Node(), Site: a.id.Site().Name, SiteID: a.id.Site().ID, Version: a.Version, Started: a.started, Now: now,
		Certificate: Certificate{Serial: cert.SerialNumber.Text(16), NotBefore: cert.NotBefore, NotAfter: cert.NotAfter, Renewal: a.id.RenewAt()},
		Trust:       Trust{Version: doc.Version, NotAfter: doc.NotAfter},
		Guard:       a.guardStatus(ctx, now),
		Ahead:       a.ahead(now),
	}
	work := a.node.Work()
	s.Tasks = Tasks{Open: []Task{}, Done: work.Done, Failed: work.Failed}
	for _, d := range work.Open {
		s.Tasks.Open = append(s.Tasks.Open, Task{Key: d.Key, Kind: kindOf(d.Ref), Ref: d.Ref, Action: d.Action, Since: d.Since})
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.renewal.err != nil {
		failed := a.renewal.at
		s.Certificate.Error, s.Certificate.Failed = a.renewal.err.Error(), &failed
	}
	for _, address := range a.Servers {
		c := a.contactOf(address)
		server := c.Server
		if asked := c.asked; !asked.IsZero() {
			server.Contact = &asked
			if s.Contact == nil || asked.After(*s.Contact) {
				s.Contact = &asked
			}
		}
		s.Servers = append(s.Servers, server)
	}
	s.Providers = a.providerStatus()
	s.Problems = s.problems()
	if s.Health = OK; len(s.Problems) > 0 {
		s.Health = Degraded
	}
	return s
}

// ahead returns the time of the newest head that the node has believed, when its clock shows that this has not come yet.
func (a *agent) ahead(now time.Time) *time.Time {
	if head := a.book.Standing().Floor; head.After(now.Add(task.Skew)) {
		return &head
	}
	return nil
}

// kindOf returns the kind in a ref; empty when there is none.
func kindOf(ref string) string {
	if parts := strings.SplitN(ref, "/", 3); len(parts) == 3 {
		return parts[1]
	}
	return ""
}

// providerStatus returns how the providers stand. The lock is held.
func (a *agent) providerStatus() []ProviderStatus {
	list := []ProviderStatus{}
	for _, p := range a.serves {
		s := ProviderStatus{Provider: p.Name, Scope: p.Scope, Health: Unknown}
		if u := a.pulses[p.Name]; u != nil {
			since := u.since
			if s.Health, s.Since = OK, &since; u.err != nil {
				s.Health, s.Detail = Unavailable, u.err.Error()
			}
		}
		list = append(list, s)
	}
	for name, err := range a.missing {
		list = append(list, ProviderStatus{Provider: name, Scope: a.id.Node(), Health: Missing, Detail: err.Error()})
	}
	slices.SortFunc(list, func(x, y ProviderStatus) int { return strings.Compare(x.Provider, y.Provider) })
	return list
}

// guardStatus asks the guard.
func (a *agent) guardStatus(ctx context.Context, now time.Time) Guard {
	if a.Undo == nil {
		return Guard{State: NoGuard}
	}
	open, err := a.Undo.Open(ctx)
	if err != nil {
		return Guard{State: AbsentGuard, Error: err.Error()}
	}
	g := Guard{State: IdleGuard}
	for _, o := range open {
		if o.Failed != "" {
			g.Error = strings.TrimPrefix(g.Error+"; "+o.Failed, "; ")
			continue
		}
		g.State = ArmedGuard
		g.Armed = append(g.Armed, Armed{ID: o.ID, Epoch: o.Epoch, Until: now.Add(o.Remaining), Of: o.Changes})
	}
	if g.Error != "" {
		g.State = FailedGuard
	}
	return g
}

// problems says what is wrong, the worst first. That one of several replicas is away is not: the others are there for that.
func (s *Status) problems() []string {
	list := []string{}
	add := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	cert := &s.Certificate
	expired := !s.Now.Before(cert.NotAfter)
	if expired {
		add("the certificate has expired at %s", stamp(cert.NotAfter))
	}
	if !s.Now.Before(s.Trust.NotAfter) {
		add("version %d of the trust document has expired at %s: converge trust rotate at the site", s.Trust.Version, stamp(s.Trust.NotAfter))
	}
	if s.Ahead != nil {
		add("a head of the site was of %s, and here it is %s: until then nothing can be changed on this node; if the clock here is right now: converge agent reset-clock",
			stamp(*s.Ahead), stamp(s.Now))
	}
	if !slices.ContainsFunc(s.Servers, func(r Server) bool { return r.Connected }) {
		add("not connected to any site agent")
		for _, r := range s.Servers {
			if r.Error != "" {
				list[len(list)-1] += ": " + r.Error
				break
			}
		}
	}
	switch s.Guard.State {
	case AbsentGuard:
		add("%s", s.Guard.Error)
	case FailedGuard:
		add("look at this node: %s", s.Guard.Error)
	}
	for _, p := range s.Providers {
		switch p.Health {
		case Missing:
			add("%s could not be opened: %s", p.Provider, p.Detail)
		case Unavailable:
			add("%s is unavailable: %s", p.Provider, p.Detail)
		}
	}
	if cert.Error != "" && !s.Now.Before(cert.Renewal) {
		add("the certificate, which is valid until %s, cannot be renewed: %s", stamp(cert.NotAfter), cert.Error)
	}
	return list
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
