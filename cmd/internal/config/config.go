// Package config reads converge.yaml: which site to use, where its store is, and how to reach its providers.
//
// Reading is strict. Unknown keys are refused with their line, because a misspelt name would otherwise silently
// mean another site or another store.
package config

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/files"
	"converge.dev/converge/internal/nearest"
	"converge.dev/converge/providers/all"
	"converge.dev/converge/providers/carbide"
	"converge.dev/converge/schema/signed"
	"converge.dev/converge/trust/certs"
)

// maxSize is the maximum size of the file.
const maxSize = 1 << 20

// Name is the default name of the file.
const Name = "converge.yaml"

// A File is the contents of converge.yaml. Paths are relative to its folder.
type File struct {
	Site       string  `yaml:"site"` // default name of the site
	Etcd       Etcd    `yaml:"etcd"` // the store; without endpoints it is embedded
	Secrets    Secrets `yaml:"secrets"`
	Policy     Policy  `yaml:"policy"`
	Trust      Trust   `yaml:"trust"`
	Server     Server  `yaml:"server"` // the site agent, through which nodes are reached that are not listed
	Events     *Events `yaml:"events"` // where the cloud is told what happens; nil: nowhere
	all.Config `yaml:",inline"`

	HTTPS *certs.Config `yaml:"https"` // the certificate of what converge serve serves by HTTP; nil: it is served without TLS

	Path string `yaml:"-"` // of the file; empty when there is none
}

// Server says where the site agent is: an address alone, or with the files for one that begins with https://.
type Server struct {
	Address string `yaml:"address"` // unix:PATH, or https://HOST:PORT: then it is the store, too
	CA      string `yaml:"ca"`      // PEM files
	Cert    string `yaml:"cert"`
	Key     string `yaml:"key"`
}

// UnmarshalYAML implements [yaml.Unmarshaler].
func (s *Server) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		return n.Decode(&s.Address)
	}
	type plain Server
	return n.Decode((*plain)(s))
}

// Etcd says where the cluster of the store is.
type Etcd struct {
	Endpoints []string `yaml:"endpoints"` // http://, https:// or unix:// URLs
	CA        string   `yaml:"ca"`        // PEM files
	Cert      string   `yaml:"cert"`
	Key       string   `yaml:"key"`

	AllowInsecure bool `yaml:"allow_insecure"` // no TLS to another machine
}

// Refused returns the first of the endpoints that is on another machine and reached without TLS; empty when there is none, or
// when that is allowed.
func (e Etcd) Refused(endpoints []string) string {
	if e.AllowInsecure {
		return ""
	}
	for _, endpoint := range endpoints {
		scheme, host, ok := strings.Cut(endpoint, "://")
		if !ok {
			scheme, host = "http", endpoint
		}
		if scheme == "https" || strings.HasPrefix(scheme, "unix") {
			continue
		}
		host, _, _ = strings.Cut(host, "/")
		if strings.Contains(host, "@") {
			continue // refused elsewhere for its user, without being repeated
		}
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(strings.Trim(host, "[]"), "2379")
		}
		if !carbide.Local(host) {
			return endpoint
		}
	}
	return ""
}

// Secrets says which places of secrets a document may name.
type Secrets struct {
	Dir string   `yaml:"dir"` // folder of the files that may be named; without it none may
	Env []string `yaml:"env"` // variables that may be named, with * for any text; by default all by files on the command line, none by documents from the store
}

// Trust says whose documents the site takes from the store and from the inbox.
type Trust struct {
	Documents []Signer `yaml:"documents"` // whose signatures count
	Require   bool     `yaml:"require"`   // other documents are not taken
}

// A Signer is somebody whose signature counts, with the public key, as text or in a file.
type Signer struct {
	Name string `yaml:"name"`
	Key  string `yaml:"key"`  // ed25519:BASE64
	File string `yaml:"file"` // PEM, as openssl pkey -pubout writes it
}

// Policy limits what a plan may do, whatever its document allows.
type Policy struct {
	MaxDestroy Limit  `yaml:"max_destroy,omitempty"` // by default the document's own limit holds
	Guard      Window `yaml:"guard,omitempty"`       // how long after a change its guard waits for its node to be reached anew; by default two minutes
}

// A Window is a duration within the limits of guards.
type Window time.Duration

// Limits of a window.
const (
	leastWindow = 30 * time.Second
	mostWindow  = 10 * time.Minute
)

// UnmarshalYAML refuses a window that is too short to reach a node anew, or longer than people would wait for one.
func (w *Window) UnmarshalYAML(n *yaml.Node) error {
	d, err := time.ParseDuration(n.Value)
	if err != nil || d < leastWindow || d > mostWindow {
		return fmt.Errorf("line %d: policy.guard: %q is no duration from %v to %v, such as 2m", n.Line, n.Value, leastWindow, mostWindow)
	}
	*w = Window(d)
	return nil
}

// A Limit is a number of things, 3, or a share of what is recorded, 10%.
type Limit string

// UnmarshalYAML refuses an invalid limit, which would otherwise be found only when it is needed.
func (l *Limit) UnmarshalYAML(n *yaml.Node) error {
	if _, err := plan.Budget(n.Value, 0); err != nil {
		return fmt.Errorf("line %d: policy.%w", n.Line, err)
	}
	*l = Limit(n.Value)
	return nil
}

// Dir returns the folder of the file, to which its paths are relative.
func (f *File) Dir() string { return filepath.Dir(f.Path) }

