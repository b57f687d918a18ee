// Package router picks the session that sends a message.
//
// It reads an organization's sessions and answers with one of them, and with the reason for every
// one it passed over, so that a refusal can be explained. It changes nothing, waits for nothing but
// the read, and keeps no state: two calls with the same rows give the same answer.
//
// In this version the first eligible session in list order wins. Budgets, affinity and strategies
// come between eligibility and choice.
package router
