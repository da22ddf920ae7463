package etcd

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// TestOwnTimeout: when the caller's time is up, a member returns the same error as for a lost majority. Our error
// distinguishes the two.
func TestOwnTimeout(t *testing.T) {
	ended, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	if err := explain(ended, rpctypes.ErrTimeout); !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "quorum") {
		t.Errorf("after the caller's time: %v, want context.DeadlineExceeded", err)
	}
	if err := explain(t.Context(), rpctypes.ErrTimeout); errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "quorum") {
		t.Errorf("within the caller's time: %v, want that the majority is lost", err)
	}
}
