// Package wirepb is the generated code of providers.proto, the messages of package wire.
package wirepb

//go:generate sh generate.sh
