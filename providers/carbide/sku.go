package carbide

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/providers/carbide/spec"
	"converge.dev/converge/schema"
)

// A SKU is text that machines are checked against. Its idle machines are checked again after every change of its parts,
// also after the one that undoes it; what they run is not touched.
var skuTraits = providers.Traits{
	ID:     "{name}",
	Create: providers.Conditional, Update: providers.Blind, Delete: providers.Blind,
	Late:       late,
	UndoCreate: providers.Exact, UndoUpdate: providers.Exact, UndoDelete: providers.Exact,
}

// skuVersion is the only version of the format of SKUs that the service takes.
const skuVersion = 4

// skuRefusals are codes that mean something of their own.
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
	spec := readSKU(o.GetComponents())
	put(spec, "description", o.GetDescription())
	put(spec, "device_type", o.GetDeviceType())
	status := schema.Object{}
	putList(status, "machines", list(o.GetAssociatedMachineIds(), func(id *forge.MachineId) any { return id.GetId() }))
	return providers.Thing{ID: o.GetId(), Name: o.GetId(), Spec: spec, Status: status, Phase: providers.Ready}
}

func (k skus) create(ctx context.Context, c *call[spec.SKU]) error {
	_, err := k.CreateSku(ctx, &forge.SkuList{Skus: []*forge.Sku{writeSKU(c, &forge.Sku{Id: c.ID})}})
	return administrators(err)
}

// update replaces the SKU, after which its machines are checked again. That is not needed when only words about it
// change; the call for those cannot take any away.
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

// administrators says what a refusal of a call about SKUs means: the usual role of a site's own clients may read SKUs, and
// no more.
func administrators(err error) error {
	if status.Code(err) != codes.PermissionDenied {
		return err
	}
	return fmt.Errorf("only the administrator's role, ForgeAdminCLI, may change SKUs and which machines belong to them: %w", err)
}

func readSKU(o *forge.SkuComponents) schema.Object {
	chassis := map[string]any{"model": o.GetChassis().GetModel(), "architecture": o.GetChassis().GetArchitecture()}
	put(chassis, "vendor", o.GetChassis().GetVendor())
	spec := schema.Object{"chassis": chassis}
	putList(spec, "cpus", list(o.GetCpus(), func(p *forge.SkuComponentCpu) any { return readCPU(p) }))
	putList(spec, "gpus", list(o.GetGpus(), func(p *forge.SkuComponentGpu) any { return readSKUGPU(p) }))
	putList(spec, "infiniband_devices", list(o.GetInfinibandDevices(), func(p *forge.SkuComponentInfinibandDevices) any { return readSKUIB(p) }))
	putList(spec, "storage", list(o.GetStorage(), func(p *forge.SkuComponentStorage) any { return readStorage(p) }))
	putList(spec, "memory", list(o.GetMemory(), func(p *forge.SkuComponentMemory) any { return readMemory(p) }))
	if o.GetTpm() != nil {
		tpm := map[string]any{"version": o.GetTpm().GetVersion()}
		put(tpm, "vendor", o.GetTpm().GetVendor())
		spec["tpm"] = tpm
	}
	return spec
}

func readCPU(p *forge.SkuComponentCpu) map[string]any {
	part := map[string]any{"model": p.GetModel(), "thread_count": int64(p.GetThreadCount()), "count": int64(p.GetCount())}
	put(part, "vendor", p.GetVendor())
	return part
}

func readSKUGPU(p *forge.SkuComponentGpu) map[string]any {
	part := map[string]any{"model": p.GetModel(), "count": int64(p.GetCount())}
	put(part, "vendor", p.GetVendor())
	put(part, "total_memory", p.GetTotalMemory())
	return part
}

func readSKUIB(p *forge.SkuComponentInfinibandDevices) map[string]any {
	part := map[string]any{"model": p.GetModel(), "count": int64(p.GetCount())}
	put(part, "vendor", p.GetVendor())
	putList(part, "inactive_devices", list(p.GetInactiveDevices(), func(n uint32) any { return int64(n) }))
	return part
}

