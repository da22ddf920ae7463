package state_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// A node is written only as it was read; the watch brings every change, and names what it cannot read.
func TestNodes(t *testing.T) {
	kv := mem.New(mem.Options{})
	s := state.New(kv, "fra1")
	if _, err := s.Node(t.Context(), "gpu-01"); !errors.Is(err, state.ErrNotFound) {
		t.Fatal(err)
	}
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	entry := state.Audit{At: at, By: "ann@host", Action: "token", Scope: "gpu-01", Reason: "new"}
	if err := s.SetNode(t.Context(), state.Node{Name: "gpu-01"}, entry); err != nil {
		t.Fatal(err)
	}
	n, err := s.Node(t.Context(), "gpu-01")
	if err != nil || n.Status() != state.NodePending || n.Revision == 0 {
		t.Fatalf("%+v, %v", n, err)
	}
	n.Certificate = []byte("x")
	if err := s.SetNode(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	n.Ban = &state.NodeBan{By: "ann@host", Reason: "stolen", At: at}
	if err := s.SetNode(t.Context(), n, entry); !errors.Is(err, state.ErrGuard) {
		t.Errorf("a node that was changed meanwhile: %v", err)
	}
	if err := s.SetNode(t.Context(), state.Node{Name: "gpu-01"}); !errors.Is(err, state.ErrGuard) {
		t.Errorf("a node that exists, as a new one: %v", err)
	}
	if audits, err := s.Audits(t.Context()); err != nil || len(audits) != 1 {
		t.Errorf("%v, %v", audits, err)
	}
	nodes, err := s.Nodes(t.Context())
	if err != nil || len(nodes) != 1 || nodes[0].Status() != state.NodeEnrolled {
		t.Fatalf("%+v, %v", nodes, err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	batches := 0
	for changes, err := range s.WatchNodes(ctx) {
		switch batches++; batches {
		case 1:
			if err != nil || !changes.Whole || len(changes.Changes) != 1 || changes.Changes[0].Node.Status() != state.NodeEnrolled {
				t.Fatalf("%+v, %v", changes, err)
			}
			nodes[0].Contested = at
			if err := s.SetNode(t.Context(), nodes[0]); err != nil {
				t.Fatal(err)
			}
		case 2:
			if c := changes.Changes[0]; err != nil || changes.Whole || c.Name != "gpu-01" || c.Node.Status() != state.NodeContested || c.Node.Revision == 0 {
				t.Fatalf("%+v, %v", changes, err)
			}
			if _, err := kv.Commit(t.Context(), nil, []state.Op{{Key: "/converge/fra1/node/gpu-01", Value: []byte("{}")}}); err != nil {
				t.Fatal(err)
			}
		case 3:
			var damaged *state.DamagedError
			if c := changes.Changes[0]; err != nil || c.Name != "gpu-01" || c.Node != nil || !errors.As(c.Err, &damaged) {
				t.Fatalf("%+v, %v", changes, err)
			}
			if _, err := kv.Commit(t.Context(), nil, []state.Op{{Key: "/converge/fra1/node/gpu-01", Delete: true}}); err != nil {
				t.Fatal(err)
			}
		case 4:
			if c := changes.Changes[0]; err != nil || c.Name != "gpu-01" || c.Node != nil || c.Err != nil {
				t.Fatalf("%+v, %v", changes, err)
			}
			cancel()
		default:
			if !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		}
	}
	if batches != 5 {
		t.Errorf("%d batches", batches)
	}
}
