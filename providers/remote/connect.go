package remote

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/agent/ledger"
	"converge.dev/converge/agent/task"
	"converge.dev/converge/internal/keyed"
	"converge.dev/converge/internal/retry"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/remote/remotepb"
	"converge.dev/converge/providers/wire"
	"converge.dev/converge/providers/wire/wirepb"
	"converge.dev/converge/schema"
)

// A Line is the way to one node: its connection, which comes and goes.
type Line interface {
	// Conn returns the connection to the node's agent, and the public key of the certificate that it showed. While there is none it
	// waits for a moment, and then fails.
	Conn(ctx context.Context) (grpc.ClientConnInterface, ed25519.PublicKey, error)
}

// Options say how a node is reached, and in whose name. All are required unless they say otherwise.
type Options struct {
	Site   string // its id
	Node   string // its name, which is the scope of its providers
	Line   Line
	Tasks  *Sequence                                 // one per node, however often it is connected to
	Key    func() (ed25519.PrivateKey, int64, error) // signs tasks, and the version of the trust document that announced it
	Silent func()                                    // optional; called when the node was asked and did not answer in time
	Anew   func(ctx context.Context) error           // optional; fails unless the node reports over new connections; without it no guard is ended to keep what it guards
	Now    func() time.Time                          // optional; time.Now
	Memory *wire.Memory                              // optional; of what the node lists
	Logger *slog.Logger                              // optional
}

// Open returns those providers that are needed of a node, all of which have its name as their scope. They outlive its connection:
// they use the one that there is. One that the agent does not serve is a failure of the set. Closing the set closes nothing.
func Open(ctx context.Context, o Options, needs []providers.Need) (*providers.Set, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	c := &conn{Options: o, permits: map[string]*providers.Permit{}}
	set, err := wire.Open(ctx, c, needs, o.Memory)
	if err != nil {
		return nil, err
	}
	for _, p := range set.All() {
		p.Confined, p.Health = true, c.health(p.Health)
		c.permits[p.Name] = p.Permit
	}
	return set, nil
}

// A conn sends what changes the node as signed tasks, and everything else as it is.
type conn struct {
	Options
	permits map[string]*providers.Permit // by the name of the provider; complete before the first change
}

// health adds to what a provider says of its far side that its node can be reached.
func (c *conn) health(of func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if _, _, err := c.Line.Conn(ctx); err != nil || of == nil {
			return err
		}
		return of(ctx)
	}
}

// Invoke implements grpc.ClientConnInterface.
func (c *conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	action, ok := actions[method]
	if !ok {
		return c.ask(ctx, method, args, reply, opts)
	}
	if settle, ok := args.(*wirepb.SettleRequest); ok && settle.GetKeep() {
		if err := c.anew(ctx); err != nil {
			return refused(action, settle, providers.Transient, err)
		}
	}
	outcome, err := c.do(ctx, action, args.(proto.Message))
	if err != nil {
		return err
	}
	if f := outcome.GetFailure(); f != nil {
		return wire.StatusOf(f)
	}
	switch r := reply.(type) {
	case *wirepb.CreateResponse:
		r.Chosen, r.Armed = outcome.GetChosen(), outcome.GetArmed()
	case *wirepb.UpdateResponse:
		r.Armed = outcome.GetArmed()
	case *wirepb.DeleteResponse:
		r.Armed = outcome.GetArmed()
	case *wirepb.SettleResponse:
		r.Kept = outcome.GetKept()
	}
	return nil
}

// anew fails unless the node reports over new connections.
func (c *conn) anew(ctx context.Context) error {
	if c.Anew == nil {
		return errors.New("it cannot be found out here whether the node can be reached anew")
	}
	return c.Anew(ctx)
}

// unavailable is the status of a call that could not be sent.
func unavailable(err error) error {
	if s := status.FromContextError(err); s.Code() != codes.Unknown {
		return s.Err()
	}
	return status.Error(codes.Unavailable, err.Error())
}

// actions are the calls that change a node, by their methods.
var actions = map[string]string{
	wirepb.Providers_Create_FullMethodName: task.Create,
	wirepb.Providers_Update_FullMethodName: task.Update,
	wirepb.Providers_Delete_FullMethodName: task.Delete,
	wirepb.Providers_Fence_FullMethodName:  task.Fence,
	wirepb.Providers_Settle_FullMethodName: task.Settle,
}

// again is how often a node is asked what came of a task.
var again = retry.Policy{First: 100 * time.Millisecond, Cap: 5 * time.Second}

