package host_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"converge.dev/converge/internal/kerneltest"
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/host"
	"converge.dev/converge/providers/sysfs"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
)

func TestLaws(t *testing.T) {
	schemas, err := kinds.New()
	if err != nil {
		t.Fatal(err)
	}
	sizes := []string{"4kB", "16kB", "32kB", "64kB", "128kB", "512kB", "1024kB", "16384kB", "524288kB", "1048576kB", "2097152kB"}
	pools := map[string]int{"node1-2048kB": 80}
	for _, s := range sizes {
		pools["node0-"+s] = 80
	}
	kinds := maps.Clone(schemas.Kinds())
	delete(kinds, "host.link") // which this kernel does not serve: it has no network
	providertest.Run(t, providertest.Suite{
		Kinds: kinds,
		Cases: []providertest.Case{{Kind: "host.facts", Name: "node", Want: schema.Object{}}, {
			Kind: "host.hugepages", Name: "node1-2048kB",
			Want: schema.Object{"count": int64(64)}, Update: schema.Object{"count": int64(32)}, Invalid: schema.Object{"count": int64(100000)},
			Other: func(i int) providertest.Made {
				if i >= len(sizes) {
					return providertest.Made{Kind: "host.hugepages", Name: "node7-2048kB"}
				}
				return providertest.Made{Kind: "host.hugepages", Name: "node0-" + sizes[i], Spec: schema.Object{"count": int64(7)}}
			},
		}},
		Open: func(t *testing.T) providertest.World {
			k := kerneltest.New(t, kerneltest.Machine{Pools: pools})
			return providertest.World{Provider: host.New("gpu-01", k.Kernel(), nil), Dump: k.Dump}
		},
	})
}

func kernel(t *testing.T) (*kerneltest.Kernel, providers.Kind) {
	t.Helper()
	k := kerneltest.New(t, kerneltest.Machine{Pools: map[string]int{"node0-2048kB": 80, "node1-2048kB": 80}})
	return k, host.New("gpu-01", k.Kernel(), nil).Kinds[0].Kind
}

func call(name string, count int64) providers.Call {
	return providers.Call{Ref: schema.Ref{Scope: "gpu-01", Kind: "host.hugepages", Name: name}, ID: name, Want: schema.Object{"count": count}}
}

// The kernel gives fewer pages than requested and reports success: none are kept then.
func TestTooLittleMemory(t *testing.T) {
	k, pages := kernel(t)
	before := k.Dump()
	err := pages.Create(t.Context(), call("node0-2048kB", 100000))
	if providers.ClassOf(err) != providers.Invalid || !strings.Contains(err.Error(), "could provide 80 pages of the 100000 requested") {
		t.Errorf("the error is %v, of class %s", err, providers.ClassOf(err))
	}
	if after := k.Dump(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// A signal ends an allocation early, and the kernel reports success: the rest is requested again.
func TestSignalDuringAllocation(t *testing.T) {
	k, pages := kernel(t)
	k.Signal(3)
	if err := pages.Create(t.Context(), call("node0-2048kB", 40)); err != nil {
		t.Error(err)
	}
	k.Signal(3)
	if err := pages.Update(t.Context(), call("node0-2048kB", 42)); err != nil {
		t.Error(err)
	}
	if things, err := pages.Get(t.Context(), []string{"node0-2048kB"}); err != nil || len(things) != 1 || !things[0].Spec.Equal(schema.Object{"count": int64(42)}) {
		t.Errorf("the pool is %+v (%v)", things, err)
	}
}

// Pages in use are not taken away, neither all nor a part of them; others are.
func TestPagesInUse(t *testing.T) {
	k, pages := kernel(t)
	if err := pages.Create(t.Context(), call("node0-2048kB", 40)); err != nil {
		t.Fatal(err)
	}
	k.Use("node0-2048kB", 30)
	for what, err := range map[string]error{"an update": pages.Update(t.Context(), call("node0-2048kB", 20)), "a delete": pages.Delete(t.Context(), call("node0-2048kB", 0))} {
		if providers.ClassOf(err) != providers.Busy || !strings.Contains(err.Error(), "30 of its 40 pages are in use") {
			t.Errorf("%s gave %v, of class %s", what, err, providers.ClassOf(err))
		}
	}
	if err := pages.Update(t.Context(), call("node0-2048kB", 30)); err != nil {
		t.Error(err)
	}
}

// Pages that a program has reserved and not touched yet are as good as in use, and surplus pages are none of the pool.
func TestReservedAndSurplus(t *testing.T) {
	k, pools := kernel(t)
	const pool = "devices/system/node/node0/hugepages/hugepages-2048kB/"
	if err := pools.Create(t.Context(), call("node0-2048kB", 40)); err != nil {
		t.Fatal(err)
	}
	k.Attribute("kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "30")
	if err := pools.Delete(t.Context(), call("node0-2048kB", 0)); providers.ClassOf(err) != providers.Busy || !strings.Contains(err.Error(), "30 pages are reserved") {
		t.Errorf("a delete of reserved pages gave %v", err)
	}
	k.Attribute(pool+"surplus_hugepages", "5")
	k.Attribute(pool+"nr_hugepages", "45")
	things, err := pools.Get(t.Context(), []string{"node0-2048kB"})
	if err != nil || len(things) != 1 || !things[0].Spec.Equal(schema.Object{"count": int64(40)}) {
		t.Errorf("with 5 surplus pages the pool is %+v (%v)", things, err)
	}
	k.Attribute("devices/system/node/node0/meminfo", "Node 0 MemTotal:         524288 kB\nNode 0 MemFree: 1 kB")
	if err := pools.Update(t.Context(), call("node0-2048kB", 257)); providers.ClassOf(err) != providers.Invalid || !strings.Contains(err.Error(), "more than node0 has memory for (512 MiB)") {
		t.Errorf("more pages than memory gave %v", err)
	}
}

// A kernel without NUMA has its pools elsewhere, and they are those of node 0.
func TestNoNUMA(t *testing.T) {
	sys := filepath.Join(t.TempDir(), "sys")
	for name, text := range map[string]string{"nr_hugepages": "12\n", "free_hugepages": "5\n"} {
		path := filepath.Join(sys, "kernel/mm/hugepages/hugepages-2048kB", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.MkdirAll(filepath.Join(sys, "bus"), 0o755), os.MkdirAll(filepath.Join(sys, "devices"), 0o755)); err != nil {
		t.Fatal(err)
	}
	p, err := host.Config{Config: sysfs.Config(sys)}.Open(t.Context(), providers.Opening{Scope: "gpu-01"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	things, err := providers.Collect(p.Kinds[0].Kind.List(t.Context()))
	if err != nil || len(things) != 1 || things[0].ID != "node0-2048kB" || !things[0].Spec.Equal(schema.Object{"count": int64(12)}) || !things[0].Status.Equal(schema.Object{"free": int64(5)}) {
		t.Errorf("the pools are %+v (%v)", things, err)
	}
}
