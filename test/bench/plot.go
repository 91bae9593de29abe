// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"image/color"
	"os"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

var colors = map[string]color.Color{
	floor:       color.RGBA{0x88, 0x88, 0x88, 0xff},
	"wrapped":   color.RGBA{0x1b, 0x6c, 0xa8, 0xff},
	"stand-ins": color.RGBA{0xd9, 0x7b, 0x29, 0xff},
}

// plot draws the ratios of many calls at once to the bare list: a row for each kind of iptables.
func (b *bench) plot(file string) error {
	columns := []what{{host: "cold", verb: "add"}, {host: "warm", verb: "add"}, {host: "warm", verb: "del"}}
	var rows [][]*plot.Plot
	for _, backend := range b.backends {
		var row []*plot.Plot
		for _, c := range columns {
			p, err := b.panel(what{"burst", backend, 0, c.host, c.verb, "", "wall"})
			if err != nil {
				return err
			}
			if p != nil {
				row = append(row, p)
			}
		}
		if len(row) > 0 {
			rows = append(rows, row)
		}
	}
	if len(rows) == 0 {
		return nil // bursts were not measured
	}
	canvas := vgsvg.New(vg.Points(270*float64(len(columns))), vg.Points(210*float64(len(rows))))
	tiles := draw.Tiles{
		Rows: len(rows), Cols: len(columns), PadX: vg.Points(12), PadY: vg.Points(12),
		PadTop: vg.Points(6), PadBottom: vg.Points(6), PadLeft: vg.Points(6), PadRight: vg.Points(6),
	}
	for i, row := range plot.Align(rows, tiles, draw.New(canvas)) {
		for j, tile := range row {
			rows[i][j].Draw(tile)
		}
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := canvas.WriteTo(out); err != nil {
		return err
	}
	return out.Close()
}

// panel is one plot; nil if nothing of it was measured.
func (b *bench) panel(k what) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = fmt.Sprintf("%s, %s host, iptables-%s", strings.ToUpper(k.verb), k.host, k.backend)
	p.X.Label.Text = "calls at once"
	p.Y.Label.Text = "time / bare list"
	p.Legend.Top = true
	var names []string
	for _, n := range b.sizes {
		names = append(names, fmt.Sprint(n))
	}
	p.NominalX(names...)
	one := plotter.NewFunction(func(float64) float64 { return 1 })
	one.Dashes = []vg.Length{vg.Points(3), vg.Points(3)}
	p.Add(one)
	low, high, drawn := 1.0, 1.0, false
	for i, s := range sides {
		if s.name == bare {
			continue
		}
		var points ratiosBySize
		for at, n := range b.sizes {
			k.atOnce = n
			ratios := b.ratios(k.beside(s.name), bare)
			if len(ratios) == 0 {
				continue
			}
			middle := quantile(ratios, 0.5)
			// Side by side, or the bars cover each other.
			points.XYs = append(points.XYs, plotter.XY{X: float64(at) + 0.08*float64(i-2), Y: middle})
			points.YErrors = append(points.YErrors, struct{ Low, High float64 }{
				middle - slices.Min(ratios), slices.Max(ratios) - middle,
			})
			low, high, drawn = min(low, slices.Min(ratios)), max(high, slices.Max(ratios)), true
		}
		if len(points.XYs) == 0 {
			continue
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, err
		}
		bars, err := plotter.NewYErrorBars(points)
		if err != nil {
			return nil, err
		}
		line.Color, dots.Color, bars.Color = colors[s.name], colors[s.name], colors[s.name]
		dots.Shape = draw.CircleGlyph{}
		p.Add(line, dots, bars)
		p.Legend.Add(s.name, line, dots)
	}
	if !drawn {
		return nil, nil
	}
	p.Y.Min, p.Y.Max = low-0.05, high+0.05+(high-low)*0.4 // with room for the legend
	return p, nil
}

// ratiosBySize are points with what they were between.
type ratiosBySize struct {
	plotter.XYs
	plotter.YErrors
}
