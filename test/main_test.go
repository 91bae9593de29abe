// SPDX-License-Identifier: Apache-2.0

// Package test runs lockwrap on real plugins, real iptables and hosts of its own. It needs root.
package test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/lockwrap/lockwrap/test/rig"
)

func TestMain(m *testing.M) {
	if done := runAsHelper(); done {
		return
	}
	if err := rig.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// eachHost runs f as a parallel subtest for both plugin sets and both kinds of iptables.
func eachHost(t *testing.T, f func(t *testing.T, h *rig.Host)) {
	for _, set := range rig.Sets {
		for _, backend := range []string{rig.NFT, rig.Legacy} {
			t.Run(set.Name+"/"+backend, func(t *testing.T) {
				t.Parallel()
				f(t, newHost(t, set, backend))
			})
		}
	}
}

// eachSet does it for both plugin sets.
func eachSet(t *testing.T, f func(t *testing.T, h *rig.Host)) {
	for _, set := range rig.Sets {
		t.Run(set.Name, func(t *testing.T) {
			t.Parallel()
			f(t, newHost(t, set, rig.NFT))
		})
	}
}

func newHost(t *testing.T, set rig.Set, backend string) *rig.Host {
	t.Helper()
	h, err := rig.NewHost(set, backend)
	if errors.Is(err, rig.ErrNotRoot) {
		t.Skip(err)
	}
	ok(t, err)
	t.Cleanup(h.Close)
	return h
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newContainer(t *testing.T, h *rig.Host) *rig.Container {
	t.Helper()
	c, err := h.NewContainer()
	ok(t, err)
	return c
}

func newContainers(t *testing.T, h *rig.Host, n int) []*rig.Container {
	t.Helper()
	var all []*rig.Container
	for range n {
		all = append(all, newContainer(t, h))
	}
	return all
}

func stateOf(t *testing.T, h *rig.Host) *rig.State {
	t.Helper()
	s, err := h.State()
	ok(t, err)
	return s
}

// must fails the test if the program did.
func must(t *testing.T, what string, run rig.Run) {
	t.Helper()
	if !run.OK() {
		t.Fatalf("%s: %v", what, run)
	}
}

// mustBeClean fails the test if anything of a container is left, in the host or in its namespace.
func mustBeClean(t *testing.T, h *rig.Host, c *rig.Container, when string) {
	t.Helper()
	if err := stateOf(t, h).Clean(); err != nil {
		t.Errorf("%s: %v", when, err)
	}
	links, err := h.ContainerLinks(c)
	ok(t, err)
	if len(links) > 0 {
		t.Errorf("%s: the container has %q", when, links)
	}
}

// mustBeGone is mustBeClean after DEL of all: no record is left either.
func mustBeGone(t *testing.T, h *rig.Host, when string) {
	t.Helper()
	if err := stateOf(t, h).Gone(); err != nil {
		t.Errorf("%s: %v", when, err)
	}
}
