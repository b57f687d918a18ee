package cli

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/wafleet/wafleet/internal/auth"
	"github.com/wafleet/wafleet/internal/poolimport"
	"github.com/wafleet/wafleet/internal/seal"
	"github.com/wafleet/wafleet/internal/store"
)

type importPoolsCmd struct {
	keyTool
	Dir           string `arg:"" type:"existingdir" help:"Folder with session_pools.json, api_keys.json and sessions.json."`
	LookupKeyFile string `type:"existingfile" placeholder:"FILE" help:"File with the key under which the old gateway hashed its API keys: 64 hex digits, base64 of 32 bytes, or 32 raw bytes."`
	Apply         bool   `help:"Write it. Without this nothing is written: a dry run."`
	SkipProblems  bool   `help:"With --apply: leave out what can't be taken over, instead of doing nothing."`
}

// Run plans an import, and does it with --apply.
func (c *importPoolsCmd) Run(ctx context.Context, p *program) error {
	export, err := poolimport.Read(os.DirFS(c.Dir))
	if err != nil {
		return &usageError{err}
	}
	return c.with(ctx, p, func(ctx context.Context, s *store.Store, _ *auth.Auth) error {
		ctx = store.AsActor(ctx, "wafleet import pools")
		plan, err := poolimport.MakePlan(ctx, s, export)
		if err != nil {
			return err
		}
		withKeys, keyNote, err := c.canFindKeys(plan)
		if err != nil {
			return err
		}
		printPlan(p.stdout, c.Dir, plan, keyNote)
		switch {
		case !c.Apply:
			_, _ = fmt.Fprintln(p.stdout, "\nNothing was written: this was a dry run. The same with --apply does it.")
			return nil
		case len(plan.Problems) > 0 && !c.SkipProblems:
			return fmt.Errorf("nothing was written: %d documents can't be taken over; mend the export, or leave them out with --skip-problems", len(plan.Problems))
		case countKeys(plan) > 0 && !withKeys:
			return errors.New("nothing was written: " + keyNote)
		}
		if err := plan.Apply(ctx, s, withKeys); err != nil {
			return err
		}
		_, _ = fmt.Fprintln(p.stdout, "\nDone. Doing it again changes nothing.")
		return nil
	})
}

// canFindKeys says whether the gateway will find the keys that would be taken over, and if not, what to do.
func (c *importPoolsCmd) canFindKeys(plan *poolimport.Plan) (ok bool, note string, err error) {
	if countKeys(plan) == 0 {
		return true, "", nil
	}
	if c.LookupKeyFile == "" {
		return false, "API keys are found by hashes under the old gateway's lookup key: name its file with --lookup-key-file", nil
	}
	raw, err := os.ReadFile(c.LookupKeyFile)
	if err != nil {
		return false, "", fmt.Errorf("read the old lookup key: %w", err)
	}
	text := string(raw)
	if len(raw) == seal.KeySize {
		text = hex.EncodeToString(raw)
	}
	old, err := seal.ParseKey(text)
	if err != nil {
		return false, "", &usageError{fmt.Errorf("--lookup-key-file: %w, or be 32 raw bytes", err)}
	}
	_, lookup, err := keys(&c.Keys)
	if err != nil {
		return false, "", err
	}
	if !lookup.Knows(old) {
		return false, "set LOOKUP_KEY_PREVIOUS (or LOOKUP_KEY_PREVIOUS_FILE) to the old lookup key, for this command and for every process: without it the keys would never be found", nil
	}
	return true, "", nil
}

func countKeys(plan *poolimport.Plan) int {
	n := 0
	for i := range plan.Organizations {
		for _, k := range plan.Organizations[i].Keys {
			if !k.Exists {
				n++
			}
		}
	}
	return n
}

// mark tells what is new from what is there already.
func mark(exists bool) string {
	if exists {
		return "="
	}
	return "+"
}

func printPlan(w io.Writer, dir string, plan *poolimport.Plan, keyNote string) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	say("%s: %d pools, %d API keys, %d sessions (+ new, = there already, ! can't be taken over)",
		dir, plan.Counts["session_pools"], plan.Counts["api_keys"], plan.Counts["sessions"])
	sessions := 0
	for i := range plan.Organizations {
		o := &plan.Organizations[i]
		say("\n%s organization %s  %q, %s", mark(o.Exists), o.ID, o.Label, o.Strategy)
		for _, s := range o.Sessions {
			about := []string{"needs pairing"}
			if s.Phone != "" {
				about = append([]string{"number ending in " + s.Phone[len(s.Phone)-4:]}, about...)
			}
			if s.WarmupAt.IsZero() {
				about = append(about, "warmed up")
			} else {
				about = append(about, "in its ramp since "+s.WarmupAt.UTC().Format("2006-01-02"))
			}
			if s.Paused {
				about = append(about, "paused")
			}
			if s.Exists {
				about = nil
			} else {
				sessions++
			}
			say("  %s session %s  %s", mark(s.Exists), s.Slug, strings.Join(about, ", "))
		}
		for _, k := range o.Keys {
			say("  %s key %s  %q", mark(k.Exists), orDash(k.Prefix), k.Label)
		}
	}
	if len(plan.Problems) > 0 {
		say("\nCan't be taken over:")
		for _, problem := range plan.Problems {
			say("  ! %s", problem)
		}
	}
	notes := slices.Clone(plan.Notes)
	if sessions > 0 {
		notes = append(notes, "the export holds no WhatsApp login: each new session must be linked once more, with the phone that has its number (a pairing link does not reach it; use POST /api/admin/sessions/{sessionId}/pair)")
	}
	if keyNote != "" {
		notes = append(notes, keyNote)
	}
	notes = append(notes, "read were "+poolimport.Encodings)
	say("\nNotes:")
	for _, note := range notes {
		say("  - %s", note)
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
