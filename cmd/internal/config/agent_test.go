package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"converge.dev/converge/cmd/internal/config"
)

// The file of an agent is read with its paths beside it, and what is wrong in it is named.
func TestReadAgent(t *testing.T) {
	read := func(text string) (*config.Agent, string, error) {
		path := filepath.Join(t.TempDir(), config.AgentName)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		a, err := config.ReadAgent(path)
		return a, filepath.Dir(path), err
	}
	a, dir, err := read("servers: ['site.example:7443']\nguard: undo\nprobes: ['tcp:192.0.2.1:53', 'tcp:[2001:db8::1]:179']\n")
	if err != nil || a.Dir != filepath.Join(dir, "identity") || a.Guard != filepath.Join(dir, "undo") || len(a.Probes) != 2 {
		t.Errorf("%+v, %v", a, err)
	}
	const servers = "servers: ['site.example:7443']\n"
	for text, want := range map[string]string{
		"":                          "servers is missing",
		"servers: [site.example]\n": `"site.example" is no HOST:PORT`,
		servers + "probe: []\n":     "probe",
		servers + "guard: g\nfake: {world: w.json}\n":                                       "fake.server",
		servers + "probes: ['tcp:192.0.2.1:53']\n":                                          "the node has no guard",
		servers + "guard: g\nprobes: ['tcp:site.example:53']\n":                             "needs no name to be resolved",
		servers + "guard: g\nprobes: ['udp:192.0.2.1:53']\n":                                "tcp:ADDRESS:PORT",
		servers + "guard: g\nprobes: [" + strings.Repeat("'tcp:192.0.2.1:53',", 17) + "]\n": "at most 16",
	} {
		if _, _, err := read(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
