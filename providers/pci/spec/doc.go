// Package spec contains the specs of the pci kinds as Go structs, generated from the schema.
package spec

//go:generate go run converge.dev/converge/internal/specgen pci
