package command

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"al.essio.dev/pkg/shellescape"
	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"converge.dev/converge/cmd/internal/config"
	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine/survey"
	"converge.dev/converge/providers/all"
	"converge.dev/converge/providers/carbide"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/load"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// documentName is the name of the document of a new workspace, ignoreName that of the file that keeps its store out of
// a repository.
const (
	documentName = "site.cue"
	ignoreName   = ".gitignore"
)

func (a *app) initCommand() *cobra.Command {
	var far carbide.Config
	c := &cobra.Command{
		Use:   "init [DIR]",
		Short: "Initialize a workspace",
		Long: `Write the initial files of a workspace to DIR, which is created if needed, or to the
current directory: converge.yaml, the document of a new site without resources, and a
.gitignore that excludes the store. The site gets the name given with -site, or else
that of the directory. Existing files are never overwritten.

With -carbide the service is observed first: the name it reports, its build, which
determines the generation of its API, and the number of objects of each kind; kinds
that this generation lacks are listed. If it does not answer, nothing is written.
Paths of certificate files are relative to the current directory.`,
		Example: `  converge init fra1
  converge init -carbide=carbide.example:1079 -tls-ca=ca.crt -tls-cert=tls.crt -tls-key=tls.key fra1`,
		Args: between(0, 1),
	}
	p := c.Flags()
	p.StringVar(&far.Address, "carbide", "", "the `address` of the site's Carbide service, HOST:PORT or unix:PATH")
	p.StringVar(&far.TLS.CA, "tls-ca", "", "`file` with the CA certificates to verify Carbide's certificate; default: the system's")
	p.StringVar(&far.TLS.Cert, "tls-cert", "", "`file` with the client certificate for Carbide")
	p.StringVar(&far.TLS.Key, "tls-key", "", "`file` with the client key for Carbide")
	p.StringVar((*string)(&far.TLS.Mode), "tls-mode", "", "TLS `mode`: off, server or mutual; default: mutual")
	p.StringVar(&far.TLS.ServerName, "tls-server-name", "", "the `name` in Carbide's certificate, if it differs from the address")
	p.BoolVar(&far.AllowInsecure, "allow-insecure", false, "connect to Carbide on another machine without TLS")
	_ = c.RegisterFlagCompletionFunc("tls-mode", cobra.FixedCompletions([]string{"off", "server", "mutual"}, cobra.ShellCompDirectiveNoFileComp))
	c.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		if far.Address == "" && far != (carbide.Config{}) {
			return &view.Problem{What: "the TLS flags require -carbide", Fix: "Add the address of the service: -carbide=HOST:PORT"}
		}
		dir := "."
		if len(args) == 1 {
			dir = args[0]
		}
		return a.begun(c.Context(), dir, far)
	}
	return c
}

// begun creates a workspace.
func (a *app) begun(ctx context.Context, dir string, far carbide.Config) error {
	site, err := a.newSite(dir)
	if err != nil {
		return err
	}
	if err := a.noneThere(dir); err != nil {
		return err
	}
	conf := &config.File{Site: site.Name, Path: filepath.Join(dir, config.Name)}
	var found *survey.Survey
	if far.Address != "" {
		for _, file := range []*string{&far.TLS.CA, &far.TLS.Cert, &far.TLS.Key} {
			if *file, err = fromDir(dir, *file); err != nil {
				return err
			}
		}
		conf.Carbide = &far
		if found, err = a.lookAt(ctx, conf, site); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	texts, err := beginnings(site, conf.Config)
	if err != nil {
		return err
	}
	wrote := []string{}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		path := filepath.Join(dir, name)
		if _, err := os.Lstat(path); name == ignoreName && err == nil { // of an existing repository
			a.view.Note(path + " already exists and was left unchanged: make sure that it contains " + strings.TrimSpace(texts[name]) + ", which is the store.")
			continue
		}
		if err := writeNew(path, []byte(texts[name])); err != nil {
			return err
		}
		wrote = append(wrote, path)
	}
	return a.sayBegun(dir, site, wrote, found)
}

// newSite returns a new site, with the requested name or that of the directory.
func (a *app) newSite(dir string) (schema.Site, error) {
	sch, err := a.schema()
	if err != nil {
		return schema.Site{}, err
	}
	site, from := schema.Site{Name: a.flags.site, ID: uuid.NewString()}, ""
	if site.Name == "" {
		whole, err := filepath.Abs(dir)
		if err != nil {
			return schema.Site{}, err
		}
		site.Name = strings.ToLower(filepath.Base(whole))
		from = "The name was taken from the directory. "
	}
	text, err := beginnings(site, all.Config{})
	if err != nil {
		return schema.Site{}, err
	}
	if _, ds := load.Document(context.Background(), sch, load.Options{}, load.Source{Name: documentName, Data: []byte(text[documentName])}); ds.HasErrors() {
		return schema.Site{}, &view.Problem{
			What: fmt.Sprintf("invalid site name %q", site.Name), Where: from + ds[0].Detail, Fix: "Choose a name: -site=NAME",
		}
	}
	return site, nil
}

