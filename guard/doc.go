// Package guard undoes on a node what may have cut it off.
//
// A change of a network may be the last one that a node hears of. So the agent of the node arms a guard before it makes such a change:
// how to undo it is stored on the node's disk, and a program of its own ([Run]) undoes it unless the site says in time that it is to be
// kept, for which the site reaches the node over a new connection. The program needs neither the site nor etcd nor names to be
// resolved, and it works when the agent hangs or is killed.
//
// A guard has an id, of a step or of a run, an epoch and one deadline: that of the first change that was armed under its id. It
// guards one or more changes, which are kept together or undone together. Its verdict is kept or undone; it is decided once.
//
// [Around] makes a provider arm its changes; [Client] talks to the program.
//
// # The directory
//
// Everything is in one directory, which only its owner can access. ID.capsule says what to restore, how, and until when. ID.verdict
// appears once: by a link to a file that is complete and synced. ID.result says what came of an undo. They stay for a day after the
// verdict, so that whoever asks again gets the same answer; then the capsule is removed first, because without a verdict it would
// mean that there is something to undo. Every file carries its version and a checksum. One that is damaged, or of another
// version, is never interpreted: the guard then holds, its result is that it failed, and a person has to look.
//
// # Promises
//
//   - No change is made before it is armed durably; none is armed after the verdict, or after the deadline.
//   - The deadline never moves, and asking neither extends nor ends a guard. It is measured by the clock that goes on while the machine is
//     suspended and that nobody can set. After a restart of the machine, what has no verdict is undone at once.
//   - There is one verdict, and it never changes. Nothing is kept when less than ten seconds or a fifth of the guard's time is left.
//   - What was begun is finished after a crash at any moment: a guard ends as kept or as undone, never in part.
//   - To undo is to restore each thing to what it was before the first change that was armed, the last one that was changed first. What is
//     as before already needs no call. Each thing is read back, and all of them once more when nothing that the agent began can still have
//     an effect.
//   - An undo that fails three times is a failure, which is logged and reported; it is tried again, at least every minute.
//
// # Limits
//
// A guard restores things of its kinds, not what others did meanwhile: what somebody else put under the id of a thing is not touched, and
// is a failure where the thing itself should be. The program has to run before changes are made: without it they are refused.
package guard
