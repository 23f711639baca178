// A training step as bars: backward above, below it a row for each bucket: when it was ready, when it travelled, what was exposed.
import {el, svg} from "./dom.js";
import {digits} from "./format.js";

const LEFT = 74, RIGHT = 14, MOST_ROWS = 150;
const THICK = {row: 20, gap: 5, named: 1}, THIN = {row: 7, gap: 2, named: 5};  // pixels; one row in `named` has its name
const BACKWARD = 20;

/** Round values up to `most`. */
function ticksOf(most, count) {
  const raw = most / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= raw);
  return Array.from({length: Math.floor(most / step + 1e-9) + 1}, (_, i) => i * step);
}

/**
 * {width, backward, ready: [ms], rows: [{name, ready, launch, finish, exposed, title}], until}: `until` is the end of the axis, so that two
 * drawings can be compared. Times are milliseconds since backward began.
 */
export function timeline({width, backward, ready, rows, until}) {
  const shown = rows.slice(-MOST_ROWS), before = rows.length - shown.length;  // the last are those that are exposed
  const {row: rowHeight, gap, named} = shown.length <= 24 ? THICK : THIN;
  const top = before > 0 ? 64 : 46, high = top + shown.length * (rowHeight + gap) + 44;
  const at = (ms) => LEFT + ms / until * (width - LEFT - RIGHT);
  const bar = (kind, from, to, y, height, title) => svg("rect", {class: kind, x: at(from).toFixed(1), y, width: Math.max(0.8, at(to) - at(from)).toFixed(1), height},
    svg("title", {}, title));
  const drawing = svg("svg", {viewBox: `0 0 ${width} ${high}`, width, height: high, class: "plot steps"});
  const bottom = high - 40;
  const late = at(backward) + 110 > width;  // there is no room for words after the line
  for (const t of ticksOf(until, Math.max(3, Math.floor(width / 110)))) {
    drawing.append(svg("line", {class: "grid", x1: at(t), x2: at(t), y1: top - 4, y2: bottom}),
      svg("text", {class: "tick", x: at(t), y: bottom + 15, "text-anchor": "middle"}, digits(t)));
  }
  drawing.append(svg("text", {class: "label", x: (LEFT + width - RIGHT) / 2, y: high - 7, "text-anchor": "middle"}, "ms since backward began"),
    svg("text", {class: "tick", x: LEFT - 6, y: 29, "text-anchor": "end"}, "backward"),
    bar("backward", 0, backward, 14, BACKWARD, `backward: ${digits(backward)} ms`));
  for (const ms of ready) drawing.append(svg("line", {class: "ready", x1: at(ms), x2: at(ms), y1: 14, y2: 14 + BACKWARD}));
  drawing.append(svg("line", {class: "mark", x1: at(backward), x2: at(backward), y1: 8, y2: bottom}),
    svg("text", {class: "mark", x: at(backward) + (late ? -4 : 4), y: 11, "text-anchor": late ? "end" : "start"}, "backward ends"));
  shown.forEach((row, i) => {
    const y = top + i * (rowHeight + gap), middle = y + rowHeight / 2;
    const exposedFrom = Math.max(row.launch, row.finish - row.exposed);
    if (i % named === 0) drawing.append(svg("text", {class: "tick", x: LEFT - 6, y: middle + 4, "text-anchor": "end"}, row.name));
    drawing.append(
      svg("path", {class: "waits", d: `M${at(row.ready).toFixed(1)} ${middle}H${at(row.launch).toFixed(1)}`}),
      svg("circle", {class: "ready", cx: at(row.ready).toFixed(1), cy: middle, r: Math.min(3, rowHeight / 3)}),
      bar("hidden", row.launch, exposedFrom, y, rowHeight, row.title));
    if (row.exposed > 0) drawing.append(bar("exposed", exposedFrom, row.finish, y, rowHeight, `${row.title}, ${digits(row.exposed)} ms of it exposed`));
  });
  if (before > 0) drawing.append(svg("text", {class: "tick", x: LEFT, y: 54}, `${before} earlier ones are in the table`));
  return drawing;
}

/** What the bars mean. */
export function timelineLegend() {
  const sample = (shape) => svg("svg", {viewBox: "0 0 30 12", width: 30, height: 12, "aria-hidden": "true", class: "plot steps"}, shape);
  const rect = (kind) => sample(svg("rect", {class: kind, x: 1, y: 1, width: 28, height: 10}));
  return el("ul", {class: "legend"},
    el("li", {}, rect("backward"), " backward; lines: a gradient is final"),
    el("li", {}, sample([svg("path", {class: "waits", d: "M4 6H29"}), svg("circle", {class: "ready", cx: 4, cy: 6, r: 3})]), " ready, waits for the bucket before it"),
    el("li", {}, rect("hidden"), " travels, hidden"), el("li", {}, rect("exposed"), " travels, exposed: the step waits"));
}
