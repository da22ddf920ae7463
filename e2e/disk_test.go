package e2e

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/torture"
)

// diskMiB is the size of the disk: etcd must find 64 MiB free when it starts.
const diskMiB = 112

// A disk is a small file system that holds the state of a site.
type disk struct {
	s       *site
	ballast string
}

// private runs the test again in a mount namespace of its own, so that its mounts are private, and disappear when it ends. It
// reports whether this is that run.
func private(t *testing.T) bool {
	t.Helper()
	const mark = "CONVERGE_E2E_MOUNTS"
	if os.Getenv(mark) == t.Name() {
		if err := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
			t.Fatal(err)
		}
		return true
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a small disk")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	again := exec.CommandContext(t.Context(), exe, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout="+torture.Patience.String())
	again.Env = append(os.Environ(), mark+"="+t.Name())
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := again.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("in its own mount namespace: %v\n%s", err, out)
	}
	t.Logf("in its own mount namespace:\n%s", out)
	return false
}

// newDisk puts the state of a site on a small disk.
func newDisk(s *site) *disk {
	s.Helper()
	dir := filepath.Join(s.dir, ".converge")
	s.must(os.Mkdir(dir, 0o700))
	s.must(syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=0700,size="+fmt.Sprintf("%dm", diskMiB)))
	s.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			s.Error(err)
		}
	})
	return &disk{s: s, ballast: filepath.Join(dir, "ballast")}
}

// fill uses up all space.
func (d *disk) fill() {
	d.s.Helper()
	f, err := os.Create(d.ballast)
	d.s.must(err)
	defer f.Close()
	block := make([]byte, 64<<10)
	for err == nil {
		if _, err = f.Write(block); errors.Is(err, syscall.ENOSPC) && len(block) > 1 {
			block, err = block[:len(block)/2], nil
		}
	}
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, io.ErrShortWrite) {
		d.s.Fatal(err)
	}
}

// free releases it.
func (d *disk) free() { d.s.must(os.Remove(d.ballast)) }

// unhurried makes every change take long enough for the disk to fill up in between.
func unhurried(s *site) {
	s.inject(carbidesim.Fault{Method: "*", Times: -1, Effect: carbidesim.Slow, Delay: 100 * time.Millisecond})
}

// things is the number of things: about 2000 fit into the segment of the log that is preallocated, and resume preallocates
// another one.
const things = 5000

// many returns a document of so many things that the records about them do not fit into the space that the store has
// preallocated: the space for a small change is available even when the disk is full.
func many(n int) string {
	var b strings.Builder
	b.WriteString(`package site

apiVersion: "converge.dev/v1"
site: {name: "fra1", id: "5a2f0a4e-8d1f-4f0e-9b62-0f3f1b2c3d4e"}
carbide: tenant: acme: display_name: "Acme"
carbide: tenant_keyset: {
`)
	for i := range n {
		fmt.Fprintf(&b, "\t\"k%04d\": {tenant: \"acme\", keys: [\"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ1ICWm8ZL8VYhPZ0r3k7Yt6n5N1x9l0wqkq7t2mV3bE user%04d@acme\"]}\n", i, i)
	}
	b.WriteString("}\n")
	return b.String()
}

