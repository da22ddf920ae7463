package libvirt

import (
	"encoding/xml"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
)

// missing returns where a document has values that another one has not, as paths of elements and attributes.
func missing(document, other string) []string {
	have, err := values(document)
	if err != nil {
		return []string{err.Error()}
	}
	there, err := values(other)
	if err != nil {
		return []string{err.Error()}
	}
	var paths []string
	for v, n := range have {
		if path, _, _ := strings.Cut(v, "="); n > there[v] && !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
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
