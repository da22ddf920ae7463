//go:build linux && cgo && libvirt_dlopen

package libvirt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	virt "libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"converge.dev/converge/providers"
)

// withVolume makes a call about one volume.
func (l *library) withVolume(ctx context.Context, pool, name string, call func(v *virt.StorageVol) error) error {
	return l.withPool(ctx, pool, func(p *virt.StoragePool) error {
		v, err := p.LookupStorageVolByName(name)
		if err != nil {
			return err
		}
		defer free(v)
		return call(v)
	})
}

func (l *library) directories(ctx context.Context, names []string) (found []string, err error) {
	if err := l.begin(ctx); err != nil {
		return nil, err
	}
	if names == nil || len(names) > few {
		wanted := among(names)
		pools, err := l.c.ListAllStoragePools(virt.CONNECT_LIST_STORAGE_POOLS_DIR)
		for i := range pools {
			defer free(&pools[i])
			if name, err := pools[i].GetName(); err == nil && wanted(name) { // the library knows it without a call
				found = append(found, name)
				l.hold(poolObject, name, &pools[i])
				l.isDirectory(name, &pools[i])
			}
		}
		return found, l.result(err)
	}
	for _, name := range names {
		err := l.withPool(ctx, name, func(p *virt.StoragePool) error {
			is, err := l.directory(name, p)
			if is {
				found = append(found, name)
			}
			return err
		})
		if a := (*answer)(nil); err != nil && !(errors.As(err, &a) && a.class == providers.Absent) {
			return nil, err
		}
	}
	return found, nil
}

// directory reports whether a pool is a directory. That of a pool does not change, unless libvirt tells of an event.
func (l *library) directory(name string, p *virt.StoragePool) (bool, error) {
	uuid, err := p.GetUUIDString() // the library knows it without a call
	if err != nil {
		return false, err
	}
	if known, ok := l.pools.Load(name); ok && known == uuid {
		return true, nil
	}
	xml, err := p.GetXMLDesc(0)
	if err != nil {
		return false, err
	}
	var d libvirtxml.StoragePool
	if err := d.Unmarshal(xml); err != nil {
		return false, fmt.Errorf("the definition of pool %s: %w", name, err)
	}
	if d.Type != "dir" || d.Target == nil {
		return false, nil
	}
	l.isDirectory(name, p)
	return true, nil
}

// isDirectory notes that a pool is a directory.
func (l *library) isDirectory(name string, p *virt.StoragePool) {
	if uuid, err := p.GetUUIDString(); err == nil {
		l.pools.Store(name, uuid)
	}
}

// volumes fails when a file is gone that the pool lists: what is missing because a directory is not mounted must not look absent.
func (l *library) volumes(ctx context.Context, pool string, names []string) ([]string, error) {
	var found []string
	var unread string
	err := l.withPool(ctx, pool, func(p *virt.StoragePool) error {
		vs, err := l.volumesOf(p, pool, names)
		defer func() {
			for _, v := range vs {
				free(v)
			}
		}()
		if err != nil {
			return err
		}
		for _, v := range vs {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			switch xml, name, err := l.volume(ctx, p, v); {
			case err != nil:
				return err
			case xml != "":
				found = append(found, xml)
			case name != "":
				unread = name // the others are not waited for
				return nil
			}
		}
		return nil
	})
	if err == nil && unread != "" {
		return nil, refuse(providers.Invalid, "pool %s lists the volume %s, but its file is gone, so it is unknown: the directory of the pool may not be mounted, "+
			"or somebody has deleted the file and the pool needs a refresh (virsh pool-refresh %s)", pool, unread, pool)
	}
	return found, err
}

// volume returns the definition of a volume; its name alone when the pool lists it and its file is gone, and nothing when it does not
// exist. libvirt lists a volume before it makes the file, and still after it has deleted that. Those of this connection do not exist then;
// others are given a moment.
func (l *library) volume(ctx context.Context, p *virt.StoragePool, v *virt.StorageVol) (xml, name string, err error) {
	err = moment.Do(ctx, func() (over bool, err error) {
		if xml, err = v.GetXMLDesc(0); !isAbsent(err) {
			name = ""
			return true, err
		}
		if name, err = v.GetName(); err != nil {
			return true, err
		}
		pool, err := p.GetName()
		if err != nil {
			return true, err
		}
		if _, ours := l.files.Load(pool + "/" + name); ours {
			name = ""
			return true, nil
		}
		again, err := p.LookupStorageVolByName(name)
		if err != nil {
			name = ""
			return true, unless(virt.ERR_NO_STORAGE_VOL, err)
		}
		free(again)
		return false, nil
	})
	return xml, name, err
}

