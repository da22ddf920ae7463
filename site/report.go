package site

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"converge.dev/converge/internal/retry"
	"converge.dev/converge/providers/remote"
	"converge.dev/converge/providers/remote/remotepb"
)

// A node that can still be called need not be one that can be reached: a connection may outlive the address, route or port that it was
// made over. So what a guard protects is kept only when the node says some words, each over a connection that it makes for that. A change
// need not cut at once either: Open vSwitch goes on forwarding by the flows in its datapath until it has looked at them again, a second
// later. So the words are said one after the other, over a while.
const (
	reports       = 3
	reportsApart  = 2 * time.Second
	reportsWithin = 20 * time.Second
)

// hearing are the words that nodes have been asked to say. The zero hearing is ready.
type hearing struct {
	mu    sync.Mutex
	words map[string]*word
}

// A word is to be said by a node.
type word struct {
	node  string
	heard bool
}

// from fails unless a node reports anew.
func (h *hearing) from(ctx context.Context, node string, at remote.Line) error {
	ctx, cancel := context.WithTimeout(ctx, reportsWithin)
	defer cancel()
	for i := range reports {
		if i > 0 {
			if err := retry.Sleep(ctx, reportsApart); err != nil {
				return fmt.Errorf("node %s has reported over %d of %d new connections: %w", node, i, reports, err)
			}
		}
		if err := h.once(ctx, node, at); err != nil {
			return err
		}
	}
	return nil
}

// once fails unless a node reports over one new connection.
func (h *hearing) once(ctx context.Context, node string, at remote.Line) error {
	asked := rand.Text()
	h.mu.Lock()
	if h.words == nil {
		h.words = map[string]*word{}
	}
	h.words[asked] = &word{node: node}
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.words, asked)
	}()
	far, _, err := at.Conn(ctx)
	if err == nil {
		_, err = remotepb.NewNodeClient(far).Report(ctx, &remotepb.ReportRequest{Words: [][]byte{[]byte(asked)}})
	}
	if err != nil {
		return fmt.Errorf("node %s does not report over a new connection: %w", node, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.words[asked].heard { // it says that it has reported, perhaps to another replica
		return fmt.Errorf("node %s has not reported here over a new connection", node)
	}
	return nil
}

// hear takes note that a node has said a word. It fails when the node was not asked for it.
func (h *hearing) hear(node string, said []byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.words[string(said)]
	if w == nil || w.node != node || w.heard {
		return status.Error(codes.NotFound, "node "+node+" was not asked to say that here")
	}
	w.heard = true
	return nil
}

// Hear offers to nodes that connect as ordinary clients what they need to report anew.
func (n *Nodes) Hear(r grpc.ServiceRegistrar) { remotepb.RegisterSiteServer(r, ear{n: n}) }

// ear implements remotepb.SiteServer.
type ear struct {
	remotepb.UnimplementedSiteServer
	n *Nodes
}

// Hear implements remotepb.SiteServer.
func (e ear) Hear(ctx context.Context, r *remotepb.HearRequest) (*remotepb.HearResponse, error) {
	p, _ := peer.FromContext(ctx)
	var at credentials.TLSInfo
	if p != nil {
		at, _ = p.AuthInfo.(credentials.TLSInfo)
	}
	if len(at.State.PeerCertificates) == 0 {
		return nil, status.Error(codes.Unauthenticated, "only a node that has enrolled reports")
	}
	node, err := e.n.o.Who(at.State)
	if err != nil {
		return nil, status.Error(codes.PermissionDenied, err.Error())
	}
	return &remotepb.HearResponse{}, e.n.hearing.hear(node, r.GetWord())
}
