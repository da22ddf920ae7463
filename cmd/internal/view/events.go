package view

import (
	"encoding/json"
	"fmt"
	"time"

	"converge.dev/converge/state"
)

// mostEvents is how many events that wait are listed for people: the others are much the same.
const mostEvents = 100

// EventsText lists the events that wait, and says how far their delivery is.
func EventsText(waiting []state.Outgoing, d state.Delivery, now time.Time, s Style) string {
	rows := [][]string{}
	if d.LastAt != nil {
		rows = append(rows, []string{"Delivered", fmt.Sprintf("%d, the last one %s UTC: %s %s", d.Delivered, at(*d.LastAt), clean(d.LastType), clean(d.Last))})
	} else {
		rows = append(rows, []string{"Delivered", "none yet"})
	}
	if d.Failing != nil {
		rows = append(rows, []string{"Failing", fmt.Sprintf("since %s UTC: %s", at(*d.Failing), clean(d.Error))})
	}
	if d.Dropped > 0 {
		rows = append(rows, []string{"Dropped", fmt.Sprintf("%d, because they could not be delivered", d.Dropped)})
	}
	if d.Refused > 0 {
		rows = append(rows, []string{"Refused", fmt.Sprintf("%d by the receiver", d.Refused)})
	}
	if len(waiting) > 0 {
		rows = append(rows, []string{"Waiting", fmt.Sprintf("%d, the oldest one for %s", len(waiting), took(now.Sub(waiting[0].At)))})
	}
	text := table(Style{}, rows)
	if len(waiting) == 0 {
		return text + "No event waits.\n"
	}
	list := [][]string{{"EVENT", "TYPE", "SUBJECT", "HAPPENED"}}
	for _, e := range waiting[:min(len(waiting), mostEvents)] {
		list = append(list, []string{clean(e.ID), clean(e.Type), clean(subject(e)), at(e.At)})
	}
	text += "\n" + table(s, list)
	if more := len(waiting) - mostEvents; more > 0 {
		text += fmt.Sprintf("… and %d more: converge events -json\n", more)
	}
	return text
}

// subject returns what an event is about.
func subject(e state.Outgoing) string {
	var body struct {
		Subject string `json:"subject"`
	}
	_ = json.Unmarshal(e.Body, &body) // an event without one has none
	return body.Subject
}

// EventText is one line about an event that was kept, or has left.
func EventText(e state.Outgoing, left bool) string {
	return fmt.Sprintf("%s %s  %s  %s  %s\n", at(e.At), outboxWord(left), clean(e.Type), clean(subject(e)), clean(e.ID))
}

func outboxWord(left bool) string {
	if left {
		return "left"
	}
	return "kept"
}

// EventLine is the same for programs.
func EventLine(e state.Outgoing, left bool) any {
	return struct {
		Change string          `json:"change"` // kept or left
		Event  json.RawMessage `json:"event"`
	}{outboxWord(left), e.Body}
}

// EventsJSON returns the events that wait, as they are sent, and how far their delivery is.
func EventsJSON(waiting []state.Outgoing, d state.Delivery) any {
	bodies := make([]json.RawMessage, len(waiting))
	for i, e := range waiting {
		bodies[i] = e.Body
	}
	return struct {
		Delivery state.Delivery    `json:"delivery"`
		Waiting  []json.RawMessage `json:"waiting"`
	}{d, bodies}
}
