package command

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/internal/files"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/signed"
	"converge.dev/converge/trust"
)

func (a *app) trustCommand() *cobra.Command {
	return group("trust", "The keys that nodes trust", `Nodes believe a trust document: which authority issues certificates at this site, and
which keys sign tasks. It is signed by root keys, which belong offline; what the site
agent has online is replaced at least every 30 days with trust rotate.`,
		a.trustInitCommand(), a.trustShowCommand(), a.trustRotateCommand(), a.trustSignCommand())
}

// trustDirFlag adds the flag that names the directory of the keys.
func trustDirFlag(c *cobra.Command, dir *string) {
	c.Flags().StringVar(dir, "trust-dir", "", "`dir`ectory of the keys that nodes trust; default: trust in -data-dir")
}

func (a *app) trustInitCommand() *cobra.Command {
	var dir, roots string
	var threshold, of int
	var dev bool
	c := &cobra.Command{
		Use:   "init [DOC...]",
		Short: "Make the keys of a site",
		Long: `Make the root keys of a site, the keys that its site agent has online, and the first
trust document, for the site that the document names (default: the newest in the store).
The root keys are written to -roots, one file each: move them apart, to where nothing is
online. They are needed again for trust rotate.

With -dev the root key stays with the others and the site agent replaces all keys by
itself: for trying things out only.`,
		Example: `  converge trust init -threshold=2 -of=3 -roots=/media/usb site.cue
  converge trust init -dev site.cue`,
		ValidArgsFunction: completeDocuments,
	}
	trustDirFlag(c, &dir)
	c.Flags().StringVar(&roots, "roots", "", "`dir`ectory to which the root keys are written")
	c.Flags().IntVar(&threshold, "threshold", 1, "how many of the root keys have to sign, a `n`umber")
	c.Flags().IntVar(&of, "of", 1, "how many root keys there are, a `n`umber")
	c.Flags().BoolVar(&dev, "dev", false, "keep the root key online")
	c.RunE = func(c *cobra.Command, args []string) error {
		switch {
		case of < 1 || of > 16 || threshold < 1 || threshold > of:
			return &view.Problem{What: fmt.Sprintf("invalid -threshold=%d -of=%d: want 1 to 16 root keys, and at most as many as there are to sign", threshold, of)}
		case dev == (roots != ""):
			return &view.Problem{What: "where do the root keys go?", Fix: "Name a directory with -roots=DIR; or keep them online with -dev, for trying things out."}
		}
		about, err := a.siteOf(c, args)
		if err != nil {
			return err
		}
		if dir == "" {
			store, err := a.storeDir(args)
			if err != nil {
				return err
			}
			dir = filepath.Join(store, trustDir)
		}
		if roots != "" && filepath.Clean(roots) == filepath.Clean(dir) {
			return &view.Problem{What: "the root keys would be with the keys that are online", Where: roots, Fix: "Name another directory with -roots=DIR."}
		}
		keys := trust.NewRoots(of)
		var written []string
		if roots != "" {
			if written, err = writeRoots(roots, keys); err != nil {
				return err
			}
		}
		authority, err := trust.Init(dir, about, threshold, keys, trust.Options{Dev: dev})
		if err != nil {
			for _, path := range written { // they are the roots of nothing
				err = errors.Join(err, os.Remove(path))
			}
			return &view.Problem{What: "the keys were not made", Where: err.Error(), Err: err}
		}
		a.acted = true
		if a.flags.json {
			return a.printJSON(map[string]any{"site": about.Name, "id": about.ID, "dir": dir, "roots": written, "version": authority.Document().Version})
		}
		text := fmt.Sprintf("Made the keys of site %s in %s.\n", about.Name, dir)
		for _, path := range written {
			text += "Root key: " + path + "\n"
		}
		a.print(text)
		if len(written) > 0 {
			a.view.Note("Move the root keys apart from each other, to where nothing is online.")
		}
		return nil
	}
	return c
}

// siteOf returns the name and the id of the site of a document, by default of the newest in the store.
func (a *app) siteOf(c *cobra.Command, args []string) (schema.Site, error) {
	if len(args) > 0 {
		doc, err := a.load(c.Context(), args)
		if err != nil {
			return schema.Site{}, err
		}
		return schema.Site{Name: doc.Site.Name, ID: doc.Site.ID}, nil
	}
	s, err := a.open(c.Context(), nil, nil)
	if err != nil {
		return schema.Site{}, err
	}
	head, err := s.head(c.Context())
	if err == nil && head.Site.ID == "" {
		err = s.noDocument(nil)
	}
	return schema.Site{Name: head.Site.Name, ID: head.Site.ID}, err
}

// siteKeys opens the keys of the site, as [app.authority] does. Those of another one would make nodes of a site that nobody has.
func (s *session) siteKeys(dir string) (*trust.Authority, error) {
	keys, _, err := s.authority(dir)
	if err == nil && keys.Site().Name != s.site {
		err = &view.Problem{What: "the keys are those of another site", Where: "they are for " + keys.Site().Name + ", and this is " + s.site, Fix: "Name the site with -site, or the directory of its keys with -trust-dir."}
	}
	return keys, err
}

// writeRoots writes root keys to files that do not exist yet.
func writeRoots(dir string, keys []ed25519.PrivateKey) (written []string, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	for i, key := range keys {
		path := filepath.Join(dir, fmt.Sprintf("root-%d.key", i+1))
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err == nil {
			_, err = f.Write(trust.MarshalKey(key))
			err = errors.Join(err, f.Sync(), f.Close())
		}
		if err != nil {
			for _, path := range written {
				err = errors.Join(err, os.Remove(path))
			}
			return nil, &view.Problem{What: "the root keys cannot be written", Where: err.Error(), Fix: "Name another directory with -roots.", Err: err}
		}
		written = append(written, path)
	}
	return written, nil
}

