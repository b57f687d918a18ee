// Package simulate runs a whole gateway in one testing/synctest bubble: API, workers, webhooks and scheduler as separate
// processes on one SQLite file, the WhatsApp simulator with its phones, clients that repeat their requests, people who
// write, and a webhook receiver. Networks are in memory, time is fake, and everything runs the code that is shipped.
//
// What goes wrong is a plan: a list of steps made from a seed before the run, which can be printed, edited, shrunk and
// kept. After the storm comes a calm, and then the simulator's log, the rows and the receiver's log are compared with
// what the gateway promises. The package consists of tests only; docs/simulation.md says how to use it.
package simulate
