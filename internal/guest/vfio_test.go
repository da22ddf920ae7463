package guest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Of linux/vfio.h.
const (
	setIOMMU      = ';'<<8 + 100 + 2
	getStatus     = ';'<<8 + 100 + 3
	setContainer  = ';'<<8 + 100 + 4
	getDevice     = ';'<<8 + 100 + 6
	groupIsViable = 1
	type1         = 1
)

func ioctl(f *os.File, request uintptr, argument unsafe.Pointer) (uintptr, error) {
	r, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(argument))
	if errno != 0 {
		return 0, errno
	}
	return r, nil
}

// viable asks VFIO whether it would hand out a group.
func viable(group string) (bool, error) {
	f, err := os.OpenFile("/dev/vfio/"+group, os.O_RDWR, 0)
	if err != nil {
		return false, err
	}
	defer f.Close()
	status := [2]uint32{8, 0} // its own size, and flags
	_, err = ioctl(f, getStatus, unsafe.Pointer(&status))
	return status[1]&groupIsViable != 0, err
}

// use opens the device at an address: its disk, or through VFIO.
func use(t testing.TB, address string) (wanted, end func()) {
	t.Helper()
	var files []*os.File
	open := func(name string, flags int) *os.File {
		t.Helper()
		f, err := os.OpenFile(name, flags, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
		return f
	}
	must := func(_ uintptr, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	end = func() {
		for _, f := range files {
			f.Close()
		}
	}
	device := "/sys/bus/pci/devices/" + address
	driver, err := os.Readlink(device + "/driver")
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Base(driver) == "nvme" {
		open(filepath.Join("/dev", disk(t, device)), os.O_RDWR)
		return func() {}, end
	}
	group, err := os.Readlink(device + "/iommu_group")
	if err != nil {
		t.Fatal(err)
	}
	log := open("/dev/kmsg", os.O_RDONLY)
	if _, err := log.Seek(0, 2); err != nil { // to what is said from now on
		t.Fatal(err)
	}
	g, container := open("/dev/vfio/"+filepath.Base(group), os.O_RDWR), open("/dev/vfio/vfio", os.O_RDWR)
	number := int32(container.Fd())
	must(ioctl(g, setContainer, unsafe.Pointer(&number)))
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, container.Fd(), setIOMMU, type1)
	if errno != 0 {
		t.Fatal(errno)
	}
	name, err := unix.BytePtrFromString(address)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := ioctl(g, getDevice, unsafe.Pointer(name))
	must(fd, err)
	files = append([]*os.File{os.NewFile(fd, address)}, files...) // closed before its group
	return func() {
		line := make([]byte, 8<<10) // kmsg gives one message for each read
		for {
			n, err := log.Read(line)
			if err != nil {
				t.Fatalf("the kernel says nothing: %v", err)
			}
			if text := string(line[:n]); strings.Contains(text, address) && strings.Contains(text, "blocked until released by user") {
				return
			}
		}
	}, end
}

// disk waits until the driver of an NVMe controller has found its disk, which it does after it is bound.
func disk(t testing.TB, device string) string {
	t.Helper()
	limit := time.NewTimer(2 * time.Minute)
	defer limit.Stop()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		disks, err := filepath.Glob(device + "/nvme/nvme*/nvme*n1")
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range disks {
			// Its file is there before it can be opened.
			if f, err := os.Open(filepath.Join("/dev", filepath.Base(d))); err == nil {
				f.Close()
				return filepath.Base(d)
			}
		}
		select {
		case <-limit.C:
			t.Fatalf("%s never had a disk", device)
		case <-again.C:
		}
	}
}
