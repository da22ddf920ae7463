package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/wire/wirepb"
)

// maxMessage is the largest accepted message: a page, whose last thing may be large.
const maxMessage = 64 << 20

// askedAtOnce is the maximum number of ids in one call.
const askedAtOnce = 10_000

// Connect returns the providers that the other side of conn serves. Closing them does not close conn. It fails when a provider
// has traits that this version does not know: they may forbid what it would do. A memory has what they list; nil: nothing is remembered.
func Connect(ctx context.Context, conn grpc.ClientConnInterface, memory *Memory) ([]*providers.Provider, error) {
	stub := wirepb.NewProvidersClient(conn)
	r, err := stub.Describe(ctx, &wirepb.DescribeRequest{})
	if err != nil {
		return nil, onTheWay(err)
	}
	ps := make([]*providers.Provider, len(r.GetProviders()))
	for i, d := range r.GetProviders() {
		if ps[i], err = described(stub, d, memory); err != nil {
			return nil, err
		}
	}
	return ps, nil
}

// Open is [Connect] for those providers that are needed. One that the other side does not serve is a failure of the set.
func Open(ctx context.Context, conn grpc.ClientConnInterface, needs []providers.Need, memory *Memory) (*providers.Set, error) {
	stub, q := wirepb.NewProvidersClient(conn), &wirepb.DescribeRequest{}
	for _, n := range needs {
		if !slices.Contains(q.GetScopes(), n.Scope) {
			q.Scopes = append(q.Scopes, n.Scope)
		}
	}
	r, err := stub.Describe(ctx, q)
	if err != nil {
		return nil, onTheWay(err)
	}
	var ps []*providers.Provider
	failed := map[providers.Need]error{}
	for _, n := range needs {
		i := slices.IndexFunc(r.GetProviders(), func(d *wirepb.Provider) bool { return d.GetScope() == n.Scope && d.GetName() == n.Provider })
		if i < 0 {
			failed[n] = missing(r, n)
			continue
		}
		p, err := described(stub, r.GetProviders()[i], memory)
		if err != nil {
			failed[n] = err
			continue
		}
		ps = append(ps, p)
	}
	set, err := providers.NewSet(ps...)
	if err != nil {
		return nil, err
	}
	for n, err := range failed {
		set.Fail(n.Scope, n.Provider, err)
	}
	return set, nil
}

// missing returns why a provider is not served.
func missing(r *wirepb.DescribeResponse, n providers.Need) error {
	for _, m := range r.GetMissing() {
		if m.GetScope() == n.Scope && (m.GetName() == n.Provider || m.GetName() == "") {
			return errors.New(clip(m.GetWhy()))
		}
	}
	return fmt.Errorf("%s is not served in scope %s", n.Provider, n.Scope)
}

