// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"errors"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// errOther is lockwrap's code for failures of its own that no well-known code
// describes. 1 to 99 are reserved by the CNI specification.
const errOther uint = 101

// loud replaces the texts that make go-cni take a failed DEL for a success, so
// that the runtime forgets an attachment whose resources are still there
// (go-cni's Remove). lockwrap's own messages must not contain them.
func loud(msg string) string {
	msg = strings.ReplaceAll(msg, "not found", "missing")
	return strings.ReplaceAll(msg, "no such file or directory", "it does not exist")
}

// ownError is an error of lockwrap itself, as opposed to one of a delegate's.
// The details tell the operator what to do.
func ownError(code uint, details, format string, args ...any) *types.Error {
	msg := "lockwrap: " + fmt.Errorf(format, args...).Error()
	return types.NewError(code, loud(msg), loud(details))
}

func configError(format string, args ...any) *types.Error {
	return ownError(types.ErrInvalidNetworkConfig, "", format, args...)
}

// delegateError turns what came of one delegate into the error the runtime
// gets: the delegate's own code and details, and its message behind prefix.
// The prefix goes into the message because skel drops whatever is wrapped
// around a types.Error.
func delegateError(prefix string, err error) *types.Error {
	// What is no CNI error comes from reading the delegate's output.
	out := types.Error{Code: types.ErrDecodingFailure, Msg: err.Error()}
	if cniErr := (*types.Error)(nil); errors.As(err, &cniErr) {
		out = *cniErr
	}
	out.Msg = prefix + out.Msg
	return &out
}

// addDetail appends one more detail to an error's details.
func addDetail(err *types.Error, detail string) {
	if err.Details != "" {
		err.Details += "; "
	}
	err.Details += detail
}
