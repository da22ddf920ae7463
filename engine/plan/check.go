package plan

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// Check refuses a plan that [Make] could not have made, with an error that wraps [ErrFormat]. It uses the plan alone: not
// the kinds, not the site, and not the document, for which see [Plan.CheckDocument]. It finds a plan that was edited or
// damaged, or a mistake of the planner.
func (p *Plan) Check() error {
	for _, check := range []func() error{p.checkHead, p.checkSteps, p.checkOrder, p.checkNeeds} {
		if err := check(); err != nil {
			return fmt.Errorf("%w: %w", ErrFormat, err)
		}
	}
	return nil
}

// A Head is the part of a document that is about the site as a whole.
type Head struct {
	Site   schema.Site   `json:"site"`
	Policy schema.Policy `json:"policy"`
}

// HeadOf reads the head of a document and skips its resources.
func HeadOf(document []byte) (h Head, err error) {
	if err := json.Unmarshal(document, &h); err != nil {
		return Head{}, fmt.Errorf("decode the document: %w", err)
	}
	return h, nil
}

func (p *Plan) checkHead() error {
	switch {
	case p.Format != Format:
		return fmt.Errorf("it has format %d, want %d", p.Format, Format)
	case p.Site.Name == "" || p.Site.ID == "":
		return fmt.Errorf("it does not say which site it is for")
	case p.Destroy && p.Sweep:
		return fmt.Errorf("it both destroys and sweeps")
	case p.MaxDestroy == "" && !p.Asked:
		return fmt.Errorf("it has no max_destroy, and that was not requested")
	}
	if p.MaxDestroy != "" {
		if _, err := Budget(p.MaxDestroy, 0); err != nil {
			return err
		}
	}
	if p.Destroy || p.Sweep {
		if p.Digest != "" {
			return fmt.Errorf("it refers to a document, but a plan that only removes has none")
		}
		return nil
	}
	if sum, err := hex.DecodeString(p.Digest); err != nil || len(sum) != sha256.Size {
		return fmt.Errorf("its document_digest is not a hex-encoded SHA-256")
	}
	return nil
}

// CheckDocument refuses a plan whose [Plan.Document] is missing or is not the one that the plan was made for, with an error that
// wraps [ErrFormat].
func (p *Plan) CheckDocument() error {
	if err := p.checkDocument(); err != nil {
		return fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return nil
}

func (p *Plan) checkDocument() error {
	if p.Digest == "" {
		if len(p.Document) > 0 {
			return fmt.Errorf("it contains a document, but a plan that only removes has none")
		}
		return nil
	}
	if sum := sha256.Sum256(p.Document); hex.EncodeToString(sum[:]) != p.Digest {
		return fmt.Errorf("its document does not match its document_digest")
	}
	head, err := HeadOf(p.Document)
	switch {
	case err != nil:
		return err
	case head.Site.Name != p.Site.Name || head.Site.ID != p.Site.ID:
		return fmt.Errorf("it is for site %s (%s), but its document is for site %s (%s)", p.Site.Name, p.Site.ID, head.Site.Name, head.Site.ID)
	case !p.Asked && p.MaxDestroy != cmp.Or(head.Policy.MaxDestroy, DefaultMaxDestroy):
		return fmt.Errorf("its max_destroy is %s, but its document says %s", p.MaxDestroy, cmp.Or(head.Policy.MaxDestroy, DefaultMaxDestroy))
	}
	return nil
}

// checkSteps checks each step by itself, and the steps of each resource together.
func (p *Plan) checkSteps() error {
	of := make(map[schema.Ref]*Step, len(p.Steps))
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.ID != i {
			return fmt.Errorf("step %d is numbered %d", i, s.ID)
		}
		why := s.wrong(p)
		if other := of[s.Ref]; why == "" && other != nil && !p.Sweep && !halvesOf(s, other) {
			why = fmt.Sprintf("step %d already acts on the same resource", other.ID)
		}
		if why != "" {
			return fmt.Errorf("step %d (%s %s): %s", i, s.Action, s.Ref, why)
		}
		of[s.Ref] = s
	}
	return nil
}

// halvesOf reports whether two steps are the halves of one change to a resource: replace it, or detach it and attach it again.
func halvesOf(a, b *Step) bool {
	replace := a.Replace && b.Replace && a.Action != b.Action
	detach := a.Action == Update && b.Action == Update && (a.Detaches && b.Attaches || a.Attaches && b.Detaches)
	return replace || detach
}

