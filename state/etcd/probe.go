package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"time"
)

// preface is what an HTTP/2 client sends first: a fixed text and an empty SETTINGS frame, which a server answers with its own.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// reachable returns why no endpoint can be used; nil when one can. The client library tries for ever and ends with "context
// deadline exceeded", whether the name is wrong, the port is closed or a certificate is refused.
func reachable(ctx context.Context, endpoints []string, config *tls.Config) error {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	results := make(chan error, len(endpoints))
	for _, e := range endpoints {
		go func() {
			if err := probe(ctx, e, config); err != nil {
				err = fmt.Errorf("%s: %w", e, err)
				results <- err
				return
			}
			results <- nil
		}()
	}
	var all []error
	for range endpoints {
		err := <-results
		if err == nil {
			return nil
		}
		all = append(all, err)
	}
	return errors.Join(all...)
}

// probe checks that an HTTP/2 server answers at one endpoint and accepts our certificate.
func probe(ctx context.Context, endpoint string, config *tls.Config) error {
	u, err := url.Parse(endpoint)
	if err != nil {
		return err
	}
	network, address := "tcp", u.Host
	switch u.Scheme {
	case "http", "https":
	case "unix", "unixs":
		network, address = "unix", u.Host+u.Path
	default:
		return errors.New("it must start with http://, https:// or unix://")
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if config != nil {
		config = config.Clone()
		config.NextProtos = []string{"h2"}
		if config.ServerName == "" {
			config.ServerName = u.Hostname()
		}
		conn = tls.Client(conn, config)
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(openTimeout)
	}
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, preface); err != nil {
		return err
	}
	// With TLS 1.3 a refused client certificate shows only here.
	var frame [9]byte
	if _, err := io.ReadFull(conn, frame[:]); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return errors.New("the server there does not speak HTTP/2, or only with TLS")
		}
		return err
	}
	if frame[3] != 4 {
		return errors.New("the server there does not speak HTTP/2")
	}
	return nil
}
