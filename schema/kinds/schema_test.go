package kinds

import (
	"encoding/json"
	"sync"
	"testing"

	"converge.dev/converge/schema"
)

var shared = sync.OnceValues(New)

// newSchema returns the schema of the embedded module, compiled once for all tests.
func newSchema(t testing.TB) *Schema {
	t.Helper()
	s, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func kindJSON(t *testing.T, k *schema.Kind) string {
	t.Helper()
	b, err := json.MarshalIndent(k, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
