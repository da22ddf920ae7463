// Package remote carries the contract of package providers between a site and the agent of a node, and lets nothing but signed tasks
// change the node.
//
// [Connect] returns the providers of a node at the site. Reading goes through package wire as it is. A change, and a fence, becomes a
// task (package task): made out to this node, signed, numbered, and void when it has not begun within [Start]. The node's side is a
// [Node]: it verifies each task, writes into its ledger that it begins, carries it out, and writes the signed result before it
// answers.
//
// Promises:
//
//   - A task has its effect at most once, however often it arrives.
//   - A call whose answer was lost asks the node what came of it, as soon as the node is connected again and for as long as its
//     context allows. Only what the node itself cannot know is of unknown outcome: what was in progress when its agent ended.
//   - A result counts only with the signature of the node's own key over the task.
//   - A fence returns once the node has stored the epoch and nothing of an earlier epoch is in progress.
//   - Without a head (the site's signed word about how it stands with this node) from the last [Stale] a node changes nothing.
package remote

import "time"

const (
	// Start is how long after it was signed a task may begin.
	Start = 30 * time.Second

	// Run is how long a task may take. It goes on when the connection ends, since its result is in the ledger; so Start, Run and what
	// the clocks may differ are added to the time within which a call of unknown outcome may have its effect.
	Run = 2 * time.Minute

	// Stale is how long after the last head a node still carries out tasks.
	Stale = 5 * time.Minute
)
