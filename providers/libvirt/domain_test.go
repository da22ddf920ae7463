package libvirt

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"libvirt.org/go/libvirtxml"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// aMachine is a domain as libvirt stores it, with what others have set.
const aMachine = `<domain type='kvm'>
  <name>web</name><uuid>0a1b2c3d-0000-4000-8000-000000000009</uuid><title>Web</title>
  <metadata>
    <os:info xmlns:os="https://example.org/os" name="debian"/>
    <converge:domain xmlns:converge="https://converge.dev/libvirt" mark="" stop_timeout="0"/>
  </metadata>
  <memory unit='KiB'>1048576</memory><currentMemory unit='KiB'>1048576</currentMemory>
  <memoryBacking><hugepages><page size='2048' unit='KiB'/></hugepages></memoryBacking>
  <vcpu placement='static' cpuset='2,8'>2</vcpu>
  <cputune><shares>2048</shares></cputune>
  <numatune><memory mode='strict' nodeset='0'/></numatune>
  <os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type></os>
  <features><acpi/><apic/></features>
  <cpu mode='host-passthrough' check='none' migratable='on'/>
  <clock offset='utc'/>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <disk type='volume' device='disk'><driver name='qemu' type='qcow2' cache='none'/><source pool='p' volume='v'/><target dev='vda' bus='virtio'/>
      <iotune><total_iops_sec>100</total_iops_sec></iotune><boot order='1'/><address type='pci' domain='0x0000' bus='0x04' slot='0x00' function='0x0'/></disk>
    <disk type='file' device='cdrom'><target dev='sda' bus='sata'/><readonly/><address type='drive' controller='0' bus='0' target='0' unit='0'/></disk>
    <disk type='file' device='floppy'><target dev='fda' bus='fdc'/></disk>
    <interface type='network'><mac address='52:54:00:00:00:01'/><source network='net' portgroup='web'/><model type='virtio'/></interface>
    <interface type='bridge'><mac address='52:54:00:00:00:02'/><source bridge='br-int'/><vlan><tag id='42'/></vlan>
      <virtualport type='openvswitch'><parameters interfaceid='bf6d0896-53f1-4f53-aece-6c13820c0c79'/></virtualport><model type='virtio'/></interface>
    <hostdev mode='subsystem' type='pci' managed='no'><source><address domain='0x0000' bus='0x3b' slot='0x00' function='0x1'/></source></hostdev>
  </devices>
</domain>`

// plain is the machine without what is not in its spec.
var plain = strings.NewReplacer("<os:info xmlns:os=\"https://example.org/os\" name=\"debian\"/>", "", "<cputune><shares>2048</shares></cputune>", "", " cache='none'", "",
	"<iotune><total_iops_sec>100</total_iops_sec></iotune>", "", "<disk type='file' device='floppy'><target dev='fda' bus='fdc'/></disk>", "").Replace(aMachine)

// itsSpec is its spec, besides what is not in the definition.
func itsSpec() schema.Object {
	card := func(mac string, fields map[string]any) map[string]any {
		all := map[string]any{"mac": mac, "network": "", "port_group": "", "bridge": "", "ovs_bridge": "", "vlan": int64(0), "model": "virtio", "boot_order": int64(0)}
		for name, v := range fields {
			all[name] = v
		}
		return all
	}
	return schema.Object{
		"title": "Web", "state": "running", "autostart": true, "stop_timeout": int64(0), "in_effect": true, "uuid": "0a1b2c3d-0000-4000-8000-000000000009",
		"type": "kvm", "machine": "q35", "firmware": "bios", "vcpus": int64(2), "memory": int64(1 << 30), "cpu_mode": "host-passthrough",
		"cpus": []any{int64(2), int64(8)}, "numa_nodes": []any{int64(0)}, "hugepages": []any{"node0-2048kB"},
		"disks":  []any{map[string]any{"target": "vda", "volume": "p/v", "bus": "virtio", "read_only": false, "boot_order": int64(1)}},
		"cdroms": []any{map[string]any{"target": "sda", "volume": "", "seed": "", "bus": "sata", "boot_order": int64(0)}},
		"interfaces": []any{
			card("52:54:00:00:00:01", map[string]any{"network": "net", "port_group": "web"}),
			card("52:54:00:00:00:02", map[string]any{"ovs_bridge": "br-int", "vlan": int64(42)}),
		},
		"hostdevs": []any{map[string]any{"address": "0000:3b:00.1", "boot_order": int64(0)}},
	}
}

