package guard_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/guard"
	"converge.dev/converge/internal/files"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
)

func TestKept(t *testing.T) {
	inside(t, func(t *testing.T, b *bench) {
		b.start()
		_, after := b.three()
		open, err := b.call.Open(t.Context())
		if err != nil || len(open) != 1 || open[0].ID != "run/1" || open[0].Epoch != 5 || len(open[0].Changes) != 5 || open[0].Remaining != within {
			t.Fatalf("open guards are %+v, %v", open, err)
		}
		b.settled(true, true)
		b.settled(false, true) // the verdict does not change
		time.Sleep(time.Hour)
		b.restart(b.boot)
		b.as(after, "an hour later")
		b.settled(false, true)
		if armed, err := b.do("create", bridge, "more", schema.Object{}, nil); armed {
			t.Error("armed after the verdict")
		} else {
			b.class(err, providers.Denied)
		}
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if left := b.files(); len(left) > 0 {
			t.Errorf("after a day there are still %q", left)
		}
		_, err = b.settle(true)
		b.class(err, providers.Absent)
		b.as(after, "a day later")
	})
}

func TestUndoneInTime(t *testing.T) {
	inside(t, func(t *testing.T, b *bench) {
		b.start()
		before, after := b.three()
		time.Sleep(within - time.Millisecond)
		synctest.Wait()
		b.as(after, "right before the deadline")
		time.Sleep(time.Millisecond)
		synctest.Wait()
		b.as(before, "right after the deadline")
		b.settled(true, false)
		b.settled(false, false)
		var order []string
		for _, e := range b.world.Log()[5:] {
			order = append(order, e.Op+" "+e.Call.ID)
			if e.Call.Epoch != 5 {
				t.Errorf("%s %s has epoch %d", e.Op, e.Call.ID, e.Call.Epoch)
			}
		}
		if want := []string{"delete new", "update br", "delete br2", "create old"}; !slices.Equal(order, want) {
			t.Errorf("the undo made the calls %q, want %q", order, want)
		}
		if armed, err := b.do("create", bridge, "more", schema.Object{}, nil); armed {
			t.Error("armed after the verdict")
		} else {
			b.class(err, providers.Denied)
		}
	})
}

func TestSettleUndoes(t *testing.T) {
	inside(t, func(t *testing.T, b *bench) {
		b.start()
		before, _ := b.three()
		b.settled(false, false)
		b.as(before, "after it was settled")
		b.put(bridge, "br", schema.Object{"mode": "later"}) // is nothing that the guard knows of
		before = b.world.Dump()
		b.restart("boot-2")
		b.settled(true, false)
		calls := len(b.world.Log())
		time.Sleep(time.Hour)
		if more := len(b.world.Log()) - calls; more > 0 {
			t.Errorf("%d calls after the end", more)
		}
		b.as(before, "in the next boot")
	})
}

