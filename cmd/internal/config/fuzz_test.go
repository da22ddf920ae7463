package config_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"converge.dev/converge/cmd/internal/config"
	"converge.dev/converge/e2e/hostile/fuzzed"
	"converge.dev/converge/internal/budget"
)

// FuzzRead reads configurations. One that is accepted contains nothing unknown, and reads the same when it is written again.
func FuzzRead(tf *testing.F) {
	f := fuzzed.New(tf)
	for _, s := range []string{
		"", " ", "trust: {documents: [{name: a, key: \"ed25519:iojj3XQJ8ZX9UtstPLpdcspnCb8dlBIb83SIAbQPb1w=\"}], require: true}\n", "site: fra1\n", "fake: {world: world.json}\n", "carbide:\n  address: a:1\n  tls: {ca: tls/ca.crt, cert: c, key: k, mode: mutual}\n  parallel: 3\n",
		"etcd: {endpoints: [https://a:2379], ca: /x, cert: y, key: z}\n", "nodes: {gpu-01: {ovs: unix:/run/x.sock}}\n", "nodes: {a: &a {ovs: x}, b: *a}\n",
		"a: &a [*a]\n", "a0: &a0 [x,x,x,x,x,x,x,x,x]\na1: &a1 [*a0,*a0,*a0,*a0,*a0,*a0,*a0,*a0]\na2: [*a1,*a1,*a1,*a1,*a1,*a1,*a1,*a1]\n", "nodes: &n {<<: *n}\n",
		"<<: {site: x}\n", "site: [a]\n", "site: {}\n", "site: ~\n", "site: !!binary aGk=\n", "site: !!int 5\n", "? {a: b}\n: c\n", "- a\n", "site: a\n---\nsite: b\n",
		"site: a\nsite: b\n", "\ttab\n", "nodes: {\"\\u0000\": {}}\n", "nodes: {? [a]: {ovs: x}}\n", "carbide: {parallel: 1e999}\n", "carbide: {parallel: 0x10}\n", "\xff\xfe", strings.Repeat("[", 2000),
		"nodes: {1: {ovs: x}}\n", "carbide: &c {tls: *c}\n",
	} {
		f.Add([]byte(s))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > budget.Largest {
			return
		}
		path := filepath.Join(dir, config.Name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		var c *config.File
		var err error
		budget.Spend(t, func() { c, err = config.Read(path) })
		if err != nil {
			if c != nil || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
				t.Errorf("%q is refused with %v and gives %+v", b, err, c)
			}
			return
		}
		known := yaml.NewDecoder(bytes.NewReader(b))
		known.KnownFields(true)
		if err := known.Decode(&config.File{}); err != nil && !errors.Is(err, io.EOF) {
			t.Errorf("%q is taken, and %v", b, err)
		}
		if c.Path != path {
			t.Errorf("the path is %q", c.Path)
		}
		text, err := yaml.Marshal(c)
		if err != nil {
			t.Fatalf("%q reads as what cannot be written: %v", b, err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		again, err := config.Read(path)
		if err != nil {
			t.Fatalf("%q is written as %q, which does not read: %v", b, text, err)
		}
		if more, err := yaml.Marshal(again); err != nil || !reflect.DeepEqual(text, more) {
			t.Errorf("%q is written as %q and then as %q", b, text, more)
		}
	})
}
