package remote_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"converge.dev/converge/agent/task"
	"converge.dev/converge/internal/dsse"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/providers/remote"
	"converge.dev/converge/providers/remote/remotepb"
	"converge.dev/converge/providers/wire"
	"converge.dev/converge/providers/wire/wirepb"
	"converge.dev/converge/schema"
)

// What a node offers. A call that is in neither list must be put into one by whoever adds it: what changes the node must be a task.
var (
	readCalls   = []string{"Describe", "List", "Get", "Watch", "Identify", "Build", "Health", "Obstacles"}
	actionCalls = []string{"Create", "Update", "Delete", "Fence", "Settle"}
)

// TestEveryCallIsReadOrTask: a node answers the reads of the contract, and refuses every other call that is not a task.
func TestEveryCallIsReadOrTask(t *testing.T) {
	n := newNode(t, newWorld())
	all := wirepb.File_providers_wire_wirepb_providers_proto.Services().ByName("Providers").Methods()
	for i := range all.Len() {
		m := all.Get(i)
		name := string(m.Name())
		message := func(d protoreflect.MessageDescriptor) proto.Message {
			mt, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
			if err != nil {
				t.Fatal(err)
			}
			return mt.New().Interface()
		}
		full := fmt.Sprintf("/%s/%s", m.Parent().FullName(), name)
		var err error
		if m.IsStreamingServer() {
			var stream grpc.ClientStream
			if stream, err = n.conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, full); err == nil {
				err = errors.Join(stream.SendMsg(message(m.Input())), stream.CloseSend(), stream.RecvMsg(message(m.Output())))
			}
		} else {
			err = n.conn.Invoke(t.Context(), full, message(m.Input()), message(m.Output()))
		}
		absent := err != nil && strings.Contains(err.Error(), "method "+name+" not implemented")
		switch {
		case slices.Contains(readCalls, name) == slices.Contains(actionCalls, name):
			t.Errorf("%s is neither a read nor an action: decide which, see the reads and actions of package remote", name)
		case slices.Contains(readCalls, name) == absent:
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := all.Len(); n != len(readCalls)+len(actionCalls) {
		t.Errorf("there are %d calls", n)
	}

	direct := wirepb.NewProvidersClient(n.conn)
	request := &wirepb.CallRequest{Ref: nodeName + "/lab.switch/s1", Id: "s1", Want: []byte(`{}`), Key: "k", Epoch: 1}
	_, create := direct.Create(t.Context(), request)
	_, update := direct.Update(t.Context(), request)
	_, del := direct.Delete(t.Context(), request)
	_, fence := direct.Fence(t.Context(), &wirepb.FenceRequest{Which: &wirepb.Which{Scope: nodeName, Name: "lab"}, Epoch: 9})
	for _, err := range []error{create, update, del, fence} {
		if status.Code(err) != codes.Unimplemented {
			t.Errorf("without a task: %v", err)
		}
	}
	if asked, _ := n.requests(); asked != 0 || n.ledger.Standing().Epoch != 1 {
		t.Errorf("the far side was asked %d times, and the epoch is %d", asked, n.ledger.Standing().Epoch)
	}
}

// params returns parameters that differ from those of a good call.
func params(t *testing.T, change func(*wirepb.CallRequest)) func(*wirepb.CallRequest) []byte {
	return func(c *wirepb.CallRequest) []byte {
		change(c)
		return marshal(t, c)
	}
}

// alien is a field that no version knows.
func alien() []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, 999, protowire.VarintType), 1)
}

