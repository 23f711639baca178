// Plots of lines and measured points, on linear or logarithmic axes. A series has a colour, a dash or a mark, and a name.
import {el, svg} from "./dom.js";
import {digits} from "./format.js";

const DASHES = ["", "7 3", "2 3", "9 3 2 3", "4 2", "12 4", "1 2", "6 2 2 2"];
const SERIES = 8;

function axis({log = false, from, to}, pixels) {
  const [a, b] = log ? [Math.log10(from), Math.log10(to)] : [from, to];
  const span = b > a ? b - a : 1;
  return (value) => pixels[0] + ((log ? Math.log10(value) : value) - a) / span * (pixels[1] - pixels[0]);
}

/** About `most` round values from `from` to `to`. */
function linearTicks(from, to, most) {
  const raw = (to - from) / most || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= raw);
  const ticks = [];
  for (let i = Math.ceil(from / step - 1e-9); i * step <= to * (1 + 1e-9); ++i) ticks.push(i * step);
  return ticks;
}

function logTicks(from, to, most, base) {
  const first = Math.ceil(Math.log(from) / Math.log(base) - 1e-9), last = Math.floor(Math.log(to) / Math.log(base) + 1e-9);
  const every = Math.max(1, Math.ceil((last - first + 1) / most));
  const ticks = [];
  for (let e = first; e <= last; e += every) ticks.push(base ** e);
  return ticks;
}

const finite = (value, log) => Number.isFinite(value) && (!log || value > 0);

function rangeOf(given, values) {
  const some = values.filter((v) => finite(v, given.log));
  let from = given.from ?? Math.min(...some), to = given.to ?? Math.max(...some);
  if (!Number.isFinite(from) || !Number.isFinite(to)) [from, to] = [1, 10];
  if (from === to) [from, to] = given.log ? [from / 2, to * 2] : [from - 1, to + 1];
  return {...given, from, to};
}

/** Of an axis' number, in pixels, at the most. */
const textWidth = (text) => 6.8 * text.length;

const MARKS = [
  (x, y) => svg("circle", {cx: x, cy: y, r: 4}),
  (x, y) => svg("rect", {x: x - 3.6, y: y - 3.6, width: 7.2, height: 7.2}),
  (x, y) => svg("path", {d: `M${x} ${y - 5}L${x + 4.7} ${y + 3.5}L${x - 4.7} ${y + 3.5}Z`}),
  (x, y) => svg("path", {d: `M${x} ${y - 5}L${x + 5} ${y}L${x} ${y + 5}L${x - 5} ${y}Z`}),
];

/**
 * {width, height, x: {label, log, base, from, to, format}, y: likewise, series: [{name, points: [{x, y, low, high}], colour, marks, line}],
 *  verticals: [{x, label}], horizontals: [{y, label}]} as an element of SVG. `colour`: 0 to 7, by default the series' place; `marks`: show
 * points, with bars from low to high; `line: false`: no line. Values that cannot be drawn are left out.
 */
