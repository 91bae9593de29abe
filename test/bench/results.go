// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/csv"
	"fmt"
	"os"
	"slices"
	"strconv"
)

// what says what was measured: one line of a table.
type what struct {
	part, backend string
	atOnce        int
	host          string // cold or warm, or how many attachments it has
	verb, side    string
	figure        string // wall, cpu, p50, p99: in milliseconds; failed, duplicated
}

// results are all measurements of a run, in the order in which they were made.
type results struct {
	keys   []what
	values map[what][]float64
}

func (r *results) add(w what, value float64) {
	if r.values == nil {
		r.values = map[what][]float64{}
	}
	if _, seen := r.values[w]; !seen {
		r.keys = append(r.keys, w)
	}
	r.values[w] = append(r.values[w], value)
}

// figure and beside name another figure or side of the same measurement.
func (w what) of(figure string) what   { w.figure = figure; return w }
func (w what) beside(side string) what { w.side = side; return w }

func (r *results) median(w what) float64 { return quantile(r.values[w], 0.5) }

func (r *results) sum(w what) (sum float64) {
	for _, v := range r.values[w] {
		sum += v
	}
	return sum
}

// ratios are a side's measurements by another's of the same rounds.
func (r *results) ratios(w what, other string) []float64 {
	var out []float64
	others := r.values[w.beside(other)]
	for i, v := range r.values[w] {
		if i < len(others) && others[i] > 0 {
			out = append(out, v/others[i])
		}
	}
	return out
}

// spread shows the median of some ratios, and between what they were: the quarter points if there are many.
func spread(ratios []float64) string {
	if len(ratios) == 0 {
		return ""
	}
	low, high := 0.0, 1.0
	if len(ratios) >= 20 {
		low, high = 0.25, 0.75
	}
	return fmt.Sprintf("%.3f (%.2f-%.2f)", quantile(ratios, 0.5), quantile(ratios, low), quantile(ratios, high))
}

// quantile interpolates between the two values next to q.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i == len(sorted)-1 {
		return sorted[i]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// write writes every measurement.
func (r *results) write(file string) error {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	w := csv.NewWriter(out)
	_ = w.Write([]string{"part", "iptables", "at_once", "host", "verb", "side", "figure", "round", "value"})
	for _, k := range r.keys {
		for i, v := range r.values[k] {
			_ = w.Write([]string{k.part, k.backend, strconv.Itoa(k.atOnce), k.host, k.verb, k.side, k.figure,
				strconv.Itoa(i + 1), strconv.FormatFloat(v, 'f', 3, 64)})
		}
	}
	w.Flush()
	if err := w.Error(); err != nil {
		return err
	}
	return out.Close()
}

// wrong is what must not be, whatever the times: a failed call or a duplicated rule with a lock.
func (r *results) wrong() (lines []string) {
	for _, k := range r.keys {
		if (k.figure == "failed" || k.figure == "duplicated") && k.side != bare && r.sum(k) > 0 {
			lines = append(lines, fmt.Sprintf("%s, %s, %d at once, %s %s, %s: %.0f %s",
				k.part, k.backend, k.atOnce, k.host, k.verb, k.side, r.sum(k), k.figure))
		}
	}
	return lines
}
