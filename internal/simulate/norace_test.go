//go:build !race

package simulate

const raceDetector = false