// aHost has the machine, running, and volumes for it.
func aHost() *fake {
	f := newFake()
	f.put(domainObject, "web", aMachine, aMachine)
	f.files["p"] = map[string]string{}
	for _, name := range []string{"v", "w", "s" + seedEnding} {
		f.files["p"][name] = "<volume><name>" + name + "</name><target><path>/srv/p/" + name + "</path><format type='raw'/></target></volume>"
	}
	return f
}

// calls makes a fake record what is called.
func (f *fake) calls() *[]string {
	var made []string
	f.fail = func(call string) error {
		made = append(made, call)
		return nil
	}
	return &made
}

func TestMachineIsDescribed(t *testing.T) {
	things, err := served(t, aHost().open(t), "libvirt.domain").Kind.Get(t.Context(), []string{"web"})
	if err != nil || len(things) != 1 {
		t.Fatal(things, err)
	}
	if d := cmp.Diff(itsSpec(), things[0].Spec); d != "" {
		t.Errorf("the spec (-want +is):\n%s", d)
	}
}

// TestMachineKeeps: a change of everything that a spec has leaves the rest of a definition as it is.
func TestMachineKeeps(t *testing.T) {
	f := aHost()
	second := itsSpec()["interfaces"].([]any)[1].(map[string]any)
	second["vlan"] = int64(43)
	err := updated(t, f.open(t), "libvirt.domain", "web", schema.Object{
		"title": "Other", "vcpus": int64(4), "memory": int64(2 << 30), "cpus": []any{}, "hugepages": []any{}, "numa_nodes": []any{}, "state": "paused", "autostart": false,
		"disks":      []any{map[string]any{"target": "vda", "volume": "p/w", "read_only": true, "boot_order": int64(2)}},
		"cdroms":     []any{map[string]any{"target": "sda", "volume": "p/v", "boot_order": int64(1)}},
		"interfaces": []any{second}, "hostdevs": []any{},
	})
	if err != nil {
		t.Fatal(err)
	}
	stored := f.objects[domainObject]["web"].stored
	for _, kept := range []string{
		"example.org/os", "<shares>2048</shares>", "<total_iops_sec>100</total_iops_sec>", `cache="none"`, "pc-q35-7.2", `device="floppy"`, "bf6d0896", `bus="0x04"`, "0a1b2c3d",
	} {
		if !strings.Contains(stored, kept) {
			t.Errorf("%s is lost:\n%s", kept, stored)
		}
	}
}

// TestMachineLoses: what others set within what a change removes, and what this program does not know, makes it fail.
func TestMachineLoses(t *testing.T) {
	for says, c := range map[string]struct {
		from, to string
		fields   schema.Object
	}{
		"domain/devices/disk/iotune":       {"", "", schema.Object{"disks": []any{}}},
		"domain/currentMemory":             {"<currentMemory unit='KiB'>1048576", "<currentMemory unit='KiB'>524288", schema.Object{"memory": int64(2 << 30)}},
		"domain/devices/interface/unheard": {"<vlan>", "<unheard/><vlan>", schema.Object{"title": "x"}},
	} {
		f := aHost()
		f.put(domainObject, "web", strings.Replace(aMachine, c.from, c.to, 1), "")
		made := f.calls()
		err := updated(t, f.open(t), "libvirt.domain", "web", c.fields)
		expect(t, err, providers.Invalid, false, says)
		if len(*made) > 0 {
			t.Errorf("%s: calls were made: %q", says, *made)
		}
	}
}

