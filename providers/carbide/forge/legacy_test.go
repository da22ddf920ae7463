package forge

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// The table of numbers contains exactly the plain names that the older generation has and the newer one reserves.
func TestLegacyNamesAreThoseOfTheTable(t *testing.T) {
	want := map[protoreflect.FullName]protowire.Number{}
	facts := readTable(t)
	for message, differences := range facts.Rest.Messages {
		for _, d := range differences {
			if d.Core == "" && d.Rest == "name" && slices.Contains(facts.Messages[message].Reserved, [2]int32{d.Number, d.Number}) {
				want[protoreflect.FullName(message)] = protowire.Number(d.Number)
			}
		}
	}
	for message, number := range want {
		if legacyNames[message] != number {
			t.Errorf("%s: name has number %d, the table says %d", message, legacyNames[message], number)
		}
	}
	if len(legacyNames) != len(want) {
		t.Errorf("%d legacy names, the table has %d", len(legacyNames), len(want))
	}
}

func TestLegacyNameTravels(t *testing.T) {
	sent := &VpcCreationRequest{TenantOrganizationId: "acme", Metadata: &Metadata{Name: "prod"}}
	sent.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 900, protowire.VarintType), 7))
	SetLegacyName(sent, "draft")
	SetLegacyName(sent, "prod")

	wire, err := proto.Marshal(sent)
	if err != nil {
		t.Fatal(err)
	}
	var got VpcCreationRequest
	if err := proto.Unmarshal(wire, &got); err != nil {
		t.Fatal(err)
	}
	if LegacyName(&got) != "prod" {
		t.Errorf("legacy name is %q, want prod", LegacyName(&got))
	}
	if !proto.Equal(sent, &got) {
		t.Errorf("sent %v, got %v", sent, &got)
	}
	SetLegacyName(&got, "")
	if LegacyName(&got) != "" {
		t.Errorf("legacy name %q after it was removed", LegacyName(&got))
	}
	if number, _, _ := protowire.ConsumeTag(got.ProtoReflect().GetUnknown()); number != 900 {
		t.Errorf("the other unknown field is gone; first number is %d", number)
	}
}

func TestLegacyNameElsewhere(t *testing.T) {
	segment := &NetworkSegment{}
	SetLegacyName(segment, "prod")
	if len(segment.ProtoReflect().GetUnknown()) != 0 || LegacyName(segment) != "" || HasLegacyName(segment) {
		t.Error("a segment has no legacy name, yet one was stored")
	}
}
