package remedy_test

import (
	"errors"
	"fmt"

	"converge.dev/converge/engine/remedy"
)

// What can be done about an error stays with it when it is wrapped, and the view that shows it words it.
func Example() {
	err := remedy.For(errors.New("run 7 was interrupted"), remedy.Say("resume it", remedy.Of(remedy.Resume, "7")))
	err = fmt.Errorf("site fra1: %w", err)

	fmt.Println(err)
	for _, r := range remedy.Remedies(err) {
		fmt.Println(r.Text, r.Do)
	}
	// Output:
	// site fra1: run 7 was interrupted
	// resume it [{resume 7 }]
}
