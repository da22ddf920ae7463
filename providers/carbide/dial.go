package carbide

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/internal/keyed"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
)

const (
	versionTimeout   = 15 * time.Second // a busy service answers late; connectTimeout finds one that is not there
	connectTimeout   = 5 * time.Second
	longestBackoff   = 10 * time.Second // between two attempts to connect
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 15 * time.Second
	defaultTimeout   = 30 * time.Second
	defaultRecheck   = 5 * time.Second
	defaultParallel  = 8
	defaultIDs       = 100 // per call, where the site does not state a limit

	// W3C trace context; later versions may append something.
	traceparent = `^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[ -~]*)?$`

	// The ids of 100 000 objects come in one answer of about 4 MB.
	largestAnswer = 64 << 20
)

// A service is one site's control service, over the newest connection.
type service struct {
	forge.ForgeClient
	links   links
	watch   *watch // nil when there are no files to watch
	health  health
	options Options
	site    atomic.Pointer[string] // name of the site, from the last greeting
	build   atomic.Pointer[string] // build of the service, from the last greeting
	ids     int                    // maximum ids in one call
	permit  *providers.Permit
	scale   scale         // memory that answers take
	timeout time.Duration // of one call
	late    time.Duration // how long after that it may have its effect
	log     *slog.Logger
	orders  keyed.Mutex // serializes, per VPC, calls that move its version

	switchings sync.Map // by host, what was done to turn it off: a switching

	// together makes the calls of one verb at the same time, as [providers.Provider.Together].
	together func(ctx context.Context, n int, call func(ctx context.Context, i int) error) error
}

func open(ctx context.Context, o Options) (*service, error) {
	o.Recheck = cmp.Or(o.Recheck, defaultRecheck)
	if !regexp.MustCompile(traceparent).MatchString(o.Trace) {
		o.Trace = "" // as its specification requires
	}
	s := &service{
		options: o,
		permit:  new(providers.Permit),
		timeout: cmp.Or(o.Timeout, defaultTimeout),
		late:    cmp.Or(o.Late, late),
		log:     cmp.Or(o.Logger, slog.New(slog.DiscardHandler)),
	}
	s.ForgeClient = forge.NewForgeClient(calls{s})
	id, err := o.identity()
	if err != nil {
		return nil, openError(providers.Invalid, err)
	}
	first, err := s.connect(ctx, id)
	if err != nil {
		return nil, err
	}
	s.links = links{now: first, old: map[*link]bool{}}
	if id.files.CA != "" || id.ours != nil {
		s.watch = startWatch(s)
	}
	return s, nil
}

func (s *service) close() error {
	if s.watch != nil {
		s.watch.close()
	}
	return s.links.close()
}

func openError(class providers.Class, err error) error {
	return &providers.Error{Op: "open", Kind: Name, Class: class, Err: err}
}

// connect creates a link and greets the service on it.
func (s *service) connect(ctx context.Context, id identity) (*link, error) {
	o := s.options
	if err := id.stale(time.Now()); err != nil {
		return nil, openError(providers.Denied, err)
	}
	creds := insecure.NewCredentials()
	if id.config != nil {
		creds = credentials.NewTLS(id.config)
	}
	pause := backoff.DefaultConfig
	pause.MaxDelay = longestBackoff
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: pause, MinConnectTimeout: connectTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largestAnswer)),
		grpc.WithStatsHandler(watcher{}),
		grpc.WithNoProxy(), // the service is on the site's own network; a proxy for the internet cannot reach it
	}
	// Dialled here, so that the permit is checked where bytes are sent: gRPC itself lets calls wait for a connection, for a
	// stream and for room in the far side's window.
	opts = append(opts, grpc.WithContextDialer(s.permit.Dialer(o.dial)))
	target := o.Address
	if o.Dial != nil {
		target = "passthrough:///" + o.Address
	}
	conn, err := grpc.NewClient(target, opts...)
	if err != nil {
		return nil, openError(providers.Invalid, fmt.Errorf("address %q: %w", o.Address, err))
	}
	k := &link{ClientConn: conn, identity: id}
	info, err := s.greet(ctx, k)
	if err != nil {
		conn.Close()
		return nil, err
	}
	if s.ids == 0 { // the site's limit of ids does not change while it runs
		s.ids = int(cmp.Or(info.GetRuntimeConfig().GetMaxFindByIds(), defaultIDs))
	}
	s.site.Store(proto.String(info.GetRuntimeConfig().GetSitename()))
	s.build.Store(proto.String(info.GetBuildVersion()))
	s.log.Debug("connected to Carbide", "address", o.Address, "version", info.GetBuildVersion(), "ids_per_call", s.ids)
	return k, nil
}

