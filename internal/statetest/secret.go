package statetest

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"converge.dev/converge/state"
)

// secretKey: the key is created once, however many processes ask at the same time, never changes, and belongs to one site.
func secretKey(t *testing.T, kv state.KV, site string) {
	ctx := context.Background()
	keys := make([][]byte, 8)
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			var err error
			if keys[i], err = state.New(kv, site).SecretKey(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, k := range keys {
		if len(k) != 32 || !bytes.Equal(k, keys[0]) || bytes.Equal(k, make([]byte, 32)) {
			t.Fatalf("the keys are not one: %d bytes", len(k))
		}
	}
	other, err := state.New(kv, site+"-2").SecretKey(ctx)
	if err != nil || bytes.Equal(other, keys[0]) {
		t.Errorf("another site has the same key: %v", err)
	}
	// Another process writes between the read and the write; or the write takes effect and its reply is lost.
	for name, before := range map[string]func(context.Context, string) error{
		"overtaken": func(ctx context.Context, site string) error {
			_, err := state.New(kv, site).SecretKey(ctx)
			return err
		},
		"unknown": nil,
	} {
		k, err := state.New(&interfered{KV: kv, site: site + name, before: before}, site+name).SecretKey(ctx)
		again, aerr := state.New(kv, site+name).SecretKey(ctx)
		if err != nil || aerr != nil || !bytes.Equal(k, again) {
			t.Errorf("%s: two keys were given out, or none: %v, %v", name, err, aerr)
		}
	}
	// The key of plan files is derived from it, is a different one, and asking for it creates nothing.
	planKey, err := state.New(kv, site).PlanKey(ctx)
	again, aerr := state.New(kv, site).PlanKey(ctx)
	if err != nil || aerr != nil || len(planKey) != 32 || !bytes.Equal(planKey, again) || bytes.Equal(planKey, keys[0]) {
		t.Errorf("the key of plan files is not one of its own: %v, %v", err, aerr)
	}
	if foreign, err := state.New(kv, site+"-2").PlanKey(ctx); err != nil || bytes.Equal(foreign, planKey) {
		t.Errorf("another site has the same key of plan files: %v", err)
	}
	if _, err := state.New(kv, site+"-3").PlanKey(ctx); !errors.Is(err, state.ErrNotFound) {
		t.Errorf("a site that is not there has a key of plan files: %v", err)
	}
	if items, err := kv.List(ctx, "/converge/"+site+"-3/"); err != nil || len(items) > 0 {
		t.Errorf("asking for the key of plan files made %v: %v", items, err)
	}
	// A process that writes nothing gets the key that there is, or one that nobody else gets, and leaves none behind.
	if key, stored, err := state.New(kv, site).PassingKey(ctx); err != nil || !stored || !bytes.Equal(key, keys[0]) {
		t.Errorf("the key of the site is not lent: %t, %v", stored, err)
	}
	one, stored, err := state.New(kv, site+"-3").PassingKey(ctx)
	two, _, aerr := state.New(kv, site+"-3").PassingKey(ctx)
	if err != nil || aerr != nil || stored || len(one) != 32 || bytes.Equal(one, two) {
		t.Errorf("what stands in for a key is not a passing one: %t, %v, %v", stored, err, aerr)
	}
	if items, err := kv.List(ctx, "/converge/"+site+"-3/"); err != nil || len(items) > 0 {
		t.Errorf("a passing key left %v: %v", items, err)
	}
	at := "/converge/" + site + "/secret-key"
	for _, damaged := range []string{`{"v":1,"key":"c0ffee"}`, `{"v":1,"key":"zz"}`, `{"v":99,"key":"c0ffee"}`, `c0ffee`} {
		if _, err := kv.Commit(ctx, nil, []state.Op{{Key: at, Value: []byte(damaged)}}); err != nil {
			t.Fatal(err)
		}
		if k, _, err := state.New(kv, site).PassingKey(ctx); err == nil || k != nil {
			t.Errorf("%s is passed over: %d bytes, %v", damaged, len(k), err)
		}
		if k, err := state.New(kv, site).SecretKey(ctx); err == nil || !strings.Contains(err.Error(), at) || strings.Contains(err.Error(), "c0ffee") {
			t.Errorf("%s is read as %d bytes, %v", damaged, len(k), err)
		}
	}
}

// interfered is a backend in which something precedes the first write or, without before, its reply is lost.
type interfered struct {
	state.KV
	site   string
	before func(ctx context.Context, site string) error
	done   bool
}

func (i *interfered) Commit(ctx context.Context, guards []state.Guard, ops []state.Op) (int64, error) {
	first := !i.done
	i.done = true
	if first && i.before != nil {
		if err := i.before(ctx, i.site); err != nil {
			return 0, err
		}
	}
	revision, err := i.KV.Commit(ctx, guards, ops)
	if first && i.before == nil && err == nil {
		return 0, state.ErrUnknown
	}
	return revision, err
}