// Nothing is kept when less than ten seconds or a fifth of the time is left; asking never extends a guard.
func TestTooLateToKeep(t *testing.T) {
	for _, c := range []struct {
		within, after time.Duration
		kept          bool
	}{
		{time.Minute, 48 * time.Second, true}, {time.Minute, 48*time.Second + 1, false},
		{30 * time.Second, 20 * time.Second, true}, {30 * time.Second, 20*time.Second + 1, false},
		{10 * time.Second, 0, true}, {10 * time.Second, 1, false},
		{time.Hour, 48 * time.Minute, true}, {time.Hour, 48*time.Minute + 1, false},
	} {
		t.Run(fmt.Sprint(c.within, c.after), func(t *testing.T) {
			inside(t, func(t *testing.T, b *bench) {
				b.start()
				before := b.world.Dump()
				if _, err := b.do("create", bridge, "br", schema.Object{}, func(q *providers.Call) { q.Guard.Within = c.within }); err != nil {
					t.Fatal(err)
				}
				after := b.world.Dump()
				for range 4 { // reading changes nothing
					time.Sleep(c.after / 4)
					if _, err := b.call.Open(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(c.after - 4*(c.after/4))
				b.settled(true, c.kept)
				if c.kept {
					before = after
				}
				time.Sleep(c.within)
				b.as(before, "at the end")
			})
		})
	}
}

func TestDeadlineIsThatOfTheFirst(t *testing.T) {
	inside(t, func(t *testing.T, b *bench) {
		b.start()
		before := b.world.Dump()
		b.must("create", bridge, "one", schema.Object{})
		time.Sleep(within / 2)
		b.must("create", bridge, "two", schema.Object{})
		time.Sleep(within / 2)
		synctest.Wait()
		b.as(before, "after the deadline of the first")
	})
}

// A guard that has no change left does not exist.
func TestWithdrawn(t *testing.T) {
	inside(t, func(t *testing.T, b *bench) {
		b.start()
		if err := b.world.Fail(fake.Fault{Op: "create", Class: providers.Invalid}); err != nil {
			t.Fatal(err)
		}
		armed, err := b.do("create", bridge, "br", schema.Object{}, nil)
		b.class(err, providers.Invalid)
		if left := b.files(); armed || len(left) > 0 {
			t.Errorf("armed %v after a call without an effect; files %q", armed, left)
		}
		_, err = b.settle(true)
		b.class(err, providers.Absent)
	})
}

// A change whose outcome is unknown is undone, also when it comes late.
func TestUnknownOutcome(t *testing.T) {
	for _, effect := range []fake.Effect{fake.EffectAfter, fake.EffectLate} {
		for _, delay := range []time.Duration{0, within - time.Second, within + 5*time.Second} {
			if effect == fake.EffectAfter && delay > 0 {
				continue
			}
			t.Run(fmt.Sprint(effect, delay), func(t *testing.T) {
				inside(t, func(t *testing.T, b *bench) {
					for k, traits := range b.world.Traits {
						traits.EffectWithin = within + 5*time.Second
						b.world.Traits[k] = traits
					}
					b.start()
					before := b.world.Dump()
					if err := b.world.Fail(fake.Fault{Op: "create", Effect: effect, Delay: fake.Duration(delay)}); err != nil {
						t.Fatal(err)
					}
					armed, err := b.do("create", bridge, "br", schema.Object{}, nil)
					b.class(err, providers.Unknown)
					if !armed {
						t.Error("it is not guarded")
					}
					b.settled(false, false)
					b.as(before, "when it was settled")
					time.Sleep(2 * within)
					if err := b.world.Land(); err != nil {
						t.Fatal(err)
					}
					b.as(before, "at the end")
				})
			})
		}
	}
}

func TestNotGuarded(t *testing.T) {
	inside(t, func(t *testing.T, b *bench) {
		b.around = func(a *guard.Around) {
			a.Reaches = func(_ string, c providers.Call) bool { return c.ID != "local" }
		}
		b.start()
		for name, try := range map[string]func() (bool, error){
			"a kind that does not cut off": func() (bool, error) { return b.do("create", note, "n", schema.Object{}, nil) },
			"a call without a guard": func() (bool, error) {
				return b.do("create", bridge, "a", schema.Object{}, func(c *providers.Call) { c.Guard = providers.Guard{} })
			},
			"a change that does not reach": func() (bool, error) { return b.do("create", bridge, "local", schema.Object{}, nil) },
		} {
			if armed, err := try(); armed || err != nil {
				t.Errorf("%s: armed %v, %v", name, armed, err)
			}
		}
		if left := b.files(); len(left) > 0 {
			t.Errorf("there are files: %q", left)
		}
	})
}

// Without the program no change is made.
func TestProgramDown(t *testing.T) {
	inside(t, func(t *testing.T, b *bench) {
		b.wrap()
		before := b.world.Dump()
		armed, err := b.do("create", bridge, "br", schema.Object{}, nil)
		b.class(err, providers.Transient)
		if armed || !strings.Contains(err.Error(), "converge agent guard") {
			t.Errorf("armed %v, %v", armed, err)
		}
		b.as(before, "after the refusal")
		b.class(b.agent.Fence(t.Context(), 6), providers.Transient)
		b.start()
		b.must("create", bridge, "br", schema.Object{})
	})
}

// A program that starts after the deadline undoes at once.
func TestProgramLate(t *testing.T) {
	for _, boot := range []string{"boot-1", "boot-2"} {
		inside(t, func(t *testing.T, b *bench) {
			b.start()
			before, after := b.three()
			b.kill()
			if boot == "boot-1" {
				time.Sleep(10 * within)
			}
			b.as(after, "while nobody is there")
			b.restart(boot)
			synctest.Wait()
			b.as(before, "right after the start in "+boot)
			b.settled(true, false)
		})
	}
}

func TestLimits(t *testing.T) {
	inside(t, func(t *testing.T, b *bench) {
		b.start()
		for name, bad := range map[string]func(*providers.Call){
			"short":   func(c *providers.Call) { c.Guard.Within = 10*time.Second - 1 },
			"long":    func(c *providers.Call) { c.Guard.Within = 24*time.Hour + 1 },
			"long id": func(c *providers.Call) { c.Guard.ID = strings.Repeat("/", 67) },
		} {
			armed, err := b.do("create", bridge, name, schema.Object{}, bad)
			if armed {
				t.Errorf("%s: armed", name)
			}
			b.class(err, providers.Invalid)
		}
		b.must("create", bridge, "br", schema.Object{})
		_, err := b.do("create", bridge, "other", schema.Object{}, func(c *providers.Call) { c.Epoch = 6 })
		b.class(err, providers.Denied)
		_, err = b.do("update", bridge, "br", schema.Object{"mode": "x"}, func(c *providers.Call) { c.Guard.ID = "run/2" })
		b.class(err, providers.Busy)
		_, err = b.agent.Settle(t.Context(), providers.Settling{ID: "run/1", Epoch: 4, Keep: true})
		b.class(err, providers.Denied)
		if o := (*providers.OutdatedError)(nil); !errors.As(err, &o) || o.Stored != 5 {
			t.Errorf("the error is %v", err)
		}
		if len(b.world.Log()) != 1 {
			t.Errorf("calls were made: %+v", b.world.Log())
		}
	})
}

// What was there before is not what the guard may delete, and what others put there is not either.
func TestForeign(t *testing.T) {
	inside(t, func(t *testing.T, b *bench) {
		b.start()
		b.put(bridge, "br", schema.Object{})
		if err := b.world.Fail(fake.Fault{Op: "create", Class: providers.Unknown, Times: 1}); err != nil {
			t.Fatal(err)
		}
		armed, err := b.do("create", bridge, "br", schema.Object{}, nil)
		b.class(err, providers.Exists)
		if armed {
			t.Error("armed")
		}
		if err := b.world.Mend(); err != nil {
			t.Fatal(err)
		}
		b.must("create", bridge, "mine", schema.Object{})
		if err := b.world.Remove(node, bridge, "mine"); err != nil {
			t.Fatal(err)
		}
		if err := b.world.Put(node, bridge, providers.Thing{ID: "mine", Name: "mine", Spec: schema.Object{}}); err != nil {
			t.Fatal(err)
		}
		now := b.world.Dump()
		b.settled(false, false)
		b.as(now, "after the undo")
	})
}

// What others put in the place of a thing that was deleted is not made into that, and the undo says so.
func TestForeignInstead(t *testing.T) {
	inside(t, func(t *testing.T, b *bench) {
		b.start()
		b.put(bridge, "br", schema.Object{"mode": "secure"})
		b.must("delete", bridge, "br", nil)
		if err := b.world.Put(node, bridge, providers.Thing{ID: "br", Name: "br", Spec: schema.Object{"mode": "theirs"}}); err != nil {
			t.Fatal(err)
		}
		now := b.world.Dump()
		_, err := b.settle(false)
		b.class(err, providers.Unknown)
		b.as(now, "after the undo")
	})
}

// An undo that fails is a failure after three tries, and is tried until it works.
func TestUndoFails(t *testing.T) {
	inside(t, func(t *testing.T, b *bench) {
		b.start()
		before := b.world.Dump()
		b.must("create", bridge, "br", schema.Object{})
		if err := b.world.Fail(fake.Fault{Op: "delete", Class: providers.Invalid, Times: 5}); err != nil {
			t.Fatal(err)
		}
		_, err := b.settle(false)
		b.class(err, providers.Unknown)
		if n := b.world.Count("delete"); n != tries {
			t.Errorf("%d tries before the failure, want %d", n, tries)
		}
		b.class(b.agent.Fence(t.Context(), 6), providers.Unknown)
		if open, err := b.call.Open(t.Context()); err != nil || len(open) != 1 || !strings.Contains(open[0].Failed, "could not be undone") || len(open[0].Changes) != 1 {
			t.Errorf("%+v, %v", open, err)
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		b.as(before, "five minutes later")
		b.settled(false, false)
		if err := b.agent.Fence(t.Context(), 6); err != nil {
			t.Error(err)
		}
	})
}

const tries = 3

// A fence undoes what earlier holders armed, and nothing of them is armed afterwards.
func TestFence(t *testing.T) {
	inside(t, func(t *testing.T, b *bench) {
		b.start()
		before, after := b.three()
		if err := b.agent.Fence(t.Context(), 5); err != nil {
			t.Fatal(err)
		}
		b.as(after, "after a fence of the same epoch")
		if err := b.agent.Fence(t.Context(), 6); err != nil {
			t.Fatal(err)
		}
		b.as(before, "after the fence")
		b.settled(true, false)
		_, err := b.do("create", bridge, "br9", schema.Object{}, func(c *providers.Call) { c.Guard.ID = "run/2" })
		b.class(err, providers.Denied)
		b.class(b.agent.Fence(t.Context(), 5), providers.Denied)
	})
}

// What must work after a change must work before it, and the change is kept only once it does again.
func TestProbes(t *testing.T) {
	for _, keep := range []bool{false, true} {
		inside(t, func(t *testing.T, b *bench) {
			works := true
			b.options = func(o *guard.Options) {
				o.Dial = func(_ context.Context, network, address string) (net.Conn, error) {
					if !works || network != "tcp" || address != "192.0.2.1:53" {
						return nil, errors.New("no route to host")
					}
					c, _ := net.Pipe()
					return c, nil
				}
			}
			b.around = func(a *guard.Around) { a.Probes = []string{"tcp:192.0.2.1:53"} }
			b.start()
			works = false
			_, err := b.do("create", bridge, "br", schema.Object{}, nil)
			b.class(err, providers.Transient)
			works = true
			b.must("create", bridge, "br", schema.Object{})
			works = false
			if keep {
				_, err = b.settle(true)
				b.class(err, providers.Transient)
				if want := "what must work after the change does not: tcp:192.0.2.1:53: no route to host"; !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want %q", err, want)
				}
				works = true
			}
			b.settled(keep, keep)
			b.around = func(a *guard.Around) { a.Probes = []string{"tcp:gateway:53"} }
			b.wrap()
			_, err = b.do("create", bridge, "br2", schema.Object{}, func(c *providers.Call) { c.Guard.ID = "run/2" })
			b.class(err, providers.Invalid)
		})
	}
}

// A call that is in progress at the deadline is cancelled; one that goes on all the same is undone once more when it has ended.
func TestCallInProgress(t *testing.T) {
	for _, hangs := range []time.Duration{0, 3 * time.Second, time.Minute} {
		t.Run(hangs.String(), func(t *testing.T) {
			inside(t, func(t *testing.T, b *bench) {
				b.start()
				before := b.world.Dump()
				b.world.Hook = func(op string, at fake.Moment, c providers.Call) {
					if op == "create" && at == fake.Before {
						time.Sleep(within + hangs) // it does not see that it is cancelled
					}
				}
				p := b.world.Provider("net", node)
				for i, k := range p.Kinds {
					p.Kinds[i].Kind = deaf{k.Kind}
				}
				b.agent = guard.Around{Client: b.call, Source: guard.Source{Provider: "net", Scope: node, Site: schema.Site{Name: "lab", ID: site}}}.Wrap(p)
				done := make(chan error, 1)
				go func() {
					_, err := b.do("create", bridge, "br", schema.Object{}, nil)
					done <- err
				}()
				time.Sleep(time.Second)
				_, err := b.settle(true)
				b.class(err, providers.Transient) // not while it is in progress
				if err := <-done; err != nil {
					t.Errorf("the call: %v", err)
				}
				b.settled(true, false)
				b.as(before, "when it was settled")
			})
		})
	}
}

// A call in progress ends when its time is over, or the program is killed.
func TestCallIsCancelled(t *testing.T) {
	for name, after := range map[string]time.Duration{"deadline": within, "killed": time.Second} {
		t.Run(name, func(t *testing.T) {
			inside(t, func(t *testing.T, b *bench) {
				b.start()
				before := b.world.Dump()
				p := b.world.Provider("net", node)
				for i, k := range p.Kinds {
					p.Kinds[i].Kind = waits{k.Kind}
				}
				b.agent = guard.Around{Client: b.call, Source: guard.Source{Provider: "net", Scope: node, Site: schema.Site{Name: "lab", ID: site}}}.Wrap(p)
				if name == "killed" {
					go func() {
						time.Sleep(after)
						b.kill()
					}()
				}
				start := time.Now()
				armed, err := b.do("create", bridge, "br", schema.Object{}, nil)
				b.class(err, providers.Unknown)
				if took := time.Since(start); !armed || took != after {
					t.Errorf("armed %v, and it took %v", armed, took)
				}
				if name == "killed" {
					synctest.Wait() // until it has ended
					b.start()
				}
				b.settled(false, false)
				b.as(before, "when it was settled")
			})
		})
	}
}

// waits is a kind whose creates have their effect and never return, except that they obey the end of their context.
type waits struct{ providers.Kind }

func (w waits) Create(ctx context.Context, c providers.Call) error {
	if err := w.Kind.Create(ctx, c); err != nil {
		return err
	}
	<-ctx.Done()
	return &providers.Error{Op: "create", Ref: c.Ref, Class: providers.Unknown, Err: context.Cause(ctx)}
}

// deaf is a kind that does not obey the end of its context.
type deaf struct{ providers.Kind }

func (d deaf) Create(ctx context.Context, c providers.Call) error {
	return d.Kind.Create(context.WithoutCancel(ctx), c)
}

// When the agent is killed during a call, the guard undoes what the call did.
func TestAgentKilled(t *testing.T) {
	inside(t, func(t *testing.T, b *bench) {
		b.start()
		before := b.world.Dump()
		// The connection of the agent ends with it, without a word.
		var conns []net.Conn
		b.call = guard.DialWith(func(ctx context.Context) (net.Conn, error) {
			c, err := b.dial(ctx)
			conns = append(conns, c)
			return c, err
		})
		b.wrap()
		b.world.Hook = func(op string, at fake.Moment, c providers.Call) {
			if op == "create" && at == fake.After {
				conns[0].Close()
				synctest.Wait()
			}
		}
		if armed, err := b.do("create", bridge, "br", schema.Object{}, nil); err != nil || !armed {
			t.Fatalf("armed %v, %v", armed, err)
		}
		if b.world.Dump() == before {
			t.Fatal("the call had no effect")
		}
		time.Sleep(within)
		synctest.Wait()
		b.as(before, "after the deadline")
		b.settled(true, false)
	})
}

// Clock jumps do not make a guard act early or late: it follows the uptime alone.
func TestClockJumps(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for _, d := range []time.Duration{time.Second, 10 * time.Second, time.Minute, 10 * time.Minute, time.Hour, 24 * time.Hour, 30 * 24 * time.Hour, year, 5 * year, 10 * year} {
		t.Run("forward "+d.String(), func(t *testing.T) {
			inside(t, func(t *testing.T, b *bench) {
				b.start()
				before, after := b.three()
				b.kill()
				time.Sleep(d) // all that is called time, except the uptime
				b.skew -= d
				b.start()
				time.Sleep(within - time.Millisecond)
				synctest.Wait()
				b.as(after, "right before the deadline")
				time.Sleep(time.Millisecond)
				synctest.Wait()
				b.as(before, "at the deadline")
			})
		})
		t.Run("back "+d.String(), func(t *testing.T) {
			inside(t, func(t *testing.T, b *bench) {
				b.start()
				before, after := b.three()
				b.kill()
				b.skew += min(d, within-time.Second) // time passes, and the clock says that it does not
				b.start()
				time.Sleep(max(within-d, time.Second) - time.Millisecond)
				synctest.Wait()
				b.as(after, "right before the deadline")
				time.Sleep(time.Millisecond)
				synctest.Wait()
				b.as(before, "at the deadline")
			})
		})
	}
	t.Run("suspended", func(t *testing.T) {
		inside(t, func(t *testing.T, b *bench) {
			b.start()
			before, _ := b.three()
			time.Sleep(time.Second)
			b.shift(within) // timers stood still, the uptime did not
			time.Sleep(3 * time.Second)
			synctest.Wait()
			b.as(before, "soon after the machine woke up")
		})
	})
}

// One program serves a directory, on a socket that only its owner can use.
func TestSocket(t *testing.T) {
	b := newBench(t)
	ctx, stop := context.WithCancelCause(t.Context())
	up := make(chan struct{})
	o := guard.Options{
		Dir: b.dir, Logger: logger(up),
		Open: func(context.Context, guard.Source) (*providers.Provider, error) {
			return b.world.Provider("net", node), nil
		},
	}
	ended := make(chan error, 1)
	go func() { ended <- guard.Run(ctx, o) }()
	<-up
	if err := guard.Run(t.Context(), o); !errors.Is(err, files.ErrInUse) {
		t.Errorf("a second program: %v", err)
	}
	modes(t, b.dir)
	b.call = guard.Dial(b.dir)
	b.wrap()
	_, after := b.three()
	b.settled(true, true)
	b.as(after, "kept")
	modes(t, b.dir)
	over := errors.New("over")
	stop(over)
	if err := <-ended; !errors.Is(err, over) {
		t.Errorf("it ended with %v", err)
	}
	_, err := b.call.Open(t.Context())
	b.class(err, providers.Transient)
}