// TestForgedTasks: a task that is not exactly what the site signed for this node, or that contradicts itself, is refused and has no effect.
func TestForgedTasks(t *testing.T) {
	good := key("site")
	tasks := func(change func(*task.Task)) []byte { return forged(t, good, nil, change) }
	resealed := func(kind string, signers ...ed25519.PrivateKey) []byte {
		e, err := dsse.Open(tasks(nil), task.MaxSize)
		if err != nil {
			t.Fatal(err)
		}
		return dsse.Seal(kind, e.Payload, signers...)
	}
	fenceFor := func(which *wirepb.Which, epoch int64, extra ...byte) []byte {
		return forged(t, good, nil, func(tk *task.Task) {
			tk.Action, tk.Key, tk.Epoch = task.Fence, "", 2
			tk.Params = append(marshal(t, &wirepb.FenceRequest{Which: which, Epoch: epoch}), extra...)
		})
	}
	here := &wirepb.Which{Scope: nodeName, Name: "lab"}
	head := func() []byte {
		h := task.Head{Site: siteID, Node: nodeName, Epoch: 1, Now: time.Now().UTC(), Trust: 1}
		e, err := h.Sign(good)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	n := newNode(t, newWorld())
	for _, c := range []struct {
		name  string
		task  []byte
		class providers.Class
		code  string
	}{
		{"nothing", nil, providers.Denied, "envelope"},
		{"of an unknown key", forged(t, key("thief"), nil, nil), providers.Transient, "key"},
		{"of the node's own key", forged(t, key("node"), nil, nil), providers.Transient, "key"},
		{"of two keys", resealed(task.Type, good, key("thief")), providers.Denied, "signatures"},
		{"in the name of another type", resealed(task.HeadType, good), providers.Denied, "type"},
		{"a head", head(), providers.Denied, "type"},
		{"for another node", tasks(func(tk *task.Task) { tk.Node = "gpu-02" }), providers.Denied, "node"},
		{"for another site", tasks(func(tk *task.Task) { tk.Site = "other" }), providers.Denied, "site"},
		{"of another epoch", tasks(func(tk *task.Task) { tk.Epoch = 2 }), providers.Invalid, "params"},
		{"of another key of idempotency", tasks(func(tk *task.Task) { tk.Key = "other" }), providers.Invalid, "params"},
		{"from the future", tasks(func(tk *task.Task) {
			tk.NotBefore, tk.Expires = tk.NotBefore.Add(5*time.Minute), tk.Expires.Add(5*time.Minute)
		}), providers.Transient, "not-before"},
		{"from the past", tasks(func(tk *task.Task) {
			tk.NotBefore, tk.Expires = tk.NotBefore.Add(-5*time.Minute), tk.Expires.Add(-5*time.Minute)
		}), providers.Transient, "expired"},
		{"about another node", forged(t, good, params(t, func(c *wirepb.CallRequest) { c.Ref = "gpu-02/lab.switch/s1" }), nil), providers.Invalid, "params"},
		{"about the site", forged(t, good, params(t, func(c *wirepb.CallRequest) { c.Ref = "site/lab.switch/s1" }), nil), providers.Invalid, "params"},
		{"about nothing", forged(t, good, params(t, func(c *wirepb.CallRequest) { c.Ref = "" }), nil), providers.Invalid, "params"},
		{"with another epoch inside", forged(t, good, params(t, func(c *wirepb.CallRequest) { c.Epoch = 7 }), nil), providers.Invalid, "params"},
		{"with another key inside", forged(t, good, params(t, func(c *wirepb.CallRequest) { c.Key = "l" }), nil), providers.Invalid, "params"},
		{"with no message inside", forged(t, good, func(*wirepb.CallRequest) []byte { return []byte{0xff, 0xff} }, nil), providers.Invalid, "params"},
		{"with an unknown field", forged(t, good, func(c *wirepb.CallRequest) []byte { return append(marshal(t, c), alien()...) }, nil), providers.Invalid, "params"},
		{"with an unknown field in the mark", forged(t, good, func(c *wirepb.CallRequest) []byte {
			c.Mark = &wirepb.Mark{Site: siteID}
			c.Mark.ProtoReflect().SetUnknown(alien())
			return marshal(t, c)
		}, nil), providers.Invalid, "params"},
		{"a fence of another node", fenceFor(&wirepb.Which{Scope: "gpu-02", Name: "lab"}, 2), providers.Invalid, "params"},
		{"a fence of nothing", fenceFor(nil, 2), providers.Invalid, "params"},
		{"a fence with another epoch inside", fenceFor(here, 99), providers.Invalid, "params"},
		{"a fence with an unknown field", fenceFor(here, 2, alien()...), providers.Invalid, "params"},
		{"a call in place of a fence", forged(t, good, nil, func(tk *task.Task) { tk.Action = task.Fence }), providers.Invalid, "params"},
		{"a fence in place of a call", tasks(func(tk *task.Task) { tk.Params = marshal(t, &wirepb.FenceRequest{Which: here, Epoch: 1}) }), providers.Invalid, "params"},
	} {
		r, err := n.raw(c.task)
		f, ok := wire.FailureOf(err)
		if r != nil || !ok || f.GetClass() != string(c.class) || f.GetCode() != c.code {
			t.Errorf("a task %s: %v (class %q, check %q), want %s by the check %s", c.name, err, f.GetClass(), f.GetCode(), c.class, c.code)
		}
	}
	if asked, _ := n.requests(); asked != 0 || n.ledger.Standing().Epoch != 1 {
		t.Errorf("the far side was asked %d times, and the epoch is %d", asked, n.ledger.Standing().Epoch)
	}
	if _, err := n.raw(tasks(nil)); err != nil {
		t.Errorf("a good task: %v", err)
	}
	if _, made := n.requests(); made != 1 {
		t.Errorf("a good task was carried out %d times", made)
	}
}

// TestChangedTasks: no changed byte of a task gets through.
func TestChangedTasks(t *testing.T) {
	n := newNode(t, newWorld())
	envelope := forged(t, key("site"), nil, nil)
	for i := 0; i < len(envelope); i += 7 {
		changed := bytes.Clone(envelope)
		changed[i] ^= 1
		if e, err := dsse.Open(changed, task.MaxSize); err == nil && e.Verified(public(key("site"))) {
			continue // the key's name, which is a hint
		}
		if r, err := n.raw(changed); err == nil {
			t.Errorf("byte %d was changed: %v", i, r)
		}
	}
	if asked, _ := n.requests(); asked != 0 {
		t.Errorf("the far side was asked %d times", asked)
	}
}

// TestForgedResults: nothing but the node's own signature over this very task ends it.
func TestForgedResults(t *testing.T) {
	result := func(envelope []byte, signer ed25519.PrivateKey, change func(*task.Result)) []byte {
		d, err := task.Digest(envelope)
		if err != nil {
			t.Fatal(err)
		}
		r := task.Result{Task: d, Node: nodeName, At: time.Now().UTC(), Answer: nil}
		if change != nil {
			change(&r)
		}
		e, err := r.Sign(signer)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	other := forged(t, key("site"), nil, nil)
	for name, forge := range map[string]func([]byte) []byte{
		"nothing":           func([]byte) []byte { return nil },
		"the task itself":   func(e []byte) []byte { return e },
		"of the site's key": func(e []byte) []byte { return result(e, key("site"), nil) },
		"of a thief":        func(e []byte) []byte { return result(e, key("thief"), nil) },
		"of another task":   func([]byte) []byte { return result(other, key("node"), nil) },
		"of another node":   func(e []byte) []byte { return result(e, key("node"), func(r *task.Result) { r.Node = "gpu-02" }) },
		"without an outcome": func(e []byte) []byte {
			return result(e, key("node"), func(r *task.Result) { r.Answer = []byte{0xff} })
		},
		"signed as a task": func(e []byte) []byte {
			in, err := dsse.Open(result(e, key("node"), nil), task.MaxSize)
			if err != nil {
				t.Fatal(err)
			}
			return dsse.Seal(task.Type, in.Payload, key("node"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newNode(t, newWorld()).site()
				s.calls.forge = func(e []byte) *remotepb.DoResponse { return &remotepb.DoResponse{Result: forge(e)} }
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				told(t, s.do(ctx, task.Create, s.prepare(task.Create, "k")), task.Create, providers.Unknown, false)
				if err := s.p.Fence(ctx, 1); err == nil {
					t.Error("fenced")
				}
			})
		})
	}
}

// TestForgedHeads: a head that is not the site's, not this node's or not fresh does not make a node work.
func TestForgedHeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newNode(t, newWorld()).site()
		head := func(signer ed25519.PrivateKey, change func(*task.Head)) []byte {
			h := task.Head{Site: siteID, Node: nodeName, Epoch: 1, Now: time.Now().UTC(), Trust: 1}
			if change != nil {
				change(&h)
			}
			e, err := h.Sign(signer)
			if err != nil {
				t.Fatal(err)
			}
			return e
		}
		old := head(key("site"), nil)
		time.Sleep(remote.Stale + time.Second)
		for name, h := range map[string][]byte{
			"an old one":       old,
			"of a thief":       head(key("thief"), nil),
			"of another node":  head(key("site"), func(h *task.Head) { h.Node = "gpu-02" }),
			"of another site":  head(key("site"), func(h *task.Head) { h.Site = "other" }),
			"from the future":  head(key("site"), func(h *task.Head) { h.Now = h.Now.Add(2 * time.Minute) }),
			"a task":           forged(t, key("site"), nil, nil),
			"nothing":          nil,
			"not even a head!": []byte("{}"),
		} {
			if _, err := remotepb.NewNodeClient(s.conn).Beat(t.Context(), &remotepb.BeatRequest{Head: h}); (err == nil) != (h == nil) {
				t.Errorf("%s: %v", name, err)
			}
			told(t, s.do(t.Context(), task.Create, s.prepare(task.Create, "k")), task.Create, providers.Transient, false)
		}
		// That of a replica that has not noticed yet that another one leads is as fresh, and changes nothing else.
		fence5 := func() { _ = s.beat(1); fence(t, s, 5) }
		fence5()
		time.Sleep(remote.Stale)
		for _, epoch := range []int64{1, 9} {
			if _, err := remotepb.NewNodeClient(s.conn).Beat(t.Context(), &remotepb.BeatRequest{Head: head(key("site"), func(h *task.Head) { h.Epoch, h.Seq = epoch, 100 })}); err != nil {
				t.Error(err)
			}
		}
		if st := s.ledger.Standing(); st.Epoch != 5 || st.Seq != 0 {
			t.Errorf("heads of other epochs have changed the ledger: %+v", st)
		}
	})
}