// Upwards finds a file of that name in a folder or the nearest one above it; the path is empty when there is none. It does
// not search above a folder where strangers may write, such as /tmp: what they put there must not decide how a site is reached.
func Upwards(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	above, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for {
		switch _, err := os.Stat(path); {
		case err == nil:
			return path, nil
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR):
			return "", err
		}
		below := above
		if above = filepath.Dir(below); above == below {
			return "", nil
		}
		if info, err := os.Stat(above); err == nil && info.Mode().Perm()&0o002 != 0 {
			return "", nil
		}
		path = filepath.Join(above, name)
		if wd, err := os.Getwd(); err == nil { // shorter to read
			if rel, err := filepath.Rel(wd, path); err == nil {
				path = rel
			}
		}
	}
}

// Read reads the file at path. An error names the file and, where it is known, the line.
func Read(path string) (*File, error) {
	data, err := files.Read(path, maxSize)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	f, err := parse[File](data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	f.Path = path
	for _, p := range []*string{&f.Etcd.CA, &f.Etcd.Cert, &f.Etcd.Key, &f.Secrets.Dir, &f.Server.CA, &f.Server.Cert, &f.Server.Key} {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(f.Dir(), *p)
		}
	}
	if f.Events != nil {
		if err := f.Events.check(f.Dir()); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	if err := f.Trust.check(); err != nil {
		return nil, fmt.Errorf("%s: trust: %w", path, err)
	}
	if f.HTTPS != nil {
		if err := f.HTTPS.Check("https"); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return f, nil
}

// check refuses what is wrong whatever the keys are.
func (t *Trust) check() error {
	for i, d := range t.Documents {
		switch {
		case d.Name == "" || strings.TrimSpace(d.Name) != d.Name:
			return fmt.Errorf("documents: entry %d has no name", i+1)
		case slices.ContainsFunc(t.Documents[:i], func(s Signer) bool { return s.Name == d.Name }):
			return fmt.Errorf("documents: duplicate name %s; when someone changes keys, give the new one another name", d.Name)
		case (d.Key == "") == (d.File == ""):
			return fmt.Errorf("documents: %s: want either key or file", d.Name)
		}
	}
	if t.Require && len(t.Documents) == 0 {
		return errors.New("require is set but documents is empty: no document could ever be accepted")
	}
	return nil
}

// Signers reads the keys of those whose signatures count. They are read only where a signature is checked: a missing key
// must not keep converge freeze from working.
func (f *File) Signers() (signed.Trust, error) {
	var signers signed.Trust
	for _, d := range f.Trust.Documents {
		var key ed25519.PublicKey
		var err error
		switch {
		case d.Key != "":
			key, err = signed.ParseName(d.Key)
		case filepath.IsAbs(d.File):
			key, err = signed.ReadPublicKey(d.File)
		default:
			key, err = signed.ReadPublicKey(filepath.Join(f.Dir(), d.File))
		}
		if err != nil {
			return nil, fmt.Errorf("%s: trust: documents: %s: %w", f.Path, d.Name, err)
		}
		signers = append(signers, signed.Signer{Name: d.Name, Key: key})
	}
	return signers, nil
}

// parse reads a configuration of one kind.
func parse[T any](data []byte) (*T, error) {
	var f T
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, errors.New(unquoted(strings.TrimPrefix(err.Error(), "yaml: "))[0])
	}
	if len(doc.Content) == 0 {
		return &f, nil
	}
	if err := known(doc.Content[0], reflect.TypeFor[T](), ""); err != nil {
		return nil, err
	}
	if err := doc.Decode(&f); err != nil {
		var wrong *yaml.TypeError
		if errors.As(err, &wrong) {
			return nil, errors.New(strings.Join(unquoted(wrong.Errors...), "; "))
		}
		return nil, errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	return &f, nil
}

// quoted matches how package yaml repeats what it found, which may be a secret in the wrong place. A single character
// belongs to the grammar: did not find expected ',' or '}'.
var quoted = regexp.MustCompile("(?s) (`.*`|'[^']{2,}')")

func unquoted(texts ...string) []string {
	clean := make([]string, len(texts))
	for i, t := range texts {
		clean[i] = quoted.ReplaceAllString(t, "")
	}
	return clean
}

// known refuses keys that the type does not have.
func known(n *yaml.Node, t reflect.Type, path string) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind == yaml.SequenceNode && t.Kind() == reflect.Slice {
		var errs []error
		for i, below := range n.Content {
			errs = append(errs, known(below, t.Elem(), fmt.Sprintf("%s%d.", path, i)))
		}
		return errors.Join(errs...)
	}
	if n.Kind != yaml.MappingNode {
		return nil // a wrong type is found when it is decoded
	}
	var fields map[string]reflect.Type
	switch t.Kind() {
	case reflect.Struct:
		fields = fieldsOf(t)
	case reflect.Map:
	default:
		return nil
	}
	var errs []error
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, below := n.Content[i], n.Content[i+1]
		child := t
		if fields == nil {
			child = t.Elem()
		} else if f, ok := fields[key.Value]; ok {
			child = f
		} else {
			names := make([]string, 0, len(fields))
			for name := range fields {
				names = append(names, name)
			}
			errs = append(errs, fmt.Errorf("line %d: unknown setting %q.%s", key.Line, path+key.Value, nearest.DidYouMean(key.Value, names)))
			continue
		}
		errs = append(errs, known(below, child, path+key.Value+"."))
	}
	return errors.Join(errs...)
}

// fieldsOf returns the keys of a struct, including those of inlined structs.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case options == "inline":
			for n, ft := range fieldsOf(f.Type) {
				fields[n] = ft
			}
		case name != "" && name != "-":
			fields[name] = f.Type
		}
	}
	return fields
}
