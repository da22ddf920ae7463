package site

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/remote/remotepb"
	"converge.dev/converge/providers/wire"
	"converge.dev/converge/providers/wire/wirepb"
	"converge.dev/converge/schema"
)

// Relay offers the nodes to commands that run beside the site agent, as package wire does. What they change is signed here, like what
// the site agent changes itself: whoever can call it can change the nodes, so it is offered only where that is meant.
func Relay(r grpc.ServiceRegistrar, n *Nodes, log *slog.Logger) {
	wirepb.RegisterProvidersServer(r, &relay{nodes: n, log: log, servers: map[string]*relayed{}})
	remotepb.RegisterNodesServer(r, standings{nodes: n})
}

// standings tells commands how the nodes stand.
type standings struct {
	remotepb.UnimplementedNodesServer
	nodes *Nodes
}

// Standings implements remotepb.NodesServer.
func (s standings) Standings(context.Context, *remotepb.StandingsRequest) (*remotepb.StandingsResponse, error) {
	millis := func(t time.Time) int64 {
		if t.IsZero() {
			return 0
		}
		return t.UnixMilli()
	}
	list := func(ms []Missing) (said []*wirepb.Missing) {
		for _, m := range ms {
			said = append(said, &wirepb.Missing{Name: m.Provider, Why: m.Why})
		}
		return said
	}
	all := &remotepb.StandingsResponse{}
	for _, n := range s.nodes.Status() {
		all.Nodes = append(all.Nodes, &remotepb.NodeStanding{
			Name: n.Name, Connected: n.Connected, Since: millis(n.Since), Heard: millis(n.Heard), Address: n.Address, Hung: n.Hung,
			Standing: &remotepb.Standing{
				Epoch: n.Epoch, Seq: n.Seq, Running: int64(n.Running), Trust: n.Trust, Agent: n.Agent, Providers: n.Providers,
				Missing: list(n.Missing), Unwell: list(n.Unwell),
			},
		})
	}
	return all, nil
}

// Standings asks the site agent to which a connection leads, and which has offered its nodes by [Relay], how they stand. It returns what
// [Nodes.Status] returns there, with times in milliseconds.
func Standings(ctx context.Context, conn grpc.ClientConnInterface) ([]NodeStatus, error) {
	// A crowd: 5 000 nodes of 1 KiB.
	answer, err := remotepb.NewNodesClient(conn).Standings(ctx, &remotepb.StandingsRequest{}, grpc.MaxCallRecvMsgSize(64<<20))
	if status.Code(err) == codes.Unimplemented {
		err = errors.New("it is of an older version, which does not tell how its nodes stand")
	}
	if err != nil {
		return nil, err
	}
	at := func(millis int64) time.Time {
		if millis == 0 {
			return time.Time{}
		}
		return time.UnixMilli(millis)
	}
	list := make([]NodeStatus, len(answer.GetNodes()))
	for i, n := range answer.GetNodes() {
		s := n.GetStanding()
		list[i] = NodeStatus{
			Name: n.GetName(), Connected: n.GetConnected(), Since: at(n.GetSince()), Address: n.GetAddress(), Hung: n.GetHung(),
			Standing: Standing{
				Epoch: s.GetEpoch(), Seq: s.GetSeq(), Running: int(s.GetRunning()), Trust: s.GetTrust(), Agent: s.GetAgent(), Providers: s.GetProviders(),
				Missing: missing(s.GetMissing()), Unwell: missing(s.GetUnwell()), Heard: at(n.GetHeard()),
			},
		}
	}
	return list, nil
}

type relay struct {
	wirepb.UnimplementedProvidersServer
	nodes *Nodes
	log   *slog.Logger

	mu      sync.Mutex
	servers map[string]*relayed // by node
}

// A relayed is the server of one node's providers as they were when it was connected for the nth time.
type relayed struct {
	wirepb.ProvidersServer
	nth int
}

// of returns the server of a node's providers. They outlive the connection; a new one may serve others.
func (r *relay) of(ctx context.Context, node string) (wirepb.ProvidersServer, error) {
	nth, standing := r.nodes.standing(node)
	r.mu.Lock()
	s := r.servers[node]
	r.mu.Unlock()
	if s != nil && s.nth == nth {
		return s, nil
	}
	needs := make([]providers.Need, len(standing.Providers))
	for i, p := range standing.Providers {
		needs[i] = providers.Need{Scope: node, Provider: p}
	}
	set, err := r.nodes.Open(ctx, needs)
	for _, n := range needs { // a server without what the node serves would be kept
		if err == nil {
			err = set.Failure(n.Scope, n.Provider)
		}
	}
	if err == nil {
		var server wirepb.ProvidersServer
		if server, err = wire.New(r.log, set.All()...); err == nil {
			s = &relayed{server, nth}
		}
	}
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.servers[node] = s
	return s, nil
}

