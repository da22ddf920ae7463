package host

import (
	"errors"
	"path"
	"strconv"
	"strings"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/host/spec"
	"converge.dev/converge/providers/sysfs"
	"converge.dev/converge/schema"
)

// hugepages is the kind host.hugepages: pools of huge pages that have some.
type hugepages struct{}

// nodes are the NUMA nodes of the machine; whole is where a kernel that knows no such nodes has its pools.
const (
	nodes = "devices/system/node"
	whole = "kernel/mm/hugepages"
)

// pools returns the directories of all pools, by their names.
func pools(k sysfs.Kernel) (map[string]string, error) {
	found := map[string]string{}
	in := func(node, dir string) error {
		names, err := k.List(dir)
		for _, n := range names {
			if size, ok := strings.CutPrefix(n, "hugepages-"); ok {
				found[node+"-"+size] = dir + "/" + n + "/"
			}
		}
		return err
	}
	names, err := k.List(nodes)
	if err != nil {
		return nil, err
	}
	numa := false
	for _, n := range names {
		number, ok := strings.CutPrefix(n, "node")
		if _, err := strconv.ParseUint(number, 10, 31); !ok || err != nil {
			continue
		}
		numa = true
		if err := in(n, nodes+"/"+n+"/hugepages"); err != nil {
			return nil, err
		}
	}
	if !numa {
		err = in("node0", whole)
	}
	return found, err
}

// List implements [sysfs.Noun].
func (hugepages) List(k sysfs.Kernel) ([]providers.Thing, error) {
	all, err := pools(k)
	if err != nil {
		return nil, err
	}
	var things []providers.Thing
	for name, dir := range all {
		n, err := size(k, dir)
		if sysfs.Gone(err) || err == nil && n == 0 {
			continue
		}
		if err != nil {
			return nil, err
		}
		var st spec.HugepagesStatus
		switch free, err := pages(k, dir, "free_hugepages"); {
		case err == nil:
			st.Free = &free
		case !sysfs.Gone(err): // of a copy
			return nil, err
		}
		things = append(things, providers.Thing{ID: name, Name: name, Spec: (&spec.Hugepages{Count: n}).Object(), Status: st.Object(), Phase: providers.Ready})
	}
	return things, nil
}

// Create implements [sysfs.Noun].
func (hugepages) Create(c *sysfs.Change, name string, want schema.Object) error {
	return resize(c, name, want)
}

// Update implements [sysfs.Noun].
func (hugepages) Update(c *sysfs.Change, have providers.Thing, want schema.Object) error {
	return resize(c, have.ID, want)
}

// Delete implements [sysfs.Noun].
func (hugepages) Delete(c *sysfs.Change, have providers.Thing) error {
	return resize(c, have.ID, (&spec.Hugepages{}).Object())
}

// resize gives a pool a number of pages, all of them or none.
func resize(c *sysfs.Change, name string, want schema.Object) error {
	var s spec.Hugepages
	if err := s.Read(want); err != nil {
		return sysfs.Refuse(providers.Invalid, "invalid spec: %w", err)
	}
	all, err := pools(c.Kernel)
	if err != nil {
		return err
	}
	dir, ok := all[name]
	if !ok {
		return sysfs.Refuse(providers.Absent, "node %s has no huge pages of that size on that NUMA node", c.Node)
	}
	was, err := size(c.Kernel, dir)
	if err != nil {
		return err
	}
	if s.Count < was {
		if err := unneeded(c.Kernel, dir, was, was-s.Count); err != nil {
			return err
		}
	} else if err := fits(c.Kernel, name, s.Count); err != nil {
		return err
	}
	got, err := reach(c.Write, c.Kernel, dir, was, s.Count)
	if err == nil && got == s.Count {
		return nil
	}
	var rerr error
	if got != was {
		var again int64
		if again, rerr = reach(c.Restore, c.Kernel, dir, got, was); rerr == nil && again != was {
			rerr = errors.New("the kernel did not restore the previous number of pages")
		}
	}
	if rerr == nil {
		c.Undone()
	}
	if err == nil {
		err = sysfs.Refuse(providers.Invalid, "the kernel could provide %d pages of the %d requested: there is too little free, or too fragmented, memory on that NUMA node", got, s.Count)
	}
	return errors.Join(err, rerr)
}

// unknown is the size of a pool that could not be read.
const unknown = -1

// reach asks the kernel for a number of pages and returns how many the pool has then, which is less when memory is short. A signal to
// the thread that writes ends the allocation early and without an error (set_max_huge_pages in mm/hugetlb.c), and Go's scheduler sends
// such signals; so it asks again as long as pages are added.
func reach(write func(path, value string) error, k sysfs.Kernel, dir string, from, to int64) (int64, error) {
	for {
		err := write(dir+"nr_hugepages", strconv.FormatInt(to, 10))
		got, rerr := size(k, dir)
		if rerr != nil {
			return unknown, errors.Join(err, rerr)
		}
		if err != nil || got >= to || got <= from {
			return got, err
		}
		from = got
	}
}

// size returns the number of pages of a pool, without those that the kernel has added for a while.
func size(k sysfs.Kernel, dir string) (int64, error) {
	n, err := pages(k, dir, "nr_hugepages")
	if err != nil {
		return 0, err
	}
	surplus, err := pages(k, dir, "surplus_hugepages")
	if sysfs.Gone(err) {
		surplus, err = 0, nil
	}
	return n - surplus, err
}

// unneeded fails when pages that are to go are in use, or promised to a program that has not touched them yet. The kernel tells that
// of all nodes together, so all of them may be promised here.
func unneeded(k sysfs.Kernel, dir string, of, less int64) error {
	free, err := pages(k, dir, "free_hugepages")
	if err != nil {
		return err
	}
	if free < less {
		return sysfs.Refuse(providers.Busy, "%d of its %d pages are in use", of-free, of)
	}
	promised, err := pages(k, whole+"/"+path.Base(dir)+"/", "resv_hugepages")
	if err != nil && !sysfs.Gone(err) {
		return err
	}
	if free-less < promised {
		return sysfs.Refuse(providers.Busy, "%d pages are reserved by programs that have not used them yet", promised)
	}
	return nil
}

// fits fails when a NUMA node has less memory than a pool is to have: trying would first take all of it.
func fits(k sysfs.Kernel, name string, count int64) error {
	node, size, _ := strings.Cut(name, "-")
	kB, err := strconv.ParseInt(strings.TrimSuffix(size, "kB"), 10, 64)
	if err != nil {
		return err
	}
	for line := range strings.Lines(k.Attribute(nodes + "/" + node + "/meminfo")) {
		if f := strings.Fields(line); len(f) > 3 && f[2] == "MemTotal:" {
			if total, err := strconv.ParseInt(f[3], 10, 64); err == nil && count > total/kB {
				return sysfs.Refuse(providers.Invalid, "%d pages of %s are more than %s has memory for (%d MiB)", count, size, node, total>>10)
			}
		}
	}
	return nil
}

func pages(k sysfs.Kernel, dir, file string) (int64, error) { return k.Number(dir + file) }
