package task_test

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"converge.dev/converge/agent/task"
	"converge.dev/converge/internal/dsse"
)

const (
	site = "6f1d4c9e-0b1a-4f57-9a3e-2f1f6d0c7b11"
	node = "gpu-01"
)

var now = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// private returns one of ten keys. They are made once: that takes as long as a signature.
func private(seed byte) ed25519.PrivateKey { return tenKeys()[seed] }

var tenKeys = sync.OnceValue(func() (ten [10]ed25519.PrivateKey) {
	for i := range ten {
		ten[i] = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{byte(i)}, ed25519.SeedSize))
	}
	return ten
})

func public(seed byte) ed25519.PublicKey { return private(seed).Public().(ed25519.PublicKey) }

// The keys of the tests, by their seeds.
const (
	siteKey  = 1 // signs everything
	nextKey  = 2 // not valid yet
	oldKey   = 3 // no longer valid
	taskKey  = 4 // signs updates only
	headKey  = 5 // signs heads only
	stranger = 6 // known to nobody
	nodeKey  = 7 // of the node's certificate
	bareKey  = 8 // has no times
)

func keys() []task.Key {
	day := 24 * time.Hour
	return []task.Key{
		{ID: "site", Public: public(siteKey), NotBefore: now.Add(-day), NotAfter: now.Add(day)},
		{ID: "next", Public: public(nextKey), NotBefore: now.Add(task.Skew + time.Second), NotAfter: now.Add(day)},
		{ID: "old", Public: public(oldKey), NotBefore: now.Add(-day), NotAfter: now.Add(-task.Skew - time.Second)},
		{ID: "task", Public: public(taskKey), NotBefore: now.Add(-day), NotAfter: now.Add(day), Actions: []string{task.Update}},
		{ID: "head", Public: public(headKey), NotBefore: now.Add(-day), NotAfter: now.Add(day), Actions: []string{task.SignHead}},
		{ID: "bare", Public: public(bareKey)},
	}
}

func checker() *task.Checker {
	return &task.Checker{Site: site, Node: node, Keys: keys, Now: func() time.Time { return now }}
}

func goodTask() *task.Task {
	return &task.Task{
		ID: "0b9c1a52-94c3-4d0e-8a54-0d6a2f3b1c77", Action: task.Create, Site: site, Node: node, Epoch: 3, Seq: 17, Key: "run-9/step-2",
		NotBefore: now, Expires: now.Add(5 * time.Minute), Nonce: bytes.Repeat([]byte{9}, task.NonceSize), Trust: 2, Params: []byte("canary"),
	}
}

func goodHead() *task.Head {
	return &task.Head{Site: site, Node: node, Epoch: 3, Seq: 17, Now: now, Trust: 2}
}

func goodResult() *task.Result {
	return &task.Result{Task: digestOf(goodTask()), Node: node, At: now, Answer: []byte("canary")}
}

type signer interface {
	Sign(ed25519.PrivateKey) ([]byte, error)
}

func sign(what signer, seed byte) []byte {
	b, err := what.Sign(private(seed))
	if err != nil {
		panic(err)
	}
	return b
}

// payload returns the text that is signed.
func payload(what signer) string {
	e, err := dsse.Open(sign(what, siteKey), 1<<20)
	if err != nil {
		panic(err)
	}
	return string(e.Payload)
}

func digestOf(t *task.Task) string {
	d, err := task.Digest(sign(t, siteKey))
	if err != nil {
		panic(err)
	}
	return d
}

// A site signs a task; the node checks it, runs it and signs what came of it; the site checks that.
func Example() {
	clock := func() time.Time { return now }
	checker := &task.Checker{Site: site, Node: "gpu-01", Now: clock, Keys: func() []task.Key {
		return []task.Key{{ID: "2026-03", Public: public(1), NotBefore: now, NotAfter: now.Add(30 * 24 * time.Hour)}}
	}}
	t := task.Task{
		ID: "0b9c1a52-94c3-4d0e-8a54-0d6a2f3b1c77", Action: task.Create, Site: site, Node: "gpu-01", Epoch: 3, Seq: 17, Key: "run-9/step-2",
		NotBefore: now, Expires: now.Add(task.MaxLife), Nonce: make([]byte, task.NonceSize), Trust: 1, Params: []byte("a bridge"),
	}
	envelope, err := t.Sign(private(1))
	if err != nil {
		fmt.Println(err)
		return
	}

	checked, err := checker.Task(envelope)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s %s\n", checked.Action, checked.Params)
	result := task.Result{Task: checked.Digest, Node: "gpu-01", At: now, Answer: []byte("done")}
	answer, err := result.Sign(private(7))
	if err != nil {
		fmt.Println(err)
		return
	}

	digest, _ := task.Digest(envelope)
	r, err := task.OpenResult(answer, public(7), "gpu-01", digest)
	fmt.Printf("%s %v\n", r.Answer, err)

	checker.Node = "gpu-02"
	_, err = checker.Task(envelope)
	fmt.Println(err)
	// Output:
	// create a bridge
	// done <nil>
	// refused by the check "node": it is for another node than gpu-02
}

