// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/lockwrap/lockwrap/test/rig"
)

// fake is a plugin that costs next to nothing.
const fake = `#!/bin/sh
read -r _
[ "$CNI_COMMAND" = DEL ] || echo '{"cniVersion": "1.0.0"}'
`

// newFakeHost has a list of n such plugins.
func newFakeHost(n int, wrapped bool) (*rig.Host, error) {
	h, err := rig.NewHost(rig.New, rig.NFT)
	if err != nil {
		return nil, err
	}
	var plugins []rig.Plugin
	dir := filepath.Join(h.Dir, "shims") // stands first in CNI_PATH
	err = os.Mkdir(dir, 0o755)
	for i := range n {
		name := fmt.Sprintf("fake%d", i+1)
		plugins = append(plugins, rig.Plugin{"type": name})
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), []byte(fake), 0o755)
		}
	}
	use := h.Bare
	if wrapped {
		use = h.Wrapped
	}
	if err == nil {
		err = use(plugins...)
	}
	if err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// debugLog makes lockwrap log all that it does.
func debugLog(h *rig.Host) (log string, err error) {
	log = filepath.Join(h.Dir, "log")
	return log, h.Edit(func(entry rig.Plugin) { entry["logLevel"], entry["logFile"] = "debug", log })
}
