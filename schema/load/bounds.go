package load

import "cmp"

// Bounds limit a document more tightly than every document is limited. Zero fields leave it at that.
type Bounds struct {
	Size      int // bytes of JSON
	Resources int
}

// InboxBounds are for a document that a cloud left in the store with its own client: nobody has looked at it. What is
// larger comes through `converge put`, from a person or a service that has the rights of one.
var InboxBounds = Bounds{Size: 1 << 20, Resources: 20_000}

// orDefault fills in what is not said, and never loosens.
func (b Bounds) orDefault() Bounds {
	return Bounds{
		Size:      min(cmp.Or(b.Size, maxSize), maxSize),
		Resources: min(cmp.Or(b.Resources, maxResources), maxResources),
	}
}
