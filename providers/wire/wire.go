// Package wire carries the contract of package providers between two processes, over gRPC: [Serve] offers the providers of one
// process, and [Connect] returns them in the other, as providers that obey all laws of the contract.
//
// Messages contain the contract's own data, see providers.proto; the kinds of a provider are not repeated there. A list is sent in pages,
// but for those that the other side has from before, see [Memory]; an interrupted list is an error, never a shorter one. An interrupted
// change has an unknown outcome. An interrupted watch ends with an error; so that it does when the other side is gone without a word, the
// connection must have keepalive. Secrets that a call sets are sent in clear: the transport must keep them from others.
package wire

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/wire/wirepb"
	"converge.dev/converge/schema"
)

// encodeObject writes an object into b as JSON; nil, which means none, becomes nil. Equal objects become equal text.
func encodeObject(b []byte, o schema.Object) []byte {
	if o == nil {
		return nil
	}
	return o.AppendJSON(b[:0])
}

func decodeObject(b []byte) (o schema.Object, err error) {
	if len(b) == 0 {
		return nil, nil
	}
	return o, o.UnmarshalJSON(b)
}

// encodeRef returns the text of a ref; empty for the zero ref, which means none.
func encodeRef(r schema.Ref) string {
	if r.IsZero() {
		return ""
	}
	return r.String()
}

func decodeRef(s string) (schema.Ref, error) {
	if s == "" {
		return schema.Ref{}, nil
	}
	return schema.ParseRef(s)
}

func encodeMark(m providers.Mark) *wirepb.Mark {
	if m.IsZero() {
		return nil
	}
	return &wirepb.Mark{Site: m.Site, Ref: encodeRef(m.Ref), Incarnation: int64(m.Incarnation)}
}

func decodeMark(m *wirepb.Mark) (providers.Mark, error) {
	ref, err := decodeRef(m.GetRef())
	return providers.Mark{Site: m.GetSite(), Ref: ref, Incarnation: int(m.GetIncarnation())}, err
}

// encodeThing makes m the message of a thing. It reuses the memory of the text that m has.
func encodeThing(m *wirepb.Thing, th *providers.Thing) {
	m.Id, m.Uid, m.Name, m.Mark, m.Version = th.ID, th.UID, th.Name, encodeMark(th.Mark), th.Version
	m.Spec, m.Status = encodeObject(m.GetSpec(), th.Spec), encodeObject(m.GetStatus(), th.Status)
	m.Phase, m.Detail, m.Derived, m.Passing, m.Unfilled = string(th.Phase), strings.ToValidUTF8(th.Detail, "�"), th.Derived, th.Passing, th.Unfilled
}

// appendThing appends what a thing adds to the text of a page, of which the digest is taken.
func appendThing(text []byte, m *wirepb.Thing) ([]byte, error) {
	text = protowire.AppendVarint(text, uint64(proto.Size(m)))
	return proto.MarshalOptions{Deterministic: true, UseCachedSize: true}.MarshalAppend(text, m)
}

func decodeThing(th *wirepb.Thing) (providers.Thing, error) {
	spec, serr := decodeObject(th.GetSpec())
	state, terr := decodeObject(th.GetStatus())
	mark, merr := decodeMark(th.GetMark())
	if err := errors.Join(serr, terr, merr); err != nil {
		return providers.Thing{}, fmt.Errorf("%s: %w", th.GetId(), err)
	}
	return providers.Thing{
		ID: th.GetId(), UID: th.GetUid(), Name: th.GetName(), Mark: mark, Version: th.GetVersion(), Spec: spec, Status: state,
		Phase: providers.Phase(th.GetPhase()), Detail: th.GetDetail(), Derived: th.GetDerived(), Passing: th.GetPassing(), Unfilled: th.GetUnfilled(),
	}, nil
}

func encodeCall(c *providers.Call) *wirepb.CallRequest {
	return &wirepb.CallRequest{
		Ref: encodeRef(c.Ref), Id: c.ID, Uid: c.UID, Name: c.Name, Mark: encodeMark(c.Mark), Want: encodeObject(nil, c.Want), Have: encodeObject(nil, c.Have),
		Version: c.Version, Key: c.Key, Epoch: c.Epoch, Guard: encodeGuard(c.Guard),
	}
}

func decodeCall(c *wirepb.CallRequest) (providers.Call, error) {
	ref, rerr := schema.ParseRef(c.GetRef())
	want, werr := decodeObject(c.GetWant())
	have, herr := decodeObject(c.GetHave())
	mark, merr := decodeMark(c.GetMark())
	return providers.Call{
		Ref: ref, ID: c.GetId(), UID: c.GetUid(), Name: c.GetName(), Mark: mark, Want: want, Have: have,
		Version: c.GetVersion(), Key: c.GetKey(), Epoch: c.GetEpoch(),
		Guard: providers.Guard{ID: c.GetGuard().GetId(), Within: time.Duration(c.GetGuard().GetWithin())},
	}, errors.Join(rerr, werr, herr, merr)
}

