package libvirt

import (
	"encoding/xml"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
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
					counted[at+"/@"+a.Name.Local+"="+a.Value]++
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
