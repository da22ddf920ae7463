package carbide

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/providers/carbide/spec"
)

// A SKU is text that machines are checked against. Its idle machines are checked again after every change of its parts,
// including the change that undoes it; what they run is not affected.
var skuTraits = providers.Traits{
	ID:     "{name}",
	Create: providers.Conditional, Update: providers.Blind, Delete: providers.Blind,
	EffectWithin: late,
	UndoCreate:   providers.Exact, UndoUpdate: providers.Exact, UndoDelete: providers.Exact,
}

// skuVersion is the only version of the format of SKUs that the service accepts.
const skuVersion = 4

// skuRefusals are codes with a special meaning.
var skuRefusals = refusals{
	opDelete: {
		codes.InvalidArgument: providers.Busy, // machines belong to it
	},
}

type skus struct{ *service }

func (skus) known(id string) bool { return id != "" }

func (k skus) list(ctx context.Context) ([]string, error) {
	r, err := k.GetAllSkuIds(ctx, &emptypb.Empty{})
	return r.GetIds(), err
}

func (k skus) get(ctx context.Context, ids []string) ([]*forge.Sku, error) {
	r, err := k.FindSkusByIds(ctx, &forge.SkusByIdsRequest{Ids: ids})
	return r.GetSkus(), err
}

func (skus) thing(o *forge.Sku) providers.Thing {
	s := readSKU(o.GetComponents())
	s.Description, s.DeviceType = unlessZero(o.GetDescription()), unlessZero(o.GetDeviceType())
	status := spec.SKUStatus{Machines: each(o.GetAssociatedMachineIds(), (*forge.MachineId).GetId)}
	return providers.Thing{ID: o.GetId(), Name: o.GetId(), Spec: s.Object(), Status: status.Object(), Phase: providers.Ready}
}

func (k skus) create(ctx context.Context, c *call[spec.SKU]) error {
	_, err := k.CreateSku(ctx, &forge.SkuList{Skus: []*forge.Sku{writeSKU(c, &forge.Sku{Id: c.ID})}})
	return administrators(err)
}

// update replaces the SKU, after which its machines are checked again. That is not needed when only its descriptive
// texts change; but the call for those cannot remove any.
func (k skus) update(ctx context.Context, c *call[spec.SKU], now *forge.Sku) error {
	after := writeSKU(c, proto.CloneOf(now))
	if sameParts(after.Components, now.Components) && (after.DeviceType != nil || now.DeviceType == nil) {
		_, err := k.UpdateSkuMetadata(ctx, &forge.SkuUpdateMetadataRequest{
			SkuId: c.ID, Description: after.Description, DeviceType: after.DeviceType,
		})
		return administrators(err)
	}
	_, err := k.ReplaceSku(ctx, after)
	return administrators(err)
}

func (k skus) delete(ctx context.Context, c *call[spec.SKU]) error {
	_, err := k.DeleteSku(ctx, &forge.SkuIdList{Ids: []string{c.ID}})
	return administrators(err)
}

// administrators explains a refusal of a call about SKUs: the usual role of a site's own clients may only read SKUs.
func administrators(err error) error {
	if status.Code(err) != codes.PermissionDenied {
		return err
	}
	return fmt.Errorf("only the administrator role, ForgeAdminCLI, may change SKUs and which machines belong to them: %w", err)
}

func readSKU(o *forge.SkuComponents) spec.SKU {
	s := spec.SKU{
		Chassis: &spec.SKUChassis{
			Vendor: unlessZero(o.GetChassis().GetVendor()), Model: o.GetChassis().GetModel(), Architecture: o.GetChassis().GetArchitecture(),
		},
		CPUs: each(o.GetCpus(), readCPU), GPUs: each(o.GetGpus(), readSKUGPU), InfinibandDevices: each(o.GetInfinibandDevices(), readSKUIB),
		Storage: each(o.GetStorage(), readStorage), Memory: each(o.GetMemory(), readMemory),
	}
	if tpm := o.GetTpm(); tpm != nil {
		s.TPM = &spec.SKUTPM{Vendor: unlessZero(tpm.GetVendor()), Version: tpm.GetVersion()}
	}
	return s
}

func readCPU(p *forge.SkuComponentCpu) spec.SKUCPU {
	return spec.SKUCPU{Vendor: unlessZero(p.GetVendor()), Model: p.GetModel(), ThreadCount: int64(p.GetThreadCount()), Count: int64(p.GetCount())}
}

func readSKUGPU(p *forge.SkuComponentGpu) spec.SKUGPU {
	return spec.SKUGPU{Vendor: unlessZero(p.GetVendor()), Model: p.GetModel(), TotalMemory: unlessZero(p.GetTotalMemory()), Count: int64(p.GetCount())}
}

