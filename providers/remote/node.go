package remote

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"converge.dev/converge/agent/ledger"
	"converge.dev/converge/agent/task"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/remote/remotepb"
	"converge.dev/converge/providers/wire"
	"converge.dev/converge/providers/wire/wirepb"
	"converge.dev/converge/schema"
)

// NodeOptions say what a node serves, and whom it obeys. All are required unless they say otherwise.
type NodeOptions struct {
	Name    string        // of the node, which is the scope of its providers
	Tasks   *task.Checker // verifies tasks and heads
	Ledger  *ledger.Ledger
	Key     func() ed25519.PrivateKey // that of the node's certificate: signs results
	Trust   func() int64              // version of the trust document that the node believes
	Behind  func()                    // optional; called when the site has a newer one
	Unwell  func() map[string]error   // optional; why the far sides of providers are unavailable, by name; must not wait for them
	Version string                    // of the agent
	Now     func() time.Time          // optional; time.Now
	Logger  *slog.Logger              // optional
}

// A Node carries out the tasks of a site. It outlives the connections on which they arrive.
type Node struct {
	o NodeOptions

	ctx  context.Context // of what runs
	stop context.CancelCauseFunc
	runs sync.WaitGroup

	mu     sync.Mutex
	closed bool
	headed time.Time     // when the last head arrived, by the clock of this process
	ended  chan struct{} // closed, and replaced, whenever a task ends
	work   Work
}

// NewNode returns a node. Close ends what runs on it.
func NewNode(o NodeOptions) *Node {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	n := &Node{o: o, ended: make(chan struct{})}
	n.ctx, n.stop = context.WithCancelCause(context.Background())
	return n
}

// errEnding is why tasks end before they are done.
var errEnding = errors.New("the agent of the node is ending")

// Close cancels what runs, and waits until it has ended and its results are in the ledger. Nothing begins after that.
func (n *Node) Close() {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.stop(errEnding)
	n.runs.Wait()
}

// enter reports whether a task may begin; leave ends what it allows.
func (n *Node) enter() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closed {
		n.runs.Add(1)
	}
	return !n.closed
}

func (n *Node) leave() { n.runs.Done() }

// A Reporter says each of some words to the site, over a connection of its own. It fails when one was not heard.
type Reporter func(ctx context.Context, words [][]byte) error

// Serve offers providers of the node, and its own calls, to the clients of r; absent are those that are configured and could not be
// opened, with the reason. Report reports to the site that called over this connection.
func (n *Node) Serve(r grpc.ServiceRegistrar, ps []*providers.Provider, absent map[string]error, report Reporter) error {
	for _, p := range ps {
		if p.Scope != n.o.Name {
			return fmt.Errorf("provider %s serves scope %s, not node %s", p.Name, p.Scope, n.o.Name)
		}
	}
	fenced := make([]*providers.Provider, len(ps))
	for i, p := range ps {
		with := *p
		with.Fence, with.Kinds = n.fence(p.Fence), slices.Clone(p.Kinds)
		for j := range with.Kinds {
			with.Kinds[j].Traits.EffectWithin += Start + task.Skew + Run
		}
		fenced[i] = &with
	}
	all, err := wire.New(n.o.Logger, fenced...)
	if err != nil {
		return err
	}
	t := &tasks{node: n, all: all, report: report}
	for _, p := range ps {
		t.serves = append(t.serves, p.Name)
	}
	t.missing = lacking(n.o.Name, absent)
	wirepb.RegisterProvidersServer(r, reads{all: all, missing: t.missing})
	remotepb.RegisterNodeServer(r, t)
	return nil
}

// lacking returns what a node lacks, and why, by name.
func lacking(node string, why map[string]error) (list []*wirepb.Missing) {
	for _, name := range slices.Sorted(maps.Keys(why)) {
		list = append(list, &wirepb.Missing{Scope: node, Name: name, Why: strings.ToValidUTF8(why[name].Error(), "\ufffd")})
	}
	return list
}

