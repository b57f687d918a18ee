package httpapi

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/wafleet/wafleet/internal/auth"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

const problemType = "application/problem+json"

// Problem is the body of every refusal, as RFC 9457 writes it.
type Problem struct { //nolint:errname // RFC 9457 calls it a problem; that it is an error too is for huma
	Title             string         `json:"title" doc:"The HTTP status in words." example:"Unprocessable Entity"`
	Status            int            `json:"status" doc:"The HTTP status." example:"422"`
	Code              string         `json:"code" doc:"What is wrong, for programs: stable, upper snake case." example:"VALIDATION"`
	Detail            string         `json:"detail" doc:"What is wrong and what to do, for people." example:"one field is not as it should be"`
	RetryAfterSeconds int            `json:"retryAfterSeconds,omitempty" doc:"When trying again makes sense; the Retry-After header says the same. Missing: not by waiting alone." example:"2"`
	RequestID         string         `json:"requestId,omitempty" doc:"Names this request in the gateway's log." example:"req_01k8z3v5hq2m6t9x4c7b0n1d8e"`
	Errors            []FieldProblem `json:"errors,omitempty" doc:"The inputs that are wrong, one by one."`

	cause error // for the log only
}

// FieldProblem says what is wrong with one input.
type FieldProblem struct {
	Field  string `json:"field" doc:"JSON path of the input, or the parameter's name." example:"to"`
	Detail string `json:"detail" example:"must start with a country code, not with 0"`
}

// Error is the text for people.
func (p *Problem) Error() string { return p.Code + ": " + p.Detail }

// GetStatus is how huma learns the HTTP status.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType is how huma learns the media type.
func (p *Problem) ContentType(string) string { return problemType }

// problem makes one.
func problem(status int, code, detail string) *Problem {
	return &Problem{Title: http.StatusText(status), Status: status, Code: code, Detail: detail}
}

// invalid makes the error for one input that can't be accepted.
func invalid(code, field, detail string) error {
	return &fleet.InvalidError{Code: code, Field: field, Detail: detail}
}

func conflict(code, detail string) error {
	return &fleet.CodedError{Code: code, Detail: detail, Err: fleet.ErrConflict}
}

// databaseRetry is what we say when the database doesn't answer: long enough not to add to its
// trouble, short enough for a failover of it.
const databaseRetry = 2 * time.Second

// codeStatus gives the HTTP status of refusals that their sentinel alone does not decide.
var codeStatus = map[string]int{
	"RATE_LIMITED":        http.StatusTooManyRequests,
	"API_RATE_LIMITED":    http.StatusTooManyRequests,
	"QUOTA_EXCEEDED":      http.StatusTooManyRequests,
	"BACKLOG_FULL":        http.StatusTooManyRequests,
	"RECIPIENT_OPTED_OUT": http.StatusForbidden,
	"NOT_ON_WHATSAPP":     http.StatusUnprocessableEntity,
}

// problemFor is the answer to an error, with the error behind it for the log.
func problemFor(err error) *Problem {
	p := *tableOf(err)
	p.cause = err
	return &p
}

// tableOf is the one table from errors to answers.
func tableOf(err error) *Problem {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	if e, ok := errors.AsType[*fleet.InvalidError](err); ok {
		p := problem(http.StatusUnprocessableEntity, e.Code, e.Error())
		p.Errors = []FieldProblem{{e.Field, e.Detail}}
		return p
	}
	if e, ok := errors.AsType[*fleet.CodedError](err); ok {
		status, known := codeStatus[e.Code]
		switch {
		case known:
		case errors.Is(e, fleet.ErrUnavailable):
			status = http.StatusServiceUnavailable
		case errors.Is(e, fleet.ErrNotFound):
			status = http.StatusNotFound
		case errors.Is(e, fleet.ErrInvalid):
			status = http.StatusUnprocessableEntity
		default:
			status = http.StatusConflict
		}
		return problem(status, e.Code, e.Detail).after(e.RetryAfter)
	}
	switch {
	case errors.Is(err, auth.ErrUnauthorized):
		return problem(http.StatusUnauthorized, "UNAUTHORIZED", "give one valid API key as \"Authorization: Bearer …\" or X-Api-Key")
	case errors.Is(err, fleet.ErrNotFound):
		return problem(http.StatusNotFound, "NOT_FOUND", "there is no such thing here")
	case errors.Is(err, fleet.ErrNumberInUse):
		return problem(http.StatusConflict, "NUMBER_IN_USE", "another session has this WhatsApp number")
	case errors.Is(err, store.ErrOrder):
		return problem(http.StatusUnprocessableEntity, "ORDER_INCOMPLETE", "sessions must name every session of the organization exactly once")
	case errors.Is(err, fleet.ErrConflict):
		return problem(http.StatusConflict, "CONFLICT", "it exists already, or is not in a state that allows this")
	case errors.Is(err, fleet.ErrInvalid):
		return problem(http.StatusUnprocessableEntity, "VALIDATION", "the input can't be accepted as it is")
	case errors.Is(err, fleet.ErrUnavailable):
		return problem(http.StatusServiceUnavailable, "DATABASE_UNAVAILABLE", "the database does not answer, try again").after(databaseRetry)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return problem(http.StatusServiceUnavailable, "TIMEOUT", "it took too long, try again").after(databaseRetry)
	default:
		return problem(http.StatusInternalServerError, "INTERNAL", "something went wrong on our side; the log names it by requestId")
	}
}

