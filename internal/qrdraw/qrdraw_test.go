package qrdraw

import (
	"bytes"
	"fmt"
	"image/png"
	"regexp"
	"strings"
	"testing"

	"rsc.io/qr"
)

// A QR as long as WhatsApp's.
var longQR = "2@" + strings.Repeat("abcdefghij0123456789+/AB,", 11)

func TestSVGDrawsExactlyTheModulesOfTheCode(t *testing.T) {
	code, err := qr.Encode(longQR, qr.L)
	if err != nil {
		t.Fatal(err)
	}
	svg := string(Code{code}.SVG())
	side := code.Size + 2*quiet
	if want := fmt.Sprintf(`viewBox="0 0 %d %d"`, side, side); !strings.Contains(svg, want) {
		t.Errorf("svg lacks %s", want)
	}
	drawn := map[[2]int]bool{}
	for _, m := range regexp.MustCompile(`M(\d+) (\d+)h(\d+)v1h-\d+z`).FindAllStringSubmatch(svg, -1) {
		var x, y, run int
		if _, err := fmt.Sscan(m[1], &x); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscan(m[2], &y); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscan(m[3], &run); err != nil {
			t.Fatal(err)
		}
		for i := range run {
			drawn[[2]int{x + i - quiet, y - quiet}] = true
		}
	}
	for y := -quiet; y < code.Size+quiet; y++ {
		for x := -quiet; x < code.Size+quiet; x++ {
			if drawn[[2]int{x, y}] != code.Black(x, y) {
				t.Fatalf("module %d,%d is drawn %v, want %v", x, y, drawn[[2]int{x, y}], code.Black(x, y))
			}
		}
	}
}

func TestBlocksDrawExactlyTheModulesOfTheCode(t *testing.T) {
	code, err := qr.Encode(longQR, qr.L)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(Code{code}.Blocks()), "\n"), "\n")
	for i, line := range lines {
		runes := []rune(line)
		if len(runes) != code.Size+2*quiet {
			t.Fatalf("line %d has %d characters, want %d", i, len(runes), code.Size+2*quiet)
		}
		for j, r := range runes {
			top, bottom := !code.Black(j-quiet, 2*i-quiet), !code.Black(j-quiet, 2*i+1-quiet)
			want := map[[2]bool]rune{{true, true}: '█', {true, false}: '▀', {false, true}: '▄', {false, false}: ' '}[[2]bool{top, bottom}]
			if r != want {
				t.Fatalf("line %d, character %d = %q, want %q", i, j, r, want)
			}
		}
	}
	if len(lines)*2 < code.Size+2*quiet {
		t.Errorf("%d lines for %d modules", len(lines), code.Size)
	}
}

func TestPNGIsAPictureOfTheCode(t *testing.T) {
	drawn, err := Encode(longQR)
	if err != nil {
		t.Fatal(err)
	}
	img, err := png.Decode(bytes.NewReader(drawn.PNG()))
	if err != nil {
		t.Fatal(err)
	}
	code, err := qr.Encode(longQR, qr.L)
	if err != nil {
		t.Fatal(err)
	}
	if side := (code.Size + 2*quiet) * 8; img.Bounds().Dx() != side || img.Bounds().Dy() != side {
		t.Errorf("picture is %v, want %d pixels each way", img.Bounds(), side)
	}
	for y := range code.Size {
		for x := range code.Size {
			r, _, _, _ := img.At((x+quiet)*8+4, (y+quiet)*8+4).RGBA()
			if (r == 0) != code.Black(x, y) {
				t.Fatalf("module %d,%d is black %v, want %v", x, y, r == 0, code.Black(x, y))
			}
		}
	}
}
