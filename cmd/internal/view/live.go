package view

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// rows is how many running steps a terminal shows at once.
const rows = 8

// erase removes what was drawn from the terminal, so that lines can be written in its place. The lock is held.
func (h *Human) erase() {
	if h.drawn > 0 {
		fmt.Fprintf(h.o.Err, "\r\x1b[%dA\x1b[J", h.drawn)
		h.drawn = 0
	}
}

// draw shows work in progress below everything else. The lock is held.
func (h *Human) draw() {
	if h.o.Live == nil || h.o.Quiet || h.ended {
		return
	}
	lines := h.rows(h.o.now())
	width := max(h.o.Live(), 20)
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(h.o.ErrStyle.paint(dim, cut(l, width-1)) + "\n")
	}
	h.drawn = len(lines)
	_, _ = io.WriteString(h.o.Err, b.String())
}

// say writes work in progress where nothing can be redrawn, so that a log of a long run does not look dead. The lock is held.
func (h *Human) say() {
	if h.ended {
		return
	}
	for _, l := range h.rows(h.o.now()) {
		h.progress("%s", l)
	}
}

// rows describes work in progress: how much is left, what runs for how long, what that waits for, and what waits for it. It
// returns none when nothing is running.
func (h *Human) rows(now time.Time) []string {
	switch {
	case len(h.running) > 0:
	case len(h.looking) > 0:
		l := h.looking[0]
		text := fmt.Sprintf("Observing %s/%s", clean(l.Scope), clean(l.Kind))
		if n := len(h.looking) - 1; n > 0 {
			text += fmt.Sprintf(" and %d more", n)
		}
		return []string{text + since(now, h.waited)}
	case h.lock != nil:
		return []string{"Waiting for the site lock" + since(now, h.waited) + ", held by " + holder(*h.lock)}
	default:
		return nil
	}
	word := "done"
	if h.undo {
		word = "reverted"
	}
	lines := []string{fmt.Sprintf("%d of %d %s, %d running%s", h.done, h.total, word, len(h.running), since(now, h.began))}
	for i, r := range h.running {
		if i == rows {
			return append(lines, fmt.Sprintf("  and %d more", len(h.running)-rows))
		}
		text := fmt.Sprintf("  %s: %s%s", clean(r.step.Ref.String()), verbsOf(r.step, r.undo).doing, since(now, r.since))
		if n := h.dependants(r); n > 0 {
			text += fmt.Sprintf(", %d waiting for it", n)
		}
		if r.phase != "" {
			text += ", " + r.phase
		}
		lines = append(lines, text)
	}
	return lines
}

func since(now, then time.Time) string {
	return fmt.Sprintf(" [%s elapsed]", max(0, now.Sub(then)).Round(time.Second))
}

// dependants returns how many steps cannot begin before a running one has ended: those that need it, directly or indirectly.
// Which steps will be undone is not known beforehand, so there is no number for an undo.
func (h *Human) dependants(r *running) int {
	if r.undo || h.plan == nil {
		return 0
	}
	if r.dependants == nil {
		if h.needed == nil {
			h.needed = make([][]int, len(h.plan.Steps))
			for i := range h.plan.Steps {
				for _, n := range h.plan.Steps[i].Needs {
					h.needed[n] = append(h.needed[n], i)
				}
			}
		}
		seen := map[int]bool{r.step.ID: true}
		for todo := []int{r.step.ID}; len(todo) > 0; todo = todo[1:] {
			for _, i := range h.needed[todo[0]] {
				if !seen[i] {
					seen[i] = true
					todo = append(todo, i)
				}
			}
		}
		r.dependants = new(len(seen) - 1)
	}
	return *r.dependants
}
