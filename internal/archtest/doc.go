// Package archtest holds tests of the repository itself: which package may import which, what a package must say about
// itself, how the decision records look. They read sources and the go command's listing and run nothing.
//
// The same arrows stand in .golangci.yml, where an editor shows them; this package is what makes the suite fail.
package archtest
