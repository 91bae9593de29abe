# Everything a developer or an operator runs. CGO is off: the binary is static and starts on any distribution.
SHELL := /bin/bash
export CGO_ENABLED := 0

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo 0.0.0)
LDFLAGS := -s -w -X github.com/lockwrap/lockwrap/wrap.version=$(VERSION)

.PHONY: build clean

build: bin/lockwrap

bin/lockwrap: FORCE
	go build -trimpath -ldflags '$(LDFLAGS)' -o $@ .

FORCE:

clean:
	rm -rf bin
