package outbox

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"converge.dev/converge/internal/files"
	"converge.dev/converge/state"
)

// Limits of a request.
const (
	inTime    = 10 * time.Second // from its beginning to its answer
	maxAnswer = 64 << 10         // bytes of an answer that are read, so that its connection can be used again
	maxToken  = 16 << 10
	maxCA     = 1 << 20
	longAfter = time.Hour // the longest pause that a receiver can ask for
)

// transport connects to the webhook. Its certificate is verified with the authorities of a file, or with those of the system.
func transport(ca string) (http.RoundTripper, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := files.Read(ca, maxCA)
		if err != nil {
			return nil, err
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no certificate: want PEM", ca)
		}
	}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: conf, ForceAttemptHTTP2: true, TLSHandshakeTimeout: inTime,
		MaxIdleConns: 1, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 16 << 10,
	}, nil
}

// token reads the bearer token: each time, since it may be replaced. Empty: there is none.
func (b *Outbox) token() (string, error) {
	if b.o.TokenFile == "" {
		return "", nil
	}
	text, err := files.ReadPrivate(b.o.TokenFile, maxToken)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(text))
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("%s does not contain a bearer token: want one line of printable characters", b.o.TokenFile)
	}
	return token, nil
}

// An answerError is an answer of the receiver other than that it has taken the event.
type answerError struct {
	status int
	after  time.Duration // it asks for this pause
}

// Error implements error. It repeats nothing that the receiver has written.
func (e *answerError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("the receiver answers %d %s", e.status, http.StatusText(e.status)))
}

// refuses reports whether the answer is about the event and not about whoever sends it, where to, or when: the next one may be taken.
func (e *answerError) refuses() bool {
	switch e.status {
	case http.StatusUnauthorized, http.StatusPaymentRequired, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusProxyAuthRequired,
		http.StatusRequestTimeout, http.StatusGone, http.StatusMisdirectedRequest, http.StatusLocked, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return e.status >= 400 && e.status < 500
}

// deliver sends an event once. It succeeds when the receiver has said that it has it.
func (b *Outbox) deliver(ctx context.Context, o state.Outgoing, dropped int64) error {
	body, err := sent(o, dropped)
	if err != nil {
		return err
	}
	token, err := b.token()
	if err != nil {
		return fmt.Errorf("read the token: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, inTime, fmt.Errorf("the receiver did not answer within %v", inTime))
	defer cancel()
	err = b.post(ctx, body, token)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil || errors.As(err, new(*answerError)) {
		return err
	}
	return errors.New(b.text(err, token))
}

func (b *Outbox) post(ctx context.Context, body []byte, token string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, b.o.Webhook, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/cloudevents+json; charset=utf-8")
	r.Header.Set("User-Agent", "converge/"+b.o.Version)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := b.client.Do(r)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, maxAnswer)) // its status says all
	_ = answer.Body.Close()
	if answer.StatusCode >= 200 && answer.StatusCode < 300 {
		return nil
	}
	return &answerError{status: answer.StatusCode, after: b.after(answer)}
}

// after returns the pause that a receiver asks for.
func (b *Outbox) after(answer *http.Response) time.Duration {
	if answer.StatusCode != http.StatusTooManyRequests && answer.StatusCode != http.StatusServiceUnavailable {
		return 0
	}
	text := answer.Header.Get("Retry-After")
	pause := time.Duration(0)
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		pause = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(text); err == nil {
		pause = at.Sub(b.o.Now())
	}
	return min(max(pause, 0), longAfter)
}

// text returns an error as it may be shown: without the address, whose query may be secret, and without the token.
func (b *Outbox) text(err error, token string) string {
	if at := (*url.Error)(nil); errors.As(err, &at) {
		err = at.Err
	}
	text := err.Error()
	if token != "" {
		text = strings.ReplaceAll(text, token, "***")
	}
	return b.shown(text)
}

// shown returns a text as it may be shown.
func (b *Outbox) shown(text string) string {
	const most = 1 << 10
	if text = b.o.Scrub(text); len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
