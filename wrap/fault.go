// SPDX-License-Identifier: Apache-2.0

//go:build faults

package wrap

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

var faultPoints int

// faultPoint counts the steps of this process. At number LOCKWRAP_FAULT_AT it
// kills it, or runs the program LOCKWRAP_FAULT_DO and goes on. It appends each
// step to the file LOCKWRAP_FAULT_LOG.
func faultPoint(step string) {
	at, err := strconv.Atoi(os.Getenv("LOCKWRAP_FAULT_AT"))
	if err != nil {
		return
	}
	faultPoints++
	if log, err := os.OpenFile(os.Getenv("LOCKWRAP_FAULT_LOG"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600); err == nil {
		fmt.Fprintln(log, step)
		log.Close()
	}
	if faultPoints != at {
		return
	}
	if program := os.Getenv("LOCKWRAP_FAULT_DO"); program != "" {
		if out, err := exec.Command(program).CombinedOutput(); err != nil {
			panic(fmt.Sprintf("%s: %v: %s", program, err, out))
		}
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
