package load

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReport(t *testing.T) {
	line := strings.Repeat("x", 300)
	text := newText("site.json", []byte("{\n\"a\": 1,\n"+line+"\n}"))
	at, snippet := text.mark(2, 8)
	far, cut := text.mark(11+200, 11+210)
	ds := Diagnostics{
		{Severity: Error, Code: "CV1001", Summary: "Unknown field", Detail: "There is no field.", Path: "a", Range: at, Snippet: snippet},
		{Severity: Warning, Code: "CV1109", Summary: "Twice", Range: far, Snippet: cut},
		{Severity: Error, Code: "CV1050", Summary: "More problems"},
	}
	got, err := json.MarshalIndent(NewReport(ds), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	want := `{
 "format_version": "1.0",
 "valid": false,
 "error_count": 2,
 "warning_count": 1,
 "diagnostics": [
  {
   "severity": "error",
   "code": "CV1001",
   "summary": "Unknown field",
   "detail": "There is no field.",
   "path": "a",
   "range": {
    "filename": "site.json",
    "start": {
     "line": 2,
     "column": 1,
     "byte": 2
    },
    "end": {
     "line": 2,
     "column": 7,
     "byte": 8
    }
   },
   "snippet": {
    "context": null,
    "code": "\"a\": 1,",
    "start_line": 2,
    "highlight_start_offset": 0,
    "highlight_end_offset": 6,
    "values": []
   }
  },
  {
   "severity": "warning",
   "code": "CV1109",
   "summary": "Twice",
   "detail": "",
   "range": {
    "filename": "site.json",
    "start": {
     "line": 3,
     "column": 202,
     "byte": 211
    },
    "end": {
     "line": 3,
     "column": 212,
     "byte": 221
    }
   },
   "snippet": {
    "context": null,
    "code": "…` + line[:99] + `",
    "start_line": 3,
    "highlight_start_offset": 3,
    "highlight_end_offset": 13,
    "values": []
   }
  },
  {
   "severity": "error",
   "code": "CV1050",
   "summary": "More problems",
   "detail": ""
  }
 ]
}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	none, err := json.Marshal(NewReport(nil))
	if err != nil || string(none) != `{"format_version":"1.0","valid":true,"error_count":0,"warning_count":0,"diagnostics":[]}` {
		t.Errorf("of nothing: %s %v", none, err)
	}
}
