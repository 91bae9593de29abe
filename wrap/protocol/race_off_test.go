// SPDX-License-Identifier: Apache-2.0

//go:build !race

package protocol

const raceEnabled = false
