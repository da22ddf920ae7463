package carbidesim

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// token is the version of an object: a number that grows by one with every change, and the time of the change. Both count
// when tokens are compared.
type token struct {
	Number       uint64
	Microseconds int64
}

func firstToken(now time.Time) token { return token{1, now.UnixMicro()} }

func (t token) next(now time.Time) token { return token{t.Number + 1, now.UnixMicro()} }

func (t token) String() string { return fmt.Sprintf("V%d-T%d", t.Number, t.Microseconds) }

// MarshalText uses the wire format in the world's file.
func (t token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads the wire format.
func (t *token) UnmarshalText(b []byte) (err error) {
	*t, err = parseToken(string(b))
	return err
}

func parseToken(text string) (token, error) {
	number, at, ok := strings.Cut(strings.TrimSpace(text), "-")
	if ok && strings.HasPrefix(number, "V") && strings.HasPrefix(at, "T") {
		n, errN := strconv.ParseUint(number[1:], 10, 64)
		us, errT := strconv.ParseInt(at[1:], 10, 64)
		if errN == nil && errT == nil && n > 0 && us >= 0 {
			return token{n, us}, nil
		}
	}
	return token{}, fmt.Errorf("invalid version %q", text)
}

// expect checks the token of a caller that wants to change an object. The code for a malformed one differs between kinds.
func expect(kind string, have token, want *string, malformed codes.Code) error {
	if want == nil {
		return nil
	}
	t, err := parseToken(*want)
	if err != nil {
		return status.Error(malformed, err.Error())
	}
	if t != have {
		return stale(kind, *want)
	}
	return nil
}

func stale(kind, want string) error {
	return precondition("An object of type %s was intended to be modified did not have the expected version %s", kind, want)
}
