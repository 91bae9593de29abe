// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/lockwrap/lockwrap/test/rig"
)

// What can stand at CNI_NETNS beside a namespace of a container; $N is the path of the container's, $H the host's own.
var noNetNS = map[string]string{
	"missing":     `echo $N`,
	"a file":      `touch $N; echo $N`,
	"a directory": `mkdir $N; echo $N`,
	"a pipe":      `mkfifo $N; echo $N`,
	"a link":      `ln -s /etc/passwd $N; echo $N`,
	"the host's":  `echo $H`,
}

func at(t *testing.T, h *rig.Host, c *rig.Container, what string) string {
	t.Helper()
	run := h.Exec("sh", "-c", fmt.Sprintf("N=%s; H=/run/netns/%s; %s", c.NetNS, h.Name, noNetNS[what]))
	must(t, what, run)
	return "CNI_NETNS=" + filepath.Clean(run.Stdout[:len(run.Stdout)-1])
}

// An ADD without a container's namespace fails as it would without lockwrap, and leaves nothing.
func TestNetNS_ADD(t *testing.T) {
	for what := range noNetNS {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, rig.New, rig.NFT)
			ok(t, h.Wrapped(h.Usual()...))
			c := newContainer(t, h)
			ok(t, h.Remove(c))
			env := at(t, h, c, what)
			run := h.Direct("ADD", c, env)
			if e, err := run.CNIError(); err != nil || e.Msg == "" {
				t.Errorf("ADD: %v, %v", run, err)
			}
			if err := stateOf(t, h).Clean(); err != nil {
				t.Errorf("after ADD: %v", err)
			}
			if what != "the host's" { // bridge fails there for ever
				run = h.Direct("DEL", c, "CNI_NETNS=")
				must(t, "DEL", run)
				mustBeGone(t, h, "after DEL")
			}
		})
	}
}

// Once the namespace is gone, DEL frees the address and removes all rules, whatever is at its path now.
func TestNetNS_DEL(t *testing.T) {
	for what := range noNetNS {
		if what == "the host's" {
			continue
		}
		for _, masquerade := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, ipMasq %v", what, masquerade), func(t *testing.T) {
				t.Parallel()
				h := newHost(t, rig.New, rig.NFT)
				ok(t, h.Wrapped(h.Bridge(rig.Net4).With("ipMasq", masquerade), rig.Firewall(), rig.Portmap()))
				c := newContainer(t, h)
				must(t, "ADD", h.Direct("ADD", c))
				ok(t, h.Remove(c))
				must(t, "DEL", h.Direct("DEL", c, at(t, h, c, what)))
				mustBeGone(t, h, "after DEL")
				_ = os.RemoveAll(c.NetNS)
			})
		}
	}
}