func readSKUIB(p *forge.SkuComponentInfinibandDevices) spec.SKUInfiniband {
	return spec.SKUInfiniband{
		Vendor: unlessZero(p.GetVendor()), Model: p.GetModel(), Count: int64(p.GetCount()),
		InactiveDevices: each(p.GetInactiveDevices(), func(n uint32) int64 { return int64(n) }),
	}
}

func readStorage(p *forge.SkuComponentStorage) spec.SKUStorage {
	return spec.SKUStorage{Model: p.GetModel(), Count: int64(p.GetCount())}
}

func readMemory(p *forge.SkuComponentMemory) spec.SKUMemory {
	return spec.SKUMemory{MemoryType: p.GetMemoryType(), CapacityMb: int64(p.GetCapacityMb()), Count: int64(p.GetCount())}
}

// sameParts reports whether two SKUs have the same parts, in whatever order.
func sameParts(a, b *forge.SkuComponents) bool {
	parts := func(o *forge.SkuComponents) string {
		s := readSKU(o)
		return asJSON([]any{s.Chassis, s.TPM, unordered(s.CPUs), unordered(s.GPUs), unordered(s.InfinibandDevices), unordered(s.Storage), unordered(s.Memory)})
	}
	return parts(a) == parts(b)
}

// unordered returns the elements of a list as texts, independent of their order.
func unordered[T any](l []T) []string {
	return slices.Sorted(slices.Values(each(l, func(e T) string { return asJSON(e) })))
}

// writeSKU changes a SKU to the desired state.
func writeSKU(c *call[spec.SKU], o *forge.Sku) *forge.Sku {
	description := value(c.want.Description)
	o.SchemaVersion, o.Description, o.DeviceType = skuVersion, &description, c.want.DeviceType
	if o.Components == nil {
		o.Components = &forge.SkuComponents{}
	}
	w := o.Components
	chassis := value(c.want.Chassis)
	w.Chassis = cmp.Or(w.Chassis, &forge.SkuComponentChassis{})
	w.Chassis.Vendor, w.Chassis.Model, w.Chassis.Architecture = value(chassis.Vendor), chassis.Model, chassis.Architecture
	type model struct{ vendor, model string }
	w.Cpus = renew(w.Cpus, c.want.CPUs, readCPU, func(p *spec.SKUCPU, o *forge.SkuComponentCpu) {
		o.Vendor, o.Model, o.ThreadCount, o.Count = value(p.Vendor), p.Model, uint32(p.ThreadCount), uint32(p.Count)
	}, func(p *spec.SKUCPU) model { return model{value(p.Vendor), p.Model} })
	w.Gpus = renew(w.Gpus, c.want.GPUs, readSKUGPU, func(p *spec.SKUGPU, o *forge.SkuComponentGpu) {
		o.Vendor, o.Model, o.TotalMemory, o.Count = value(p.Vendor), p.Model, value(p.TotalMemory), uint32(p.Count)
	}, func(p *spec.SKUGPU) model { return model{value(p.Vendor), p.Model} })
	w.InfinibandDevices = renew(w.InfinibandDevices, c.want.InfinibandDevices, readSKUIB, func(p *spec.SKUInfiniband, o *forge.SkuComponentInfinibandDevices) {
		o.Vendor, o.Model, o.Count = value(p.Vendor), p.Model, uint32(p.Count)
		o.InactiveDevices = each(p.InactiveDevices, func(n int64) uint32 { return uint32(n) })
	}, func(p *spec.SKUInfiniband) model { return model{value(p.Vendor), p.Model} })
	w.Storage = renew(w.Storage, c.want.Storage, readStorage, func(p *spec.SKUStorage, o *forge.SkuComponentStorage) {
		o.Model, o.Count = p.Model, uint32(p.Count)
	}, func(p *spec.SKUStorage) string { return p.Model })
	type memory struct {
		kind     string
		capacity int64
	}
	w.Memory = renew(w.Memory, c.want.Memory, readMemory, func(p *spec.SKUMemory, o *forge.SkuComponentMemory) {
		o.MemoryType, o.CapacityMb, o.Count = p.MemoryType, uint32(p.CapacityMb), uint32(p.Count)
	}, func(p *spec.SKUMemory) memory { return memory{p.MemoryType, p.CapacityMb} })
	if tpm := c.want.TPM; tpm != nil {
		w.Tpm = cmp.Or(w.Tpm, &forge.SkuComponentTpm{})
		w.Tpm.Vendor, w.Tpm.Version = value(tpm.Vendor), tpm.Version
	} else {
		w.Tpm = nil
	}
	return o
}
