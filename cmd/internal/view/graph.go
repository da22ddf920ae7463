package view

import (
	"fmt"
	"strconv"
	"strings"

	"converge.dev/converge/engine/graph"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/schema"
)

// A Graph says what comes before what.
type Graph struct {
	Nodes []GraphNode `json:"nodes"`
	Edges [][2]int    `json:"edges"` // the second must be done, or exist, before the first
}

// A GraphNode is a resource, or a step of a plan.
type GraphNode struct {
	Address  string      `json:"address"`
	Action   plan.Action `json:"action,omitempty"` // none for a resource
	Replace  bool        `json:"replace,omitempty"`
	Wave     int         `json:"wave"`
	External bool        `json:"external,omitempty"` // it is only referred to
}

// DocumentGraph returns the resources of a document and what they refer to.
func DocumentGraph(d *schema.Document) Graph {
	g := Graph{Nodes: []GraphNode{}, Edges: [][2]int{}}
	index := make(map[schema.Ref]int, len(d.Resources))
	for i := range d.Resources {
		index[d.Resources[i].Ref] = i
		g.Nodes = append(g.Nodes, GraphNode{Address: d.Resources[i].Ref.String(), External: d.Resources[i].External != nil})
	}
	needs := make([][]int, len(d.Resources))
	for i := range d.Resources {
		for _, r := range d.Resources[i].After {
			if n, ok := index[r]; ok {
				g.Edges, needs[i] = append(g.Edges, [2]int{i, n}), append(needs[i], n)
			}
		}
	}
	waves, _ := graph.Levels(needs) // a document has no cycle
	for i := range waves {
		g.Nodes[i].Wave = waves[i]
	}
	return g
}

// PlanGraph returns the steps of a plan and what they need.
func PlanGraph(p *plan.Plan) Graph {
	g := Graph{Nodes: []GraphNode{}, Edges: [][2]int{}}
	for i := range p.Steps {
		s := &p.Steps[i]
		g.Nodes = append(g.Nodes, GraphNode{Address: s.Ref.String(), Action: s.Action, Replace: s.Replace, Wave: s.Wave})
		for _, n := range s.Needs {
			g.Edges = append(g.Edges, [2]int{i, n})
		}
	}
	return g
}

// color returns the colour of a node in a graph, by what is done.
func (n GraphNode) color() string {
	switch {
	case n.Replace:
		return "#d8b4fe"
	case n.Action == plan.Create:
		return "#bbf7d0"
	case n.Action == plan.Update:
		return "#fef08a"
	case n.Action == plan.Delete:
		return "#fecaca"
	}
	return "#e5e7eb"
}

func (n GraphNode) label() string {
	if n.External {
		return clean(n.Address) + " (external)"
	}
	if n.Action == "" {
		return clean(n.Address)
	}
	if n.Replace {
		return "replace (" + string(n.Action) + ") " + clean(n.Address)
	}
	return string(n.Action) + " " + clean(n.Address)
}

// DOT returns the graph for Graphviz.
func (g Graph) DOT() string {
	var b strings.Builder
	b.WriteString("digraph {\n  rankdir = \"RL\";\n  node [shape = box, style = \"rounded,filled\", fontname = \"sans-serif\"];\n")
	for i, n := range g.Nodes {
		fmt.Fprintf(&b, "  n%d [label = %s, fillcolor = %q];\n", i, strconv.Quote(n.label()), n.color())
	}
	for _, e := range g.Edges {
		fmt.Fprintf(&b, "  n%d -> n%d;\n", e[0], e[1])
	}
	b.WriteString("}\n")
	return b.String()
}

// Mermaid returns the graph for Mermaid, which GitHub shows in Markdown.
func (g Graph) Mermaid() string {
	var b strings.Builder
	b.WriteString("flowchart RL\n")
	for i, n := range g.Nodes {
		fmt.Fprintf(&b, "  n%d[\"%s\"]\n", i, strings.ReplaceAll(n.label(), `"`, "#quot;"))
	}
	for _, e := range g.Edges {
		fmt.Fprintf(&b, "  n%d --> n%d\n", e[0], e[1])
	}
	for i, n := range g.Nodes {
		if n.Action != "" {
			fmt.Fprintf(&b, "  style n%d fill:%s\n", i, n.color())
		}
	}
	return b.String()
}
