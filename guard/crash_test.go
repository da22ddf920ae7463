package guard_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// A scenario is what happens to a guard until its program is killed somewhere.
var scenarios = map[string]func(b *bench){
	"kept":    func(b *bench) { _, _ = b.settle(true) },
	"undone":  func(b *bench) { _, _ = b.settle(false) },
	"timeout": func(b *bench) { time.Sleep(within + 10*time.Second) },
	"fence":   func(b *bench) { _ = b.agent.Fence(b.Context(), 6) },
	"forgotten, kept": func(b *bench) {
		_, _ = b.settle(true)
		time.Sleep(25 * time.Hour)
	},
	"forgotten, undone": func(b *bench) {
		_, _ = b.settle(false)
		time.Sleep(25 * time.Hour)
	},
}

// Wherever the program is killed, and whether the machine is started anew or not: it ends with the world as before, or with what was
// made, as the verdict says, which never changes.
func TestKilledAnywhere(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(scenarios)) {
		scenario := scenarios[name]
		t.Run(name, func(t *testing.T) {
			points := 0
			for _, next := range []struct {
				boot  string
				after time.Duration
			}{{"boot-1", 0}, {"boot-1", 2 * within}, {"boot-2", 0}} {
				for cut := 1; killed(t, scenario, cut, next.boot, next.after); cut++ {
					points++
				}
			}
			t.Logf("killed at %d points", points)
			if points < 40 {
				t.Errorf("the program was killed at %d points only", points)
			}
		})
	}
}

// killed kills the program at one point, and reports whether it was reached.
func killed(t *testing.T, scenario func(*bench), cut int, boot string, pause time.Duration) (reached bool) {
	t.Helper()
	inside(t, func(t *testing.T, b *bench) {
		at := fmt.Sprintf("killed at point %d, %s, started after %v", cut, boot, pause)
		b.cut = cut
		b.start()
		b.put(bridge, "br", schema.Object{"mode": "secure"})
		b.put(port, "old", schema.Object{"bridge": "br"})
		before := b.world.Dump()
		made := 0
		for _, c := range []struct {
			op, kind, name string
			want           schema.Object
		}{
			{"delete", port, "old", nil}, {"create", port, "new", schema.Object{"bridge": "br"}}, {"update", bridge, "br", schema.Object{"mode": "standalone"}},
		} {
			was := b.world.Dump()
			armed, err := b.do(c.op, c.kind, c.name, c.want, nil)
			if err != nil {
				b.class(err, providers.Transient)
				b.as(was, at+": a change that was refused")
				break
			}
			if !armed {
				t.Fatalf("%s: %s was made without a guard", at, c.op)
			}
			made++
		}
		after := b.world.Dump()
		if made == 3 {
			scenario(b)
		}
		kept, undone := b.kept, b.undone
		b.mu.Lock()
		reached = b.crashed
		b.cut = 0
		b.mu.Unlock()
		stored := verdicts(b)
		b.kill()
		time.Sleep(pause)
		if boot != b.boot {
			b.boot, b.began, b.skew = boot, time.Now(), 10*time.Second
		}
		b.start()
		if b.boot != "boot-1" || pause > within { // nobody can keep anything any more
			synctest.Wait()
		}
		if again := verdicts(b); stored != "" && again != "" && again != stored {
			t.Fatalf("%s: the verdict was %s, and is %s", at, stored, again)
		}
		time.Sleep(2*within + time.Minute)
		synctest.Wait()
		is, err := b.settle(true)
		absent := err != nil && providers.ClassOf(err) == providers.Absent
		switch {
		case err != nil && !absent:
			t.Fatalf("%s: settle: %v\n%s", at, err, strings.Join(b.log, ""))
		case absent && made > 0 && !kept && !undone && b.world.Dump() != before && b.world.Dump() != after:
			t.Fatalf("%s: neither before nor after", at)
		case !absent && (kept && !is || undone && is):
			t.Fatalf("%s: it was kept %v, undone %v, and now it is kept %v", at, kept, undone, is)
		case !absent && is, absent && kept:
			b.as(after, at+": kept")
		case !absent, absent && undone:
			b.as(before, at+": undone")
		}
		if stored == "" && !is && !absent {
			b.as(before, at+": without a verdict")
		}
		time.Sleep(25 * time.Hour)
		synctest.Wait()
		if left := b.files(); len(left) > 0 {
			t.Fatalf("%s: there are still %q", at, left)
		}
		if now := b.world.Dump(); now != before && now != after {
			t.Fatalf("%s: at the end it is neither before nor after", at)
		}
	})
	return reached
}

