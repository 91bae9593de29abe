# Everything a developer or an operator runs. CGO is off: the binary is static and starts on any distribution.
SHELL := /bin/bash
export CGO_ENABLED := 0

# Of a tagged commit. Else the go command asks git itself, which refuses a checkout that is somebody else's. A repository
# around a copy of the source has tags of its own.
BUILDVCS := $(if $(filter $(shell pwd -P),$(shell git rev-parse --show-toplevel 2>/dev/null)),auto,false)
VERSION  := $(if $(filter auto,$(BUILDVCS)),$(shell git describe --tags --exact-match --dirty=+dirty --match 'v[0-9]*' 2>/dev/null))
LDFLAGS  := -s -w -X github.com/lockwrap/lockwrap/wrap.release=$(VERSION)

# What the tests on a real machine run against, at pinned versions. The old pair is the one of nomad#6567.
CNI     := v1.3.0
NEW     := v1.10.0
OLD     := v0.8.2
PLUGINS := github.com/containernetworking/plugins
NEW_SET := main/bridge main/loopback meta/firewall meta/portmap ipam/host-local
OLD_SET := meta/firewall meta/portmap
NEW_BIN := $(addprefix bin/plugins/$(NEW)/,$(notdir $(NEW_SET)))
OLD_BIN := $(addprefix bin/plugins/$(OLD)/,$(notdir $(OLD_SET)))

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0
NFPM        := github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.4

# Arguments for go test, as in: make test T='-v -run Seed'
T ?=

.PHONY: help build setup plugins faults demo check test torture bench fuzz race lint dist clean

help:           ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 12

build: bin/lockwrap ## bin/lockwrap, static and stripped

bin/lockwrap: FORCE
	go build -trimpath -buildvcs=$(BUILDVCS) -ldflags '$(LDFLAGS)' -o $@ .

FORCE:

setup:          ## install the Debian packages that demo and test need (as root; else name them)
	@test/setup

plugins: bin/cnitool $(NEW_BIN) $(OLD_BIN) ## cnitool and the reference plugins, at pinned versions

bin/cnitool:
	GOBIN=$(CURDIR)/bin go install github.com/containernetworking/cni/cnitool@$(CNI)

version_of = -s -w -X $(PLUGINS)/pkg/utils/buildversion.BuildVersion=$(1)

$(NEW_BIN) &:
	GOBIN=$(CURDIR)/bin/plugins/$(NEW) go install -ldflags '$(call version_of,$(NEW))' $(NEW_SET:%=$(PLUGINS)/plugins/%@$(NEW))

$(OLD_BIN) &:
	GOBIN=$(CURDIR)/bin/plugins/$(OLD) go install -ldflags '$(call version_of,$(OLD))' $(OLD_SET:%=$(PLUGINS)/plugins/%@$(OLD))

demo: setup plugins build ## the bare list and the wrapped one side by side, with real plugins (root)
	@cd test && go build -buildvcs=false -o ../bin/demo ./demo
	@bin/demo

check:          ## the fast half of the tests, without root
	@unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then echo "not gofmt'ed:"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	cd test && go vet ./...
	go test -short $(T) ./...

# A lockwrap that can be made to die at each of its steps. Nobody installs it.
faults:
	go build -trimpath -buildvcs=false -tags faults -o bin/faults/lockwrap .

test: setup plugins build faults dist ## everything, real plugins included (root)
	@unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then echo "not gofmt'ed:"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	cd test && go vet ./...
	go test -count=1 -timeout 30m $(T) ./...
	cd test && go test -count=1 -timeout 40m -parallel 4 $(T) ./...
	@for need in containerd runc busybox; do command -v $$need >/dev/null || \
		echo "NOTICE: $$need is missing, so no real container was started: apt-get install containerd runc busybox-static" >&2; done

KILLS ?= 500
SEED  ?= 0

torture: setup plugins build faults ## kill lockwrap, its caller and plugins KILLS times (root); SEED repeats the choices of a run
	cd test && go test -v -count=1 -timeout 2h -parallel 4 -run 'TestTorture|TestExact' $(T) . -seed=$(SEED) -kills=$(KILLS) -all

# Arguments for the benchmark, as in: make bench B='-parts single -pairs 200'
B ?=

bench: setup plugins build ## lockwrap, the bare list and flock(1) side by side; tables, test/results (root; takes an hour)
	@test/setup valgrind:valgrind flock:util-linux
	@cd test && go build -buildvcs=false -o ../bin/bench ./bench
	@bin/bench -out test/results $(B)

# How long each fuzz target runs.
FUZZTIME ?= 10s

# Go sometimes reports the end of the time itself as a failure ("context deadline exceeded"), which is no finding.
# Minimizing is kept short, or a slow target does nothing else.
fuzz:           ## every fuzz target for FUZZTIME each; go keeps what fails in testdata/fuzz
	@failed=0; log=$$(mktemp); trap 'rm -f "$$log"' EXIT; for pkg in $$(go list ./...); do \
	targets=$$(go test -list '^Fuzz' "$$pkg") || exit 1; \
	for target in $$(grep '^Fuzz' <<<"$$targets"); do \
		echo "$$pkg $$target"; \
		go test -run "^$$target\$$" -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x \
			-parallel 2 "$$pkg" >"$$log" 2>&1 && continue; \
		if grep -q '^    context deadline exceeded' "$$log" && \
			! grep -qE '_test\.go:[0-9]|panic|Failing input|seed corpus|build failed' "$$log"; then \
			continue; \
		fi; \
		cat "$$log"; failed=1; \
	done; done; exit $$failed

race:           ## the fast half under the race detector; needs gcc
	@if command -v gcc >/dev/null; then set -x; CGO_ENABLED=1 go test -race -short -count=1 -timeout 25m $(T) ./...; \
	else echo "race: skipped, the race detector needs gcc"; fi

lint:           ## staticcheck and govulncheck
	go run $(STATICCHECK) ./...
	cd test && go run $(STATICCHECK) ./...
	@test/vulncheck $(GOVULNCHECK)

dist:           ## dist/: tarballs, .deb and .rpm for amd64 and arm64; two builds of a commit are byte-identical
	LDFLAGS='$(LDFLAGS)' BUILDVCS=$(BUILDVCS) NFPM='go run $(NFPM)' wrap/operator/packaging/dist dist

clean:
	rm -rf bin dist
