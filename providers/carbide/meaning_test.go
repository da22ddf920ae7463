package carbide

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"converge.dev/converge/providers"
)

// TestDatabaseWords checks what PostgreSQL says through INTERNAL, about calls that had no effect.
func TestDatabaseWords(t *testing.T) {
	for _, c := range []struct {
		kind, op, text string
		want           providers.Class
	}{
		{"carbide.vpc", opCreate, `duplicate key value violates unique constraint "vpcs_pkey"`, providers.Exists},
		{"carbide.network_segment", opCreate, `duplicate key value violates unique constraint "network_segments_pkey"`, providers.Exists},
		{"carbide.network_segment", opCreate, `insert or update on table "network_segments" violates foreign key constraint "vpc_fkey"`, providers.Absent},
		{"carbide.network_segment", opCreate, `new row for relation "network_prefixes" violates check constraint "gateway_within_network"`, providers.Invalid},
		{"carbide.instance_type", opCreate, `value too long for type character varying(64)`, providers.Invalid},
		{"carbide.vpc_prefix", opDelete, `update or delete on table "network_vpc_prefixes" violates foreign key constraint "vpc_prefix_fkey"`, providers.Busy},
		{"carbide.vpc_peering", opCreate, `VPC Peering feature disabled.`, providers.Denied},
		{"carbide.vpc_peering", opCreate, `insert or update on table "vpc_peerings" violates foreign key constraint "vpc_peerings_vpc1_id_fkey"`, providers.Absent},
		{"carbide.ib_partition", opCreate, `duplicate key value violates unique constraint "ib_partitions_pkey"`, providers.Exists},
		{"carbide.ib_partition", opCreate, `resource pool pkey: value 5 cannot be requested or is already allocated`, providers.Invalid},
		{"carbide.nvlink_logical_partition", opCreate, `duplicate key value violates unique constraint "nvlink_logical_partitions_pkey"`, providers.Exists},
		{"carbide.spx_partition", opCreate, `duplicate key value violates unique constraint "spx_partitions_pkey"`, providers.Exists},
		{"carbide.vpc", opCreate, `pool timed out while waiting for an open connection`, providers.Busy},
	} {
		k := &kind[int]{name: c.kind}
		if got := k.meaning(c.op, status.Error(codes.Internal, "Database Error: "+c.text)); got != c.want {
			t.Errorf("%s %s, %s: class %s, want %s", c.op, c.kind, c.text, got, c.want)
		}
	}
}
