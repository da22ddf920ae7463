package plan_test

import (
	"bytes"
	"errors"
	"testing"

	"converge.dev/converge/e2e/hostile/fuzzed"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/budget"
)

// FuzzDecode reads saved plans. What can be read is written as it was read.
func FuzzDecode(tf *testing.F) {
	f := fuzzed.New(tf)
	for _, s := range []string{
		`{"format":2,"id":"x","site":{"name":"a","id":"b"},"steps":[],"no_return":0,"unchanged":0}`,
		`{"format":2,"id":"20261121-225530.650-137675","site":{"name":"fra1","id":"5a2f8c1e-7b0d-4f3a-9c61-2e8d4b7a9f10"},"document":{"apiVersion":"converge.dev/v1","carbide":{"vpc":{"prod":{"description":"a<b && c>d\u2028"}}}},"steps":[{"id":0,"ref":"site/carbide.vpc/prod","action":"create","reason":"declared","wave":0,"after":{"description":"a<b"},"external_id":"i","incarnation":1,"undo":"R1","record":{"ref":"site/carbide.vpc/prod","id":"i","incarnation":1,"spec":{"n":1},"run":"","at":"0001-01-01T00:00:00Z"}}],"no_return":1,"unchanged":0}`,
		`{"format":2,"steps":[{"id":0,"ref":"a/b.c/d","needs":[0]}]}`, `{"format":2,"steps":[{"id":1}]}`, `{"format":2,"steps":[{"id":0,"needs":[-1]}]}`,
		`{"format":2,"steps":[{"id":0,"needs":[1]},{"id":1,"needs":[0]}]}`, `{"format":2,"no_return":-5,"steps":[]}`, `{"format":2,"no_return":7}`,
		`{"format":3}`, `{}`, `null`, ``, `[]`, `{"format":2,"document":"x"}`, `{"format":2,"document":null}`, `{"format":2,"steps":[{"id":0,"ref":"../../x"}]}`,
		`{"format":2,"steps":[{"id":0,"ref":"a/b.c/d","within":-1,"before":{"x":1e999}}]}`, `{"format":2}{"format":2}`, `{"format":2,"FORMAT":1,"steps":null}`,
		"{\"format\":1,\"id\":\"\xff\"}", `{"format":2,"nope":1}`,
	} {
		f.Add([]byte(s))
	}
	saved, err := somePlan(f).Encode() // none of those above is accepted: no planner could have made it
	if err != nil {
		f.Fatal(err)
	}
	f.Add(saved.Data)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > budget.Largest {
			return
		}
		var p *plan.Plan
		var err error
		budget.Spend(t, func() { p, err = plan.Decode(b) })
		if err != nil {
			if p != nil || !errors.Is(err, plan.ErrFormat) {
				t.Errorf("%q is refused with %v and gives %+v", b, err, p)
			}
			return
		}
		if p.Format != plan.Format {
			t.Errorf("%q has format %d and is taken", b, p.Format)
		}
		for i := range p.Steps {
			for _, n := range p.Steps[i].Needs {
				if n < 0 || n >= len(p.Steps) {
					t.Errorf("%q: step %d needs step %d and is taken", b, i, n)
				}
			}
			if p.Steps[i].ID != i {
				t.Errorf("%q: step %d is numbered %d", b, i, p.Steps[i].ID)
			}
		}
		saved, err := p.Encode()
		if err != nil {
			t.Fatalf("%q reads as what cannot be saved: %v", b, err)
		}
		again, err := plan.Decode(saved.Data)
		if err != nil {
			t.Fatalf("%q is saved as %q, which does not read: %v", b, saved.Data, err)
		}
		same, err := again.Encode()
		if err != nil || !bytes.Equal(saved.Data, same.Data) || saved.Digest != same.Digest {
			t.Errorf("%q is saved as %q and then as %q: %v", b, saved.Data, same.Data, err)
		}
		// What walks a plan may call any of its methods.
		p.Counts()
		p.Needs()
		p.Empty()
		for i := range p.Steps {
			p.Steps[i].Inverse()
		}
	})
}

// FuzzDecodeFile reads plan files. What can be read and is written again is the same plan.
func FuzzDecodeFile(tf *testing.F) {
	f := fuzzed.New(tf)
	for _, s := range []string{
		`{"format":3,"mac":"00","plan":{"format":2}}`, `{"format":2}`, `{"format":3}`, `{"format":3,"mac":"","plan":null}`, ``,
		`{"format":3,"mac":"00","plan":{"format":2,"id":"x","site":{"name":"a","id":"b"},"destroy":true,"max_destroy":"3","steps":null,"no_return":0,"unchanged":0}}`,
	} {
		f.Add([]byte(s))
	}
	key := make([]byte, 32)
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := plan.DecodeFile(b)
		if err != nil {
			if file != nil || !errors.Is(err, plan.ErrFormat) {
				t.Errorf("%q is refused with %v", b, err)
			}
			return
		}
		if file.Verify(key) == nil {
			t.Errorf("%q is taken as ours", b)
		}
		again, digest, err := file.Plan.EncodeFile(key)
		if err != nil || digest != file.Digest {
			t.Fatalf("%q is saved again as %q: %v", b, again, err)
		}
		read, err := plan.DecodeFile(again)
		if err != nil || read.Verify(key) != nil {
			t.Errorf("%q is saved again as %q, which is not taken: %v", b, again, err)
		}
	})
}
