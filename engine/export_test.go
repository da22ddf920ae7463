package engine

// SameResource and SameThing are what a Memory compares with.
var (
	SameResource = sameResource
	SameThing    = sameThing
)
