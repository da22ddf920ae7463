// Package rules holds what every document must keep and what only a look at the whole site can tell: that references lead
// somewhere and not in a circle, that nothing is used twice or lies in two networks, that settings of several resources fit.
//
// A [Site] is the resources of a document. Whoever reads the document makes it, accepts each resource that is good by itself,
// which finds what it refers to, and then lets all rules look: [Site.Check]. A rule belongs to no provider's code: it says in
// advance, offline, what a far side would refuse in the middle of a run.
//
// A rule is one entry of a table in the file of its provider, with a code that stays for ever. It trusts the type of a field only
// in what was accepted, and takes at most O(n log n) for n resources. The package knows kinds as data: neither CUE nor files.
package rules
