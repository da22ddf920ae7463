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
		{"carbide.operating_system", opCreate, `duplicate key value violates unique constraint "operating_systems_pkey"`, providers.Exists},
		{"carbide.os_image", opCreate, `duplicate key value violates unique constraint "os_images_pkey"`, providers.Exists},
		{"carbide.os_image", opUpdate, `value too long for type character varying(64)`, providers.Invalid},
		{"carbide.dpu_extension_service", opCreate, `insert or update on table "extension_services" violates foreign key constraint "tenant_fkey"`, providers.Absent},
		{"carbide.dpu_extension_service", opUpdate, `value too long for type character varying(256)`, providers.Invalid},
		{"carbide.vpc", opCreate, `pool timed out while waiting for an open connection`, providers.Busy},
	} {
		k := &kind[int]{name: c.kind}
		if got := k.meaning(c.op, status.Error(codes.Internal, "Database Error: "+c.text)); got != c.want {
			t.Errorf("%s %s, %s: class %s, want %s", c.op, c.kind, c.text, got, c.want)
		}
	}
}
