package libvirt

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"converge.dev/converge/internal/cidata"
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
)

// seedCase is the case of the laws.
func seedCase(pool providertest.Made) providertest.Case {
	return providertest.Case{
		Kind: "libvirt.cloudinit", Name: "web", Needs: []providertest.Made{pool},
		Want: schema.Object{
			"pool": pool.Name, "instance_id": "i-1", "hostname": "web.example", "user_data": "#cloud-config\npassword: a<b>&'\"漢\n",
			"network_config": "version: 2\n", "vendor_data": "#cloud-config\n",
		},
		Update:  schema.Object{"pool": pool.Name, "instance_id": "i-2", "user_data": strings.Repeat("#", 64<<10)},
		Invalid: schema.Object{"pool": pool.Name, "instance_id": "i-1", "user_data": strings.Repeat("#", 256<<10)},
	}
}

// lacking leaves kinds out, which the far side of a suite of laws does not have.
func lacking(all schema.Kinds, names ...string) (schema.Kinds, func(p *providers.Provider) *providers.Provider) {
	all = maps.Clone(all)
	for _, name := range names {
		delete(all, name)
	}
	return all, func(p *providers.Provider) *providers.Provider {
		p.Kinds = slices.DeleteFunc(p.Kinds, func(k providers.Served) bool { return slices.Contains(names, k.Name) })
		return p
	}
}

// TestSeedLaws checks the laws on the fake.
func TestSeedLaws(t *testing.T) {
	s, err := kinds.New()
	if err != nil {
		t.Fatal(err)
	}
	all, served := lacking(s.Kinds(), "libvirt.dhcp_host", "libvirt.domain", "libvirt.network", "libvirt.volume")
	pool := providertest.Made{Kind: "libvirt.pool", Name: "p", Spec: schema.Object{"path": "/srv/p"}}
	providertest.Run(t, providertest.Suite{
		Kinds: all,
		Cases: []providertest.Case{seedCase(pool), {
			Kind: pool.Kind, Name: "q", Want: pool.Spec, Update: schema.Object{"path": "/srv/p", "autostart": false},
			Other: func(i int) providertest.Made {
				return providertest.Made{Name: fmt.Sprintf("q-%d", i), Spec: schema.Object{"path": fmt.Sprintf("/srv/q-%d", i)}}
			},
		}},
		Open: func(t *testing.T) providertest.World {
			f := newFake()
			return providertest.World{Provider: served(f.open(t)), Dump: func() string {
				f.mu.Lock()
				defer f.mu.Unlock()
				return fmt.Sprint(f.files, f.data)
			}}
		},
	})
}

// newSeedFake has a pool.
func newSeedFake() *fake {
	f := newFake()
	const pool = "<pool type='dir'><name>p</name><target><path>/srv/p</path></target></pool>"
	f.put(poolObject, "p", pool, pool)
	return f
}

const seedID = "p/web.cidata.iso"

func seedSpec(id, data string) schema.Object {
	return schema.Object{"pool": "p", "instance_id": id, "user_data": data}
}

func createSeed(t *testing.T, p *providers.Provider, want schema.Object) error {
	t.Helper()
	c := calling("libvirt.cloudinit", seedID)
	c.Want = want
	return served(t, p, "libvirt.cloudinit").Kind.Create(t.Context(), c)
}

func deleteSeed(t *testing.T, p *providers.Provider) error {
	t.Helper()
	return served(t, p, "libvirt.cloudinit").Kind.Delete(t.Context(), calling("libvirt.cloudinit", seedID))
}

// lookSeed returns the seed; nil when there is none.
func lookSeed(t *testing.T, p *providers.Provider) *providers.Thing {
	t.Helper()
	things, err := served(t, p, "libvirt.cloudinit").Kind.Get(t.Context(), []string{seedID})
	if err != nil {
		t.Fatal(err)
	}
	if len(things) == 0 {
		return nil
	}
	return &things[0]
}

// has checks which seed is there, and that it is whole; without an id, that none is.
func has(t *testing.T, p *providers.Provider, id, data string) {
	t.Helper()
	switch th := lookSeed(t, p); {
	case th == nil && id != "":
		t.Errorf("there is no seed, want %s", id)
	case th == nil:
	case id == "":
		t.Errorf("there is the seed %v", th.Spec)
	case th.Phase != providers.Ready || th.Spec["instance_id"] != id || th.Spec["user_data"] != data:
		t.Errorf("the seed is %s %v (%s), want %s with %q", th.Phase, th.Spec, th.Detail, id, data)
	}
}

