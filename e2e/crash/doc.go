// Package crash tests how the real binary behaves when it dies or is stopped at each named moment, in real processes.
//
// It contains only tests. They build converge with the tag failpoint, so that a process can be made to end by SIGKILL, or to
// stop, the nth time that it passes a point of package failpoint.
//
// # The crash matrix (test A)
//
// A plan is a pair of documents drawn from a seed, and the declared faults of the far side. A template is a site
// that is brought to the first document, with the second one planned and saved. A reference is what a copy of the template
// becomes when nothing is killed. A cycle is a copy of the template in which the apply is killed at a point, the
// recovery is killed at another one, and converge resume, or a second apply where no run had begun, carries it to an end.
//
// A cycle must end as the reference ended: applied, reverted, or partial where a step that cannot be undone is declared to
// fail. The world must then be the same, nothing may have been created, changed or removed more often than in the reference,
// no resource may ever have had two things, and the store must hold only what that end sets.
//
// A rollback to a step is killed at each point that it passes, and its recovery at another one: the run must still come to
// that step, and the world must be as it is when nothing is killed.
//
//	CONVERGE_TORTURE=push go test ./e2e/crash -run TestTortureKilled
//	go test ./e2e/crash -run TestTortureKilled -crash.plan=17 -v        one plan, at all points that it reaches
//
// The same is done on real nodes, with libvirt and Open vSwitch, between two revisions of a document. What the node has in the end is read by
// virsh, qemu-img and ovs-vsctl, and compared with what it has when nothing is killed. There also libvirtd is killed in the middle of calls.
//
// # Split brain (test D)
//
// All sites share one real etcd and, each, one simulated Carbide service. A first process is stopped at a point for longer
// than its lease lives. A second one takes over and finishes. Then the first is woken. It must change nothing more, and
// report that it has lost the lock.
package crash