// TestMachineIsNotRestarted: what cannot be changed while a machine runs is stored, and restarts nothing, unless it is requested as
// something that is not so yet.
func TestMachineIsNotRestarted(t *testing.T) {
	f := aHost()
	made := f.calls()
	p := f.open(t)
	if err := updated(t, p, "libvirt.domain", "web", schema.Object{"vcpus": int64(4)}); err != nil { // in_effect was true, and stays in the spec
		t.Fatal(err)
	}
	if want := []string{"define web"}; !slices.Equal(*made, want) {
		t.Errorf("the calls are %q, want %q", *made, want)
	}
	things, err := served(t, p, "libvirt.domain").Kind.Get(t.Context(), []string{"web"})
	if err != nil || things[0].Spec["in_effect"] != false || !strings.Contains(things[0].Detail, "vcpus") {
		t.Errorf("it is observed as %v (%v)", things, err)
	}
	*made = nil
	if err := updated(t, p, "libvirt.domain", "web", schema.Object{"title": "y", "in_effect": false}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"define web", "title web"}; !slices.Equal(*made, want) {
		t.Errorf("the calls are %q, want %q", *made, want)
	}
	*made = nil
	if err := updated(t, p, "libvirt.domain", "web", schema.Object{"in_effect": true}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"stop web", "start web"}; !slices.Equal(*made, want) {
		t.Errorf("the calls are %q, want %q", *made, want)
	}
}

// TestMachineIsChanged: what a running machine can take is changed at once.
func TestMachineIsChanged(t *testing.T) {
	first, second := itsSpec()["interfaces"].([]any)[0], itsSpec()["interfaces"].([]any)[1].(map[string]any)
	second["vlan"] = int64(0)
	disk := itsSpec()["disks"].([]any)[0]
	for name, c := range map[string]struct {
		fields schema.Object
		want   []string
	}{
		"a disk more":       {schema.Object{"disks": []any{disk, map[string]any{"target": "vdb", "bus": "virtio", "volume": "p/w"}}}, []string{"attach disk web"}},
		"a disk on SATA":    {schema.Object{"disks": []any{disk, map[string]any{"target": "sdb", "bus": "sata", "volume": "p/w"}}}, nil},
		"another volume":    {schema.Object{"disks": []any{map[string]any{"target": "vda", "volume": "p/w", "boot_order": int64(1)}}}, nil},
		"a medium":          {schema.Object{"cdroms": []any{map[string]any{"target": "sda", "volume": "p/w"}}}, []string{"update disk web"}},
		"a seed":            {schema.Object{"cdroms": []any{map[string]any{"target": "sda", "seed": "p/s" + seedEnding}}}, []string{"update disk web"}},
		"no VLAN":           {schema.Object{"interfaces": []any{first, second}}, []string{"update interface web"}},
		"an interface less": {schema.Object{"interfaces": []any{first}}, []string{"detach interface web"}},
		"no function":       {schema.Object{"hostdevs": []any{}}, []string{"detach hostdev web"}},
		"another function":  {schema.Object{"hostdevs": []any{map[string]any{"address": "0000:3b:00.2"}}}, []string{"detach hostdev web", "attach hostdev web"}},
		"paused":            {schema.Object{"state": "paused"}, []string{"suspend web"}},
		"stopped":           {schema.Object{"state": "stopped"}, []string{"stop web"}},
		"a description":     {schema.Object{"description": "d"}, []string{"description web"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := aHost()
			made := f.calls()
			p := f.open(t)
			if err := updated(t, p, "libvirt.domain", "web", c.fields); err != nil {
				t.Fatal(err)
			}
			live := slices.DeleteFunc(*made, func(call string) bool { return call == "define web" })
			if !slices.Equal(live, c.want) {
				t.Errorf("the calls are %q, want %q", live, c.want)
			}
			things, err := served(t, p, "libvirt.domain").Kind.Get(t.Context(), []string{"web"})
			if err != nil || things[0].Spec["in_effect"] != (c.want != nil) {
				t.Fatalf("it is observed as %v (%v)", things, err)
			}
			drives, _ := c.fields["cdroms"].([]any)
			for i, drive := range drives {
				is := things[0].Spec["cdroms"].([]any)[i].(map[string]any)
				for field, want := range drive.(map[string]any) {
					if is[field] != want {
						t.Errorf("%s of the drive is %v, want %v", field, is[field], want)
					}
				}
			}
		})
	}
}

// TestMachineRefuses: when QEMU refuses to change a running machine, what was done before is taken back.
func TestMachineRefuses(t *testing.T) {
	f := aHost()
	f.fail = func(call string) error {
		if call == "attach disk web" {
			return refusal("No more available PCI slots")
		}
		return nil
	}
	disk := itsSpec()["disks"].([]any)[0]
	err := updated(t, f.open(t), "libvirt.domain", "web", schema.Object{
		"title": "x", "vcpus": int64(4), "disks": []any{disk, map[string]any{"target": "vdb", "bus": "virtio", "volume": "p/w"}},
	})
	expect(t, err, providers.Invalid, false, "the running machine cannot be changed: add disk vdb: No more available PCI slots")
	if now := f.objects[domainObject]["web"]; !sameValues(now.stored, aMachine) || !sameValues(now.running, aMachine) {
		t.Errorf("it is not as it was:\n%s", cmp.Diff(aMachine, now.stored)+cmp.Diff(aMachine, now.running))
	}
}