// noneThere refuses a directory that already has the configuration or the document, and names what exists.
func (a *app) noneThere(dir string) error {
	var there []string
	for _, name := range []string{config.Name, documentName} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			there = append(there, filepath.Join(dir, name))
		}
	}
	if len(there) == 0 {
		return nil
	}
	verb := "exists"
	if len(there) > 1 {
		verb = "exist"
	}
	next := a.within(dir) + " plan " + documentName
	if !slices.Contains(there, filepath.Join(dir, documentName)) { // such as on a node that others set up
		next = a.within(dir) + " import -discover -site=NAME -out=found"
	}
	return &view.Problem{
		What: strings.Join(there, ", ") + " already " + verb + "; existing files are not overwritten, so nothing was written",
		Fix:  "Choose another directory: converge init DIR. In an existing workspace, continue with: " + next,
	}
}

// fromDir returns a path relative to the directory in which converge.yaml will be.
func fromDir(dir, path string) (string, error) {
	if path == "" || filepath.IsAbs(path) {
		return path, nil
	}
	from, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	to, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return filepath.Rel(from, to)
}

// lookAt observes everything that the configuration reaches. It fails when nothing answers.
func (a *app) lookAt(ctx context.Context, conf *config.File, site schema.Site) (*survey.Survey, error) {
	s := &session{app: a, conf: conf, site: site.Name}
	s.store = state.New(mem.New(mem.Options{}), site.Name)
	found, err := s.survey(ctx, site)
	if err != nil {
		return nil, err
	}
	if unknown := found.Unknown(); len(unknown) > 0 && len(found.Observed.Things) == 0 {
		return nil, &view.Problem{
			What: "Carbide at " + conf.Carbide.Address + " could not be observed: nothing was written", Where: unknown[0].Error,
			Fix: "Fix that, or omit -carbide and set its address in " + config.Name + " later.",
		}
	}
	return found, nil
}

// beginnings returns the files of a new workspace.
func beginnings(site schema.Site, reached all.Config) (map[string]string, error) {
	conf, err := yaml.Marshal(struct {
		Site       string `yaml:"site"`
		all.Config `yaml:",inline"`
	}{site.Name, reached})
	if err != nil {
		return nil, err
	}
	text := string(conf)
	if reached.Carbide == nil {
		text += `
# How to reach the site:
#
# carbide:
#   address: HOST:PORT
#   tls: {ca: ca.crt, cert: tls.crt, key: tls.key}
# nodes:
#   gpu-01: {ovs: "unix:/run/openvswitch/db.sock", sysfs: /sys}
`
	}
	return map[string]string{
		config.Name: text,
		documentName: `apiVersion: "converge.dev/v1"

// The ids of objects that converge creates are derived from this id: never change it.
site: {name: "` + site.Name + `", id: "` + site.ID + `"}

// The resources of the site, for example:
//
//	carbide: tenant: acme: {}
//	carbide: vpc: prod: tenant: "acme"
//
// converge schema lists the kinds, converge schema carbide.vpc shows the fields of one.
carbide: {}
`,
		ignoreName: "/" + storeName + "/\n",
	}, nil
}

// sayBegun reports what was written and found, and what may come next.
func (a *app) sayBegun(dir string, site schema.Site, wrote []string, found *survey.Survey) error {
	counts, missing, server := map[string]int{}, []string{}, survey.Server{}
	if found != nil {
		for at, things := range found.Observed.Things {
			counts[at.Kind] += len(things)
		}
		for at := range found.Observed.Unsupported {
			missing = append(missing, at.Kind)
		}
		slices.Sort(missing)
		if len(found.Servers) > 0 {
			server = found.Servers[0] // no other system is configured yet
		}
	}
	text := fmt.Sprintf("Wrote %s.\n", strings.Join(wrote, ", "))
	total := 0
	if found != nil {
		text += "\nCarbide answers"
		if server.Identity != "" {
			text += fmt.Sprintf(", identifies itself as %q", server.Identity)
		}
		if server.Build != "" {
			text += fmt.Sprintf(", runs %q", server.Build)
		}
		text += fmt.Sprintf(", and serves %s:\n", view.Count(len(counts), "kind"))
		for _, kind := range slices.Sorted(maps.Keys(counts)) {
			text += fmt.Sprintf("  %6d  %s\n", counts[kind], kind)
			total += counts[kind]
		}
		for _, kind := range missing {
			text += fmt.Sprintf("       -  %s, not supported by this server\n", kind)
		}
		for _, u := range found.Unknown() {
			text += fmt.Sprintf("       ?  %s: %s\n", u.Kind, u.Error)
		}
	}
	text += "\nNext: " + a.within(dir) + " plan " + documentName + "\n"
	if total > 0 {
		text += "To write existing objects as a document: " + a.within(dir) + " import -discover " + documentName + "\n"
	}
	return a.did(false, map[string]any{"site": site, "wrote": wrote, "found": counts, "unsupported": missing, "identity": server.Identity, "build": server.Build}, text)
}

// within returns how a command for a directory begins, when typed where this one was.
func (a *app) within(dir string) string {
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(a.flags.chdir, dir)
	}
	if dir == "." {
		return "converge"
	}
	return "converge -chdir=" + shellescape.Quote(dir)
}
