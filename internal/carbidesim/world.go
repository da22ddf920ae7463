package carbidesim

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"converge.dev/converge/internal/files"
	"converge.dev/converge/providers/carbide/forge"
)

// World is a site with a clock, declared faults, counters, and a file. Its methods may be called concurrently.
type World struct {
	options Options
	keeper  *keeper // nil without a file

	mu     sync.Mutex
	site   *site
	offset time.Duration // how far the clock has been advanced
	faults []*armed
	late   []lateCall // in the order in which they will happen
	calls  map[string]int
	under  int // calls from the wire that are in progress
	most   int // the maximum of under so far
}

// lateCall is a call that its caller has given up, and that happens nevertheless. It is not stored in the file.
type lateCall struct {
	at   time.Time
	call func() error
}

// putOff makes a call happen later.
func (w *World) putOff(d time.Duration, call func() error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.late = append(w.late, lateCall{w.now().Add(d), call})
	slices.SortStableFunc(w.late, func(a, b lateCall) int { return a.at.Compare(b.at) })
}

// settle moves the site to the present, and makes the late calls on the way, each at its time. The lock must be held. It
// reports whether anything changed.
func (w *World) settle() bool {
	changed, now := false, w.now()
	for len(w.late) > 0 && !w.late[0].at.After(now) {
		l := w.late[0]
		w.late = w.late[1:]
		settled := w.site.settle(l.at)
		did, _ := w.site.transact(l.call) // no caller waits for the result
		changed = changed || settled || did
	}
	return w.site.settle(now) || changed
}

// methods are the service's methods by name.
var methods = func() map[string]grpc.MethodDesc {
	out := map[string]grpc.MethodDesc{}
	for _, m := range forge.Forge_ServiceDesc.Methods {
		out[m.MethodName] = m
	}
	return out
}()

// New makes a world, or restores the one in the file, which it locks until it is closed: while another world has the file
// it fails with [files.ErrInUse]. Close it to be sure that the file has everything.
func New(o Options) (_ *World, err error) {
	o = o.withDefaults()
	w := &World{options: o, site: newSite(o), calls: map[string]int{}}
	restored := false
	var lock *os.File
	if o.File != "" {
		if lock, err = files.Lock(o.File + ".lock"); err != nil { // the file itself is replaced with every write
			return nil, fmt.Errorf("keep the simulated site in %s: %w", o.File, err)
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, unlock(lock))
			}
		}()
		kept, err := readFile(o.File)
		if err != nil {
			return nil, fmt.Errorf("restore the simulated site from %s: %w", o.File, err)
		}
		if kept != nil {
			restored = true
			w.offset = time.Duration(kept.Offset)
			w.site.restore(kept)
		}
	}
	w.site.now = w.now()
	if !restored {
		_, _ = w.site.transact(func() error {
			w.site.discover(o.Hosts, o.Seed)
			w.site.stock(o.Rules)
			return nil
		})
	}
	if o.File != "" {
		if err := writeFile(o.File, w.snapshot()); err != nil { // better now than at the end
			return nil, fmt.Errorf("keep the simulated site in %s: %w", o.File, err)
		}
		w.keeper = startKeeper(o.File, lock, w.snapshot)
	}
	return w, nil
}

// Close writes the file, if there is one, and closes it.
func (w *World) Close() error {
	if w.keeper == nil {
		return nil
	}
	return w.keeper.close()
}

func (w *World) now() time.Time { return w.options.Now().Add(w.offset).Round(0) }

// transact runs one call on the site as it is now. Its changes are in the file, if there is one, before it returns: a
// service that is killed has lost nothing that it has confirmed.
func (w *World) transact(call func() error) error {
	changed, kept, err := w.try(call)
	if changed {
		kept()
	}
	return err
}

// try is transact without waiting for the file, which kept does.
func (w *World) try(call func() error) (changed bool, kept func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	settled := w.settle()
	changed, err = w.site.transact(call)
	kept = func() {}
	if (settled || changed) && w.keeper != nil {
		kept = w.keeper.touch()
	}
	return changed, kept, err
}

