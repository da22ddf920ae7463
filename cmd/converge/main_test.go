package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"converge.dev/converge/internal/carbidesim/devcert"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema/kinds"
	"converge.dev/converge/schema/signed"
	"converge.dev/converge/site"
	"converge.dev/converge/state"
	"converge.dev/converge/state/etcd"
)

var update = flag.Bool("update", false, "rewrite what the scripts compare")

func TestMain(m *testing.M) {
	if runtime.GOMAXPROCS(0) < 4 { // scripts mostly wait: for leases, locks and other processes
		_ = flag.Set("test.parallel", "4")
	}
	patience = time.Minute // a busy machine may take longer than people wait
	testscript.Main(m, map[string]func(){"converge": main, "crash": crash})
}

// crash is converge with a bug, which strikes as soon as a file named mistake exists, where nothing recovers from it.
func crash() {
	go func() {
		for {
			if _, err := os.Stat("mistake"); err == nil {
				panic("a mistake of ours")
			}
			time.Sleep(5 * time.Millisecond) // between two checks for what another process writes
		}
	}()
	main()
}

// TestScripts runs the scripts of testdata/script, each in its own folder, on the fake world.
func TestScripts(t *testing.T) {
	// Under nohup programs start with SIGHUP ignored, and converge leaves it so. Children of a process that catches it do not.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		UpdateScripts:       *update,
		Setup: func(e *testscript.Env) error { // the race detector makes evaluation slow and large
			e.Setenv("CONVERGE_CLI_ARGS", "-eval-timeout=1m -eval-memory=2048")
			e.Setenv("SEEDED_BUG", os.Getenv("SEEDED_BUG")) // of e2e/mutants
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"status": status, "approved": approved, "await": await, "dump": dump, "jsonlines": jsonLines, "jsonvalue": jsonValue, "inbox": inbox,
			"answer": answer, "changed": changed, "damage": damage, "hold": hold, "kept": kept, "signal": kill, "etcd": serveEtcd, "full": fill, "certificates": certificates,
		},
	})
}

// certificates DIR: makes those of a server on this machine, of a client, and of the authority of both.
func certificates(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: certificates DIR")
	}
	_, err := devcert.Ensure(ts.MkAbs(args[0]), "127.0.0.1")
	ts.Check(err)
}

// status N PROGRAM ARGS: runs a program, which must end with exit status N.
func status(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N PROGRAM ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// approved ARGS: runs converge, which must require the approval of a plan, and runs it again with that.
func approved(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: approved ARGS...")
	}
	status(ts, false, append([]string{"7", "converge"}, args...))
	digest := regexp.MustCompile(`-approve=[0-9a-f]{16}`).FindString(ts.ReadFile("stderr"))
	if digest == "" {
		ts.Fatalf("it does not say how to approve")
	}
	ts.Check(ts.Exec("converge", append(args, digest)...))
}

// await FILE PATTERN: waits until a line of the file matches.
func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: await FILE PATTERN")
	}
	pattern, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	deadline := time.Now().Add(time.Minute)
	for {
		text, err := os.ReadFile(ts.MkAbs(args[0]))
		if err == nil && pattern.Match(text) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%s never matched %s:\n%s", args[0], args[1], text)
		}
		time.Sleep(5 * time.Millisecond) // between two checks for what another process writes
	}
}

// dump WORLD FILE: writes what a world holds, without versions and burned ids.
func dump(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: dump WORLD FILE")
	}
	s, err := kinds.New()
	ts.Check(err)
	w, err := fake.Open(ts.MkAbs(args[0]), s.Kinds())
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(w.Dump()), 0o600))
	ts.Check(w.Close())
}

// jsonlines FILE [TYPE...]: every line is a JSON object with the envelope, the first is the version, and each type is
// present.
func jsonLines(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: jsonlines FILE [TYPE...]")
	}
	types := map[string]bool{}
	for i, text := range strings.Split(strings.TrimSuffix(ts.ReadFile(args[0]), "\n"), "\n") {
		var line map[string]any
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			ts.Fatalf("line %d is not JSON: %v\n%s", i+1, err, text)
		}
		for _, name := range []string{"@level", "@message", "@module", "@timestamp", "type"} {
			if line[name] == nil {
				ts.Fatalf("line %d has no %s\n%s", i+1, name, text)
			}
		}
		if i == 0 && line["type"] != "version" {
			ts.Fatalf("the first line is not the version\n%s", text)
		}
		types[line["type"].(string)] = true
	}
	for _, want := range args[1:] {
		if !types[want] {
			ts.Fatalf("no line of type %s", want)
		}
	}
}

// jsonvalue FILE [KEY...]: the file is one JSON object that has the keys.
func jsonValue(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: jsonvalue FILE [KEY...]")
	}
	var v map[string]any
	d := json.NewDecoder(bytes.NewReader([]byte(ts.ReadFile(args[0]))))
	ts.Check(d.Decode(&v))
	if d.More() {
		ts.Fatalf("more than one JSON value")
	}
	for _, key := range args[1:] {
		if _, ok := v[key]; !ok {
			ts.Fatalf("there is no key %s", key)
		}
	}
}

// store opens the embedded store of a script.
func store(ts *testscript.TestScript, site string) (state.KV, *state.Store) {
	kv, err := etcd.Open(context.Background(), etcd.Options{Dir: ts.MkAbs(".converge")})
	ts.Check(err)
	return kv, state.New(kv, site)
}