export function plot({width, height = 0, x, y, series, verticals = [], horizontals = []}) {
  const high = height || Math.round(Math.max(220, Math.min(380, width * 0.56)));
  const right = 26, top = 12, bottom = 46;
  const all = series.flatMap((s) => s.points);
  const xs = rangeOf(x, all.map((p) => p.x));
  const ys = rangeOf(y, all.flatMap((p) => [p.y, p.low ?? p.y, p.high ?? p.y]));
  const format = (a) => a.format ?? ((v) => digits(v));
  const ticksY = ys.log ? logTicks(ys.from, ys.to, 8, y.base ?? 10) : linearTicks(ys.from, ys.to, 6);
  const left = Math.max(62, 32 + Math.max(0, ...ticksY.map((t) => textWidth(format(y)(t)))));
  const atX = axis(xs, [left, width - right]), atY = axis(ys, [high - bottom, top]);
  const drawing = svg("svg", {viewBox: `0 0 ${width} ${high}`, width, height: high, class: "plot"});
  const mostX = Math.max(3, Math.floor((width - left) / 74));
  const ticksX = x.ticks ?? (xs.log ? logTicks(xs.from, xs.to, mostX, x.base ?? 10) : linearTicks(xs.from, xs.to, mostX));
  let written = 0;  // where the last number ends
  for (const t of ticksX) {
    drawing.append(svg("line", {class: "grid", x1: atX(t), x2: atX(t), y1: top, y2: high - bottom}));
    const text = format(x)(t), half = textWidth(text) / 2;
    if (atX(t) - half < written || atX(t) + half > width) continue;
    written = atX(t) + half + 4;
    drawing.append(svg("text", {class: "tick", x: atX(t), y: high - bottom + 16, "text-anchor": "middle"}, text));
  }
  for (const t of ticksY) {
    drawing.append(svg("line", {class: "grid", x1: left, x2: width - right, y1: atY(t), y2: atY(t)}),
      svg("text", {class: "tick", x: left - 6, y: atY(t) + 4, "text-anchor": "end"}, format(y)(t)));
  }
  drawing.append(svg("path", {class: "axis", d: `M${left} ${top}V${high - bottom}H${width - right}`}),
    svg("text", {class: "label", x: (left + width - right) / 2, y: high - 8, "text-anchor": "middle"}, x.label),
    svg("text", {class: "label", x: 0, y: 0, "text-anchor": "middle", transform: `translate(13 ${(top + high - bottom) / 2}) rotate(-90)`}, y.label));
  const inside = (v, range) => v >= range.from * (range.log ? 0.999 : 1) - 1e-12 && v <= range.to * 1.001;
  for (const v of verticals.filter((line) => finite(line.x, xs.log) && inside(line.x, xs))) {
    const late = atX(v.x) > width * 0.7;
    drawing.append(svg("line", {class: "mark", x1: atX(v.x), x2: atX(v.x), y1: top, y2: high - bottom}),
      svg("text", {class: "mark", x: atX(v.x) + (late ? -4 : 4), y: top + 11, "text-anchor": late ? "end" : "start"}, v.label));
  }
  for (const h of horizontals.filter((line) => finite(line.y, ys.log) && inside(line.y, ys))) {
    drawing.append(svg("line", {class: "mark", x1: left, x2: width - right, y1: atY(h.y), y2: atY(h.y)}),
      svg("text", {class: "mark", x: width - right - 4, y: atY(h.y) - 5, "text-anchor": "end"}, h.label));
  }
  // A strong line lies above the others.
  for (const [i, s] of [...series.entries()].sort(([, a], [, b]) => Boolean(a.strong) - Boolean(b.strong))) {
    const colour = (s.colour ?? i) % SERIES;
    const points = s.points.filter((p) => finite(p.x, xs.log) && finite(p.y, ys.log));
    const group = svg("g", {class: `series s${colour}${s.strong ? " strong" : ""}`}, svg("title", {}, s.name));
    if (s.line !== false && points.length > 1) {
      group.append(svg("path", {class: "line", d: points.map((p, k) => `${k ? "L" : "M"}${atX(p.x).toFixed(1)} ${atY(p.y).toFixed(1)}`).join(""),
        "stroke-dasharray": DASHES[s.dash ?? colour]}));
    }
    if (s.line !== false && !s.marks && points.length === 1) {
      group.append(svg("path", {class: "line", d: `M${atX(points[0].x) - 9} ${atY(points[0].y)}h18`}));
    }
    if (s.marks) {
      for (const p of points) {
        if (finite(p.low, ys.log) && finite(p.high, ys.log) && p.high > p.low) {
          group.append(svg("path", {class: "bar", d: `M${atX(p.x)} ${atY(p.low)}V${atY(p.high)}m-3 0h6M${atX(p.x) - 3} ${atY(p.low)}h6`}));
        }
        group.append(MARKS[colour % MARKS.length](atX(p.x), atY(p.y)));
      }
    }
    drawing.append(group);
  }
  return drawing;
}

/** The names of the series, beside what they look like. */
export function legend(series) {
  return el("ul", {class: "legend"}, series.map((s, i) => {
    const colour = (s.colour ?? i) % SERIES;
    const sample = svg("svg", {viewBox: "0 0 30 12", width: 30, height: 12, "aria-hidden": "true", class: "plot"},
      svg("g", {class: `series s${colour}${s.strong ? " strong" : ""}`},
        s.line === false ? null : svg("path", {class: "line", d: "M1 6H29", "stroke-dasharray": DASHES[s.dash ?? colour]}),
        s.marks ? MARKS[colour % MARKS.length](15, 6) : null));
    return el("li", {}, sample, " ", s.name);
  }));
}
