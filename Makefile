# `make help` lists the targets. Everything here also runs on a fresh machine with Go and git; what else a target needs it
# installs (scripts/need) or says.

SHELL := bash
.DEFAULT_GOAL := help

GO      ?= go
SIM     := .cache/sim.mod
LINT    := .cache/bin/golangci-lint
FUZZTIME ?= 10s
# SQLite is C translated to Go: watching every byte it touches made the suite four times slower and can find nothing of ours.
RACE    := -race -gcflags=modernc.org/sqlite/lib=-race=false
SEEDS   ?= 100
FROM    ?= 1
GOFILES  = $(shell git ls-files --cached --others --exclude-standard '*.go')

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build ./wafleet, without cgo
	CGO_ENABLED=0 $(GO) build -trimpath -o wafleet .

.PHONY: run-demo
run-demo: ## Start the demo: simulator, two numbers, one process
	$(GO) run . demo

.PHONY: mend
mend: ## Make the mended copies of three modules and .cache/sim.mod (docs/mended-modules.md)
	@scripts/mend-modules

.PHONY: test
test: mend ## Run the whole suite with the race detector, on private PostgreSQL and Redis; then simulate 20 seeds without it, and fuzz for half a minute
	CGO_ENABLED=1 scripts/test-services -- $(GO) test $(RACE) -shuffle=on -modfile=$(SIM) -timeout 15m ./...
	$(GO) test -shuffle=on -modfile=$(SIM) ./internal/simulate
	MODFILE=$(SIM) FUZZTIME=2s scripts/fuzz

.PHONY: test-fast
test-fast: mend ## Run the suite without the race detector; results of unchanged packages are reused
	scripts/test-services -- $(GO) test -modfile=$(SIM) -timeout 10m ./...

.PHONY: test-pgbouncer
test-pgbouncer: mend ## Run every test on PostgreSQL through PgBouncer in transaction mode
	@MODFILE=$(SIM) scripts/test-pgbouncer

.PHONY: test-interop
test-interop: ## Let a WhatsApp client of another make talk to wafleet through the simulator (needs npm)
	@scripts/interop

.PHONY: test-browser
test-browser: ## Open the pages of pairing links in Chromium, and scan what it shows (ARTIFACTS= for the screenshots)
	@scripts/need chromium zbar
	$(GO) test -tags browser -count=1 -timeout 5m $(if $(ARTIFACTS),-artifacts -outputdir $(abspath $(ARTIFACTS))) -run InABrowser ./internal/pairing

.PHONY: fuzz
fuzz: mend ## Run every fuzz target for FUZZTIME (10s)
	MODFILE=$(SIM) FUZZTIME=$(FUZZTIME) scripts/fuzz

.PHONY: simulate
simulate: mend ## Run the gateway in one bubble under SEEDS (100) plans of faults from FROM (1), and catch planted bugs (PLANTS= for none)
	@MODFILE=$(abspath $(SIM)) SEEDS=$(SEEDS) FROM=$(FROM) scripts/simulate

.PHONY: crash
crash: ## kill -9 of every process in a storm, KILLS (50) moments, then planted bugs (SEED, SESSIONS, PHASES; docs/trials.md)
	@scripts/need postgres redis
	@$(GO) run ./trials/crash

.PHONY: failover
failover: ## kill -9 and stop a worker of SESSIONS (200), start all at once: how soon everything is connected elsewhere (docs/trials.md)
	@scripts/need postgres redis
	@$(GO) run ./trials/failover

.PHONY: rolling
rolling: ## Restart all workers under 50 messages a second each way, go from one shard to two and back, lose a shard's worker (PARTS, SESSIONS, RATE)
	@scripts/need postgres redis
	@$(GO) run ./trials/rolling

.PHONY: stale
stale: ## Freeze a worker until another owns its sessions, wake it, then the same with planted bugs (RUNS; docs/trials.md)
	@scripts/need postgres redis
	@$(GO) run ./trials/stale

.PHONY: routing
routing: ## Budgets over two api processes with a frozen worker, and four ways for Redis to lose its memory, then planted bugs (PARTS, HOLD, PLANTS)
	@scripts/need postgres redis
	@$(GO) run ./trials/routing

.PHONY: outage
outage: ## Take PostgreSQL, Redis and the disk away in mid-traffic: 0 lost, 0 doubled, 503 with Retry-After (PARTS, SESSIONS)
	@scripts/need postgres redis
	@$(GO) run ./trials/outage

.PHONY: bench-send
bench-send: ## Sends per second beside the bare library (MESSAGES, SESSIONS, DATABASE, ROUNDS)
	@scripts/need postgres redis
	@$(GO) run ./trials/send

.PHONY: bench-sessions
bench-sessions: ## Memory and goroutines of an idle session beside the bare library and Baileys (SESSIONS, REST)
	@scripts/need node || true
	@$(GO) run ./trials/sessions

.PHONY: bench-start
bench-start: ## How soon a restarted gateway answers and has 50 sessions online, and its memory beside the bare library
	@$(GO) run ./trials/start

.PHONY: bench-webhook
bench-webhook: ## Webhooks through an outage of their receiver: none lost, how soon the first one comes again
	@scripts/need postgres redis
	@$(GO) run ./trials/webhook

.PHONY: bench-idle
bench-idle: ## What an idle fleet writes and computes on PostgreSQL (SESSIONS)
	@scripts/need postgres redis
	@$(GO) run ./trials/idle

.PHONY: bench-api
bench-api: ## Accepted requests per second beside pgbench with the same statements (MESSAGES)
	@scripts/need postgres redis
	@$(GO) run ./trials/api

.PHONY: bench-route
bench-route: ## Which number sends, decided in Redis and in memory beside counters and a MULTI (SECONDS, ROUNDS)
	@scripts/need redis
	@$(GO) run ./trials/route

.PHONY: fmt
fmt: ## Format the Go files
	gofmt -w $(GOFILES)

.PHONY: fmt-check
fmt-check: ## Fail when a Go file is not formatted
	@unformatted=$$(gofmt -l $(GOFILES)); if [ -n "$$unformatted" ]; then echo "not formatted (make fmt):" >&2; echo "$$unformatted" >&2; exit 1; fi

.PHONY: vet
vet: ## Run go vet
	$(GO) vet ./...

.PHONY: lint
lint: $(LINT) ## Run the pinned golangci-lint
	$(LINT) run ./...

# Built from source because that needs nothing but Go; about four minutes on two cores, once per version.
$(LINT): .golangci-lint-version
	@version=$$(cat .golangci-lint-version); \
	if [ -x $(LINT) ] && $(LINT) version 2>/dev/null | grep -q "version $${version#v} "; then touch $(LINT); exit 0; fi; \
	echo "building golangci-lint $$version (about four minutes, once)"; \
	GOBIN=$(CURDIR)/.cache/bin GOFLAGS= $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$$version

.PHONY: check
check: fmt-check vet test test-browser test-interop lint ## What CI runs

.PHONY: clean
clean: ## Remove what was built, and the mended copies
	rm -rf wafleet .cache