// volumesOf finds volumes by name; all when names is nil. In a small pool it finds them by a list, which is one call.
func (l *library) volumesOf(p *virt.StoragePool, pool string, names []string) (found []*virt.StorageVol, err error) {
	size, listed := l.sizes.Load(pool)
	if names == nil || len(names) > 1 && (!listed || size.(int) <= few) {
		vs, err := p.ListAllStorageVolumes(0)
		switch {
		case err == nil:
			l.sizes.Store(pool, len(vs))
		case names == nil:
			return nil, err
		default: // libvirt lists no more than 16384
			l.sizes.Store(pool, math.MaxInt)
		}
		there, wanted := map[string]bool{}, among(names)
		for i := range vs {
			v := &vs[i]
			name, err := v.GetName() // the library knows it without a call
			if err == nil && !wanted(name) {
				free(v)
				continue
			}
			there[name] = true
			found = append(found, v)
		}
		// One that the user may not see is in no list, and must not look absent. Marks are seen with their volumes.
		names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return there[name] || err == nil && isMark(name) })
	}
	for _, name := range names {
		switch v, err := p.LookupStorageVolByName(name); {
		case isAbsent(err):
		case err != nil:
			return found, err
		default:
			found = append(found, v)
		}
	}
	return found, nil
}

func (l *library) volumeAt(ctx context.Context, path string) (pool, name string, err error) {
	if err := l.begin(ctx); err != nil {
		return "", "", err
	}
	v, err := l.c.LookupStorageVolByPath(path)
	if err != nil {
		return "", "", l.result(unless(virt.ERR_NO_STORAGE_VOL, err))
	}
	defer free(v)
	p, err := v.LookupPoolByVolume()
	if err != nil {
		return "", "", l.result(err)
	}
	defer free(p)
	if name, err = v.GetName(); err == nil {
		pool, err = p.GetName()
	}
	return pool, name, l.result(err)
}

func (l *library) createVolume(ctx context.Context, pool, xml string) error {
	return l.newVolume(ctx, pool, xml, func(p *virt.StoragePool) (*virt.StorageVol, error) { return p.StorageVolCreateXML(xml, 0) })
}

func (l *library) copyVolume(ctx context.Context, pool, xml, fromPool, from string) error {
	return l.withVolume(ctx, fromPool, from, func(source *virt.StorageVol) error {
		return l.newVolume(ctx, pool, xml, func(p *virt.StoragePool) (*virt.StorageVol, error) { return p.StorageVolCreateXMLFrom(xml, source, 0) })
	})
}

// newVolume makes a call that creates a volume.
func (l *library) newVolume(ctx context.Context, pool, xml string, call func(p *virt.StoragePool) (*virt.StorageVol, error)) error {
	return l.withPool(ctx, pool, func(p *virt.StoragePool) error {
		var named libvirtxml.StorageVolume
		if err := named.Unmarshal(xml); err != nil {
			return err
		}
		l.files.Store(pool+"/"+named.Name, true)
		defer l.files.Delete(pool + "/" + named.Name)
		v, err := call(p)
		if err != nil {
			return err
		}
		free(v)
		return nil
	})
}

func (l *library) resizeVolume(ctx context.Context, pool, name string, bytes uint64) error {
	return l.withVolume(ctx, pool, name, func(v *virt.StorageVol) error { return v.Resize(bytes, 0) })
}

func (l *library) deleteVolume(ctx context.Context, pool, name string) error {
	return l.withVolume(ctx, pool, name, func(v *virt.StorageVol) error {
		l.files.Store(pool+"/"+name, true)
		defer l.files.Delete(pool + "/" + name)
		return v.Delete(virt.STORAGE_VOL_DELETE_NORMAL)
	})
}

// packet is how much is sent at once; every version of libvirt takes that.
const packet = 64 << 10

func (l *library) upload(ctx context.Context, pool, name string, offset, bytes uint64, r io.Reader) error {
	return l.streamed(ctx, pool, name, func(v *virt.StorageVol, s *virt.Stream) error {
		if err := v.Upload(s, offset, bytes, 0); err != nil {
			return err
		}
		buffer := make([]byte, packet)
		for bytes > 0 {
			b := buffer[:min(bytes, packet)]
			if _, err := io.ReadFull(r, b); err != nil {
				return err
			}
			bytes -= uint64(len(b))
			for len(b) > 0 {
				n, err := s.Send(b)
				if err != nil {
					return err
				}
				b = b[n:]
			}
		}
		return nil
	})
}

func (l *library) download(ctx context.Context, pool, name string, bytes uint64, w io.Writer) error {
	return l.streamed(ctx, pool, name, func(v *virt.StorageVol, s *virt.Stream) error {
		if err := v.Download(s, 0, bytes, 0); err != nil {
			return err
		}
		buffer := make([]byte, min(bytes, packet)+1) // room for a call that tells the end
		for {
			n, err := s.Recv(buffer)
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err == nil {
				_, err = w.Write(buffer[:n])
			}
			if err != nil {
				return err
			}
		}
	})
}

// streamed makes a call about one volume that begins a transfer, and the transfer. libvirt confirms one to a disk that is full.
func (l *library) streamed(ctx context.Context, pool, name string, call func(v *virt.StorageVol, s *virt.Stream) error) error {
	return l.withVolume(ctx, pool, name, func(v *virt.StorageVol) error {
		s, err := l.c.NewStream(0)
		if err != nil {
			return err
		}
		defer free(s)
		if err := call(v, s); err != nil {
			_ = s.Abort()
			return err
		}
		return s.Finish()
	})
}
