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

// Verbs, as errors name them.
const (
	opObserve = "observe"
	opCreate  = "create"
	opUpdate  = "update"
	opDelete  = "delete"
)

var errAbsent = errors.New("it is not there")

func errMoved(version string) error {
	return fmt.Errorf("it changed since it was observed: its version is now %s", version)
}

// meanings are what codes say about a call that had no effect. Codes that are not here do not say whether it had one.
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

type verb struct{ kind, op string }

// exceptions are codes that mean something else for one verb of one kind. INTERNAL is asked for here only once reading
// again has shown that the call had no effect; unless it is listed it then means Busy, as for a database that hiccups.
var exceptions = map[verb]map[codes.Code]providers.Class{
	{"carbide.tenant", opUpdate}: {
		codes.FailedPrecondition: providers.Busy, // the routing profile is fixed while there are VPCs
	},
	{"carbide.vpc", opUpdate}: {
		codes.FailedPrecondition: providers.Absent, // the security group
		codes.Internal:           providers.Busy,   // instances have addresses, which fixes the virtualization
	},
	{"carbide.vpc", opDelete}: {
		codes.FailedPrecondition: providers.Busy, // prefixes are there, or on their way out
	},
	{"carbide.vpc_prefix", opCreate}: {
		codes.FailedPrecondition: providers.Busy, // the VPC changed meanwhile
	},
	{"carbide.vpc_prefix", opDelete}: {
		codes.FailedPrecondition: providers.Busy, // the VPC changed meanwhile
		codes.Internal:           providers.Busy, // segments inside, perhaps link networks of instances that are gone
	},
	{"carbide.network_segment", opCreate}: {
		codes.Internal: providers.Absent, // the VPC; a row that refers to nothing
	},
	{"carbide.network_segment", opDelete}: {
		codes.InvalidArgument: providers.Busy, // interfaces use it
	},
	{"carbide.network_security_group", opCreate}: {
		codes.FailedPrecondition: providers.Exists, // the name or the id is taken
		codes.Internal:           providers.Absent, // the tenant
	},
	{"carbide.network_security_group", opUpdate}: {
		codes.FailedPrecondition: providers.Exists, // the name is taken
	},
	{"carbide.network_security_group", opDelete}: {
		codes.FailedPrecondition: providers.Busy, // VPCs or instances use it
	},
	{"carbide.instance_type", opCreate}: {
		codes.FailedPrecondition: providers.Exists, // the name or the id is taken
	},
	{"carbide.instance_type", opUpdate}: {
		codes.FailedPrecondition: providers.Busy, // machines belong to it, which fixes the capabilities
	},
	{"carbide.instance_type", opDelete}: {
		codes.FailedPrecondition: providers.Busy, // instances run on its machines
	},
	{"carbide.compute_allocation", opCreate}: {
		codes.FailedPrecondition: providers.Exists, // the name is taken
		codes.Internal:           providers.Absent, // the tenant or the type
	},
	{"carbide.compute_allocation", opUpdate}: {
		codes.FailedPrecondition: providers.Busy, // more machines have to join the type, or instances to go
	},
	{"carbide.compute_allocation", opDelete}: {
		codes.FailedPrecondition: providers.Busy, // the tenant's instances use it
	},
	{"carbide.instance", opCreate}: {
		codes.AlreadyExists: providers.Busy,   // a requested address is in a link network that drains
		codes.Internal:      providers.Absent, // a VPC prefix
	},
	{"carbide.instance", opUpdate}: {
		codes.FailedPrecondition: providers.Absent, // the security group or the operating system
	},
	{"carbide.instance", opDelete}: {
		codes.InvalidArgument: providers.Busy, // an alert holds the host
	},
	{"carbide.os_image", opDelete}: {
		codes.FailedPrecondition: providers.Busy, // it is being copied
	},
	{"carbide.dpu_extension_service", opCreate}: {
		codes.FailedPrecondition: providers.Exists, // the name is taken
		codes.Internal:           providers.Absent, // the tenant
	},
	{"carbide.dpu_extension_service", opUpdate}: {
		codes.FailedPrecondition: providers.Exists, // the name is taken
	},
	{"carbide.dpu_extension_service", opDelete}: {
		codes.FailedPrecondition: providers.Busy, // instances have it
	},
	{"carbide.expected_machine", opCreate}: {
		codes.FailedPrecondition: providers.Exists,  // the MAC address is taken
		codes.Internal:           providers.Invalid, // the MAC address cannot be read
	},
	{"carbide.expected_switch", opCreate}: {
		codes.Internal: providers.Exists, // the MAC address is taken
	},
	{"carbide.expected_power_shelf", opCreate}: {
		codes.Internal: providers.Exists, // the MAC address is taken
	},
	{"carbide.sku", opDelete}: {
		codes.InvalidArgument: providers.Busy, // machines belong to it
	},
	{"carbide.machine", opUpdate}: {
		codes.FailedPrecondition: providers.Busy, // an instance runs on it, which fixes type and SKU
	},
	{"carbide.vpc_peering", opCreate}: {
		codes.FailedPrecondition: providers.Exists, // the pair is peered already
		codes.Internal:           providers.Absent, // one of the VPCs
	},
	{"carbide.ib_partition", opCreate}: {
		codes.Internal: providers.Invalid, // the key cannot be asked for or is taken, or the site has no such fabric
	},
	{"carbide.ib_partition", opUpdate}: {
		codes.FailedPrecondition: providers.Conflict, // it was changed since it was read; some versions of the service say so
	},
	{"carbide.ib_partition", opDelete}: {
		codes.FailedPrecondition: providers.Busy, // instances use it
	},
	{"carbide.nvlink_logical_partition", opUpdate}: {
		codes.FailedPrecondition: providers.Conflict, // as above
	},
	{"carbide.nvlink_logical_partition", opDelete}: {
		codes.InvalidArgument: providers.Busy, // instances use it
	},
}