// TestMachineDoesNotStart: one that was to be restarted and cannot be is left as it was stored, and what came of that is said.
func TestMachineDoesNotStart(t *testing.T) {
	f := aHost()
	starts := 0
	f.fail = func(call string) error {
		if call == "start web" {
			if starts++; starts == 1 {
				return refusal("cannot set up guest memory")
			}
		}
		return nil
	}
	p := f.open(t)
	if err := updated(t, p, "libvirt.domain", "web", schema.Object{"memory": int64(2 << 30)}); err != nil {
		t.Fatal(err)
	}
	before := f.objects[domainObject]["web"].stored
	err := updated(t, p, "libvirt.domain", "web", schema.Object{"in_effect": true, "title": "x"})
	expect(t, err, providers.Unknown, true, "cannot set up guest memory")
	if now := f.objects[domainObject]["web"]; now.running == "" || !sameValues(now.stored, before) {
		t.Errorf("it is %+v", now)
	}
}

// TestMachineStopsLate: once a guest was asked to shut down, it may still do so, whatever libvirt answers after that.
func TestMachineStopsLate(t *testing.T) {
	f := aHost()
	f.fail = func(call string) error {
		if call == "stop web" {
			return refusal("Device or resource busy")
		}
		return nil
	}
	err := updated(t, f.open(t), "libvirt.domain", "web", schema.Object{"state": "stopped", "stop_timeout": int64(1)})
	expect(t, err, providers.Unknown, true, "Device or resource busy")
}

// TestMachineOfOthers: what others have done to a running machine only, or to what is stored while a change is under way, stays.
func TestMachineOfOthers(t *testing.T) {
	disk := itsSpec()["disks"].([]any)[0]
	more := schema.Object{"hostdevs": []any{}, "disks": []any{disk, map[string]any{"target": "vdb", "bus": "virtio", "volume": "p/w"}}}
	edited := strings.Replace(aMachine, "<title>", "<title>edited ", 1)
	edit := func(f *fake) { f.put(domainObject, "web", edited, f.objects[domainObject]["web"].running) }

	t.Run("an interface was taken out", func(t *testing.T) {
		f := aHost()
		from, to := strings.LastIndex(aMachine, "<interface"), strings.LastIndex(aMachine, "</interface>")+len("</interface>")
		f.put(domainObject, "web", aMachine, aMachine[:from]+aMachine[to:])
		made := f.calls()
		if err := updated(t, f.open(t), "libvirt.domain", "web", schema.Object{"title": "x", "in_effect": false}); err != nil {
			t.Fatal(err)
		}
		if want := []string{"define web", "title web"}; !slices.Equal(*made, want) {
			t.Errorf("the calls are %q, want %q", *made, want)
		}
	})
	t.Run("edited while it is changed", func(t *testing.T) {
		f := aHost()
		f.fail = func(call string) error {
			if call == "attach disk web" {
				edit(f)
				return refusal("No more available PCI slots")
			}
			return nil
		}
		expect(t, updated(t, f.open(t), "libvirt.domain", "web", more), providers.Unknown, true, "another client has changed it")
		if now := f.objects[domainObject]["web"].stored; !sameValues(now, edited) {
			t.Errorf("it is not as it was edited:\n%s", now)
		}
	})
	t.Run("a device cannot be given back", func(t *testing.T) {
		f := aHost()
		f.fail = func(call string) error {
			if call == "attach disk web" || call == "attach hostdev web" {
				return refusal("the guest has not released the device")
			}
			return nil
		}
		expect(t, updated(t, f.open(t), "libvirt.domain", "web", more), providers.Unknown, true, "remove PCI function")
		if now := f.objects[domainObject]["web"].stored; !sameValues(now, aMachine) {
			t.Errorf("it is not stored as it was:\n%s", cmp.Diff(aMachine, now))
		}
	})
	t.Run("started again while it shuts down", func(t *testing.T) {
		f := aHost()
		f.put(domainObject, "web", plain, plain)
		f.own("web")
		stopped := false
		f.fail = func(call string) error {
			stopped = stopped || call == "stop web"
			return nil
		}
		f.observing = func(context.Context) {
			if stopped {
				f.put(domainObject, "web", plain, plain)
			}
		}
		err := served(t, f.open(t), "libvirt.domain").Kind.Delete(t.Context(), calling("libvirt.domain", "web"))
		expect(t, err, providers.Unknown, true, "another client changed domain web, or started it again")
		if now, ok := f.objects[domainObject]["web"]; !ok || now.running == "" {
			t.Errorf("it is %+v", now)
		}
	})
	t.Run("edited while it shuts down", func(t *testing.T) {
		f := aHost()
		f.put(domainObject, "web", plain, plain)
		f.own("web")
		f.fail = func(call string) error {
			if call == "shut down web" || call == "stop web" {
				edit(f)
			}
			return nil
		}
		err := served(t, f.open(t), "libvirt.domain").Kind.Delete(t.Context(), calling("libvirt.domain", "web"))
		expect(t, err, providers.Unknown, true, "another client changed domain web, or started it again, while it shut down")
		if now, ok := f.objects[domainObject]["web"]; !ok || !sameValues(now.stored, edited) {
			t.Errorf("it is %+v", now)
		}
	})
}

