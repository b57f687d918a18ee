// Package trials is the home of the programs that try wafleet out as real processes: kill -9, frozen workers, outages
// and benchmarks. Each folder with a main package is one target of the Makefile; cluster is what they share. They see
// the product from outside only: over HTTP, by signals, in the rows of its database and in the log of the simulator.
package trials