// L: the disk becomes full in the middle of an apply: the run stops where it is and says why; nothing that was done is
// forgotten, and once there is space resume finishes it. Before any change nothing has begun.
func TestTortureFullDisk(t *testing.T) {
	if !private(t) {
		return
	}
	reached := torture.Cover(t, "full disks", []string{"before the apply", "in the apply", "in the resume", "small change"})
	s := newSite(t)
	d := newDisk(s)
	s.write("many.cue", many(things))
	before := s.dump()

	s.plan("many.cue", "plan")
	d.fill()
	s.run(1, "apply", "plan").says(".converge", "no space left on device", "64 MiB must be free", "even read-only commands write there: free some space")
	s.same(before)
	reached.Reach("before the apply")
	d.free()

	a := s.start("apply", "-json", "plan")
	lines("apply_complete", 100)(a)
	d.fill()
	a.ended(4).says(".converge", "no space left on device", "converge resume")
	reached.Reach("in the apply")
	halfway := s.dump()
	done := strings.Count(halfway, "@acme")
	if done < 100 || done >= things {
		t.Errorf("%d of %d things were made when the disk was full", done, things)
	}
	s.run(1, "resume").says("no space left on device", "64 MiB must be free")
	s.run(1, "plan", "many.cue").says("no space left on device")
	s.same(halfway)
	d.free()

	r := s.start("resume", "-json")
	lines("apply_complete", 50)(r)
	d.fill()
	r.ended(4).says("no space left on device", "converge resume")
	reached.Reach("in the resume")
	d.free()
	s.run(0, "resume").says("Apply complete!")
	s.settled("many.cue")
	if got := strings.Count(s.dump(), "@acme"); got != things {
		t.Errorf("%d things are there, want %d, each once", got, things)
	}

	// A small change has what it needs.
	s.write("one.cue", many(things+1))
	s.plan("one.cue", "plan")
	s.inject(carbidesim.Fault{Method: "CreateTenantKeyset", Effect: carbidesim.Slow, Delay: time.Second})
	one := s.start("apply", "-json", "plan")
	lines("apply_start", 1)(one)
	d.fill()
	one.ended(0)
	reached.Reach("small change")
	d.free()
	s.settled("one.cue")
	torture.Report(t, "L", "disk full: %s; %d of %d steps were done; each said so, kept what was done, and was resumed to a world with every thing once", reached, done, things)
}

// L: the quota of a remote etcd is used up in the middle of an apply: the error says what to do, and once that is done
// resume finishes the run.
func TestTortureQuotaUsedUp(t *testing.T) {
	t.Parallel()
	reached := torture.Cover(t, "quotas used up", []string{"before the apply", "in the apply"})
	s := newSite(t)
	c := newCluster(s, false)
	c.kill()
	c.args = append(c.args, "--quota-backend-bytes=8388608")
	c.start()
	s.apply("before.cue")
	s.plan("after.cue", "plan")
	before := s.dump()

	remedy := []string{c.url, "quota is used up", "etcdctl alarm disarm"}
	c.exhaust()
	s.run(1, "apply", "plan").says(remedy...)
	s.same(before)
	reached.Reach("before the apply")
	c.makeSpace()

	unhurried(s)
	a := s.start("apply", "-json", "-parallelism=1", "plan")
	lines("apply_complete", 3)(a)
	s.world.ClearFaults()
	// Every remaining call takes so long that the quota is used up before the last one, however slow the machine.
	s.inject(carbidesim.Fault{Method: "*", Times: -1, Effect: carbidesim.Slow, Delay: 5 * time.Second})
	c.exhaust()
	s.world.ClearFaults()
	a.ended(4).says(append(remedy, "converge resume")...)
	reached.Reach("in the apply")
	halfway := s.dump()
	s.run(1, "resume").says(remedy...)
	s.same(halfway)
	c.makeSpace()
	s.run(0, "resume", "-lock-timeout=1m")
	s.settled("after.cue")
	s.same(converged(t))
	torture.Report(t, "L", "quota of etcd: %s; each said what to do, and was resumed to the same world", reached)
}

// exhaust writes until etcd raises the alarm.
func (c *cluster) exhaust() {
	c.s.Helper()
	junk := strings.Repeat("x", 1<<20)
	c.s.until("the quota is used up", func() bool {
		cmd := exec.CommandContext(c.s.ctx, program(c.s.T, "etcdctl", "etcd-client"), "--endpoints", c.url, "put", "/junk")
		cmd.Env = append(os.Environ(), "ETCDCTL_API=3")
		cmd.Stdin = strings.NewReader(junk)
		out, err := cmd.CombinedOutput()
		if err != nil && !strings.Contains(string(out), "space exceeded") {
			c.s.Fatalf("etcdctl put: %v\n%s", err, out)
		}
		return err != nil
	})
}

// makeSpace does what the error says.
func (c *cluster) makeSpace() {
	c.s.Helper()
	c.ctl("", "del", "/junk")
	status := c.ctl("", "endpoint", "status", "--write-out=fields")
	_, revision, _ := strings.Cut(status, `"Revision" : `)
	revision, _, _ = strings.Cut(revision, "\n")
	c.ctl("", "compact", strings.TrimSpace(revision))
	c.ctl("", "defrag")
	c.ctl("", "alarm", "disarm")
}
