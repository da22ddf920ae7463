package command

import (
	"context"
	"errors"
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
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
	"converge.dev/converge/schema/load"
)

func (a *app) importCommand() *cobra.Command {
	var discover bool
	var o survey.Choice
	var out string
	c := &cobra.Command{
		Use:   "import -discover [DOC...]",
		Short: "Write existing objects as a document",
		Long: `Observe everything the configured providers expose, and write it as a document in CUE:
objects that converge created appear under their names, all others with the lifecycle
that adopts them. Nothing is changed. Copy the parts you want to manage into the site's
document; the plan then shows exactly what would change. Unmanaged machines on which
nothing runs are written with their fields as comments, and stay unmanaged until you set
one. Fields that no document sets are also written as comments, with the values the
remote system filled in; a document in JSON has no comments, and omits them.

Objects that others manage are written as external: true if anything written refers to
them: objects created by another site, those that the site's document declares external,
and those you name with -external. They are never created, changed or removed.

With -out=DIR there is one file per kind. Left out, and listed with the reason, is what no
document can describe, such as the site's own networks; what breaks a rule, such as two
machines with one MAC address; what goes with something else, such as the port of a
running machine; and what has failed or is not ready. Secrets are never written: where
one is set, the document names an environment variable for you to fill in.

The site and its policy are those of DOC, or of the newest document in the store; a new
site gets a new id, and a policy in a comment.`,
		Example: `  converge import -discover
  converge import -discover -kind=carbide.vpc -kind='carbide.network_*'
  converge import -discover -kind=carbide.vpc -external='site/carbide.tenant/*'
  converge import -discover -out=site`,
	}
	c.Flags().BoolVar(&discover, "discover", false, "discover all existing objects")
	c.Flags().StringArrayVar(&o.Kinds, "kind", nil, "write only this `kind` and what it refers to, with * as wildcard; may be repeated")
	c.Flags().StringArrayVar(&o.External, "external", nil, "write resources whose refs match this `pattern` as external: managed by others; may be repeated")
	c.Flags().StringVar(&out, "out", "", "write files to this `dir`ectory, created if needed")
	c.RunE = func(c *cobra.Command, args []string) error {
		if !discover {
			return &view.Problem{
				What: "import needs -discover",
				Fix:  "To adopt a single object, declare its resource with lifecycle: {adopt: \"match\"}, or with lifecycle: {id: \"…\"} if its name is not enough.",
			}
		}
		ctx := c.Context()
		if err := a.checkKinds(o.Kinds); err != nil {
			return err
		}
		s, of, err := a.whose(ctx, args, pretend) // a new site may begin with what exists; nothing is stored
		if problem := (*view.Problem)(nil); errors.Is(err, errNoSite) && errors.As(err, &problem) {
			problem.Fix = "Name the new site: converge import -discover -site=NAME. Or name its document: converge import -discover site.cue."
		}
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
			a.view.Note("The site has no document yet. Its new id " + of.Site.ID + " is in the written document: keep it.")
		}
		found, err := s.survey(ctx, of.Site)
		if err != nil {
			return err
		}
		sch, err := a.schema()
		if err != nil {
			return err
		}
		written, left, wrong, err := document(ctx, sch, found, o, of.Head)
		if err != nil {
			return err
		}
		if err := a.writeFinds(of.Head, written, out); err != nil {
			return err
		}
		unknown := found.Unknown()
		a.say(view.LeftoversText(left, unknown, wrong))
		if len(unknown) > 0 {
			return outcome(exitUnknown)
		}
		return nil
	}
	return c
}

// document returns the resources of a document of what was found, and what was left out of it. What somebody made by hand may break a
// rule, alone or together with something else. It is left out too, so that one odd machine does not make the document of a node
// invalid. What is managed already stays, because without it the next apply would remove it: then what is wrong is returned.
func document(ctx context.Context, sch *kinds.Schema, found *survey.Survey, o survey.Choice, head load.Head) ([]load.Written, []survey.Leftover, load.Diagnostics, error) {
	broken := map[schema.Ref]string{}
	fits := func(ref schema.Ref, spec schema.Object) error {
		if why, ok := broken[ref]; ok && spec["external"] == nil {
			return errors.New(why)
		}
		return sch.Fits(ref, spec)
	}
	for {
		finds, left, err := found.Resources(sch.Kinds(), o, fits)
		if err != nil {
			return nil, nil, nil, err
		}
		written := asWritten(finds)
		_, wrong := load.Document(ctx, sch, load.Options{}, load.Source{Name: "found.json", Data: load.WriteJSON(head, written)})
		known := len(broken)
		for _, d := range wrong {
			f := at(finds, d.Path)
			if d.Severity == load.Error && f != nil && !f.Managed && f.External == nil && broken[f.Ref] == "" {
				broken[f.Ref] = d.Detail
			}
		}
		if len(broken) == known {
			return written, left, wrong, nil
		}
	}
}

