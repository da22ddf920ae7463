package wire

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"

	"converge.dev/converge/internal/keyed"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/wire/wirepb"
)

// A page of things ends when it has this many things or bytes.
const (
	pageThings = 1000
	pageBytes  = 1 << 20
)

// Serve offers providers to the clients of r, as [New] does.
func Serve(r grpc.ServiceRegistrar, log *slog.Logger, ps ...*providers.Provider) error {
	s, err := New(log, ps...)
	if err == nil {
		wirepb.RegisterProvidersServer(r, s)
	}
	return err
}

// New returns the server of providers. A panic of one of them is an error for the caller and is logged, without its text, which may
// contain a secret. The providers are not closed.
func New(log *slog.Logger, ps ...*providers.Provider) (wirepb.ProvidersServer, error) {
	set, err := providers.NewSet(ps...)
	if err != nil {
		return nil, err
	}
	return &server{set: set, log: log}, nil
}

type server struct {
	wirepb.UnimplementedProvidersServer
	set  *providers.Set
	log  *slog.Logger
	keys keyed.Mutex // of changes: an attempt that the client gave up may still run here
}

func (s *server) Describe(_ context.Context, q *wirepb.DescribeRequest) (*wirepb.DescribeResponse, error) {
	r := &wirepb.DescribeResponse{}
	for _, p := range s.set.All() {
		if len(q.GetScopes()) > 0 && !slices.Contains(q.GetScopes(), p.Scope) {
			continue
		}
		described := &wirepb.Provider{
			Name: p.Name, Scope: p.Scope, Limit: int64(p.Limit),
			Fences: p.Fence != nil, Identifies: p.Identity != nil, Builds: p.Build != nil, HasHealth: p.Health != nil,
			Foresees: p.Obstacles != nil, Guards: p.Settle != nil,
		}
		for _, k := range p.Kinds {
			traits, err := json.Marshal(k.Traits)
			if err != nil {
				return nil, err
			}
			described.Kinds = append(described.Kinds, &wirepb.Served{Name: k.Name, Traits: traits, Watches: k.Watch != nil})
		}
		r.Providers = append(r.Providers, described)
	}
	return r, nil
}

// guard turns a panic of a provider into the failure of a call.
func (s *server) guard(call *wirepb.Failure, err *error) {
	if p := recover(); p != nil {
		s.log.Error("provider panicked", "op", call.GetOp(), "kind", call.GetKind(), "ref", call.GetRef(), "stack", string(debug.Stack()))
		call.Message = "the provider panicked; see its log"
		*err = StatusOf(call)
	}
}

func (s *server) find(at *wirepb.Where) (providers.Served, error) {
	served, _, ok := s.set.Find(at.GetScope(), at.GetKind())
	if !ok {
		return providers.Served{}, status.Errorf(codes.NotFound, "%s is not served in scope %s", at.GetKind(), at.GetScope())
	}
	return served, nil
}

func (s *server) List(r *wirepb.ListRequest, out grpc.ServerStreamingServer[wirepb.Things]) (err error) {
	defer s.guard(&wirepb.Failure{Op: "observe", Kind: r.GetWhere().GetKind(), Class: string(providers.Invalid)}, &err)
	k, err := s.find(r.GetWhere())
	if err != nil {
		return err
	}
	pages := pager{out: out, known: r.GetKnown()}
	for th, err := range k.Kind.List(out.Context()) {
		if err != nil {
			return StatusOf(EncodeFailure(err))
		}
		if err := pages.add(&th); err != nil {
			return err
		}
	}
	return pages.flush()
}

func (s *server) Get(r *wirepb.GetRequest, out grpc.ServerStreamingServer[wirepb.Things]) (err error) {
	defer s.guard(&wirepb.Failure{Op: "observe", Kind: r.GetWhere().GetKind(), Class: string(providers.Invalid)}, &err)
	k, err := s.find(r.GetWhere())
	if err != nil {
		return err
	}
	things, err := k.Kind.Get(out.Context(), r.GetIds())
	if err != nil {
		return StatusOf(EncodeFailure(err))
	}
	pages := pager{out: out}
	for i := range things {
		if err := pages.add(&things[i]); err != nil {
			return err
		}
	}
	return pages.flush()
}

