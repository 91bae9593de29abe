// SPDX-License-Identifier: Apache-2.0

// Package wrap is the lockwrap CNI plugin: what runs when a container starts.
//
// A network configuration list contains one lockwrap entry that holds the
// plugins it wraps, its delegates:
//
//	{"cniVersion": "1.0.0", "name": "web", "plugins": [
//	  {"type": "lockwrap", "capabilities": {"portMappings": true},
//	   "delegates": [
//	     {"type": "bridge", ...},
//	     {"type": "firewall", ...},
//	     {"type": "portmap", "capabilities": {"portMappings": true}}]}]}
//
// The steps of ADD, each with the file that does it:
//
//	parse                 config.go
//	locate the delegates  delegates.go
//	lock                  lock.go, holder.go, trust.go
//	recover               recover.go, record.go, netns.go
//	pre-create chains     chains.go
//	the delegates' ADDs   wrap.go, delegates.go, process.go
//	print, record         wrap.go, record.go
//	unlock                lock.go
//
// and, when a delegate fails, undo.go in place of the result. plugin.go has what
// all verbs share, wrap.go the verbs; decoy.go helps a DEL whose namespace is
// gone. step.go marks the steps, at which the tests make a call die (fault.go).
//
// standin.go is the other way in: lockwrap under the name of one plugin, for
// lists that nobody can edit. It is the same with one delegate, and a record that
// the stand-ins of an attachment share.
//
// What is promised:
//
//   - Each delegate sees what it would see in the bare list, and the runtime
//     gets what the bare list would give it.
//   - ADD and DEL never run without the host lock, and the kernel's lock alone
//     decides who holds it.
//   - An ADD that failed has left nothing behind, or the next ADD or DEL of the
//     same attachment removes it.
//   - stdout carries one JSON document or nothing. Logs and the delegates'
//     stderr go to stderr, and to logFile.
package wrap
