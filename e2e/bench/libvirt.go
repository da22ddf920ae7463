//go:build linux && cgo && libvirt_dlopen

package main

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sync/errgroup"
	virt "libvirt.org/go/libvirt"
)

// dialed says whether this program can call libvirt.
const dialed = true

// raw makes the calls of libvirt that a node of N networks, pools, volumes and domains costs at least, ten concurrently on one
// connection, as converge has one; libvirtd itself takes five of them at a time. "define URI N DIR" creates it, "remove URI N DIR" deletes it.
func raw(args []string, do func(c *virt.Connect, g *errgroup.Group, n int, dir string)) (done, error) {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return done{}, err
	}
	return timed(func() error {
		c, err := virt.NewConnect(args[0])
		if err != nil {
			return err
		}
		defer c.Close()
		var g errgroup.Group
		g.SetLimit(parallel)
		do(c, &g, n, args[2])
		return g.Wait()
	})
}

// define creates the node of nodeOf.
func define(_ context.Context, args []string) (done, error) {
	return raw(args, func(c *virt.Connect, g *errgroup.Group, n int, dir string) {
		for i := range n {
			g.Go(func() error {
				net, err := c.NetworkDefineXML(fmt.Sprintf("<network><name>%s</name><bridge name='%s'/></network>", numbered("net", i), numbered("br", i)))
				if err != nil {
					return err
				}
				return errors.Join(net.Create(), net.Free())
			})
			g.Go(func() error {
				pool, err := c.StoragePoolDefineXML(fmt.Sprintf("<pool type='dir'><name>%s</name><target><path>%s</path></target></pool>", numbered("pool", i), poolPath(dir, i)), 0)
				if err != nil {
					return err
				}
				defer pool.Free()
				if err := errors.Join(pool.Build(virt.STORAGE_POOL_BUILD_NEW), pool.Create(virt.STORAGE_POOL_CREATE_NORMAL)); err != nil {
					return err
				}
				vol, err := pool.StorageVolCreateXML(fmt.Sprintf("<volume><name>%s</name><capacity>%d</capacity><target><format type='qcow2'/></target></volume>", numbered("vol", i), diskSize), 0)
				if err != nil {
					return err
				}
				domain, err := c.DomainDefineXML(machine(i))
				if err != nil {
					return err
				}
				return errors.Join(vol.Free(), domain.Free())
			})
		}
	})
}

// remove deletes what define or converge has created.
func remove(_ context.Context, args []string) (done, error) {
	return raw(args, func(c *virt.Connect, g *errgroup.Group, n int, _ string) {
		for i := range n {
			g.Go(func() error {
				net, err := c.LookupNetworkByName(numbered("net", i))
				if err != nil {
					return err
				}
				return errors.Join(net.Destroy(), net.Undefine(), net.Free())
			})
			g.Go(func() error {
				domain, err := c.LookupDomainByName(numbered("vm", i))
				if err != nil {
					return err
				}
				pool, err := c.LookupStoragePoolByName(numbered("pool", i))
				if err != nil {
					return err
				}
				vol, err := pool.LookupStorageVolByName(numbered("vol", i))
				if err != nil {
					return err
				}
				return errors.Join(domain.Undefine(), vol.Delete(0), pool.Destroy(), pool.Undefine(), domain.Free(), vol.Free(), pool.Free())
			})
		}
	})
}

// observe reads the definitions of everything that exists, decodes them and the document, and reads the records:
// "observe URI DOCUMENT STORE".
func observe(ctx context.Context, args []string) (done, error) {
	return timed(func() error { return errors.Join(definitions(args[0]), decode(args[1]), read(ctx, args[2])) })
}

func definitions(uri string) error {
	c, err := virt.NewConnect(uri)
	if err != nil {
		return err
	}
	defer c.Close()
	var texts []string
	var errs []error
	describe := func(text string, err error) {
		texts, errs = append(texts, text), append(errs, err)
	}
	nets, err := c.ListAllNetworks(0)
	errs = append(errs, err)
	for _, net := range nets {
		describe(net.GetXMLDesc(virt.NETWORK_XML_INACTIVE))
	}
	domains, err := c.ListAllDomains(0)
	errs = append(errs, err)
	for _, domain := range domains {
		describe(domain.GetXMLDesc(virt.DOMAIN_XML_INACTIVE))
	}
	pools, err := c.ListAllStoragePools(0)
	errs = append(errs, err)
	for _, pool := range pools {
		describe(pool.GetXMLDesc(virt.STORAGE_XML_INACTIVE))
		vols, err := pool.ListAllStorageVolumes(0)
		errs = append(errs, err)
		for _, vol := range vols {
			describe(vol.GetXMLDesc(0))
		}
	}
	for _, text := range texts {
		var tree struct {
			Inner string `xml:",innerxml"`
		}
		errs = append(errs, xml.Unmarshal([]byte(text), &tree))
	}
	return errors.Join(errs...)
}

// machine returns the definition of a machine of virtual in libvirt's form.
func machine(i int) string {
	return fmt.Sprintf(`<domain type='qemu'><name>%s</name><memory unit='b'>%d</memory><vcpu>1</vcpu><os><type>hvm</type></os><devices>
<disk type='volume' device='disk'><driver name='qemu' type='qcow2'/><source pool='%s' volume='%s'/><target dev='vda' bus='virtio'/></disk>
<interface type='network'><mac address='%s'/><source network='%s'/><model type='virtio'/></interface></devices></domain>`,
		numbered("vm", i), memorySize, numbered("pool", i), numbered("vol", i), hardware(i), numbered("net", i))
}
