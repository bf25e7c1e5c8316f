# Postbus. `make` alone lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO ?= go
GOLANGCI_LINT_VERSION := v2.15.0
FUZZTIME ?= 10s

# local: dev/services starts what the tests need.
# none:  the services are yours (compose.yaml, another machine) and POSTBUS_TEST_* say where they are.
SERVICES ?= local

# What the tests need of it.
TEST_SERVICES := postgres

# Go files, generated data folders left out.
GO_FILES = $$(find . -path './.?*' -prune -o -name '*.go' -print)

# The shell lines before a run against real services. STRICT: a test that does not find its service fails.
ifeq ($(SERVICES),local)
with_services = dev/services up $(TEST_SERVICES) || { echo "make $@: the services did not come up (see above); make test/unit needs none" >&2; exit 1; }; \
	eval "$$(dev/services env $(TEST_SERVICES))"; \
	trap '{ set +x; } 2>/dev/null; echo "services are still up; stop them with: make services/down"' EXIT; \
	export POSTBUS_TEST_STRICT=1
else
with_services = export POSTBUS_TEST_STRICT=1
endif

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z\/]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: test
test: ## every test but the slow ones, race detector on, against real services (starts them)
	@$(with_services); \
	set -x; \
	$(GO) vet ./...; \
	$(GO) test -race -count=1 -timeout 14m ./...

.PHONY: test/unit
test/unit: ## the tests that need no service
	env -u POSTBUS_TEST_POSTGRES -u POSTBUS_TEST_KAFKA -u POSTBUS_TEST_RABBITMQ -u POSTBUS_TEST_STRICT $(GO) test ./...

.PHONY: test/slow
test/slow: TEST_SERVICES := postgres kafka rabbitmq
test/slow: ## as test, and the tests that take minutes or another broker (build tag slow)
	@$(with_services); \
	set -x; \
	$(GO) test -race -count=1 -tags slow -timeout 60m ./...

.PHONY: cover
cover: ## coverage of the whole module, against real services; coverage.out
	@$(with_services); \
	$(GO) test -count=1 -timeout 14m -coverpkg=./... -coverprofile=coverage.out ./...; \
	$(GO) tool cover -func=coverage.out | tail -n 1

.PHONY: fuzz
fuzz: ## each fuzz target for FUZZTIME (10s)
	@{ grep -rE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+\(' . || true; } | \
	sed -E 's/^(.*)\/[^\/]+:func (Fuzz[A-Za-z0-9_]+)\(.*/\1 \2/' | \
	while read -r dir target; do \
		(set -x; $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$dir"); \
	done

.PHONY: bench
bench: ## the benchmarks, against real services
	@$(with_services); \
	set -x; \
	$(GO) test -run '^$$' -bench . -benchmem -timeout 60m ./...

.PHONY: lint
lint: ## gofmt, go vet, golangci-lint (the first run builds it: about two minutes)
	@unformatted=$$(gofmt -l $(GO_FILES)); \
	if [[ -n $$unformatted ]]; then printf 'not gofmt-ed:\n%s\n' "$$unformatted" >&2; exit 1; fi
	$(GO) vet ./...
	$(GO) vet -tags slow ./...
	$(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION) run ./...

.PHONY: services/up
services/up: ## starts the local services, installs what is missing
	@dev/services up

.PHONY: services/down
services/down: ## stops them
	@dev/services down

.PHONY: tidy
tidy: ## go mod tidy and gofmt
	$(GO) mod tidy
	gofmt -w $(GO_FILES)
