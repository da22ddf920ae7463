//go:build cgo && libvirt_dlopen && !linux

package libvirt

import (
	"context"
	"log/slog"
	"time"

	virt "libvirt.org/go/libvirt"

	"converge.dev/converge/internal/retry"
)

// runLoop starts the event loop of the library.
func runLoop() error {
	if err := virt.EventRegisterDefaultImpl(); err != nil {
		return err
	}
	go func() {
		for {
			if err := virt.EventRunDefaultImpl(); err != nil {
				slog.Error("the event loop of libvirt failed", "error", err)
				_ = retry.Sleep(context.Background(), time.Second)
			}
		}
	}()
	return nil
}
