package command

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine/survey"
	"converge.dev/converge/internal/nearest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/all"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/load"
)

func (a *app) importCommand() *cobra.Command {
	var discover bool
	var o survey.Choice
	var out string
	c := &cobra.Command{
		Use:   "import -discover [DOC...]",
		Short: "Write what exists as a document",
		Long: `Look at everything that the configured providers show, and write it as a document in
CUE: what converge made under its names, and what it did not make with the lifecycle
that takes it over. Nothing is changed. Put the parts that you want to manage into the
site's document; the plan then says precisely what would change. Machines that nobody
manages and nothing runs on are there with what they have as a comment, and stay
nobody's until you state it. So are fields that no document states, with what the
far side filled in; a document in JSON has no comments, and leaves them out.

What others look after, and what is written refers to, is there as external: true: what
another site made, what the site's document declares so, and what you name with
-external. It is never made, changed or removed.

With -out=DIR there is one file for each kind. What no document can describe, such as
the site's own networks, is listed and left out. Secrets are never written: where one
is set, the document names an environment variable to be filled.

The site and its policy are those of DOC, or of the newest document in the store; a new
site gets a new id, and a policy in a comment.`,
		Example: `  converge import -discover
  converge import -discover -kind=carbide.vpc -kind='carbide.network_*'
  converge import -discover -kind=carbide.vpc -external='site/carbide.tenant/*'
  converge import -discover -out=site`,
	}
	c.Flags().BoolVar(&discover, "discover", false, "find all that exists")
	c.Flags().StringArrayVar(&o.Kinds, "kind", nil, "only this `kind` and what it refers to, with * for any text; may be repeated")
	c.Flags().StringArrayVar(&o.External, "external", nil, "write resources matching this `pattern` of refs as external: others look after them; may be repeated")
	c.Flags().StringVar(&out, "out", "", "write files into this `dir`ectory, which is made")
	c.RunE = func(c *cobra.Command, args []string) error {
		if !discover {
			return &view.Problem{
				What: "import needs -discover",
				Fix:  "A single thing is taken over by its resource: lifecycle: {adopt: \"match\"}, or lifecycle: {id: \"…\"} where its name is not enough.",
			}
		}
		ctx := c.Context()
		if err := a.checkKinds(o.Kinds); err != nil {
			return err
		}
		s, of, err := a.whose(ctx, args, pretend) // a new site may begin with what exists; nothing is stored
		if err != nil {
			return err
		}
		s.looks = true
		switch {
		case len(args) > 0:
			s.headline(named(args))
		case of.Site.Serial > 0:
			s.headline(inStore(of.Site.Serial))
		default:
			s.headline("no document yet")
		}
		if of.Site.ID == "" {
			of.Site.ID = uuid.NewString()
			a.view.Note("The site has no document yet. The new id " + of.Site.ID + " stands in what is written: keep it.")
		}
		found, err := s.survey(ctx, of.Site)
		if err != nil {
			return err
		}
		sch, err := a.schema()
		if err != nil {
			return err
		}
		finds, left, err := found.Resources(sch.Kinds(), o, sch.Fits)
		if err != nil {
			return err
		}
		if err := a.writeFinds(of.Head, finds, out); err != nil {
			return err
		}
		unknown := found.Unknown()
		a.say(view.LeftoversText(left, unknown))
		if len(unknown) > 0 {
			return outcome(exitUnknown)
		}
		return nil
	}
	return c
}

// checkKinds refuses patterns that match no kind.
func (a *app) checkKinds(patterns []string) error {
	sch, err := a.schema()
	if err != nil {
		return err
	}
	names := sch.Kinds().Names()
	for _, p := range patterns {
		if !slices.ContainsFunc(names, func(name string) bool { ok, err := path.Match(p, name); return ok && err == nil }) {
			return &view.Problem{What: fmt.Sprintf("-kind=%s matches no kind", p), Fix: trimmed(nearest.DidYouMeanKind(p, names), "See: converge schema")}
		}
	}
	return nil
}

// An owner is the site that a command observes, according to the named documents, or else to the newest one in the store.
type owner struct {
	load.Head
	declared []schema.Resource // of the named documents
}

