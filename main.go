// Command wafleet is a self-hosted gateway for fleets of WhatsApp numbers. See README.md.
package main

import (
	"context"
	"os"

	"github.com/wafleet/wafleet/internal/cli"
)

func main() {
	os.Exit(cli.Main(context.Background(), os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}
