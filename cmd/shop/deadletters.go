package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"onceshop/cmd/shop/setup"
	"onceshop/pkg/broker"
	"onceshop/pkg/inbox"
)

// selection says which letters are meant: those that fit all that is set.
type selection struct {
	shop              *options
	queue, id, reason string
}

func newDeadLetters(o *options) *cobra.Command {
	s := &selection{shop: o}
	command := &cobra.Command{
		Use: "dead-letters", Short: "List, show, redrive or drop what no consumer could handle",
		Long: `Works on messages in <queue>.dead-letters, which no consumer could handle, and in <service>.unrouted, for
which no queue was bound. Redrive sends a dead letter to the queue in which it failed, and an unrouted event
to its exchange, and removes it then. A message that was handled meanwhile has no second effect.

While the command reads a queue, nobody else sees what it has read, and two of them at once miss some.`,
	}
	flags := command.PersistentFlags()
	flags.StringVar(&s.queue, "queue", "", "only of this queue, such as billing.orders, or orders.unrouted")
	flags.StringVar(&s.id, "id", "", "only the message with this id")
	flags.StringVar(&s.reason, "reason", "", "only messages whose reason has this in it")
	command.AddCommand(s.newList(), s.newShow(), s.newRedrive(), s.newDrop())
	return command
}

func (s *selection) newList() *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use: "list", Short: "One line per message", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			lines := json.NewEncoder(cmd.OutOrStdout())
			if !asJSON {
				fmt.Fprintln(table, "QUEUE\tID\tTYPE\tOCCURRED\tATTEMPTS\tREASON")
			}
			err := s.each(func(_ *broker.Letters, letter *broker.Letter) error {
				if asJSON {
					return lines.Encode(letter)
				}
				fmt.Fprintf(table, "%s\t%.64q\t%s\t%s\t%d\t%s\n", letter.Queue, letter.ID, printable(letter.Type),
					letter.Occurred.Format(time.RFC3339), letter.Attempts, printable(firstLine(letter.Reason)))
				return nil
			})
			return errors.Join(err, table.Flush())
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print a JSON object per line")
	return command
}

func (s *selection) newShow() *cobra.Command {
	return &cobra.Command{
		Use: "show", Short: "All of each message, as JSON", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			encoder := json.NewEncoder(cmd.OutOrStdout())
			encoder.SetIndent("", "  ")
			return s.each(func(_ *broker.Letters, letter *broker.Letter) error { return encoder.Encode(newDocument(letter)) })
		},
	}
}

// inboxWindow is the age of the oldest event that billing handles by default: its window less its margin.
const inboxWindow = inbox.DefaultWindow - inbox.DefaultMargin

func (s *selection) newRedrive() *cobra.Command {
	var dryRun bool
	var force string
	var window time.Duration
	command := &cobra.Command{
		Use: "redrive", Short: "Have messages handled once more; what is selected must be said", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.require(); err != nil {
				return err
			}
			refused := 0
			err := s.each(func(letters *broker.Letters, letter *broker.Letter) error {
				if err := letter.TooOld(window); err != nil && force == "" {
					refused++
					say(cmd, "refused", letter, err)
					return nil
				}
				if dryRun {
					say(cmd, "would be redriven", letter, nil)
					return nil
				}
				if err := letters.Redrive(cmd.Context(), letter, force); err != nil {
					return err
				}
				say(cmd, "redriven", letter, nil)
				return nil
			})
			if err == nil && refused > 0 {
				err = fmt.Errorf("%d refused: find out whether they had their effect; if not, redrive them with --force and the reason", refused)
			}
			return err
		},
	}
	command.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be done, and do nothing")
	command.Flags().DurationVar(&window, "window", inboxWindow, "refuse what occurred longer ago: INBOX_WINDOW less an hour")
	command.Flags().StringVar(&force, "force", "", "have it handled whatever its age, for this reason, which goes with the message")
	return command
}

func (s *selection) newDrop() *cobra.Command {
	var dryRun bool
	command := &cobra.Command{
		Use: "drop", Short: "Remove messages for good, and print each as a line of JSON; what is selected must be said", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.require(); err != nil {
				return err
			}
			lines := json.NewEncoder(cmd.OutOrStdout())
			return s.each(func(letters *broker.Letters, letter *broker.Letter) error {
				if err := lines.Encode(newDocument(letter)); err != nil || dryRun {
					return err
				}
				return letters.Drop(letter)
			})
		},
	}
	command.Flags().BoolVar(&dryRun, "dry-run", false, "print what would be removed, and do nothing")
	return command
}

func (s *selection) require() error {
	if s.queue == "" && s.id == "" && s.reason == "" {
		return errors.New("say which messages: --queue, --id, --reason")
	}
	return nil
}

// each calls do for each letter that is selected, until it returns an error. To find no letter of an id is
// one, too.
func (s *selection) each(do func(*broker.Letters, *broker.Letter) error) error {
	shop, err := s.shop.shop()
	if err != nil {
		return err
	}
	url, err := shop.AMQPURL(setup.Operator)
	if err != nil {
		return err
	}
	queues := setup.OperatorsQueues()
	if s.queue != "" {
		queues = []string{s.queue}
	}
	found := false
	for _, queue := range queues {
		err := s.eachOf(url, queue, func(letters *broker.Letters, letter *broker.Letter) error {
			found = true
			return do(letters, letter)
		})
		if errors.Is(err, broker.ErrNoQueue) && s.queue == "" {
			continue // its service was never started
		}
		if err != nil {
			return err
		}
	}
	if s.id != "" && !found {
		return fmt.Errorf("no message fits: %q is in none of %s, or is not to be seen while somebody reads there", s.id, strings.Join(queues, ", "))
	}
	return nil
}

func (s *selection) eachOf(url, queue string, do func(*broker.Letters, *broker.Letter) error) (err error) {
	letters, err := broker.OpenLetters(url, queue)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, letters.Close()) }()
	for {
		letter, err := letters.Next()
		if err != nil || letter == nil {
			return err
		}
		if (s.id != "" && s.id != letter.ID) || !strings.Contains(letter.Reason, s.reason) {
			continue
		}
		if err := do(letters, letter); err != nil {
			return err
		}
	}
}

func say(cmd *cobra.Command, what string, letter *broker.Letter, why error) {
	fmt.Fprintf(cmd.OutOrStdout(), "%s: %s %q %s", what, letter.Queue, letter.ID, printable(letter.Type))
	if why != nil {
		fmt.Fprintf(cmd.OutOrStdout(), ": %s", printable(why.Error()))
	}
	fmt.Fprintln(cmd.OutOrStdout())
}

// firstLine returns what of a reason fits a table.
func firstLine(reason string) string {
	line, _, _ := strings.Cut(reason, "\n")
	if runes := []rune(line); len(runes) > 100 {
		line = string(runes[:100]) + "…"
	}
	return line
}

// document is all of a letter: the body as it is where that is JSON, in base64 elsewhere.
type document struct {
	*broker.Letter
	Headers map[string]any  `json:"headers"`
	Body    json.RawMessage `json:"body,omitempty"`
	Base64  []byte          `json:"body_base64,omitempty"`
}

func newDocument(letter *broker.Letter) document {
	d := document{Letter: letter, Headers: map[string]any{}}
	for name, value := range letter.Headers {
		if _, err := json.Marshal(value); err != nil {
			value = fmt.Sprint(value) // no number, or a time that JSON has no form for
		}
		d.Headers[name] = value
	}
	if json.Valid(letter.Body) {
		d.Body = letter.Body
	} else {
		d.Base64 = letter.Body
	}
	return d
}