// Advance moves the world's clock forward, and the world with it.
func (w *World) Advance(d time.Duration) {
	w.mu.Lock()
	w.offset += max(d, 0)
	w.mu.Unlock()
	_ = w.transact(func() error { return nil })
	if w.keeper != nil {
		w.keeper.touch()() // the offset is stored too
	}
}

// PhoneHome is the guest of an instance phoning home; an instance whose operating system requires it is not ready before.
func (w *World) PhoneHome(instance string) error {
	return w.transact(func() error { return w.site.phoneHome(instance) })
}

// SetInstanceState shows a state instead of an instance's own, such as FAILED, UPDATING or REPAIRING; nil shows its own
// again.
func (w *World) SetInstanceState(instance string, state *forge.TenantState) error {
	return w.transact(func() error { return w.site.inject(instance, state) })
}

// LeaveBehind keeps changes of security groups from the host of one instance, as when its agent has lost the site; false
// lets them through again.
func (w *World) LeaveBehind(instance string, behind bool) error {
	return w.transact(func() error { return w.site.leaveBehind(instance, behind) })
}

// Deafen makes the guest of a machine ignore requests to shut down; false makes it obey them again.
func (w *World) Deafen(machineID string, deaf bool) error {
	return w.transact(func() error { return w.site.deafen(machineID, deaf) })
}

// SetIBPartitionState shows a state instead of an InfiniBand partition's own, such as FAILED; nil shows its own again.
func (w *World) SetIBPartitionState(partition string, state *forge.TenantState) error {
	return w.transact(func() error { return w.site.injectIBPartition(partition, state) })
}

// SetImageStatus sets the status of an image, for example to one that the service knows but does not currently use.
func (w *World) SetImageStatus(id string, status forge.OsImageStatus, message string) error {
	return w.transact(func() error {
		have, err := w.site.findImage(id)
		if err != nil {
			return err
		}
		i := proto.CloneOf(have)
		i.Status, i.StatusMessage = status, optional(message)
		w.site.keepImage(i)
		return nil
	})
}

// SetAlerts replaces the health alerts of a machine: each id with what it prevents, "PreventAllocations" or
// "PreventInstanceDeletion".
func (w *World) SetAlerts(machineID string, alerts map[string][]string) error {
	return w.transact(func() error {
		have := w.site.machines.get(machineID)
		if have == nil {
			return notFound("machine", machineID)
		}
		m := *have
		m.Alerts = nil
		for _, id := range sortedKeys(alerts) {
			m.Alerts = append(m.Alerts, alert{id, "injected", alerts[id], w.site.now})
		}
		w.site.machines.put(machineID, &m)
		return nil
	})
}

// Calls returns how often each method has been called over the wire, including calls that met faults.
func (w *World) Calls() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.calls)
}

// AtOnce returns the maximum number of concurrent calls over the wire.
func (w *World) AtOnce() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.most
}

// ResetCalls resets the counts of calls.
func (w *World) ResetCalls() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.calls)
	w.most = w.under
}

// enter counts a call from the wire as in progress until left is called.
func (w *World) enter() (left func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.under++
	w.most = max(w.most, w.under)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.under--
	}
}

// arrive handles a call from the wire: it is counted and may meet a fault.
func (w *World) arrive(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler, cut func()) (any, error) {
	method := path.Base(info.FullMethod)
	w.mu.Lock()
	w.calls[method]++
	w.mu.Unlock()
	call := func() (any, error) { return w.carryOut(ctx, request, method, handle) }
	f := w.strike(method, request.(proto.Message))
	if f == nil {
		return call()
	}
	if f.past != nil {
		handle = on(f.past, method)
	}
	return f.suffer(ctx, call, cut, func(d time.Duration) {
		later := context.WithoutCancel(ctx)
		w.putOff(d, func() error {
			if err := w.accept(method, request.(proto.Message)); err != nil {
				return err
			}
			_, err := handle(later, request)
			return err
		})
	})
}