func (a *app) trustShowCommand() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use: "show", Short: "Show the trust document", Args: exactly(0),
		Long:    "Show the newest trust document: the root keys, the authorities and the task keys, and until when each is valid.",
		Example: "  converge trust show",
	}
	trustDirFlag(c, &dir)
	c.RunE = func(c *cobra.Command, _ []string) error {
		authority, _, err := a.authority(dir)
		if err != nil {
			return err
		}
		if a.flags.json {
			return a.printJSON(authority.Document())
		}
		a.print(view.TrustText(authority.Document(), authority.RotateAt(), time.Now(), a.style(a.sys.Stdout)))
		return nil
	}
	return c
}

func (a *app) trustRotateCommand() *cobra.Command {
	var dir, out string
	var keys []string
	c := &cobra.Command{
		Use:   "rotate [FILE]",
		Short: "Replace the keys that are online",
		Long: `Make the next version of the trust document, with new keys beside those that are still
valid, and sign it with root keys. With enough of them it is in force at once; otherwise
it is written to -out, others add their signatures with trust sign, and trust rotate FILE
puts it in force. The site agent uses it within a minute, and tells its nodes.`,
		Example: `  converge trust rotate -key=root-1.key -key=root-2.key
  converge trust rotate -key=root-1.key -out=next.json
  converge trust rotate next.json`,
		Args: between(0, 1),
	}
	trustDirFlag(c, &dir)
	c.Flags().StringArrayVar(&keys, "key", nil, "`file` with a root key; may be repeated")
	c.Flags().StringVar(&out, "out", "", "`file` to which it is written when more signatures are needed")
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 1 && (len(keys) > 0 || out != "") {
			return &view.Problem{What: "a signed document is put in force as it is: -key and -out cannot be used with it", Fix: "Add signatures with converge trust sign."}
		}
		authority, _, err := a.authority(dir)
		if err != nil {
			return err
		}
		var envelope []byte
		if len(args) == 1 {
			if envelope, err = files.Read(args[0], trust.MaxDocument); err != nil {
				return &view.Problem{What: "the document cannot be read", Where: err.Error(), Err: err}
			}
		} else {
			signers, err := rootKeys(keys)
			if err != nil {
				return err
			}
			next, err := authority.Proposal()
			if err != nil {
				return err
			}
			if envelope, err = trust.Sign(next, signers...); err != nil {
				return err
			}
			if len(signers) < authority.Document().Threshold {
				if out == "" {
					return &view.Problem{What: fmt.Sprintf("%d of %d signatures are missing", authority.Document().Threshold-len(signers), authority.Document().Threshold), Fix: "Give more root keys with -key, or write the document with -out=FILE for others to sign."}
				}
				if err := files.Replace(out, envelope, 0o644); err != nil {
					return err
				}
				return a.did(false, map[string]any{"version": next.Version, "in_force": false, "file": out},
					fmt.Sprintf("Version %d of the trust document needs more signatures: converge trust sign -key=FILE %s\n", next.Version, out))
			}
		}
		if err := authority.Adopt(envelope); err != nil {
			return &view.Problem{What: "the trust document is not put in force", Where: err.Error(), Err: err}
		}
		version := authority.Document().Version
		return a.did(false, map[string]any{"version": version, "in_force": true}, fmt.Sprintf("Version %d of the trust document is in force.\n", version))
	}
	return c
}

func (a *app) trustSignCommand() *cobra.Command {
	var keys []string
	c := &cobra.Command{
		Use:   "sign FILE",
		Short: "Add a signature to the next trust document",
		Long: `Show the trust document in FILE, as trust rotate -out wrote it, and add the signature of
a root key to it. It needs neither the store nor the network.`,
		Example: "  converge trust sign -key=root-2.key next.json",
		Args:    exactly(1),
	}
	c.Flags().StringArrayVar(&keys, "key", nil, "`file` with a root key; may be repeated")
	c.RunE = func(c *cobra.Command, args []string) error {
		signers, err := rootKeys(keys)
		if err != nil {
			return err
		}
		envelope, err := files.Read(args[0], trust.MaxDocument)
		if err != nil {
			return &view.Problem{What: "the document cannot be read", Where: err.Error(), Err: err}
		}
		more, d, err := trust.Cosign(envelope, signers...)
		if err != nil {
			return &view.Problem{What: "the document is not signed", Where: args[0] + ": " + err.Error(), Err: err}
		}
		if err := files.Replace(args[0], more, 0o644); err != nil {
			return err
		}
		a.acted = true
		if a.flags.json {
			return a.printJSON(d)
		}
		a.print(view.TrustText(d, time.Time{}, time.Now(), a.style(a.sys.Stdout)))
		return nil
	}
	return c
}

// rootKeys reads root keys.
func rootKeys(paths []string) (keys []ed25519.PrivateKey, err error) {
	if len(paths) == 0 {
		return nil, &view.Problem{What: "no root key is given", Fix: "Give each with -key=FILE."}
	}
	for _, path := range paths {
		key, err := signed.ReadPrivateKey(path)
		if err != nil {
			return nil, &view.Problem{What: "the root key cannot be read", Where: err.Error(), Err: err}
		}
		keys = append(keys, key)
	}
	return keys, nil
}
