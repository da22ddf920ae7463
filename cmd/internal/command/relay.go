package command

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"converge.dev/converge/cmd/internal/config"
	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/internal/files"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/wire"
	"converge.dev/converge/site"
)

// server returns which site agent is meant; its address is empty when none is.
func (a *app) server(conf *config.File) (s config.Server, err error) {
	f := a.flags.server
	s = config.Server{
		Address: cmp.Or(f.Address, a.env[envServer], conf.Server.Address),
		CA:      cmp.Or(f.CA, conf.Server.CA), Cert: cmp.Or(f.Cert, conf.Server.Cert), Key: cmp.Or(f.Key, conf.Server.Key),
	}
	path, local := strings.CutPrefix(s.Address, "unix:")
	secure := strings.HasPrefix(strings.ToLower(s.Address), "https://")
	u, err := url.Parse(s.Address)
	switch {
	case !local && strings.Contains(s.Address, "@"): // and the address is shown nowhere
		return s, &view.Problem{What: "the address of the server contains a user or a password", Fix: "Remove it: a site agent knows its clients by their certificates."}
	case !secure && s.CA+s.Cert+s.Key != "":
		return s, &view.Problem{What: "there are certificates for a site agent, and no https address of one", Fix: "Set the address of server in " + config.Name + ", or -server=https://HOST:PORT."}
	case s.Address == "" || local && path != "":
		return s, nil
	case err != nil || !secure || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return s, &view.Problem{What: "invalid server " + s.Address, Fix: "Want unix:PATH, the socket of a site agent on this machine, which converge serve prints; or https://HOST:PORT of one on another machine."}
	case s.Cert == "" || s.Key == "":
		return s, &view.Problem{What: "there is no client certificate for the site agent at " + s.Address, Fix: "Set cert and key of server in " + config.Name + ", or -server-cert and -server-key."}
	case len(a.flags.endpoints) > 0: // the store is said, too
	case a.flags.dataDir != "":
		return s, &view.Problem{What: "two stores are named: the site agent at " + s.Address + " and the directory " + a.flags.dataDir, Fix: "Remove -server or -data-dir, and what sets them in the environment."}
	case s.Address == conf.Server.Address && len(conf.Etcd.Endpoints) > 0:
		return s, &view.Problem{What: conf.Path + " names two stores: the site agent at " + s.Address + ", and etcd", Fix: "Remove server or etcd, or name the store with -etcd-endpoints."}
	}
	s.Address = "https://" + net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443"))
	return s, nil
}

// remote reports whether the site agent is the store, too.
func (a *app) remote(s config.Server) bool {
	return strings.HasPrefix(s.Address, "https://") && len(a.flags.endpoints) == 0
}

// dial connects to a site agent when that is needed.
func dial(s config.Server, conf *config.File) (*grpc.ClientConn, error) {
	if path, local := strings.CutPrefix(s.Address, "unix:"); local {
		path = providers.Opening{Dir: conf.Dir()}.Path(path)
		return grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials())) // only its owner can open the socket
	}
	secure, err := files.ClientTLS(s.CA, s.Cert, s.Key)
	if err != nil {
		return nil, err
	}
	secure.MinVersion = tls.VersionTLS13
	return grpc.NewClient(strings.TrimPrefix(s.Address, "https://"), grpc.WithTransportCredentials(credentials.NewTLS(secure)),
		grpc.WithNoProxy(), // like the store
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second})) // it may be gone without a word
}

// untaken returns what is wrong when a site agent on another machine does not take our certificate; nil when an error is not about that.
func untaken(s config.Server, err error) error {
	text := err.Error()
	if !strings.HasPrefix(s.Address, "https://") || !strings.Contains(text, "no application protocol") && !strings.Contains(text, "remote error: tls") {
		return nil
	}
	return &view.Problem{
		What: "the site agent at " + s.Address + " does not take the certificate " + s.Cert, Where: text,
		Fix: "In https.clients of its " + config.Name + ", ca has to be its authority, and roles has to give operate to its name.", Err: err,
	}
}

// relay returns how nodes are reached through a site agent.
func (a *app) relay(s config.Server, conf *config.File) (*farSide, error) {
	conn, err := dial(s, conf)
	if err != nil {
		return nil, &view.Problem{What: "the site agent cannot be reached", Where: err.Error(), Err: err}
	}
	path := strings.TrimPrefix(s.Address, "unix:")
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
				if refused := untaken(s, err); refused != nil {
					return nil, refused
				}
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
