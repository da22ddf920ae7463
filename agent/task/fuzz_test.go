package task_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"converge.dev/converge/agent/task"
	"converge.dev/converge/e2e/hostile/fuzzed"
	"converge.dev/converge/internal/dsse"
)

// Nothing is accepted but what was signed, however its envelope is spelt.
func FuzzTask(tf *testing.F) {
	f := fuzzed.New(tf)
	good := sign(goodTask(), siteKey)
	signed := map[string]bool{digestOf(goodTask()): true}
	f.Add(good)
	f.Add(sign(goodTask(), stranger))
	for _, v := range vectors() {
		if v.kind == aTask && v.change == nil && len(v.envelope) < 4<<10 {
			f.Add(v.envelope)
			if e, err := dsse.Open(v.envelope, task.MaxSize); err == nil && e.Type == task.Type && e.Verified(public(siteKey)) {
				d, _ := task.Digest(v.envelope)
				signed[d] = true // by the right key, with another fault
			}
		}
	}
	c := checker()
	f.Fuzz(func(t *testing.T, envelope []byte) {
		got, err := c.Task(envelope)
		var refused *task.RefusedError
		if late := errors.As(err, &refused) && refused.Check == task.CheckExpired; (got == nil) == (err == nil || late) {
			t.Fatalf("%+v, %v", got, err)
		}
		if got != nil && !signed[got.Digest] {
			t.Errorf("%s was not signed", envelope)
		}
		_, _ = c.Head(envelope)
		_, _ = task.OpenResult(envelope, public(nodeKey), node, digestOf(goodTask()))
	})
}

// Any payload that a site signs and a node accepts means the same to another reader of JSON, and to the node when it is signed again.
func FuzzPayload(tf *testing.F) {
	f := fuzzed.New(tf)
	for _, v := range vectors() {
		if e, err := dsse.Open(v.envelope, 4<<10); err == nil && v.kind == aTask {
			f.Add(e.Payload)
		}
	}
	f.Add([]byte(payload(goodTask())))
	f.Add([]byte(strings.ReplaceAll(payload(goodTask()), ",", " , ")))
	c := checker()
	f.Fuzz(func(t *testing.T, payload []byte) {
		got, err := c.Task(dsse.Seal(task.Type, payload, private(siteKey)))
		if err != nil {
			return
		}
		var other task.Task
		if err := json.Unmarshal(payload, &other); err != nil || !cmp.Equal(got.Task, other) {
			t.Errorf("%s: %v, %s", payload, err, cmp.Diff(got.Task, other))
		}
		again, err := c.Task(sign(&got.Task, siteKey))
		if err != nil || !cmp.Equal(got.Task, again.Task) {
			t.Errorf("%s: %v, %+v", payload, err, again)
		}
	})
}
