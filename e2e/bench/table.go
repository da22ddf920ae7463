package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/perf/benchmath"
)

// A row is one line of the table, with the measurements of each round.
type row struct {
	what    string
	figures []float64 // seconds, and bytes where there is no floor
	floors  []float64 // seconds
	budget  float64   // of the ratio of the two, or of the bytes; zero: none
	limit   float64   // seconds that the figure may take, whatever its floor takes; zero: none
}

// verdict returns the row. The ratio is the median of those of the rounds, because what slows a machine down for a while slows
// down both; it is followed by the interval of that median with a confidence of 90 %.
func (r *row) verdict() (line string, missed bool) {
	median := func(values []float64) benchmath.Summary {
		return benchmath.AssumeNothing.Summary(benchmath.NewSample(slices.Clone(values), &benchmath.DefaultThresholds), 0.9)
	}
	figure, floor, ratio, budget, word := "", "", "", "", ""
	judged := median(r.figures)
	if r.floors == nil {
		figure, budget = size(judged.Center), size(r.budget)
	} else {
		ratios := make([]float64, len(r.floors))
		for i := range ratios {
			ratios[i] = r.figures[i] / r.floors[i]
		}
		figure, floor = fmt.Sprintf("%.3g s", judged.Center), fmt.Sprintf("%.3g s", median(r.floors).Center)
		judged = median(ratios)
		ratio, budget = fmt.Sprintf("%.2f", judged.Center), fmt.Sprintf("%.3g", r.budget)
		if !math.IsInf(judged.Lo, 0) { // fewer than five rounds are not enough
			ratio += fmt.Sprintf(" (%.2f–%.2f)", judged.Lo, judged.Hi)
		}
	}
	missed = r.budget > 0 && judged.Center > r.budget
	if r.limit > 0 {
		limited := median(r.figures).Center
		budget, missed = fmt.Sprintf("%.3g s", r.limit), limited > r.limit
	}
	switch {
	case missed:
		word = "**missed**"
	case r.budget+r.limit > 0:
		word = "ok"
	default:
		budget = ""
	}
	return fmt.Sprintf("| %s\t| %s\t| %s\t| %s\t| %s\t| %s |", r.what, figure, floor, ratio, budget, word), missed
}

// size returns a number of bytes as text.
func size(n float64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%.0f KiB", n/(1<<10))
	}
	return fmt.Sprintf("%.0f MiB", n/(1<<20))
}

// A table is the collected measurements.
type table struct{ rows []*row }

// report writes the table. Its error names the missed budgets.
func (t *table) report(w io.Writer) error {
	var missed []string
	cells := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprint(cells, "| what\t| figure\t| floor\t| ratio\t| budget\t| verdict |\n|---\t|---\t|---\t|---\t|---\t|---|\n")
	for _, r := range t.rows {
		line, late := r.verdict()
		fmt.Fprintln(cells, line)
		if late {
			missed = append(missed, r.what)
		}
	}
	err := cells.Flush()
	if len(missed) > 0 && *strict {
		err = errors.Join(err, fmt.Errorf("budgets were missed: %s", strings.Join(missed, "; ")))
	}
	return err
}

// row returns the row of that name.
func (t *table) row(budget float64, what string, args ...any) *row {
	what = fmt.Sprintf(what, args...)
	for _, r := range t.rows {
		if r.what == what {
			return r
		}
	}
	r := &row{what: what, budget: budget}
	t.rows = append(t.rows, r)
	return r
}

// within returns the row of that name, whose figure may take so many seconds at most.
func (t *table) within(limit float64, what string, args ...any) *row {
	r := t.row(0, what, args...)
	r.limit = limit
	return r
}

func (r *row) time(figure, floor time.Duration) {
	r.figures, r.floors = append(r.figures, figure.Seconds()), append(r.floors, floor.Seconds())
	fmt.Fprintf(os.Stderr, "%-60s %7.3f s, floor %7.3f s\n", r.what, figure.Seconds(), floor.Seconds())
}

func (r *row) bytes(n int64) { r.figures = append(r.figures, float64(n)) }
