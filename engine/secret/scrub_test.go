package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// encodings are the ways in which a far side may echo a value. Before and after surround it within the encoding.
var encodings = map[string]func(before, v, after string) string{
	"plain":       func(b, v, a string) string { return b + v + a },
	"base64":      func(b, v, a string) string { return base64.StdEncoding.EncodeToString([]byte(b + v + a)) },
	"base64 raw":  func(b, v, a string) string { return base64.RawStdEncoding.EncodeToString([]byte(b + v + a)) },
	"base64 URL":  func(b, v, a string) string { return base64.URLEncoding.EncodeToString([]byte(b + v + a)) },
	"hex":         func(b, v, a string) string { return hex.EncodeToString([]byte(b + v + a)) },
	"HEX":         func(b, v, a string) string { return strings.ToUpper(hex.EncodeToString([]byte(b + v + a))) },
	"query":       func(b, v, a string) string { return url.QueryEscape(b + v + a) },
	"path":        func(b, v, a string) string { return url.PathEscape(b + v + a) },
	"all percent": func(b, v, a string) string { return percent(b + v + a) },
	"JSON":        func(b, v, a string) string { return marshal(b + v + a) },
	"JSON plain":  func(b, v, a string) string { return marshalPlain(b + v + a) },
	"bytes":       func(b, v, a string) string { return fmt.Sprint([]byte(b + v + a)) },
	"quoted":      func(b, v, a string) string { return strconv.Quote(b + v + a) },
	"ASCII":       func(b, v, a string) string { return strconv.QuoteToASCII(b + v + a) },
	"octal":       func(b, v, a string) string { return octalText(b + v + a) },
	"JSON twice":  func(b, v, a string) string { return marshal(marshal(b + v + a)) },
	"quoted JSON": func(b, v, a string) string { return strconv.Quote(marshal(b + v + a)) },
	"JSON in URL": func(b, v, a string) string { return url.QueryEscape(marshal(b + v + a)) },
	"URL twice":   func(b, v, a string) string { return url.QueryEscape(url.QueryEscape(b + v + a)) },
	"base64 URL'd": func(b, v, a string) string {
		return url.QueryEscape(base64.StdEncoding.EncodeToString([]byte(b + v + a)))
	},
	"JSON in base64": func(b, v, a string) string {
		return base64.StdEncoding.EncodeToString([]byte(b + marshal(v)[1:len(marshal(v))-1] + a))
	},
}

func percent(s string) string {
	var b strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&b, "%%%02x", s[i])
	}
	return b.String()
}

func marshal(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

func marshalPlain(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s)
	return strings.TrimSuffix(b.String(), "\n")
}

// octalText returns what the text format of Protocol Buffers writes for non-ASCII characters.
func octalText(s string) string {
	var b strings.Builder
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\' || c == '\'':
			b.WriteString(`\` + string(rune(c)))
		case c < ' ' || c >= 0x7f:
			fmt.Fprintf(&b, `\%03o`, c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// rest is the text around the values in the tests: no value that is drawn can contain it.
const rest = "~"

// TestScrubEveryEncoding: no value survives in any encoding, at any alignment, and the text around it does. Values
// are made of the characters that encodings treat differently.
func TestScrubEveryEncoding(t *testing.T) {
	count := map[string]int{}
	letters := rapid.SampledFrom([]rune(`abzAZ059 "'\/+-_=%&<>:@.,{}$` + "\n\t\u2028é漢😀"))
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.StringOfN(letters, shortest, 40, -1).Draw(t, "value")
		before, after := strings.Repeat(rest, rapid.IntRange(0, 5).Draw(t, "before")), strings.Repeat(rest, rapid.IntRange(0, 5).Draw(t, "after"))
		s := NewScrubber()
		s.Learn(NewValue("another-value"))
		s.Learn(NewValue(value))
		for name, encode := range encodings {
			echo := encode(before, value, after)
			got := s.ScrubText("create: 400: <" + echo + ">.")
			if !strings.HasPrefix(got, "create: 400: <") || !strings.HasSuffix(got, ">.") && !strings.ContainsAny(value, ">.") {
				t.Fatalf("%s of %q: the rest of the text is lost: %q", name, value, got)
			}
			if !strings.Contains(got, Shown) {
				t.Fatalf("%s of %q is not found in %q", name, value, echo)
			}
			// What is left is as long as the text around the value, give or take the characters at its borders.
			left := len(strings.ReplaceAll(got, Shown, "")) - len("create: 400: <>.")
			if around := len(encode(before, "", "")) + len(encode("", "", after)) + 12; left > around {
				t.Fatalf("%s of %q: %d characters are left of %q: %q", name, value, left, echo, got)
			}
			count[name]++
		}
	})
	for name := range encodings {
		if count[name] == 0 {
			t.Errorf("%s was never tried", name)
		}
	}
}

