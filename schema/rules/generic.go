package rules

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"converge.dev/converge/internal/nearest"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/internal/message"
)

// genericRules apply to all kinds. They identify fields by what the schema says about them.
var genericRules = []Rule{
	{"CV1101", "dangling-reference", "Referenced resource does not exist", "A reference must name a resource of the document", checks{each{nil, checkReferences}}},
	{"CV1102", "depends-on", "Dependency is invalid", "An entry of depends_on must be the ref of a resource of the document", checks{each{nil, checkDependsOn}}},
	{"CV1103", "reference-cycle", "References form a cycle", "References must not form a cycle", checks{cycles{}}},
	{"CV1104", "duplicate-key", "Duplicate key", "The elements of a list must have different keys", checks{each{nil, checkKeys}}},
	{"CV1105", "ignore-path", "Ignored path does not exist", "A path in lifecycle.ignore must be a field of the kind", checks{each{nil, checkIgnore}}},
	{"CV1106", "timeout-range", "Timeout is out of range", "A timeout must be positive and at most a week", checks{each{nil, checkTimeouts}}},
	{"CV1107", "max-destroy", "Deletion limit is invalid", "policy.max_destroy must be a number or a percentage of resources", checks{together{nil, checkMaxDestroy}}},
	{"CV1108", "canonical-prefix", "Network has host bits", "A network must not have host bits", checks{each{nil, checkPrefixes}}},
	{"CV1109", "duplicate-mac", "MAC address is used twice", "A MAC address must be used only once", checks{sharedMACs}},
	{"CV1110", "reserved-key", "Key is reserved", "No label or note may use the key of converge's ownership mark", checks{each{nil, checkMarks}}},
}

func checkReferences(st *Site, r *Resource, p *reporter) {
	if len(r.missing) == 0 {
		return
	}
	eachValue(r.Kind.Fields, r.Spec, func(path []string, f *schema.Field, v any) {
		name, ok := v.(string)
		if !ok || f.Ref == "" || name == "" {
			return
		}
		ref := st.kinds.Target(r.Ref.Scope, f.Ref, name)
		switch {
		case st.index[ref] != nil, outside(ref):
		case p.full():
			p.drop(false)
		default:
			p.report(r, path, "There is no %s named %q on %s.%s", f.Ref, name, scopeNoun(ref.Scope), st.suggest(ref))
		}
	})
}

// suggest returns what to do about a ref that leads nowhere.
func (st *Site) suggest(ref schema.Ref) string {
	var names []string
	for _, r := range st.byKind[ref.Kind] {
		// Of a hundred thousand names only those of about the same length and the same start or end are worth a closer look.
		n := r.Ref.Name
		if d := len(n) - len(ref.Name); n != "" && r.Ref.Scope == ref.Scope && -3 < d && d < 3 && (n[0] == ref.Name[0] || n[len(n)-1] == ref.Name[len(ref.Name)-1]) {
			names = append(names, n)
		}
	}
	if s, ok := nearest.Name(ref.Name, names); ok {
		return fmt.Sprintf(" Did you mean %q?", s)
	}
	return fmt.Sprintf(" Declare it at %s, or refer to a declared one.", message.Printable(ref.Path()))
}

func checkDependsOn(st *Site, r *Resource, p *reporter) {
	if len(r.missing) == 0 {
		return
	}
	for i, text := range r.depends {
		path := []string{"depends_on", strconv.Itoa(i)}
		ref, err := schema.ParseRef(text)
		kind := st.kinds[ref.Kind]
		switch {
		case err != nil:
			p.report(r, path, "%q is not a ref: write SCOPE/KIND/NAME, for example site/carbide.vpc/prod.", text)
		case kind == nil:
			p.report(r, path, "%s", message.Unknown("kind", ref.Kind, st.kinds.Names()))
		case kind.Node && ref.Scope == schema.ScopeSite:
			p.report(r, path, "The kind %s belongs to nodes: write NODE/%s/%s.", ref.Kind, ref.Kind, ref.Name)
		case !kind.Node && ref.Scope != schema.ScopeSite:
			p.report(r, path, "The kind %s belongs to the site: write site/%s/%s.", ref.Kind, ref.Kind, ref.Name)
		case st.index[ref] != nil:
		case p.full():
			p.drop(false)
		default:
			p.report(r, path, "There is no %s named %q on %s.%s", ref.Kind, ref.Name, scopeNoun(ref.Scope), st.suggest(ref))
		}
	}
}

func isKeyed(f *schema.Field) bool { return f.Key != "" }

func checkKeys(st *Site, r *Resource, p *reporter) {
	st.keyed.each(r, func(path []string, f *schema.Field, v any) {
		elements, _ := v.([]any)
		for i := 1; i < len(elements); i++ { // sorted by key
			key := objectOf(elements[i])[f.Key]
			if key == objectOf(elements[i-1])[f.Key] {
				p.report(r, append(slices.Clone(path), strconv.Itoa(i), f.Key), "Two elements have the %s %v, so they cannot be told apart. Give each its own.", f.Key, key)
			}
		}
	})
}

func checkIgnore(st *Site, r *Resource, p *reporter) {
	for i, text := range r.Lifecycle.Ignore {
		if why := vain(r.Kind.Spec(), strings.Split(text, ".")); why != "" {
			p.report(r, []string{"lifecycle", "ignore", strconv.Itoa(i)}, "Ignoring %s has no effect%s", message.Value(text), why)
		}
	}
}