// What was signed arrives as it was, at the edges of what is allowed.
func TestAccepted(t *testing.T) {
	edit := func(f func(*task.Task)) *task.Task { t := goodTask(); f(t); return t }
	zone := time.FixedZone("", 2*3600)
	for name, c := range map[string]struct {
		task *task.Task
		seed byte
	}{
		"good":              {goodTask(), siteKey},
		"key for updates":   {edit(func(t *task.Task) { t.Action = task.Update }), taskKey},
		"delete":            {edit(func(t *task.Task) { t.Action = task.Delete }), siteKey},
		"bare fence":        {edit(func(t *task.Task) { t.Action, t.Key, t.Params = task.Fence, "", nil }), siteKey},
		"longest life":      {edit(func(t *task.Task) { t.Expires = t.NotBefore.Add(task.MaxLife) }), siteKey},
		"shortest life":     {edit(func(t *task.Task) { t.Expires = t.NotBefore.Add(1) }), siteKey},
		"within skew":       {edit(func(t *task.Task) { t.NotBefore = now.Add(task.Skew) }), siteKey},
		"just expired":      {edit(func(t *task.Task) { t.NotBefore, t.Expires = now.Add(-task.MaxLife), now.Add(-task.Skew) }), siteKey},
		"another zone":      {edit(func(t *task.Task) { t.NotBefore, t.Expires = t.NotBefore.In(zone), t.Expires.In(zone) }), siteKey},
		"nanoseconds":       {edit(func(t *task.Task) { t.NotBefore = now.Add(123456789) }), siteKey},
		"largest numbers":   {edit(func(t *task.Task) { t.Epoch, t.Seq, t.Trust = 1<<63-1, 1<<63-1, 1<<63-1 }), siteKey},
		"escapes, Unicode":  {edit(func(t *task.Task) { t.Key = "\"\\</script>\u2028\x01é漢" }), siteKey},
		"bytes of any kind": {edit(func(t *task.Task) { t.Params = []byte{0, 0xff, 0xfe} }), siteKey},
		"large":             {edit(func(t *task.Task) { t.Params = make([]byte, 146_000) }), siteKey},
	} {
		envelope := sign(c.task, c.seed)
		got, err := checker().Task(envelope)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := *c.task
		want.NotBefore, want.Expires = want.NotBefore.UTC(), want.Expires.UTC()
		if want.Params == nil {
			want.Params = []byte{}
		}
		if diff := cmp.Diff(want, got.Task); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if d, err := task.Digest(envelope); err != nil || d != got.Digest || len(d) != 64 {
			t.Errorf("%s: digest %s, want %s, %v", name, got.Digest, d, err)
		}
	}
	for name, h := range map[string]*task.Head{
		"good":        goodHead(),
		"none used":   {Site: site, Node: node, Epoch: 1, Now: now, Trust: 1},
		"oldest":      {Site: site, Node: node, Epoch: 1, Seq: 2, Now: now.Add(-task.HeadLife - task.Skew), Trust: 1},
		"from beyond": {Site: site, Node: node, Epoch: 1, Seq: 2, Now: now.Add(task.Skew), Trust: 1},
	} {
		for _, seed := range []byte{siteKey, headKey} {
			if got, err := checker().Head(sign(h, seed)); err != nil || !cmp.Equal(got, h) {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
		}
	}
	for name, r := range map[string]*task.Result{
		"good":    goodResult(),
		"old":     {Task: digestOf(goodTask()), Node: node, At: now.AddDate(-1, 0, 0), Answer: []byte("x")},
		"nothing": {Task: digestOf(goodTask()), Node: node, At: now, Answer: []byte{}},
	} {
		if got, err := task.OpenResult(sign(r, nodeKey), public(nodeKey), node, digestOf(goodTask())); err != nil || !cmp.Equal(got, r) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// Two tasks differ in their digest, and so do two spellings of one.
func TestDigest(t *testing.T) {
	other := goodTask()
	other.Nonce[0]++
	spaced := dsse.Seal(task.Type, []byte(payload(goodTask())+" "), private(siteKey))
	d, err := task.Digest(spaced)
	if err != nil || d == digestOf(goodTask()) || digestOf(other) == digestOf(goodTask()) {
		t.Errorf("%s, %v", d, err)
	}
	for _, bad := range [][]byte{nil, []byte(payload(goodTask())), sign(goodHead(), siteKey), make([]byte, task.MaxSize+1)} {
		if d, err := task.Digest(bad); err == nil || d != "" {
			t.Errorf("%.40q: %s", bad, d)
		}
	}
}

// Nothing is signed that a node would refuse whenever it arrives.
func TestSignRefuses(t *testing.T) {
	edit := func(f func(*task.Task)) signer { t := goodTask(); f(t); return t }
	head := func(f func(*task.Head)) signer { h := goodHead(); f(h); return h }
	result := func(f func(*task.Result)) signer { r := goodResult(); f(r); return r }
	for name, c := range map[string]struct {
		what signer
		want task.Check
	}{
		"empty":               {&task.Task{}, task.CheckFields},
		"no id":               {edit(func(t *task.Task) { t.ID = "" }), task.CheckFields},
		"id in capitals":      {edit(func(t *task.Task) { t.ID = strings.ToUpper(t.ID) }), task.CheckFields},
		"another action":      {edit(func(t *task.Task) { t.Action = "head" }), task.CheckFields},
		"no site":             {edit(func(t *task.Task) { t.Site = "" }), task.CheckFields},
		"no node":             {edit(func(t *task.Task) { t.Node = "" }), task.CheckFields},
		"no epoch":            {edit(func(t *task.Task) { t.Epoch = 0 }), task.CheckFields},
		"no seq":              {edit(func(t *task.Task) { t.Seq = 0 }), task.CheckFields},
		"no key":              {edit(func(t *task.Task) { t.Key = "" }), task.CheckFields},
		"no not before":       {edit(func(t *task.Task) { t.NotBefore = time.Time{} }), task.CheckFields},
		"no expiry":           {edit(func(t *task.Task) { t.Expires = time.Time{} }), task.CheckFields},
		"long nonce":          {edit(func(t *task.Task) { t.Nonce = make([]byte, 17) }), task.CheckFields},
		"no trust":            {edit(func(t *task.Task) { t.Trust = 0 }), task.CheckFields},
		"no params":           {edit(func(t *task.Task) { t.Params = nil }), task.CheckFields},
		"no life":             {edit(func(t *task.Task) { t.Expires = t.NotBefore }), task.CheckLife},
		"too long a life":     {edit(func(t *task.Task) { t.Expires = t.NotBefore.Add(task.MaxLife + 1) }), task.CheckLife},
		"not UTF-8":           {edit(func(t *task.Task) { t.Key = "\xff" }), task.CheckJSON},
		"the year 10000":      {edit(func(t *task.Task) { t.NotBefore = now.AddDate(8000, 0, 0); t.Expires = t.NotBefore.Add(1) }), task.CheckJSON},
		"too large":           {edit(func(t *task.Task) { t.Params = make([]byte, 150_000) }), task.CheckSize},
		"head of no epoch":    {head(func(h *task.Head) { h.Epoch = 0 }), task.CheckFields},
		"head below 0":        {head(func(h *task.Head) { h.Seq = -1 }), task.CheckFields},
		"head of no time":     {head(func(h *task.Head) { h.Now = time.Time{} }), task.CheckFields},
		"head of no site":     {head(func(h *task.Head) { h.Site = "" }), task.CheckFields},
		"result of no task":   {result(func(r *task.Result) { r.Task = "" }), task.CheckFields},
		"result in capitals":  {result(func(r *task.Result) { r.Task = strings.Repeat("A", 64) }), task.CheckFields},
		"result of no node":   {result(func(r *task.Result) { r.Node = "" }), task.CheckFields},
		"result of no time":   {result(func(r *task.Result) { r.At = time.Time{} }), task.CheckFields},
		"result that is huge": {result(func(r *task.Result) { r.Answer = make([]byte, 150_000) }), task.CheckSize},
	} {
		b, err := c.what.Sign(private(siteKey))
		if refused, ok := errors.AsType[*task.RefusedError](err); !ok || refused.Check != c.want || b != nil {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}