// reads offers the calls that change nothing. Every other call is not implemented: a change arrives as a task.
type reads struct {
	wirepb.UnimplementedProvidersServer
	all     wirepb.ProvidersServer
	missing []*wirepb.Missing
}

func (r reads) Describe(ctx context.Context, q *wirepb.DescribeRequest) (*wirepb.DescribeResponse, error) {
	d, err := r.all.Describe(ctx, q)
	if err == nil {
		d.Missing = r.missing
	}
	return d, err
}

func (r reads) List(q *wirepb.ListRequest, out grpc.ServerStreamingServer[wirepb.Things]) error {
	return r.all.List(q, out)
}

func (r reads) Get(q *wirepb.GetRequest, out grpc.ServerStreamingServer[wirepb.Things]) error {
	return r.all.Get(q, out)
}

func (r reads) Watch(q *wirepb.WatchRequest, out grpc.ServerStreamingServer[wirepb.Changes]) error {
	return r.all.Watch(q, out)
}

func (r reads) Identify(ctx context.Context, q *wirepb.IdentifyRequest) (*wirepb.IdentifyResponse, error) {
	return r.all.Identify(ctx, q)
}

func (r reads) Build(ctx context.Context, q *wirepb.BuildRequest) (*wirepb.BuildResponse, error) {
	return r.all.Build(ctx, q)
}

func (r reads) Health(ctx context.Context, q *wirepb.HealthRequest) (*wirepb.HealthResponse, error) {
	return r.all.Health(ctx, q)
}

func (r reads) Obstacles(ctx context.Context, q *wirepb.ObstaclesRequest) (*wirepb.ObstaclesResponse, error) {
	return r.all.Obstacles(ctx, q)
}

// fence returns the fence of a provider on this node: the node stores the epoch, then the far side where it has a place for it.
func (n *Node) fence(of func(context.Context, int64) error) func(context.Context, int64) error {
	return func(ctx context.Context, epoch int64) error {
		if _, err := n.o.Ledger.Fence(epoch); err != nil {
			var outdated *ledger.OutdatedError
			if errors.As(err, &outdated) {
				return &providers.Error{Op: "fence", Class: providers.Denied, Err: &providers.OutdatedError{On: "node " + n.o.Name, Stored: outdated.Stored, Epoch: epoch}}
			}
			return &providers.Error{Op: "fence", Class: providers.Transient, Err: err}
		}
		if err := n.quiet(ctx, epoch); err != nil {
			return &providers.Error{Op: "fence", Class: providers.Transient, Err: fmt.Errorf("tasks of an earlier epoch are still in progress on node %s: %w", n.o.Name, err)}
		}
		if of == nil {
			return nil
		}
		return of(ctx, epoch)
	}
}

// quiet waits until nothing of an epoch before this one is in progress.
func (n *Node) quiet(ctx context.Context, epoch int64) error {
	for {
		n.mu.Lock()
		ended := n.ended
		n.mu.Unlock()
		if !slices.ContainsFunc(n.o.Ledger.Standing().Running, func(e ledger.Entry) bool { return e.Epoch < epoch }) {
			return nil
		}
		select {
		case <-ended:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// end tells those who wait that a task has ended.
func (n *Node) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.ended)
	n.ended = make(chan struct{})
}

// fresh fails unless a head arrived lately.
func (n *Node) fresh() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.headed.IsZero() || time.Since(n.headed) > Stale {
		return fmt.Errorf("node %s has not heard from the site agent for %v", n.o.Name, Stale)
	}
	return nil
}

// tasks is what a node offers beside reading, on one connection.
type tasks struct {
	remotepb.UnimplementedNodeServer
	node    *Node
	all     wirepb.ProvidersServer
	report  Reporter
	serves  []string
	missing []*wirepb.Missing
}

