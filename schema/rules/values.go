package rules

// The functions ...Of read a field of a spec, or a value, as one type; they return zero for a value that is absent or
// of another type.

func textOf(m map[string]any, name string) string {
	s, _ := m[name].(string)
	return s
}

func intOf(m map[string]any, name string) int64 {
	n, _ := m[name].(int64)
	return n
}

func boolOf(m map[string]any, name string) bool {
	b, _ := m[name].(bool)
	return b
}

func objectOf(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

func listOf(m map[string]any, name string) []any {
	l, _ := m[name].([]any)
	return l
}
