package command

import (
	"errors"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
	"converge.dev/converge/schema/load"
)

// Errors in a part of a document are reported for the whole: nothing is planned from it.
func TestPartThatDoesNotPass(t *testing.T) {
	s, err := kinds.New()
	if err != nil {
		t.Fatal(err)
	}
	o, err := load.NewOutline(s, []byte(`{"apiVersion": "converge.dev/v1", "site": {"name": "fra1", "id": "5a2f0a4e-8d1f-4f0e-9b62-0f3f1b2c3d4e"},
		"carbide": {"tenant": {"acme": {}}, "vpc": {"good": {"tenant": "acme"}, "wrong": {"tenant": "acme", "nonsense": 1}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	r := &revised{Outline: o, doc: &schema.Document{Site: schema.Site{Serial: 7}, Digest: "d"}}
	for name, passes := range map[string]bool{"good": true, "wrong": false} {
		doc, err := r.Read(t.Context(), []schema.Ref{{Scope: "site", Kind: "carbide.vpc", Name: name}})
		whole := (*engine.WholeError)(nil)
		if errors.As(err, &whole) == passes || passes && (len(doc.Resources) != 2 || doc.Site.Serial != 7 || doc.Digest != "d") {
			t.Errorf("%s: %+v, %v", name, doc, err)
		}
	}
}
