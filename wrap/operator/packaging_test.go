// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lockwrap/lockwrap/conflist"
	"github.com/lockwrap/lockwrap/wrap"
)

// What the packages ship as examples can be used as it is.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("packaging/examples/*.conflist")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples (%v)", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			list, err := loadList(file)
			if err != nil {
				t.Fatal(err)
			}
			conf, err := wrap.ParseEntry(list.Plugins[0].Raw, list.Name, list.CNIVersion, nil)
			if err == nil {
				err = conf.CheckCapabilities()
			}
			if err != nil {
				t.Error(err)
			}
			bare, err := list.Unwrap()
			if err != nil {
				t.Fatal(err)
			}
			list, err = conflist.Parse(file, bare)
			if err != nil {
				t.Fatal(err)
			}
			again, err := list.Wrap(nil)
			if err != nil {
				t.Fatal(err)
			}
			shipped, err := conflist.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(shipped.Data), string(again)); diff != "" {
				t.Errorf("not what \"lockwrap wrap\" writes (-shipped +written):\n%s", diff)
			}
		})
	}
	t.Run("config.json", func(t *testing.T) {
		defaults, err := wrap.HostSettings([]string{"LOCKWRAP_CONFIG="})
		if err != nil {
			t.Fatal(err)
		}
		shipped, err := wrap.HostSettings([]string{"LOCKWRAP_CONFIG=packaging/examples/config.json"})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(defaults, shipped); diff != "" {
			t.Errorf("not the defaults (-default +shipped):\n%s", diff)
		}
	})
}
