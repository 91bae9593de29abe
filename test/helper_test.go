// SPDX-License-Identifier: Apache-2.0

package test

func runAsHelper() bool { return false }
