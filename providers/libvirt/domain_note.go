package libvirt

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"

	"libvirt.org/go/libvirtxml"
)

// The namespace of what converge notes in the metadata of a domain, and its prefix there.
const (
	noteSpace  = "https://converge.dev/libvirt"
	notePrefix = "converge"
)

// A note is what converge keeps with a domain because libvirt has no other place for it.
type note struct {
	XMLName     xml.Name
	Mark        string `xml:"mark,attr"`
	StopTimeout *int64 `xml:"stop_timeout,attr"`
}

// element returns the note as an element of metadata, empty when nothing is noted; libvirt itself adds the namespace when it is given
// one apart.
func (n note) element(spaced bool) string {
	var text strings.Builder
	if n.Mark != "" {
		text.WriteString(` mark="`)
		_ = xml.EscapeText(&text, []byte(n.Mark))
		text.WriteString(`"`)
	}
	if n.StopTimeout != nil {
		fmt.Fprintf(&text, ` stop_timeout="%d"`, *n.StopTimeout)
	}
	switch {
	case text.Len() == 0:
		return ""
	case spaced:
		return fmt.Sprintf("<%s:domain xmlns:%s=%q%s/>", notePrefix, notePrefix, noteSpace, text.String())
	}
	return "<domain" + text.String() + "/>"
}

// noteOf returns the note in the metadata of a domain, and the metadata around it.
func noteOf(d *libvirtxml.Domain) (n note, before, after string, err error) {
	if d.Metadata == nil {
		return note{}, "", "", nil
	}
	text := d.Metadata.XML
	for r := xml.NewDecoder(strings.NewReader(text)); ; {
		begin := r.InputOffset()
		token, err := r.Token()
		if errors.Is(err, io.EOF) {
			return note{}, text, "", nil
		}
		if err != nil {
			return note{}, "", "", fmt.Errorf("its metadata: %w", err)
		}
		start, ok := token.(xml.StartElement)
		switch {
		case ok && start.Name.Space == noteSpace:
			if err := r.DecodeElement(&n, &start); err != nil {
				return note{}, "", "", fmt.Errorf("its metadata: %w", err)
			}
			return n, text[:begin], text[r.InputOffset():], nil
		case ok:
			if err := r.Skip(); err != nil {
				return note{}, "", "", fmt.Errorf("its metadata: %w", err)
			}
		}
	}
}

// annotateDomain replaces the note of a domain.
func annotateDomain(d *libvirtxml.Domain, n note) error {
	_, before, after, err := noteOf(d)
	if err != nil {
		return err
	}
	d.Metadata = nil
	if text := before + n.element(true) + after; strings.TrimSpace(text) != "" {
		d.Metadata = &libvirtxml.DomainMetadata{XML: text}
	}
	return nil
}
