// Package remotepb is the generated code of remote.proto, the messages of package remote.
package remotepb

//go:generate sh generate.sh