func (s *server) Watch(r *wirepb.WatchRequest, out grpc.ServerStreamingServer[wirepb.Changes]) (err error) {
	defer s.guard(&wirepb.Failure{Op: "watch", Kind: r.GetWhere().GetKind(), Class: string(providers.Invalid)}, &err)
	k, err := s.find(r.GetWhere())
	if err != nil {
		return err
	}
	if k.Watch == nil {
		return status.Error(codes.Unimplemented, errNoSuch.Error())
	}
	for ids, err := range k.Watch(out.Context()) {
		if err != nil {
			return StatusOf(EncodeFailure(err))
		}
		if err := out.Send(&wirepb.Changes{Ids: ids}); err != nil { // a client that does not read is waited for
			return err
		}
	}
	return nil
}

// A pager sends things in pages, and of the pages that the other side knows only that they are the same.
type pager struct {
	out   grpc.ServerStreamingServer[wirepb.Things]
	known [][]byte // digests of the pages of the other side that are still to come
	page  []providers.Thing
	text  []byte       // of the page, for its digest
	thing wirepb.Thing // whose memory is used again
}

func (p *pager) add(th *providers.Thing) (err error) {
	p.page = append(p.page, *th)
	encodeThing(&p.thing, th)
	if p.text, err = appendThing(p.text, &p.thing); err != nil {
		return err
	}
	if len(p.text) < pageBytes && len(p.page) < pageThings {
		return nil
	}
	return p.flush()
}

func (p *pager) flush() error {
	if len(p.page) == 0 {
		return nil
	}
	next := &wirepb.Things{}
	if len(p.known) > 0 {
		if digest := sha256.Sum256(p.text); bytes.Equal(p.known[0], digest[:]) {
			next.Known = p.known[0]
		}
		p.known = p.known[1:]
	}
	if next.GetKnown() == nil {
		// Once something has been sent it is too late, and costs only bandwidth; to compress what says nothing costs more than to send it.
		_ = grpc.SetSendCompressor(p.out.Context(), gzip.Name)
		next.Things = make([]*wirepb.Thing, len(p.page))
		for i := range p.page {
			next.Things[i] = &wirepb.Thing{}
			encodeThing(next.GetThings()[i], &p.page[i])
		}
	}
	p.page, p.text = p.page[:0], p.text[:0]
	return p.out.Send(next)
}

// change makes a change, and returns what the far side answered.
func (s *server) change(ctx context.Context, op string, r *wirepb.CallRequest, verb func(providers.Kind) func(context.Context, providers.Call) error) (answer providers.Answer, err error) {
	defer s.guard(&wirepb.Failure{Op: op, Ref: r.GetRef(), Class: string(providers.Unknown)}, &err)
	c, err := decodeCall(r)
	if err != nil {
		return answer, status.Errorf(codes.InvalidArgument, "the call could not be decoded: %v", err)
	}
	k, err := s.find(&wirepb.Where{Scope: c.Ref.Scope, Kind: c.Ref.Kind})
	if err != nil {
		return answer, err
	}
	fail := func(err error) (providers.Answer, error) {
		f := EncodeFailure(err)
		f.Chosen, f.Armed = answer.ID, answer.Armed
		return answer, StatusOf(f)
	}
	c.Answer = &answer
	if c.Key != "" {
		unlock, err := s.keys.Lock(ctx, c.Key)
		if err != nil {
			return fail(&providers.Error{Op: op, Ref: c.Ref, Class: providers.Transient, Err: err})
		}
		defer unlock()
	}
	if err := verb(k.Kind)(ctx, c); err != nil {
		return fail(err)
	}
	return answer, nil
}

func (s *server) Create(ctx context.Context, r *wirepb.CallRequest) (*wirepb.CreateResponse, error) {
	a, err := s.change(ctx, "create", r, func(k providers.Kind) func(context.Context, providers.Call) error { return k.Create })
	return &wirepb.CreateResponse{Chosen: a.ID, Armed: a.Armed}, err
}

func (s *server) Update(ctx context.Context, r *wirepb.CallRequest) (*wirepb.UpdateResponse, error) {
	a, err := s.change(ctx, "update", r, func(k providers.Kind) func(context.Context, providers.Call) error { return k.Update })
	return &wirepb.UpdateResponse{Armed: a.Armed}, err
}

func (s *server) Delete(ctx context.Context, r *wirepb.CallRequest) (*wirepb.DeleteResponse, error) {
	a, err := s.change(ctx, "delete", r, func(k providers.Kind) func(context.Context, providers.Call) error { return k.Delete })
	return &wirepb.DeleteResponse{Armed: a.Armed}, err
}

