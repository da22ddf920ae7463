package secrets

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/klauspost/compress/zstd"
)

// encodings are those in which a canary is searched.
var encodings = []string{"plain", "base64", "hex", "percent", "quoted"}

// mangled are forms in which no scrubber finds a value: what a far side says after it was sent one is withheld as a whole.
var mangled = []string{"upper case", "reversed", "letter by letter"}

// A canary is a secret that must not come out.
type canary struct {
	name  string // what it stands for
	value string
}

// needles returns the texts that betray a canary in an encoding. They are made here, by the libraries' own encoders, and
// not by the code under test.
func (c canary) needles(encoding string) []string {
	var all []string
	v := c.value
	if slices.Contains(mangled, encoding) && !utf8.ValidString(v) {
		return nil // a key in bytes has no letters
	}
	switch encoding {
	case "plain":
		all = []string{v, v[:16], v[len(v)-12:]} // a part before or after the special characters is a leak, too
	case "upper case":
		if upper := strings.ToUpper(v); upper != v {
			all = []string{upper[:16], upper[len(upper)-12:]}
		}
	case "reversed":
		r := []rune(v)
		slices.Reverse(r)
		all = []string{string(r)[:12], string(r)[len(string(r))-16:]}
	case "letter by letter":
		lines := strings.Join(strings.Split(v[:16], ""), "\n")
		all = []string{lines, strings.ReplaceAll(lines, "\n", `\n`), strings.ReplaceAll(lines, "\n", `\\n`)}
	case "base64":
		for before := range 3 {
			for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
				text := enc.EncodeToString([]byte("\x00\x00"[:before] + v))
				// The characters at the borders also depend on what is next to the canary.
				all = append(all, text[[]int{0, 2, 3}[before]:(before+len(v))*8/6])
			}
		}
	case "hex":
		all = []string{hex.EncodeToString([]byte(v)), strings.ToUpper(hex.EncodeToString([]byte(v)))}
	case "percent":
		all = []string{url.QueryEscape(v), url.PathEscape(v), percent(v, "%%%02x"), percent(v, "%%%02X")}
	case "quoted":
		b, _ := json.Marshal(v)
		twice, _ := json.Marshal(string(b))
		plain := strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(string(b))
		all = []string{
			string(b[1 : len(b)-1]), plain[1 : len(plain)-1], string(twice[3 : len(twice)-3]), inside(strconv.Quote(v)), inside(strconv.QuoteToASCII(v)),
			inside(strconv.Quote(inside(strconv.Quote(v)))), marshalled(inside(strconv.Quote(v))), marshalled(inside(strconv.QuoteToASCII(v))), inside(fmt.Sprint([]byte(v))),
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func marshalled(s string) string {
	b, _ := json.Marshal(s)
	return inside(string(b))
}

func inside(quoted string) string { return quoted[1 : len(quoted)-1] }

func percent(s, format string) string {
	var b strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&b, format, s[i])
	}
	return b.String()
}

// write writes a canary into a text in an encoding, as something longer would contain it.
func (c canary) write(encoding string, before string) string {
	text := before + c.value + "!"
	switch encoding {
	case "base64":
		return base64.StdEncoding.EncodeToString([]byte(text))
	case "hex":
		return hex.EncodeToString([]byte(text))
	case "percent":
		return url.QueryEscape(text)
	case "quoted":
		return strconv.QuoteToASCII(text)
	}
	return text
}

// A finding is a canary in a place where none may be.
type finding struct{ canary, encoding, place, excerpt string }

// A place is something that was written: its name and its bytes.
type place struct {
	name string
	text []byte
}

// search looks for every canary in every encoding in every place. Compressed texts are searched uncompressed.
func search(places []place, canaries []canary) []finding {
	var found []finding
	for _, p := range places {
		texts := [][]byte{p.text}
		if plain, err := unpack(p.text); err == nil {
			texts = append(texts, plain)
		}
		for _, c := range canaries {
			for _, encoding := range slices.Concat(encodings, mangled) {
				for _, needle := range c.needles(encoding) {
					for _, text := range texts {
						if i := bytes.Index(text, []byte(needle)); i >= 0 {
							found = append(found, finding{c.name, encoding, p.name, string(text[max(0, i-60):min(len(text), i+len(needle)+20)])})
						}
					}
				}
			}
		}
	}
	return found
}

var decoder, _ = zstd.NewReader(nil)

func unpack(b []byte) ([]byte, error) {
	if !bytes.HasPrefix(b, []byte{0x28, 0xb5, 0x2f, 0xfd}) {
		return nil, zstd.ErrMagicMismatch
	}
	return decoder.DecodeAll(b, nil)
}
