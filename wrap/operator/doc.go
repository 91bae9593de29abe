// SPDX-License-Identifier: Apache-2.0

// Package operator is the face of lockwrap that a person sees: the commands that
// put it into lists, look at a host, and say what is going on.
//
// What a command was asked for goes to stdout. What could not be done goes to
// stderr, as "lockwrap: error: ..." with at most two lines "lockwrap: hint: ...";
// "lockwrap: warning: ..." is for what the operator may want to change. All in
// lower case and without a full stop. The exit code is 0, 1 if something failed
// or was found wrong, and 2 for a usage error, with the usage of the command.
//
// Nothing here runs when a container starts.
package operator