// do has a task carried out, and returns how it ended. While that is not known it goes on asking: the node carries it out once,
// however often it gets it. An error without a failure in it means that the outcome is unknown.
func (c *conn) do(ctx context.Context, action string, request proto.Message) (*remotepb.Outcome, error) {
	params, err := proto.Marshal(request)
	if err != nil {
		return nil, refused(action, request, providers.Invalid, err)
	}
	epoch, key := of(request)
	t := task.Task{ID: uuid.NewString(), Action: action, Site: c.Site, Node: c.Node, Epoch: epoch, Key: key, Nonce: make([]byte, 16), Params: params}
	_, _ = rand.Read(t.Nonce)
	sign, trust, err := c.Key()
	if err != nil {
		return nil, refused(action, request, providers.Denied, err)
	}
	if t.Seq, err = c.Tasks.next(ctx, epoch, c); err != nil {
		class := providers.Transient
		if errors.As(err, new(*providers.OutdatedError)) {
			class = providers.Denied
		}
		return nil, refused(action, request, class, err)
	}
	t.Trust, t.NotBefore = trust, c.Now().UTC()
	t.Expires = t.NotBefore.Add(Start)
	envelope, err := t.Sign(sign)
	if err != nil {
		return nil, refused(action, request, providers.Invalid, err)
	}
	digest, err := task.Digest(envelope)
	if err != nil {
		return nil, refused(action, request, providers.Invalid, err)
	}

	sent, pause := false, again.Pauses()
	for {
		far, pub, err := c.Line.Conn(ctx)
		// Conn may have waited: this is the last moment before something is sent.
		if err := c.permit(request); err != nil {
			return nil, c.lost(sent, action, request, err)
		}
		if err == nil {
			var answer *remotepb.DoResponse
			answer, err = remotepb.NewNodeClient(far).Do(ctx, &remotepb.DoRequest{Task: envelope})
			if err == nil {
				var outcome *remotepb.Outcome
				if outcome, err = c.outcome(answer.GetResult(), pub, digest); err == nil {
					return outcome, nil
				}
			}
			f, refused := wire.FailureOf(err)
			if refused {
				c.Tasks.forget()
				// The node will not carry it out. When it may have got it before, only its ledger can say that it never began.
				if !sent || f.GetCode() == string(ledger.RefusedExpired) {
					return nil, wire.StatusOf(about(f, action, request))
				}
			}
			sent = sent || !refused
		}
		c.Logger.Debug("the outcome of a task is not known yet", "node", c.Node, "task", t.ID, "action", action, "sent", sent, "error", err)
		if !sent && c.Now().After(t.Expires) { // nobody can carry it out any more
			return nil, refused(action, request, providers.Transient, err)
		}
		if retry.Sleep(ctx, pause()) != nil {
			return nil, c.lost(sent, action, request, err)
		}
	}
}

// outcome returns what a node has signed as the outcome of a task.
func (c *conn) outcome(result []byte, key ed25519.PublicKey, digest string) (*remotepb.Outcome, error) {
	r, err := task.OpenResult(result, key, c.Node, digest)
	if err != nil {
		return nil, fmt.Errorf("the answer of node %s does not count: %w", c.Node, err)
	}
	outcome := &remotepb.Outcome{}
	if err := proto.Unmarshal(r.Answer, outcome); err != nil {
		return nil, fmt.Errorf("the answer of node %s cannot be read: %w", c.Node, err)
	}
	return outcome, nil
}

// permit fails when this process may no longer change anything.
func (c *conn) permit(request proto.Message) error {
	name := ""
	switch r := request.(type) {
	case *wirepb.FenceRequest:
		name = r.GetWhich().GetName()
	case *wirepb.SettleRequest:
		name = r.GetWhich().GetName()
	case *wirepb.CallRequest:
		if ref, err := schema.ParseRef(r.GetRef()); err == nil {
			name = ref.Provider()
		}
	}
	return c.permits[name].Check()
}

// lost is the error of a task that was given up: of unknown outcome once it was sent.
func (c *conn) lost(sent bool, action string, request proto.Message, err error) error {
	if !sent {
		return refused(action, request, providers.Transient, err)
	}
	return unavailable(fmt.Errorf("it is not known what node %s did: %w", c.Node, err))
}

// refused is the failure of a task that was not sent, or that nobody can carry out.
func refused(action string, request proto.Message, class providers.Class, err error) error {
	e := &providers.Error{Op: action, Class: class, Err: err}
	if call, ok := request.(*wirepb.CallRequest); ok {
		e.Ref, _ = schema.ParseRef(call.GetRef())
	}
	return wire.StatusOf(wire.EncodeFailure(e))
}

