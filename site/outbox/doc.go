// Package outbox tells the cloud what happens at a site: as CloudEvents, each in an HTTP request of its own to one webhook.
//
// Words: an event is kept when it is in the store until it was delivered; an event that is not kept is loose. The kinds of events that a
// cloud cannot do without are kept: a run has ended, a plan waits for approval, a node is lost or no longer is, a guard has undone a
// change, the site has failed or no longer does. All others are loose, but for those of the inventory: they are made when they are sent,
// when nothing else waits, from where the receiver is. No change of the inventory is lost to it, and none is told of that is past.
//
// Promises: what is kept is delivered at least once, in the order in which it was kept, whatever process crashes and however long the
// receiver is away; each time it has the same id. It is written in the transaction that it is about, or found in the store afterwards,
// so that no crash comes between the two. Loose events are delivered if that is possible soon. What had to be dropped is counted, and the next event says
// how many that were. Of two site agents on one store, the one that keeps the site sends. Nobody waits for a receiver: neither the
// site agent nor a run. The bearer token is in no log, error, event or store, and is sent to no other place: a redirection is not followed.
//
// An event is dropped only when more than [MaxEvents] or [MaxBytes] wait, and refused when the receiver says for [Patience] that it is
// wrong; both are logged as errors.
package outbox
