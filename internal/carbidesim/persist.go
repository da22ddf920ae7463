package carbidesim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/google/uuid"

	"converge.dev/converge/internal/files"
	"converge.dev/converge/providers/carbide/forge"
)

// snapshot is everything about a world, as stored in its file.
type snapshot struct {
	Format         int                       `json:"format"`
	Names          uuid.UUID                 `json:"names"`
	Serial         uint64                    `json:"serial"`
	Offset         int64                     `json:"offsetNanoseconds"`
	Timers         []timer                   `json:"timers"`
	Burned         []string                  `json:"burned"`
	Tenants        map[string]*tenant        `json:"tenants"`
	Keysets        map[string]*keyset        `json:"keysets"`
	VPCs           map[string]*vpc           `json:"vpcs"`
	VPCPrefixes    map[string]*vpcPrefix     `json:"vpcPrefixes"`
	Segments       map[string]*segment       `json:"networkSegments"`
	SecurityGroups map[string]*securityGroup `json:"networkSecurityGroups"`
	InstanceTypes  map[string]*instanceType  `json:"instanceTypes"`
	Instances      map[string]*instance      `json:"instances"`
	Machines       map[string]*machine       `json:"machines"`

	Peerings          map[string]*peering          `json:"vpcPeerings"`
	IBPartitions      map[string]*ibPartition      `json:"ibPartitions"`
	NVLinkPartitions  map[string]*nvlinkPartition  `json:"nvlinkLogicalPartitions"`
	SPXPartitions     map[string]*spxPartition     `json:"spxPartitions"`
	OperatingSystems  map[string]*operatingSystem  `json:"operatingSystems"`
	OSImages          map[string]*osImage          `json:"osImages"`
	ExtensionServices map[string]*extensionService `json:"dpuExtensionServices"`
	Allocations       map[string]*allocation       `json:"computeAllocations"`
	SKUs              map[string]*sku              `json:"skus"`

	ExpectedMachines map[string]*expected[*forge.ExpectedMachine]    `json:"expectedMachines"`
	ExpectedSwitches map[string]*expected[*forge.ExpectedSwitch]     `json:"expectedSwitches"`
	ExpectedShelves  map[string]*expected[*forge.ExpectedPowerShelf] `json:"expectedPowerShelves"`
	ExpectedRacks    map[string]*expectedRack                        `json:"expectedRacks,omitempty"`
	Devices          map[string]*device                              `json:"devices"`
	Reserved         map[string]*netip.Addr                          `json:"reservedAddresses"`
}

const format = 1

// snapshot copies the maps but not the objects, which never change; so it is quick, and printing needs no lock.
func (w *World) snapshot() *snapshot {
	var out *snapshot
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.site
	w.settle()
	out = &snapshot{
		Format:         format,
		Names:          s.names,
		Serial:         s.serial,
		Offset:         int64(w.offset),
		Timers:         slices.Clone(s.timers),
		Burned:         sortedKeys(s.burned),
		Tenants:        maps.Clone(s.tenants.rows),
		Keysets:        maps.Clone(s.keysets.rows),
		VPCs:           maps.Clone(s.vpcs.rows),
		VPCPrefixes:    maps.Clone(s.prefixes.rows),
		Segments:       maps.Clone(s.segments.rows),
		SecurityGroups: maps.Clone(s.securityGroups.rows),
		InstanceTypes:  maps.Clone(s.instanceTypes.rows),
		Instances:      maps.Clone(s.instances.rows),
		Machines:       maps.Clone(s.machines.rows),

		Peerings:          maps.Clone(s.peerings.rows),
		IBPartitions:      maps.Clone(s.ibPartitions.rows),
		NVLinkPartitions:  maps.Clone(s.nvlinkPartitions.rows),
		SPXPartitions:     maps.Clone(s.spxPartitions.rows),
		OperatingSystems:  maps.Clone(s.operatingSystems.rows),
		OSImages:          maps.Clone(s.osImages.rows),
		ExtensionServices: maps.Clone(s.extensionServices.rows),
		Allocations:       maps.Clone(s.allocations.rows),
		SKUs:              maps.Clone(s.skus.rows),

		ExpectedMachines: maps.Clone(s.expectedMachines.rows),
		ExpectedSwitches: maps.Clone(s.expectedSwitches.rows),
		ExpectedShelves:  maps.Clone(s.expectedShelves.rows),
		ExpectedRacks:    maps.Clone(s.expectedRacks.rows),
		Devices:          maps.Clone(s.devices.rows),
		Reserved:         maps.Clone(s.reserved.rows),
	}
	return out
}