// verdicts returns the stored verdict.
func verdicts(b *bench) string {
	data, err := os.ReadFile(filepath.Join(b.dir, "run%2F1.verdict"))
	if err != nil {
		return ""
	}
	if strings.Contains(string(data), `"kept"`) {
		return "kept"
	}
	return "undoing"
}

// A disk that takes nothing more refuses changes, and the undo still works.
func TestDiskFull(t *testing.T) {
	inside(t, func(t *testing.T, b *bench) {
		b.start()
		before, after := b.three()
		b.mu.Lock()
		b.full = true
		b.mu.Unlock()
		armed, err := b.do("create", bridge, "more", schema.Object{}, nil)
		b.class(err, providers.Transient)
		if armed {
			t.Error("armed on a full disk")
		}
		_, err = b.settle(false)
		b.class(err, providers.Transient)
		_, err = b.settle(true)
		b.class(err, providers.Transient)
		b.as(after, "on a full disk")
		time.Sleep(within)
		synctest.Wait()
		b.as(before, "after the deadline")
		b.mu.Lock()
		b.full = false
		b.mu.Unlock()
		b.settled(true, false)
		if verdicts(b) != "undoing" {
			t.Error("the verdict was not stored when there was room again")
		}
		b.restart("boot-2")
		b.settled(true, false)
		b.as(before, "in the next boot")
	})
}

// A capsule that is cut off, changed or of another version is never interpreted: nothing is undone, and a person is told.
func TestDamaged(t *testing.T) {
	for _, ending := range []string{".capsule", ".verdict"} {
		t.Run(ending, func(t *testing.T) {
			inside(t, func(t *testing.T, b *bench) {
				b.start()
				b.must("create", bridge, "br", schema.Object{})
				if ending == ".verdict" {
					b.settled(true, true)
				}
				after := b.world.Dump()
				path := filepath.Join(b.dir, "run%2F1"+ending)
				good, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				var broken [][]byte
				for n := 0; n < len(good); n += 7 {
					flipped := slices.Clone(good)
					flipped[n] ^= 1
					broken = append(broken, good[:n], flipped)
				}
				broken = append(broken, []byte(strings.Replace(string(good), `"version":1`, `"version":2`, 1)), append(slices.Clone(good), good...))
				for i, bad := range broken {
					if err := os.WriteFile(path, bad, 0o600); err != nil {
						t.Fatal(err)
					}
					b.restart(fmt.Sprint("boot-of-", i))
					_, err := b.settle(true)
					b.class(err, providers.Unknown)
					if open, err := b.call.Open(t.Context()); err != nil || len(open) != 1 || !strings.Contains(open[0].Failed, "cannot read") {
						t.Errorf("%+v, %v", open, err)
					}
					_, err = b.do("create", bridge, "more", schema.Object{}, nil)
					b.class(err, providers.Transient)
					b.class(b.agent.Fence(t.Context(), 9), providers.Unknown)
					b.as(after, fmt.Sprintf("with %q", bad))
					if is, err := os.ReadFile(path); err != nil || string(is) != string(bad) {
						t.Fatalf("the file was changed: %v", err)
					}
					result := filepath.Join(b.dir, "run%2F1.result")
					if is, err := os.ReadFile(result); err != nil || !strings.Contains(string(is), `"failed"`) {
						t.Fatalf("with %q the result is %q, %v", bad, is, err)
					}
					// Without the file that is damaged, and as it was, everything goes on.
					if err := os.Remove(result); err != nil {
						t.Fatal(err)
					}
				}
			})
		})
	}
}
