package task

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// write returns a payload as an object accepts it: every name present, times in UTC, bytes in base64.
func write(what any) ([]byte, error) {
	utc := json.MarshalToFunc(func(out *jsontext.Encoder, t time.Time) error {
		if y := t.UTC().Year(); y < 0 || y > 9999 {
			return errors.New("not in RFC 3339")
		}
		return out.WriteToken(jsontext.String(t.UTC().Format(time.RFC3339Nano)))
	})
	b, err := json.Marshal(what, json.WithMarshalers(utc))
	if err != nil {
		// The error of the library may repeat the text.
		return nil, errors.New("want texts in UTF-8, and times in the years 0 to 9999")
	}
	return b, nil
}

// An object is a strictly read payload. Its methods return the values by name; the first failure stays in err. Each value has one
// spelling only, except that text may be escaped as JSON allows.
type object struct {
	values map[string]jsontext.Value
	err    error
}

// read reads one flat JSON object that has no names but the given ones, each at most once, and nothing after it. The methods of the
// object fail for a name that is missing.
func read(payload []byte, names ...string) *object {
	o := &object{values: make(map[string]jsontext.Value, len(names))}
	fail := func(format string, args ...any) *object {
		return &object{err: fmt.Errorf(format, args...)}
	}
	const bad = "want a JSON object in UTF-8, with each name once"
	in := jsontext.NewDecoder(bytes.NewReader(payload)) // refuses duplicate names, and text that is not UTF-8
	if t, err := in.ReadToken(); err != nil || t.Kind() != '{' {
		return fail(bad)
	}
	for in.PeekKind() == '"' {
		t, err := in.ReadToken()
		if err != nil {
			return fail(bad)
		}
		name := t.String()
		if !slices.Contains(names, name) {
			return fail("it has a name that this version does not know")
		}
		v, err := in.ReadValue()
		if err != nil {
			return fail(bad)
		}
		o.values[name] = v.Clone()
	}
	if _, err := in.ReadToken(); err != nil {
		return fail(bad)
	}
	if len(bytes.Trim(payload[in.InputOffset():], " \t\r\n")) > 0 {
		return fail("unexpected data after it")
	}
	return o
}

func (o *object) fail(name, want string) {
	if o.err == nil {
		o.err = fmt.Errorf("%s: want %s", name, want)
	}
}

func (o *object) text(name string) string {
	v := o.values[name]
	b, err := jsontext.AppendUnquote(nil, v)
	if v.Kind() != '"' || err != nil {
		o.fail(name, "a text")
		return ""
	}
	return string(b)
}

// integer reads a number without a fraction, an exponent or the sign of -0.
func (o *object) integer(name string) int64 {
	v := string(o.values[name])
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || strconv.FormatInt(n, 10) != v {
		o.fail(name, "a whole number")
		return 0
	}
	return n
}

// instant reads a time in RFC 3339, in UTC with a Z. Go's parser is laxer than that, and one time could be written in many ways.
func (o *object) instant(name string) time.Time {
	text := o.text(name)
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || t.UTC().Format(time.RFC3339Nano) != text {
		o.fail(name, "a time as in 2026-01-02T15:04:05Z")
		return time.Time{}
	}
	return t.UTC()
}

// octets reads base64 with padding, in its canonical form.
func (o *object) octets(name string) []byte {
	text := o.text(name)
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil || base64.StdEncoding.EncodeToString(b) != text {
		o.fail(name, "base64")
		return nil
	}
	return b
}

// decode reads a task's payload and returns what is wrong with it.
func (t *Task) decode(payload []byte) string {
	o := read(payload, "id", "action", "site", "node", "epoch", "seq", "key", "notBefore", "expires", "nonce", "trust", "params")
	return o.into(func() {
		*t = Task{
			ID: o.text("id"), Action: o.text("action"), Site: o.text("site"), Node: o.text("node"),
			Epoch: o.integer("epoch"), Seq: o.integer("seq"), Key: o.text("key"),
			NotBefore: o.instant("notBefore"), Expires: o.instant("expires"),
			Nonce: o.octets("nonce"), Trust: o.integer("trust"), Params: o.octets("params"),
		}
	})
}

func (h *Head) decode(payload []byte) string {
	o := read(payload, "site", "node", "epoch", "seq", "now", "trust")
	return o.into(func() {
		*h = Head{
			Site: o.text("site"), Node: o.text("node"), Epoch: o.integer("epoch"), Seq: o.integer("seq"),
			Now: o.instant("now"), Trust: o.integer("trust"),
		}
	})
}

func (r *Result) decode(payload []byte) string {
	o := read(payload, "task", "node", "at", "answer")
	return o.into(func() {
		*r = Result{Task: o.text("task"), Node: o.text("node"), At: o.instant("at"), Answer: o.octets("answer")}
	})
}

// into calls fill when the object could be read, and returns what is wrong with it or its values.
func (o *object) into(fill func()) string {
	if o.err == nil {
		fill()
	}
	if o.err != nil {
		return o.err.Error()
	}
	return ""
}