// vain returns why it has no effect to ignore what names lead to below f, as the end of a sentence; empty when it has one.
func vain(f *schema.Field, names []string) string {
	for i, name := range names {
		switch f.Type {
		case schema.List:
			return fmt.Sprintf(": a list is compared and applied as a whole. Ignore %s instead.", message.Value(strings.Join(names[:i], ".")))
		case schema.Any:
			return ""
		}
		next := f.Under(name)
		if next == nil {
			return ". " + message.Unknown("field", name, fieldNames(f.Fields))
		}
		f = next
	}
	return ""
}

func fieldNames(fields []schema.Field) []string {
	var names []string
	for _, f := range fields {
		names = append(names, f.Name)
	}
	return names
}

// maxTimeout is the longest reasonable wait for one thing: cleaning a machine takes hours, nothing takes a week.
const maxTimeout = 7 * 24 * time.Hour

func checkTimeouts(st *Site, r *Resource, p *reporter) {
	for name, v := range sorted(r.waits) {
		d, err := time.ParseDuration(fmt.Sprint(v))
		if err != nil || d <= 0 || d > maxTimeout {
			p.report(r, []string{"timeouts", name}, "The timeout %v is not a positive duration of at most 168h. Omit it to use the kind's default.", v)
		}
	}
}

func checkMaxDestroy(st *Site, p *reporter) {
	text := st.maxDestroy
	number, share := strings.CutSuffix(text, "%")
	n, err := strconv.Atoi(number)
	if text == "" || err == nil && n >= 0 && (!share || n <= 100) {
		return
	}
	p.report(nil, []string{"policy", "max_destroy"}, "%s is neither a number of resources, such as \"3\", nor a percentage from \"0%%\" to \"100%%\".", message.Value(text))
}

// isPrefixField reports whether the field holds networks as ADDRESS/BITS: such fields have the same names in every provider.
func isPrefixField(f *schema.Field) bool {
	return f.Ref == "" && !f.Computed && (f.Name == "cidr" || f.Name == "prefix" || strings.HasSuffix(f.Name, "_prefix") || strings.HasSuffix(f.Name, "_prefixes"))
}

func checkPrefixes(st *Site, r *Resource, p *reporter) {
	st.networked.each(r, func(path []string, f *schema.Field, v any) {
		list, ok := v.([]any)
		if !ok {
			list = []any{v}
		}
		for i, e := range list {
			text, _ := e.(string)
			prefix, err := netip.ParsePrefix(text)
			if err != nil || prefix == prefix.Masked() && prefix.String() == text {
				continue
			}
			at := slices.Clone(path)
			if ok {
				at = append(at, strconv.Itoa(i))
			}
			p.report(r, at, "The network %s has host bits or is not in canonical form; write %s.", text, prefix.Masked())
		}
	})
}

// isMACField reports whether the field holds one or more hardware addresses that the document chooses.
func isMACField(f *schema.Field) bool {
	switch {
	case f.Computed:
		return false
	case f.Type == schema.List:
		return strings.HasSuffix(f.Name, "mac_addresses")
	}
	return f.Type == schema.String && (f.Name == "mac" || strings.HasSuffix(f.Name, "_mac") || strings.HasSuffix(f.Name, "mac_address"))
}

// sharedMACs reports a second use on one node, and warns of one on another. The address in a DHCP reservation is that of a guest.
var sharedMACs = &sharing{
	keys: func(st *Site, r *Resource, has func(k key, path ...string)) {
		mac := func(v any, path ...string) {
			mac, ok := v.(string)
			mac = strings.ToLower(mac)
			switch {
			case ok && r.Ref.Kind == libvirtDHCPHost:
				has(key{mac, r.Ref.Scope + "/" + r.Ref.Kind}, path...)
			case ok:
				has(key{mac, r.Ref.Scope}, path...)
				has(key{mac}, path...)
			}
		}
		st.macs.each(r, func(path []string, f *schema.Field, v any) {
			mac(v, path...)
			list, _ := v.([]any)
			for i, e := range list {
				mac(e, append(slices.Clone(path), strconv.Itoa(i))...)
			}
		})
	},
	check: func(st *Site, r *Resource, path []string, k key, shared []*Resource, n int, p *reporter) {
		switch {
		case n == 0:
		case k[1] != "": // on one node
			p.report(r, path, "The MAC address %s is already used by %s; frames for one would reach the other. Choose another.", k[0], shared[0].Ref)
		case shared[n-1].Ref.Scope != r.Ref.Scope: // the first of its node, because refs are in the order of scopes
			p.warn(r, path, "The MAC address %s is also used by %s. This works only if the two are never on the same network.", k[0], shared[0].Ref)
		}
	},
}

// markKey is the label or note in which converge writes the owner of a thing. A test keeps it equal to that of package
// providers, which this package cannot import.
const markKey = "converge.dev/mark"

// checkMarks keeps documents from setting the key that converge uses: the far side would refuse the duplicate key in the
// middle of a run, or a thing could pass for another site's.
func checkMarks(st *Site, r *Resource, p *reporter) {
	st.mapped.each(r, func(path []string, f *schema.Field, v any) {
		if _, ok := objectOf(v)[markKey]; ok {
			p.report(r, append(slices.Clone(path), markKey), "The key %s is reserved for converge's ownership mark. Choose another.", markKey)
		}
	})
}

func isMap(f *schema.Field) bool { return f.Type == schema.Map }