// greet asks for the version, because a connection proves little: with TLS 1.3 the server checks our certificate only
// after our side has finished.
func (s *service) greet(ctx context.Context, k *link) (*forge.BuildInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	info, err := forge.NewForgeClient(k).Version(s.traced(ctx), &forge.VersionRequest{DisplayConfig: true})
	if err == nil {
		return info, nil
	}
	if k.identity.config != nil && status.Code(err) == codes.Unavailable {
		refusal := k.identity.stale(time.Now())
		if refusal == nil {
			refusal = s.options.handshake(ctx, k.identity)
		}
		if refusal != nil {
			return nil, openError(providers.Denied, fmt.Errorf("%s: %w", s.options.Address, refusalError{refusal}))
		}
	}
	return nil, openError(readClass(err), fmt.Errorf("%s: %w", s.options.Address, err))
}

// A refusalError says which side refused the other's certificate.
type refusalError struct{ error }

func (e refusalError) Unwrap() error { return e.error }

// calls makes calls on the newest link.
type calls struct{ *service }

var _ grpc.ClientConnInterface = calls{}

// Invoke wraps every call: it bounds the time, and finds out whether the request was sent at all.
func (c calls) Invoke(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
	ctx, cancel := within(ctx)
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, c.timeout)
	defer cancel()
	if c.watch != nil {
		c.watch.wish()
	}
	k := c.links.take()
	defer c.links.giveBack(k)
	if err := c.permit.Check(); err != nil { // the wait for a VPC's turn may have been long
		return unsentError{status.FromContextError(context.Canceled).Err()}
	}
	var sent atomic.Bool
	start := time.Now()
	held, ok := ctx.Value(loadKey{}).(*load)
	if !ok {
		held = &load{on: &c.scale}
		defer held.end("")
	}
	codec := newWeighing(method, held)
	err := k.Invoke(context.WithValue(c.traced(ctx), sentKey{}, &sent), method, req, reply, append(opts, grpc.ForceCodecV2(codec))...)
	if err != nil && codec.heavy != nil {
		err = heavyError{codec.heavy.Error(), err}
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.Unauthenticated:
		if stale := k.identity.stale(time.Now()); stale != nil { // probably the reason
			err = fmt.Errorf("%w: %w", stale, err)
		}
	case codes.PermissionDenied: // the service does not report which client it took us for
		err = fmt.Errorf("the site does not allow this for %s: %w", k.identity.who(), err)
	}
	c.health.note(err)
	if changes(method) {
		c.health.change(err)
	}
	if c.log.Enabled(ctx, slog.LevelDebug) {
		c.log.Debug("call", "method", method, "took", time.Since(start), "code", status.Code(err))
	}
	if err != nil && !sent.Load() {
		return unsentError{err}
	}
	return err
}

// changes reports whether a method of the service, by its full name, changes something.
func changes(method string) bool {
	name := method[strings.LastIndexByte(method, '/')+1:]
	return !slices.ContainsFunc([]string{"Find", "Get", "Search", "List", "Version"}, func(verb string) bool { return strings.HasPrefix(name, verb) })
}

// NewStream implements [grpc.ClientConnInterface].
func (calls) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, unsentError{errors.New("streaming calls are not used here")}
}

// within bounds a call by three quarters of its caller's time, so that an unanswered call ends early enough for the caller
// to observe its result.
func within(ctx context.Context) (context.Context, context.CancelFunc) {
	limit, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, time.Until(limit)*3/4)
}

// traced adds the trace that the call belongs to, unless the caller has set one.
func (s *service) traced(ctx context.Context) context.Context {
	if s.options.Trace == "" {
		return ctx
	}
	if md, ok := metadata.FromOutgoingContext(ctx); ok && len(md.Get("traceparent")) > 0 {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "traceparent", s.options.Trace)
}

// An unsentError is the error of a call whose request was never sent: it had no effect, whatever its code.
type unsentError struct{ error }

func (e unsentError) Unwrap() error { return e.error }

type sentKey struct{}

// watcher records in a call's context that its request began to be sent.
type watcher struct{}

func (watcher) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (watcher) HandleRPC(ctx context.Context, event stats.RPCStats) {
	if _, ok := event.(*stats.OutHeader); ok {
		if sent, ok := ctx.Value(sentKey{}).(*atomic.Bool); ok {
			sent.Store(true)
		}
	}
}

func (watcher) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (watcher) HandleConn(context.Context, stats.ConnStats) {}
