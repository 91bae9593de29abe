// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"

	"github.com/lockwrap/lockwrap/test/rig"
)

// side is one way to run the usual list.
type side struct {
	name string
	use  func(h *rig.Host) error
}

const bare, floor = "bare", "flock"

// sides begin with the one that the others are compared with.
var sides = []side{
	{bare, func(h *rig.Host) error { return h.Bare(h.Usual()...) }},
	{floor, func(h *rig.Host) error {
		h.Before = []string{"flock", filepath.Join(h.Dir, "flock")}
		return h.Bare(h.Usual()...)
	}},
	{"wrapped", func(h *rig.Host) error { return h.Wrapped(h.Usual()...) }},
	{"stand-ins", func(h *rig.Host) error {
		if err := h.StandIns("bridge", "firewall", "portmap"); err != nil {
			return err
		}
		return h.Bare(h.Usual()...)
	}},
}

// newHost is a host on which this side is at work.
func (s side) newHost(backend string) (*rig.Host, error) {
	h, err := rig.NewHost(rig.New, backend)
	if err != nil {
		return nil, err
	}
	if err := s.use(h); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// turn is the sides in the order of the i-th round, so that none is always the first.
func turn(i int) []side {
	i %= len(sides)
	return append(append([]side{}, sides[i:]...), sides[:i]...)
}