func (p *Problem) after(d time.Duration) *Problem {
	if d > 0 {
		p.RetryAfterSeconds = int(math.Ceil(d.Seconds()))
	}
	return p
}

// complete adds what belongs to this request and returns a copy: problems may be shared values.
func (p *Problem) complete(ctx context.Context) *Problem {
	out := *p
	if x := exchangeFrom(ctx); x != nil {
		out.RequestID = x.id
		x.err, x.code = p.cause, p.Code
	}
	return &out
}

// completeProblem is complete for every problem that huma writes, whoever made it.
func completeProblem(ctx huma.Context, _ string, v any) (any, error) {
	p, ok := v.(*Problem)
	if !ok {
		return v, nil
	}
	p = p.complete(ctx.Context())
	p.headers(ctx.SetHeader)
	return p, nil
}

func (p *Problem) headers(set func(name, value string)) {
	if p.RetryAfterSeconds > 0 {
		set("Retry-After", strconv.Itoa(p.RetryAfterSeconds))
	}
	if p.Status == http.StatusTooManyRequests {
		set("RateLimit-Remaining", "0")
		if p.RetryAfterSeconds > 0 {
			set("RateLimit-Reset", strconv.Itoa(p.RetryAfterSeconds))
		}
	}
	if p.Status == http.StatusUnauthorized {
		set("WWW-Authenticate", `Bearer realm="wafleet"`)
	}
}

// humaError is where huma's own refusals and the errors of our handlers become problems.
func humaError(_ huma.Context, status int, msg string, errs ...error) huma.StatusError {
	switch {
	case status == http.StatusInternalServerError && len(errs) == 1: // a handler's error
		return problemFor(errs[0])
	case status == http.StatusBadRequest:
		return problem(status, "BAD_JSON", "the body must be a JSON object")
	case status == http.StatusUnprocessableEntity:
		return validationProblem(errs)
	default:
		return problem(status, strings.ToUpper(strings.ReplaceAll(http.StatusText(status), " ", "_")), msg)
	}
}

// validationProblem lists what the schema refused. The values themselves are not repeated: they may
// be secrets or somebody's number.
func validationProblem(errs []error) *Problem {
	p := problem(http.StatusUnprocessableEntity, "VALIDATION", "")
	for _, err := range errs {
		d, ok := err.(huma.ErrorDetailer)
		if !ok {
			p.Errors = append(p.Errors, FieldProblem{"", "is not as it should be"})
			continue
		}
		detail := d.ErrorDetail()
		p.Errors = append(p.Errors, FieldProblem{fieldName(detail.Location), detail.Message})
	}
	switch len(p.Errors) {
	case 0:
		p.Detail = "the input is not as it should be"
	case 1:
		p.Detail = strings.TrimSpace(p.Errors[0].Field + ": " + p.Errors[0].Detail)
	default:
		p.Detail = strconv.Itoa(len(p.Errors)) + " fields are not as they should be"
	}
	return p
}

// fieldName turns huma's location ("body.to", "query.limit") into the name the caller used.
func fieldName(location string) string {
	for _, prefix := range []string{"body.", "query.", "path.", "header."} {
		if rest, ok := strings.CutPrefix(location, prefix); ok {
			return rest
		}
	}
	return location
}

// writeProblem answers a request that did not reach huma.
func writeProblem(w http.ResponseWriter, r *http.Request, p *Problem) {
	p = p.complete(r.Context())
	p.headers(w.Header().Set)
	w.Header().Set("Content-Type", problemType)
	w.WriteHeader(p.Status)
	writeJSON(w, p)
}