// errNoSuch is the error of a call that Describe does not offer.
var errNoSuch = errors.New("the provider has no such call")

// ask makes one of the calls that belong to the provider and not to a kind.
func ask[T any](s *server, which *wirepb.Which, of func(*providers.Provider) func() (T, error)) (answer T, err error) {
	defer s.guard(&wirepb.Failure{}, &err)
	for _, p := range s.set.All() {
		if p.Scope != which.GetScope() || p.Name != which.GetName() {
			continue
		}
		call := of(p)
		if call == nil {
			return answer, status.Error(codes.Unimplemented, errNoSuch.Error())
		}
		if answer, err = call(); err != nil {
			return answer, StatusOf(EncodeFailure(err))
		}
		return answer, nil
	}
	return answer, status.Error(codes.NotFound, fmt.Sprintf("no provider named %s in scope %s", which.GetName(), which.GetScope()))
}

func (s *server) Fence(ctx context.Context, r *wirepb.FenceRequest) (*wirepb.FenceResponse, error) {
	return ask(s, r.GetWhich(), func(p *providers.Provider) func() (*wirepb.FenceResponse, error) {
		if p.Fence == nil {
			return nil
		}
		return func() (*wirepb.FenceResponse, error) { return &wirepb.FenceResponse{}, p.Fence(ctx, r.GetEpoch()) }
	})
}

func (s *server) Settle(ctx context.Context, r *wirepb.SettleRequest) (*wirepb.SettleResponse, error) {
	return ask(s, r.GetWhich(), func(p *providers.Provider) func() (*wirepb.SettleResponse, error) {
		if p.Settle == nil {
			return nil
		}
		return func() (*wirepb.SettleResponse, error) {
			kept, err := p.Settle(ctx, providers.Settling{ID: r.GetId(), Epoch: r.GetEpoch(), Keep: r.GetKeep()})
			return &wirepb.SettleResponse{Kept: kept}, err
		}
	})
}

func (s *server) Identify(ctx context.Context, r *wirepb.IdentifyRequest) (*wirepb.IdentifyResponse, error) {
	return ask(s, r.GetWhich(), func(p *providers.Provider) func() (*wirepb.IdentifyResponse, error) {
		if p.Identity == nil {
			return nil
		}
		return func() (*wirepb.IdentifyResponse, error) {
			identity, err := p.Identity(ctx)
			return &wirepb.IdentifyResponse{Identity: identity}, err
		}
	})
}

func (s *server) Build(ctx context.Context, r *wirepb.BuildRequest) (*wirepb.BuildResponse, error) {
	return ask(s, r.GetWhich(), func(p *providers.Provider) func() (*wirepb.BuildResponse, error) {
		if p.Build == nil {
			return nil
		}
		return func() (*wirepb.BuildResponse, error) {
			build, err := p.Build(ctx)
			return &wirepb.BuildResponse{Build: build}, err
		}
	})
}

func (s *server) Health(ctx context.Context, r *wirepb.HealthRequest) (*wirepb.HealthResponse, error) {
	return ask(s, r.GetWhich(), func(p *providers.Provider) func() (*wirepb.HealthResponse, error) {
		if p.Health == nil {
			return nil
		}
		return func() (*wirepb.HealthResponse, error) {
			return &wirepb.HealthResponse{Down: EncodeFailure(p.Health(ctx))}, nil
		}
	})
}

func (s *server) Obstacles(ctx context.Context, r *wirepb.ObstaclesRequest) (*wirepb.ObstaclesResponse, error) {
	return ask(s, r.GetWhich(), func(p *providers.Provider) func() (*wirepb.ObstaclesResponse, error) {
		if p.Obstacles == nil {
			return nil
		}
		return func() (*wirepb.ObstaclesResponse, error) {
			found, err := p.Obstacles(ctx, decodeTargets(r.GetDeletes()), decodeTargets(r.GetChanges()))
			answer := &wirepb.ObstaclesResponse{}
			for _, o := range found {
				answer.Obstacles = append(answer.Obstacles, &wirepb.Obstacle{Target: encodeTarget(o.Target), Why: strings.ToValidUTF8(o.Why, "�")})
			}
			return answer, err
		}
	})
}
