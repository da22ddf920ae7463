package carbidesim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers/carbide/forge"
)

// superNICs are the Spectrum-X devices of a host with GPUs.
const (
	superNIC  = "MT43244 BlueField-3 SuperNIC"
	superNICs = 2
)

// readFabrics checks the shape of the sections of an instance for the other fabrics, and converts them to the stored form.
// It does not check which GPUs are in which NVLink partition, and drops empty sections.
func readFabrics(in, out *forge.InstanceConfig) error {
	seen := map[string]bool{}
	again := func(what, device string, instance uint32) error {
		key := fmt.Sprint(what, " ", device, " ", instance)
		if seen[key] {
			return invalid("%s device %s %d is configured more than once", what, device, instance)
		}
		seen[key] = true
		return nil
	}
	for _, i := range in.Infiniband.GetIbInterfaces() {
		if i.IbPartitionId == nil {
			return missing("InstanceIbInterfaceConfig::ib_partition_id")
		}
		if _, ok := forge.InterfaceFunctionType_name[int32(i.FunctionType)]; !ok {
			return invalid("invalid function_type %d", i.FunctionType)
		}
		if err := again("IB", i.Device, i.DeviceInstance); err != nil {
			return err
		}
		if out.Infiniband == nil {
			out.Infiniband = &forge.InstanceInfinibandConfig{}
		}
		kept := proto.Clone(i).(*forge.InstanceIBInterfaceConfig)
		kept.VirtualFunctionId = nil // never stored
		out.Infiniband.IbInterfaces = append(out.Infiniband.IbInterfaces, kept)
	}
	if len(in.Nvlink.GetGpuConfigs()) > 0 {
		out.Nvlink = proto.Clone(in.Nvlink).(*forge.InstanceNVLinkConfig)
	}
	for _, a := range in.Spxconfig.GetSpxAttachments() {
		if a.SpxPartitionId == nil {
			return missing("InstanceSpxAttachment::spx_partition_id")
		}
		if a.AttachmentType != forge.SpxAttachmentType_Physical && a.AttachmentType != forge.SpxAttachmentType_Ovn {
			return invalid("attachment type %d is not supported", a.AttachmentType)
		}
		if err := again("SPX", a.Device, a.DeviceInstance); err != nil {
			return err
		}
	}
	if len(in.Spxconfig.GetSpxAttachments()) > 0 {
		out.Spxconfig = proto.Clone(in.Spxconfig).(*forge.InstanceSpxConfig)
		slices.SortFunc(out.Spxconfig.SpxAttachments, func(a, b *forge.InstanceSpxAttachment) int {
			return cmp.Or(strings.Compare(a.Device, b.Device), cmp.Compare(b.DeviceInstance, a.DeviceInstance))
		})
	}
	return nil
}

// fitInfiniband checks that partitions and devices exist.
func (s *site) fitInfiniband(m *machine, c *forge.InstanceConfig) error {
	for _, i := range c.Infiniband.GetIbInterfaces() {
		id := i.IbPartitionId.GetValue()
		if p := s.ibPartitions.get(id); p == nil || p.Organization != c.Tenant.TenantOrganizationId {
			return invalid("IB partition %s does not exist or belongs to another tenant", id)
		}
		if i.FunctionType != forge.InterfaceFunctionType_PHYSICAL {
			return invalid("Not support VF %s", i.Device)
		}
		if err := fitDevice(m, i.Device, i.DeviceInstance); err != nil {
			return err
		}
	}
	return nil
}

func fitDevice(m *machine, device string, instance uint32) error {
	for _, have := range m.Capabilities.message.GetInfiniband() {
		switch {
		case have.Name != device:
		case instance >= have.Count:
			return invalid("not enough ib device %s", device)
		case slices.Contains(have.InactiveDevices, instance):
			return invalid("UFM detected inactive state for ib device %s %d", device, instance)
		default:
			return nil
		}
	}
	return invalid("no ib device %s", device)
}

// fitSpx checks the same for Spectrum-X.
func (s *site) fitSpx(m *machine, c *forge.InstanceConfig) error {
	for _, a := range c.Spxconfig.GetSpxAttachments() {
		id := a.SpxPartitionId.GetValue()
		if p := s.spxPartitions.get(id); p == nil || p.Deleted || p.Organization != c.Tenant.TenantOrganizationId {
			return invalid("SPX partition %s does not exist or belongs to another tenant", id)
		}
		if a.Device != superNIC || a.DeviceInstance >= superNICs || len(m.Capabilities.message.GetGpu()) == 0 {
			return invalid("no DPA interface %s %d", a.Device, a.DeviceInstance)
		}
	}
	return nil
}

