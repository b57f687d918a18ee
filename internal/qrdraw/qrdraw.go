// Package qrdraw draws QR codes for phones to scan: as SVG, PNG, or block characters of a terminal.
//
// It knows nothing of what a code says, does no I/O and keeps nothing.
package qrdraw

import (
	"bytes"
	"fmt"
	"strings"

	"rsc.io/qr"
)

// quiet is the white border that scanners need, in modules.
const quiet = 4

// pngScale is the size of a module in a PNG, in pixels.
const pngScale = 8

// Code is a QR code that can be drawn.
type Code struct{ code *qr.Code }

// Encode makes the code of a text. An error means that the text is too long for one.
func Encode(text string) (Code, error) {
	code, err := qr.Encode(text, qr.L)
	if err != nil {
		return Code{}, fmt.Errorf("draw qr: %w", err)
	}
	code.Scale = pngScale
	return Code{code}, nil
}

// PNG draws a picture.
func (c Code) PNG() []byte { return c.code.PNG() }

// SVG draws one path of horizontal runs, black on white whatever the page's colours.
func (c Code) SVG() []byte {
	var b bytes.Buffer
	side := c.code.Size + 2*quiet
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" shape-rendering="crispEdges"><path fill="#fff" d="M0 0h%dv%dH0z"/><path d="`, side, side, side, side)
	for y := range c.code.Size {
		for x := 0; x < c.code.Size; x++ {
			if !c.code.Black(x, y) {
				continue
			}
			run := 1
			for x+run < c.code.Size && c.code.Black(x+run, y) {
				run++
			}
			fmt.Fprintf(&b, "M%d %dh%dv1h-%dz", x+quiet, y+quiet, run, run)
			x += run
		}
	}
	b.WriteString(`"/></svg>`)
	return b.Bytes()
}

// Blocks draws two rows of modules per line. Light modules are the drawn ones, which suits a dark
// terminal; phones read both.
func (c Code) Blocks() []byte {
	light := func(x, y int) bool { return !c.code.Black(x, y) } // Black is false outside
	var b strings.Builder
	for y := -quiet; y < c.code.Size+quiet; y += 2 {
		for x := -quiet; x < c.code.Size+quiet; x++ {
			top, bottom := light(x, y), light(x, y+1)
			switch {
			case top && bottom:
				b.WriteRune('█')
			case top:
				b.WriteRune('▀')
			case bottom:
				b.WriteRune('▄')
			default:
				b.WriteByte(' ')
			}
		}
		b.WriteByte('\n')
	}
	return []byte(b.String())
}
