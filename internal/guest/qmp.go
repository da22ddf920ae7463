package guest

import (
	"encoding/json"
	"fmt"
	"net"
)

// A monitor is QEMU's, spoken to in QMP by one goroutine. Every call ends when QEMU does.
type monitor struct {
	in      *json.Decoder
	out     *json.Encoder
	deleted map[string]bool // devices of which QEMU has said that they are gone
}

type message struct {
	Return json.RawMessage
	Error  *struct{ Class, Desc string }
	Event  string
	Data   struct{ Device string }
}

func converse(conn net.Conn) (*monitor, error) {
	m := &monitor{json.NewDecoder(conn), json.NewEncoder(conn), map[string]bool{}}
	if _, err := m.next(); err != nil { // its greeting
		return nil, err
	}
	return m, m.execute("qmp_capabilities", nil, nil)
}

// next reads a message and notes which devices are gone.
func (m *monitor) next() (message, error) {
	var got message
	if err := m.in.Decode(&got); err != nil {
		return message{}, fmt.Errorf("QMP: %w", err)
	}
	if got.Event == "DEVICE_DELETED" && got.Data.Device != "" {
		m.deleted[got.Data.Device] = true
	}
	return got, nil
}

// execute carries out a command.
func (m *monitor) execute(command string, arguments, result any) error {
	request := object{"execute": command}
	if arguments != nil {
		request["arguments"] = arguments
	}
	if err := m.out.Encode(request); err != nil {
		return fmt.Errorf("QMP: %w", err)
	}
	for {
		got, err := m.next()
		switch {
		case err != nil:
			return err
		case got.Error != nil:
			return fmt.Errorf("%s: %s: %s", command, got.Error.Class, got.Error.Desc)
		case got.Return != nil && result != nil:
			return json.Unmarshal(got.Return, result)
		case got.Return != nil:
			return nil
		}
	}
}

// plug connects a device to its port.
func (m *monitor) plug(d Device) error {
	for _, o := range d.plugged() {
		if err := m.execute("device_add", o, nil); err != nil {
			return err
		}
	}
	return nil
}

// unplug asks the guest to let go of a device, and waits until it has.
func (m *monitor) unplug(d Device) error {
	id := d.objects[0]["id"].(string)
	delete(m.deleted, id)
	if err := m.execute("device_del", object{"id": id}, nil); err != nil {
		return err
	}
	for !m.deleted[id] {
		if _, err := m.next(); err != nil {
			return err
		}
	}
	return nil
}

type pciBus struct {
	Bus     int
	Devices []pciDevice
}

type pciDevice struct {
	ID                  string `json:"qdev_id"`
	Bus, Slot, Function int
	Bridge              *struct{ Devices []pciDevice } `json:"pci_bridge"`
}

// address says where on the buses a device is, as the kernel writes it.
func (m *monitor) address(id string) (string, error) {
	var buses []pciBus
	if err := m.execute("query-pci", nil, &buses); err != nil {
		return "", err
	}
	var search func([]pciDevice) string
	search = func(devices []pciDevice) string {
		for _, d := range devices {
			if d.ID == id {
				return fmt.Sprintf("0000:%02x:%02x.%x", d.Bus, d.Slot, d.Function)
			}
			if d.Bridge == nil {
				continue
			}
			if found := search(d.Bridge.Devices); found != "" {
				return found
			}
		}
		return ""
	}
	for _, b := range buses {
		if found := search(b.Devices); found != "" {
			return found, nil
		}
	}
	return "", fmt.Errorf("the machine has no device %s now", id)
}