// Describe implements wirepb.ProvidersServer. It describes what the given nodes serve, or all that are connected.
func (r *relay) Describe(ctx context.Context, q *wirepb.DescribeRequest) (*wirepb.DescribeResponse, error) {
	scopes, all := q.GetScopes(), &wirepb.DescribeResponse{}
	if len(scopes) == 0 {
		for _, s := range r.nodes.Status() {
			if s.Connected {
				scopes = append(scopes, s.Name)
			}
		}
	}
	for _, scope := range scopes {
		if scope == schema.ScopeSite {
			all.Missing = append(all.Missing, &wirepb.Missing{Scope: scope, Why: "the site agent relays nodes only"})
			continue
		}
		if err := r.nodes.connected(scope); err != nil {
			all.Missing = append(all.Missing, &wirepb.Missing{Scope: scope, Why: err.Error()})
			continue
		}
		s, err := r.of(ctx, scope)
		var d *wirepb.DescribeResponse
		if err == nil {
			d, err = s.Describe(ctx, &wirepb.DescribeRequest{})
		}
		if ctx.Err() != nil {
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		if err != nil { // one node does not hide the others
			all.Missing = append(all.Missing, &wirepb.Missing{Scope: scope, Why: status.Convert(err).Message()})
			continue
		}
		all.Providers = append(all.Providers, d.GetProviders()...)
		_, standing := r.nodes.standing(scope)
		for _, m := range standing.Missing {
			all.Missing = append(all.Missing, &wirepb.Missing{Scope: scope, Name: m.Provider, Why: m.Why})
		}
	}
	return all, nil
}

func (r *relay) List(q *wirepb.ListRequest, out grpc.ServerStreamingServer[wirepb.Things]) error {
	s, err := r.of(out.Context(), q.GetWhere().GetScope())
	if err != nil {
		return err
	}
	return s.List(q, out)
}

func (r *relay) Get(q *wirepb.GetRequest, out grpc.ServerStreamingServer[wirepb.Things]) error {
	s, err := r.of(out.Context(), q.GetWhere().GetScope())
	if err != nil {
		return err
	}
	return s.Get(q, out)
}

func (r *relay) Watch(q *wirepb.WatchRequest, out grpc.ServerStreamingServer[wirepb.Changes]) error {
	s, err := r.of(out.Context(), q.GetWhere().GetScope())
	if err != nil {
		return err
	}
	return s.Watch(q, out)
}

func (r *relay) Create(ctx context.Context, q *wirepb.CallRequest) (*wirepb.CreateResponse, error) {
	return changes(ctx, r, nodeOf(q), q.GetEpoch(), q, wirepb.ProvidersServer.Create)
}

func (r *relay) Update(ctx context.Context, q *wirepb.CallRequest) (*wirepb.UpdateResponse, error) {
	return changes(ctx, r, nodeOf(q), q.GetEpoch(), q, wirepb.ProvidersServer.Update)
}

func (r *relay) Delete(ctx context.Context, q *wirepb.CallRequest) (*wirepb.DeleteResponse, error) {
	return changes(ctx, r, nodeOf(q), q.GetEpoch(), q, wirepb.ProvidersServer.Delete)
}

func (r *relay) Fence(ctx context.Context, q *wirepb.FenceRequest) (*wirepb.FenceResponse, error) {
	return changes(ctx, r, q.GetWhich().GetScope(), q.GetEpoch(), q, wirepb.ProvidersServer.Fence)
}

func (r *relay) Settle(ctx context.Context, q *wirepb.SettleRequest) (*wirepb.SettleResponse, error) {
	return changes(ctx, r, q.GetWhich().GetScope(), q.GetEpoch(), q, wirepb.ProvidersServer.Settle)
}

func (r *relay) Identify(ctx context.Context, q *wirepb.IdentifyRequest) (*wirepb.IdentifyResponse, error) {
	return relays(ctx, r, q.GetWhich().GetScope(), q, wirepb.ProvidersServer.Identify)
}

func (r *relay) Build(ctx context.Context, q *wirepb.BuildRequest) (*wirepb.BuildResponse, error) {
	return relays(ctx, r, q.GetWhich().GetScope(), q, wirepb.ProvidersServer.Build)
}

func (r *relay) Health(ctx context.Context, q *wirepb.HealthRequest) (*wirepb.HealthResponse, error) {
	return relays(ctx, r, q.GetWhich().GetScope(), q, wirepb.ProvidersServer.Health)
}

func (r *relay) Obstacles(ctx context.Context, q *wirepb.ObstaclesRequest) (*wirepb.ObstaclesResponse, error) {
	return relays(ctx, r, q.GetWhich().GetScope(), q, wirepb.ProvidersServer.Obstacles)
}

// relays passes a call on to the server of a node.
func relays[Q, A any](ctx context.Context, r *relay, node string, q Q, call func(wirepb.ProvidersServer, context.Context, Q) (A, error)) (answer A, err error) {
	s, err := r.of(ctx, node)
	if err != nil {
		return answer, err
	}
	return call(s, ctx, q)
}

// changes is relays for what changes a node: a caller that no longer holds the site lock is refused here already.
func changes[Q, A any](ctx context.Context, r *relay, node string, epoch int64, q Q, call func(wirepb.ProvidersServer, context.Context, Q) (A, error)) (answer A, err error) {
	if err := r.nodes.current(ctx, epoch); err != nil {
		return answer, wire.StatusOf(wire.EncodeFailure(err))
	}
	return relays(ctx, r, node, q, call)
}

// nodeOf returns the node of a change; empty, which is no node, when its ref cannot be read.
func nodeOf(q *wirepb.CallRequest) string {
	ref, err := schema.ParseRef(q.GetRef())
	if err != nil {
		return ""
	}
	return ref.Scope
}