// unhurried are kinds whose things can be changed before they are ready: a refusal then is about something else.
var unhurried = map[string]bool{
	"carbide.operating_system": true, "carbide.os_image": true, "carbide.vpc": true, "carbide.network_security_group": true,
}

// phrases are the words inside an INTERNAL refusal that say what it is about, most of them the database's; there is no
// other sign of a taken id, not even reading, because ids of deleted things stay taken.
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

// meaning gives the class of a refusal that is known to have had no effect.
func (k *kind[O, S]) meaning(op string, err error) providers.Class {
	code := status.Code(err)
	if code == codes.Internal && op != opDelete { // a delete that breaks a reference is early, as the exceptions say
		for _, p := range phrases {
			if strings.Contains(status.Convert(err).Message(), p.text) {
				return p.class
			}
		}
	}
	if early := (earlyError{}); errors.As(err, &early) {
		return providers.Busy
	}
	if class, ok := exceptions[verb{k.name, op}][code]; ok {
		return class
	}
	if class, ok := meanings[code]; ok {
		return class
	}
	return providers.Busy
}

// readClass gives the class of a failed read, which never has an effect.
func readClass(err error) providers.Class {
	if heavy := (heavyError{}); errors.As(err, &heavy) {
		return providers.Invalid // it would be as heavy the next time
	}
	if class, ok := meanings[status.Code(err)]; ok {
		return class
	}
	return providers.Transient
}

// answered reports whether the service itself answered, so that the call is over. Otherwise class says what is known.
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

// A firstError is the refusal of the first of several calls of a verb. When it had its effect nevertheless, the thing is
// neither as it was nor as it is wanted.
type firstError struct{ error }

func (e firstError) Unwrap() error { return e.error }

// begun reports whether a thing that is not as it was may be so because of the refused call. The service refuses a version
// that has moved with FAILED_PRECONDITION: then others changed it.
func begun(err error, c *providers.Call, t providers.Thing) bool {
	first := firstError{}
	return errors.As(err, &first) && status.Code(err) != codes.FailedPrecondition &&
		(t.Spec.Digest() != c.Have.Digest() || t.Phase == providers.Pending)
}

// An earlyError is a refusal because of something that is not ready yet, whatever its code.
type earlyError struct{ error }

func (e earlyError) Unwrap() error { return e.error }

// unless turns an INTERNAL refusal of a create, which may mean that what it refers to is not there, into an early one when
// reading shows that all of it is: then the database has hiccuped, or something is used up.
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

// settled is what reading again after a refusal showed.
func (k *kind[O, S]) settled(ctx context.Context, c *providers.Call) (t providers.Thing, there bool, err error) {
	o, there, err := k.look(ctx, c.ID)
	if there {
		t = k.thing(o)
	}
	return t, there, err
}

// unread gives the class of a refusal after which reading failed too.
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
	case t.Phase == providers.Pending && !unhurried[k.name]:
		return providers.Busy
	case c.Version == "" && status.Code(err) == codes.Internal:
		return providers.Unknown // no token shows whether it had an effect
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
	case !there, t.Phase == providers.Leaving:
		return "", true
	case begun(err, c, t):
		return providers.Unknown, false
	}
	return k.meaning(opDelete, err), false
}
