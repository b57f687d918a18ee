package httpapi

import (
	"context"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wafleet/wafleet/internal/auth"
	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/outbound"
	"github.com/wafleet/wafleet/internal/store"
)

// Options of New.
type Options struct {
	Store      *store.Store
	Auth       *auth.Auth
	Outbound   *outbound.Outbound
	Bus        bus.Bus
	Log        *slog.Logger
	Registerer prometheus.Registerer // nil = no metrics
	Version    string                // of the binary, for the OpenAPI document
	PublicURL  string                // where clients reach this API, for links; without a slash at its end
	// Pages serves what people open without a key, by path prefix ("/pair/"). They come behind the log and
	// the text checks, and have nothing to do with API keys.
	Pages map[string]http.Handler
	// AllowPrivateWebhooks lets endpoints name addresses inside our own network.
	AllowPrivateWebhooks bool
}

// deps is what handlers work with.
type deps struct {
	store    *store.Store
	auth     *auth.Auth
	outbound *outbound.Outbound
	bus      bus.Bus
	log      *slog.Logger
	metrics  *metrics
	waits    *waiters
	budgets  budgets
	pages    map[string]http.Handler

	publicURL            string
	allowPrivateWebhooks bool
}

// API is the HTTP surface of one process.
type API struct {
	http.Handler
	deps *deps
	huma huma.API
}

// installProblems makes huma answer with our problems and read field names exactly. huma keeps both
// in variables of the package, so this is once for the process.
var installProblems = sync.OnceFunc(func() {
	huma.DefaultArrayNullable = false // a list is a list, also an empty one
	huma.ValidateStrictCasing = true  // "TO" is not "to": encoding/json alone would take both
	huma.NewErrorWithContext = humaError
	huma.NewError = func(status int, msg string, _ ...error) huma.StatusError {
		return problem(status, "ERROR", msg) // only its type matters: it is the error schema of the OpenAPI document
	}
})

// New builds the handler. It serves at once; Run must be running for requests that wait.
func New(o Options) *API {
	installProblems()
	d := &deps{
		store: o.Store, auth: o.Auth, outbound: o.Outbound, bus: o.Bus, log: o.Log, metrics: newMetrics(o.Registerer),
		waits:                newWaiters(o.Store, o.Bus, o.Log),
		allowPrivateWebhooks: o.AllowPrivateWebhooks, pages: o.Pages, publicURL: strings.TrimSuffix(o.PublicURL, "/"),
	}
	mux := http.NewServeMux()
	api := humago.New(mux, humaConfig(o.Version))
	registerAll(api, d)
	if err := registerDocs(mux, api); err != nil {
		panic(err) // only embedded files and our own types: it fails in every test or never
	}
	return &API{
		Handler: d.observe(d.checkURL(d.servePages(d.authenticate(d.readBody(d.route(mux)))))),
		deps:    d, huma: api,
	}
}

// Run does what requests wait for, until the context ends.
func (a *API) Run(ctx context.Context) error {
	a.deps.waits.run(ctx)
	return nil
}

// registerAll adds every operation, in the order in which the documentation shows them.
func registerAll(api huma.API, d *deps) {
	registerMessages(api, d)
	registerContacts(api, d)
	registerOptOuts(api, d)
	registerOwnOrganization(api, d)
	registerRouting(api, d)
	registerEndpoints(api, d)
	registerDeliveries(api, d, consumerSide)
	registerEvents(api, d, consumerSide)
	registerOrganizations(api, d)
	registerProjects(api, d)
	registerSessions(api, d)
	registerPairing(api, d)
	registerInvites(api, d)
	registerKeys(api, d)
	registerAudit(api, d)
	registerWorkers(api, d)
	registerPurges(api, d)
	registerUsage(api, d)
	registerDeliveries(api, d, operatorSide)
	registerEvents(api, d, operatorSide)
}

const description = `A gateway for fleets of WhatsApp numbers.

Send with an organization's key (wfk_…) under /api/v1; operate with an admin key (wfa_…) under /api/admin.
Give the key as "Authorization: Bearer …" or X-Api-Key, never in the URL.

Every refusal is an RFC 9457 problem with a stable "code". Times are RFC 3339 in UTC. Lists give "nextCursor" while there is more. Unknown fields and parameters are refused, so a typing error never goes unnoticed.`

// apiVersion counts what callers can see, not releases of the binary.
const apiVersion = "1"

func humaConfig(version string) huma.Config {
	c := huma.DefaultConfig("wafleet", apiVersion)
	c.Info.Description = description
	if version != "" {
		c.Info.Extensions = map[string]any{"x-gateway-version": version}
	}
	for _, tag := range []string{
		"Messages", "Contacts", "Opt-outs", "Webhooks", "Organization", "Organizations", "Sessions", "Pairing links", "Keys", "Audit log", "Workers", "Operator webhooks",
	} {
		c.Tags = append(c.Tags, &huma.Tag{Name: tag})
	}
	c.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		"organizationKey": {Type: "http", Scheme: "bearer", Description: "Key of one organization, wfk_…"},
		"adminKey":        {Type: "http", Scheme: "bearer", Description: "Admin key, wfa_…"},
	}
	c.Components.Schemas = huma.NewMapRegistry("#/components/schemas/", schemaName)
	c.OpenAPIPath, c.DocsPath, c.SchemasPath = "", "", "" // own pages, that need nothing from elsewhere
	c.CreateHooks = nil                                   // no $schema links in answers
	c.Transformers = []huma.Transformer{completeProblem}
	c.RejectUnknownQueryParameters = true
	c.Formats = map[string]huma.Format{"application/json": huma.DefaultJSONFormat, "json": huma.DefaultJSONFormat} // the second: …+json
	return c
}

// schemaName is huma's, with operation ids in the same form as type names: CreateKeyRequest.
func schemaName(t reflect.Type, hint string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(hint, "-") {
		if part != "" {
			b.WriteString(strings.ToUpper(part[:1]) + part[1:])
		}
	}
	return huma.DefaultSchemaNamer(t, b.String())
}

var (
	organizationSecurity = []map[string][]string{{"organizationKey": {}}}
	adminSecurity        = []map[string][]string{{"adminKey": {}}}
)