// TestFence: a fence ends once nothing of an earlier epoch is in progress, and from its beginning nothing earlier begins.
func TestFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newWorld())
		old, next := n.site(), n.site()
		fence(t, old, 1)
		release := make(chan bool)
		n.world.Hook = func(op string, when fake.Moment, _ providers.Call) {
			if op == "create" && when == fake.Before {
				<-release
			}
		}
		running, fenced := make(chan error, 1), make(chan error, 1)
		call := old.prepare(task.Create, "k")
		go func() { running <- old.do(t.Context(), task.Create, call) }()
		synctest.Wait()

		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := next.p.Fence(short, 2); err == nil {
			t.Error("fenced while a task of the old epoch runs")
		}
		go func() { fenced <- next.p.Fence(t.Context(), 2) }()
		synctest.Wait()
		if len(fenced) != 0 {
			t.Fatal("fenced while a task of the old epoch runs")
		}
		second := call
		second.Ref, second.ID, second.Key = refTo("s2"), "s2", "k2"
		err := old.kind("lab.switch").Create(t.Context(), second)
		var outdated *providers.OutdatedError
		if providers.ClassOf(err) != providers.Denied || !errors.As(err, &outdated) || outdated.Stored != 2 || outdated.Epoch != 1 {
			t.Errorf("a task of the old epoch while the new one waits: %v", err)
		}
		second.Epoch = 2
		if err := next.kind("lab.cable").Delete(t.Context(), providers.Call{Ref: schema.Ref{Scope: nodeName, Kind: "lab.cable", Name: "c"}, ID: "c", Key: "k3", Epoch: 2}); err != nil {
			t.Errorf("a task of the new epoch while the old one ends: %v", err)
		}

		close(release)
		synctest.Wait()
		if err := errors.Join(<-running, <-fenced); err != nil {
			t.Error(err)
		}
		if err := next.p.Fence(t.Context(), 2); err != nil {
			t.Errorf("again: %v", err)
		}
		err = old.p.Fence(t.Context(), 1)
		if providers.ClassOf(err) != providers.Denied || !errors.As(err, &outdated) || outdated.Stored != 2 {
			t.Errorf("a lower epoch: %v", err)
		}
		n.restart()
		if err := next.beat(2); err != nil {
			t.Fatal(err)
		}
		if err := old.p.Fence(t.Context(), 1); providers.ClassOf(err) != providers.Denied {
			t.Errorf("a lower epoch after a restart: %v", err)
		}
		second.Epoch = 1
		_, before := n.calls.last()
		if err := next.kind("lab.switch").Create(t.Context(), second); providers.ClassOf(err) != providers.Denied || !errors.As(err, &outdated) {
			t.Errorf("a call of an epoch that this process has ended itself: %v", err)
		}
		if _, sent := n.calls.last(); sent != before {
			t.Error("it was sent")
		}
	})
}