// TestMachineOddMemory: libvirt gives a machine whole MiB.
func TestMachineOddMemory(t *testing.T) {
	f := aHost()
	odd := func(kibi string) string { return strings.ReplaceAll(aMachine, "1048576", kibi) }
	f.put(domainObject, "web", odd("1048577"), odd("1049600"))
	p := f.open(t)
	things, err := served(t, p, "libvirt.domain").Kind.Get(t.Context(), []string{"web"})
	if err != nil || things[0].Spec["in_effect"] != true || things[0].Spec["memory"] != int64(1048577<<10) {
		t.Errorf("it is observed as %v (%v)", things, err)
	}
	if err := updated(t, p, "libvirt.domain", "web", schema.Object{"title": "x"}); err != nil {
		t.Error(err)
	}
}

// TestMachineUnplugged: virtual CPUs that somebody has left out of the next start are missed, and plugged in again.
func TestMachineUnplugged(t *testing.T) {
	f := aHost()
	text := f.objects[domainObject]["web"].stored
	want := itsSpec()["vcpus"].(int64)
	vcpu := regexp.MustCompile(`<vcpu([^>]*)>\d+</vcpu>`)
	fewer := vcpu.ReplaceAllString(text, fmt.Sprintf(`<vcpu$1 current="1">%d</vcpu>`, want))
	f.put(domainObject, "web", fewer, "")
	p := f.open(t)
	things, err := served(t, p, "libvirt.domain").Kind.Get(t.Context(), []string{"web"})
	if err != nil || fewer == text || things[0].Spec["vcpus"] != int64(1) {
		t.Fatalf("it is observed as %v (%v)", things, err)
	}
	mustDo(t, updated(t, p, "libvirt.domain", "web", schema.Object{"vcpus": want}))
	if stored := f.objects[domainObject]["web"].stored; strings.Contains(stored, "current=") || !strings.Contains(stored, fmt.Sprintf(">%d</vcpu>", want)) {
		t.Errorf("it is stored as %s", stored)
	}
}

// own gives a domain the mark of a site.
func (f *fake) own(domain string) {
	aMark := providers.Mark{Site: "7c0d1f5e-2a34-4f6b-9c8d-1e2f3a4b5c6d", Ref: schema.Ref{Scope: "n1", Kind: "libvirt.domain", Name: domain}, Incarnation: 1}.String()
	d := f.objects[domainObject][domain]
	for _, text := range []*string{&d.stored, &d.running} {
		*text = strings.Replace(strings.Replace(*text, ` mark=""`, "", 1), "<converge:domain ", `<converge:domain mark="`+aMark+`" `, 1)
	}
	f.objects[domainObject][domain] = d
}