// Beat implements remotepb.NodeServer.
func (t *tasks) Beat(_ context.Context, r *remotepb.BeatRequest) (*remotepb.Standing, error) {
	n := t.node
	if len(r.GetHead()) > 0 {
		h, err := n.o.Tasks.Head(r.GetHead())
		if err != nil {
			return nil, refuse(task.Task{}, providers.Denied, "head", err)
		}
		// That the site lock has been taken since it was signed does not matter here: the head is as fresh.
		if err := n.o.Ledger.Head(h.Epoch, h.Seq, h.Now); err != nil && !errors.As(err, new(*ledger.OutdatedError)) {
			return nil, refuse(task.Task{}, providers.Transient, "ledger", err)
		}
		n.mu.Lock()
		n.headed = time.Now()
		n.mu.Unlock()
		if h.Trust > n.o.Trust() && n.o.Behind != nil {
			n.o.Behind()
		}
	}
	st := n.o.Ledger.Standing()
	said := &remotepb.Standing{
		Epoch: st.Epoch, Seq: st.Seq, Running: int64(len(st.Running)), Trust: n.o.Trust(), Agent: n.o.Version, Providers: t.serves, Missing: t.missing,
	}
	if n.o.Unwell != nil {
		said.Unwell = lacking(n.o.Name, n.o.Unwell())
	}
	return said, nil
}

// mostWords is how often a node reports at the most when it is asked once.
const mostWords = 8

// Report implements remotepb.NodeServer.
func (t *tasks) Report(ctx context.Context, r *remotepb.ReportRequest) (*remotepb.ReportResponse, error) {
	if len(r.GetWords()) > mostWords {
		return nil, status.Errorf(codes.InvalidArgument, "at most %d words are said at once", mostWords)
	}
	if err := t.report(ctx, r.GetWords()); err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return &remotepb.ReportResponse{}, nil
}

// Do implements remotepb.NodeServer.
func (t *tasks) Do(ctx context.Context, r *remotepb.DoRequest) (*remotepb.DoResponse, error) {
	n := t.node
	checked, err := n.o.Tasks.Task(r.GetTask())
	var refused *task.RefusedError
	if errors.As(err, &refused) && (checked == nil || !task.Once(checked.Action)) {
		n.o.Logger.Warn("a task is refused", "check", string(refused.Check), "error", err)
		return nil, refuse(task.Task{}, denied(refused), string(refused.Check), err)
	}
	request, err := decode(&checked.Task)
	if err != nil {
		n.o.Logger.Warn("a task is refused", "task", checked.ID, "error", err)
		return nil, refuse(checked.Task, providers.Invalid, "params", err)
	}
	if err := n.fresh(); err != nil {
		return nil, refuse(checked.Task, providers.Transient, "stale", err)
	}
	if !n.enter() {
		return nil, refuse(checked.Task, providers.Transient, "ending", errEnding)
	}
	defer n.leave()
	change, ok := request.(*wirepb.CallRequest)
	if !ok {
		return t.repeatable(ctx, checked, request)
	}
	begun, err := n.o.Ledger.Begin(ledger.Entry{
		Epoch: checked.Epoch, Seq: checked.Seq, ID: checked.ID, Digest: checked.Digest, Key: checked.Key, Action: checked.Action, Expires: checked.Expires,
	})
	if err != nil {
		return nil, n.notBegun(checked.Task, err)
	}
	switch b := begun.(type) {
	case *ledger.Run:
		return t.run(ctx, checked, change, b)
	case ledger.Wait:
		kept, err := b.Result(ctx)
		if err != nil {
			return nil, status.FromContextError(err).Err()
		}
		return n.answer(checked, kept)
	case ledger.Stored:
		return n.answer(checked, b.Result)
	default: // interrupted
		over := &providers.Error{Op: checked.Action, Class: providers.Unknown, Over: true, Err: errors.New("the agent of the node ended while it carried this out")}
		over.Ref, _ = schema.ParseRef(change.GetRef())
		return n.answer(checked, encode(&remotepb.Outcome{Failure: wire.EncodeFailure(over)}))
	}
}

