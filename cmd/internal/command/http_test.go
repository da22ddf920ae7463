package command

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"converge.dev/converge/internal/loopback"
	"converge.dev/converge/site/api"
	"converge.dev/converge/state"
)

// What a site agent serves, logs and sends as traces about a site whose document has a secret, is about that site, and has the secret nowhere.
func TestServeShowsTheSite(t *testing.T) {
	t.Parallel()
	const canary = "canary-9b1f27c04de8"
	b := bench{t, t.TempDir()}
	for name, text := range map[string]string{
		"site.json":     string(inboxDocument("fra1", siteID, 1, allowed)),
		"converge.yaml": "site: fra1\nfake: {world: world.json}\nsecrets: {env: [IMAGE_TOKEN]}\n",
	} {
		if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	var sent bytes.Buffer
	traces := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = io.Copy(&sent, r.Body)
	}))
	defer traces.Close()
	seen := func() string {
		mu.Lock()
		defer mu.Unlock()
		return sent.String()
	}
	late := false // the machine is so slow that the traces were dropped
	environ := []string{"IMAGE_TOKEN=" + canary, "OTEL_EXPORTER_OTLP_ENDPOINT=" + traces.URL, "OTEL_EXPORTER_OTLP_COMPRESSION=none"}
	for _, line := range []string{"trust init -dev site.json", "apply -auto-approve -log-level=warn site.json"} {
		name, args, _ := strings.Cut(line, " ")
		cmd, said := b.command(name, args)
		cmd.Env = append(cmd.Env, environ...)
		if status, out := b.ended(cmd, said); status != exitDone {
			t.Fatalf("%s: exit status %d\n%s", line, status, out)
		} else {
			late = late || strings.Contains(out, "not sent in time")
		}
	}
	for _, word := range []string{"run apply", "create carbide.os_image", "converge.outcome", "applied"} {
		if !late && !strings.Contains(seen(), word) {
			t.Errorf("the traces lack %q", word)
		}
	}

	web, metrics := loopback.Address(t), loopback.Address(t)
	cmd, _ := b.command("serve", "-listen=127.0.0.1:0 -log-format=json -http="+web+" -metrics="+metrics)
	cmd.Env, cmd.Stderr = append(cmd.Env, environ...), nil
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	var logged bytes.Buffer
	lines := bufio.NewScanner(io.TeeReader(log, &logged))
	await := func(text string) {
		t.Helper()
		for lines.Scan() {
			var line struct{ Time, Level, Msg, Component string }
			if err := json.Unmarshal(lines.Bytes(), &line); err != nil || line.Time == "" || line.Level == "" || line.Msg == "" || line.Component != "serve" {
				t.Errorf("no line of the log: %v\n%s", err, lines.Text())
			}
			if strings.Contains(lines.Text(), text) {
				return
			}
		}
		t.Fatalf("the log ended without %q:\n%s", text, logged.String())
	}
	await(`"phase":"in-sync"`)
	go func() { _, _ = io.Copy(io.Discard, log) }()

	get := func(url string) string {
		t.Helper()
		res, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(body), canary) {
			t.Errorf("%s shows the secret:\n%s", url, body)
		}
		return string(body)
	}
	var runs struct{ Runs []state.Run }
	if err := json.Unmarshal([]byte(get("http://"+web+"/v1/runs")), &runs); err != nil || len(runs.Runs) != 1 {
		t.Fatalf("%v, %+v", err, runs)
	}
	for _, path := range api.Paths() {
		body := get("http://" + web + strings.ReplaceAll(path, "{id}", runs.Runs[0].ID))
		for deadline := time.Now().Add(time.Minute); path == "/v1/inventory" && strings.Contains(body, `"items":[]`) && time.Now().Before(deadline); {
			time.Sleep(50 * time.Millisecond) // it is recorded beside the rounds
			body = get("http://" + web + path)
		}
		if want := map[string]string{
			"/state": `"name":"provider/site/carbide","state":"ok"`, "/v1/resources": `"auth_token":"(sensitive`, "/v1/site": `"site":"fra1"`,
			"/v1/runs/{id}": `"ref":"site/carbide.os_image/img"`, "/v1/drift": `"recorded":2`,
			"/v1/inventory": `"ref":"site/carbide.os_image/img"`, "/v1/plans": `"waiting":[]`,
		}[path]; !strings.Contains(body, want) {
			t.Errorf("%s lacks %s:\n%s", path, want, body)
		}
	}
	if body := get("http://" + metrics + "/metrics"); !strings.Contains(body, `converge_status_phase{phase="in-sync"} 1`) || !strings.Contains(body, "converge_keeper 1") {
		t.Errorf("%s", body)
	} else {
		promtool(t, body)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if strings.Contains(logged.String(), canary) || strings.Contains(seen(), canary) {
		t.Error("the log or the traces have the secret")
	}
}

// promtool has Prometheus' own program check metrics. Where it is not installed, CONVERGE_REAL makes that an error.
func promtool(t *testing.T, metrics string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("CONVERGE_REAL") != "" {
			t.Errorf("the package prometheus is not installed: %v", err)
		}
		return
	}
	check := exec.Command(path, "check", "metrics")
	check.Stdin = strings.NewReader(metrics)
	if out, err := check.CombinedOutput(); err != nil || len(out) > 0 { // what it advises counts, too
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}
