package all

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/wire"
)

// asking is how long the process that serves a world may take to say what it serves.
const asking = 10 * time.Second

// dial returns a connection to the process that serves the fake world, which is not made yet.
func (o Options) dial() (*grpc.ClientConn, error) {
	if err := o.Config.Fake.check(); err != nil {
		return nil, err
	}
	path := providers.Opening{Dir: o.Dir}.Path(strings.TrimPrefix(o.Config.Fake.Server, "unix:"))
	// The system takes about a hundred bytes, and the directory may be a long way from the root and close to here.
	if here, err := os.Getwd(); err == nil && filepath.IsAbs(path) {
		if short, err := filepath.Rel(here, path); err == nil && len(short) < len(path) {
			path = short
		}
	}
	return grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials())) // only its owner can open the socket
}

// openServed returns what is needed of a world that another process serves. The connection is closed with the last provider.
func (o Options) openServed(ctx context.Context, needs []providers.Need) (*providers.Set, error) {
	conn, err := o.dial()
	if err != nil {
		return nil, err
	}
	set, err := wire.Open(ctx, conn, needs, nil)
	if err != nil && ctx.Err() != nil {
		return nil, errors.Join(context.Cause(ctx), conn.Close())
	}
	if err != nil {
		why := fmt.Errorf("fake.server: %s does not answer: %w", conn.Target(), err)
		if set, err = providers.NewSet(); err != nil {
			return nil, err
		}
		for _, n := range needs {
			set.Fail(n.Scope, n.Provider, why)
		}
	}
	var using sync.WaitGroup
	for _, p := range set.All() {
		using.Add(1)
		closing := p.Close
		p.Close = sync.OnceValue(func() error {
			defer using.Done()
			return closing()
		})
	}
	go func() { // ends with the last provider
		using.Wait()
		_ = conn.Close()
	}()
	return set, nil
}

// served lists what the other process serves.
func (o Options) served() ([]providers.Need, error) {
	conn, err := o.dial()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), asking)
	defer cancel()
	ps, err := wire.Connect(ctx, conn, nil)
	if err != nil {
		return nil, fmt.Errorf("fake.server: %w", err)
	}
	needs := make([]providers.Need, len(ps))
	for i, p := range ps {
		needs[i] = providers.Need{Scope: p.Scope, Provider: p.Name}
	}
	return needs, nil
}
