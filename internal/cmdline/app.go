package cmdline

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Command is one thing that a program does.
type Command struct {
	Name string // one word, or several: "keys create"
	Help string
	Into any // pointer to the struct of its flags; nil: a heading of the commands whose names begin with this one
}

// Group is a heading of flags.
type Group struct{ Key, Title string }

// Program is a whole command line.
type Program struct {
	Name, Help string
	Commands   []Command
	Groups     []Group
	About      func(*Flag) string // a flag's help, if not its tag's
}

// Parsed is a command line that was read.
type Parsed struct {
	*Command
	*Line
	Help string // the text that was asked for: print it, and nothing else
}

// Parse reads a command line, without the program's name. The error is an *Error.
func (p *Program) Parse(args []string) (*Parsed, error) {
	c, rest, err := p.command(args)
	if err != nil || c == nil || c.Into == nil {
		return &Parsed{Command: c, Help: p.list(c)}, err
	}
	l := Describe(c.Into)
	help, err := l.Read(rest)
	out := &Parsed{Command: c, Line: l}
	if help {
		out.Help = p.help(c, l)
	}
	return out, err
}

// command finds the command that the first words name; nil, or one without a struct: they ask for help.
func (p *Program) command(args []string) (*Command, []string, error) {
	var head *Command
	name := ""
	for i, word := range args {
		if word == "-h" || word == "--help" {
			return head, nil, nil
		}
		name = strings.TrimSpace(name + " " + word)
		at := slices.IndexFunc(p.Commands, func(c Command) bool { return c.Name == name })
		switch {
		case at < 0 && strings.HasPrefix(word, "-"):
			return nil, nil, wrong("unknown flag %s: flags stand behind the command", strings.SplitN(word, "=", 2)[0])
		case at < 0:
			return nil, nil, wrong("unexpected argument %s: %s", word, p.expected(head))
		case p.Commands[at].Into != nil:
			return &p.Commands[at], args[i+1:], nil
		}
		head = &p.Commands[at]
	}
	return nil, nil, wrong("%s", p.expected(head))
}

// under are the commands below a heading, or all.
func (p *Program) under(head *Command) (out []Command) {
	for _, c := range p.Commands {
		if c.Into != nil && (head == nil || strings.HasPrefix(c.Name, head.Name+" ")) {
			out = append(out, c)
		}
	}
	return out
}

func (p *Program) expected(head *Command) string {
	var names []string
	for _, c := range p.under(head) {
		names = append(names, fmt.Sprintf("%q", c.Name))
	}
	return "expected one of " + strings.Join(names, ", ")
}

// Help texts are this wide, and what stands on the left of them not wider than a good third.
const (
	width   = 80
	leftMax = 26
)

// list is the help of a heading or, for nil, of the program.
func (p *Program) list(head *Command) string {
	name, about := p.Name, p.Help
	if head != nil {
		name, about = name+" "+head.Name, head.Help
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Usage: %s <command>\n\n%s\n\nFlags:\n  -h, --help    Show help.\n\nCommands:\n", name, about)
	var rows [][2]string
	for _, c := range p.under(head) {
		rows = append(rows, [2]string{c.Name, c.Help})
	}
	table(&b, rows)
	fmt.Fprintf(&b, "\nRun \"%s <command> --help\" for more on a command.\n", p.Name)
	return b.String()
}

// help is the help of one command.
func (p *Program) help(c *Command, l *Line) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage: %s %s", p.Name, c.Name)
	for _, a := range l.Args {
		fmt.Fprintf(&b, " %s", a.shown())
	}
	fmt.Fprintf(&b, " [flags]\n\n%s\n", c.Help)
	about := func(f *Flag) string { return f.Tag.Get("help") }
	var rows [][2]string
	for _, a := range l.Args {
		rows = append(rows, [2]string{a.shown(), about(a)})
	}
	if len(rows) > 0 {
		b.WriteString("\nArguments:\n")
		table(&b, rows)
	}
	if p.About != nil {
		about = p.About
	}
	for _, g := range append([]Group{{"", "Flags:"}}, p.Groups...) {
		rows = nil
		if g.Key == "" {
			rows = append(rows, [2]string{"-h, --help", "Show help."})
		}
		for _, f := range l.Flags {
			if f.Tag.Get("group") == g.Key {
				rows = append(rows, [2]string{f.shown(), about(f)})
			}
		}
		if len(rows) > 0 {
			fmt.Fprintf(&b, "\n%s\n", cmp.Or(g.Title, g.Key))
			table(&b, rows)
		}
	}
	return b.String()
}

// table writes two columns.
func table(b *strings.Builder, rows [][2]string) {
	left := 0
	for _, r := range rows {
		if n := len([]rune(r[0])); n <= leftMax {
			left = max(left, n)
		}
	}
	for _, r := range rows {
		lines := wrap(r[1], width-left-6)
		if n := len([]rune(r[0])); n > left {
			fmt.Fprintf(b, "  %s\n", r[0])
		} else {
			fmt.Fprintf(b, "  %s%s    %s\n", r[0], strings.Repeat(" ", left-n), lines[0])
			lines = lines[1:]
		}
		for _, line := range lines {
			fmt.Fprintf(b, "%s%s\n", strings.Repeat(" ", left+6), line)
		}
	}
}

// wrap breaks a text into lines of at most so many characters, where its words allow it.
func wrap(text string, most int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len([]rune(line))+1+len([]rune(word)) > most {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	return append(lines, line)
}