func mustDo(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A seed is no volume, and a volume cannot be made to be one. What only has the ending or only the size is a volume.
func TestSeedIsNoVolume(t *testing.T) {
	f := newSeedFake()
	p := f.open(t)
	mustDo(t, createSeed(t, p, seedSpec("i-1", "#cloud-config")))
	volume := func(name string, bytes int) {
		f.files["p"][name] = fmt.Sprintf("<volume type='file'><name>%s</name><capacity>%d</capacity><target><path>/srv/p/%s</path><format type='raw'/></target></volume>", name, bytes, name)
	}
	volume("big.cidata.iso", 512<<10)
	volume("same.iso", cidata.Size)
	for kind, want := range map[string][]string{"libvirt.cloudinit": {seedID}, "libvirt.volume": {"p/big.cidata.iso", "p/same.iso"}} {
		things, err := providers.Collect(served(t, p, kind).Kind.List(t.Context()))
		var ids []string
		for _, th := range things {
			ids = append(ids, th.ID)
		}
		if err != nil || !slices.Equal(ids, want) {
			t.Errorf("%s: the list has %q, want %q (%v)", kind, ids, want, err)
		}
	}
	c := calling("libvirt.volume", "p/other.cidata.iso")
	c.Want = schema.Object{"pool": "p", "capacity": int64(4096), "format": "raw"}
	expect(t, served(t, p, "libvirt.volume").Kind.Create(t.Context(), c), providers.Invalid, false, "of the kind libvirt.cloudinit")
	volume("small.cidata.iso", 4096)
	expect(t, updated(t, p, "libvirt.volume", "p/small.cidata.iso", schema.Object{"capacity": int64(cidata.Size)}), providers.Invalid, false, "of the kind libvirt.cloudinit")
	mustDo(t, served(t, p, "libvirt.volume").Kind.Delete(t.Context(), calling("libvirt.volume", seedID)))
	has(t, p, "i-1", "#cloud-config")
	volume("web.cidata.iso", 4096)
	expect(t, createSeed(t, p, seedSpec("i-1", "")), providers.Exists, false, "is not a seed")
}

// What is not a seed as it was written is neither overwritten nor deleted.
func TestSeedOfOthers(t *testing.T) {
	for name, change := range map[string]func(image []byte) []byte{
		"another file":   func([]byte) []byte { return bytes.Repeat([]byte("x"), cidata.Size) },
		"one byte":       func(image []byte) []byte { image[cidata.Size-1] = 1; return image },
		"no descriptor":  func(image []byte) []byte { clear(image[cidata.Descriptor:cidata.DescriptorEnd]); return image },
		"another mark":   func(image []byte) []byte { image[writingAt] = 'x'; return image },
		"a boot sector":  func(image []byte) []byte { image[0], image[writingAt] = 1, replacing; return image },
		"short":          func(image []byte) []byte { return image[:1000] },
		"other metadata": func([]byte) []byte { image, _ := cidata.Seed{MetaData: "instance-id: i-1\n"}.Image(); return image },
	} {
		t.Run(name, func(t *testing.T) {
			f := newSeedFake()
			p := f.open(t)
			mustDo(t, createSeed(t, p, seedSpec("i-1", "#cloud-config")))
			theirs := change(f.data[seedID])
			f.data[seedID] = slices.Clone(theirs)
			if th := lookSeed(t, p); th == nil || th.Phase != providers.Failed || th.Detail != string(strange) || th.Spec["user_data"] != nil {
				t.Errorf("it is observed as %v", th)
			}
			expect(t, createSeed(t, p, seedSpec("i-2", "")), providers.Exists, false, "exists already")
			expect(t, updated(t, p, "libvirt.cloudinit", seedID, seedSpec("i-2", "")), providers.Invalid, false, "is not overwritten")
			expect(t, deleteSeed(t, p), providers.Invalid, false, "is not deleted")
			if !bytes.Equal(f.data[seedID], theirs) {
				t.Error("it changed")
			}
		})
	}
}

// A domain keeps its seed.
func TestSeedInUse(t *testing.T) {
	f := newSeedFake()
	p := f.open(t)
	mustDo(t, createSeed(t, p, seedSpec("i-1", "")))
	for _, source := range []string{"<disk type='volume' device='cdrom'><source pool='p' volume='web.cidata.iso'/>", "<disk type='file' device='cdrom'><source file='/srv/p/web.cidata.iso'/>"} {
		f.guests = []definition{{name: "vm", stored: "<domain><devices>" + source + "<target dev='sda'/></disk></devices></domain>"}}
		err := deleteSeed(t, p)
		expect(t, err, providers.Invalid, false, "disk sda of domain vm")
		if of := (*providers.Error)(nil); !errors.As(err, &of) || of.Code != "InUse" { // all that is shown of a call with secrets
			t.Errorf("the code of %v is not InUse", err)
		}
		has(t, p, "i-1", "")
	}
	mustDo(t, updated(t, p, "libvirt.cloudinit", seedID, seedSpec("i-2", "")))
	f.guests = nil
	mustDo(t, deleteSeed(t, p))
	has(t, p, "", "")
}

// TestSeedCut ends a create and an update at each of their calls, after each part of what it writes: by an answer, by the loss of the
// connection, or without anybody knowing. There is never a seed that nobody wanted. What was refused is as before, and anything else is done
// when it is repeated.
func TestSeedCut(t *testing.T) {
	parts := []int{0, 1, 1000, writingAt, cidata.Descriptor, cidata.Descriptor + 10, cidata.DescriptorEnd, 25 << 11, 26<<11 + 5, cidata.Size - 1, cidata.Size}
	before, after := strings.Repeat("before ", 3000), strings.Repeat("after ", 3000)
	for _, verb := range []string{"create", "update"} {
		for n := range 4 {
			for _, cut := range parts {
				for _, end := range []string{"refused", "lost", "silent"} {
					t.Run(fmt.Sprintf("%s %d %d %s", verb, n, cut, end), func(t *testing.T) {
						f := newSeedFake()
						p := f.open(t)
						id, data := "", ""
						if verb == "update" {
							id, data = "i-1", before
							mustDo(t, createSeed(t, p, seedSpec(id, data)))
						}
						act := func() error {
							if verb == "update" {
								return updated(t, p, "libvirt.cloudinit", seedID, seedSpec("i-2", after))
							}
							return createSeed(t, p, seedSpec("i-2", after))
						}
						calls, struck, last := 0, false, n == map[string]int{"create": 3, "update": 2}[verb]
						f.fail = func(string) error {
							calls++
							f.effect, f.cut = false, -1
							if calls != n+1 {
								return nil
							}
							struck, f.effect, f.cut = true, verb == "update" || n > 0 || end != "refused", cut
							return map[string]error{"refused": refusal("no space left on device"), "lost": &lost{err: errors.New("the connection is lost")}}[end]
						}
						err := act()
						f.fail, f.cut, f.effect = func(string) error { return nil }, -1, false
						th := lookSeed(t, p)
						if th != nil && th.Phase == providers.Ready && th.Spec["instance_id"] != "i-2" && th.Spec["instance_id"] != id {
							t.Errorf("there is the seed %v", th.Spec)
						}
						switch {
						case err == nil && last && struck && cut == 0: // nobody checks the effect of the last call, but the next look shows it
							if th != nil && th.Phase == providers.Ready {
								t.Errorf("it is taken to be whole: %v", th.Spec)
							}
						case err == nil:
							has(t, p, "i-2", after)
							return
						case providers.ClassOf(err) != providers.Unknown:
							has(t, p, id, data)
						}
						if made := verb == "update" || n > 0; made && err != nil && end == "refused" && providers.ClassOf(err) == providers.Unknown {
							t.Errorf("it was not taken back: %v", err)
						}
						if text := fmt.Sprint(err); strings.Contains(text, "after ") || strings.Contains(text, "before ") {
							t.Errorf("the error shows the user data: %v", err)
						}
						if th != nil && th.Spec["instance_id"] == "i-2" {
							return // only its answer was lost
						}
						mustDo(t, act())
						has(t, p, "i-2", after)
					})
				}
			}
		}
	}
}

// TestSeedListedEarly: a seed that is listed before it is allocated, or after it was deleted, is no reason not to know the others.
func TestSeedListedEarly(t *testing.T) {
	for _, c := range []struct {
		says  error
		times int
		sees  bool
	}{
		{refusal("volume 'web.cidata.iso' is still being allocated."), 1, true},
		{&answer{class: providers.Absent, err: errors.New("no storage vol with matching name")}, math.MaxInt, false},
	} {
		f := newSeedFake()
		p := f.open(t)
		mustDo(t, createSeed(t, p, seedSpec("i-1", "")))
		f.unread = func() error {
			if c.times == 0 {
				return nil
			}
			c.times--
			return c.says
		}
		if th := lookSeed(t, p); (th != nil) != c.sees {
			t.Errorf("after %q, the look shows %v", c.says, th)
		}
	}
}

// The version of a seed tells nothing of its secrets.
func TestSeedVersion(t *testing.T) {
	versions := map[string]bool{}
	for _, data := range []string{"", "password: 1234", "password: 1235"} {
		p := newSeedFake().open(t)
		mustDo(t, createSeed(t, p, seedSpec("i-1", data)))
		versions[lookSeed(t, p).Version] = true
	}
	if len(versions) != 1 {
		t.Errorf("the versions of seeds that differ in secrets alone are %v", versions)
	}
}

// TestSeedOverwritten: what another client writes at the same time is not undone with the rest, and the error does not say that nothing
// was done.
func TestSeedOverwritten(t *testing.T) {
	for _, verb := range []string{"create", "update"} {
		f := newSeedFake()
		p := f.open(t)
		if verb == "update" {
			mustDo(t, createSeed(t, p, seedSpec("i-1", "before")))
		}
		uploads := 0
		f.fail = func(call string) error {
			if strings.HasPrefix(call, "upload ") {
				if uploads++; uploads == 2 {
					copy(f.data[seedID], bytes.Repeat([]byte{'x'}, cidata.Size))
				}
			}
			return nil
		}
		act := createSeed
		if verb == "update" {
			act = func(t *testing.T, p *providers.Provider, want schema.Object) error {
				return updated(t, p, "libvirt.cloudinit", seedID, want)
			}
		}
		expect(t, act(t, p, seedSpec("i-2", "after")), providers.Unknown, true, "another client has written into volume p/web.cidata.iso")
		if uploads != 2 || f.data[seedID][0] != 'x' {
			t.Errorf("%s: after %d uploads the volume begins with %q", verb, uploads, f.data[seedID][:1])
		}
	}
}
