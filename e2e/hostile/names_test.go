package hostile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// A hostile is a text that tries to be something else. It is identified by its JSON spelling, because some of it has no
// other spelling.
type hostile struct {
	what    string
	literal string // with its quotation marks
	text    string // what the literal stands for; meaningless when it stands for nothing
	broken  bool   // the literal is not JSON, so nothing that holds it can be read
}

// hostiles are all hostile texts. Each literal occurs once.
var hostiles = func() (all []hostile) {
	add := func(what string, texts ...string) {
		for i, s := range texts {
			all = append(all, hostile{what: fmt.Sprintf("%s %d", what, i+1), literal: quoted(s), text: s})
		}
	}
	spelt := func(what, text string, literal string) {
		all = append(all, hostile{what: what, literal: `"` + literal + `"`, text: text})
	}
	broken := func(what string, literals ...string) {
		for i, s := range literals {
			all = append(all, hostile{what: fmt.Sprintf("%s %d", what, i+1), literal: `"` + s + `"`, broken: true})
		}
	}

	add("empty", "", " ", "  ", "\t", "\u00a0", "\u3000")
	add("dots", ".", "..", "...", "....", ".hidden", "a.", "a..b", "a.b.c")
	add("path", "/", "//", "a/b", "/etc/passwd", "../../../../etc/passwd", "..\\..\\windows\\win.ini", "a/../b", "./a", "a/", "~", "~root", "~/x",
		"/converge/other/resource/site/carbide.vpc/x", "..%2f..%2fetc%2fpasswd", "%2e%2e%2f", "file:///etc/passwd", "\\\\host\\share", "/dev/null", "/proc/self/environ")
	add("ref", "site/carbide.vpc/prod", "carbide.vpc/prod", "nodes", "site", "a.b/c", "x#1", "#1", "##", "a/b#2", "-/-", "5a2f8c1e-7b0d-4f3a-9c61-2e8d4b7a9f10/site/carbide.vpc/x#1", "converge.dev/mark", "converge.dev/other",
		"site/ovs.bridge/\x1b[2J", "gpu-01/carbide.vpc/\u202ex", "x.y/carbide.vpc/a", "site/carbide.tenant/"+strings.Repeat("x", 70_000), "site/carbide.tenant/\x1b[31m")
	add("control", "\x01", "\x07", "\b", "\f", "\v", "a\x1bb", "\x7f", "\x1f", "\u0080", "\u0085", "\u009b31m", "\x1a", "\x04")
	add("newline", "\n", "\r", "\r\n", "a\nb", "a\r\nSet-Cookie: x", "a\u2028b", "a\u2029b", "x\n", "\nx", "a\n  \"b\": 1")
	add("ansi", "\x1b[31mred\x1b[0m", "\x1b[2J\x1b[H", "\x1b]0;title\x07", "\x1b]8;;http://evil.example\x1b\\x\x1b]8;;\x1b\\", "\x1bc", "\x1b[6n", "\x1bP+q\x1b\\", "\u009b2J", "\r\x1b[K")
	add("quotes", `"`, `'`, "`", `""`, `"'`, `\`, `\\`, `\"`, `a"b`, `"; DROP TABLE`, `' OR '1'='1`, "“”", "''''")
	add("shell", "$(reboot)", "`id`", "${HOME}", "$HOME", "; rm -rf /", "| sh", "&& true", "|| true", "&", ">", "> /tmp/x", "< /etc/passwd", "!!", "!$", "$IFS", "{a,b}", "a b", "*", "?", "[a-z]", "**", "$((1+1))", "<(id)", "\\$(id)", "a;b", "()", "(){ :;};")
	add("dash", "-", "--", "-rf", "--help", "-h", "-target=*", "--config=/etc/passwd", "-e", "-c id", "- -")
	add("xml", "<script>alert(1)</script>", "<!--", "-->", "]]>", "<![CDATA[x]]>", "&lt;", "&amp;", "&#0;", "&#x41;", "<!DOCTYPE x [<!ENTITY e SYSTEM \"file:///etc/passwd\">]>", "</name><uuid/>", "a<b", "a>b", "<", "'/>")
	add("percent", "%", "%%", "%s", "%n", "%d%d%d%d", "%s%s%s%s%s", "%00", "%0a", "%v", "%!s(MISSING)", "%[1]q", "%x", "100%", "%*d", "%25")
	add("template", "{{.}}", "{{.Env}}", "${x}", "#{x}", "<%= x %>", "{name}", "{tenant}/{name}", "{", "}", "\\(x)", "{{")
	add("long", strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("a", 65), strings.Repeat("b", 128), strings.Repeat("b", 129), strings.Repeat("a", 255), strings.Repeat("a", 256), strings.Repeat("a", 257),
		strings.Repeat("a", 1025), strings.Repeat("é", 128), strings.Repeat("é", 200), strings.Repeat("😀", 64), strings.Repeat("😀", 255), strings.Repeat("x", 70_000), strings.Repeat("../", 1000))
	add("unicode", "é", "e\u0301", "ñ", "ß", "İ", "ı", "ſ", "K", "Å", "ﬁ", "аcme", "асmе", "ρrod", "ｐｒｏｄ", "𝓹𝓻𝓸𝓭", "٣", "½", "①", "日本", "😀", "👩‍👩‍👧", "\U0001f1e9\U0001f1ea", "\ufffd", "\uffff", "\ufdd0", "\U0010ffff", "\ue000")
	add("invisible", "\u200b", "a\u200bb", "\u200d", "\u2060", "\ufeff", "\ufeffa", "a\u00adb", "\u034f", "\u180e", "\u061c", "\U000e0041\U000e0042", "a\ufe0f", "\u115f", "\u3164")
	add("direction", "\u202eabc", "abc\u202e", "\u202a", "\u202d", "\u2066x\u2069", "\u200f", "\u200e", "gpj.\u202eexe", "א", "\u202etxt.exe\u202c")
	add("combining", "\u0301", "a\u0301\u0302\u0303", "a"+strings.Repeat("\u0336", 50), "\u20e3", "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A")
	add("case", "Prod", "PROD", "pROD", "prod", "Site", "SITE", "Nodes", "ACME", "acme")
	add("windows", "CON", "con", "NUL", "nul.txt", "COM1", "LPT1", "AUX", "PRN", "a:b", "C:", "C:\\", "a::$DATA", "a ", " a", "a.", "desktop.ini")
	add("number", "0", "1", "-1", "007", "1e5", "1e309", "0x10", "NaN", "Infinity", "1.0", "9223372036854775808", "true", "false", "null", "nil", "undefined", "yes", "no", "~null", "1_000", "٠",
		strings.Repeat("9", 70_000), strings.Repeat("9", 70_000)+"h", strings.Repeat("9", 70_000)+"%", "1h"+strings.Repeat("0", 300)+"m")
	add("script", "__proto__", "constructor", "prototype", "toString", "hasOwnProperty", "__class__", "eval", "this", "$where", "$ref", "$schema", "@type", "@ref(carbide.tenant)", "_", "__", "_hidden", "#Def", "_#x")
	add("json", "{}", "[]", "[", "]", `{"a":1}`, `a":"b`, `","x":"y`, `\u0000`, "null,", "//", "/* */", "a,b", "a:b:c", `{"v":1,`)
	add("cue", `"\(x)"`, "a: b", "x!", "x?", "[string]: _", "a & b", "a | b", "*1", "=~\".*\"", "...", "import \"net\"", "let x = 1", "@if(x)", "`#\"x\"#`", "'''", `"""`)
	add("yaml", "- a", "? a", "a: b #c", "&a", "*a", "!!binary x", "---", "...\n", "|", ">-", "%YAML 1.2", "<<", "@a", "!tag")
	add("ovsdb", `["map",[]]`, `["uuid","5a2f8c1e-7b0d-4f3a-9c61-2e8d4b7a9f10"]`, `["named-uuid","x"]`, `["set",[]]`, "a=b", "a=b,c=d", "key=", "=value", "a,b=c", "_uuid", "_version", "bridge", "local_port", "local_interface")
	add("selector", "a=b", "a!=b", "a in (b,c)", "!a", "a,b", "a notin (b)", "env", "kubernetes.io/name", "a_b", "A.b-C_d")
	add("glob", "a*", "*a", "[!a]", "[]a]", "a?", "\\*", "{a,b}*", "**/*", "[", "[^]")
	add("sql", "'; --", "1; SELECT 1", "\" OR \"\"=\"", "admin'--", "x' UNION SELECT 1")
	add("header", "a: b", "Host: x", "a;q=1", "a=b; Path=/", "Basic eDp4", "\t: x")
	add("ldap", "*)(uid=*", "cn=x,dc=y", "a+b=c")
	add("net", "localhost", "127.0.0.1", "::1", "0.0.0.0/0", "http://169.254.169.254/", "a@b", "[::]", "10.0.0.1:22", "env:HOME", "file:/etc/shadow", "unix:/x", "fe80::1%eth0")

	spelt("escaped slash", "a/b", `a\/b`)
	spelt("escaped letter", "prod", `\u0070rod`)
	spelt("escaped quote", `a"b`, `a\u0022b`)
	spelt("escaped line", "a\nb", `a\nb`)
	spelt("pair of surrogates", "😀", `\ud83d\ude00`)
	spelt("escaped delete", "\x7f", `\u007f`)
	spelt("escaped override", "\u202e", `\u202e`)
	spelt("escaped escape", "\x1b[31m", `\u001b[31m`)

	broken("surrogate", `\ud800`, `\udc00`, `\ud800a`, `\udc00\ud800`, `\uD800\u0041`)
	broken("NUL", `\u0000`, `a\u0000b`, "\x00", "a\x00", `\u0000\u0000`)
	broken("bad UTF-8", "\xff", "\xc3\x28", "\xc0\xaf", "\xe2\x82", "\xed\xa0\x80", "\xf5\x80\x80\x80", "a\x80b", "\xc1\x81", "\xf0\x9f\x98", "\xfe\xfe\xff\xff")
	broken("raw control", "\n", "\t", "\x1b[31m", "\x01", "a\rb")
	broken("bad escape", `\x41`, `\u12`, `\U00000041`, `\'`, `\0`, `\e[0m`)

	seen := map[string]bool{}
	kept := all[:0]
	for _, h := range all {
		if !seen[h.literal] {
			seen[h.literal] = true
			kept = append(kept, h)
		}
	}
	return kept
}()

// quoted spells a text in JSON without more escapes than it needs.
func quoted(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		panic(err) // a string is always JSON
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// TestHostiles checks that the list is what it claims to be.
func TestHostiles(t *testing.T) {
	if len(hostiles) < 200 {
		t.Errorf("there are %d hostile names, want 200 at least", len(hostiles))
	}
	broken := 0
	for _, h := range hostiles {
		var got string
		err := json.Unmarshal([]byte(h.literal), &got)
		switch {
		case h.broken:
			broken++ // package json repairs much of it, so it is no judge
		case err != nil || got != h.text || !utf8.ValidString(h.text):
			t.Errorf("%s: %s reads as %q, %v; want %q", h.what, h.literal, got, err, h.text)
		}
	}
	if broken < 20 {
		t.Errorf("%d of them are not JSON, want 20 at least", broken)
	}
	t.Logf("%d names, %d of them not JSON", len(hostiles), broken)
}
