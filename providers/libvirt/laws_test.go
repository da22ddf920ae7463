//go:build linux && cgo && libvirt_dlopen

package libvirt

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"converge.dev/converge/internal/libvirttest"
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
)

// A far is the libvirt that a test runs on.
type far struct {
	uri  string
	host *libvirttest.Host // nil: the test driver, whose state is that of one connection
	dir  string            // for pools
}

// onBoth runs a test on libvirt's test driver and on a real libvirtd.
func onBoth(t *testing.T, test func(t *testing.T, f far)) {
	t.Run("driver", func(t *testing.T) { test(t, driver(t)) })
	t.Run("real", func(t *testing.T) { test(t, realFar(libvirttest.Start(t))) })
}

// driver is the test driver with the node of testdata/node.xml.
func driver(t *testing.T) far {
	t.Helper()
	libvirttest.Library(t)
	node, err := filepath.Abs("testdata/node.xml")
	if err != nil {
		t.Fatal(err)
	}
	return far{uri: "test://" + node, dir: "/srv"}
}

func realFar(h *libvirttest.Host) far { return far{uri: h.URI(), host: h, dir: h.Dir + "/srv"} }

// images is the directory of images that may be uploaded.
func (f far) images(t *testing.T) string {
	if f.host == nil {
		return imageDir(t, t.TempDir())
	}
	return imageDir(t, f.host.Dir)
}

