// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	gocni "github.com/containerd/go-cni"
	"github.com/containernetworking/cni/libcni"

	"github.com/lockwrap/lockwrap/test/rig"
)

const helperEnv = "LOCKWRAP_TEST_HELPER"

// runAsHelper makes the test binary one of the programs that the tests need on a host.
func runAsHelper() bool {
	var err error
	switch os.Getenv(helperEnv) {
	case "":
		return false
	case "pass":
		err = passPlugin()
	case "gocni":
		err = callGoCNI(os.Args[1], os.Args[2], os.Args[3], os.Args[4])
	case "scan":
		err = scanLists(os.Args[1], os.Args[2])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

// passPlugin is a plugin that does nothing and passes the result on.
func passPlugin() error {
	stdin, err := io.ReadAll(os.Stdin)
	if err != nil || os.Getenv("CNI_COMMAND") != "ADD" {
		return err
	}
	var conf struct{ PrevResult json.RawMessage }
	if err := json.Unmarshal(stdin, &conf); err != nil {
		return err
	}
	_, err = os.Stdout.Write(conf.PrevResult)
	return err
}

// pass puts it in the place of plugins.
func pass(t *testing.T, h *rig.Host, plugins ...string) {
	t.Helper()
	self, err := os.Executable()
	ok(t, err)
	for _, plugin := range plugins {
		ok(t, h.Shim(plugin, fmt.Sprintf("export %s=pass; real=%s", helperEnv, self)))
	}
}

// callGoCNI uses containerd's library as Nomad does: setup with labels and up to a number of tries with nothing in
// between, remove without labels. It prints the error of every try.
func callGoCNI(verb, id, netns, tries string) error {
	list, err := os.ReadFile(os.Getenv("LIST"))
	if err != nil {
		return err
	}
	cni, err := gocni.New(gocni.WithPluginDir(filepath.SplitList(os.Getenv("CNI_PATH"))),
		gocni.WithInterfacePrefix("eth"))
	if err != nil {
		return err
	}
	if err := cni.Load(gocni.WithConfListBytes(list)); err != nil {
		return err
	}
	var ports struct{ PortMappings []gocni.PortMapping }
	if err := json.Unmarshal([]byte(os.Getenv("CAP_ARGS")), &ports); err != nil {
		return err
	}
	portMap := gocni.WithCapabilityPortMap(ports.PortMappings)
	if verb == "remove" {
		return cni.Remove(context.Background(), id, netns, portMap)
	}
	n, err := strconv.Atoi(tries)
	if err != nil {
		return err
	}
	labels := gocni.WithLabels(map[string]string{"IgnoreUnknown": "true", "NOMAD_ALLOC_ID": id, "NOMAD_JOB_ID": "web"})
	for range n {
		if err = cni.Status(); err != nil {
			return err
		}
		if _, err = cni.Setup(context.Background(), id, netns, portMap, labels); err == nil {
			return nil
		}
		fmt.Println(err)
	}
	return err
}

// scanLists loads all lists of a directory again and again, as runtimes do at any time, until the file end exists. A
// broken one is an error, and so is any number but one. It prints how often it has looked.
func scanLists(dir, end string) error {
	for looks := 0; ; looks++ {
		if _, err := os.Stat(end); err == nil {
			fmt.Println(looks)
			return nil
		}
		files, err := libcni.ConfFiles(dir, []string{".conf", ".conflist", ".json"})
		if err != nil {
			return err
		}
		if len(files) != 1 {
			return fmt.Errorf("%d lists: %q", len(files), files)
		}
		if _, err := libcni.ConfListFromFile(files[0]); err != nil {
			return err
		}
	}
}