// TestFenceFaults: a fence may be repeated, and is.
func TestFenceFaults(t *testing.T) {
	for name, fs := range map[string][]fault{"lost": {lost}, "unanswered": {unanswered, unanswered}, "twice": {twice}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newNode(t, newWorld()).site()
				s.calls.fail(fs...)
				fence(t, s, 3)
				if st := s.ledger.Standing(); st.Epoch != 3 {
					t.Errorf("the epoch is %d", st.Epoch)
				}
				s.cut()
				s.later(10*time.Second, s.connect)
				fence(t, s, 3)
			})
		})
	}
}

// TestLostAnswerAcrossFence: who lost the lock is not told that nothing happened, when it did.
func TestLostAnswerAcrossFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newWorld())
		old, next := n.site(), n.site()
		old.calls.fail(func(ctx context.Context, deliver func(context.Context) error) error {
			_ = deliver(ctx)
			if err := next.p.Fence(t.Context(), 2); err != nil {
				t.Error(err)
			}
			return errCut
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		told(t, old.do(ctx, task.Create, old.prepare(task.Create, "k")), task.Create, providers.Unknown, false)
		if asked, made := n.requests(); asked != 1 || made != 1 {
			t.Errorf("the far side was asked %d times and did it %d times", asked, made)
		}
	})
}

