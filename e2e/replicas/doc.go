// Package replicas tests what a site does when one of its parts fails: three site agents, each at a member of a real etcd of its own, and
// node agents whose worlds are files, each a process of its own.
//
// It contains only tests. They build converge with the tag failpoint, as package crash does. Everything that a process says to another
// one goes through a gate, which holds back one direction or both, as a network does that loses packets.
//
// # Failover (test S)
//
// The site agent that keeps the site is killed, stopped, cut off from etcd, or cut off from everything, while the site is in sync and in
// the middle of a run. Another one must take over, end the run, and make each change of a node once. How long that took is read in the
// journal: from the failure to the first outcome of a later epoch. Then the first one comes back, and must change nothing.
//
// # Changes of the keeper (test A)
//
// The same at every failpoint that a run of a site agent passes, forward and while it undoes: the keeper is killed there, and another one
// must bring the run to its end.
//
// # Nodes (test F)
//
// A node whose answer is lost, that is cut off, stands still, or whose agent is killed in the middle of a task: the change is made once,
// and the run ends applied.
//
// # Soak (test R)
//
// 50 nodes with 2 000 resources, to which things keep happening: revisions, changes by others, lost connections, new agents, failovers. What
// the processes use in the last quarter of the time is what they used in the second. It runs at night, and with make soak.
//
//	CONVERGE_TORTURE=push go test ./e2e/replicas -v
package replicas