// opened connects a provider, and returns the connection that it uses.
func (f far) opened(t *testing.T) (*providers.Provider, conn) {
	t.Helper()
	var c conn
	p, err := open(t.Context(), Options{URI: f.uri, Node: "gpu-01", Site: providertest.Site, Images: f.images(t), Poll: 100 * time.Millisecond}, func(uri string, event func(object, string, bool)) (conn, error) {
		var err error
		c, err = dial(uri, event)
		return c, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return p, c
}

// clear deletes what tests made.
func (f far) clear(t *testing.T) {
	t.Helper()
	if f.host != nil {
		f.host.Clear(t)
	}
}

// dump returns all that libvirt has, as text.
func dump(t *testing.T, c conn) string {
	t.Helper()
	var out strings.Builder
	for _, o := range []object{networkObject, poolObject, domainObject} {
		ds, err := c.read(t.Context(), o, nil)
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(ds, func(a, b definition) int { return strings.Compare(a.name, b.name) })
		for _, d := range ds {
			fmt.Fprintf(&out, "%s autostart=%t transient=%t\nstored:\n%srunning:\n%s\n", d.name, d.autostart, d.transient, settled(d.stored), settled(d.running))
			if o != poolObject || d.running == "" {
				continue
			}
			xmls, err := c.volumes(t.Context(), d.name, nil)
			if err != nil {
				t.Fatal(err)
			}
			slices.Sort(xmls)
			for _, xml := range xmls {
				out.WriteString(settled(xml))
			}
		}
	}
	return out.String()
}

// settled leaves out of a definition what changes by itself: the space of a pool, times, and the format of a seed, which libvirt
// notices some time after the upload.
func settled(xml string) string {
	var kept []string
	for line := range strings.Lines(xml) {
		at := strings.TrimSpace(line)
		if !slices.ContainsFunc([]string{"<format", "<available", "<allocation", "<atime", "<mtime", "<ctime", "<physical"}, func(p string) bool { return strings.HasPrefix(at, p) }) &&
			!(strings.HasPrefix(at, "<capacity") && strings.Contains(xml, "<pool")) {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

func (f far) cases() []providertest.Case {
	pool := providertest.Made{Kind: "libvirt.pool", Name: "law-pool", Spec: schema.Object{"path": f.dir + "/law-pool"}}
	base := providertest.Made{Kind: "libvirt.volume", Name: "base.raw", Spec: schema.Object{"pool": pool.Name, "capacity": int64(4 << 20), "format": "raw"}}
	network := providertest.Made{Kind: "libvirt.network", Name: "law-net", Spec: schema.Object{
		"forward_mode": "none", "bridge": "vbr-law", "ips": []any{map[string]any{
			"address": "10.77.0.1/24", "dhcp_ranges": []any{map[string]any{"start": "10.77.0.100", "end": "10.77.0.199"}},
		}},
	}}
	ip := func(address, start, end string) []any {
		return []any{map[string]any{"address": address, "dhcp_ranges": []any{map[string]any{"start": start, "end": end}}}}
	}
	cases := []providertest.Case{
		{
			Kind: "libvirt.pool", Name: "vms",
			Want:   schema.Object{"path": f.dir + "/vms & <more>"},
			Update: schema.Object{"path": f.dir + "/vms & <more>", "autostart": false},
			Other: func(i int) providertest.Made {
				return providertest.Made{Name: fmt.Sprintf("pool-%d", i), Spec: schema.Object{"path": fmt.Sprintf("%s/pool-%d", f.dir, i)}}
			},
		},
		{
			Kind: "libvirt.volume", Name: "web.qcow2", Needs: []providertest.Made{pool, base},
			Want:    schema.Object{"pool": pool.Name, "capacity": int64(8 << 20), "format": "qcow2", "backing": pool.Name + "/base.raw"},
			Invalid: schema.Object{"pool": pool.Name, "capacity": int64(4 << 20), "format": "raw", "backing": pool.Name + "/base.raw"},
		},
		{
			Kind: "libvirt.volume", Name: "data.raw", Needs: []providertest.Made{pool},
			Want: schema.Object{"pool": pool.Name, "capacity": int64(1<<20 + 512), "format": "raw"},
		},
		{
			Kind: "libvirt.network", Name: "tenant-a",
			Want: schema.Object{
				"forward_mode": "nat", "bridge": "vbr-a", "domain": "a.example", "mtu": int64(1400), "mac": "52:54:00:00:00:2a",
				"ips": ip("10.50.0.1/24", "10.50.0.10", "10.50.0.99"),
			},
			Update: schema.Object{
				"forward_mode": "route", "bridge": "vbr-a", "mac": "52:54:00:00:00:2a", "autostart": false,
				"ips": append(ip("10.51.0.1/16", "10.51.1.0", "10.51.1.99"), map[string]any{"address": "fd00:51::1/64"}),
			},
			Invalid: schema.Object{"forward_mode": "nat", "ips": ip("10.50.0.1/24", "10.99.0.10", "10.99.0.99")},
			Other: func(i int) providertest.Made {
				return providertest.Made{Name: fmt.Sprintf("net-%d", i), Spec: schema.Object{
					"forward_mode": "nat", "ips": ip(fmt.Sprintf("10.60.%d.1/24", i), fmt.Sprintf("10.60.%d.10", i), fmt.Sprintf("10.60.%d.99", i)),
				}}
			},
		},
		{
			Kind: "libvirt.network", Name: "tenant-ovs",
			Want: schema.Object{
				"forward_mode": "bridge", "bridge": "br-int", "virtualport": "openvswitch",
				"port_groups": []any{
					map[string]any{"name": "web", "default": true, "vlans": []any{int64(42)}},
					map[string]any{"name": "trunk", "default": false, "vlans": []any{int64(7), int64(5)}},
				},
			},
			Update: schema.Object{
				"forward_mode": "bridge", "bridge": "br-int", "virtualport": "openvswitch",
				"port_groups": []any{map[string]any{"name": "web", "default": false, "vlans": []any{int64(43)}}},
			},
		},
		{
			Kind: "libvirt.dhcp_host", Name: "web", Needs: []providertest.Made{network},
			Want:    schema.Object{"network": network.Name, "mac": "52:54:00:00:01:01", "ip": "10.77.0.11"},
			Update:  schema.Object{"network": network.Name, "mac": "52:54:00:00:01:02", "ip": "10.77.0.12"},
			Invalid: schema.Object{"network": network.Name, "mac": "52:54:00:00:01:01", "ip": "10.99.0.11"},
			Other: func(i int) providertest.Made {
				return providertest.Made{Name: fmt.Sprintf("guest-%d", i), Spec: schema.Object{
					"network": network.Name, "mac": fmt.Sprintf("52:54:00:00:02:%02x", i), "ip": fmt.Sprintf("10.77.0.%d", 20+i),
				}}
			},
		},
	}
	if f.host != nil { // the test driver has neither upload nor resize
		cases = append(cases, seedCase(pool), cloneCase(pool, base), imageCase(pool))
	}
	cases = append(cases, f.machines(pool, network)...)
	if f.host == nil { // the test driver never runs what a network was changed to
		for _, c := range cases {
			if c.Kind == "libvirt.network" {
				c.Want["active"], c.Update["active"] = false, false
			}
		}
		for i := range cases {
			if cases[i].Kind == "libvirt.dhcp_host" {
				stopped := network
				stopped.Spec = maps.Clone(network.Spec)
				stopped.Spec["active"] = false
				cases[i].Needs = []providertest.Made{stopped}
			}
		}
	} else { // and has no resize
		cases[1].Update = schema.Object{"pool": pool.Name, "capacity": int64(16 << 20), "format": "qcow2", "backing": pool.Name + "/base.raw"}
		cases[2].Update = schema.Object{"pool": pool.Name, "capacity": int64(2 << 20), "format": "raw"}
	}
	return cases
}

func TestLaws(t *testing.T) {
	schemas, err := kinds.New()
	if err != nil {
		t.Fatal(err)
	}
	onBoth(t, func(t *testing.T, f far) {
		all, served := schemas.Kinds(), func(p *providers.Provider) *providers.Provider { return p }
		if f.host == nil {
			all, served = lacking(all, "libvirt.cloudinit")
		}
		open := func(t *testing.T) providertest.World {
			f.clear(t)
			p, c := f.opened(t)
			return providertest.World{Provider: served(p), Dump: func() string { return dump(t, c) }}
		}
		cases := f.cases()
		for i := range cases {
			if cases[i].Kind == "libvirt.domain" { // some of its fields take another call
				cases[i].Open = func(t *testing.T) providertest.World {
					w := open(t)
					w.Advance = func() {}
					return w
				}
			}
		}
		providertest.Run(t, providertest.Suite{Kinds: all, Cases: cases, Direct: f.host != nil, Open: open})
	})
}
