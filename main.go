package main

import (
	_ "github.com/containernetworking/cni/pkg/skel"
	_ "github.com/containernetworking/cni/libcni"
	_ "github.com/coreos/go-iptables/iptables"
	_ "github.com/gofrs/flock"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "github.com/tailscale/hujson"
	_ "github.com/google/renameio/v2"
	_ "golang.org/x/sys/unix"
)

func main() {}
