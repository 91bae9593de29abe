// SPDX-License-Identifier: Apache-2.0

// Package conflist changes network configuration lists as files: it puts
// lockwrap around the plugins of a list, and takes it away again, without
// touching a byte of what the author wrote. It knows nothing of locks.
package conflist