// wrong returns why a step cannot be one of a plan; empty when it can.
func (s *Step) wrong(p *Plan) string {
	makes := s.Action == Create || s.Action == Update || s.Action == Adopt
	late := slices.Contains([]providers.Revert{providers.Replace, providers.NoUndo}, s.Undo)
	switch {
	case !makes && s.Action != Delete && s.Action != Forget:
		return "unknown action"
	case !late && !s.Undo.Reversible():
		return fmt.Sprintf("unknown undo class %q", s.Undo)
	case s.Ref.IsZero():
		return "it names no resource"
	case s.ExternalID == "" || s.Incarnation < 1:
		return "it does not identify its object"
	case !s.Mark.IsZero() && s.Mark.Site != p.Site.ID:
		return "the object carries the mark of site " + s.Mark.Site
	case s.Prior != nil && s.Prior.Ref != s.Ref, s.Record != nil && s.Record.Ref != s.Ref:
		return "its record is for another resource"
	case s.Within < 0:
		return "its timeout is negative"
	case p.Destroy && makes:
		return "a destroy plan cannot contain this action"
	case p.Sweep != (s.Stray && !s.Replace):
		return "only a sweep removes strays, and a sweep does nothing else"
	case s.Replace && s.Action != Create && s.Action != Delete, s.Beside && !(s.Replace && s.Action == Create),
		s.Leaves && s.Action != Create, s.Stray && s.Action != Delete, len(s.Chosen) > 0 && s.Action != Create:
		return "it has fields that its action does not allow"
	case makes != (s.After != nil), makes && s.Want == nil:
		return "its resulting state does not match its action"
	case s.Before == nil && s.Action != Create && s.Action != Forget, s.Before != nil && s.Action == Create:
		return "its initial state does not match its action"
	case makes && (s.Record == nil || s.Record.Gone || s.Record.ID != s.ExternalID || s.Record.Incarnation != s.Incarnation):
		return "it does not record its object"
	case s.Action == Forget && (s.Record != nil && (!s.Record.Gone || s.Record.ID != s.ExternalID) || s.Prior == nil || s.Prior.Gone):
		return "it forgets nothing"
	case s.Action == Delete && !s.Stray && s.Record != nil && !s.Record.Gone:
		return "it records the deleted object as existing"
	}
	return ""
}

// checkOrder derives the order again: needs, waves, stages of nodes, and the point of no return.
func (p *Plan) checkOrder() error {
	for i := range p.Steps {
		for j, n := range p.Steps[i].Needs {
			switch {
			case n < 0 || n >= len(p.Steps):
				return fmt.Errorf("step %d needs step %d, which does not exist", i, n)
			case j > 0 && n <= p.Steps[i].Needs[j-1]:
				return fmt.Errorf("the needs of step %d are not in ascending order", i)
			}
		}
	}
	wave, after, err := waves(p.Steps)
	if err != nil {
		return err
	}
	stages := stagesOf(p.Steps)
	for i := range p.Steps {
		s := &p.Steps[i]
		switch {
		case s.Wave != wave[i]:
			return fmt.Errorf("step %d is in wave %d, but its needs put it in wave %d", i, s.Wave, wave[i])
		case s.Stage != stages[s.Ref.Scope]:
			return fmt.Errorf("step %d has turn %d, but its node has turn %d", i, s.Stage, stages[s.Ref.Scope])
		case i > 0 && cmp.Or(cmp.Compare(p.Steps[i-1].Wave, s.Wave), p.Steps[i-1].Ref.Compare(s.Ref)) > 0:
			return fmt.Errorf("step %d comes before step %d, but belongs after it", i-1, i)
		case after[i] != (i >= p.NoReturn):
			return fmt.Errorf("step %d is on the wrong side of the point of no return, which is %d", i, p.NoReturn)
		}
	}
	if p.NoReturn < 0 || p.NoReturn > len(p.Steps) {
		return fmt.Errorf("its point of no return is %d, but it has %d steps", p.NoReturn, len(p.Steps))
	}
	return nil
}

// checkNeeds refuses steps that do not wait for what they must wait for according to the records in the plan;
// maker.connect knows more.
func (p *Plan) checkNeeds() error {
	if p.Sweep {
		return nil
	}
	makes, removes := make(map[schema.Ref]*Step, len(p.Steps)), make(map[schema.Ref]*Step, len(p.Steps))
	detaches := map[schema.Ref]*Step{}
	for i := range p.Steps {
		s := &p.Steps[i]
		switch {
		case s.Action == Delete || s.Action == Forget:
			removes[s.Ref] = s
		case s.Detaches:
			detaches[s.Ref] = s
		default:
			makes[s.Ref] = s
		}
	}
	need := func(s, before *Step) error {
		if s == nil || before == nil || s == before || slices.Contains(s.Needs, before.ID) {
			return nil
		}
		return fmt.Errorf("step %d (%s %s) does not wait for step %d (%s %s)", s.ID, s.Action, s.Ref, before.ID, before.Action, before.Ref)
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		var after, were []schema.Ref // what it will refer to, and what it refers to now
		mine := makes[s.Ref]
		if mine != nil {
			after = mine.Record.After
		}
		if were = after; s.Prior != nil && !s.Prior.Gone {
			were = s.Prior.After
		}
		if s == mine {
			for _, r := range after {
				if err := need(s, makes[r]); err != nil {
					return err
				}
			}
		}
		if old := removes[s.Ref]; s == mine && old != nil {
			first, second := old, s
			if s.Beside {
				first, second = s, old
			}
			if err := need(second, first); err != nil {
				return err
			}
		}
		for _, r := range were {
			gone, made := removes[r], makes[r]
			last := removes[s.Ref]
			// A thing that is to be created is not there, so nothing of it refers to the old one.
			if last == nil && mine != nil && mine.Action != Create && (made != nil && made.Beside || !slices.Contains(after, r)) {
				last = mine
			}
			if d := detaches[s.Ref]; d != nil && last == mine && gone != nil && slices.Contains(gone.Needs, d.ID) {
				last = nil // its reference was taken away before
			}
			if gone != nil && last != nil {
				if err := need(gone, last); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
