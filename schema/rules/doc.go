// Package rules checks what concerns the whole site in a document: that references lead somewhere and not in a cycle, that
// nothing is used twice or is in two networks, that settings of several resources match.
//
// A [Site] is the resources of a document. The reader of the document makes it, accepts each resource that is valid by
// itself, which also resolves its references, and then applies all rules: [Site.Check]. A rule is not part of a provider's
// code: it reports in advance, offline, what a far side would refuse in the middle of a run.
//
// A site that is kept can be revised: then rules look again only at what the revision touches. So a rule consists of checks that say
// what they look at: one resource and what that refers to ([each]), resources that have a key in common, such as a MAC address
// ([sharing]), or all resources of some kinds ([together]), for the few that need it.
//
// A rule is one entry of a table in the file of its provider, with a code that stays for ever. It trusts the type of a field only
// in accepted resources, and takes at most O(n log n) for n resources. The package uses kinds as data: neither CUE nor files.
package rules