// TestMachineWithoutMark: a machine without a mark may be that of another client, of the same name, and is not deleted.
func TestMachineWithoutMark(t *testing.T) {
	f := aHost()
	f.put(domainObject, "other", "<domain type='qemu'><name>other</name><memory>65536</memory><vcpu>1</vcpu><os><type>hvm</type></os></domain>", "")
	made := f.calls()
	err := served(t, f.open(t), "libvirt.domain").Kind.Delete(t.Context(), calling("libvirt.domain", "other"))
	expect(t, err, providers.Denied, false, "domain other carries no ownership mark")
	if len(*made) > 0 {
		t.Errorf("calls were made: %q", *made)
	}
}

// TestMachineIsTakenOver: a machine of others that gets a mark, and loses it again, is as it was: the order of its devices too.
func TestMachineIsTakenOver(t *testing.T) {
	f := aHost()
	was := strings.NewReplacer(`<converge:domain xmlns:converge="https://converge.dev/libvirt" mark="" stop_timeout="0"/>`, "",
		"52:54:00:00:00:01", "52:54:00:00:00:0a", "sda", "hda", "<hostdev ", "<hostdev mode='subsystem' type='pci' managed='no'><source><address domain='0x0000' bus='0x3c' slot='0x00' function='0x0'/></source></hostdev><hostdev ").Replace(aMachine)
	was = strings.Replace(was, "<disk type='file' device='floppy'><target dev='fda' bus='fdc'/></disk>", "", 1)
	was = strings.Replace(was, "</devices>", "<disk type='file' device='floppy'><target dev='fda' bus='fdc'/></disk></devices>", 1)
	f.put(domainObject, "web", was, "")
	k := served(t, f.open(t), "libvirt.domain").Kind
	things, err := k.Get(t.Context(), []string{"web"})
	if err != nil || things[0].Spec["stop_timeout"] != int64(60) || things[0].Passing != "" {
		t.Fatalf("it is observed as %+v (%v)", things, err)
	}
	c := calling("libvirt.domain", "web")
	c.Have, c.Want = things[0].Spec, things[0].Spec.Clone()
	for _, list := range []string{"interfaces", "hostdevs"} { // a document has them in the order of their keys
		slices.Reverse(c.Want[list].([]any))
	}
	c.Mark = providers.Mark{Site: "5a2f0a4e-8d1f-4f0e-9b62-0f3f1b2c3d4e", Ref: c.Ref, Incarnation: 1}
	if err := k.Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	marked := f.objects[domainObject]["web"].stored
	if things, err = k.Get(t.Context(), []string{"web"}); err != nil || things[0].Mark != c.Mark {
		t.Fatalf("it is observed as %+v (%v)", things, err)
	}
	c.Have, c.Want, c.Mark = things[0].Spec, things[0].Spec, providers.Mark{}
	if err := k.Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	d, err := parseDomain(was)
	if err != nil {
		t.Fatal(err)
	}
	want, err := d.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	spaces := regexp.MustCompile(`>\s+<`)
	for _, now := range []string{regexp.MustCompile(`<converge:domain [^>]*>(</converge:domain>)?`).ReplaceAllString(marked, ""), f.objects[domainObject]["web"].stored} {
		if d := cmp.Diff(spaces.ReplaceAllString(want, ">\n<"), spaces.ReplaceAllString(now, ">\n<")); d != "" {
			t.Errorf("it is not as it was:\n%s", d)
		}
	}
}

// TestPassing: what is not stored ends with its run, and so does what belongs to it. What bears a mark is ours all the same.
func TestPassing(t *testing.T) {
	f := aHost()
	net := `<network><name>net</name><ip address="10.0.0.1" prefix="24"><dhcp><host mac="52:54:00:00:00:01" name="web" ip="10.0.0.9"/></dhcp></ip></network>`
	f.put(networkObject, "net", net, net)
	p := f.open(t)
	for _, transient := range []bool{false, true} {
		for o, name := range map[object]string{domainObject: "web", networkObject: "net"} {
			d := f.objects[o][name]
			d.transient = transient
			f.objects[o][name] = d
		}
		for kind, id := range map[string]string{"libvirt.domain": "web", "libvirt.network": "net", "libvirt.dhcp_host": "net/web"} {
			things, err := served(t, p, kind).Kind.Get(t.Context(), []string{id})
			if err != nil || (things[0].Passing != "") != transient {
				t.Errorf("transient %v: it is observed as %+v (%v)", transient, things, err)
			}
		}
	}
	d := f.objects[domainObject]["web"]
	d.running = strings.Replace(aMachine, `mark=""`, `mark="5a2f0a4e-8d1f-4f0e-9b62-0f3f1b2c3d4e/n1/libvirt.domain/web#1"`, 1)
	d.stored = d.running
	f.objects[domainObject]["web"] = d
	if things, err := served(t, p, "libvirt.domain").Kind.Get(t.Context(), []string{"web"}); err != nil || things[0].Passing != "" {
		t.Errorf("ours is observed as %+v (%v)", things, err)
	}
}

