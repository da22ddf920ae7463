package etcd

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// TestOwnTimeout: a member whose caller's time is up answers with the error that it has for a lost majority. What is said of
// it tells one from the other.
func TestOwnTimeout(t *testing.T) {
	ended, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	if err := explain(ended, rpctypes.ErrTimeout); !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "majority") {
		t.Errorf("after the caller's time: %v, want context.DeadlineExceeded", err)
	}
	if err := explain(t.Context(), rpctypes.ErrTimeout); errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "majority") {
		t.Errorf("within the caller's time: %v, want that the majority is lost", err)
	}
}
