package load

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"converge.dev/converge/schema"
)

// maxAliasValues is how many values the aliases of one file may expand to.
const maxAliasValues = 50_000

// checkYAML refuses what YAML allows but a document must not have: several documents in one file, duplicate names,
// aliases that expand to more than any document holds, deep nesting, line breaks that only some readers recognize.
func checkYAML(s Source) *fault {
	if f := oddBreak(s.Data); f != nil {
		return f
	}
	in := yaml.NewDecoder(bytes.NewReader(s.Data))
	c := yamlCheck{text: newText(s.Name, s.Data), unfolded: make(map[*yaml.Node]int)}
	var doc, next yaml.Node
	if err := in.Decode(&doc); err == io.EOF {
		return nothing(schema.APIVersion)
	} else if err != nil {
		return c.broken(err)
	}
	if err := in.Decode(&next); err == nil {
		return c.refuse(&next, codeSyntax, "A second YAML document starts here. A file can contain only one document: remove what follows, or move it to a second file.")
	} else if err != io.EOF {
		return c.broken(err)
	}
	_, f := c.walk(&doc, 0)
	return f
}

// oddBreak refuses line breaks that the YAML library recognizes but the CUE library, which uses its line numbers, does not: all
// positions after one would be wrong, or beyond the text.
func oddBreak(data []byte) *fault {
	for i, r := range string(data) {
		switch {
		case r == '\u0085', r == '\u2028', r == '\u2029', r == '\r' && !bytes.HasPrefix(data[i:], []byte("\r\n")):
			return &fault{offset: int64(i), code: codeSyntax, detail: fmt.Sprintf("A line ends here with %U. Lines must end with LF or CRLF: convert the line endings, or write \\u%04x if it belongs to quoted text.", r, r)}
		}
	}
	return nil
}

// broken returns the fault of text that is not YAML. The library reports the line only in its error text.
func (c *yamlCheck) broken(err error) *fault {
	text, line := strings.TrimPrefix(err.Error(), "yaml: "), 1
	if n, _ := fmt.Sscanf(text, "line %d:", &line); n == 1 {
		_, text, _ = strings.Cut(text, ": ")
	}
	return &fault{offset: c.text.offset(line, 1), code: codeSyntax, detail: fmt.Sprintf("This is not valid YAML: %s. The mistake is on this line or just before it.", text)}
}

type yamlCheck struct {
	text     *sourceText
	unfolded map[*yaml.Node]int // number of values of each anchored node; -1 while they are being counted
	aliases  int                // number of values that aliases stand for
}

func (c *yamlCheck) refuse(n *yaml.Node, code, format string, args ...any) *fault {
	return &fault{offset: c.text.offset(n.Line, n.Column), code: code, detail: fmt.Sprintf(format, args...)}
}

// walk counts the values of n, with aliases expanded.
func (c *yamlCheck) walk(n *yaml.Node, depth int) (int, *fault) {
	if depth > maxDepth+1 { // the document itself is a node
		return 0, c.refuse(n, codeTooLarge, "Objects and lists are nested more than %d levels deep; no kind needs that.", maxDepth)
	}
	if n.Kind == yaml.AliasNode {
		return c.alias(n, depth)
	}
	size := 1
	seen := make(map[string]int)
	for i, child := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 && child.Kind == yaml.ScalarNode {
			if line, twice := seen[child.Value]; twice {
				return 0, c.refuse(child, codeDuplicateName, "The name %s appears twice in one object, so one of the two would be lost. Remove or rename one. The first is at %s:%d.", strconv.Quote(child.Value), c.text.name, line)
			}
			seen[child.Value] = child.Line
		}
		below, f := c.walk(child, depth+1)
		if f != nil {
			return 0, f
		}
		size += below
	}
	return size, nil
}

// alias counts the values that an alias stands for, once per anchor: an exponential expansion is counted in linear time.
func (c *yamlCheck) alias(n *yaml.Node, depth int) (int, *fault) {
	size, counted := c.unfolded[n.Alias]
	if !counted {
		c.unfolded[n.Alias] = -1
		var f *fault
		if size, f = c.walk(n.Alias, depth); f != nil {
			return 0, f
		}
		c.unfolded[n.Alias] = size
	}
	if size < 0 {
		return 0, c.refuse(n, codeSyntax, "The anchor %s contains itself.", strconv.Quote(n.Value))
	}
	if c.aliases += size; c.aliases > maxAliasValues {
		return 0, c.refuse(n, codeTooLarge, "The aliases expand to more than %d values. Write the document without them.", maxAliasValues)
	}
	return size, nil
}
