package carbidesim

import (
	"encoding/base32"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// checkIDs converts every wrapped id of a request to its canonical form. A malformed id does not even pass the real
// service's decoder, hence INTERNAL; one that is present but empty is the nil UUID there. The handlers of expected hardware
// check UUIDs themselves.
func checkIDs(m protoreflect.Message) (err error) {
	own := strings.HasPrefix(string(m.Descriptor().Name()), "Expected")
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Message() == nil || f.IsMap() || own && f.Message().Name() == "UUID" {
			return true
		}
		if f.IsList() {
			for i := range v.List().Len() {
				if err = checkID(v.List().Get(i).Message()); err != nil {
					return false
				}
			}
			return true
		}
		err = checkID(v.Message())
		return err == nil
	})
	return err
}

func checkID(m protoreflect.Message) error {
	d := m.Descriptor()
	if d.ParentFile().Package() != "common" {
		return checkIDs(m)
	}
	if f := d.Fields().ByName("value"); f != nil && d.Name() != "UUID" { // which has no kind, and is checked by the methods
		text := m.Get(f).String()
		if text == "" {
			text = uuid.Nil.String()
		}
		id, err := uuid.Parse(text)
		if err != nil {
			return internal("failed to decode Protobuf message: %s: invalid UUID %q", d.Name(), text)
		}
		m.Set(f, protoreflect.ValueOfString(id.String()))
		return nil
	}
	if d.Name() == "MachineId" {
		text := m.Get(d.Fields().ByName("id")).String()
		if machineType(text) == 0 {
			return internal("failed to decode Protobuf message: MachineId: invalid machine id %q", text)
		}
	}
	return nil
}

// hardwareHash is how a machine id encodes the hash of the hardware's identity.
var hardwareHash = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)

// machineType returns 'h' for a host, 'd' for a DPU, 'p' for a host that is only predicted, and 0 for text that is not a
// machine id.
func machineType(id string) byte {
	hash, ok := strings.CutPrefix(id, "fm100")
	if !ok || len(hash) != 54 || !strings.ContainsRune("hdp", rune(hash[0])) || !strings.ContainsRune("ts", rune(hash[1])) {
		return 0
	}
	if _, err := hardwareHash.DecodeString(hash[2:]); err != nil {
		return 0
	}
	return hash[0]
}

// validOrganization reports whether text can name a tenant.
func validOrganization(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(r rune) bool {
		return !(r == '-' || r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z')
	})
}
