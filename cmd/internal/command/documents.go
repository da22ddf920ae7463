package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/config"
	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/schema/load"
	"converge.dev/converge/schema/signed"
	"converge.dev/converge/state"
)

func (a *app) putCommand() *cobra.Command {
	ifRevision := int64(state.AnyRevision)
	var key string
	c := &cobra.Command{
		Use:   "put DOCUMENT...",
		Short: "Write a document to the store",
		Long: `Validate a document and store it as the newest revision of its site. It is stored as
plain JSON: CUE is evaluated here, never at the site. Its serial must be higher than
that of the newest revision; a document without a serial gets the next one. Its site.id
must match that of the newest revision. Secrets that cannot be read here cause a
warning: they must be readable where the document is planned.

With -sign the stored bytes are signed, so a site that trusts the key (trust in
converge.yaml) knows who wrote them. A signed document must state its serial itself.`,
		Example: `  converge put site.cue
  openssl genpkey -algorithm ed25519 -out me.key; converge put -sign=me.key site.cue
  converge put -if-revision=17 site.json    fails if another client wrote first`,
		Args:              atLeast(1),
		ValidArgsFunction: completeDocuments,
	}
	c.Flags().Int64Var(&ifRevision, "if-revision", state.AnyRevision, "write only if the newest revision is this `n`umber; 0 for none")
	c.Flags().StringVar(&key, "sign", "", "sign the document with the ed25519 private key in this `file` (PKCS#8, PEM, mode 0600)")
	c.RunE = func(c *cobra.Command, args []string) error {
		ctx := c.Context()
		doc, err := a.load(ctx, args)
		if err != nil {
			return err
		}
		s, err := a.openOr(ctx, doc, args, create)
		if err != nil {
			return err
		}
		// Authors of documents need not be able to read the site's secrets: this points out a misspelt name, and refuses nothing.
		if missing := s.unreadable(doc); missing != "" {
			a.view.Warn("these secrets cannot be read here, but must be readable wherever this document is planned:\n" + missing)
		}
		var sig *signed.Signature
		if key != "" {
			if sig, err = s.sign(doc, key); err != nil {
				return err
			}
		}
		t, err := s.take(doc.JSON, sig, who(), "this document") // what could not be read again is not written
		if err != nil {
			return err
		}
		if err := s.sameSite(ctx, doc, "the document"); err != nil {
			return err
		}
		head, err := s.store.PutSigned(ctx, doc.JSON, doc.Digest, t.sig, doc.Site.Serial, who(), ifRevision)
		if err != nil {
			return err
		}
		if t.sig != nil && t.author.Signer == "" {
			s.view.Warn("the key is not in trust.documents of " + config.Name + " here; sites that should trust it must add there: {name: NAME, key: \"" + t.sig.Key + "\"}")
		}
		text := fmt.Sprintf("Site %s is at serial %d (revision %d): %s, sha256:%s\n", s.site, head.Serial, head.Revision, view.Count(len(doc.Resources), "resource"), head.Digest)
		return a.did(false, s.judged(ctx, head), text)
	}
	return c
}

// judged returns a revision with the current validity of its signature.
func (s *session) judged(ctx context.Context, h state.Head) view.Revision {
	r := view.Revision{Head: h, Revision: h.Revision}
	if h.Signature == nil {
		return r
	}
	_, body, err := s.store.Document(ctx, h.Serial)
	var signers signed.Trust
	if err == nil {
		signers, err = s.conf.Signers()
	}
	if err == nil {
		r.Signer, r.Key, err = signers.Check(*h.Signature, body)
	}
	if err == nil {
		var said load.Head
		if err = json.Unmarshal(body, &said); err == nil && said.Site.Serial != h.Serial {
			err = fmt.Errorf("it was signed with serial %d", said.Site.Serial)
		}
	}
	if err != nil {
		r.Signer, r.Bad = "", err.Error()
	}
	return r
}

func (a *app) getCommand() *cobra.Command {
	var serial int64
	c := &cobra.Command{
		Use:   "get",
		Short: "Print the document of the site",
		Long:  "Print the newest document of the site, or an older one, as JSON.",
		Example: `  converge get > site.json
  converge get -serial=41`,
		Args: exactly(0),
	}
	c.Flags().Int64Var(&serial, "serial", 0, "serial `n`umber of the revision; the newest if omitted")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if serial == 0 && c.Flags().Changed("serial") {
			return &view.Problem{What: "invalid -serial 0: no revision has it", Fix: "The first is 1. Omit -serial for the newest."}
		}
		s, err := a.open(c.Context(), nil, nil)
		if err != nil {
			return err
		}
		return s.printDocument(c, serial)
	}
	return c
}

// printDocument prints a revision of the document.
func (s *session) printDocument(c *cobra.Command, serial int64) error {
	_, t, err := s.document(c.Context(), serial)
	if errors.Is(err, state.ErrNotFound) {
		_, err = s.stored(c.Context(), serial) // which explains the error
	}
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := json.Indent(&text, t.body, "", "  "); err != nil {
		return err
	}
	s.print(text.String() + "\n")
	return nil
}

func (a *app) historyCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "history",
		Short: "List the revisions of the document",
		Long: `List the stored revisions of the site's document, newest first: who put each one, and
whose signature it has according to the keys that trust.documents lists now. A revision
signed with a key that is no longer in that list has no trusted signer.`,
		Example: "  converge history\n  converge diff 41 42",
		Args:    exactly(0),
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		s, err := a.open(c.Context(), nil, nil)
		if err != nil {
			return err
		}
		heads, err := s.store.History(c.Context())
		if err != nil {
			return err
		}
		list := make([]view.Revision, len(heads))
		for i, h := range heads {
			list[i] = s.judged(c.Context(), h)
		}
		if a.flags.json {
			return a.printJSON(map[string]any{"revisions": list})
		}
		a.print(view.HistoryText(list, a.style(a.sys.Stdout)))
		return nil
	}
	return c
}

func (a *app) diffCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "diff REVISION REVISION",
		Short: "Compare two documents",
		Long: `Compare two documents resource by resource. A REVISION is a serial, the word head, or
a file. With only one, a serial is compared with head as the newer document, and a file
with head as the older one. The site is not observed.

It exits with 0 when they are equal, and with 2 when they differ.`,
		Example: `  converge diff 41 42
  converge diff 41
  converge diff head site.cue`,
		Args:              between(1, 2),
		ValidArgsFunction: completeDocuments,
	}
	a.bindFull(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 1 { // the older one first
			args = []string{"head", args[0]}
			if _, err := strconv.ParseInt(args[1], 10, 64); err == nil {
				slices.Reverse(args)
			}
		}
		var opened *session
		store := func() (*session, error) {
			var err error
			if opened == nil {
				opened, err = a.open(c.Context(), nil, nil)
			}
			return opened, err
		}
		from, fromName, err := a.revision(c.Context(), args[0], store)
		if err != nil {
			return err
		}
		to, toName, err := a.revision(c.Context(), args[1], store)
		if err != nil {
			return err
		}
		d := view.Compare(a.kinds, from, to, fromName, toName)
		if a.flags.json {
			err = a.printJSON(d)
		} else {
			a.print(view.DiffText(d, a.kinds, a.style(a.sys.Stdout), a.flags.layout))
		}
		if err == nil && len(d.Changed) > 0 {
			err = outcome(exitDifferent)
		}
		return err
	}
	return c
}
