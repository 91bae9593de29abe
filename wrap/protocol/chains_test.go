// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// stubIptables makes a PATH on which every iptables is a fake that does the steps, and gives the host of their log.
func stubIptables(t *testing.T, steps ...string) (stub *host, path string) {
	t.Helper()
	stub = newHost(t)
	for _, n := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore", "-nft", "-legacy"} {
			stub.link(n + suffix)
			for _, verb := range []string{"ADD", "DEL"} {
				stub.on(n+suffix, verb, append([]string{"noread"}, steps...)...)
			}
		}
	}
	return stub, "PATH=" + stub.bin
}

var nomad = []entry{
	{"type": "bridge", "ipMasq": true, "ipam": entry{"type": "host-local", "ranges": []any{[]any{entry{"subnet": "10.0.0.0/24"}}}}},
	{"type": "firewall", "backend": "iptables", "iptablesAdminChainName": "NOMAD-ADMIN"},
	{"type": "portmap", "capabilities": entry{"portMappings": true}, "snat": true},
}

// TestADD_iptablesUseless: pre-creation is best effort; a wrapped list never fails where the bare list would work (plugins#461).
func TestADD_iptablesUseless(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		steps []string
	}{
		{"exit 1", []string{warn("iptables v1.8.2 (nf_tables): table `nat' is incompatible, use 'nft' tool."), "exit 1"}},
		{"exit 4", []string{warn("iptables: Resource temporarily unavailable."), "exit 4"}},
		{"killed", []string{"kill 9"}},
		{"garbage", []string{say("garbage\n"), "exit 0"}},
		{"silent", []string{"exit 0"}},
		{"hangs", []string{"sleep 1m"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "bridge", "firewall", "portmap")
			stub, path := stubIptables(t, tt.steps...)
			conf := h.conf("0.4.0", entry{"pluginTimeout": "2s", "runtimeConfig": entry{"portMappings": []any{entry{"hostPort": 80, "containerPort": 80, "protocol": "tcp"}}}}, nomad...)
			a := h.call(call{verb: "ADD", conf: conf, env: []string{path}}).ok(t)
			if a.took > 30*time.Second {
				t.Errorf("took %v", a.took)
			}
			h.call(call{verb: "DEL", conf: conf, env: []string{path}}).ok(t)
			wantOrder(t, h.calls(), "ADD bridge, ADD firewall, ADD portmap, DEL portmap, DEL firewall, DEL bridge")
			if len(stub.calls()) == 0 {
				t.Error("no iptables was called, so this shows nothing")
			}
		})
	}
}

// TestADD_noChainsNeeded calls no iptables (podman#5446).
func TestADD_noChainsNeeded(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name      string
		delegates []entry
	}{
		{"plugins without chains", []entry{{"type": "loopback"}, {"type": "bridge"}, {"type": "tuning"}}},
		{"firewalld", []entry{{"type": "firewall", "backend": "firewalld"}}},
		{"nftables", []entry{{"type": "bridge", "ipMasq": true, "ipMasqBackend": "nftables"}, {"type": "portmap", "backend": "nftables", "capabilities": entry{"portMappings": true}}}},
		{"no port mappings", []entry{{"type": "portmap", "backend": "iptables", "capabilities": entry{"portMappings": true}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "loopback", "bridge", "tuning", "firewall", "portmap")
			stub, path := stubIptables(t, "exit 1")
			conf := h.conf("1.0.0", nil, tt.delegates...)
			for _, verb := range []string{"ADD", "DEL"} {
				h.call(call{verb: verb, conf: conf, env: []string{path}}).ok(t)
			}
			if calls := stub.calls(); len(calls) > 0 {
				t.Errorf("called %d times, first %q", len(calls), calls[0].Argv)
			}
		})
	}
}

// TestADD_noFilesElsewhere: nothing is made but lock, records and what the delegates make.
func TestADD_noFilesElsewhere(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a")
	root := filepath.Dir(h.run)
	h.call(call{verb: "ADD", conf: h.conf("1.0.0", nil, entry{"type": "a"})}).ok(t)
	record := h.record1()
	var got []string
	h.must(filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Dir(path) != h.bin && path != h.lockFile && path != record {
			got = append(got, path)
		}
		return err
	}))
	if len(got) > 0 {
		t.Errorf("made %v", got)
	}
}