// TestScrubNothing: a text without a value stays as it is.
func TestScrubNothing(t *testing.T) {
	s := NewScrubber()
	if got := s.ScrubText("hunter22"); got != "hunter22" {
		t.Errorf("nothing is known, yet %q", got)
	}
	s.Learn(NewValue("hunter22"))
	for _, text := range []string{"", "hunter2", "unter22", `a "quoted" \ text with 100% of + all = signs`, "%", `\`, "%zz", `\u12`, "hunter2" + "é"} {
		if got := s.ScrubText(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
	rapid.Check(t, func(t *rapid.T) { // never a panic, and nothing is found in what cannot contain it
		text := rapid.String().Draw(t, "text")
		if got := s.ScrubText(text); got != text && !strings.Contains(got, Shown) {
			t.Fatalf("%q became %q", text, got)
		}
	})
}

// TestScrubShort: a value that is too short to be cut out withholds the text.
func TestScrubShort(t *testing.T) {
	for _, v := range []string{"7", "ab", "é", "a\"c"} {
		s := NewScrubber()
		s.Learn(NewValue(v))
		for _, text := range []string{"pin " + v + "!", "pin " + marshal(v), "pin " + hex.EncodeToString([]byte(v)), "pin " + percent(v), "pin " + base64.StdEncoding.EncodeToString([]byte(v))} {
			if got := s.ScrubText(text); got != Shown {
				t.Errorf("%q in %q: %q", v, text, got)
			}
		}
		if got := s.ScrubText("!!!"); got != "!!!" {
			t.Errorf("%q: %q", v, got)
		}
	}
}

// TestScrubError: the class, the operation and the thing of an error survive, its words without the value.
func TestScrubError(t *testing.T) {
	s := NewScrubber()
	s.Learn(NewValue("hunter22"))
	ref := schema.Ref{Scope: "site", Kind: "far.account", Name: "a"}
	leak := errors.New("bad password hunter22")
	direct := &providers.Error{Op: "create", Ref: ref, Class: providers.Denied, Err: leak}
	for name, err := range map[string]error{
		"direct": direct, "wrapped": fmt.Errorf("attempt with hunter22: %w", direct), "joined": errors.Join(errors.New("x"), direct),
		"inner only": hiding{direct},
	} {
		got := s.Scrub(err)
		var of *providers.Error
		if providers.ClassOf(got) != providers.Denied || !errors.As(got, &of) || of.Ref != ref || of.Op != "create" {
			t.Errorf("%s: class %s, %+v", name, providers.ClassOf(got), of)
		}
		for e := got; e != nil; e = errors.Unwrap(e) {
			if strings.Contains(fmt.Sprintf("%v %+v %#v", e, e, e), "hunter22") {
				t.Errorf("%s: %#v", name, e)
			}
		}
		if errors.Is(got, leak) {
			t.Errorf("%s: the cause with the value can be unwrapped", name)
		}
	}
	if got := s.Scrub(leak); got.Error() != "bad password (secret)" || providers.ClassOf(got) != providers.Unknown {
		t.Errorf("without a class: %v", got)
	}
	clean := &providers.Error{Op: "create", Ref: ref, Class: providers.Busy, Err: errors.New("not ready")}
	if got := s.Scrub(clean); got != error(clean) {
		t.Errorf("a clean error is replaced: %#v", got)
	}
	if s.Scrub(nil) != nil {
		t.Error("no error became one")
	}
}

// hiding has a text that says less than its cause.
type hiding struct{ cause error }

func (hiding) Error() string   { return "it failed" }
func (h hiding) Unwrap() error { return h.cause }

// TestHandler: no value gets into a log, through any part of a record.
func TestHandler(t *testing.T) {
	s := NewScrubber()
	var out bytes.Buffer
	log := slog.New(s.Handler(slog.NewTextHandler(&out, nil)))
	log.Info("before", "a", 1)
	s.Learn(NewValue("hunter22"))
	log.With("with", "hunter22").WithGroup("g").Info("message hunter22", "s", "x hunter22", "e", errors.New("hunter22"),
		"b", []byte("hunter22"), slog.Group("deep", "m", map[string]string{"k": "hunter22"}), "v", NewValue("hunter22"), "n", 7)
	text := out.String()
	if strings.Contains(text, "hunter22") || strings.Contains(text, fmt.Sprint([]byte("hunter22"))) {
		t.Error(text)
	}
	for _, want := range []string{"a=1", "g.n=7", "g.deep.m", "with=(secret)", `msg="message (secret)"`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not in %s", want, text)
		}
	}
}
