//go:build linux && cgo && libvirt_dlopen

package libvirt

import (
	"context"
	"errors"
	"fmt"

	virt "libvirt.org/go/libvirt"
)

// withDomain makes calls about one domain.
func (l *library) withDomain(ctx context.Context, name string, call func(d *virt.Domain) error) error {
	return l.with(ctx, domainObject, name, func(h handle) error { return call(h.(*virt.Domain)) })
}

func (l *library) power(ctx context.Context, domain string, how powerChange) error {
	return l.withDomain(ctx, domain, func(d *virt.Domain) error {
		switch how {
		case shutDown:
			return d.Shutdown()
		case suspend:
			return d.Suspend()
		case resume:
			return d.Resume()
		}
		if l.memory { // it cannot start a domain paused
			return errors.Join(d.Create(), d.Suspend())
		}
		return d.CreateWithFlags(virt.DOMAIN_START_PAUSED)
	})
}

func (l *library) change(ctx context.Context, domain string, how deviceChange, xml string) error {
	return l.withDomain(ctx, domain, func(d *virt.Domain) error {
		switch how {
		case attachDevice:
			return d.AttachDeviceFlags(xml, virt.DOMAIN_DEVICE_MODIFY_LIVE)
		case updateDevice:
			return d.UpdateDeviceFlags(xml, virt.DOMAIN_DEVICE_MODIFY_LIVE)
		}
		return d.DetachDeviceFlags(xml, virt.DOMAIN_DEVICE_MODIFY_LIVE)
	})
}

func (l *library) annotate(ctx context.Context, domain string, which annotation, text string) error {
	return l.withDomain(ctx, domain, func(d *virt.Domain) error {
		switch which {
		case titleText:
			return d.SetMetadata(virt.DOMAIN_METADATA_TITLE, text, "", "", virt.DOMAIN_AFFECT_LIVE)
		case descriptionText:
			return d.SetMetadata(virt.DOMAIN_METADATA_DESCRIPTION, text, "", "", virt.DOMAIN_AFFECT_LIVE)
		}
		return d.SetMetadata(virt.DOMAIN_METADATA_ELEMENT, text, notePrefix, noteSpace, virt.DOMAIN_AFFECT_LIVE)
	})
}

// counted returns a number of things in words.
func counted(n int, thing string) string {
	if n == 1 {
		return "a " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// keeps asks for what makes libvirt refuse to undefine a domain; it does so only after the domain was stopped.
func (l *library) keeps(ctx context.Context, domain string) (kept []string, err error) {
	err = l.withDomain(ctx, domain, func(d *virt.Domain) error {
		saved, err := d.HasManagedSaveImage(0)
		if unless(virt.ERR_NO_SUPPORT, err) != nil {
			return err
		}
		if saved {
			kept = append(kept, "a saved state")
		}
		snapshots, err := d.SnapshotNum(0)
		if unless(virt.ERR_NO_SUPPORT, err) != nil {
			return err
		}
		if snapshots > 0 {
			kept = append(kept, counted(snapshots, "snapshot"))
		}
		checkpoints, err := d.ListAllCheckpoints(0)
		for i := range checkpoints {
			free(&checkpoints[i])
		}
		if len(checkpoints) > 0 {
			kept = append(kept, counted(len(checkpoints), "checkpoint"))
		}
		return unless(virt.ERR_NO_SUPPORT, err)
	})
	return kept, err
}

func (l *library) domains(ctx context.Context) ([]definition, error) {
	if err := l.begin(ctx); err != nil {
		return nil, err
	}
	handles, err := l.list(domainObject, isAny)
	defer func() {
		for _, h := range handles {
			free(h)
		}
	}()
	var seen view
	if err == nil {
		seen, err = l.look(domainObject, isActive)
	}
	if err != nil {
		return nil, l.result(err)
	}
	var found []definition
	for _, h := range handles {
		if err := l.begin(ctx); err != nil {
			return nil, err
		}
		var d definition
		domain := h.(*virt.Domain)
		d.name, err = domain.GetName()
		if err == nil {
			d.stored, err = domain.GetXMLDesc(virt.DOMAIN_XML_INACTIVE)
		}
		if err == nil && seen[isActive][d.name] {
			d.running, err = domain.GetXMLDesc(0)
		}
		switch {
		case isAbsent(err):
		case err != nil:
			return nil, l.result(err)
		default:
			found = append(found, d)
		}
	}
	return found, nil
}

func (l *library) resizeDisk(ctx context.Context, domain, device string, bytes uint64) error {
	if err := l.begin(ctx); err != nil {
		return err
	}
	d, err := l.c.LookupDomainByName(domain)
	if err != nil {
		return l.result(err)
	}
	defer free(d)
	return l.result(d.BlockResize(device, bytes, virt.DOMAIN_BLOCK_RESIZE_BYTES))
}