// carryOut runs a decoded call on the site.
func (w *World) carryOut(ctx context.Context, request any, method string, handle grpc.UnaryHandler) (any, error) {
	if err := w.accept(method, request.(proto.Message)); err != nil {
		return nil, err
	}
	var reply any
	err := w.transact(func() (err error) {
		reply, err = handle(ctx, request)
		return err
	})
	if gone := unfilled[w.options.Generation]; err == nil && gone != nil {
		later := proto.Clone(reply.(proto.Message)) // it shares parts with the world
		gone.without(later)
		reply = later
	}
	if err == nil && w.options.Old {
		reply = toOlder(reply.(proto.Message))
	}
	return reply, err
}

// accept checks a request before the site sees it, and removes what this site does not understand.
func (w *World) accept(method string, request proto.Message) error {
	if slices.Contains(w.options.Unimplemented, method) || w.options.Old && slices.Contains(newMethods, method) {
		return status.Errorf(codes.Unimplemented, "this site does not know %s", method)
	}
	if err := checkID(request.ProtoReflect()); err != nil {
		return err
	}
	unread[cmp.Or(w.options.Generation, May)].without(request)
	if w.options.Old {
		fromOlder(request)
	}
	if !w.options.Later {
		dropUnknown(request)
	}
	return nil
}

// on returns a method's handler for another site than the world's own.
func on(s *site, method string) grpc.UnaryHandler {
	return func(ctx context.Context, request any) (any, error) {
		return methods[method].Handler(s, ctx, func(into any) error {
			proto.Merge(into.(proto.Message), request.(proto.Message))
			return nil
		}, nil)
	}
}

// Stranger returns a client that changes the world past all faults, counters and role checks: for drift, and for setup.
func (w *World) Stranger() forge.ForgeClient {
	return forge.NewForgeClient(stranger{w})
}

// Call makes a call as a Stranger, with request and reply in the JSON of protocol buffers.
func (w *World) Call(ctx context.Context, method string, request []byte) ([]byte, error) {
	in, out, err := messagesOf(method)
	if err != nil {
		return nil, err
	}
	if err := protojson.Unmarshal(request, in); err != nil {
		return nil, invalid("%v", err)
	}
	if err := (stranger{w}).Invoke(ctx, method, in, out); err != nil {
		return nil, err
	}
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(out)
	if err != nil {
		return nil, err
	}
	return indent(json.RawMessage(b)), nil
}

// messagesOf returns an empty request and an empty reply of a method.
func messagesOf(method string) (request, reply proto.Message, err error) {
	d := forge.File_carbide_forge_forge_proto.Services().ByName("Forge").Methods().ByName(protoreflect.Name(method))
	if d == nil {
		return nil, nil, status.Errorf(codes.Unimplemented, "unknown method %s", method)
	}
	return newMessage(d.Input()), newMessage(d.Output()), nil
}

// stranger runs calls in this process.
type stranger struct{ w *World }

// Invoke finds the method by the last part of its name. Requests and replies are copied, as they would be on the wire.
func (s stranger) Invoke(ctx context.Context, method string, request, reply any, _ ...grpc.CallOption) error {
	m, ok := methods[path.Base(method)]
	if !ok {
		return status.Errorf(codes.Unimplemented, "unknown method %s", method)
	}
	decode := func(into any) error {
		proto.Merge(into.(proto.Message), request.(proto.Message))
		return nil
	}
	intercept := func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		return s.w.carryOut(ctx, request, path.Base(info.FullMethod), handle)
	}
	got, err := m.Handler(s.w.site, ctx, decode, intercept)
	if err != nil {
		return err
	}
	proto.Merge(reply.(proto.Message), got.(proto.Message))
	return nil
}

// NewStream refuses: no method of the service streams.
func (stranger) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "the service has no streams")
}