// TestMachineOnBridge: libvirt shows an interface of a network that leads to a bridge as one of that bridge while the machine runs.
func TestMachineOnBridge(t *testing.T) {
	f := aHost()
	runs := strings.Replace(aMachine, "<interface type='network'><mac address='52:54:00:00:00:01'/><source network='net' portgroup='web'/>",
		"<interface type='bridge'><mac address='52:54:00:00:00:01'/><source network='net' portgroup='web' bridge='br0'/><vlan><tag id='7'/></vlan><virtualport type='openvswitch'/>", 1)
	f.put(domainObject, "web", aMachine, runs)
	made := f.calls()
	p := f.open(t)
	things, err := served(t, p, "libvirt.domain").Kind.Get(t.Context(), []string{"web"})
	if err != nil || things[0].Spec["in_effect"] != true {
		t.Errorf("it is observed as %v (%v)", things, err)
	}
	if err := updated(t, p, "libvirt.domain", "web", schema.Object{"title": "x"}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"define web", "title web"}; !slices.Equal(*made, want) {
		t.Errorf("the calls are %q, want %q", *made, want)
	}
}

// TestMachineIsForced: a guest that does not shut down is given its time, and then its machine is forced off; a paused one has none.
func TestMachineIsForced(t *testing.T) {
	for state, want := range map[string][]string{
		"running": {"define web", "note web", "shut down web", "stop web", "undefine web"},
		"paused":  {"define web", "note web", "suspend web", "stop web", "undefine web"},
	} {
		f := aHost()
		text := strings.Replace(plain, "<apic/>", "<apic/><smm state='on'/><gic version='3'/>", 1)
		f.put(domainObject, "web", text, text)
		made := f.calls()
		p := f.open(t)
		if err := updated(t, p, "libvirt.domain", "web", schema.Object{"stop_timeout": int64(1), "state": state}); err != nil {
			t.Fatal(err)
		}
		f.own("web")
		if err := served(t, p, "libvirt.domain").Kind.Delete(t.Context(), calling("libvirt.domain", "web")); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(slices.DeleteFunc(*made, func(call string) bool { return call == "title web" }), want) {
			t.Errorf("%s: the calls are %q, want %q", state, *made, want)
		}
	}
}

// TestMachineIsNotDeleted: what would be lost with a domain keeps it, and it goes on running.
func TestMachineIsNotDeleted(t *testing.T) {
	f := aHost()
	f.own("web")
	made := f.calls()
	p := f.open(t)
	err := served(t, p, "libvirt.domain").Kind.Delete(t.Context(), calling("libvirt.domain", "web"))
	expect(t, err, providers.Invalid, false, "domain/cputune/shares, domain/devices/disk, domain/devices/disk/@device")
	f.kept = []string{"a saved state", "2 snapshots"}
	err = served(t, p, "libvirt.domain").Kind.Delete(t.Context(), calling("libvirt.domain", "web"))
	expect(t, err, providers.Invalid, false, "a saved state and 2 snapshots")
	if len(*made) > 0 {
		t.Errorf("calls were made: %q", *made)
	}
}

