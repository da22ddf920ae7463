package load

import "cmp"

// Bounds are tighter limits than those for every document. Zero fields leave the general limit.
type Bounds struct {
	Size      int // bytes of JSON
	Resources int
}

// InboxBounds are for a document that a cloud left in the store with its own client, and that nobody has reviewed.
// Larger documents come through `converge put`, from a person or from a service with the same rights.
var InboxBounds = Bounds{Size: 1 << 20, Resources: 20_000}

// orDefault fills in zero fields, and never loosens a limit.
func (b Bounds) orDefault() Bounds {
	return Bounds{
		Size:      min(cmp.Or(b.Size, maxSize), maxSize),
		Resources: min(cmp.Or(b.Resources, maxResources), maxResources),
	}
}
