package carbide

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"converge.dev/converge/providers"
)

// The verbs as errors name them.
const (
	opObserve = "observe"
	opCreate  = "create"
	opUpdate  = "update"
	opDelete  = "delete"
)

var errAbsent = errors.New("it does not exist")

func errMoved(version string) error {
	return fmt.Errorf("it changed since it was observed: its version is now %s", version)
}

// meanings are the classes of codes that show that a call had no effect. Other codes do not show whether it had one.
var meanings = map[codes.Code]providers.Class{
	codes.InvalidArgument:    providers.Invalid,
	codes.OutOfRange:         providers.Invalid,
	codes.FailedPrecondition: providers.Invalid,
	codes.NotFound:           providers.Absent,
	codes.AlreadyExists:      providers.Exists,
	codes.ResourceExhausted:  providers.Busy, // a pool of numbers or addresses is empty until something is deleted
	codes.PermissionDenied:   providers.Denied,
	codes.Unauthenticated:    providers.Denied,
	codes.Unimplemented:      providers.Unsupported,
}

// A refusals lists, verb by verb, which codes mean something else for one kind. INTERNAL is looked up here only once
// another read has shown that the call had no effect; unless it is listed it then means Busy, as for a temporary database failure.
type refusals map[string]map[codes.Code]providers.Class

// A changeableEarly wire is one whose objects can be changed before they are ready: a refusal is then about something else.
type changeableEarly struct{}

func (changeableEarly) anytime() {}

// phrases are texts in an INTERNAL refusal that show its cause, mostly from the database; nothing else reveals a taken
// id, not even a read, because ids of deleted things stay taken.
var phrases = []struct {
	text  string
	class providers.Class
}{
	{"duplicate key", providers.Exists},
	{"foreign key", providers.Absent},
	{"check constraint", providers.Invalid},
	{"value too long", providers.Invalid},
	{"feature disabled", providers.Denied},
}

// meaning returns the class of a refusal that is known to have had no effect.
func (k *kind[O, S]) meaning(op string, err error) providers.Class {
	code := status.Code(err)
	if code == codes.Internal && op != opDelete { // a delete that breaks a reference is early, as refusals say
		for _, p := range phrases {
			if strings.Contains(status.Convert(err).Message(), p.text) {
				return p.class
			}
		}
	}
	if early := (earlyError{}); errors.As(err, &early) {
		return providers.Busy
	}
	if class, ok := k.refusals[op][code]; ok {
		return class
	}
	if class, ok := meanings[code]; ok {
		return class
	}
	return providers.Busy
}

// readClass returns the class of a failed read, which never has an effect.
func readClass(err error) providers.Class {
	if heavy := (heavyError{}); errors.As(err, &heavy) {
		return providers.Invalid // it would be as heavy the next time
	}
	if class, ok := meanings[status.Code(err)]; ok {
		return class
	}
	return providers.Transient
}

// answered reports whether the service itself answered, so that the call is over. Otherwise class is what is known.
func answered(err error) (class providers.Class, ok bool) {
	var halfway halfwayError
	var unsent unsentError
	switch {
	case errors.As(err, &halfway):
		return providers.Unknown, false
	case errors.As(err, &unsent):
		return readClass(unsent.error), false
	case status.Code(err) == codes.Internal:
		return "", true
	}
	if _, ok := meanings[status.Code(err)]; ok {
		return "", true
	}
	return providers.Unknown, false
}

// A halfwayError is the error of a later call of an update whose earlier calls had their effect.
type halfwayError struct{ error }

func (e halfwayError) Unwrap() error { return e.error }

// over reports whether nothing more can come of an update whose later call has failed: each of its calls was answered, this one
// with a code that shows that it had no effect. Of a far side that brings about by itself, later, what an earlier call has
// asked for, that cannot be said.
func (k *kind[O, S]) over(err error) bool {
	var halfway halfwayError
	if !errors.As(err, &halfway) || len(k.traits.SelfChanging) > 0 {
		return false
	}
	_, ok := answered(halfway.error)
	return ok && status.Code(halfway.error) != codes.Internal
}

// A firstError is the refusal of the first of several calls of a verb. If it had its effect nevertheless, the thing is
// neither in its old nor in its desired state.
type firstError struct{ error }

func (e firstError) Unwrap() error { return e.error }

// begun reports whether a thing may have changed because of the refused call. The service refuses a version that has moved
// with FAILED_PRECONDITION: then others changed the thing.
func begun(err error, c *providers.Call, t providers.Thing) bool {
	first := firstError{}
	return errors.As(err, &first) && status.Code(err) != codes.FailedPrecondition &&
		(!t.Spec.Equal(c.Have) || t.Phase == providers.Pending)
}

// An earlyError is a refusal because something is not ready yet, whatever its code.
type earlyError struct{ error }

func (e earlyError) Unwrap() error { return e.error }

// unless turns an INTERNAL refusal of a create, which may mean that what it refers to does not exist, into an early one
// when a read shows that all of it does: then the database failed temporarily, or something is used up.
func unless[O any](ctx context.Context, err error, get func(context.Context, []string) ([]O, error), ids ...string) error {
	if status.Code(err) != codes.Internal {
		return err
	}
	if len(ids) > 0 {
		if found, rerr := get(ctx, ids); rerr != nil || len(found) < len(ids) {
			return err
		}
	}
	return earlyError{err}
}

// settled returns what another read after a refusal showed.
func (k *kind[O, S]) settled(ctx context.Context, c *providers.Call) (t providers.Thing, there bool, err error) {
	o, there, err := k.look(ctx, c.ID)
	if there {
		t = k.thing(o)
	}
	return t, there, err
}

// unread returns the class of a refusal after which the read failed too.
func (k *kind[O, S]) unread(op string, err error) providers.Class {
	if status.Code(err) == codes.Internal {
		return providers.Unknown
	}
	return k.meaning(op, err)
}

func (k *kind[O, S]) createClass(ctx context.Context, c *providers.Call, err error) providers.Class {
	if class, ok := answered(err); !ok {
		return class
	}
	_, there, rerr := k.settled(ctx, c)
	switch {
	case rerr != nil:
		return k.unread(opCreate, err)
	case there: // the service checks values first, so that any code may hide a taken id
		return providers.Exists
	}
	return k.meaning(opCreate, err)
}

func (k *kind[O, S]) updateClass(ctx context.Context, c *providers.Call, err error) providers.Class {
	if class, ok := answered(err); !ok {
		return class
	}
	_, anytime := any(k.wire).(interface{ anytime() })
	t, there, rerr := k.settled(ctx, c)
	switch {
	case rerr != nil:
		return k.unread(opUpdate, err)
	case !there:
		return providers.Absent
	case begun(err, c, t):
		return providers.Unknown
	case c.Version != "" && t.Version != c.Version:
		return providers.Conflict
	case t.Phase == providers.Pending && !anytime:
		return providers.Busy
	case c.Version == "" && status.Code(err) == codes.Internal:
		return providers.Unknown // there is no version token to show whether it had an effect
	}
	return k.meaning(opUpdate, err)
}

func (k *kind[O, S]) deleteClass(ctx context.Context, c *providers.Call, err error) (class providers.Class, gone bool) {
	if class, ok := answered(err); !ok {
		return class, false
	}
	t, there, rerr := k.settled(ctx, c)
	switch {
	case rerr != nil:
		return k.unread(opDelete, err), false
	case !there, t.Phase == providers.Deleting:
		return "", true
	case begun(err, c, t):
		return providers.Unknown, false
	}
	return k.meaning(opDelete, err), false
}
