package trust

import (
	"errors"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A callError is the error of a call to the site in the words that help: what the site said, or why it was not reached. gRPC quotes the latter
// inside other words.
type callError struct {
	err   error
	words string
}

func (e *callError) Error() string { return e.words }
func (e *callError) Unwrap() error { return e.err }

// plainly returns the error of a call, which must not be nil, as a callError.
func plainly(err error) error {
	s := status.Convert(err)
	words := s.Message()
	if quoted, ok := strings.CutPrefix(words, "connection error: desc = "); ok && s.Code() == codes.Unavailable {
		if inner, err := strconv.Unquote(quoted); err == nil {
			words = inner
		}
	}
	for _, around := range []string{"transport: Error while dialing: ", "transport: authentication handshake failed: "} {
		words = strings.TrimPrefix(words, around)
	}
	return &callError{err, words}
}

// Unreached reports whether an error of this package is of a call that no site answered. It can be repeated.
func Unreached(err error) bool {
	var call *callError
	return errors.As(err, &call) && status.Code(call.err) == codes.Unavailable
}
