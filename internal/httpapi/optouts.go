package httpapi

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

// importPath takes a table instead of JSON.
const importPath = "/api/v1/opt-outs/import"

const (
	exportPage    = 1000
	importBatch   = 500 // rows of one transaction
	mostWrongRows = 100 // that are told one by one
)

// OptOut is a person who does not want to hear from the organization.
type OptOut struct {
	ContactID fleet.ContactID    `json:"contactId" example:"ctc_01k8z3v5hq2m6t9x4c7b0n1d8e"`
	Phone     string             `json:"phone,omitempty" example:"+5511900000001"`
	LID       string             `json:"lid,omitempty" example:"100000000000001"`
	Source    fleet.OptOutSource `json:"source" enum:"keyword,manual,import"`
	Keyword   string             `json:"keyword,omitempty" doc:"As the person wrote it." example:"STOP"`
	At        *time.Time         `json:"at" doc:"Of a keyword WhatsApp's time of the message."`
}

func optOutView(o fleet.OptOut) OptOut {
	v := OptOut{ContactID: o.ContactID, LID: o.LID, Source: o.Source, Keyword: o.Keyword, At: when(o.At)}
	if o.Phone != "" {
		v.Phone = "+" + o.Phone
	}
	return v
}

// ImportResult says what became of a table.
type ImportResult struct {
	Added   int        `json:"added" doc:"Opted out by this import."`
	Already int        `json:"already" doc:"Had opted out before."`
	Wrong   int        `json:"wrong" doc:"Rows that name no recipient; all others are in."`
	Rows    []WrongRow `json:"rows" doc:"The first hundred of the wrong ones."`
}

// WrongRow is a row that could not be read.
type WrongRow struct {
	Line   int    `json:"line"`
	Detail string `json:"detail"`
}

func registerOptOuts(api huma.API, d *deps) {
	operation := func(method, path, id, summary, description string) huma.Operation {
		return huma.Operation{
			OperationID: id, Method: method, Path: "/api/v1/opt-outs" + path, Tags: []string{"Opt-outs"}, Summary: summary,
			Description: description, Security: organizationSecurity,
		}
	}
	huma.Register(api, operation(http.MethodGet, "", "list-opt-outs", "List who opted out", ""),
		func(ctx context.Context, in *Paging) (*reply[Page[OptOut]], error) {
			rows, next, err := d.store.ListOptOuts(ctx, caller(ctx).OrgID, in.Cursor, in.Limit)
			if err != nil {
				return nil, err
			}
			page := Page[OptOut]{Items: make([]OptOut, len(rows)), NextCursor: next}
			for i, o := range rows {
				page.Items[i] = optOutView(o)
			}
			return &reply[Page[OptOut]]{page}, nil
		})

	op := operation(http.MethodPost, "", "add-opt-out", "Opt somebody out",
		"From now on nothing is sent to this person on any of the organization's numbers: messages that wait become suppressed.")
	op.DefaultStatus = http.StatusOK
	huma.Register(api, op, func(ctx context.Context, in *struct {
		Body struct {
			To string `json:"to" doc:"A recipient, in any form that sending takes." example:"+5511900000001"`
		}
	},
	) (*reply[Contact], error) {
		return d.optOut(ctx, in.Body.To, true)
	})

	huma.Register(api, operation(http.MethodDelete, "/{to}", "remove-opt-out", "Let somebody hear from the organization again",
		"For people who asked for it in another way than by START."),
		func(ctx context.Context, in *struct {
			To string `path:"to" doc:"A recipient, in any form that sending takes." example:"ctc_01k8z3v5hq2m6t9x4c7b0n1d8e"`
		},
		) (*reply[Contact], error) {
			return d.optOut(ctx, in.To, false)
		})

	huma.Register(api, operation(http.MethodGet, "/export", "export-opt-outs", "Get all opt-outs as a table",
		"CSV with a head line: to,contactId,phone,lid,source,keyword,at. The first column is what an import reads."),
		d.exportOptOuts)

	op = operation(http.MethodPost, "/import", "import-opt-outs", "Opt out everybody in a table",
		"CSV, at most 1 MiB: the first column is a recipient in any form that sending takes, others are ignored, and so is a head line that begins with \"to\" or \"phone\".")
	op.DefaultStatus = http.StatusOK
	op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{"text/csv": {Schema: &huma.Schema{Type: huma.TypeString}}}}
	huma.Register(api, op, func(ctx context.Context, in *struct {
		RawBody []byte `contentType:"text/csv"`
	},
	) (*reply[ImportResult], error) {
		out, err := d.importOptOuts(ctx, caller(ctx).OrgID, in.RawBody)
		if err != nil {
			return nil, err
		}
		return &reply[ImportResult]{out}, nil
	})
}