// about returns a failure as one of a request: who refuses a task need not have read what it is about.
func about(f *wirepb.Failure, action string, request proto.Message) *wirepb.Failure {
	f.Op = action
	if call, ok := request.(*wirepb.CallRequest); ok {
		f.Ref = call.GetRef()
	}
	return f
}

// of returns the epoch and the idempotency key of a request.
func of(request proto.Message) (epoch int64, key string) {
	switch r := request.(type) {
	case *wirepb.CallRequest:
		return r.GetEpoch(), r.GetKey()
	case *wirepb.FenceRequest:
		return r.GetEpoch(), ""
	case *wirepb.SettleRequest:
		return r.GetEpoch(), ""
	}
	return 0, ""
}

// A Sequence numbers the tasks for one node. The zero Sequence is ready: it begins after the last number that the node knows.
type Sequence struct {
	turn keyed.Mutex // of those who want a number: one of them asks the node

	mu         sync.Mutex
	epoch, seq int64    // the newest epoch, and the last number that was used in it; it never falls, whatever the node says
	asked      bool     // the node has no higher number, as far as is known
	heard      position // what the node said last: others may have sent it tasks
}

// A position is a number in an epoch.
type position struct{ epoch, seq int64 }

// next returns the next number in an epoch. It fails with a [providers.OutdatedError] when there were tasks of a newer one.
func (s *Sequence) next(ctx context.Context, epoch int64, c *conn) (int64, error) {
	leave, err := s.turn.Lock(ctx, "")
	if err != nil {
		return 0, err
	}
	defer leave()
	e, seq, asked := s.state()
	switch {
	case epoch < e:
		return 0, &providers.OutdatedError{On: "node " + c.Node, Stored: e, Epoch: epoch}
	case epoch > e:
		seq, asked = 0, false
	}
	if !asked {
		st, err := standing(ctx, c.Line, nil)
		if err != nil {
			return 0, err
		}
		if st.GetEpoch() == epoch {
			seq = max(seq, st.GetSeq())
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch, s.seq, s.asked = epoch, seq+1, true
	return s.seq, nil
}

// forget makes the node be asked before the next number, because somebody else may have used that.
func (s *Sequence) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = false
}

// state returns the newest epoch and the last number that was used in it; zeros when there was none. It does not wait for the node.
func (s *Sequence) state() (epoch, seq int64, asked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epoch, s.seq, s.asked
}

// hear keeps how far a node says it is.
func (s *Sequence) hear(st *remotepb.Standing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := position{st.GetEpoch(), st.GetSeq()}
	if now.epoch == s.heard.epoch { // a ledger that was lost says less than before
		now.seq = max(now.seq, s.heard.seq)
	}
	if now.epoch >= s.heard.epoch {
		s.heard = now
	}
}

// said returns the highest number of an epoch that the node has mentioned; 0 for none.
func (s *Sequence) said(epoch int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.heard.epoch != epoch {
		return 0
	}
	return s.heard.seq
}

// Beat brings a node a head: that its tasks are those of this epoch and no others, as of now. It returns how far the node is.
func Beat(ctx context.Context, o Options, epoch int64) (*remotepb.Standing, error) {
	key, trust, err := o.Key()
	if err != nil {
		return nil, err
	}
	h := task.Head{Site: o.Site, Node: o.Node, Epoch: max(epoch, 1), Now: time.Now().UTC(), Trust: trust}
	if o.Now != nil {
		h.Now = o.Now().UTC()
	}
	// A node that has lost its ledger takes its floor from this, so that no task is carried out a second time.
	if e, seq, _ := o.Tasks.state(); e >= h.Epoch {
		h.Epoch, h.Seq = e, seq
	}
	h.Seq = max(h.Seq, o.Tasks.said(h.Epoch))
	head, err := h.Sign(key)
	if err != nil {
		return nil, err
	}
	st, err := standing(ctx, o.Line, head)
	if err == nil {
		o.Tasks.hear(st)
	}
	return st, err
}

// Ask returns how far a node is. It brings no head: that is for the one that keeps the site.
func Ask(ctx context.Context, o Options) (*remotepb.Standing, error) {
	return standing(ctx, o.Line, nil)
}

// standing asks a node how far it is, and brings it a head, unless that is empty.
func standing(ctx context.Context, line Line, head []byte) (*remotepb.Standing, error) {
	far, _, err := line.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return remotepb.NewNodeClient(far).Beat(ctx, &remotepb.BeatRequest{Head: head})
}
