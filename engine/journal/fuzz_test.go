package journal_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"converge.dev/converge/e2e/hostile/fuzzed"
	"converge.dev/converge/engine/journal"
	"converge.dev/converge/internal/budget"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// FuzzRead passes arbitrary records to the journal: a first, a second, and the head that says how far it goes, which may be
// corrected to fit. They are whole, or refused; what is whole adds up or is refused, and reads the same when it is written
// again.
func FuzzRead(tf *testing.F) {
	f := fuzzed.New(tf)
	version := fmt.Sprintf(`"v":%d`, journal.Version)
	one, two := chain(f, journal.Record{Kind: journal.Begin, Step: -1}, journal.Record{Kind: journal.Intent, Step: 1})
	if log, err := journal.Read(context.Background(), stored(f, one, two, headOf(one, two)), "r"); err != nil || len(log.Records) != 2 {
		f.Fatalf("what this test writes is not what the journal reads: %v", err)
	}
	for _, kind := range kinds {
		one, two := chain(f, journal.Record{Kind: kind, Step: 0}, journal.Record{Kind: journal.Outcome, Step: 1, Undo: true, Result: journal.Done})
		f.Add(one, two, []byte(nil), true, 2)
		f.Add(one, []byte(nil), []byte(nil), true, 1)
		f.Add(one, []byte(nil), []byte(nil), true, 0)
		f.Add(two, one, []byte(nil), true, 2)
		f.Add(one, two, headOf(one), false, 2)
		f.Add(append(bytes.Clone(one), ' '), two, []byte(nil), true, 2)
		f.Add(bytes.Replace(one, []byte(version), []byte(version+`,"nope":1`), 1), []byte(nil), []byte(nil), true, 1)
		f.Add(bytes.Replace(one, []byte(version), []byte(`"v":99`), 1), two, []byte(nil), true, 2)
		f.Add(append(bytes.Clone(one), "{}"...), two, []byte(nil), true, 2)
		f.Add(bytes.Replace(one, []byte(version), []byte(version+`,"V":1,"nope":1`), 1), two, []byte(nil), true, 2)
	}
	for _, s := range []string{``, `{}`, `null`, `[]`, `{"v":1}`, `{"v":1e0}`, `{"v":"1"}`, `{"v":1,"v":1}`, `{"v":1,"ref":"a/b"}`, "\xff", `{"v":1,"step":9223372036854775807}`, `{"v":1,"step":-1}`} {
		f.Add([]byte(s), []byte(s), []byte(s), false, 0)
		f.Add([]byte(s), []byte(nil), []byte(nil), true, 0)
	}
	f.Fuzz(func(t *testing.T, one, two, head []byte, mend bool, steps int) {
		if mend {
			head = headOf(one, two)
		}
		if len(one)+len(two)+len(head) > budget.Largest {
			return
		}
		store := stored(t, one, two, head)
		var log *journal.Log
		var err error
		budget.Spend(t, func() { log, err = journal.Read(context.Background(), store, "r") })
		if err != nil {
			if log != nil {
				t.Errorf("refused with %v, and there are %d records", err, len(log.Records))
			}
			return
		}
		var texts [][]byte
		for _, text := range [][]byte{one, two} {
			if len(text) > 0 {
				texts = append(texts, text)
			}
		}
		if len(log.Records) != len(texts) {
			t.Fatalf("%d records were read, %d are there", len(log.Records), len(texts))
		}
		for i, r := range log.Records {
			// No member may be skipped: it may be the one that matters.
			var members map[string]jsontext.Value
			if err := json.Unmarshal(texts[i], &members); err != nil {
				t.Errorf("record %q is no object: %v", texts[i], err)
			}
			for name := range members {
				if !names[name] {
					t.Errorf("record %q is read, and nobody knows %q", texts[i], name)
				}
			}
			if i > 0 && r.Prev != fmt.Sprintf("%x", sha256.Sum256(texts[i-1])) {
				t.Errorf("record %q does not follow %q", texts[i], texts[i-1])
			}
			if r.V != journal.Version || r.Run != "r" || r.Seq != int64(i)+1 || (i == 0) != (r.Prev == "") {
				t.Errorf("record %d is %+v", i, r)
			}
		}
		budget.Spend(t, func() { _, _ = journal.Sum(log.Records, min(max(steps, 0), 100)) })
		for i := range log.Records {
			text, err := json.Marshal(log.Records[i])
			if err != nil {
				t.Fatalf("record %+v cannot be written: %v", log.Records[i], err)
			}
			var again journal.Record
			if err := json.Unmarshal(text, &again, json.RejectUnknownMembers(true)); err != nil || !reflect.DeepEqual(again, log.Records[i]) {
				t.Errorf("record %+v comes back as %+v, %v", log.Records[i], again, err)
			}
		}
	})
}

// stored returns a store with the values as records 1 and 2 and as the head; nil ones are absent.
func stored(tb testing.TB, one, two, head []byte) *state.Store {
	tb.Helper()
	kv := mem.New(mem.Options{})
	s := state.New(kv, "test")
	for key, value := range map[string][]byte{s.JournalKey("r", 1): one, s.JournalKey("r", 2): two, s.JournalHead("r"): head} {
		if len(value) == 0 {
			continue
		}
		if _, err := kv.Commit(context.Background(), nil, []state.Op{{Key: key, Value: value}}); err != nil {
			tb.Fatal(err)
		}
	}
	return s
}

// names are the members that a record has.
var names = func() map[string]bool {
	all := map[string]bool{}
	for f := range reflect.TypeFor[journal.Record]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		all[name] = true
	}
	return all
}()

// kinds are the kinds of records.
var kinds = []journal.Kind{journal.Begin, journal.Intent, journal.Outcome, journal.NoReturn, journal.Revert, journal.End}

// chain encodes two records as the journal writes them.
func chain(tb testing.TB, one, two journal.Record) (first, second []byte) {
	tb.Helper()
	prev := ""
	var texts [][]byte
	for i, r := range []journal.Record{one, two} {
		r.V, r.Run, r.Seq, r.Epoch, r.Prev = journal.Version, "r", int64(i)+1, 1, prev
		text, err := json.Marshal(r)
		if err != nil {
			tb.Fatal(err)
		}
		prev = fmt.Sprintf("%x", sha256.Sum256(text))
		texts = append(texts, text)
	}
	return texts[0], texts[1]
}

// headOf returns the head of a journal that ends with the last record.
func headOf(records ...[]byte) []byte {
	n, last := 0, []byte(nil)
	for _, r := range records {
		if len(r) > 0 {
			n, last = n+1, r
		}
	}
	if n == 0 {
		return nil
	}
	return fmt.Appendf(nil, `{"v":%d,"seq":%d,"hash":"%x"}`, journal.Version, n, sha256.Sum256(last))
}
