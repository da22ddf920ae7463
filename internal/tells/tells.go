// Package tells finds a secret in what a far side says of it, before that becomes an error or a line of a log.
package tells

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"strings"
)

// Of reports whether a text repeats a secret: as it is, escaped as in JSON or in a URL, in hex, or in base64 of either alphabet, also in the
// middle of something longer. The empty secret is nowhere.
func Of(text, secret string) bool {
	if secret == "" {
		return false
	}
	quoted, _ := json.Marshal(secret) // a string can be
	for _, form := range []string{secret, string(quoted[1 : len(quoted)-1]), url.QueryEscape(secret), url.PathEscape(secret)} {
		if strings.Contains(text, form) {
			return true
		}
	}
	if strings.Contains(strings.ToLower(text), hex.EncodeToString([]byte(secret))) {
		return true
	}
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for before := range 3 {
			form := enc.EncodeToString([]byte(strings.Repeat("\x00", before) + secret))
			if before > 0 { // what depends on the bytes before
				form = form[before+1:]
			}
			if (before+len(secret))%3 != 0 { // and after
				form = form[:len(form)-1]
			}
			if form != "" && strings.Contains(text, form) {
				return true
			}
		}
	}
	return false
}
