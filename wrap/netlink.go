// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// attribute encodes one netlink attribute (rtnetlink(7)), padded to 4 bytes.
func attribute(kind uint16, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofRtAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	return append(b, make([]byte, -len(b)&3)...)
}

// request sends one netlink message and waits for the kernel's answer. The error
// is what the kernel says.
func request(sock int, kind, flags uint16, body []byte) error {
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|flags)
	b = append(b, make([]byte, 8)...) // sequence number and port: the kernel's choice
	b = append(b, body...)
	if err := unix.Sendto(sock, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, unix.Getpagesize())
	n, _, err := unix.Recvfrom(sock, answer, 0)
	if err != nil {
		return err
	}
	if n < unix.SizeofNlMsghdr+4 {
		return fmt.Errorf("the kernel's answer has %d bytes", n)
	}
	if binary.NativeEndian.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return nil // what was asked for
	}
	if errno := int32(binary.NativeEndian.Uint32(answer[unix.SizeofNlMsghdr:])); errno != 0 {
		return unix.Errno(-errno)
	}
	return nil
}
