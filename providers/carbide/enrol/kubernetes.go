package enrol

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"converge.dev/converge/internal/files"
)

// account is where a pod finds who it is.
const account = "/var/run/secrets/kubernetes.io/serviceaccount"

// Keys of the secret.
const (
	caKey   = "ca.crt"
	certKey = "tls.crt"
	keyKey  = "tls.key"
	markKey = "enrolment"
)

// A cluster is a secret in the cluster of the pod. Its service account may get and patch it, and create it when it is not there.
type cluster struct {
	name, namespace, server string
	account                 string // directory
	web                     *http.Client
}

// openCluster finds the API server as every pod does.
func openCluster(s SecretStore, dir string, env func(string) string) (*cluster, error) {
	host, port := env("KUBERNETES_SERVICE_HOST"), env("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("this is no pod of a Kubernetes cluster: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set; store the credentials in files instead")
	}
	k := &cluster{name: s.Secret, namespace: s.Namespace, server: "https://" + net.JoinHostPort(host, port), account: dir}
	if k.namespace == "" {
		b, err := files.Read(filepath.Join(dir, "namespace"), 1<<10)
		if err != nil {
			return nil, fmt.Errorf("the namespace of the pod: %w (does it mount the token of its service account?)", err)
		}
		k.namespace = strings.TrimSpace(string(b))
	}
	ca, err := files.Read(filepath.Join(dir, "ca.crt"), maxFile)
	if err != nil {
		return nil, fmt.Errorf("the authority of the cluster: %w (does the pod mount the token of its service account?)", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s contains no certificate", filepath.Join(dir, "ca.crt"))
	}
	k.web = &http.Client{
		Timeout: 15 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the token is for nobody else
	}
	return k, nil
}

func (k *cluster) String() string { return "secret " + k.namespace + "/" + k.name }

// secret is what is used of one.
type secret struct {
	APIVersion string            `json:"apiVersion,omitempty"`
	Kind       string            `json:"kind,omitempty"`
	Metadata   metadata          `json:"metadata"`
	Type       string            `json:"type,omitempty"`
	Data       map[string][]byte `json:"data"`
}

type metadata struct {
	Name    string `json:"name,omitempty"`
	Version string `json:"resourceVersion,omitempty"`
}

// A statusError is an answer of the API server that is no success.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string { return e.text }

func (k *cluster) call(ctx context.Context, method, path, kind string, body, into any) error {
	var send io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		send = bytes.NewReader(b)
	}
	r, err := http.NewRequestWithContext(ctx, method, k.server+"/api/v1/namespaces/"+k.namespace+"/secrets"+path, send)
	if err != nil {
		return err
	}
	token, err := files.Read(filepath.Join(k.account, "token"), maxFile) // which is replaced every hour
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	r.Header.Set("Accept", "application/json")
	if body != nil {
		r.Header.Set("Content-Type", kind)
	}
	res, err := k.web.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 4<<20))
	if err != nil {
		return err
	}
	if res.StatusCode/100 != 2 {
		var s struct {
			Message string `json:"message"`
		}
		_ = json.Unmarshal(text, &s) // without it the status says enough
		return &statusError{res.StatusCode, fmt.Sprintf("%s: %s %s: %s", k, method, res.Status, cmp.Or(s.Message, "it does not say why"))}
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: the answer of the API server is no secret", k)
	}
	return nil
}

// get returns the secret; nil when it is not there.
func (k *cluster) get(ctx context.Context) (*secret, error) {
	var s secret
	err := k.call(ctx, http.MethodGet, "/"+k.name, "", nil, &s)
	var failed *statusError
	if errors.As(err, &failed) && failed.code == http.StatusNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &s, nil
}

func (k *cluster) load(ctx context.Context) (*credentials, error) {
	s, err := k.get(ctx)
	if err != nil || s == nil || len(s.Data[keyKey]) == 0 {
		return nil, err
	}
	c, err := parse(s.Data[keyKey], s.Data[certKey], s.Data[caKey], s.Data[markKey])
	if err != nil {
		return nil, damage{fmt.Errorf("%s: %w", k, err)}
	}
	return c, nil
}

// writable asks the API server what it would say to a change. Some cannot say, because a webhook of theirs is asked for real only; a
// change by somebody else meanwhile is no reason either.
func (k *cluster) writable(ctx context.Context) error {
	err := k.change(ctx, map[string][]byte{}, "?dryRun=All")
	var failed *statusError
	if errors.As(err, &failed) && (failed.code == http.StatusBadRequest || failed.code == http.StatusConflict) {
		return nil
	}
	return err
}

func (k *cluster) save(ctx context.Context, c *credentials) error {
	return k.change(ctx, map[string][]byte{caKey: c.ca, certKey: c.chain, keyKey: c.key, markKey: c.mark}, "")
}

// change changes the secret in one request, which fails when somebody else has changed it meanwhile; what else is in it stays.
func (k *cluster) change(ctx context.Context, data map[string][]byte, query string) error {
	have, err := k.get(ctx)
	if err != nil {
		return err
	}
	s := secret{Data: data}
	if have == nil {
		s.APIVersion, s.Kind, s.Type, s.Metadata.Name = "v1", "Secret", "Opaque", k.name
		return k.call(ctx, http.MethodPost, query, "application/json", s, &secret{})
	}
	s.Metadata.Version = have.Metadata.Version
	return k.call(ctx, http.MethodPatch, "/"+k.name+query, "application/merge-patch+json", s, &secret{})
}