func (d *deps) optOut(ctx context.Context, to string, stop bool) (*reply[Contact], error) {
	org := caller(ctx).OrgID
	r, err := d.outbound.ParseRecipient(ctx, org, to)
	if err != nil {
		return nil, err
	}
	if !stop { // somebody who is not known has not opted out
		known, err := d.store.Recipient(ctx, org, r)
		if err == nil && (known == nil || !known.OptedOut) {
			err = fleet.ErrNotFound
		}
		if err != nil {
			return nil, err
		}
	}
	k, _, err := d.store.OptOut(ctx, org, r, store.Decision{Stop: stop, Source: fleet.OptOutManual})
	if err != nil {
		return nil, err
	}
	return &reply[Contact]{contactView(k)}, nil
}

func (d *deps) exportOptOuts(ctx context.Context, _ *struct{}) (*huma.StreamResponse, error) {
	org := caller(ctx).OrgID
	first, next, err := d.store.ListOptOuts(ctx, org, "", exportPage) // a database that is away is still a problem
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(h huma.Context) { //nolint:contextcheck // the request's context, as huma hands it to what streams
		h.SetHeader("Content-Type", "text/csv; charset=utf-8")
		h.SetHeader("Content-Disposition", `attachment; filename="opt-outs.csv"`)
		w := csv.NewWriter(h.BodyWriter())
		_ = w.Write([]string{"to", "contactId", "phone", "lid", "source", "keyword", "at"}) // Flush's error is the last
		for page := first; ; {
			for _, o := range page {
				_ = w.Write(optOutRow(optOutView(o)))
			}
			if w.Flush(); w.Error() != nil || next == "" {
				return
			}
			if page, next, err = d.store.ListOptOuts(h.Context(), org, next, exportPage); err != nil {
				panic(http.ErrAbortHandler) // a table that ends early must not look whole
			}
		}
	}}, nil
}

func optOutRow(o OptOut) []string {
	to := o.Phone
	if to == "" {
		to = o.LID + "@lid"
	}
	return []string{to, string(o.ContactID), o.Phone, o.LID, string(o.Source), sheetSafe(o.Keyword), o.At.Format(time.RFC3339)}
}

// sheetSafe keeps what a stranger wrote from being a formula in a spreadsheet.
func sheetSafe(text string) string {
	if text != "" && strings.ContainsRune("=+-@\t\r", rune(text[0])) {
		return "'" + text
	}
	return text
}

func (d *deps) importOptOuts(ctx context.Context, org fleet.OrgID, table []byte) (ImportResult, error) {
	out := ImportResult{Rows: []WrongRow{}}
	wrong := func(line int, detail string) {
		if out.Wrong++; len(out.Rows) < mostWrongRows {
			out.Rows = append(out.Rows, WrongRow{line, detail})
		}
	}
	in := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(table, []byte("\ufeff"))))
	in.FieldsPerRecord, in.ReuseRecord = -1, true
	var batch []fleet.Recipient
	flush := func() error {
		var added, already int
		err := d.store.InTx(ctx, func(ctx context.Context) error {
			added, already = 0, 0
			for _, r := range batch {
				_, changed, err := d.store.OptOut(ctx, org, r, store.Decision{Stop: true, Source: fleet.OptOutImport})
				if err != nil {
					return err
				}
				if changed {
					added++
				} else {
					already++
				}
			}
			return nil
		})
		out.Added, out.Already, batch = out.Added+added, out.Already+already, batch[:0]
		return err
	}
	for first := true; ; first = false {
		row, err := in.Read()
		if errors.Is(err, io.EOF) {
			return out, flush()
		}
		if bad, ok := errors.AsType[*csv.ParseError](err); ok {
			wrong(bad.StartLine, "has a quotation mark that does not belong there or is not closed; then nothing after it was read")
			continue
		} else if err != nil {
			return out, err
		}
		line, _ := in.FieldPos(0)
		if first && (row[0] == "to" || row[0] == "phone") || len(row) == 1 && row[0] == "" {
			continue
		}
		r, err := d.outbound.ParseRecipient(ctx, org, row[0])
		if err == nil && r.Contact != "" {
			_, err = d.store.GetContact(ctx, org, r.Contact)
		}
		if bad, ok := errors.AsType[*fleet.InvalidError](err); ok {
			wrong(line, bad.Detail)
			continue
		} else if errors.Is(err, fleet.ErrNotFound) {
			wrong(line, "is no contact of this organization")
			continue
		} else if err != nil {
			return out, err
		}
		if batch = append(batch, r); len(batch) == importBatch {
			if err := flush(); err != nil {
				return out, err
			}
		}
	}
}
