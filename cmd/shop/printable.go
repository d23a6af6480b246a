package main

import (
	"strings"
	"unicode"
)

// printable returns text without what a terminal would obey. Messages come from anybody, and errors repeat
// what is in them.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || r == '\n' {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}
