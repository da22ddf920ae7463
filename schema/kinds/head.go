package kinds

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"converge.dev/converge/schema/internal/message"
)

// noObject is the detail for a value that should be an object of names.
const noObject = "Want an object that maps each name to its contents."

// CheckHead checks everything of a document above its resources: apiVersion, site and policy, the names of nodes,
// providers and kinds, and that every resource is an object. Names of resources are left to CheckName, their contents
// to CheckSpec.
func (s *Schema) CheckHead(doc map[string]any) []Problem {
	x := &explainer{}
	head := make(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(doc)) {
		switch {
		case name == "nodes":
			s.checkNodes(x, doc[name])
		case s.head.field(name) != nil:
			head[name] = doc[name]
		default:
			s.checkProvider(x, nil, name, doc[name])
		}
	}
	x.object(s.head, head, nil)
	return x.sorted()
}

func (s *Schema) checkNodes(x *explainer, v any) {
	path := []string{"nodes"}
	nodes, ok := v.(map[string]any)
	if !ok {
		x.add(path, codeWrongType, noObject)
		return
	}
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		at := append(path[:1:1], node)
		if !s.nodeName.accepts(node) {
			x.add(at, codeBadName, fmt.Sprintf("%s is not a valid node name. Want %s", message.Value(node), s.nodeName.want()))
		}
		providers, ok := nodes[node].(map[string]any)
		if !ok {
			x.add(at, codeWrongType, noObject)
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(providers)) {
			s.checkProvider(x, at, name, providers[name])
		}
	}
}

// checkProvider checks the kinds under a provider: of the site when path is empty, otherwise of a node.
func (s *Schema) checkProvider(x *explainer, path []string, provider string, v any) {
	onNode := len(path) > 0
	at := append(path[:len(path):len(path)], provider)
	nouns, elsewhere := s.nouns(provider, onNode), s.nouns(provider, !onNode)
	switch {
	case len(nouns) == 0 && len(elsewhere) > 0:
		x.add(at, codeWrongScope, s.wrongScope(provider, onNode))
		return
	case len(nouns) == 0:
		x.add(at, codeUnknownProvider, s.unknownName(provider, onNode))
		return
	}
	kinds, ok := v.(map[string]any)
	if !ok {
		x.add(at, codeWrongType, noObject)
		return
	}
	for _, noun := range slices.Sorted(maps.Keys(kinds)) {
		at := append(at[:len(at):len(at)], noun)
		if !slices.Contains(nouns, noun) {
			if slices.Contains(elsewhere, noun) {
				x.add(at, codeWrongScope, s.wrongScope(provider+"."+noun, onNode))
			} else {
				x.add(at, codeUnknownKind, message.Unknown(provider+" kind", noun, nouns))
			}
			continue
		}
		resources, ok := kinds[noun].(map[string]any)
		if !ok {
			x.add(at, codeWrongType, noObject)
			continue
		}
		for name, r := range resources {
			if _, ok := r.(map[string]any); !ok {
				x.add(append(at[:len(at):len(at)], name), codeWrongType, fmt.Sprintf("Found %s. Want an object with the fields of %s.%s", message.Value(r), provider, noun))
			}
		}
	}
}

func (s *Schema) wrongScope(what string, onNode bool) string {
	if onNode {
		return fmt.Sprintf("%s belongs to the whole site. Put it at the top level of the document, not under a node.", what)
	}
	return fmt.Sprintf("%s belongs to nodes. Put it under nodes.NAME.%s.", what, what)
}

// unknownName returns the detail for a name that is neither a provider nor, at the top of a document, a field.
func (s *Schema) unknownName(name string, onNode bool) string {
	var names []string
	for _, k := range s.kinds {
		if k.Node == onNode {
			provider, _, _ := strings.Cut(k.Name, ".")
			names = append(names, provider)
		}
	}
	what := "provider"
	if !onNode {
		what = "field or provider"
		names = append(append(names, s.head.names()...), "nodes")
	}
	slices.Sort(names)
	return message.Unknown(what, name, slices.Compact(names))
}

// nouns lists the second halves of a provider's kinds on the site or on nodes.
func (s *Schema) nouns(provider string, onNode bool) (nouns []string) {
	for name, k := range s.kinds {
		if p, noun, _ := strings.Cut(name, "."); p == provider && k.Node == onNode {
			nouns = append(nouns, noun)
		}
	}
	slices.Sort(nouns)
	return nouns
}
