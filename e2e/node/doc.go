// Package node tries the kinds of a node on a real kernel, in guests of package guest: with an IOMMU, two NUMA nodes, NVMe disks of
// which one has SR-IOV, and an IOMMU group of several functions; without an IOMMU; and with a network card that has SR-IOV. In one more,
// the example of a whole node is applied and destroyed, with real libvirt and Open vSwitch.
package node