// TestFenceOfWhatIsGone: a fence of a provider that the agent no longer serves fails, and does not go on for ever.
func TestFenceOfWhatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newNode(t, newWorld()).site()
		s.serve = func() *providers.Provider { return s.world.Provider("rig", nodeName) }
		s.restart()
		if err := s.beat(1); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := s.p.Fence(t.Context(), 1); err == nil || time.Since(began) > time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		told(t, s.do(t.Context(), task.Create, s.prepare(task.Create, "k")), task.Create, providers.Unsupported, false)
	})
}

// TestPermit: who lost the lock while it waited for the connection sends nothing any more.
func TestPermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newNode(t, newWorld()).site()
		fence(t, s, 1)
		call := s.prepare(task.Create, "k")
		var over bool
		defer s.p.Permit.Bind(func() error {
			if over {
				return errors.New("the lock is lost")
			}
			return nil
		})()
		_, before := s.calls.last()
		s.wait = func() { over = true }
		told(t, s.do(t.Context(), task.Create, call), task.Create, providers.Transient, false)
		if _, sent := s.calls.last(); sent != before {
			t.Errorf("%d tasks were sent without a permit", sent-before)
		}

		over, s.wait = false, nil
		s.calls.fail(func(ctx context.Context, deliver func(context.Context) error) error {
			over = true
			return unanswered(ctx, deliver)
		})
		told(t, s.do(t.Context(), task.Create, call), task.Create, providers.Unknown, false)
		if _, sent := s.calls.last(); sent != before+1 {
			t.Errorf("%d tasks were sent, want one", sent-before)
		}
	})
}

