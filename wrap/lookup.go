// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"unsafe"

	"github.com/coreos/go-iptables/iptables"
	"golang.org/x/sys/unix"
)

// areThere reports whether all chains of a table that are named exist, by asking
// the kernel. On all hosts but a fresh one they do, and then no iptables has to be
// run for them: three runs were a tenth of an ADD's processor time. False means
// only that they have to be looked for in earnest.
func areThere(proto iptables.Protocol, table string, names []string) bool {
	command := "iptables"
	if proto == iptables.ProtocolIPv6 {
		command = "ip6tables"
	}
	path, err := exec.LookPath(command)
	if err != nil {
		return false
	}
	// A chain of the other kind would not be the one that the delegates use.
	program, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false
	}
	switch filepath.Base(program) {
	case "xtables-nft-multi":
		return areInNFT(proto, table, names)
	case "xtables-legacy-multi":
		return areInLegacy(proto, table, names)
	}
	return false
}

// areInNFT asks nf_tables for each chain (linux/netfilter/nf_tables.h). iptables-nft
// has its tables there under their own names, in the families ip and ip6.
func areInNFT(proto iptables.Protocol, table string, names []string) bool {
	const getChain = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETCHAIN
	sock, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return false
	}
	defer unix.Close(sock)
	family := byte(unix.NFPROTO_IPV4)
	if proto == iptables.ProtocolIPv6 {
		family = unix.NFPROTO_IPV6
	}
	for _, name := range names {
		question := slices.Concat([]byte{family, unix.NFNETLINK_V0, 0, 0},
			attribute(unix.NFTA_CHAIN_TABLE, append([]byte(table), 0)),
			attribute(unix.NFTA_CHAIN_NAME, append([]byte(name), 0)))
		if request(sock, getChain, 0, question) != nil {
			return false
		}
	}
	return true
}

// areInLegacy reads a table as iptables-legacy does (linux/netfilter_ipv4/ip_tables.h,
// linux/netfilter_ipv6/ip6_tables.h). To look at it makes the kernel create it, as
// iptables-legacy does.
func areInLegacy(proto iptables.Protocol, table string, names []string) bool {
	level, family := unix.SOL_IP, unix.AF_INET
	if proto == iptables.ProtocolIPv6 {
		level, family = unix.SOL_IPV6, unix.AF_INET6
	}
	sock, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return false
	}
	defer unix.Close(sock)
	const getInfo, getEntries = 64, 65 // IPT_SO_GET_INFO, IPT_SO_GET_ENTRIES; the same for IPv6
	const infoSize, entriesHead = 84, 40
	info := make([]byte, infoSize)
	copy(info[:31], table)
	if getsockopt(sock, level, getInfo, info) != nil {
		return false
	}
	size := binary.NativeEndian.Uint32(info[infoSize-4:])
	entries := make([]byte, entriesHead+size)
	copy(entries[:31], table)
	binary.NativeEndian.PutUint32(entries[32:], size)
	// Fails if the table has changed since.
	if getsockopt(sock, level, getEntries, entries) != nil {
		return false
	}
	chains, err := legacyChains(entries[entriesHead:], proto)
	return err == nil && !slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(chains, name) })
}

// legacyChains finds the user's chains among the entries of a table. Each begins
// with an entry of the target "ERROR" whose argument is the chain's name.
func legacyChains(entries []byte, proto iptables.Protocol) (chains []string, err error) {
	offsets := 88 // of target_offset in struct ipt_entry; next_offset is behind it
	if proto == iptables.ProtocolIPv6 {
		offsets = 140
	}
	const targetHead, longestName = 32, 32 // struct xt_entry_target, xt_error_target
	for len(entries) > 0 {
		if len(entries) < offsets+4 {
			return nil, errCutOff
		}
		target := int(binary.NativeEndian.Uint16(entries[offsets:]))
		next := int(binary.NativeEndian.Uint16(entries[offsets+2:]))
		if next < offsets+4 || next > len(entries) || target+targetHead > next {
			return nil, errCutOff
		}
		if name := cString(entries[target+2 : target+31]); name == "ERROR" && target+targetHead+longestName <= next {
			chains = append(chains, cString(entries[target+targetHead:target+targetHead+longestName]))
		}
		entries = entries[next:]
	}
	return chains, nil
}

var errCutOff = errors.New("an entry of the table is cut off")

func cString(b []byte) string {
	name, _, _ := bytes.Cut(b, []byte{0})
	return string(name)
}

func getsockopt(sock, level, option int, value []byte) error {
	size := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(sock), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&value[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