// restore fills a new site. A sorted list is a heap, and so is the stored heap.
func (s *site) restore(k *snapshot) {
	s.names, s.serial, s.timers = k.Names, k.Serial, k.Timers
	for _, key := range k.Burned {
		s.burned[key] = true
	}
	s.tenants.load(k.Tenants)
	s.keysets.load(k.Keysets)
	s.vpcs.load(k.VPCs)
	s.prefixes.load(k.VPCPrefixes)
	s.segments.load(k.Segments)
	s.securityGroups.load(k.SecurityGroups)
	s.instanceTypes.load(k.InstanceTypes)
	s.instances.load(k.Instances)
	s.machines.load(k.Machines)
	s.peerings.load(k.Peerings)
	s.ibPartitions.load(k.IBPartitions)
	s.nvlinkPartitions.load(k.NVLinkPartitions)
	s.spxPartitions.load(k.SPXPartitions)
	s.operatingSystems.load(k.OperatingSystems)
	s.osImages.load(k.OSImages)
	s.extensionServices.load(k.ExtensionServices)
	s.allocations.load(k.Allocations)
	s.skus.load(k.SKUs)
	s.expectedMachines.load(k.ExpectedMachines)
	s.expectedSwitches.load(k.ExpectedSwitches)
	s.expectedShelves.load(k.ExpectedShelves)
	s.expectedRacks.load(k.ExpectedRacks)
	s.devices.load(k.Devices)
	s.reserved.load(k.Reserved)
}

// maxFile is the maximum size of the file of a simulated site.
const maxFile = 4 << 30

// readFile returns nil when there is no file yet.
func readFile(path string) (*snapshot, error) {
	b, err := files.Read(path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var k snapshot
	if err := json.Unmarshal(b, &k); err != nil {
		return nil, err
	}
	if k.Format != format {
		return nil, fmt.Errorf("format %d is not %d", k.Format, format)
	}
	return &k, nil
}

// writeFile replaces the file atomically, so that a crash leaves the old one or the new one.
func writeFile(path string, k *snapshot) error {
	b, err := json.Marshal(k)
	if err != nil {
		return err
	}
	return files.Replace(path, b, 0o600)
}

// keeper writes the world's file after changes. Changes during a write share the next write.
type keeper struct {
	mu      sync.Mutex
	moved   *sync.Cond // one of these has:
	touched int        // how often the file became outdated
	written int        // how many of those the file contains
	closing bool
	closed  bool  // after the last write
	err     error // of the last write
}

func startKeeper(path string, lock *os.File, take func() *snapshot) *keeper {
	k := &keeper{}
	k.moved = sync.NewCond(&k.mu)
	go func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		for !k.closed {
			for k.written == k.touched && !k.closing {
				k.moved.Wait()
			}
			has, last := k.touched, k.closing
			k.mu.Unlock()
			err := writeFile(path, take()) // a failed write is repeated with the next change, and the last one reports its error
			if last {
				err = errors.Join(err, unlock(lock))
			}
			k.mu.Lock()
			k.written, k.closed, k.err = has, last, err
			k.moved.Broadcast()
		}
	}()
	return k
}

// touch marks the file as outdated. It never waits; kept waits until the file contains the change.
func (k *keeper) touch() (kept func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.touched++
	n := k.touched
	k.moved.Broadcast()
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		for k.written < n && !k.closed {
			k.moved.Wait()
		}
	}
}

func (k *keeper) close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closing = true
	k.moved.Broadcast()
	for !k.closed {
		k.moved.Wait()
	}
	return k.err
}

// unlock releases a file for others.
func unlock(lock *os.File) error { return errors.Join(os.Remove(lock.Name()), lock.Close()) }
