package audit

import (
	"fmt"
	"io"
)

// shown is how many of what breaks an invariant is printed; JSON has all.
const shown = 5

// Print writes the report for people: each invariant with what was checked, what breaks it, and the verdict.
func (r Report) Print(w io.Writer) {
	for _, result := range r.Results {
		verdict := "ok"
		if len(result.Broken) > 0 {
			verdict = fmt.Sprintf("BROKEN by %d", len(result.Broken))
		}
		fmt.Fprintf(w, "  %-66s %5d  %s\n", result.Invariant, result.Checked, verdict)
		for i, what := range result.Broken {
			if i == shown {
				fmt.Fprintf(w, "      … and %d more (--json has all)\n", len(result.Broken)-shown)
				break
			}
			fmt.Fprintf(w, "      %s\n", what)
		}
	}
	if r.OK {
		fmt.Fprintln(w, "audit: ok")
	} else {
		fmt.Fprintln(w, "audit: NOT OK")
	}
}
