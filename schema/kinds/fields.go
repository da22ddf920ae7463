package kinds

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"

	"converge.dev/converge/schema"
)

// secretDefinition is the definition of the place of a secret: every field of this type is secret without an attribute.
const secretDefinition = "#Secret"

// fields describes the fields of a struct at path, sorted by name, except those to skip.
func (m *module) fields(v cue.Value, path string, skip []string) ([]schema.Field, error) {
	var fields []schema.Field
	var errs []error
	for sel, f := range fieldsOf(v) {
		if slices.Contains(skip, sel.Unquoted()) {
			continue
		}
		d, err := m.field(f, path+"."+sel.Unquoted())
		errs = append(errs, err)
		d.Name = sel.Unquoted()
		d.Required = sel.ConstraintType() == cue.RequiredConstraint
		def, ok := f.Default()
		constant := f.Kind()&(cue.BoolKind|cue.NumberKind|cue.StringKind) != 0 // which fills itself in
		if (ok || constant) && sel.ConstraintType() == 0 && def.Validate(cue.Concrete(true)) == nil {
			if d.Default, err = decodeCUE(def); err != nil {
				errs = append(errs, fmt.Errorf("%s: %s: %w", file(f), path, err))
			}
		}
		if d.Computed && sel.ConstraintType() != cue.OptionalConstraint {
			errs = append(errs, fmt.Errorf("%s: %s.%s: a computed field must be optional: write %s?", file(f), path, d.Name, d.Name))
		}
		fields = append(fields, d)
	}
	return fields, errors.Join(errs...)
}

// anyFields describes the fields of a struct, or of several alternative structs.
func (m *module) anyFields(v cue.Value, path string) ([]schema.Field, error) {
	op, args := v.Expr()
	if op != cue.OrOp {
		return m.fields(v, path, nil)
	}
	var all []schema.Field
	var errs []error
	for _, a := range args {
		fields, err := m.fields(m.dereference(a), path, nil)
		errs = append(errs, err)
		for _, f := range fields {
			f.Required, f.Default = false, nil // that depends on the alternative
			if !slices.ContainsFunc(all, func(g schema.Field) bool { return g.Name == f.Name }) {
				all = append(all, f)
			}
		}
	}
	slices.SortFunc(all, func(a, b schema.Field) int { return strings.Compare(a.Name, b.Name) })
	return all, errors.Join(errs...)
}

// field describes one value: a field, an element, or the value of a free key.
func (m *module) field(v cue.Value, path string) (schema.Field, error) {
	f := schema.Field{Doc: doc(v), Constraint: constraint(v)}
	place := false // of a secret
	if name, ok := m.named(v); ok {
		place = name == secretDefinition
		f.Secret = place
		if f.Doc == "" {
			f.Doc = doc(m.definition(name))
		}
	}
	var errs []error
	var elem cue.Value
	k := kindOf(v)
	if k != cue.NullKind {
		k &^= cue.NullKind
	}
	switch k {
	case cue.StringKind:
		f.Type = schema.String
	case cue.IntKind:
		f.Type = schema.Int
	case cue.NumberKind:
		f.Type = schema.Number
	case cue.BoolKind:
		f.Type = schema.Bool
	case cue.StructKind:
		f.Type = schema.Struct
		it, err := v.Fields(cue.Optional(true), cue.Patterns(true))
		for err == nil && it.Next() {
			if it.Selector().ConstraintType() == cue.PatternConstraint {
				f.Type, elem = schema.Map, it.Value()
			}
		}
		if f.Type == schema.Struct {
			f.Fields, err = m.anyFields(v, path)
			errs = append(errs, err)
		}
	case cue.ListKind:
		f.Type = schema.List
		if _, elem = elements(v); !elem.Exists() {
			f.Type = schema.Any
		}
	case cue.FloatKind:
		errs = append(errs, fmt.Errorf("%s: %s: a JSON number is not always a float: use number", file(v), path))
	case cue.BottomKind:
		errs = append(errs, fmt.Errorf("%s: %s: no value is allowed: %w", file(v), path, explainCUE(v.Validate())))
	default:
		f.Type = schema.Any
	}
	if f.Type == schema.List || f.Type == schema.Map {
		e, err := m.field(elem, path+"[]")
		f.Elem = &e
		errs = append(errs, err)
	}
	for _, a := range v.Attributes(cue.FieldAttr) {
		if err := annotate(&f, a); err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: @%s(%s): %w", file(v), path, a.Name(), a.Contents(), err))
		}
	}
	if f.Secret && !place && !f.Computed {
		errs = append(errs, fmt.Errorf("%s: %s: @secret(): a document would contain the secret itself, unsealed: declare it as %s, which needs no attribute", file(v), path, secretDefinition))
	}
	return f, errors.Join(errs...)
}

