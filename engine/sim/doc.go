// Package sim tests the whole engine on random sites, on a simulated clock.
//
// It has tests only. One seed is one site: its kinds with their traits, a document to start from, a document to reach,
// and a schedule of everything that goes wrong on the way. A seed runs in a bubble of testing/synctest, so hours pass in
// a millisecond, and everything in it follows from the seed, so that every failure can be reproduced:
//
//	go test ./engine/sim -run TestTortureSimulation -sim.seed=N -v
//
// # Words
//
// The far side is the fake world. A process is one engine with its own connections to the store and to the far side; it
// can die, stand still, and lose its lease. A mishap is one thing that goes wrong, when a process makes its nth commit, or
// when the far side receives its nth change. A third party changes the far side behind the back of the engine. The
// operator is the loop that issues commands until the site is as it should be. Calm is the time after the last mishap.
//
// # Promises that are checked
//
// At each change that the far side receives: the store holds its open intent with the same id, key and epoch (W1, W2);
// nothing holds or freezes the thing, and what is there is what the intent says (W5); no greater epoch was seen before (F);
// a create without conditions finds nothing there. At each outcome: the thing was observed after the last call (W3). At the end of
// each run: it ended applied, reverted or partial; reverted only when the far side is as it was, apart from what third
// parties did and what can never be deleted; partial with differences and a hold; no resource has two living things, unless
// a plan hands over from one to the other; what nobody declared is as it was. At the end of a seed: the site is as the
// document says and stays so, nothing of ours is left over, within the budget of actions and hours that the test states.
package sim
