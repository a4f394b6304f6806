# Berth's build. Everything that a target needs is installed by hack/tools.sh, once.
.PHONY: help build test ship-test browser-test screenshots e2e e2e-long faults bench-cluster soak demo up down bench lint lint-tools image generate verify
.DEFAULT_GOAL := help

DIR ?= /tmp/berth-cluster
# Which release of Kubernetes the local cluster runs: make e2e K8S=1.36; hack/tools.sh knows which there are.
K8S ?= $(BERTH_K8S)
export BERTH_K8S := $(K8S)
# As the programs are shipped; what is built otherwise is compiled a second time, with all that it imports.
export CGO_ENABLED := 0
# Where make image writes, and how it names what it writes.
IMAGE ?= bin/image
TAG ?= v0.1.0
# What make generate writes.
GENERATED = pkg/api manifests/crds manifests/dist charts/berth/templates

help: ## this list
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-13s %s\n", $$1, $$2}'

build: ## the programs, in bin/
	@mkdir -p bin
	go build -trimpath -o bin/ ./cmd/... ./e2e/cmd/...

test: ## unit and integration tests, race detector on; installs OVN's packages
	@hack/tools.sh ovn >/dev/null
	go vet ./...
	CGO_ENABLED=1 go test -race -count=1 -timeout 15m ./...

ship-test: ## what is shipped: manifests, chart, alerts, image
	@hack/tools.sh prometheus >/dev/null
	go -C tools/ship vet ./...
	go -C tools/ship test -count=1 -timeout 30m ./...

# Each suite has a cluster of its own, and waits more than it computes: two run at once. Those that take long are not in
# the gate: e2e-long runs them.
LONG = raft ship faults

e2e: build ## the whole path on a real control plane, OVN and two nodes; needs root
	@hack/tools.sh cluster >/dev/null
	go vet -tags e2e ./e2e/...
	go test -tags e2e -p 2 -count=1 -timeout 30m -v -skip TestIPv6Only \
		$$(go list -tags e2e ./e2e/... | grep -vE '/e2e/($(subst $() ,|,$(LONG)))$$')

e2e-long: build ## raft, installations, faults, and packets without any IPv4: some 20 minutes
	@hack/tools.sh cluster >/dev/null
	@hack/tools.sh prometheus >/dev/null
	@hack/tools.sh certmanager >/dev/null
	go test -tags e2e -p 1 -count=1 -timeout 40m -v $(addprefix ./e2e/,$(LONG))
	go test -tags e2e -p 1 -count=1 -timeout 30m -v -run TestIPv6Only ./e2e/packets
	BERTH_LONG=1 go test -tags e2e -p 1 -count=1 -timeout 30m -v -run TestLedgerIsLost ./e2e/lifecycle

faults: build ## break a local cluster in many ways at once; needs root; BERTH_SEEDS=20, BERTH_SEED=n, BERTH_FAULTS=kind,kind
	@hack/tools.sh cluster >/dev/null
	go test -tags e2e -count=1 -timeout 6h -v -run '^TestFaults(Short)?$$' ./e2e/faults

bench-cluster: build ## speed beside the same cluster without Berth, added to docs/benchmarks.md; half an hour; needs root
	@hack/tools.sh cluster >/dev/null
	bin/bench-cluster --append=docs/benchmarks.md --json=bin/bench.json $(ARGS)

soak: build ## pods come and go for an hour; fails when anything grows; needs root
	@hack/tools.sh cluster >/dev/null
	bin/soak $(ARGS)

browser-test: ## the worker's page in headless Chromium
	@hack/tools.sh browser >/dev/null
	go -C tools/browser vet ./...
	go -C tools/browser test -count=1 ./...

screenshots: ## the pictures in docs/images
	@hack/tools.sh browser >/dev/null
	go -C tools/browser test -count=1 -run TestPage . -args -screenshots=$(CURDIR)/docs/images

demo: ## the main job in one process; NORTHBOUND=memory needs no OVN; BREAK=release leaves one address unreleased, and must fail
	@[ "$(NORTHBOUND)" = memory ] || hack/tools.sh ovn >/dev/null || echo "OVN's packages could not be installed: the demo does without" >&2
	go run ./cmd/demo $(if $(NORTHBOUND),--northbound=$(NORTHBOUND)) $(if $(BREAK),--break=$(BREAK))

up: build ## start the local cluster and print how to reach it; needs root; FAMILY=v6 for one without any IPv4
	@hack/tools.sh cluster >/dev/null
	bin/berth-cluster --dir=$(DIR) up $(if $(FAMILY),--family=$(FAMILY))

down: ## stop the local cluster
	go run ./e2e/cmd/berth-cluster --dir=$(DIR) down

bench: ## benchmarks, each beside its baseline, with the webhook's setting of the collector; some five minutes
	GOGC=200 go test -run '^$$' -bench . -benchmem -benchtime 0.3s ./pkg/...

lint: ## linters, from their own module
	tool=$$(go -C tools/lint tool -n golangci-lint) && $$tool run ./...

# Apart, because type checking these compiles cert-manager, kustomize and Chromium's protocol: minutes with cold caches.
lint-tools: ## linters over the tools' own modules
	tool=$$(go -C tools/lint tool -n golangci-lint) && for m in ship browser certmanager; do (cd tools/$$m && $$tool run ./...) || exit 1; done

image: ## the OCI layout of the image, for amd64 and arm64, in bin/image; IMAGE and TAG choose otherwise
	go -C tools/ship run . image --repo=$(CURDIR) --out=$(abspath $(IMAGE)) --tag=$(TAG)

generate: ## CRDs and deepcopy, install files and the chart's templates
	tool=$$(go -C tools/dev tool -n controller-gen) && \
	$$tool object paths=./pkg/api/... && \
	$$tool crd:maxDescLen=200,generateEmbeddedObjectMeta=true paths=./pkg/api/... output:crd:dir=manifests/crds
	go -C tools/ship run . generate --repo=$(CURDIR)

verify: generate ## fail when generated files are stale or code is not formatted
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo "run gofmt -w on these"; exit 1; }
	@git diff --exit-code -- $(GENERATED) || { echo "generated files are stale: commit what make generate wrote"; exit 1; }
	@test -z "$$(git status --porcelain -- $(GENERATED))" || { git status --porcelain -- $(GENERATED); exit 1; }
