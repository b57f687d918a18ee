//go:build race

package simulate

const raceDetector = true
