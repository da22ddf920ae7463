// Package vswitch is the database of Open vSwitch as Go types, generated from the schema that Open vSwitch ships.
package vswitch

//go:generate go run github.com/ovn-org/libovsdb/cmd/modelgen -p vswitch -o . /usr/share/openvswitch/vswitch.ovsschema

import "sync"

// Parsed returns [Schema], which decodes 40 KiB of JSON each time. It is not to be changed.
var Parsed = sync.OnceValue(Schema)
