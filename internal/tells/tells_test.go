package tells_test

import (
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"strings"
	"testing"

	"converge.dev/converge/internal/tells"
)

func TestOf(t *testing.T) {
	const secret = `s.4/Zq"+?9wK~`
	for name, text := range map[string]string{
		"plain": "refused: " + secret, "JSON": `{"said":"s.4/Zq\"+?9wK~"}`, "query": "?t=" + url.QueryEscape(secret), "path": "/" + url.PathEscape(secret),
		"hex": hex.EncodeToString([]byte("x" + secret)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(secret))),
		"base64": base64.StdEncoding.EncodeToString([]byte(secret)), "base64 of more": base64.StdEncoding.EncodeToString([]byte("a" + secret + "b")),
		"base64 of still more": base64.URLEncoding.EncodeToString([]byte("ab" + secret + "cd")),
	} {
		if !tells.Of(text, secret) {
			t.Errorf("%s is not found in %s", name, text)
		}
		if tells.Of(text, "s.4/Zq and another") || tells.Of(text, "") {
			t.Errorf("%s tells of something else", name)
		}
	}
}
