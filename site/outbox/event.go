package outbox

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"

	"converge.dev/converge/state"
)

// prefix begins the type of each event, as CloudEvents advises.
const prefix = "dev.converge."

// schemaOf begins the version of what an event contains. A field may be added to a version; one is never removed, nor gets another
// meaning.
const schemaOf = "https://converge.dev/events/1/"

// The kinds of events: their types without the prefix.
const (
	RunStarted       = "run.started"
	RunEnded         = "run.ended"
	GuardUndone      = "guard.undone"
	ApprovalWaiting  = "approval.waiting"
	StatusChanged    = "status.changed"
	DriftChanged     = "drift.changed"
	InventoryChanged = "inventory.changed"
	NodeConnected    = "node.connected"
	NodeLost         = "node.lost"
)

// Kinds lists all kinds of events.
var Kinds = []string{RunStarted, RunEnded, GuardUndone, ApprovalWaiting, StatusChanged, DriftChanged, InventoryChanged, NodeConnected, NodeLost}

// An event is a CloudEvent 1.0 in structured mode.
type event struct {
	SpecVersion     string          `json:"specversion"`
	ID              string          `json:"id"`
	Source          string          `json:"source"` // /sites/ID
	Type            string          `json:"type"`
	Subject         string          `json:"subject"` // run/ID, node/NAME, plan/DIGEST, status, drift, inventory
	Time            time.Time       `json:"time"`
	DataContentType string          `json:"datacontenttype"`
	DataSchema      string          `json:"dataschema"`
	TraceParent     string          `json:"traceparent,omitempty"` // of whoever has started the site agent
	Sequence        string          `json:"sequence,omitempty"`    // of a kept event: later ones sort after earlier ones
	Dropped         int64           `json:"dropped,omitempty"`     // how many were dropped since the last event that was delivered
	Site            string          `json:"site"`                  // its name
	Data            json.RawMessage `json:"data"`
}

// make returns an event. What makes it the same event as another one gives it its id: another process, or another try, then does not
// make a second one of it.
func (b *Outbox) make(kind, subject string, at time.Time, data any, same ...any) (state.Outgoing, error) {
	body, err := json.Marshal(data)
	if err != nil {
		return state.Outgoing{}, fmt.Errorf("event %s: %w", kind, err)
	}
	id := uuid.NewSHA1(b.space, fmt.Append(nil, append([]any{kind, "\n", subject, "\n"}, same...)...)).String()
	text, err := json.Marshal(event{
		SpecVersion: "1.0", ID: id, Source: "/sites/" + b.o.Site.ID, Type: prefix + kind, Subject: subject, Time: at.UTC(),
		DataContentType: "application/json", DataSchema: schemaOf + kind, TraceParent: b.o.TraceParent, Site: b.o.Site.Name, Data: body,
	})
	return state.Outgoing{ID: id, Type: prefix + kind, At: at.UTC(), Body: text}, err
}

// wants reports whether the receiver is told events of a kind.
func (b *Outbox) wants(kind string) bool {
	return len(b.o.Kinds) == 0 || slices.Contains(b.o.Kinds, kind)
}

// sent returns an event as it is sent now.
func sent(o state.Outgoing, dropped int64) ([]byte, error) {
	var e event
	if err := json.Unmarshal(o.Body, &e); err != nil {
		return nil, fmt.Errorf("event %s: %w", o.ID, err)
	}
	if o.Revision > 0 {
		e.Sequence = fmt.Sprintf("%019d.%03d", o.Revision, o.N)
	}
	e.Dropped = min(dropped, math.MaxInt32) // of CloudEvents, an integer has 32 bits
	return json.Marshal(e)
}