// clip cuts a text of the other side, which ends up in reports and logs.
func clip(text string) string {
	const most = 8 << 10
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// described returns a provider of the other side.
func described(stub wirepb.ProvidersClient, d *wirepb.Provider, memory *Memory) (*providers.Provider, error) {
	kinds := make([]providers.Served, len(d.GetKinds()))
	for i, k := range d.GetKinds() {
		far := &remote{stub, &wirepb.Where{Scope: d.GetScope(), Kind: k.GetName()}, memory}
		kinds[i] = providers.Served{Name: k.GetName(), Kind: far}
		if k.GetWatches() {
			kinds[i].Watch = far.watch
		}
		strict := json.NewDecoder(bytes.NewReader(k.GetTraits()))
		strict.DisallowUnknownFields()
		if err := strict.Decode(&kinds[i].Traits); err != nil {
			return nil, fmt.Errorf("the server offers %s with traits that this version does not know (%w): use the same version on both sides", k.GetName(), err)
		}
	}
	p := providers.New(d.GetName(), d.GetScope(), nil, kinds...)
	p.Limit = int(d.GetLimit())
	beside(p, stub, d)
	return p, nil
}

// beside adds the calls that belong to the provider and not to a kind.
func beside(p *providers.Provider, stub wirepb.ProvidersClient, d *wirepb.Provider) {
	which := &wirepb.Which{Scope: d.GetScope(), Name: d.GetName()}
	if d.GetFences() {
		p.Fence = func(ctx context.Context, epoch int64) error {
			_, err := stub.Fence(ctx, &wirepb.FenceRequest{Which: which, Epoch: epoch})
			return toldOrLost(err)
		}
	}
	if d.GetGuards() {
		p.Settle = func(ctx context.Context, s providers.Settling) (bool, error) {
			r, err := stub.Settle(ctx, &wirepb.SettleRequest{Which: which, Id: s.ID, Epoch: s.Epoch, Keep: s.Keep})
			return r.GetKept(), toldOrLost(err)
		}
	}
	if d.GetIdentifies() {
		p.Identity = func(ctx context.Context) (string, error) {
			r, err := stub.Identify(ctx, &wirepb.IdentifyRequest{Which: which})
			return r.GetIdentity(), toldOrLost(err)
		}
	}
	if d.GetBuilds() {
		p.Build = func(ctx context.Context) (string, error) {
			r, err := stub.Build(ctx, &wirepb.BuildRequest{Which: which})
			return r.GetBuild(), toldOrLost(err)
		}
	}
	if d.GetHasHealth() {
		p.Health = func(ctx context.Context) error {
			r, err := stub.Health(ctx, &wirepb.HealthRequest{Which: which})
			if err != nil {
				return toldOrLost(err)
			}
			return decodeFailure(r.GetDown())
		}
	}
	if d.GetForesees() {
		p.Obstacles = func(ctx context.Context, deletes, changes []providers.Target) ([]providers.Obstacle, error) {
			r, err := stub.Obstacles(ctx, &wirepb.ObstaclesRequest{Which: which, Deletes: encodeTargets(deletes), Changes: encodeTargets(changes)})
			if err != nil {
				return nil, toldOrLost(err)
			}
			var found []providers.Obstacle
			for _, o := range r.GetObstacles() {
				found = append(found, providers.Obstacle{Target: decodeTarget(o.GetTarget()), Why: o.GetWhy()})
			}
			return found, nil
		}
	}
}

// onTheWay returns the error of a call that the provider did not answer.
func onTheWay(err error) error {
	s := status.Convert(err)
	lost := &said{words: s.Message()}
	switch s.Code() {
	case codes.Canceled:
		lost.is = context.Canceled
	case codes.DeadlineExceeded:
		lost.is = context.DeadlineExceeded
	}
	return lost
}

// toldOrLost returns the error of a call that does not belong to a kind; nil for nil.
func toldOrLost(err error) error {
	if err == nil {
		return nil
	}
	if f, ok := FailureOf(err); ok {
		return decodeFailure(f)
	}
	return onTheWay(err)
}

// A remote kind is served by another process.
type remote struct {
	stub   wirepb.ProvidersClient
	at     *wirepb.Where
	memory *Memory // nil: none
}

// readError returns the error of a call that changes nothing. One that failed on the way may be repeated.
func (r *remote) readError(op string, err error) error {
	if f, ok := FailureOf(err); ok {
		return decodeFailure(f)
	}
	class := providers.Transient
	switch status.Code(err) {
	case codes.NotFound, codes.Unimplemented: // it is no longer served
		class = providers.Unsupported
	}
	return &providers.Error{Op: op, Kind: r.at.GetKind(), Class: class, Code: status.Code(err).String(), Err: onTheWay(err)}
}

// pages yields the pages of a stream.
func (r *remote) pages(stream grpc.ServerStreamingClient[wirepb.Things], err error, l *listing) iter.Seq2[page, error] {
	return func(yield func(page, error) bool) {
		for nth := 0; err == nil; nth++ {
			var sent *wirepb.Things
			if sent, err = stream.Recv(); errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				break
			}
			p, err := r.page(sent, nth, l)
			if !yield(p, err) || err != nil {
				return
			}
		}
		yield(page{}, r.readError("observe", err))
	}
}

// page returns the nth page of a list.
func (r *remote) page(sent *wirepb.Things, nth int, l *listing) (p page, err error) {
	switch {
	case sent.GetKnown() != nil:
		if nth >= len(l.last) || !bytes.Equal(l.last[nth].digest, sent.GetKnown()) || len(sent.GetThings()) > 0 {
			return p, r.invalid(fmt.Errorf("the other side does not send page %d of a list, which this side does not have", nth+1))
		}
		return l.last[nth], nil
	case len(sent.GetThings()) == 0:
		return p, r.invalid(errors.New("the other side sends an empty page of a list"))
	}
	p.things = make([]providers.Thing, len(sent.GetThings()))
	for i, encoded := range sent.GetThings() {
		if p.things[i], err = decodeThing(encoded); err != nil {
			return p, r.invalid(err)
		}
	}
	l.measure(&p, sent.GetThings())
	return p, nil
}

