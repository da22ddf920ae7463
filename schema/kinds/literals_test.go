package kinds

import (
	"cmp"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unsafe"
)

// A literals writes plain data as Go source. What has its own name, and what several pointers refer to, is a variable.
type literals struct {
	pointers map[unsafe.Pointer]int    // number of pointers to a thing
	names    map[unsafe.Pointer]string // of the variables
	vars     map[string]string         // their values, by name
}

// goVars returns the values of a variable with the value that p points to, and of all variables that it needs, as Go source.
func goVars(name string, p any) map[string]string {
	l := &literals{pointers: make(map[unsafe.Pointer]int), names: make(map[unsafe.Pointer]string), vars: make(map[string]string)}
	v := reflect.ValueOf(p).Elem()
	walk(v, func(p reflect.Value) bool {
		l.pointers[p.UnsafePointer()]++
		return l.pointers[p.UnsafePointer()] == 1
	})
	l.vars[name] = l.text(v, false)
	return l.vars
}

// madeLater reports whether values of a type contain what is created on first use.
func madeLater(t reflect.Type) bool {
	return t == reflect.TypeFor[*regexp.Regexp]() || t.PkgPath() == "sync"
}

// walk calls visit for every pointer in v, and continues below those for which it returns true.
func walk(v reflect.Value, visit func(p reflect.Value) bool) {
	switch v.Kind() {
	case reflect.Pointer:
		if visit(v) {
			walk(v.Elem(), visit)
		}
	case reflect.Interface:
		walk(v.Elem(), visit)
	case reflect.Slice:
		for i := range v.Len() {
			walk(v.Index(i), visit)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if !madeLater(v.Field(i).Type()) && !v.Field(i).IsZero() {
				walk(v.Field(i), visit)
			}
		}
	}
}

// text returns an expression. In a slice, which determines their type, elements are bare.
func (l *literals) text(v reflect.Value, bare bool) string {
	typ := strings.NewReplacer("kinds.", "", "interface {}", "any").Replace(v.Type().String())
	switch v.Kind() {
	case reflect.Interface:
		if e := v.Elem(); e.Kind() == reflect.Int64 || e.Kind() == reflect.Float64 {
			return fmt.Sprintf("%s(%s)", e.Type(), l.text(e, false))
		} else if e.IsValid() {
			return l.text(e, false)
		}
		return "nil"
	case reflect.Pointer:
		if name := l.variable(v); name != "" {
			return "&" + name
		} else if bare {
			return l.text(v.Elem(), true)
		}
		return "&" + l.text(v.Elem(), false)
	case reflect.Struct:
		var fields []string
		for i := range v.NumField() {
			if f := v.Type().Field(i); !madeLater(f.Type) && !v.Field(i).IsZero() {
				fields = append(fields, f.Name+": "+l.text(v.Field(i), false))
			}
		}
		if bare {
			typ = ""
		}
		return typ + "{" + strings.Join(fields, ", ") + "}"
	case reflect.Slice:
		var elems []string
		for i := range v.Len() {
			elems = append(elems, l.text(v.Index(i), true))
		}
		if k := v.Type().Elem().Kind(); k == reflect.Struct || k == reflect.Pointer {
			return typ + "{\n" + strings.Join(elems, ",\n") + ",\n}"
		}
		return typ + "{" + strings.Join(elems, ", ") + "}"
	case reflect.Map:
		var elems []string
		for _, key := range v.MapKeys() {
			elems = append(elems, l.text(key, false)+": "+l.text(v.MapIndex(key), false))
		}
		slices.Sort(elems)
		return typ + "{" + strings.Join(elems, ", ") + "}"
	case reflect.String:
		if s := v.String(); strings.ContainsAny(s, `\"`) && strconv.CanBackquote(s) {
			return "`" + s + "`"
		}
		return strconv.Quote(v.String())
	case reflect.Uint8:
		return typesText(types(v.Uint()))
	case reflect.Bool, reflect.Int, reflect.Int64, reflect.Float64:
		return fmt.Sprint(v)
	}
	panic("no source for a " + typ)
}

func typesText(t types) string {
	if t == anything {
		return "anything"
	}
	var all []string
	for i, name := range []string{"isNull", "isBool", "isInt", "isFloat", "isString", "isList", "isObject"} {
		if t&(1<<i) != 0 {
			all = append(all, name)
		}
	}
	return cmp.Or(strings.Join(all, " | "), "0")
}

// variable returns the name of the variable that a pointer points to, "" when what it points to is written in place.
func (l *literals) variable(p reflect.Value) string {
	if name, ok := l.names[p.UnsafePointer()]; ok {
		return name
	}
	typ := p.Type().Elem()
	own := ""
	for _, field := range []string{"name", "Name"} {
		if f := p.Elem().FieldByName(field); f.Kind() == reflect.String {
			own = f.String()
		}
	}
	alone := typ == reflect.TypeFor[kind]() || typ == reflect.TypeFor[check]() && own != ""
	if !alone && l.pointers[p.UnsafePointer()] < 2 {
		return ""
	}
	name := typ.Name()
	for _, word := range strings.FieldsFunc(own, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		name += strings.ToUpper(word[:1]) + word[1:]
	}
	for first, n := name, 2; l.vars[name] != ""; n++ {
		name = first + strconv.Itoa(n)
	}
	l.names[p.UnsafePointer()] = name
	l.vars[name] = "…" // taken
	l.vars[name] = l.text(p.Elem(), false)
	return name
}