// denied returns the class of a refusal: a task that is too early or too late, or whose key the node does not know yet, may be
// replaced by another one.
func denied(r *task.RefusedError) providers.Class {
	switch r.Check {
	case task.CheckNotBefore, task.CheckExpired, task.CheckKey, task.CheckKeyTime:
		return providers.Transient
	}
	return providers.Denied
}

// decode returns what a task contains: a change, a fence, or the end of a guard. It must not contain anything that this version does
// not know, and nothing that differs from what is signed around it.
func decode(t *task.Task) (proto.Message, error) {
	var m proto.Message
	switch t.Action {
	case task.Fence:
		m = &wirepb.FenceRequest{}
	case task.Settle:
		m = &wirepb.SettleRequest{}
	default:
		m = &wirepb.CallRequest{}
	}
	if err := proto.Unmarshal(t.Params, m); err != nil {
		return nil, errors.New("its parameters cannot be read")
	}
	if unknown(m.ProtoReflect()) {
		return nil, errors.New("its parameters have fields that this version does not know: use the same version on both sides")
	}
	same := false
	switch r := m.(type) {
	case *wirepb.FenceRequest:
		same = r.GetEpoch() == t.Epoch && r.GetWhich().GetScope() == t.Node
	case *wirepb.SettleRequest:
		same = r.GetEpoch() == t.Epoch && r.GetWhich().GetScope() == t.Node
	case *wirepb.CallRequest:
		ref, err := schema.ParseRef(r.GetRef())
		same = err == nil && ref.Scope == t.Node && r.GetEpoch() == t.Epoch && r.GetKey() == t.Key
	}
	if !same {
		return nil, errors.New("its parameters are those of another task")
	}
	return m, nil
}

// unknown reports whether a message has fields that this version does not know, at any depth.
func unknown(m protoreflect.Message) (found bool) {
	if len(m.GetUnknown()) > 0 {
		return true
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Message() != nil && !f.IsList() && !f.IsMap() {
			found = found || unknown(v.Message())
		}
		return !found
	})
	return found
}

// refuse is the status of a task that is not carried out; code says why, in one word.
func refuse(t task.Task, class providers.Class, code string, err error) error {
	return wire.StatusOf(wire.EncodeFailure(&providers.Error{Op: cmp.Or(t.Action, "task"), Class: class, Code: code, Err: err}))
}

// notBegun is the status of a task that the ledger did not let begin.
func (n *Node) notBegun(t task.Task, err error) error {
	var refused *ledger.RefusedError
	if !errors.As(err, &refused) {
		n.o.Logger.Error("the ledger does not work: no tasks can be carried out", "error", err)
		return refuse(t, providers.Transient, "ledger", err)
	}
	n.o.Logger.Warn("a task is refused", "task", t.ID, "reason", string(refused.Reason), "error", err)
	if refused.Reason == ledger.RefusedEpoch {
		return refuse(t, providers.Denied, string(refused.Reason),
			&providers.OutdatedError{On: "node " + n.o.Name, Stored: n.o.Ledger.Standing().Epoch, Epoch: t.Epoch})
	}
	return refuse(t, providers.Transient, string(refused.Reason), err)
}

