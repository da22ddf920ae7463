package command

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/schema/kinds"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// What nodes list of a kind is kept in memory only when it shows no secret, and not of what this version does not know.
func TestDiscreet(t *testing.T) {
	known, err := kinds.New()
	if err != nil {
		t.Fatal(err)
	}
	s := &session{app: &app{kinds: known.Kinds()}}
	for kind, want := range map[string]bool{
		"libvirt.domain": true, "ovs.port": true, "host.link": true,
		"libvirt.cloudinit": false, "carbide.dpu_extension_service": false, "future.kind": false,
	} {
		if s.discreet(kind) != want {
			t.Errorf("%s: %v", kind, !want)
		}
	}
}

// A store that is away ends a site agent only when it has never answered; otherwise it is waited for.
func TestKeepsOn(t *testing.T) {
	away := errors.New("no answer")
	for name, c := range map[string]struct {
		answers []error // of the store; nil: this site agent keeps the site
		waits   bool    // another one keeps it when the first answer comes
		leads   int     // how often it keeps the site
		ends    error   // before it is stopped
	}{
		"never there":                    {answers: []error{away}, ends: away},
		"away while it keeps the site":   {answers: []error{nil, away, away, nil}, leads: 2},
		"away while it waits":            {answers: []error{away, nil}, waits: true, leads: 1},
		"another one keeps it meanwhile": {answers: []error{nil, nil}, leads: 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, asked, leads := state.New(mem.New(mem.Options{}), "test"), 0, 0
				ctx, stop := context.WithCancelCause(t.Context())
				over := errors.New("stopped")
				take := func(answered func()) (*state.Keeper, error) {
					if c.waits {
						answered()
					}
					err := c.answers[asked]
					asked++
					if err != nil {
						return nil, err
					}
					return store.Keep(ctx, state.KeeperInfo{}, 0, nil)
				}
				do := func(*state.Keeper) error {
					leads++
					if asked == len(c.answers) {
						stop(over)
						return context.Cause(ctx)
					}
					time.Sleep(time.Minute)
					return state.ErrNotKeeper
				}
				want := c.ends
				if want == nil {
					want = over
				}
				if err := keepOn(ctx, slog.New(slog.DiscardHandler), take, do); !errors.Is(err, want) || leads != c.leads || asked != len(c.answers) {
					t.Errorf("it kept the site %d times, asked %d times and ended with %v; want %d, %d, %v", leads, asked, err, c.leads, len(c.answers), want)
				}
			})
		})
	}
}
