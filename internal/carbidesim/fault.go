package carbidesim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Effect says what a fault does to a call.
type Effect string

// The effects of faults.
const (
	Before    Effect = "before"     // the call fails and nothing has happened
	After     Effect = "after"      // it has happened, but the response is a failure
	ReplyLost Effect = "reply-lost" // it has happened, and the call ends without a response: UNAVAILABLE or DEADLINE_EXCEEDED
	Cut       Effect = "cut"        // it has happened, and the connection is closed, with all other calls on it
	Slow      Effect = "slow"       // it happens after Delay
	Hang      Effect = "hang"       // nothing happens, and no response ever comes
	Late      Effect = "late"       // the call ends without a response, and happens when Delay has passed
	Half      Effect = "half"       // every second element of every list in the response is missing, beginning with the first
	Stale     Effect = "stale"      // the response is from the time when the fault was declared
)

// Half and Stale are for calls that read; they do not affect other calls.

// Fault is a declared failure: it hits the Nth and following matching calls, Times times in all.
type Fault struct {
	Method string        // "CreateVpc", or "*" for every method
	Match  string        // optional: only requests with this in one of their strings, such as an id or a name
	Nth    int           // optional: the first matching call that is hit, counted from 1; 1
	Every  int           // optional: after that, only every so-many-th is hit; 1
	Times  int           // optional: how many calls are hit, -1 for all; 1
	Effect Effect        // required
	Code   codes.Code    // optional: how the call fails; UNAVAILABLE
	Delay  time.Duration // for Slow and Late
}

// armed is a fault with its counters.
type armed struct {
	Fault
	seen, hit int
	past      *site // for Stale: the site at that time, which no longer changes
}

// reading reports whether a method changes nothing.
func reading(method string) bool {
	for _, verb := range []string{"Find", "Get", "Search", "List"} {
		if strings.HasPrefix(method, verb) {
			return true
		}
	}
	return false
}

// Inject declares a fault.
func (w *World) Inject(f Fault) error {
	switch f.Effect {
	case Before, After, ReplyLost, Cut, Slow, Hang, Late:
	case Half, Stale:
		if f.Method != "*" && !reading(f.Method) {
			return fmt.Errorf("inject a fault: the effect %q is for methods that read, and %s is none", f.Effect, f.Method)
		}
	default:
		return fmt.Errorf("inject a fault: unknown effect %q", f.Effect)
	}
	if _, ok := methods[f.Method]; !ok && f.Method != "*" {
		return fmt.Errorf("inject a fault: unknown method %q", f.Method)
	}
	if f.Nth == 0 {
		f.Nth = 1
	}
	if f.Every == 0 {
		f.Every = 1
	}
	if f.Times == 0 {
		f.Times = 1
	}
	if f.Code == codes.OK {
		f.Code = codes.Unavailable
	}
	a := &armed{Fault: f}
	if f.Effect == Stale {
		a.past = newSite(w.options)
		a.past.restore(w.snapshot())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if a.past != nil {
		a.past.now = w.now()
	}
	w.faults = append(w.faults, a)
	return nil
}

// Faults returns the declared faults that can still strike.
func (w *World) Faults() []Fault {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := []Fault{}
	for _, f := range w.faults {
		if f.Times < 0 || f.hit < f.Times {
			out = append(out, f.Fault)
		}
	}
	return out
}

// ClearFaults forgets all faults. Calls that hang already keep hanging, and late ones still happen.
func (w *World) ClearFaults() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = nil
}

// strike returns the fault that hits a call, or nil. Every fault counts the calls that match it, including those that
// another fault hits.
func (w *World) strike(method string, request proto.Message) *armed {
	w.mu.Lock()
	defer w.mu.Unlock()
	var struck *armed
	for _, f := range w.faults {
		if f.Method != "*" && f.Method != method || (f.Effect == Half || f.Effect == Stale) && !reading(method) {
			continue
		}
		if f.Match != "" && !mentions(request, func(text string) bool { return strings.Contains(text, f.Match) }) {
			continue
		}
		f.seen++
		if struck == nil && f.seen >= f.Nth && (f.seen-f.Nth)%f.Every == 0 && (f.Times < 0 || f.hit < f.Times) {
			f.hit++
			struck = f
		}
	}
	return struck
}

// suffer carries out a call under a fault; cut closes the caller's connection, and putOff makes the call happen later.
func (f *Fault) suffer(ctx context.Context, call func() (any, error), cut func(), putOff func(time.Duration)) (any, error) {
	failure := status.Errorf(f.Code, "injected fault: %s", f.Effect)
	switch f.Effect {
	case Before:
		return nil, failure
	case Late:
		putOff(f.Delay)
		return nil, failure
	case Stale:
		return call()
	case Half:
		answer, err := call()
		if err == nil {
			halve(answer.(proto.Message).ProtoReflect())
		}
		return answer, err
	case Hang:
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	case Slow:
		select {
		case <-time.After(f.Delay):
			return call()
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	// Whether the call succeeded or not, its own response does not arrive.
	_, _ = call()
	if f.Effect == Cut {
		cut()
	}
	return nil, failure
}

// halve removes every second element from the lists of a response; inner messages are left whole.
func halve(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.IsList() {
			l, n := v.List(), 0
			for i := 1; i < l.Len(); i += 2 {
				l.Set(n, l.Get(i))
				n++
			}
			l.Truncate(n)
		}
		return true
	})
}

// plainFault is the JSON of a fault, with code and delay as text.
type plainFault struct {
	Method string `json:"method"`
	Match  string `json:"match,omitempty"`
	Nth    int    `json:"nth,omitempty"`
	Every  int    `json:"every,omitempty"`
	Times  int    `json:"times,omitempty"`
	Effect Effect `json:"effect"`
	Code   string `json:"code,omitempty"`
	Delay  string `json:"delay,omitempty"`
}

// MarshalJSON writes the code as its gRPC name and the delay as Go writes durations.
func (f Fault) MarshalJSON() ([]byte, error) {
	p := plainFault{f.Method, f.Match, f.Nth, f.Every, f.Times, f.Effect, codeName(f.Code), ""}
	if f.Delay != 0 {
		p.Delay = f.Delay.String()
	}
	return json.Marshal(p)
}

// UnmarshalJSON reads what MarshalJSON writes, and nothing else.
func (f *Fault) UnmarshalJSON(b []byte) error {
	var p plainFault
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return err
	}
	*f = Fault{Method: p.Method, Match: p.Match, Nth: p.Nth, Every: p.Every, Times: p.Times, Effect: p.Effect}
	if p.Code != "" {
		if err := f.Code.UnmarshalJSON([]byte(`"` + p.Code + `"`)); err != nil {
			return err
		}
	}
	if p.Delay != "" {
		delay, err := time.ParseDuration(p.Delay)
		if err != nil {
			return err
		}
		f.Delay = delay
	}
	return nil
}

// codeName returns the name of a code as gRPC spells it: FAILED_PRECONDITION.
func codeName(c codes.Code) string {
	for name, code := range codeNames {
		if code == c {
			return name
		}
	}
	return ""
}

var codeNames = func() map[string]codes.Code {
	out := map[string]codes.Code{}
	for _, name := range []string{
		"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
		"PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
		"INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
	} {
		var c codes.Code
		if err := c.UnmarshalJSON([]byte(`"` + name + `"`)); err != nil {
			panic(err) // a misspelt name above
		}
		out[name] = c
	}
	return out
}()
