package site_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"converge.dev/converge/providers"
	"converge.dev/converge/site"
	"converge.dev/converge/trust"
)

// A command is told how the nodes stand, as the site agent knows it.
func TestStandings(t *testing.T) {
	yarded(t, trust.Options{}, func(t *testing.T, y *yard) {
		end := y.attend("n1")
		y.attend("n2", "near", "odd")
		y.fail(providers.Need{Scope: "n2", Provider: "odd"}, "no such device")
		synctest.Wait()
		conn := y.relay()
		ask := func() string {
			t.Helper()
			list, err := site.Standings(t.Context(), conn)
			if err != nil {
				t.Fatal(err)
			}
			for i := range list { // milliseconds are what travels
				if want := y.node(list[i].Name); !list[i].Since.Equal(want.Since.Truncate(time.Millisecond)) || list[i].Agent != want.Agent || list[i].Trust != want.Trust ||
					!list[i].Heard.Equal(want.Heard.Truncate(time.Millisecond)) || list[i].Address != want.Address || strings.Join(list[i].Providers, " ") != strings.Join(want.Providers, " ") {
					t.Errorf("%+v, want %+v", list[i], want)
				}
			}
			var words []string
			for i := range list {
				word, why := list[i].Health()
				words = append(words, fmt.Sprintf("%s %v %s (%s)", list[i].Name, list[i].Connected, word, why))
			}
			return strings.Join(words, "; ")
		}
		if got := ask(); got != "n1 true ok (); n2 true degraded (odd could not be opened: no such device)" {
			t.Error(got)
		}
		end()
		synctest.Wait()
		if got := ask(); !strings.HasPrefix(got, "n1 false away (it is not connected)") {
			t.Error(got)
		}
	})
}

// What was not there yet when a node connected does not keep it degraded for as long as a heartbeat takes to come.
func TestStandingIsAskedAgain(t *testing.T) {
	yarded(t, trust.Options{}, func(t *testing.T, y *yard) {
		var ill atomic.Bool
		ill.Store(true)
		y.health = func(context.Context) error {
			if ill.Load() {
				return errors.New("the switch is off")
			}
			return nil
		}
		y.attend("n1")
		health := func(want string) {
			t.Helper()
			synctest.Wait()
			s := y.node("n1")
			if word, why := s.Health(); word != want {
				t.Errorf("it is %s (%s), want %s", word, why, want)
			}
		}
		time.Sleep(2500 * time.Millisecond)
		health(site.NodeDegraded)
		ill.Store(false)
		time.Sleep(5 * time.Second)
		health(site.NodeOK)
		ill.Store(true)
		time.Sleep(40 * time.Second)
		health(site.NodeDegraded)
		ill.Store(false)
		time.Sleep(40 * time.Second)
		health(site.NodeOK)
	})
}

// A word says the worst: what is away cannot be degraded.
func TestHealthWords(t *testing.T) {
	odd := []site.Missing{{Provider: "odd", Why: "off"}}
	for want, s := range map[string]site.NodeStatus{
		"ok: ":                                       {Connected: true},
		"degraded: odd is unavailable: off":          {Connected: true, Standing: site.Standing{Unwell: odd}},
		"degraded: odd could not be opened: off":     {Connected: true, Standing: site.Standing{Unwell: odd, Missing: odd}},
		"hung: it is connected, and does not answer": {Connected: true, Hung: true, Standing: site.Standing{Unwell: odd}},
		"away: it is not connected":                  {Hung: true, Standing: site.Standing{Unwell: odd}},
	} {
		if word, why := s.Health(); word+": "+why != want {
			t.Errorf("%s: %s, want %s", word, why, want)
		}
	}
}

// A site agent that does not know the question says so.
func TestStandingsOfOlder(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, over := grpc.NewServer(), make(chan struct{})
	go func() {
		defer close(over)
		_ = s.Serve(l)
	}()
	defer func() {
		s.Stop()
		<-over
	}()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := site.Standings(t.Context(), conn); err == nil || !strings.Contains(err.Error(), "older version") {
		t.Error(err)
	}
}
