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

	"converge.dev/converge/providers/remote"
	"converge.dev/converge/providers/remote/remotepb"
)

// A node that can still be called need not be one that can be reached: a connection may outlive the address, route or port that it was
// made over. So what a guard protects is kept only when the node says some words, each over a connection that it makes for that.
const (
	reports       = 3
	reportsWithin = 10 * time.Second
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
	asked := make([][]byte, reports)
	h.mu.Lock()
	if h.words == nil {
		h.words = map[string]*word{}
	}
	for i := range asked {
		asked[i] = []byte(rand.Text())
		h.words[string(asked[i])] = &word{node: node}
	}
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, w := range asked {
			delete(h.words, string(w))
		}
	}()
	far, _, err := at.Conn(ctx)
	if err == nil {
		_, err = remotepb.NewNodeClient(far).Report(ctx, &remotepb.ReportRequest{Words: asked})
	}
	if err != nil {
		return fmt.Errorf("node %s does not report over a new connection: %w", node, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, w := range asked {
		if !h.words[string(w)].heard { // it says that it has reported, perhaps to another replica
			return fmt.Errorf("node %s has reported over %d of %d new connections", node, i, reports)
		}
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
