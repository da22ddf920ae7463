// Package trustpb is the generated code of enrolment.proto, the messages of package trust.
package trustpb

//go:generate sh generate.sh