func TestMachineIsMade(t *testing.T) {
	f := aHost()
	c := calling("libvirt.domain", "new")
	c.Mark = providers.Mark{Site: "s", Ref: c.Ref, Incarnation: 1}
	c.Want = schema.Object{"vcpus": int64(1), "memory": int64(1 << 30), "machine": "q35", "firmware": "efi", "disks": []any{map[string]any{"target": "vda", "volume": "p/v", "boot_order": int64(1)}}}
	if err := served(t, f.open(t), "libvirt.domain").Kind.Create(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	d, err := parseDomain(f.objects[domainObject]["new"].running)
	if err != nil {
		t.Fatal(err)
	}
	n, _, _, err := noteOf(d)
	if err != nil || providers.ParseMark(n.Mark) != c.Mark || n.StopTimeout != nil {
		t.Errorf("its note is %+v (%v)", n, err)
	}
	disk := d.Devices.Disks[0]
	if disk.Driver.Type != "raw" || disk.Source.Volume == nil || d.OS.Firmware != "efi" || d.Features.ACPI == nil || len(d.Devices.Serials) != 1 || d.UUID == "" {
		t.Errorf("it is %+v", f.objects[domainObject]["new"])
	}
	for says, fields := range map[string]schema.Object{
		"a multiple of 1048576 bytes":           {"memory": int64(1<<30 + 1)},
		"one pool of one page size on each":     {"hugepages": []any{"node0-2048kB"}},
		"volume p/none does not exist":          {"disks": []any{map[string]any{"target": "vda", "volume": "p/none"}}},
		"names that begin with vnet":            {"interfaces": []any{map[string]any{"mac": "52:54:00:00:00:01", "network": "net", "target": "vnet-a"}}},
		"one of network, bridge and ovs_bridge": {"interfaces": []any{map[string]any{"mac": "52:54:00:00:00:01"}}},
	} {
		c := calling("libvirt.domain", "other")
		c.Want = schema.Object{"vcpus": int64(1), "memory": int64(1 << 30)}
		for name, v := range fields {
			c.Want[name] = v
		}
		class := providers.Invalid
		if strings.Contains(says, "exist") {
			class = providers.Absent
		}
		expect(t, served(t, f.open(t), "libvirt.domain").Kind.Create(t.Context(), c), class, false, says)
	}
}

// A disk or drive on a SCSI bus gets a controller that guests have a driver of; others get none.
func TestMachineOnSCSI(t *testing.T) {
	f := aHost()
	for name, c := range map[string]struct {
		fields schema.Object
		scsi   bool
	}{
		"virtio": {schema.Object{"disks": []any{map[string]any{"target": "vda", "volume": "p/v"}}}, false},
		"disk":   {schema.Object{"disks": []any{map[string]any{"target": "sda", "volume": "p/v"}}}, true},
		"drive":  {schema.Object{"cdroms": []any{map[string]any{"target": "sdb", "volume": "p/v"}}}, true},
		"sata":   {schema.Object{"cdroms": []any{map[string]any{"target": "sda", "bus": "sata", "volume": "p/v"}}}, false},
		"other":  {schema.Object{"disks": []any{map[string]any{"target": "vda", "bus": "scsi", "volume": "p/v"}}}, true},
	} {
		call := calling("libvirt.domain", name)
		call.Want = schema.Object{"vcpus": int64(1), "memory": int64(1 << 30), "machine": "q35"}
		maps.Copy(call.Want, c.fields)
		if err := served(t, f.open(t), "libvirt.domain").Kind.Create(t.Context(), call); err != nil {
			t.Fatal(err)
		}
		d, err := parseDomain(f.objects[domainObject][name].stored)
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.ContainsFunc(d.Devices.Controllers, func(c libvirtxml.DomainController) bool { return c.Type == "scsi" && c.Model == "virtio-scsi" }); got != c.scsi {
			t.Errorf("%s: whether it has a controller of virtio is %t", name, got)
		}
	}
}

// TestNotes: the note is found among the metadata of others, and replaced there.
func TestNotes(t *testing.T) {
	for _, around := range [][2]string{{"", ""}, {"<a:b xmlns:a='urn:a'><converge/></a:b>", "\n<c xmlns='urn:c'/>"}} {
		d := &libvirtxml.Domain{Metadata: &libvirtxml.DomainMetadata{XML: around[0] + around[1]}}
		for _, mark := range []string{"a<b>'\"&", ""} {
			timeout := int64(7)
			if err := annotateDomain(d, note{Mark: mark, StopTimeout: &timeout}); err != nil {
				t.Fatal(err)
			}
			n, before, after, err := noteOf(d)
			if err != nil || n.Mark != mark || *n.StopTimeout != 7 || before+after != around[0]+around[1] {
				t.Errorf("it is %+v between %q and %q (%v)", n, before, after, err)
			}
		}
	}
}

func TestSets(t *testing.T) {
	for text, want := range map[string]string{"": "", "3": "3", "0-3": "0-3", "0,1,2,8": "0-2,8", "0-7,^2": "0-1,3-7", "5,5": "5"} {
		if got := setOf(numbersOf(text)); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}
