// Package forge is the wire of the site's control service, forge.Forge: the messages and methods that converge
// needs, with the real service's names, numbers and types.
//
// Two generations of the service are in use. Newer servers keep an object's name in its metadata; older ones, and
// clients built from the older files, keep it in a plain field whose number is reserved today. [SetLegacyName] and
// [LegacyName] reach that field, so that one request and one reader serve both. On reading prefer the metadata.
//
// The .proto files are the source; go generate compiles them. A test compares every compiled descriptor with
// testdata/forge-wire.json, the table of facts about the real service.
package forge

//go:generate sh generate.sh