// at returns the find that a path in the document leads into; nil when it leads into none.
func at(finds []survey.Discovered, path string) (found *survey.Discovered) {
	for i := range finds {
		ref := finds[i].Ref.Path() // names may have dots
		if (path == ref || strings.HasPrefix(path, ref+".")) && (found == nil || len(ref) > len(found.Ref.Path())) {
			found = &finds[i]
		}
	}
	return found
}

// checkKinds refuses patterns that match no kind.
func (a *app) checkKinds(patterns []string) error {
	sch, err := a.schema()
	if err != nil {
		return err
	}
	names := sch.Kinds().Names()
	for _, p := range patterns {
		if !slices.ContainsFunc(names, func(name string) bool { return matches([]string{p}, name) }) {
			return &view.Problem{What: fmt.Sprintf("-kind=%s matches no kind", p), Fix: trimmed(nearest.DidYouMeanKind(p, names), "See: converge schema")}
		}
	}
	return nil
}

// matches reports whether a name matches any of the patterns; all names do when there are none.
func matches(patterns []string, name string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool { ok, err := path.Match(p, name); return ok && err == nil })
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
	if err == nil && m == refuse {
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
	needs, err := s.offers(ctx)
	if err != nil {
		return nil, err
	}
	return e.Survey(ctx, site, needs, nil)
}

// offers lists every provider that the configuration reaches.
func (s *session) offers(ctx context.Context) ([]providers.Need, error) {
	if _, err := s.schema(); err != nil {
		return nil, err
	}
	needs, err := s.configured()
	if err == nil && s.far != nil && s.conf.Fake == nil {
		var more []providers.Need
		if more, err = s.far.offers(ctx); err != nil {
			return nil, err
		}
		_, more = s.split(more)
		needs = append(needs, more...)
	}
	if err == nil && len(needs) == 0 {
		return nil, &view.Problem{What: "no provider is configured", Where: s.whereConfig()}
	}
	if err != nil {
		return nil, &view.Problem{What: "the providers cannot be opened", Where: err.Error(), Fix: s.whereConfig(), Err: err}
	}
	return needs, nil
}

// asWritten returns what was found with the comments that a document has on it.
func asWritten(finds []survey.Discovered) []load.Written {
	written := make([]load.Written, len(finds))
	for i, f := range finds {
		written[i] = load.Written{Resource: f.Resource, Depends: f.Depends, Aside: f.Seen}
		var lines []string
		switch {
		case f.External != nil && f.Managed:
			lines = append(lines, "Managed until now. As external it is forgotten, and the object stays.")
		case f.External != nil && f.Why != "":
			lines = append(lines, "Left out, and referred to: "+f.Why)
		case f.External != nil:
		case f.Managed && len(f.Seen) > 0:
			lines = append(lines, "The fields in comments are not set by the document; these are the observed values. Uncomment those that converge should keep this way.")
		case f.Managed:
		case len(f.Seen) > 0:
			lines = append(lines, "Not managed yet. Uncomment what converge should keep as it is.")
		default:
			lines = append(lines, "Exists as "+f.ID+"; not managed yet.")
		}
		if len(f.Lifecycle.Ignore) > 0 && !f.Managed {
			lines = append(lines, "Ignored, because it changes without converge: "+strings.Join(f.Lifecycle.Ignore, ", ")+".")
		}
		for _, path := range f.Secrets {
			lines = append(lines, "Fill in where the secret "+path+" can be found.")
		}
		written[i].Comment = strings.Join(lines, "\n")
	}
	return written
}

// writeFinds prints the document, or writes a file for each kind.
func (a *app) writeFinds(head load.Head, written []load.Written, dir string) error {
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
			return &view.Problem{What: path + " already exists", Fix: "Choose another directory, or remove the file."}
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
	a.say(fmt.Sprintf("Wrote %s to %s\n", view.Count(len(written), "resource"), strings.Join(paths, ", ")))
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
