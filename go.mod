module github.com/lockwrap/lockwrap

go 1.26.0

require (
	github.com/containernetworking/cni v1.3.0
	github.com/coreos/go-iptables v0.8.0
	github.com/gofrs/flock v0.13.2
	github.com/google/renameio/v2 v2.0.1 // v2.0.2 links os.Root, 20 kB of binary
	github.com/tailscale/hujson v0.0.0-20260727124030-b80ff77dac4f
	golang.org/x/sys v0.50.0
)

// Test dependencies.
require (
	github.com/google/go-cmp v0.7.0
	github.com/rogpeppe/go-internal v1.16.0
)

require (
	github.com/vishvananda/netns v0.0.4 // indirect
	golang.org/x/text v0.19.0 // indirect
	golang.org/x/tools v0.26.0 // indirect
)
