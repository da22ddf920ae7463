package libvirt

import (
	"encoding/xml"
	"errors"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"converge.dev/converge/providers"
)

// without returns the values of one document that are not in another one.
func without(have, there map[string]int) map[string]int {
	rest := map[string]int{}
	for at, n := range have {
		if n > there[at] {
			rest[at] = n - there[at]
		}
	}
	return rest
}

// places returns where values are, as paths of elements and attributes.
func places(values map[string]int) []string {
	var paths []string
	for at := range values {
		path, _, _ := strings.Cut(at, "=")
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// sameValues reports whether two documents of libvirt have the same values, besides those that change by themselves.
func sameValues(document, other string) bool {
	if document == "" || other == "" {
		return document == other
	}
	a, err := values(document)
	b, err2 := values(other)
	if err != nil || err2 != nil {
		return document == other
	}
	for _, v := range []map[string]int{a, b} {
		maps.DeleteFunc(v, func(at string, _ int) bool { return bySelf(at) })
	}
	return maps.Equal(a, b)
}

// bySelf reports whether a value is one that changes by itself: the space of a pool, and how many interfaces are in a network.
func bySelf(value string) bool {
	at, _, _ := strings.Cut(value, "=")
	return strings.HasSuffix(at, "/@connections") || slices.Contains([]string{"pool/capacity", "pool/allocation", "pool/available"}, at)
}

// decimal returns a number that is written as in 0x1f in decimal form, as the types of this program write some; other text as it is.
func decimal(text string) string {
	if digits, ok := strings.CutPrefix(text, "0x"); ok {
		if n, err := strconv.ParseUint(digits, 16, 64); err == nil {
			return strconv.FormatUint(n, 10)
		}
	}
	return text
}

// values counts the elements, texts and attributes of a document, as PATH, PATH=TEXT and PATH/@NAME=VALUE.
func values(document string) (map[string]int, error) {
	counted := map[string]int{}
	var path []string
	for d := xml.NewDecoder(strings.NewReader(document)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return counted, nil
		}
		if err != nil {
			return nil, err
		}
		switch t := token.(type) {
		case xml.StartElement:
			path = append(path, t.Name.Local)
			at := strings.Join(path, "/")
			counted[at]++
			for _, a := range t.Attr {
				if a.Name.Space != "xmlns" && a.Name.Local != "xmlns" {
					counted[at+"/@"+a.Name.Local+"="+decimal(a.Value)]++
				}
			}
		case xml.EndElement:
			path = path[:len(path)-1]
		case xml.CharData:
			if text := strings.TrimSpace(string(t)); text != "" {
				counted[strings.Join(path, "/")+"="+text]++
			}
		}
	}
}

// A document is one that the types of this program read and write.
type document interface {
	Unmarshal(doc string) error
	Marshal() (string, error)
}

// strangeOf returns what is in a definition and would be lost when it is read and written again, because the types of this program,
// which a new document is of, do not have it.
func strangeOf(definition string, d document) (map[string]int, error) {
	if err := d.Unmarshal(definition); err != nil {
		return nil, err
	}
	text, err := d.Marshal()
	if err != nil {
		return nil, err
	}
	have, err := values(definition)
	if err != nil {
		return nil, err
	}
	kept, err := values(text)
	if err != nil {
		return nil, err
	}
	strange := without(have, kept)
	maps.DeleteFunc(strange, func(at string, _ int) bool { return bySelf(at) })
	return strange, nil
}

// contained returns all values of a definition, and those of them that are neither in its spec nor filled in by libvirt.
type contained func(definition string) (all, extras map[string]int, err error)

// lostBy returns what one definition has besides its spec and another one has not.
func lostBy(definition, other string, of contained) ([]string, error) {
	all, extras, err := of(definition)
	if err != nil {
		return nil, err
	}
	there, still, err := of(other)
	if err != nil {
		return nil, err
	}
	lost := map[string]int{}
	for at, n := range extras {
		if still[at] < n && there[at] < all[at] {
			lost[at] = n
		}
	}
	return places(lost), nil
}

// losesNothing fails when a definition has settings of others that would be lost when another one takes its place: the undo would not
// bring them back.
func losesNothing(definition, other string, d document, of contained) error {
	strange, err := strangeOf(definition, d)
	if err != nil {
		return err
	}
	lost, err := lostBy(definition, other, of)
	if err != nil {
		return err
	}
	if lost = append(places(strange), lost...); len(lost) > 0 {
		slices.Sort(lost)
		return refuse(providers.Invalid, "its definition has settings that are not in its spec and would be lost: %s", strings.Join(slices.Compact(lost), ", "))
	}
	return nil
}
