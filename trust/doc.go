// Package trust decides who is who at a site: which machine is which node, which server is the site, and whose tasks count.
//
// # Words
//
// The root keys are kept offline; k of n of them sign the trust document. The trust document says what nodes believe: the site, the
// roots, the certificate authorities and the task keys, each with its validity. The authority is what the site agent has online: the
// private keys of an authority and of a task key, both replaced at least every 30 days. A token lets one node enrol once. An
// identity is what a node has: a key that never leaves it, a certificate of 24 hours, and the trust document.
//
// # Promises
//
// A trust document is replaced only by the next version, for the same site, signed by the roots of the version before and by its own.
// A node pins the first one that it gets, over a connection that the token's pin has authenticated.
//
// The first claim binds a token to a key, in one guarded transaction. The same key may ask again and gets the same certificate; any
// other key is refused, and the node is marked as contested. What a certificate says comes from the site's record of the node, never
// from the request.
//
// Only the newest certificate of a node is valid. A renewal needs a new key, which is on the node's disk before it is asked for; so a
// reply that is lost is had again by asking again.
//
// Connections are TLS 1.3, and are verified anew each time: no tickets. A client's certificate that is not acceptable is refused at
// the first call, not at the dial, because a TLS 1.3 client is done before the server has seen its certificate.
//
// No error and no log entry contains a token or a private key.
package trust
