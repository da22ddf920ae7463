# Each target is a command you could type; `make` lists them.

BIN := bin/converge
export CGO_ENABLED ?= 1

# The provider of libvirt loads libvirt's library when it is used, through cgo. Without the tag everything builds and passes its tests
# all the same, also without cgo, and that provider says what it lacks.
TAGS := -tags libvirt_dlopen

# Tests are not vetted again, each way they are built: lint has done it, and for the tests of all packages.

# What tests draw by package rapid is the same in every run of a target, so that a push is judged by its own change and not by what
# chance finds today. It draws something new in `go test`, and in the nightly figures.
test: export RAPID_SEED ?= 1

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: $(BIN) ## build bin/converge (the first time 2 min, then seconds)

$(BIN): $(shell git ls-files '*.go' '*.cue' go.mod go.sum 2>/dev/null)
	go build $(TAGS) -buildvcs=auto -o $(BIN) ./cmd/converge

.PHONY: demo
demo: build ## watch a site document become a site, and a failing change be undone (1 min; starts a simulator, needs nothing else)
	examples/demo.sh

.PHONY: deps
deps: ## install the daemons and the kernel that the tests start (Debian packages, as root; 1 min, then at once)
	.ci/deps

# What is concurrent is tested with the race detector, and once: only schema and Carbide have tests that mean nothing with it, or less; the
# laws of libvirt and Open vSwitch take twice as long against the real ones, whose providers' own concurrency the fakes behind a wire show as
# well; and in some tests that take minutes with it nothing is concurrent but processes. These run without it (a test of e2e knows when one
# is missing here). An emulated machine is slow enough, and runs alone. Of the others, two packages run at a time, the longest first:
# they wait for leases, and would wait in vain beside what needs every processor.
RACED := ./state/... ./providers/... ./engine ./engine/... ./cmd/internal/... ./guard/... ./schema/... ./trust/... ./agent/... ./site/... ./internal/...
REAL := ^TestReal$$|^TestLaws$$/^real$$
SERIAL := ^TestEveryCommand|^TestInstallScript|^TestSeedCut$$|^TestHeavyAnswers$$|^TestLaws$$/^fake$$/^ovs
UNRACED := ./cmd/internal/command ./providers/libvirt ./providers/ovs ./schema/kinds ./schema/load ./providers/carbide
UNRACED_TESTS := $(REAL)|$(SERIAL)|^(TestConstructs|TestChecksAgreeWithCUE|TestJSONSchemaAgrees|TestHostile|TestRevise|TestReviseWithinTheLimits|TestManyProblems|TestLoadIsLinear|TestIntake|TestCallsToList|TestLawsOlderServer)$$

# A regular expression of the tests that do not run.
SKIP := ^$$

.PHONY: test
test: deps ## all tests, against real daemons too (50 min)
	CONVERGE_REAL=1 go test $(TAGS) -vet=off -count=1 -timeout 30m -skip '$(SKIP)' ./e2e/node
	CONVERGE_REAL=1 go test $(TAGS) -vet=off -count=1 -p 2 -timeout 40m -skip '$(SKIP)' ./e2e $$(go list ./... | grep -vxF "$$(go list ./e2e ./e2e/node $(RACED))")
	CONVERGE_REAL=1 go test $(TAGS) -vet=off -count=1 -timeout 20m -skip '$(SKIP)' -run '$(UNRACED_TESTS)' $(UNRACED)
	cd e2e/outside && go test -vet=off -count=1 ./...
	CGO_ENABLED=0 go test -vet=off -count=1 ./providers/libvirt
	CONVERGE_REAL=1 go test $(TAGS) -vet=off -count=1 -race -timeout 40m -skip '$(SKIP)|$(REAL)|$(SERIAL)' $(RACED)

.PHONY: torture
torture: deps ## prove docs/reliability.md at the promised figures: crashes, split brains, faults, mutated input (20 to 30 min; NIGHTLY=1: for hours)
	e2e/torture.sh $(if $(NIGHTLY),nightly,push)

.PHONY: soak
soak: deps ## a site to which things keep happening uses no more after a long time (FOR=10m)
	CONVERGE_TORTURE=push CONVERGE_REAL=1 go test -vet=off -count=1 -v -timeout 0 -run '^TestTortureSoak$$' ./e2e/replicas -soak=$(or $(FOR),10m)

.PHONY: unit
unit: ## the tests that need no root, network or daemon (5 to 10 min)
	go test ./...

.PHONY: lint
lint: ## vet, staticcheck (pinned in go.mod), gofmt, and that every seeded bug still applies (1 min)
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "gofmt would change:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	go vet ./...
	go vet $(TAGS) ./...
	CGO_ENABLED=0 go vet ./providers/libvirt
	cd e2e/outside && go vet ./...
	go tool staticcheck ./...
	go tool staticcheck $(TAGS) ./providers/libvirt ./internal/libvirttest ./e2e/faults
	go run ./e2e/mutants -n

.PHONY: bench
bench: build deps ## measure what docs/performance.md promises, each figure beside its floor; fails when a budget is missed (25 min)
	go test -run xxx -bench . ./engine/... ./schema/kinds ./schema/load ./state/etcd ./providers/carbide
	go run $(TAGS) ./e2e/bench

.PHONY: generate
generate: ## write generated code anew (needs protobuf-compiler and openvswitch-common; the schema alone: go generate ./schema/kinds)
	go generate ./...

.PHONY: golden
golden: ## rewrite golden files; commit the difference only if you can explain it
	go test ./engine/plan ./schema/load ./cmd/... -update
