// Package ledger remembers on a node what the site asked it to do and what came of it, so that nothing is done twice and nothing is
// done for a site agent that has been replaced.
//
// An [Entry] is a task whose signature was verified, at a position: the epoch of the leader who sent it and its sequence number.
// [Ledger.Begin] says what to do about a task, [Run.Finish] keeps its signed result, [Ledger.Outcome] answers a site that lost an
// answer. [Ledger.Fence] stores the epoch of a new leader; tasks of an older one are refused from then on. [Ledger.Head] takes what
// a signed head says: the time, and in a new ledger the sequence numbers that were used.
//
// Two floors keep out what was forgotten. The floor of positions is the highest one that was ever pruned, or that a head named
// to a new ledger: a task at or below it that is not known is refused. Above it tasks may arrive in any order, because
// several run at the same time. The floor of time is that of the newest head: the clock is taken to be at least that. Only
// [Ledger.ForgetTime] lowers it, for a node whose clock was ahead together with that of its site.
//
// A ledger is new when there was no file: on a new node, or because the file was lost. It cannot know what was done before, so it
// begins nothing until a head has told it. Only that makes a lost file harmless; the caller accepts only heads that are fresh. A ledger
// whose time was forgotten answers for what it knows, and begins nothing until then either.
//
// # Promises
//
//   - A function that returns without an error has its effect on disk, synced.
//   - A task runs at most once. Begin returns a [*Run] only when the entry is on disk as started. When it cannot be written (the
//     disk is full, read-only or broken), Begin fails and nothing may run; the same task may be begun again later.
//   - A task that was started by an earlier process and not finished is [Interrupted] for ever: its outcome is unknown, and it is not
//     run again. An entry that a failed Begin may have left on disk becomes such a one when the process ends before it could be removed.
//   - When a result cannot be written, Finish fails, and the entry stays started on disk. This process keeps the result,
//     answers from it, and writes it with the next call that does not fail. When it ends before that, the result is lost here and the
//     task is Interrupted.
//   - After a crash at any moment the file holds what the last completed function left, or also what the interrupted one wrote.
//   - Every value carries its version and a checksum, and all of them together another one. Damage is found when the file is opened, or for
//     a result when it is read; it is a [*DamagedError], and never taken for a task that was not begun. A file that is empty or of a
//     newer version is damaged, too. Nothing but a missing file makes a new ledger.
//   - One process has it open.
//
// Entries are kept until they have ended and expired, and then the last Options.Keep of them; each Begin removes a bounded number
// of others. An entry takes about 450 bytes of the file and as much memory; its result is in the file only, and takes up to a page (4 KiB)
// more than its size there.
package ledger
