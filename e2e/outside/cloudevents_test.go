package outside

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
)

// cloudEvents: the receiver of the CloudEvents project takes the events of a site agent, and they are valid. While it does not, they wait.
func cloudEvents(t *testing.T, program string) {
	const token = "canary-7c0e9b1f"
	var mu sync.Mutex
	var got []cloudevents.Event
	var authorized []string
	away := true
	p, err := cloudevents.NewHTTP()
	if err != nil {
		t.Fatal(err)
	}
	take, err := cloudevents.NewHTTPReceiveHandler(t.Context(), p, func(_ context.Context, e cloudevents.Event) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, e)
	})
	if err != nil {
		t.Fatal(err)
	}
	cloud := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		authorized = append(authorized, r.Header.Get("Authorization"))
		if away {
			mu.Unlock()
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		mu.Unlock()
		take.ServeHTTP(w, r)
	}))
	defer cloud.Close()
	s := openSite(t, program)
	s.write("token", []byte(token+"\n"))
	s.write("converge.yaml", []byte("fake: {world: world.json}\nevents: {webhook: \""+cloud.URL+"/events\", token_file: token}\n"))
	s.run("trust", "init", "-dev", "site.json")
	s.run("put", "site.json")
	log, stop := s.serve("-mode=enforce", "-listen=127.0.0.1:0", "-http=none", "-metrics=none")
	eventually(t, log, "an event waits", func() bool {
		var stands struct {
			Waiting  []cloudevents.Event
			Delivery struct {
				Error string
			}
		}
		if err := json.Unmarshal(s.run("events", "-json"), &stands); err != nil {
			t.Fatal(err)
		}
		return len(stands.Waiting) > 0 && stands.Waiting[0].Type() == "dev.converge.run.ended" && strings.Contains(stands.Delivery.Error, "answers 500")
	})
	mu.Lock()
	away = false
	mu.Unlock()
	var ran cloudevents.Event
	eventually(t, log, "the run was told", func() bool {
		mu.Lock()
		defer mu.Unlock()
		i := slices.IndexFunc(got, func(e cloudevents.Event) bool { return e.Type() == "dev.converge.run.ended" })
		if i >= 0 {
			ran = got[i]
		}
		return i >= 0
	})
	eventually(t, log, "nothing waits", func() bool { return strings.Contains(string(s.run("events")), "No event waits.") })
	stop()
	var run struct{ ID, Status string }
	if err := ran.DataAs(&run); err != nil || run.Status != "applied" || ran.Subject() != "run/"+run.ID || ran.Source() != "/sites/5a2f0a4e-8d1f-4f0e-9b62-0f3f1b2c3d4e" ||
		ran.DataSchema() != "https://converge.dev/events/1/run.ended" || ran.Extensions()["sequence"] == nil || ran.Extensions()["site"] != "fra1" {
		t.Errorf("%v: %s", err, ran)
	}
	for _, e := range got {
		if err := e.Validate(); err != nil {
			t.Errorf("%v: %s", err, e)
		}
	}
	for _, a := range authorized {
		if a != "Bearer "+token {
			t.Errorf("authorized by %q", a)
		}
	}
	if strings.Contains(log(), token) {
		t.Errorf("the token is in the log:\n%s", log())
	}
}

// serve starts a site agent, and returns its log, and what ends it.
func (s *site) serve(args ...string) (log func() string, stop func()) {
	s.Helper()
	at := s.dir + "/serve.log"
	f, err := os.Create(at)
	if err != nil {
		s.Fatal(err)
	}
	cmd := exec.Command(s.program, append([]string{"serve"}, args...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, f, f
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		_ = f.Close()
	})
	s.Cleanup(stop)
	return func() string { return s.read("serve.log") }, stop
}

// eventually waits until something is so.
func eventually(t *testing.T, log func() string, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it is not so that %s:\n%s", what, log())
		}
	}
}
