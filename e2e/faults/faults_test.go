package faults

import (
	"time"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/internal/carbidesim"
)

// A fault is what goes wrong when the step of x begins.
type fault struct {
	name string
	// The faults of the simulator. Without a Method it is the method of the cell; "reads" stands for all methods that read, one
	// by one.
	inject  []carbidesim.Fault
	forward *carbidesim.Fault // of the run that is undone afterwards
	dark    bool              // nothing listens, and connections break
	verbs   string            // for which verbs it makes sense; empty: for all
	patient bool              // the run waits for other reasons than lateness

	reads []string // the methods
}

// always means every call from now on.
const always = -1

// faults returns the rows of the grid; those that engine/grid_table_test.go has too bear the same names.
func faults() []fault {
	one := func(name string, f carbidesim.Fault) fault { return fault{name: name, inject: []carbidesim.Fault{f}} }
	of := func(verbs string, f fault) fault {
		f.verbs = verbs
		return f
	}
	const before, after, lost = carbidesim.Before, carbidesim.After, carbidesim.ReplyLost
	patient := one("busy for good", carbidesim.Fault{Effect: before, Code: codes.ResourceExhausted, Times: always})
	patient.patient = true
	return []fault{
		{name: "none"},
		one("refused", carbidesim.Fault{Effect: before, Code: codes.OutOfRange}),
		one("busy", carbidesim.Fault{Effect: before, Code: codes.ResourceExhausted, Times: 3}),
		patient,
		one("request lost", carbidesim.Fault{Effect: before, Code: codes.Unavailable}),
		one("requests lost", carbidesim.Fault{Effect: before, Code: codes.Unavailable, Times: always}),
		one("reply lost", carbidesim.Fault{Effect: lost, Code: codes.Unavailable}),
		one("replies lost", carbidesim.Fault{Effect: lost, Code: codes.DeadlineExceeded, Times: always}),
		one("cut", carbidesim.Fault{Effect: carbidesim.Cut, Times: always}),
		one("late", carbidesim.Fault{Effect: carbidesim.Late, Delay: 30 * time.Second}),
		one("late each time", carbidesim.Fault{Effect: carbidesim.Late, Code: codes.DeadlineExceeded, Delay: 200 * time.Second, Times: always}),
		one("slow", carbidesim.Fault{Effect: carbidesim.Slow, Delay: 20 * time.Second}),
		one("no answer", carbidesim.Fault{Effect: carbidesim.Hang}),
		one("done, said invalid", carbidesim.Fault{Effect: after, Code: codes.OutOfRange}),
		one("done, said internal", carbidesim.Fault{Effect: after, Code: codes.Internal}),
		one("done, said exhausted", carbidesim.Fault{Effect: after, Code: codes.ResourceExhausted}),
		one("not done, said internal", carbidesim.Fault{Effect: before, Code: codes.Internal}),
		of("create", one("not there, said exists", carbidesim.Fault{Effect: before, Code: codes.AlreadyExists})),
		of("update delete", one("there, said absent", carbidesim.Fault{Effect: before, Code: codes.NotFound})),
		one("half a batch", carbidesim.Fault{Method: "*", Effect: carbidesim.Half}),
		one("partial list", carbidesim.Fault{Method: "reads", Effect: before, Code: codes.Unavailable}),
		one("no list", carbidesim.Fault{Method: "reads", Effect: before, Code: codes.Unauthenticated, Times: always}),
		{name: "lost server", dark: true},
		one("deaf server", carbidesim.Fault{Method: "*", Effect: before, Code: codes.Unavailable, Times: always}),
		{name: "flapping", inject: []carbidesim.Fault{
			{Effect: before, Code: codes.Unavailable, Every: 2, Times: always},
			{Method: "reads", Effect: before, Code: codes.Unavailable, Every: 7, Times: always},
		}},
		{name: "late, then undone", forward: &carbidesim.Fault{Effect: carbidesim.Late, Delay: 3 * time.Minute}},
	}
}