// TestSecrets: what a call sets, and what a provider says, is neither on the node's disk nor in a log.
func TestSecrets(t *testing.T) {
	const canary = "hunter2-hunter2-hunter2"
	synctest.Test(t, func(t *testing.T) {
		s := newNode(t, newWorld()).site()
		said := func(message string) {
			if err := errors.Join(s.world.Mend(), s.world.Fail(fake.Fault{Op: "any", Class: providers.Invalid, Message: message})); err != nil {
				t.Fatal(err)
			}
		}
		call := s.prepare(task.Create, "k")
		call.Want = schema.Object{"note": canary}

		said("it is " + canary)
		if err := s.do(t.Context(), task.Create, call); err == nil || !strings.Contains(err.Error(), canary) {
			t.Errorf("the caller, who knows it, is told %v", err)
		}
		said("it is " + canary)
		s.calls.fail(unanswered)
		err := s.do(t.Context(), task.Create, call)
		told(t, err, task.Create, providers.Invalid, false)
		if strings.Contains(err.Error(), canary) {
			t.Errorf("it was kept for the second answer: %v", err)
		}
		call.Want["enabled"] = canary // is refused by the far side, which repeats it perhaps
		s.calls.fail(lost, unanswered)
		told(t, s.do(t.Context(), task.Create, call), task.Create, providers.Invalid, false)
		call.Want["enabled"] = true
		told(t, s.do(t.Context(), task.Create, call), task.Create, "", false)

		s.stop()
		file, err := os.ReadFile(s.path)
		if err != nil {
			t.Fatal(err)
		}
		for _, spelt := range []string{canary, fmt.Sprintf("%x", canary), base64.StdEncoding.EncodeToString([]byte(canary))[:24]} {
			if bytes.Contains(file, []byte(spelt)) || strings.Contains(s.logs.String(), spelt) {
				t.Errorf("%s is on disk or in the log", spelt)
			}
		}
	})
}

// A chooser makes things under ids of its own, and fails afterwards with err.
type chooser struct {
	providers.Kind
	err error
}

func (k *chooser) Create(_ context.Context, c providers.Call) error {
	c.Chose("chosen")
	return k.err
}

// TestChosen: the id that the far side chose arrives, also with the second answer and with an error.
func TestChosen(t *testing.T) {
	for _, want := range []error{nil, &providers.Error{Op: "create", Ref: refTo("s1"), Class: providers.Unknown, Over: true, Err: errors.New("half of it")}} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t, newWorld())
			n.serve = func() *providers.Provider {
				return providers.New("lab", nodeName, nil, providers.Served{Name: "lab.switch", Traits: fake.NodeTraits(), Kind: &chooser{err: want}})
			}
			n.connect()
			s := n.site()
			for _, f := range []fault{nil, unanswered} {
				s.calls.fail(f)
				call := s.prepare(task.Create, "k")
				call.Answer = &providers.Answer{}
				err := s.do(t.Context(), task.Create, call)
				if (err == nil) != (want == nil) || call.Answer.ID != "chosen" {
					t.Errorf("%v, chosen %q", err, call.Answer.ID)
				}
				if want != nil {
					told(t, err, task.Create, providers.Unknown, true)
				}
			}
		})
	}
}

// TestLongText: an error whose text is too long for an answer keeps its class.
func TestLongText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newNode(t, newWorld()).site()
		if err := s.world.Fail(fake.Fault{Op: "any", Class: providers.Busy, Message: strings.Repeat("so it is. ", 40_000)}); err != nil {
			t.Fatal(err)
		}
		told(t, s.do(t.Context(), task.Create, s.prepare(task.Create, "k")), task.Create, providers.Busy, false)
		if asked, _ := s.requests(); asked != 1 {
			t.Errorf("the far side was asked %d times", asked)
		}
		call := s.prepare(task.Create, "k")
		call.Want = schema.Object{"note": strings.Repeat("x", task.MaxSize)}
		told(t, s.do(t.Context(), task.Create, call), task.Create, providers.Invalid, false)
	})
}

