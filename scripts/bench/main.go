// Bench reads the output of `go test -bench` on standard input, of one or of several rounds, and prints each
// figure's median, and for each figure that has a goal one line
//
//	ratio NAME VALUE >= GOAL
//
// or <=. A ratio is that of two figures of the same round, and VALUE the median over the rounds, because what
// else the machine does changes from round to round. It exits with 1 if a figure is missing; a goal that is
// not reached is for the reader to see.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// figure names what a benchmark reports.
type figure struct{ benchmark, unit string }

// goal bounds a figure, or its ratio to another of the same round.
type goal struct {
	name      string
	of        figure
	to        figure // none: the figure itself
	atLeast   bool
	threshold float64
}

func goals() []goal {
	drain := func(name string) figure { return figure{"Drain/" + name, "msg/s"} }
	return []goal{
		{"relay/forwarder-20k", drain("20k/relay"), drain("20k/forwarder"), true, 15},
		{"relay/raw-50k", drain("50k/relay"), drain("50k/raw"), true, 0.85},
		{"relay/raw-1M", drain("1M/relay"), drain("1M/raw"), true, 0.85},
		{"relay-100-keys/relay-50k", drain("50k/relay-100-keys"), drain("50k/relay"), true, 0.9},
		{"relay-1-standby/relay-50k", drain("50k/relay-1-standby"), drain("50k/relay"), true, 0.95},
		{"relay-3-standby/relay-50k", drain("50k/relay-3-standby"), drain("50k/relay"), true, 0.95},
		{"relay-memory-1M-MiB", figure{"Drain/1M/relay", "MiB"}, figure{}, false, 100},
		{"latency-p50-100-per-second/raw-confirm", figure{"Latency/100-per-second", "p50-ms"}, figure{"Latency/raw-confirm", "p50-ms"}, false, 3},
		{"row-and-event/row", figure{"Insert", "row-and-event-µs"}, figure{"Insert", "row-µs"}, false, 1.35},
		{"inbox/no-inbox-1-in-flight", figure{"Inbox/inflight=1", "ratio"}, figure{}, true, 0.8},
		{"inbox/no-inbox-16-in-flight", figure{"Inbox/inflight=16", "ratio"}, figure{}, true, 0.9},
		{"inbox/no-inbox-64-in-flight", figure{"Inbox/inflight=64", "ratio"}, figure{}, true, 0.9},
		{"full-inbox/empty-inbox-16-in-flight", figure{"FullInbox/inflight=16", "ratio"}, figure{}, true, 0.9},
		{"cleaner/no-cleaner-16-in-flight", figure{"Cleaner/inflight=16", "ratio"}, figure{}, true, 0.9},
		{"duplicates/handling-16-in-flight", figure{"Duplicates/inflight=16", "ratio"}, figure{}, true, 2},
		{"inbox-memory-last/first", figure{"Memory", "last-MiB"}, figure{"Memory", "first-MiB"}, false, 1.1},
		{"inbox-16/inbox-1-in-flight", figure{"Inbox/inflight=16", "msg/s"}, figure{"Inbox/inflight=1", "msg/s"}, true, 3},
	}
}

func main() {
	order, figures := read(os.Stdin)
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "benchmark\tmedian\tunit\tof\t")
	for _, f := range order {
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t\n", f.benchmark, short(median(figures[f])), f.unit, len(figures[f]))
	}
	_ = table.Flush()
	fmt.Println()
	if !ratios(os.Stdout, figures) {
		os.Exit(1)
	}
}

// read returns all figures by what they are of, and in the order of their first appearance.
func read(input io.Reader) (order []figure, figures map[figure][]float64) {
	figures = map[figure][]float64{}
	for lines := bufio.NewScanner(input); lines.Scan(); {
		// BenchmarkDrain/50k/relay-1-standby-2   1   4101223 ns/op   41.2 MiB   12190 msg/s
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		name := strings.TrimPrefix(fields[0], "Benchmark")
		if i := strings.LastIndex(name, "-"); i >= 0 {
			if _, err := strconv.Atoi(name[i+1:]); err == nil {
				name = name[:i] // without the number of CPUs
			}
		}
		for i := 2; i+1 < len(fields); i += 2 {
			value, err := strconv.ParseFloat(fields[i], 64)
			f := figure{name, fields[i+1]}
			if err != nil || f.unit == "ns/op" {
				continue
			}
			if figures[f] == nil {
				order = append(order, f)
			}
			figures[f] = append(figures[f], value)
		}
	}
	return order, figures
}

// ratios prints a line per goal, and returns false if a figure is missing.
func ratios(output io.Writer, figures map[figure][]float64) bool {
	complete := true
	for _, g := range goals() {
		values := slices.Clone(figures[g.of])
		if g.to != (figure{}) {
			values = values[:min(len(values), len(figures[g.to]))]
			for round := range values {
				values[round] /= figures[g.to][round]
			}
		}
		if len(values) == 0 {
			fmt.Fprintf(os.Stderr, "bench: no figures for %s\n", g.name)
			complete = false
			continue
		}
		comparison := "<="
		if g.atLeast {
			comparison = ">="
		}
		fmt.Fprintf(output, "ratio %s %s %s %v\n", g.name, short(median(values)), comparison, g.threshold)
	}
	return complete
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// short gives three digits or more.
func short(value float64) string {
	switch {
	case value >= 100:
		return strconv.FormatFloat(value, 'f', 0, 64)
	case value >= 10:
		return strconv.FormatFloat(value, 'f', 1, 64)
	default:
		return strconv.FormatFloat(value, 'f', 2, 64)
	}
}
