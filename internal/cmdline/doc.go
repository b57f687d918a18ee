// Package cmdline reads a command line into structs. Their fields are flags and arguments, described by tags:
//
//	help         what it is for; every flag has it
//	name         of the flag; else the setting's, else the field's: LookupKeyFile is --lookup-key-file
//	setting      its name elsewhere (internal/config), such as LEASE_TTL
//	default      its value when nobody gives one
//	placeholder  what help shows for its value
//	group        heading under which help shows it
//	enum         the words that it may be, separated by commas
//	xor          exactly one flag with this word is given
//	arg          it has no name: its place on the line is its name
//	type         existingdir or existingfile: it must be there
//
// It knows neither environment nor files, prints nothing and ends no process. It calls no method by its name: a program
// that can do so keeps every exported method of every type it links, and this one would be a third larger.
package cmdline