// inbox SITE [FILE]: puts a document into the inbox, like a cloud with its own client. Without a file the inbox must be
// empty; with ! it must not.
func inbox(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 1 {
		ts.Fatalf("usage: [!] inbox SITE [FILE [KEYFILE]]")
	}
	kv, s := store(ts, args[0])
	defer func() { ts.Check(kv.Close()) }()
	if len(args) > 1 {
		body := []byte(ts.ReadFile(args[1]))
		if len(args) > 2 {
			key, err := signed.ReadPrivateKey(ts.MkAbs(args[2]))
			ts.Check(err)
			body = signed.Envelope(signed.Sign(key, body), body)
		}
		_, err := kv.Commit(context.Background(), nil, []state.Op{{Key: s.Path() + "/inbox", Value: body}})
		ts.Check(err)
		return
	}
	body, revision, err := s.Inbox(context.Background())
	ts.Check(err)
	if (revision == 0) == neg {
		ts.Fatalf("the inbox holds %q", body)
	}
}

// answer SITE FILE: writes the answer to the cloud about the document in the inbox. With ! there must be none.
func answer(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: [!] answer SITE FILE")
	}
	kv, s := store(ts, args[0])
	defer func() { ts.Check(kv.Close()) }()
	it, err := s.Get(context.Background(), s.Path()+"/inbox/result")
	ts.Check(err)
	if (it.Modified == 0) != neg {
		ts.Fatalf("the cloud is told %q", it.Value)
	}
	var text bytes.Buffer
	if !neg {
		ts.Check(json.Indent(&text, it.Value, "", "  "))
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), append(text.Bytes(), '\n'), 0o600))
}

// hold SITE SCOPE REASON: sets a hold, like an operator's tool.
func hold(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: hold SITE SCOPE REASON")
	}
	kv, s := store(ts, args[0])
	defer func() { ts.Check(kv.Close()) }()
	_, err := s.Commit(context.Background(), nil, []state.Op{s.HoldOp(state.Hold{Scope: args[1], Reason: args[2], By: "operator", At: time.Now().UTC()})})
	ts.Check(err)
}

// kept SITE [MODE]: makes the etcd at the URL in the variable ETCD say that a site agent keeps the site, and which mode it has published;
// without one, it has published none yet.
func kept(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: kept SITE [MODE]")
	}
	ctx := context.Background()
	kv, err := etcd.Open(ctx, etcd.Options{Endpoints: []string{ts.Getenv("ETCD")}})
	ts.Check(err)
	s := state.New(kv, args[0])
	if k, err := s.Kept(ctx); err != nil || k != nil {
		ts.Check(err)
		defer func() { ts.Check(kv.Close()) }()
	} else {
		keeper, err := s.Keep(ctx, state.KeeperInfo{Who: "root@site", PID: 155}, 0, nil)
		ts.Check(err)
		ts.Defer(func() {
			ts.Check(keeper.Close())
			ts.Check(kv.Close())
		})
	}
	if len(args) > 1 {
		body, err := json.Marshal(site.Status{Mode: site.Mode(args[1]), Phase: site.InSync})
		ts.Check(err)
		ts.Check(s.Publish(ctx, "status", body))
	}
}

// damage SITE KEY: spoils a value of the store, or with a KEY that ends in / the last one below it, like a disk.
func damage(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: damage SITE KEY")
	}
	kv, s := store(ts, args[0])
	defer func() { ts.Check(kv.Close()) }()
	key := s.Path() + "/" + args[1]
	if strings.HasSuffix(key, "/") {
		items, err := kv.List(context.Background(), key)
		ts.Check(err)
		key = items[len(items)-1].Key
	}
	_, err := kv.Commit(context.Background(), nil, []state.Op{{Key: key, Value: []byte(`{"v":1,"sum":"0000000000000000","x":1}`)}})
	ts.Check(err)
}

// changed FILE OLD NEW: replaces text in a file, which must contain it.
func changed(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: changed FILE OLD NEW")
	}
	text := ts.ReadFile(args[0])
	if !strings.Contains(text, args[1]) {
		ts.Fatalf("%s does not hold %q:\n%s", args[0], args[1], text)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(strings.ReplaceAll(text, args[1], args[2])), 0o600))
}

// signal NAME: sends a signal to the process that uses the embedded store.
func kill(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: signal INT|TERM|HUP|QUIT|KILL")
	}
	pid, _, _ := strings.Cut(ts.ReadFile(".converge/lock"), " ")
	n, err := strconv.Atoi(pid)
	ts.Check(err)
	sig := map[string]syscall.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP, "QUIT": syscall.SIGQUIT, "KILL": syscall.SIGKILL}[args[0]]
	ts.Check(syscall.Kill(n, sig))
}

// full: makes the etcd at the URL in the variable ETCD refuse writes, as when its space is used up.
func fill(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: full")
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{ts.Getenv("ETCD")}})
	ts.Check(err)
	_, err = etcdserverpb.NewMaintenanceClient(client.ActiveConnection()).Alarm(context.Background(),
		&etcdserverpb.AlarmRequest{Action: etcdserverpb.AlarmRequest_ACTIVATE, Alarm: etcdserverpb.AlarmType_NOSPACE})
	ts.Check(err)
	ts.Check(client.Close())
}

// etcd: starts an etcd that others can reach, at the URL in the variable ETCD.
func serveEtcd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: etcd")
	}
	c := embed.NewConfig()
	c.Dir = ts.MkAbs("etcd-data")
	c.LogLevel = "panic"
	c.UnsafeNoFsync = true
	local := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{local}, []url.URL{local}
	c.ListenPeerUrls, c.AdvertisePeerUrls = nil, []url.URL{{Scheme: "unix", Host: "peer:0"}}
	c.InitialCluster = c.Name + "=" + c.AdvertisePeerUrls[0].String()
	server, err := embed.StartEtcd(c)
	ts.Check(err)
	ts.Defer(server.Close)
	<-server.Server.ReadyNotify()
	ts.Setenv("ETCD", "http://"+server.Clients[0].Addr().String())
}
