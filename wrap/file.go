// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// longest is the size of the largest file that lockwrap reads: a record holds a
// few configurations and results.
const longest = 16 << 20

// readFile reads a regular file of a sensible size. Whatever somebody has put in
// its place, a fifo for instance, must not hang or kill a call that holds the
// host's lock.
func readFile(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	}
	data, err := io.ReadAll(io.LimitReader(file, longest+1))
	if len(data) > longest {
		return nil, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("larger than %d MiB", longest>>20)}
	}
	return data, err
}
