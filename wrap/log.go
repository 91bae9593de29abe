// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
)

// openLog returns where logs and the delegates' stderr go: stderr, which
// runtimes show or drop as they like, and logFile. A log file that can't be
// opened is no reason to refuse a container.
func openLog(s settings) (*slog.Logger, io.Writer) {
	out := io.Writer(os.Stderr)
	var problem error
	if s.LogFile != "" {
		var file *os.File
		problem = os.MkdirAll(filepath.Dir(s.LogFile), 0o755)
		if problem == nil {
			file, problem = os.OpenFile(s.LogFile, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		}
		if problem == nil {
			out = bothWriter{os.Stderr, file}
		}
	}
	log := slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: s.LogLevel}))
	if problem != nil {
		log.Warn("cannot open the log file", "err", problem)
	}
	return log, out
}

// bothWriter writes to both even if one fails: stderr is a broken pipe when the
// runtime has died.
type bothWriter [2]io.Writer

func (w bothWriter) Write(p []byte) (int, error) {
	_, _ = w[0].Write(p)
	return w[1].Write(p)
}
