package carbide_test

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide"
	"converge.dev/converge/schema"
)

// The files of a configuration are looked for in its folder, and opening does not change the configuration.
func TestConfigPaths(t *testing.T) {
	dir := t.TempDir()
	at := providers.Opening{Scope: schema.ScopeSite, Dir: dir, Logger: slog.New(slog.DiscardHandler)}
	for _, c := range []carbide.Config{
		{Address: "unix:carbide.sock", TLS: carbide.TLS{Mode: carbide.Server, CA: "ca.pem"}},
		{Address: "unix:carbide.sock", TLS: carbide.TLS{Cert: "c.pem", Key: filepath.Join(dir, "k.pem")}},
		{Address: "unix:carbide.sock", TLS: carbide.TLS{Mode: carbide.Off}},
	} {
		before := c
		if p, err := c.Open(t.Context(), at); err == nil {
			p.Close()
			t.Errorf("%+v opened", c)
		} else if !strings.Contains(err.Error(), dir+"/") {
			t.Errorf("%+v: the error is %v, want it to name a file in %s", c, err, dir)
		}
		if c != before {
			t.Errorf("the configuration has become %+v", c)
		}
	}
}