// constraint returns the source of the constraint of v; empty when v is a struct, which its fields describe better.
func constraint(v cue.Value) string {
	x := expression(v)
	if x == nil {
		return ""
	}
	hasStruct := false
	ast.Walk(x, func(n ast.Node) bool {
		_, ok := n.(*ast.StructLit)
		hasStruct = hasStruct || ok
		return !hasStruct
	}, nil)
	if hasStruct {
		return ""
	}
	return text(v)
}

// annotate sets on a field what one of its attributes says.
func annotate(f *schema.Field, a cue.Attribute) error {
	args := make([]string, a.NumArgs())
	for i := range args {
		args[i] = strings.TrimSpace(a.RawArg(i))
	}
	if len(args) == 1 && args[0] == "" {
		args = nil
	}
	want := 0
	switch a.Name() {
	case "choose":
		return choose(f, args)
	case "ref", "key", "disruption":
		want = 1
	case "immutable", "computed", "secret", "set", "kept", "grows", "planning":
	default:
		return fmt.Errorf("unknown attribute%s", didYouMean(a.Name(), attributes))
	}
	if len(args) != want {
		return fmt.Errorf("want %d arguments, have %d", want, len(args))
	}
	switch a.Name() {
	case "immutable":
		f.Immutable = true
	case "computed":
		f.Computed = true
	case "secret":
		f.Secret = true
	case "planning":
		f.Planning = true
	case "kept":
		f.Kept = true
	case "grows":
		if f.Type != schema.Int {
			return errors.New("want an integer")
		}
		f.Grows = true
	case "disruption":
		f.Disruption = args[0]
	case "set":
		if f.Type != schema.List || f.Key != "" {
			return errors.New("want a list without @key")
		}
		f.Set = true
	case "key":
		if f.Type != schema.List || f.Set || f.Elem.Type != schema.Struct {
			return errors.New("want a list of structs without @set")
		}
		if key := f.Elem.Field(args[0]); key == nil {
			return fmt.Errorf("the elements have no field %s", args[0])
		} else if !key.Required {
			return fmt.Errorf("the field %s of the elements is not required", args[0])
		}
		f.Key = args[0]
	case "ref":
		for f.Elem != nil { // the attribute of a list applies to its elements
			f = f.Elem
		}
		if f.Type != schema.String || f.Ref != "" {
			return errors.New("want one @ref on a string, or on a list or map of strings")
		}
		f.Ref = args[0]
	}
	return nil
}

// choose sets how the planner fills in a field: @choose(KIND, same=FIELD, labels=PATH, unless=FIELD, spread=FIELD).
func choose(f *schema.Field, args []string) error {
	if f.Type != schema.String || len(args) == 0 {
		return errors.New("want a kind, on a string")
	}
	f.Choose = &schema.Choice{Kind: args[0]}
	for _, arg := range args[1:] {
		key, value, _ := strings.Cut(arg, "=")
		switch {
		case value == "":
			return fmt.Errorf("want %s=FIELD", key)
		case key == "same":
			f.Choose.Same = append(f.Choose.Same, value)
		case key == "labels":
			f.Choose.Labels = value
		case key == "unless":
			f.Choose.Unless = append(f.Choose.Unless, value)
		case key == "spread":
			f.Choose.Spread = value
		default:
			return fmt.Errorf("unknown option %s", key)
		}
	}
	return nil
}

var attributes = []string{"ref", "immutable", "computed", "secret", "set", "key", "kept", "grows", "disruption", "planning", "choose"}
