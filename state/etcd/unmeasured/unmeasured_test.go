package unmeasured_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	_ "converge.dev/converge/state/etcd"
)

// Independent packages are initialized in the order of their paths, and etcd's have to come after this one.
func TestNothingIsRegistered(t *testing.T) {
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if name := f.GetName(); len(name) > 4 && name[:5] == "etcd_" {
			t.Errorf("%s is registered", name)
		}
	}
}