// whose opens the store of a site, and returns which site that is.
func (a *app) whose(ctx context.Context, documents []string, m missing) (s *session, of owner, err error) {
	if len(documents) > 0 {
		doc, err := a.load(ctx, documents)
		if err != nil {
			return nil, of, err
		}
		if s, err = a.openOr(ctx, doc, documents, m); err != nil {
			return nil, of, err
		}
		of.declared = doc.Resources
		of.Head, err = headOf(doc.Site.Serial, doc.JSON)
		return s, of, err
	}
	s, err = a.openOr(ctx, nil, nil, m)
	if err == nil && m != pretend {
		err = s.known(ctx)
	}
	if err != nil {
		return nil, of, err
	}
	of.Head, err = s.head(ctx)
	return s, of, err
}

// survey observes everything that the configuration reaches.
func (s *session) survey(ctx context.Context, site schema.Site) (*survey.Survey, error) {
	e, err := s.engine()
	if err != nil {
		return nil, err
	}
	needs, err := s.offers()
	if err != nil {
		return nil, err
	}
	return e.Survey(ctx, site, needs)
}

// offers lists every provider that the configuration reaches.
func (s *session) offers() ([]providers.Need, error) {
	if _, err := s.schema(); err != nil {
		return nil, err
	}
	needs, err := all.New(all.Options{Config: s.conf.Config, Dir: s.conf.Dir(), Kinds: s.kinds}).Offers()
	if err == nil && len(needs) == 0 {
		return nil, &view.Problem{What: "no provider is configured", Where: s.whereConfig()}
	}
	if err != nil {
		return nil, &view.Problem{What: "the providers cannot be opened", Where: err.Error(), Fix: s.whereConfig(), Err: err}
	}
	return needs, nil
}

// writeFinds prints the document, or writes a file for each kind.
func (a *app) writeFinds(head load.Head, finds []survey.Discovered, dir string) error {
	written := make([]load.Written, len(finds))
	for i, f := range finds {
		written[i] = load.Written{Resource: f.Resource, Depends: f.Depends, Aside: f.Seen}
		var lines []string
		switch {
		case f.External != nil && f.Managed:
			lines = append(lines, "Managed until now. As external it is forgotten, and stays as it is.")
		case f.External != nil:
		case f.Managed && len(f.Seen) > 0:
			lines = append(lines, "The fields in comments are not stated; this is how they are. Uncomment what converge is to keep so.")
		case f.Managed:
		case len(f.Seen) > 0:
			lines = append(lines, "Nobody manages it yet. Uncomment what converge is to keep as it is.")
		default:
			lines = append(lines, "Exists as "+f.ID+"; nobody manages it yet.")
		}
		for _, path := range f.Secrets {
			lines = append(lines, "Fill in where the secret "+path+" is found.")
		}
		written[i].Comment = strings.Join(lines, "\n")
	}
	switch {
	case a.flags.json && dir == "":
		a.print(string(load.WriteJSON(head, written)) + "\n")
		return nil
	case dir == "":
		text, err := load.Write("", &head, written)
		a.print(string(text))
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	files := map[string][]load.Written{"site": nil}
	for _, w := range written {
		name := strings.ReplaceAll(w.Ref.Kind, ".", "_")
		if w.Ref.Scope != schema.ScopeSite {
			name = w.Ref.Scope + "_" + name
		}
		files[name] = append(files[name], w)
	}
	var paths []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(dir, name+".cue")
		if _, err := os.Lstat(path); err == nil { // checked before the first file is written
			return &view.Problem{What: path + " is there already", Fix: "Name another directory, or remove the file."}
		}
		paths = append(paths, path)
	}
	for name, resources := range files {
		var of *load.Head
		if name == "site" {
			of = &head
		}
		text, err := load.Write("site", of, resources)
		if err != nil {
			return err
		}
		if err := writeNew(filepath.Join(dir, name+".cue"), text); err != nil {
			return err
		}
	}
	a.say(fmt.Sprintf("Wrote %s into %s\n", view.Count(len(finds), "resource"), strings.Join(paths, ", ")))
	return nil
}

// writeNew writes a file, and never overwrites one.
func writeNew(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
