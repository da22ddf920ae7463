package libvirt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"

	"converge.dev/converge/providers"
)

// obstacles is the provider's Obstacles: who uses networks and volumes, what else is in pools, and what would be lost with domains.
func (h *host) obstacles(ctx context.Context, deletes, changes []providers.Target) ([]providers.Obstacle, error) {
	return on(ctx, h, func(c conn) ([]providers.Obstacle, error) {
		f := foresight{change: &change{conn: c, ctx: ctx, host: h}, moving: map[providers.Target]bool{}}
		for _, t := range slices.Concat(deletes, changes) {
			f.moving[t] = true
		}
		kinds := map[string][]string{} // of what is deleted: the ids
		for _, t := range deletes {
			kinds[t.Kind] = append(kinds[t.Kind], t.ID)
		}
		if err := f.look(kinds); err != nil {
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
	networks map[string]definition // those that are deleted
	domains  map[string]*machine   // the same
}

// look reads what has to be known to delete things of some kinds, and no more: what is unknown of the others is no obstacle.
func (f *foresight) look(kinds map[string][]string) error {
	if len(kinds["libvirt.volume"])+len(kinds["libvirt.cloudinit"]) > 0 {
		if err := f.lookAtVolumes(); err != nil {
			return err
		}
	}
	f.networks, f.domains = map[string]definition{}, map[string]*machine{}
	if names := kinds["libvirt.network"]; len(names) > 0 {
		ds, err := f.read(f.ctx, networkObject, names)
		if err != nil {
			return err
		}
		for _, d := range ds {
			f.networks[d.name] = d
		}
	}
	if names := kinds["libvirt.domain"]; len(names) > 0 {
		ds, err := f.read(f.ctx, domainObject, names)
		if err != nil {
			return err
		}
		backing := backings{c: f.conn, ids: map[string]string{}}
		for _, d := range ds {
			if f.domains[d.name], err = machineOf(f.ctx, backing, d); err != nil {
				return err
			}
		}
	}
	if f.paths == nil && len(f.networks) == 0 {
		return nil
	}
	var err error
	if f.machines, err = f.change.machines(); err != nil {
		return err
	}
	f.machines.all = slices.DeleteFunc(f.machines.all, func(u user) bool { return f.moving[providers.Target{Kind: "libvirt.domain", ID: u.name}] })
	return nil
}

func (f *foresight) lookAtVolumes() error {
	f.paths = map[string]string{}
	names := backings{c: f.conn, ids: map[string]string{}}
	return eachVolume(f.ctx, f.conn, nil, func(pool string, v *libvirtxml.StorageVolume) error {
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
}

// goes reports whether a volume is deleted or changed, whichever kind it is of.
func (f *foresight) goes(id string) bool {
	return f.moving[providers.Target{Kind: "libvirt.volume", ID: id}] || f.moving[providers.Target{Kind: "libvirt.cloudinit", ID: id}]
}

// obstacle returns why a thing would not be deleted; empty when it would be.
func (f *foresight) obstacle(t providers.Target) (string, error) {
	switch t.Kind {
	case "libvirt.volume", "libvirt.cloudinit":
		return f.used(t.ID)
	case "libvirt.network":
		d, ok := f.networks[t.ID]
		if !ok {
			return "", nil
		}
		by, err := f.machines.connected(d, false)
		if by != "" {
			by = fmt.Sprintf("domain %s has an interface in it", by)
		}
		return by, err
	case "libvirt.pool":
		return f.full(t.ID)
	case "libvirt.domain":
		m := f.domains[t.ID]
		if m == nil {
			return "", nil
		}
		err := f.losesNothing(m)
		if of := (*fault)(nil); errors.As(err, &of) && of.class == providers.Invalid {
			return of.Error(), nil
		}
		return "", err
	}
	return "", nil
}

// used returns by what a volume is used.
func (f *foresight) used(id string) (string, error) {
	pool, name, _ := strings.Cut(id, "/")
	i := image{pool, name, f.paths[id]}
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
