// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// masquerades reports whether a delegate's DEL finds its masquerade rules only
// through the addresses on the interface in the namespace. Without one it frees
// the addresses, reports success, and leaves the rules for ever (plugins#810).
func masquerades(pluginType string, config map[string]json.RawMessage) bool {
	var ipMasq bool
	_ = json.Unmarshal(config["ipMasq"], &ipMasq)
	return ipMasq && (pluginType == "bridge" || pluginType == "ptp")
}

// withDecoy gives the DEL of a delegate that masquerades a namespace to look
// into if its own, or the interface in it, is gone: one with nothing but an
// interface of the recorded name and addresses. It goes away when done is
// called.
func (c *call) withDecoy(r *record, pluginType string, config map[string]json.RawMessage, env environment) (_ environment, done func()) {
	netns, _ := lookupEnv(env, "CNI_NETNS")
	addrs := resultAddresses(r.lastResult())
	if r.NetNSID == (netnsID{}) || len(addrs) == 0 || !masquerades(pluginType, config) {
		return env, func() {}
	}
	if present, _ := hasInterface(netns, r.IfName); present {
		return env, func() {}
	}
	path, done, err := newDecoy(r.IfName, addrs)
	if err != nil {
		c.log.Warn("the namespace is gone, and with it the way to its masquerade rules", "err", err)
		return env, func() {}
	}
	return env.with("CNI_NETNS", path), done
}

// resultAddresses are the addresses of a result, of 0.3.0 and later.
func resultAddresses(result json.RawMessage) (addrs []netip.Prefix) {
	var parts struct {
		IPs []struct {
			Address string `json:"address"`
		} `json:"ips"`
	}
	if err := json.Unmarshal(result, &parts); err != nil {
		return nil
	}
	for _, ip := range parts.IPs {
		if prefix, err := netip.ParsePrefix(ip.Address); err == nil {
			addrs = append(addrs, prefix)
		}
	}
	return addrs
}

// newDecoy makes a network namespace with one interface, which is down. The
// namespace lives as long as a thread that nobody else uses.
func newDecoy(ifName string, addrs []netip.Prefix) (path string, done func(), err error) {
	ready, finished := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with us
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			path = fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
			err = addInterface(ifName, addrs)
		}
		ready <- err
		if err == nil {
			<-finished
		}
	}()
	if err := <-ready; err != nil {
		return "", nil, err
	}
	return path, func() { close(finished) }, nil
}

// addInterface makes an interface with addresses in the thread's namespace: a
// veth, which a host that runs bridge or ptp is sure to have.
func addInterface(name string, addrs []netip.Prefix) error {
	sock, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(sock)
	const create = unix.NLM_F_ACK | unix.NLM_F_CREATE | unix.NLM_F_EXCL
	link := slices.Concat(make([]byte, unix.SizeofIfInfomsg),
		attribute(unix.IFLA_IFNAME, append([]byte(name), 0)),
		attribute(unix.IFLA_LINKINFO, attribute(unix.IFLA_INFO_KIND, []byte("veth"))))
	if err := request(sock, unix.RTM_NEWLINK, create, link); err != nil {
		return fmt.Errorf("cannot add a veth: %w", err)
	}
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(sock, unix.SIOCGIFINDEX, ifr); err != nil {
		return err
	}
	for _, prefix := range addrs {
		family := byte(unix.AF_INET)
		if prefix.Addr().Is6() {
			family = unix.AF_INET6
		}
		head := binary.NativeEndian.AppendUint32([]byte{family, byte(prefix.Bits()), 0, 0}, ifr.Uint32())
		ip := prefix.Addr().AsSlice()
		addr := slices.Concat(head, attribute(unix.IFA_LOCAL, ip), attribute(unix.IFA_ADDRESS, ip))
		if err := request(sock, unix.RTM_NEWADDR, create, addr); err != nil {
			return fmt.Errorf("cannot add address %s: %w", prefix, err)
		}
	}
	return nil
}
