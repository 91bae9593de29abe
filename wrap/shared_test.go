// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// A hanging iptables must not keep the host's lock: it is killed, and named.
func TestWithin_hangs(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cmd := exec.Command("sleep", "60")
	ended := make(chan error, 1)
	_, err := within(ctx, func() (struct{}, error) {
		if err := cmd.Start(); err != nil {
			return struct{}{}, err
		}
		cancel(errors.New("enough"))
		ended <- cmd.Wait()
		return struct{}{}, nil
	})
	if err == nil || !strings.HasPrefix(err.Error(), "enough") || !strings.Contains(err.Error(), `killed "sleep 60"`) {
		t.Errorf("got %v", err)
	}
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("it lives")
	}
}

func TestWithin(t *testing.T) {
	got, err := within(t.Context(), func() (int, error) { return 7, context.Canceled })
	if got != 7 || !errors.Is(err, context.Canceled) {
		t.Errorf("got %d, %v", got, err)
	}
}
