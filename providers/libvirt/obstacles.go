package libvirt

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"

	"converge.dev/converge/providers"
)

// obstacles is the provider's Obstacles: who uses networks and volumes, and what else is in pools.
func (h *host) obstacles(ctx context.Context, deletes, changes []providers.Target) ([]providers.Obstacle, error) {
	return on(ctx, h, func(c conn) ([]providers.Obstacle, error) {
		f := foresight{change: &change{conn: c, ctx: ctx, host: h}, moving: map[providers.Target]bool{}}
		for _, t := range slices.Concat(deletes, changes) {
			f.moving[t] = true
		}
		if err := f.look(); err != nil {
			return nil, err
		}
		var found []providers.Obstacle
		for _, t := range deletes {
			why, err := f.obstacle(t)
			if err != nil {
				return nil, err
			}
			if why != "" {
				found = append(found, providers.Obstacle{Target: t, Why: why})
			}
		}
		return found, nil
	})
}

// A foresight is what may use things that are to be deleted, without what is deleted or changed with them.
type foresight struct {
	*change
	moving   map[providers.Target]bool
	volumes  []providers.Thing
	paths    map[string]string // of all volumes and seeds, by their ids
	machines *users
}

func (f *foresight) look() error {
	f.paths = map[string]string{}
	names := backings{c: f.conn, ids: map[string]string{}}
	err := eachVolume(f.ctx, f.conn, nil, func(pool string, v *libvirtxml.StorageVolume) error {
		id := pool + "/" + v.Name
		if v.Target != nil {
			f.paths[id] = v.Target.Path
		}
		if f.goes(id) {
			return nil
		}
		th, err := names.thing(f.ctx, pool, v)
		if th != nil {
			f.volumes = append(f.volumes, *th)
		}
		return err
	})
	if err != nil {
		return err
	}
	f.machines, err = f.change.machines()
	if err != nil {
		return err
	}
	f.machines.all = slices.DeleteFunc(f.machines.all, func(u user) bool { return f.moving[providers.Target{Kind: "libvirt.domain", ID: u.name}] })
	return nil
}

// goes reports whether a volume is deleted or changed, whichever kind it is of.
func (f *foresight) goes(id string) bool {
	return f.moving[providers.Target{Kind: "libvirt.volume", ID: id}] || f.moving[providers.Target{Kind: "libvirt.cloudinit", ID: id}]
}

// obstacle returns why a thing would not be deleted; empty when it would be.
func (f *foresight) obstacle(t providers.Target) (string, error) {
	switch t.Kind {
	case "libvirt.volume", "libvirt.cloudinit":
		pool, name, _ := strings.Cut(t.ID, "/")
		i := image{pool, name, f.paths[t.ID]}
		if i.path == "" { // it is gone, or no image
			return "", nil
		}
		if id := f.basedOn(i, f.volumes); id != "" {
			return "it is the backing volume of " + id, nil
		}
		uses, err := f.usesBy(f.machines, i)
		if err != nil || len(uses) == 0 {
			return "", err
		}
		return "it is " + uses[0].String(), nil
	case "libvirt.network":
		for _, u := range f.machines.all {
			if slices.Contains(u.networks, t.ID) {
				return fmt.Sprintf("domain %s has an interface in it", u.name), nil
			}
		}
	case "libvirt.pool":
		return f.full(t.ID)
	}
	return "", nil
}

// full returns why a pool cannot be deleted: it would leave volumes behind.
func (f *foresight) full(pool string) (string, error) {
	ds, err := f.read(f.ctx, poolObject, []string{pool})
	if err != nil || len(ds) == 0 || ds[0].running == "" {
		return "", err
	}
	xmls, err := f.conn.volumes(f.ctx, pool, nil)
	if err != nil {
		return "", err
	}
	names, err := namesOf(xmls)
	if err != nil {
		return "", err
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		of, _ := markOf(name)
		return f.goes(pool+"/"+name) || of != "" && f.goes(pool+"/"+of)
	})
	if len(names) == 0 {
		return "", nil
	}
	return "it still has the volumes " + strings.Join(shortened(names), ", "), nil
}
