package etcd

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// code returns the code of an error from etcd or gRPC.
func code(err error) codes.Code {
	var e rpctypes.EtcdError
	if errors.As(err, &e) {
		return e.Code()
	}
	var g interface{ GRPCStatus() *status.Status }
	if errors.As(err, &g) {
		return g.GRPCStatus().Code()
	}
	return codes.Unknown
}

// refused reports whether the far side certainly did not do what was requested. Any other error, above all a timeout or a
// broken connection, leaves that open.
func refused(err error) bool {
	switch code(err) {
	case codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument,
		codes.FailedPrecondition, codes.NotFound, codes.OutOfRange:
		return true
	case codes.ResourceExhausted:
		return !errors.Is(err, rpctypes.ErrNoSpace)
	}
	return false
}

// compacted reports whether a read at a revision came too late.
func compacted(err error) bool { return errors.Is(err, rpctypes.ErrCompacted) }

// explain adds to an error of etcd what a person should do about it. When ctx has ended, the error says so: a member that
// answers a caller whose deadline has passed reports a timeout of its own, as if it had lost its majority.
func explain(ctx context.Context, err error) error {
	switch ended := ctx.Err(); {
	case ended != nil && !errors.Is(err, ended):
		return fmt.Errorf("no answer: %w: %w", ended, err)
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("its space quota is used up; compact it, defragment every member, then run `etcdctl alarm disarm`: %w", err)
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return fmt.Errorf("the user lacks the permission to read and write below /converge/SITE/: %w", err)
	case errors.Is(err, rpctypes.ErrAuthFailed):
		return fmt.Errorf("wrong user name or password: %w", err)
	case errors.Is(err, rpctypes.ErrUserEmpty):
		return fmt.Errorf("it requires a user name and a password: %w", err)
	case errors.Is(err, rpctypes.ErrNoLeader), errors.Is(err, rpctypes.ErrTimeout),
		errors.Is(err, rpctypes.ErrTimeoutDueToLeaderFail), errors.Is(err, rpctypes.ErrTimeoutDueToConnectionLost):
		return fmt.Errorf("it has no quorum at the moment: %w", err)
	case silent(err):
		return fmt.Errorf("no answer: %w", err)
	case code(err) == codes.PermissionDenied: // of a gateway, which says why
		return errors.New(status.Convert(err).Message())
	}
	return err
}

// silent reports whether an error means that no member answered.
func silent(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || code(err) == codes.DeadlineExceeded || code(err) == codes.Unavailable
}
