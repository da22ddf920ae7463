package command

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"converge.dev/converge/cmd/internal/config"
	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/wire"
	"converge.dev/converge/site"
)

// relay returns how nodes are reached through the site agent at an address.
func (a *app) relay(server string, conf *config.File) (*farSide, error) {
	path, ok := strings.CutPrefix(server, "unix:")
	if !ok || path == "" {
		return nil, &view.Problem{What: "invalid server " + server, Fix: "Want the socket of a site agent on this machine: unix:PATH. converge serve prints it."}
	}
	path = providers.Opening{Dir: conf.Dir()}.Path(path)
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials())) // only its owner can open the socket
	if err != nil {
		return nil, err
	}
	a.closers = append(a.closers, func() { _ = conn.Close() })
	return &farSide{
		open: func(ctx context.Context, needs []providers.Need) (*providers.Set, error) {
			set, err := wire.Open(ctx, conn, needs, nil)
			if err == nil || ctx.Err() != nil {
				return set, err
			}
			why := fmt.Errorf("the site agent at %s does not answer: %w", path, err)
			if set, err = providers.NewSet(); err == nil {
				for _, n := range needs {
					set.Fail(n.Scope, n.Provider, why)
				}
			}
			return set, err
		},
		offers: func(ctx context.Context) (needs []providers.Need, err error) {
			ps, err := wire.Connect(ctx, conn, nil)
			if err != nil {
				return nil, &view.Problem{What: "the site agent does not answer", Where: path + ": " + err.Error(), Fix: "Start it with converge serve, or name another with -server.", Err: err}
			}
			for _, p := range ps {
				needs = append(needs, providers.Need{Scope: p.Scope, Provider: p.Name})
			}
			return needs, nil
		},
		standings: func(ctx context.Context) ([]site.NodeStatus, error) {
			list, err := site.Standings(ctx, conn)
			if err != nil {
				err = fmt.Errorf("the site agent at %s does not answer: %w", path, err)
			}
			return list, err
		},
	}, nil
}