// invalid returns the error of an answer that cannot be used.
func (r *remote) invalid(err error) error {
	return &providers.Error{Op: "observe", Kind: r.at.GetKind(), Class: providers.Invalid, Err: err}
}

var reading = grpc.MaxCallRecvMsgSize(maxMessage)

// List implements [providers.Kind].
func (r *remote) List(ctx context.Context) iter.Seq2[providers.Thing, error] {
	return func(yield func(providers.Thing, error) bool) {
		ctx, cancel := context.WithCancel(ctx) // a list that is left early also ends on the other side
		defer cancel()
		l := r.memory.list(r.at)
		q := &wirepb.ListRequest{Where: r.at}
		for _, p := range l.last {
			q.Known = append(q.Known, p.digest)
		}
		stream, err := r.stub.List(ctx, q, reading)
		for p, err := range r.pages(stream, err, l) {
			if err != nil {
				l.forget() // it is not asked for in the same way again, which may be why it failed
				yield(providers.Thing{}, err)
				return
			}
			l.add(p)
			for i := range p.things {
				if !yield(l.callers(&p.things[i]), nil) {
					return
				}
			}
		}
		l.keep()
	}
}

// Get implements [providers.Kind].
func (r *remote) Get(ctx context.Context, ids []string) (things []providers.Thing, err error) {
	for len(ids) > 0 {
		n := min(len(ids), askedAtOnce)
		stream, err := r.stub.Get(ctx, &wirepb.GetRequest{Where: r.at, Ids: ids[:n]}, reading)
		for p, err := range r.pages(stream, err, &listing{}) {
			if err != nil {
				return nil, err
			}
			things = append(things, p.things...)
		}
		ids = ids[n:]
	}
	return things, nil
}

// watch implements [providers.Watch]. While the caller does not ask for the next event, the other side collects what happens.
func (r *remote) watch(ctx context.Context) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		ctx, cancel := context.WithCancel(ctx) // as in a list
		defer cancel()
		stream, err := r.stub.Watch(ctx, &wirepb.WatchRequest{Where: r.at}, reading)
		for err == nil {
			var event *wirepb.Changes
			if event, err = stream.Recv(); err == nil && !yield(event.GetIds(), nil) {
				return
			}
		}
		yield(nil, r.readError("watch", err))
	}
}

// change makes a change. One that failed on the way may have had its effect.
func (r *remote) change(op string, c *providers.Call, call func(*wirepb.CallRequest) (providers.Answer, error)) error {
	answer, err := call(encodeCall(c))
	f, told := FailureOf(err)
	if told {
		answer = providers.Answer{ID: f.GetChosen(), Armed: f.GetArmed()}
	}
	c.Chose(answer.ID)
	if answer.Armed {
		c.Armed()
	}
	if err == nil {
		return nil
	}
	if told {
		return decodeFailure(f)
	}
	return &providers.Error{Op: op, Ref: c.Ref, Class: providers.Unknown, Code: status.Code(err).String(), Err: onTheWay(err)}
}

// Create implements [providers.Kind].
func (r *remote) Create(ctx context.Context, c providers.Call) error {
	return r.change("create", &c, func(request *wirepb.CallRequest) (providers.Answer, error) {
		made, err := r.stub.Create(ctx, request)
		return providers.Answer{ID: made.GetChosen(), Armed: made.GetArmed()}, err
	})
}

// Update implements [providers.Kind].
func (r *remote) Update(ctx context.Context, c providers.Call) error {
	return r.change("update", &c, func(request *wirepb.CallRequest) (providers.Answer, error) {
		done, err := r.stub.Update(ctx, request)
		return providers.Answer{Armed: done.GetArmed()}, err
	})
}

// Delete implements [providers.Kind].
func (r *remote) Delete(ctx context.Context, c providers.Call) error {
	return r.change("delete", &c, func(request *wirepb.CallRequest) (providers.Answer, error) {
		done, err := r.stub.Delete(ctx, request)
		return providers.Answer{Armed: done.GetArmed()}, err
	})
}
