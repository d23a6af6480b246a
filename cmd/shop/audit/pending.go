package audit

import (
	"fmt"
	"strings"
)

// waitsForOperator says of what can be under way that it stays until an operator acts.
func waitsForOperator(what string) bool {
	kind := kindOf(what)
	return kind == "dead letters" || kind == "unrouted"
}

// kindOf sorts what can be under way into the invariants that speak of it.
func kindOf(what string) string {
	switch {
	case strings.HasSuffix(what, ".dead-letters"):
		return "dead letters"
	case strings.HasSuffix(what, ".unrouted"):
		return "unrouted"
	case strings.HasPrefix(what, "queue "), strings.HasPrefix(what, "unacked in "):
		return "queue"
	}
	return "database"
}

func (s *state) checkPending(invariant, kind string) Result {
	chosen := map[string]int{}
	for what, n := range s.pending {
		if kindOf(what) == kind {
			chosen[what] = n
		}
	}
	return each(invariant, chosen, func(_ string, n int) string {
		if n == 0 {
			return ""
		}
		return fmt.Sprint(n)
	})
}