func encodeGuard(g providers.Guard) *wirepb.Guard {
	if g.IsZero() {
		return nil
	}
	return &wirepb.Guard{Id: g.ID, Within: int64(g.Within)}
}

func encodeTarget(t providers.Target) *wirepb.Target { return &wirepb.Target{Kind: t.Kind, Id: t.ID} }

func decodeTarget(t *wirepb.Target) providers.Target {
	return providers.Target{Kind: t.GetKind(), ID: t.GetId()}
}

func encodeTargets(targets []providers.Target) []*wirepb.Target {
	encoded := make([]*wirepb.Target, len(targets))
	for i, t := range targets {
		encoded[i] = encodeTarget(t)
	}
	return encoded
}

func decodeTargets(encoded []*wirepb.Target) []providers.Target {
	targets := make([]providers.Target, len(encoded))
	for i, t := range encoded {
		targets[i] = decodeTarget(t)
	}
	return targets
}

// statusCodes are for those that read nothing else of an error, such as a proxy.
var statusCodes = map[providers.Class]codes.Code{
	providers.Transient: codes.Unavailable, providers.Busy: codes.FailedPrecondition, providers.Conflict: codes.Aborted,
	providers.Exists: codes.AlreadyExists, providers.Absent: codes.NotFound, providers.Denied: codes.PermissionDenied,
	providers.Invalid: codes.InvalidArgument, providers.Unsupported: codes.Unimplemented,
}

// EncodeFailure returns the message of an error; nil for nil.
func EncodeFailure(err error) *wirepb.Failure {
	if err == nil {
		return nil
	}
	f, cause := &wirepb.Failure{}, err
	var of *providers.Error
	if errors.As(err, &of) {
		f.Op, f.Ref, f.Kind, f.Class, f.Code, f.Over, cause = of.Op, encodeRef(of.Ref), of.Kind, string(of.Class), of.Code, of.Over, of.Err
	}
	if cause != nil {
		f.Message = strings.ToValidUTF8(cause.Error(), "�")
	}
	switch {
	case errors.Is(err, context.Canceled):
		f.Cause = wirepb.Failure_CAUSE_CANCELLED
	case errors.Is(err, context.DeadlineExceeded):
		f.Cause = wirepb.Failure_CAUSE_DEADLINE_EXCEEDED
	}
	var outdated *providers.OutdatedError
	if errors.As(err, &outdated) {
		f.Outdated = &wirepb.Outdated{On: outdated.On, Stored: outdated.Stored, Epoch: outdated.Epoch}
	}
	return f
}

// StatusOf returns the status that carries a failure.
func StatusOf(f *wirepb.Failure) error {
	code, ok := statusCodes[providers.Class(f.GetClass())]
	if !ok {
		code = codes.Unknown
	}
	s, err := status.New(code, f.GetMessage()).WithDetails(f)
	if err != nil {
		return status.Error(code, f.GetMessage())
	}
	return s.Err()
}

// A said error has the text of an error on the other side, and wraps its sentinel.
type said struct {
	words string
	is    error // a sentinel, or an error of a type that callers test for; nil: none
}

func (s *said) Error() string { return s.words }
func (s *said) Unwrap() error { return s.is }

func decodeFailure(f *wirepb.Failure) error {
	if f == nil {
		return nil
	}
	cause := &said{words: f.GetMessage()}
	switch f.GetCause() {
	case wirepb.Failure_CAUSE_CANCELLED:
		cause.is = context.Canceled
	case wirepb.Failure_CAUSE_DEADLINE_EXCEEDED:
		cause.is = context.DeadlineExceeded
	case wirepb.Failure_CAUSE_UNSPECIFIED:
		if o := f.GetOutdated(); o != nil {
			cause.is = &providers.OutdatedError{On: o.GetOn(), Stored: o.GetStored(), Epoch: o.GetEpoch()}
		}
	}
	if f.GetOp() == "" {
		return cause
	}
	ref, err := decodeRef(f.GetRef())
	if err != nil {
		cause.words += " (of " + f.GetRef() + ")"
	}
	return &providers.Error{
		Op: f.GetOp(), Ref: ref, Kind: f.GetKind(), Class: providers.Class(f.GetClass()), Code: f.GetCode(), Over: f.GetOver(), Err: cause,
	}
}

// FailureOf returns the failure at the provider; ok is false when the call failed on the way.
func FailureOf(err error) (f *wirepb.Failure, ok bool) {
	for _, d := range status.Convert(err).Details() {
		if f, ok = d.(*wirepb.Failure); ok {
			return f, true
		}
	}
	return nil, false
}