// repeatable carries out what may be repeated, and so needs no entry in the ledger: a fence, or the end of a guard.
func (t *tasks) repeatable(ctx context.Context, checked *task.Checked, request proto.Message) (*remotepb.DoResponse, error) {
	outcome := &remotepb.Outcome{}
	var err error
	switch r := request.(type) {
	case *wirepb.FenceRequest:
		_, err = t.all.Fence(ctx, r)
	case *wirepb.SettleRequest:
		if stored := t.node.o.Ledger.Standing().Epoch; r.GetEpoch() < stored {
			return nil, refuse(checked.Task, providers.Denied, string(ledger.RefusedEpoch),
				&providers.OutdatedError{On: "node " + t.node.o.Name, Stored: stored, Epoch: r.GetEpoch()})
		}
		var settled *wirepb.SettleResponse
		settled, err = t.all.Settle(ctx, r)
		outcome.Kept = settled.GetKept()
	}
	if err != nil {
		f, ok := wire.FailureOf(err)
		if !ok { // the provider is not served any more
			f = &wirepb.Failure{Op: checked.Action, Class: string(providers.Unsupported), Message: status.Convert(err).Message()}
		}
		outcome.Failure = f
	}
	return t.node.answer(checked, encode(outcome))
}

// longest is the length in bytes of the text of a failure beyond which it is cut.
const longest = 32 << 10

// run carries out a change. It goes on when the caller is gone.
func (t *tasks) run(ctx context.Context, checked *task.Checked, r *wirepb.CallRequest, entry *ledger.Run) (*remotepb.DoResponse, error) {
	n := t.node
	done := make(chan struct{})
	var answer *remotepb.DoResponse
	var err error
	n.runs.Go(func() {
		defer n.end()
		defer close(done)
		ctx, cancel := context.WithTimeout(n.ctx, Run)
		defer cancel()
		ended := n.begin(checked.Action, r)
		outcome := t.call(ctx, checked.Action, r)
		ended(outcome.GetFailure() != nil)
		if f := outcome.GetFailure(); len(f.GetMessage()) > longest { // a result that is too large could not be signed
			f.Message = strings.ToValidUTF8(f.GetMessage()[:longest], "") + "…"
		}
		answer, err = n.answer(checked, encode(outcome))
		if f := outcome.GetFailure(); f != nil { // its text may repeat a secret, which must not be on disk
			f.Message = "the reason was in an answer that did not arrive"
		}
		if ferr := entry.Finish(encode(outcome)); ferr != nil {
			n.o.Logger.Error("the result of a task could not be stored; it is kept in memory", "task", checked.ID, "error", ferr)
		}
	})
	select {
	case <-done:
		return answer, err
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// call makes the call that a task asks for.
func (t *tasks) call(ctx context.Context, action string, r *wirepb.CallRequest) *remotepb.Outcome {
	var o remotepb.Outcome
	var err error
	switch action {
	case task.Create:
		var made *wirepb.CreateResponse
		made, err = t.all.Create(ctx, r)
		o.Chosen, o.Armed = made.GetChosen(), made.GetArmed()
	case task.Update:
		var done *wirepb.UpdateResponse
		done, err = t.all.Update(ctx, r)
		o.Armed = done.GetArmed()
	case task.Delete:
		var done *wirepb.DeleteResponse
		done, err = t.all.Delete(ctx, r)
		o.Armed = done.GetArmed()
	}
	if err == nil {
		return &o
	}
	f, ok := wire.FailureOf(err)
	if !ok { // the call was not understood: it has not reached a provider
		f = &wirepb.Failure{Op: action, Ref: r.GetRef(), Class: string(providers.Unsupported), Message: status.Convert(err).Message()}
	}
	return &remotepb.Outcome{Failure: f}
}

// encode returns an outcome as it is in a result.
func encode(o *remotepb.Outcome) []byte {
	b, err := proto.Marshal(o)
	if err != nil { // texts are valid: see wire.EncodeFailure
		panic(fmt.Sprintf("remote: %v", err))
	}
	return b
}

// answer signs an outcome with the present key of the node: the one with which it was connected when the task ended may be void.
func (n *Node) answer(checked *task.Checked, outcome []byte) (*remotepb.DoResponse, error) {
	result := task.Result{Task: checked.Digest, Node: n.o.Name, At: n.o.Now().UTC(), Answer: outcome}
	signed, err := result.Sign(n.o.Key())
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &remotepb.DoResponse{Result: signed}, nil
}