// TestTwoOfOneEpoch: two processes that by mistake number tasks in one epoch get in each other's way, but do nothing twice.
func TestTwoOfOneEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newWorld())
		two := []*site{n.site(), n.site()}
		for i, who := range []int{0, 0, 0, 1, 1, 1, 1, 0, 0, 1} {
			s, name := two[who], fmt.Sprint("s", i)
			call := s.prepare(task.Create, name)
			call.Ref, call.ID = refTo(name), name
			err := s.kind("lab.switch").Create(t.Context(), call)
			if err != nil {
				if providers.ClassOf(err) != providers.Transient {
					t.Errorf("%d: %v (%s)", i, err, providers.ClassOf(err))
				}
				err = s.kind("lab.switch").Create(t.Context(), call)
			}
			if err != nil {
				t.Errorf("%d: %v", i, err)
			}
		}
		if asked, made := n.requests(); asked != 10 || made != 10 {
			t.Errorf("the far side was asked %d times and did it %d times", asked, made)
		}
	})
}

// mute is a connection that never answers.
type mute struct{ remote.Line }

func (m mute) Conn(ctx context.Context) (grpc.ClientConnInterface, ed25519.PublicKey, error) {
	_, k, err := m.Line.Conn(ctx)
	return m, k, err
}

func (m mute) Invoke(ctx context.Context, _ string, _, _ any, _ ...grpc.CallOption) error {
	<-ctx.Done()
	return status.FromContextError(ctx.Err()).Err()
}

func (m mute) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errCut
}

// swap is a line that is replaced.
type swap struct{ now remote.Line }

func (s *swap) Conn(ctx context.Context) (grpc.ClientConnInterface, ed25519.PublicKey, error) {
	return s.now.Conn(ctx)
}

// TestSilentNode: while calls wait on a connection that is silent, a head goes over another one, and calls obey their contexts.
func TestSilentNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newWorld())
		o, line := n.options(&remote.Sequence{}), &swap{n}
		o.Line = line
		s := n.siteWith(o)
		line.now = mute{n}
		long, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- s.do(long, task.Create, s.prepare(task.Create, "k")) }()
		synctest.Wait()

		beside := o
		beside.Line = n
		if _, err := remote.Beat(t.Context(), beside, 1); err != nil {
			t.Error(err)
		}
		short, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		began := time.Now()
		told(t, s.do(short, task.Create, s.prepare(task.Create, "l")), task.Create, providers.Transient, false)
		if d := time.Since(began); d > time.Second {
			t.Errorf("a call with a second of time took %v", d)
		}
		cancel()
		told(t, <-ended, task.Create, providers.Transient, false)
	})
}

// TestNode: what a node says of itself.
func TestNode(t *testing.T) {
	n := newNode(t, newWorld())
	set, err := remote.Open(t.Context(), n.options(&remote.Sequence{}), []providers.Need{{Scope: nodeName, Provider: "lab"}, {Scope: nodeName, Provider: "ovs"}, {Scope: nodeName, Provider: "pci"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"ovs": "not installed", "pci": "is not served"} {
		if err := set.Failure(nodeName, name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p := set.All()[0]
	for _, k := range p.Kinds {
		if k.Traits.EffectWithin < remote.Start+task.Skew+remote.Run {
			t.Errorf("%s: a call may have its effect after %v", k.Name, k.Traits.EffectWithin)
		}
	}
	if err := p.Health(t.Context()); err != nil {
		t.Error(err)
	}
	o := n.options(&remote.Sequence{})
	n.trust = 7
	st, err := remote.Beat(t.Context(), o, 1)
	if err != nil || n.behind != 1 || st.GetEpoch() != 1 || st.GetAgent() != "test" || !slices.Equal(st.GetProviders(), []string{"lab"}) {
		t.Errorf("%v, %v; told %d times that its trust document is old", st, err, n.behind)
	}
	n.cut()
	if err := p.Health(t.Context()); err == nil {
		t.Error("the provider is available and its node is not connected")
	}
	if err := n.agent.Serve(grpc.NewServer(), []*providers.Provider{n.world.Provider("lab", "gpu-02")}, nil, nil); err == nil {
		t.Error("it serves the provider of another node")
	}
}

// TestClosed: an agent that ends begins nothing more.
func TestClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newNode(t, newWorld()).site()
		s.agent.Close()
		told(t, s.do(t.Context(), task.Create, s.prepare(task.Create, "k")), task.Create, providers.Transient, false)
		if _, made := s.requests(); made != 0 {
			t.Errorf("the far side did it %d times", made)
		}
	})
}
