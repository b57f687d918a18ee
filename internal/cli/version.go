package cli

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/wafleet/wafleet/internal/wa"
)

// versions is what /version and "wafleet version" tell.
type versions struct {
	Version   string `json:"version"`
	Commit    string `json:"commit,omitempty"`
	Modified  bool   `json:"modified,omitempty"` // built from a changed work tree
	Go        string `json:"go"`
	WhatsMeow string `json:"whatsmeow"`
	WAWeb     string `json:"waWebVersion"`
}

const whatsmeowModule = "go.mau.fi/whatsmeow"

// readVersions reads what the linker noted.
func readVersions() versions {
	v := versions{Version: "unknown", Go: runtime.Version(), WhatsMeow: "unknown", WAWeb: wa.WebVersion()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" && info.Main.Version != "(devel)" {
		v.Version = info.Main.Version
	} else {
		v.Version = "devel"
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	for _, d := range info.Deps {
		if d.Path == whatsmeowModule {
			v.WhatsMeow = d.Version
		}
	}
	return v
}

type versionCmd struct{}

// Run prints the versions.
func (*versionCmd) Run(_ context.Context, p *program) error {
	v := readVersions()
	commit := cmp.Or(v.Commit, "unknown")
	if v.Modified {
		commit += " (modified)"
	}
	_, err := fmt.Fprintf(p.stdout, "wafleet %s\ncommit %s\n%s\nwhatsmeow %s\nWhatsApp Web %s\n", v.Version, commit, v.Go, v.WhatsMeow, v.WAWeb)
	return err
}
