package libvirt

import (
	"context"
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/libvirt/spec"
	"converge.dev/converge/schema"
)

// pools is the kind libvirt.pool.
type pools struct{}

// traits: libvirt refuses a pool with the directory of another one.
func (pools) traits(common providers.Traits) providers.Traits {
	common.SetLast, common.SelfChanging = []string{"active", "autostart"}, []string{"in_effect"}
	common.Exclusive = []providers.Exclusive{{Field: "path"}}
	return common
}

func (pools) told() (object, func(string) []string, bool) {
	return poolObject, func(name string) []string { return []string{name} }, true
}

func (pools) list(ctx context.Context, c conn, ids []string) ([]providers.Thing, error) {
	return things(ctx, c, poolObject, ids, func(d definition) (*providers.Thing, error) {
		p, err := directory(d)
		if err != nil || p == nil {
			return nil, err
		}
		return &providers.Thing{ID: d.name, Name: d.name, Spec: p.Object(), Phase: providers.Ready}, nil
	})
}

// directory returns the spec of a pool; nil for one that is no directory.
func directory(d definition) (*spec.Pool, error) {
	stored, running := libvirtxml.StoragePool{}, libvirtxml.StoragePool{}
	if err := stored.Unmarshal(d.stored); err != nil {
		return nil, err
	}
	if stored.Type != "dir" || stored.Target == nil {
		return nil, nil
	}
	active, same := d.running != "", !d.transient
	if active {
		if err := running.Unmarshal(d.running); err != nil {
			return nil, err
		}
		same = same && running.Target != nil && running.Target.Path == stored.Target.Path
	}
	return &spec.Pool{Active: &active, Autostart: &d.autostart, InEffect: &same, Path: stored.Target.Path, UUID: optional(stored.UUID)}, nil
}

func (pools) create(ch *change, want schema.Object) error {
	var s spec.Pool
	if err := read(want, &s); err != nil {
		return err
	}
	p := libvirtxml.StoragePool{
		Type: "dir", Name: ch.call.ID, UUID: or(s.UUID, ch.host.uuidOf(ch.call.Ref)), Target: &libvirtxml.StoragePoolTarget{Path: s.Path},
	}
	xml, err := p.Marshal()
	if err != nil {
		return refuse(providers.Invalid, "it cannot be written as XML: %w", err)
	}
	return ch.establish(target{object: poolObject, name: ch.call.ID, xml: xml, active: or(s.Active, true), autostart: or(s.Autostart, true)})
}

func (pools) update(ch *change, have providers.Thing, want schema.Object) error {
	var s, h spec.Pool
	if err := read(want, &s); err != nil {
		return err
	}
	if err := read(have.Spec, &h); err != nil {
		return err
	}
	switch {
	case s.Path != h.Path:
		return refuse(providers.Invalid, "path cannot be changed in place")
	case s.UUID != nil && or(h.UUID, "") != *s.UUID:
		return refuse(providers.Invalid, "uuid cannot be changed in place")
	}
	d, err := ch.found(poolObject, have.ID)
	if err != nil {
		return err
	}
	t := target{
		object: poolObject, name: have.ID, active: or(s.Active, true), autostart: or(s.Autostart, true),
		restart: or(s.InEffect, true) && !or(h.InEffect, true) && !d.transient,
	}
	if d.transient {
		t.xml = d.stored
	}
	return ch.adjust(t, d)
}

// remove refuses to take away the pool of volumes that domains may use; the files themselves would stay.
func (pools) remove(ch *change, have providers.Thing) error {
	d, err := ch.found(poolObject, have.ID)
	if err != nil {
		return err
	}
	if d.running != "" {
		xmls, err := ch.volumes(ch.ctx, have.ID, nil)
		if err != nil {
			return err
		}
		if len(xmls) > 0 {
			names, err := namesOf(xmls)
			if err != nil {
				return err
			}
			return refuse(providers.Invalid, "pool %s still has the volumes %s", have.ID, strings.Join(shortened(names), ", "))
		}
	}
	return ch.dissolve(poolObject, d)
}

// namesOf returns the names of volumes.
func namesOf(xmls []string) ([]string, error) {
	names := make([]string, len(xmls))
	for i, xml := range xmls {
		var v libvirtxml.StorageVolume
		if err := v.Unmarshal(xml); err != nil {
			return nil, err
		}
		names[i] = v.Name
	}
	return names, nil
}

// shortened returns the first of some names, and a sign that there are more.
func shortened(names []string) []string {
	const most = 5
	if len(names) <= most {
		return names
	}
	return append(slices.Clone(names[:most]), "…")
}
