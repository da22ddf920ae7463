package carbidesim

import (
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

func internal(format string, args ...any) error {
	return status.Errorf(codes.Internal, format, args...)
}

func precondition(format string, args ...any) error {
	return status.Errorf(codes.FailedPrecondition, format, args...)
}

func exhausted(pool string) error {
	return status.Errorf(codes.ResourceExhausted, "resource pool %s is empty", pool)
}

func unmodelled(what string) error {
	return status.Errorf(codes.Unimplemented, "the simulator does not model %s", what)
}

func notFound(kind, id string) error {
	return status.Errorf(codes.NotFound, "%s not found: %s", kind, id)
}

// alreadyExists is the error for a taken name. The real service passes on the database's error, which is mapped to this
// code and not to ALREADY_EXISTS.
func alreadyExists(kind, name string) error {
	return precondition("%s already exists: %s", kind, name)
}

// duplicate is the error for an id that is, or ever was, in use: the database's own text.
func duplicate(constraint string) error {
	return internal("Database Error: duplicate key value violates unique constraint %q", constraint)
}

// violation is what the database says about a foreign key or a check.
func violation(constraint string) error {
	what := "check"
	if strings.HasSuffix(constraint, "_fkey") {
		what = "foreign key"
	}
	return internal("Database Error: violates %s constraint %q", what, constraint)
}

// noRows is what the database says about a change of a row that does not exist.
func noRows() error {
	return internal("Database Error: no rows returned by a query that expected to return at least one row")
}

func missing(field string) error {
	return invalid("%s is required", field)
}
