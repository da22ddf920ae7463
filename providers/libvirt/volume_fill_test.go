package libvirt

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
)

// cloneCase is a case of the laws.
func cloneCase(pool, source providertest.Made) providertest.Case {
	of, bytes := pool.Name+"/"+source.Name, source.Spec["capacity"].(int64)
	return providertest.Case{
		Kind: "libvirt.volume", Name: "copy.qcow2", Needs: []providertest.Made{pool, source},
		Want:    schema.Object{"pool": pool.Name, "capacity": 2 * bytes, "format": "qcow2", "clone": of},
		Update:  schema.Object{"pool": pool.Name, "capacity": 4 * bytes, "format": "qcow2", "clone": of},
		Invalid: schema.Object{"pool": pool.Name, "capacity": bytes / 2, "format": "qcow2", "clone": of},
	}
}

// TestVolumeLaws checks the laws on the fake.
func TestVolumeLaws(t *testing.T) {
	s, err := kinds.New()
	if err != nil {
		t.Fatal(err)
	}
	all, served := lacking(s.Kinds(), "libvirt.cloudinit", "libvirt.dhcp_host", "libvirt.domain", "libvirt.network")
	pool := providertest.Made{Kind: "libvirt.pool", Name: "p", Spec: schema.Object{"path": "/srv/p"}}
	source := providertest.Made{Kind: "libvirt.volume", Name: "base.raw", Spec: schema.Object{"pool": "p", "capacity": int64(4096), "format": "raw"}}
	providertest.Run(t, providertest.Suite{
		Kinds: all,
		Cases: []providertest.Case{cloneCase(pool, source), {
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

// newVolumeFake has two pools, and in one of them a volume with data.
func newVolumeFake(t *testing.T) (*fake, *providers.Provider) {
	f := newFake()
	for _, name := range []string{"p", "q"} {
		xml := "<pool type='dir'><name>" + name + "</name><target><path>/srv/" + name + "</path></target></pool>"
		f.put(poolObject, name, xml, xml)
	}
	p := f.open(t)
	mustDo(t, createVolume(t, p, "q/base", schema.Object{"pool": "q", "capacity": int64(4096), "format": "raw"}))
	copy(f.data["q/base"], "contents")
	return f, p
}

func createVolume(t *testing.T, p *providers.Provider, id string, want schema.Object) error {
	t.Helper()
	c := calling("libvirt.volume", id)
	c.Want = want
	return served(t, p, "libvirt.volume").Kind.Create(t.Context(), c)
}

func deleteVolume(t *testing.T, p *providers.Provider, id string) error {
	t.Helper()
	return served(t, p, "libvirt.volume").Kind.Delete(t.Context(), calling("libvirt.volume", id))
}

// lookVolume returns a volume; nil when there is none.
func lookVolume(t *testing.T, p *providers.Provider, id string) *providers.Thing {
	t.Helper()
	var found [2]*providers.Thing
	k := served(t, p, "libvirt.volume").Kind
	got, err := k.Get(t.Context(), []string{id})
	mustDo(t, err)
	listed, err := providers.Collect(k.List(t.Context()))
	mustDo(t, err)
	for n, things := range [][]providers.Thing{got, listed} {
		for i := range things {
			if things[i].ID == id {
				found[n] = &things[i]
			}
			if strings.HasSuffix(things[i].ID, markEnding) {
				t.Errorf("the mark %s is observed as a volume", things[i].ID)
			}
		}
	}
	if (found[0] == nil) != (found[1] == nil) || found[0] != nil && (found[0].Detail != found[1].Detail || !found[0].Spec.Equal(found[1].Spec)) {
		t.Errorf("it is %v, and in the list %v", found[0], found[1])
	}
	return found[0]
}

// wholeVolume checks that a volume has its contents and nothing is left of how it was made.
func wholeVolume(t *testing.T, f *fake, p *providers.Provider, id string, capacity int64, contents string) {
	t.Helper()
	th := lookVolume(t, p, id)
	if th == nil || th.Detail != "" || th.Spec["capacity"] != capacity || !slices.Equal(th.Unfilled, origins) {
		t.Errorf("the volume is observed as %v", th)
	}
	if is := string(bytes.TrimRight(f.data[id], "\x00")); is != contents || len(f.data[id]) != int(capacity) {
		t.Errorf("the volume has %d bytes: %.50q, want %d: %.50q", len(f.data[id]), is, capacity, contents)
	}
	if f.data[id+markEnding] != nil {
		t.Error("its mark is left")
	}
}

// TestCloneCut ends a create, and what goes on after it, at each of their calls: by an answer, by the loss of the connection, or at the end of
// the process. What is there is never taken for a whole volume unless it is one; it can be completed, and deleted without a rest.
func TestCloneCut(t *testing.T) {
	const id = "p/v"
	want := schema.Object{"pool": "p", "capacity": int64(8192), "format": "qcow2", "clone": "q/base"}
	calls := []string{"create p/v" + markEnding, "create p/v", "resize p/v", "delete p/v" + markEnding}
	again := []string{"delete p/v", "create p/v", "resize p/v", "delete p/v" + markEnding}
	for _, verb := range []string{"create", "complete"} {
		for n, at := range map[string][]string{"create": calls, "complete": again}[verb] {
			for _, end := range []string{"refused", "lost before", "lost after"} {
				for _, back := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s, %s, %s, back %t", verb, at, end, back), func(t *testing.T) {
						f, p := newVolumeFake(t)
						strike := func(n int) {
							seen := 0
							f.fail = func(call string) error {
								seen++
								f.effect = false
								switch {
								case seen < n+1:
									return nil
								case seen > n+1 && end != "refused":
									return &lost{unsent: true, err: errors.New("the connection is lost")}
								case seen > n+1:
									return nil
								case call != at:
									t.Errorf("call %d is %q, want %q", n, call, at)
								}
								f.effect = end == "lost after"
								if end == "refused" {
									return refusal("no space left on device")
								}
								return &lost{err: errors.New("the connection is lost")}
							}
						}
						heal := func() { f.fail, f.effect = func(string) error { return nil }, false }
						act := func() error { return createVolume(t, p, id, want) }
						if verb == "complete" {
							f.fail = func(call string) error {
								if call == "resize p/v" {
									return &lost{err: errors.New("the connection is lost")}
								}
								return nil
							}
							if err := act(); err == nil || lookVolume(t, p, id).Detail != unfinished {
								t.Fatalf("a cut create ended with %v", err)
							}
							act = func() error { return updated(t, p, "libvirt.volume", id, want) }
						}
						strike(n)
						err := act()
						heal()
						if err == nil {
							t.Fatal("it did not fail")
						}
						th := lookVolume(t, p, id)
						last := n == len(calls)-1 && end == "lost after"
						switch {
						case last:
							wholeVolume(t, f, p, id, 8192, "contents")
						case verb == "create" && (end == "refused" || n == 0 && end == "lost before"):
							if th != nil || f.data[id] != nil || f.data[id+markEnding] != nil {
								t.Errorf("after %v there is %v, and data of %v", err, th, slices.Collect(maps.Keys(f.data)))
							}
							if class := providers.ClassOf(err); end == "refused" && n > 0 && class != providers.Invalid {
								t.Errorf("what was taken back ended as %s: %v", class, err)
							}
						case th == nil || th.Detail != unfinished || !th.Spec.Equal(schema.Object{"pool": "p"}):
							t.Errorf("after %v it is observed as %v", err, th)
						}
						switch {
						case back:
							mustDo(t, deleteVolume(t, p, id))
							if lookVolume(t, p, id) != nil || len(f.files["p"]) > 0 {
								t.Errorf("after the delete there are %v", f.files["p"])
							}
							return
						case th == nil:
							mustDo(t, createVolume(t, p, id, want))
						default:
							mustDo(t, updated(t, p, "libvirt.volume", id, want))
						}
						wholeVolume(t, f, p, id, 8192, "contents")
					})
				}
			}
		}
	}
}

// TestClone makes copies with other formats and capacities.
func TestClone(t *testing.T) {
	f, p := newVolumeFake(t)
	for i, c := range []struct {
		format   string
		capacity int64
	}{{"raw", 4096}, {"raw", 8192}, {"qcow2", 4096}, {"qcow2", 8192}} {
		id := fmt.Sprintf("p/v%d", i)
		mustDo(t, createVolume(t, p, id, schema.Object{"pool": "p", "capacity": c.capacity, "format": c.format, "clone": "q/base"}))
		wholeVolume(t, f, p, id, c.capacity, "contents")
		if is := lookVolume(t, p, id).Spec["format"]; is != c.format {
			t.Errorf("the format is %v", is)
		}
	}
	mustDo(t, deleteVolume(t, p, "q/base")) // nothing depends on it
	wholeVolume(t, f, p, "p/v0", 4096, "contents")
}

// TestCloneRefused: what cannot be copied is refused before anything is made.
func TestCloneRefused(t *testing.T) {
	running := func(how string) func(f *fake) {
		return func(f *fake) {
			text := "<domain><name>vm</name><devices><disk type='volume'><source pool='q' volume='base'/>" + how + "<target dev='vda'/></disk></devices></domain>"
			f.guests = []definition{{name: "vm", stored: text, running: text}}
		}
	}
	for name, c := range map[string]struct {
		want  schema.Object
		setup func(f *fake)
		class providers.Class
		says  string
	}{
		"no source":        {want: schema.Object{"clone": "q/none"}, class: providers.Absent, says: "volume q/none does not exist"},
		"no pool":          {want: schema.Object{"clone": "none/base"}, class: providers.Absent, says: "volume none/base does not exist"},
		"no id":            {want: schema.Object{"clone": "base"}, class: providers.Absent, says: "volume base does not exist"},
		"itself":           {want: schema.Object{"clone": "p/v"}, class: providers.Absent, says: "volume p/v does not exist"},
		"a mark":           {want: schema.Object{"clone": "q/base" + markEnding}, class: providers.Absent, says: "does not exist"},
		"smaller":          {want: schema.Object{"capacity": int64(2048)}, class: providers.Invalid, says: "too small for a copy of volume q/base, which has 4096"},
		"with a backing":   {want: schema.Object{"backing": "q/base"}, class: providers.Invalid, says: "cannot be a clone"},
		"a disk that runs": {setup: running(""), class: providers.Invalid, says: "volume q/base is disk vda of domain vm, which is running"},
		"unfinished": {setup: func(f *fake) {
			f.files["q"]["base"+markEnding] = "<volume type='file'><name>base" + markEnding + "</name><capacity>512</capacity></volume>"
		}, class: providers.Busy, says: "volume q/base is unfinished"},
		"another format": {setup: func(f *fake) {
			f.files["q"]["base"] = strings.Replace(f.files["q"]["base"], `type="raw"`, `type="vmdk"`, 1)
		}, class: providers.Invalid, says: `has the format "vmdk"`},
	} {
		t.Run(name, func(t *testing.T) {
			f, p := newVolumeFake(t)
			if c.setup != nil {
				c.setup(f)
			}
			f.fail = func(call string) error { t.Errorf("it makes the call %q", call); return nil }
			want := schema.Object{"pool": "p", "capacity": int64(4096), "clone": "q/base"}
			maps.Copy(want, c.want)
			expect(t, createVolume(t, p, "p/v", want), c.class, false, c.says)
		})
	}
	_, p := newVolumeFake(t)
	expect(t, createVolume(t, p, "p/v"+markEnding, schema.Object{"pool": "p", "capacity": int64(4096)}), providers.Invalid, false, "marks another as unfinished")
}

// TestUnfinishedInUse: what somebody runs of an unfinished volume is not taken away, and one to which libvirt still copies is waited for.
func TestUnfinishedInUse(t *testing.T) {
	f, p := newVolumeFake(t)
	want := schema.Object{"pool": "p", "capacity": int64(8192), "format": "raw", "clone": "q/base"}
	mustDo(t, createVolume(t, p, "p/v", want))
	f.files["p"]["v"+markEnding] = "<volume type='file'><name>v" + markEnding + "</name><capacity>512</capacity></volume>"
	f.guests = []definition{{name: "vm", stored: "<domain><devices><disk type='file'><source file='/srv/p/v'/><target dev='vda'/></disk></devices></domain>"}}
	for range 2 {
		expect(t, deleteVolume(t, p, "p/v"), providers.Invalid, false, "p/v is unfinished and disk vda of domain vm")
		expect(t, updated(t, p, "libvirt.volume", "p/v", want), providers.Invalid, false, "p/v is unfinished and disk vda of domain vm")
	}
	f.guests = nil
	f.fail = func(string) error {
		return &answer{class: providers.Invalid, err: errorText("volume 'v' is still being allocated.")}
	}
	expect(t, deleteVolume(t, p, "p/v"), providers.Busy, false, "still being allocated")
	expect(t, updated(t, p, "libvirt.volume", "p/v", want), providers.Busy, false, "still being allocated")
	f.fail = func(string) error { return nil }
	mustDo(t, updated(t, p, "libvirt.volume", "p/v", want))
	wholeVolume(t, f, p, "p/v", 8192, "contents")
}

// TestCloneOfAnother: a volume that another client makes at the same time is not deleted with what is taken back.
func TestCloneOfAnother(t *testing.T) {
	f, p := newVolumeFake(t)
	f.fail = func(call string) error {
		if call == "create p/v" {
			f.files["p"]["v"] = "<volume type='file'><name>v</name><capacity>4096</capacity><target><path>/srv/p/v</path><format type='raw'/></target></volume>"
		}
		return nil
	}
	err := createVolume(t, p, "p/v", schema.Object{"pool": "p", "capacity": int64(4096), "clone": "q/base"})
	expect(t, err, providers.Exists, false, "exists already")
	if th := lookVolume(t, p, "p/v"); th == nil || th.Detail != "" {
		t.Errorf("theirs is observed as %v", th)
	}
}
