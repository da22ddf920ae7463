// Package forge is the wire protocol of the site's control service, forge.Forge: the messages and methods that converge
// needs, with the real service's names, numbers and types.
//
// Several generations of the service are in use. Newer servers keep an object's name in its metadata; older ones, and
// clients built from the older files, keep it in a plain field whose number is reserved today. [SetLegacyName] and
// [LegacyName] access that field, so that one request and one reader serve both. When reading, prefer the metadata.
// Likewise for what moved from flat fields into config and status: read the newest place that is filled.
//
// The .proto files are the source; go generate compiles them. Tests compare every compiled descriptor with the tables of
// facts about the real service: testdata/forge-wire.json, as of May 2026, and testdata/forge-wire-2026-08.json, v2.0.
package forge

//go:generate sh generate.sh