func readStorage(p *forge.SkuComponentStorage) map[string]any {
	return map[string]any{"model": p.GetModel(), "count": int64(p.GetCount())}
}

func readMemory(p *forge.SkuComponentMemory) map[string]any {
	return map[string]any{"memory_type": p.GetMemoryType(), "capacity_mb": int64(p.GetCapacityMb()), "count": int64(p.GetCount())}
}

// sameParts reports whether two SKUs consist of the same, in whatever order.
func sameParts(a, b *forge.SkuComponents) bool {
	digest := func(o *forge.SkuComponents) string {
		spec := readSKU(o)
		for _, v := range spec {
			if l, ok := v.([]any); ok {
				slices.SortFunc(l, func(x, y any) int {
					return strings.Compare(schema.Object(x.(map[string]any)).Digest(), schema.Object(y.(map[string]any)).Digest())
				})
			}
		}
		return spec.Digest()
	}
	return digest(a) == digest(b)
}

// writeSKU changes a SKU to what is wanted.
func writeSKU(c *call[spec.SKU], o *forge.Sku) *forge.Sku {
	description := value(c.want.Description)
	o.SchemaVersion, o.Description, o.DeviceType = skuVersion, &description, c.want.DeviceType
	if o.Components == nil {
		o.Components = &forge.SkuComponents{}
	}
	w := o.Components
	chassis, _ := c.Want["chassis"].(map[string]any)
	w.Chassis = cmp.Or(w.Chassis, &forge.SkuComponentChassis{})
	w.Chassis.Vendor, w.Chassis.Model, w.Chassis.Architecture = text(chassis, "vendor"), text(chassis, "model"), text(chassis, "architecture")
	w.Cpus = renewMaps(w.Cpus, structs(c.Want, "cpus"), readCPU, func(p map[string]any, o *forge.SkuComponentCpu) {
		o.Vendor, o.Model, o.ThreadCount, o.Count = text(p, "vendor"), text(p, "model"), count(p, "thread_count"), count(p, "count")
	}, "vendor", "model")
	w.Gpus = renewMaps(w.Gpus, structs(c.Want, "gpus"), readSKUGPU, func(p map[string]any, o *forge.SkuComponentGpu) {
		o.Vendor, o.Model, o.TotalMemory, o.Count = text(p, "vendor"), text(p, "model"), text(p, "total_memory"), count(p, "count")
	}, "vendor", "model")
	w.InfinibandDevices = renewMaps(w.InfinibandDevices, structs(c.Want, "infiniband_devices"), readSKUIB, func(p map[string]any, o *forge.SkuComponentInfinibandDevices) {
		o.Vendor, o.Model, o.Count, o.InactiveDevices = text(p, "vendor"), text(p, "model"), count(p, "count"), counts(p, "inactive_devices")
	}, "vendor", "model")
	w.Storage = renewMaps(w.Storage, structs(c.Want, "storage"), readStorage, func(p map[string]any, o *forge.SkuComponentStorage) {
		o.Model, o.Count = text(p, "model"), count(p, "count")
	}, "model")
	w.Memory = renewMaps(w.Memory, structs(c.Want, "memory"), readMemory, func(p map[string]any, o *forge.SkuComponentMemory) {
		o.MemoryType, o.CapacityMb, o.Count = text(p, "memory_type"), count(p, "capacity_mb"), count(p, "count")
	}, "memory_type", "capacity_mb")
	if tpm, ok := c.Want["tpm"].(map[string]any); ok {
		w.Tpm = cmp.Or(w.Tpm, &forge.SkuComponentTpm{})
		w.Tpm.Vendor, w.Tpm.Version = text(tpm, "vendor"), text(tpm, "version")
	} else {
		w.Tpm = nil
	}
	return o
}