// refit applies the sections of an update that differ from those of the instance, and reports whether there are any.
// Attachments on Spectrum-X always count as new: what is stored has more than what is sent.
func (s *site) refit(i *instance, old, config *forge.InstanceConfig) (changed bool, err error) {
	m := s.machines.get(i.Machine)
	if !proto.Equal(config.Infiniband, old.Infiniband) {
		if err := s.fitInfiniband(m, config); err != nil {
			return false, err
		}
		i.Infiniband, changed = i.Infiniband.next(s.now), true
	}
	if !proto.Equal(config.Nvlink, old.Nvlink) {
		i.NVLink, changed = i.NVLink.next(s.now), true
	}
	if config.Spxconfig != nil || old.Spxconfig != nil {
		if err := s.fitSpx(m, config); err != nil {
			return false, err
		}
		changed = true
	}
	if !sameServices(config.DpuExtensionServices, old.DpuExtensionServices) {
		i.Services, changed = i.Services.next(s.now), true
	}
	return changed, nil
}

// sameServices compares two configurations as sets.
func sameServices(a, b *forge.InstanceDpuExtensionServicesConfig) bool {
	set := func(c *forge.InstanceDpuExtensionServicesConfig) []string {
		var out []string
		for _, e := range c.GetServiceConfigs() {
			out = append(out, e.ServiceId+" "+e.Version)
		}
		slices.Sort(out)
		return out
	}
	return slices.Equal(set(a), set(b))
}

// wireFabrics fills in the status of these sections.
func (s *site) wireFabrics(id string, i *instance, out *forge.InstanceStatus) {
	synced, c := out.ConfigsSynced, i.config()
	out.Infiniband = &forge.InstanceInfinibandStatus{ConfigsSynced: synced}
	out.Nvlink = &forge.InstanceNVLinkStatus{ConfigsSynced: synced}
	out.SpxStatus = &forge.InstanceSpxStatus{ConfigsSynced: synced}
	out.DpuExtensionServices = &forge.InstanceDpuExtensionServicesStatus{ConfigsSynced: synced}
	for _, port := range c.Infiniband.GetIbInterfaces() {
		guid := strings.ReplaceAll(s.derived("guid", fmt.Sprint(i.Machine, port.Device, port.DeviceInstance)), "-", "")[:16]
		out.Infiniband.IbInterfaces = append(out.Infiniband.IbInterfaces, &forge.InstanceIBInterfaceStatus{
			PfGuid: &guid, Guid: &guid, Lid: 1 + port.DeviceInstance,
		})
	}
	for _, gpu := range c.Nvlink.GetGpuConfigs() {
		guid := s.derived("gpu", fmt.Sprint(i.Machine, gpu.DeviceInstance))
		status := &forge.InstanceNVLinkGpuStatus{GpuGuid: &guid}
		if synced == forge.SyncState_SYNCED {
			status.LogicalPartitionId = gpu.LogicalPartitionId
		}
		out.Nvlink.GpuStatuses = append(out.Nvlink.GpuStatuses, status)
	}
	for _, a := range c.Spxconfig.GetSpxAttachments() {
		mac := s.mac(fmt.Sprint(i.Machine, a.Device, a.DeviceInstance))
		out.SpxStatus.AttachmentStatuses = append(out.SpxStatus.AttachmentStatuses, &forge.InstanceSpxAttachmentStatus{
			MacAddr: &mac, AttachmentType: a.AttachmentType, SpxPartitionId: a.SpxPartitionId,
		})
	}
	for _, e := range c.DpuExtensionServices.GetServiceConfigs() {
		status := forge.DpuExtensionServiceDeploymentStatus_DPU_EXTENSION_SERVICE_PENDING
		if synced == forge.SyncState_SYNCED {
			status = forge.DpuExtensionServiceDeploymentStatus_DPU_EXTENSION_SERVICE_RUNNING
		}
		out.DpuExtensionServices.DpuExtensionServices = append(out.DpuExtensionServices.DpuExtensionServices, &forge.InstanceDpuExtensionServiceStatus{
			ServiceId: e.ServiceId, Version: e.Version, DeploymentStatus: status,
		})
	}
}
