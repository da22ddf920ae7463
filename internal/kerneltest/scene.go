package kerneltest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// What follows is done to a machine by others: its programs, its administrator, its hardware.

// Proc sets the content of a file of proc.
func (k *Kernel) Proc(name, text string) {
	path := filepath.Join(k.proc, name)
	k.must(os.MkdirAll(filepath.Dir(path), 0o755))
	k.must(os.WriteFile(path, []byte(text), 0o644))
}

// Opens lets a process have a file open.
func (k *Kernel) Opens(pid int, comm, file string) {
	k.Proc(fmt.Sprintf("%d/comm", pid), comm+"\n")
	k.must(os.MkdirAll(filepath.Join(k.proc, strconv.Itoa(pid), "fd"), 0o755))
	k.must(os.Symlink(file, filepath.Join(k.proc, strconv.Itoa(pid), "fd", "9")))
}

// Use takes pages of a pool into use.
func (k *Kernel) Use(pool string, pages int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	node, size, _ := strings.Cut(pool, "-")
	d := "devices/system/node/" + node + "/hugepages/hugepages-" + size
	k.used[d] = pages
	k.pool(d, k.number(d+"/nr_hugepages"))
}

// Signal ends the next n allocations of huge pages early, as a signal to the program that asks for them does.
func (k *Kernel) Signal(n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.signals = n
}

// Refuse lets a driver refuse to probe a function, as one does that finds its firmware broken.
func (k *Kernel) Refuse(driver, address string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refuses[driver+" "+address] = true
}

// Unplug removes a function.
func (k *Kernel) Unplug(address string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.vanish(address)
}

// Partition adds a partition to a disk of a function.
func (k *Kernel) Partition(address, disk, name, number string) {
	dev := k.device(address) + "/block/" + disk + "/" + name
	k.folder(dev + "/holders")
	k.file(dev+"/dev", number+"\n")
	k.link("class/block/"+name, "../../"+dev)
}

// Hold makes a disk of a function a part of another block device.
func (k *Kernel) Hold(address, disk, by string) {
	k.link(k.device(address)+"/block/"+disk+"/holders/"+by, "../../../../../../virtual/block/"+by)
}

// Enslave makes a network interface a port of another one.
func (k *Kernel) Enslave(name, master string) {
	k.link("class/net/"+name+"/master", "../../../virtual/net/"+master)
	k.link("class/net/"+name+"/upper_"+master, "../../../virtual/net/"+master)
}

// Before does something right before the next write to a file of that name, or, by the name vf, before a network card is told something.
func (k *Kernel) Before(name string, do func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.before = map[string]func(){name: do}
}

// Link makes a symbolic link in sysfs.
func (k *Kernel) Link(path, to string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.folder(filepath.Dir(path))
	k.link(path, to)
}

// Claims makes a block device claimed, by something that shows nowhere else.
func (k *Kernel) Claims(block string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.claims = append(k.claims, block)
}

func (k *Kernel) claimed(block string) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Contains(k.claims, block), nil
}

// Attribute sets the content of a file of sysfs, as the kernel does by itself.
func (k *Kernel) Attribute(path, text string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.folder(filepath.Dir(path))
	k.file(path, text+"\n")
}

// Hide moves the network interfaces of a function to another network namespace.
func (k *Kernel) Hide(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.remove("class/net/" + name)
}
