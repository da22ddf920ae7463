package view

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// rows is how many running steps a terminal shows at once.
const rows = 8

// erase takes what was drawn off the terminal, so that lines can be written in its place. The lock is held.
func (h *Human) erase() {
	if h.drawn > 0 {
		fmt.Fprintf(h.o.Err, "\r\x1b[%dA\x1b[J", h.drawn)
		h.drawn = 0
	}
}

// draw shows what is running below everything else. The lock is held.
func (h *Human) draw() {
	if h.o.Live == nil || h.o.Quiet || h.ended || (len(h.running) == 0 && len(h.looking) == 0) {
		return
	}
	width := max(h.o.Live(), 20)
	lines := h.rows(h.o.now())
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(h.o.ErrStyle.paint(dim, cut(l, width-1)) + "\n")
	}
	h.drawn = len(lines)
	_, _ = io.WriteString(h.o.Err, b.String())
}

// rows lists what is running.
func (h *Human) rows(now time.Time) []string {
	if len(h.running) == 0 {
		l := h.looking[0]
		text := fmt.Sprintf("looking at %s/%s", clean(l.Scope), clean(l.Kind))
		if n := len(h.looking) - 1; n > 0 {
			text += fmt.Sprintf(" and %d more", n)
		}
		return []string{text}
	}
	word := "done"
	if h.undo {
		word = "undone"
	}
	lines := []string{fmt.Sprintf("%d of %d %s, %d running", h.done, h.total, word, len(h.running))}
	for i, r := range h.running {
		if i == rows {
			return append(lines, fmt.Sprintf("  and %d more", len(h.running)-rows))
		}
		text := fmt.Sprintf("  %s: %s %s", clean(r.step.Ref.String()), verbsOf(r.step, r.undo).doing, now.Sub(r.since).Round(time.Second))
		if r.phase != "" {
			text += ", " + r.phase
		}
		lines = append(lines, text)
	}
	return lines
}
