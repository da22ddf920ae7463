// Package spec contains the specs of the libvirt kinds as Go structs, generated from the schema.
package spec

//go:generate go run converge.dev/converge/internal/specgen libvirt
