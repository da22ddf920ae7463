package nearest

import "testing"

func TestName(t *testing.T) {
	names := []string{"plan", "apply", "parallelism", "target"}
	for word, want := range map[string]string{
		"plna": "plan", "aply": "apply", "parralelism": "parallelism", "TARGET": "target", "x": "", "validate": "", "": "",
	} {
		if got, _ := Name(word, names); got != want {
			t.Errorf("Name(%q) = %q, want %q", word, got, want)
		}
	}
}
