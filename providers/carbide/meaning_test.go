package carbide

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"converge.dev/converge/internal/carbidetest"
	"converge.dev/converge/providers"
)

// TestDatabaseWords checks PostgreSQL's messages in INTERNAL, about calls that had no effect.
func TestDatabaseWords(t *testing.T) {
	for _, k := range carbidetest.Kinds() {
		for _, w := range k.Database {
			if got := meaningsOf(k.Name()).meaning(w.Verb, status.Error(codes.Internal, "Database Error: "+w.Text)); got != w.Class {
				t.Errorf("%s %s, %s: class %s, want %s", w.Verb, k.Name(), w.Text, got, w.Class)
			}
		}
	}
}

// meaningsOf returns the part of a kind that explains refusals.
func meaningsOf(name string) interface {
	meaning(op string, err error) providers.Class
} {
	for _, k := range new(service).kinds() {
		if k.Name == name {
			return k.Kind.(interface {
				meaning(op string, err error) providers.Class
			})
		}
	}
	panic("unknown kind " + name)
}

// TestSituations lists the situations in which the service refuses, with its codes, by verb and kind. Each refusal here is
// known to have had no effect: for a change, reading the object again has shown it.
func TestSituations(t *testing.T) {
	const internal, precondition, argument = codes.Internal, codes.FailedPrecondition, codes.InvalidArgument
	type row struct {
		situation, kind, op string
		code                codes.Code
		text                string
		want                providers.Class
	}
	var rows []row
	add := func(situation, kinds string, ops []string, code codes.Code, text string, want providers.Class) {
		for _, noun := range strings.Fields(kinds) {
			for _, op := range ops {
				rows = append(rows, row{situation, Name + "." + noun, op, code, text, want})
			}
		}
	}
	create, update, remove := []string{opCreate}, []string{opUpdate}, []string{opDelete}
	changes := []string{opCreate, opUpdate, opDelete}
	const all = "tenant tenant_keyset vpc vpc_prefix network_segment network_security_group instance_type instance machine"

	// A changed version token is Conflict before the meaning is asked for: the object shows it.
	add("unknown object", all, changes, codes.NotFound, "vpc not found: x", providers.Absent)
	add("name or id taken", "network_security_group instance_type", create, precondition, "already exists: x", providers.Exists)
	add("name taken", "network_security_group", update, precondition, "already exists: x", providers.Exists)
	add("name or id taken, in the words of errors.rs", "network_security_group instance_type", create, codes.AlreadyExists, "already exists: x", providers.Exists)
	add("a requested address is in use", "instance", create, codes.AlreadyExists, "prefix already exists", providers.Busy)
	add("id taken, even by what was deleted", "tenant tenant_keyset vpc vpc_prefix network_segment network_security_group instance", create, internal,
		`duplicate key value violates unique constraint "x_pkey"`, providers.Exists)
	add("wrong values", "tenant tenant_keyset vpc vpc_prefix network_segment network_security_group instance_type instance", create, argument, "", providers.Invalid)
	add("wrong values", "tenant tenant_keyset vpc vpc_prefix network_security_group instance_type instance machine", update, argument, "", providers.Invalid)
	add("an empty pool", "vpc network_segment instance", create, codes.ResourceExhausted, "", providers.Busy)
	add("a VNI that cannot be had, a foreign security group", "vpc", create, precondition, "", providers.Invalid)
	add("an unknown security group", "vpc instance", update, precondition, "", providers.Absent)
	add("an unknown security group or operating system", "instance", create, precondition, "", providers.Invalid)
	add("an alert holds the host", "instance", remove, argument, "", providers.Busy)
	add("interfaces use it", "network_segment", remove, argument, "", providers.Busy)
	add("something uses it", "network_security_group instance_type", remove, precondition, "", providers.Busy)
	add("something fixes the field", "tenant instance_type machine", update, precondition, "", providers.Busy)
	add("something fixes the field", "vpc", update, internal, "VPC has instances", providers.Busy)
	add("the VPC changed meanwhile", "vpc_prefix", []string{opCreate, opDelete}, precondition, "", providers.Busy)
	add("something uses it", "vpc_prefix", remove, internal, `violates foreign key constraint "x_fkey"`, providers.Busy)
	add("what it refers to is not there", "network_segment network_security_group", create, internal, `violates foreign key constraint "x_fkey"`, providers.Absent)
	add("what it refers to is not there", "network_segment network_security_group instance", create, internal, "VPC prefix does not exist", providers.Absent)
	add("a check of the database", "network_segment tenant", create, internal, `violates check constraint "x_check"`, providers.Invalid)
	add("too long for the database", "instance_type network_security_group tenant_keyset", create, internal, "value too long for type character varying(64)", providers.Invalid)
	add("the database hiccups", "tenant tenant_keyset vpc vpc_prefix instance_type", create, internal, "pool timed out", providers.Busy)
	add("the database hiccups", all, update, internal, "pool timed out", providers.Busy)
	add("the database hiccups", all, remove, internal, "pool timed out", providers.Busy)
	add("a role that may not", all, changes, codes.PermissionDenied, "", providers.Denied)
	add("a caller that is not known", all, changes, codes.Unauthenticated, "", providers.Denied)
	add("an older server", all, changes, codes.Unimplemented, "", providers.Unsupported)

	seen := map[codes.Code]bool{}
	for _, r := range rows {
		seen[r.code] = true
		err := status.Error(r.code, r.text)
		if _, ok := answered(err); !ok {
			t.Errorf("%s: %s is taken for no answer", r.situation, r.code)
		}
		if got := meaningsOf(r.kind).meaning(r.op, err); got != r.want {
			t.Errorf("%s: %s %s, %s %q: class %s, want %s", r.situation, r.op, r.kind, r.code, r.text, got, r.want)
		}
	}
	// All other codes do not come from the service itself: whether there was an effect is unknown.
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		if seen[code] || code == codes.OutOfRange { // which no handler uses; it could only be about values
			continue
		}
		if class, ok := answered(status.Error(code, "")); ok || class != providers.Unknown {
			t.Errorf("%s is an answer of class %q", code, class)
		}
	}
}
