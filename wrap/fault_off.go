// SPDX-License-Identifier: Apache-2.0

//go:build !faults

package wrap

// faultPoint does nothing but in a build for tests.
func faultPoint(string) {}
