// The two drawings of chapter 1: who sends what to whom at a step, and what every rank's buffer holds after it.
import {svg} from "../lib/dom.js";
import {placesFor} from "./ring_labels.js";

/** The colour of a rank: hues round the circle, light enough or dark enough for the theme. */
export function colourOf(rank, ranks) {
  const light = getComputedStyle(document.documentElement).getPropertyValue("--rank-light").trim() || "50%";
  return `hsl(${Math.round(rank * 360 / ranks + 210) % 360} 65% ${light})`;
}

/** A sum of contributions as a text: x0 + x1 + x3; with many, x0..x5 + x7. */
export function sumText(holds, reduces) {
  if (!holds || holds.length === 0) return "";
  const runs = [];
  for (const rank of holds) {
    const last = runs[runs.length - 1];
    if (last && rank === last[1] + 1) last[1] = rank;
    else runs.push([rank, rank]);
  }
  const run = ([a, b]) => (a === b ? `x${a}` : b === a + 1 ? `x${a} + x${b}` : `x${a} + … + x${b}`);
  return reduces ? runs.map(run).join(" + ") : `from ${holds.join(", ")}`;
}

function stripes(x, y, width, height, holds, ranks, faint) {
  return holds.map((rank) => svg("rect", {
    x: (x + width * rank / ranks).toFixed(2), y, width: (width / ranks).toFixed(2), height,
    fill: colourOf(rank, ranks), opacity: faint ? 0.35 : 1,
  }));
}

/** The transfers of step `step`: what leaves a rank in it, or is fetched or written in place. */
export function arrowsAt(plan, step) {
  return plan.arrows.filter(([, from, , to, , by]) => (by === "slot" ? from < step && step <= to : from === step - 1));
}

function node(plan, rank, at, radius) {
  return svg("g", {},
    svg("circle", {cx: at.x, cy: at.y, r: radius, fill: colourOf(rank, plan.ranks), class: "rank"}),
    svg("circle", {cx: at.x, cy: at.y, r: radius - 4, class: "rank-inside"}),
    svg("text", {x: at.x, y: at.y + 5, "text-anchor": "middle", class: "rank-name"}, rank));
}

function arrowPath(a, b, radius, bend, side) {
  const dx = b.x - a.x, dy = b.y - a.y, length = Math.hypot(dx, dy) || 1, far = length > side * 0.65;
  const control = {x: (a.x + b.x) / 2 - dy / length * bend, y: (a.y + b.y) / 2 + dx / length * bend};
  const near = (from, to, gap) => {
    const l = Math.hypot(to.x - from.x, to.y - from.y) || 1;
    return {x: from.x + (to.x - from.x) / l * gap, y: from.y + (to.y - from.y) / l * gap};
  };
  const start = near(a, control, radius + 2), end = near(b, control, radius + 9), tip = near(b, control, radius + 1);
  const on = (p, q, r, t) => (1 - t) ** 2 * p + 2 * (1 - t) * t * q + t ** 2 * r;
  const across = {x: -(tip.y - end.y) * 0.6, y: (tip.x - end.x) * 0.6};
  return {
    line: `M${start.x.toFixed(1)} ${start.y.toFixed(1)}Q${control.x.toFixed(1)} ${control.y.toFixed(1)} ${end.x.toFixed(1)} ${end.y.toFixed(1)}`,
    head: `M${tip.x.toFixed(1)} ${tip.y.toFixed(1)}L${(end.x + across.x).toFixed(1)} ${(end.y + across.y).toFixed(1)}L${(end.x - across.x).toFixed(1)} ${(end.y - across.y).toFixed(1)}Z`,
    start, tip, far, length, at: (t) => ({x: on(start.x, control.x, end.x, t), y: on(start.y, control.y, end.y, t)}),
  };
}

/** Ranks round a circle, and what travels between them at `step`. `moved`: animate what travels. */
export function drawRing(plan, step, width, moved) {
  const side = Math.min(width, 430);
  const radius = plan.ranks > 10 ? 14 : 18;
  const at = (rank) => {
    const angle = rank * 2 * Math.PI / plan.ranks - Math.PI / 2;
    return {x: width / 2 + Math.cos(angle) * (side / 2 - radius - 14), y: side / 2 + Math.sin(angle) * (side / 2 - radius - 14)};
  };
  const drawing = svg("svg", {viewBox: `0 0 ${width} ${side}`, width, height: side, class: "ring"});
  const arrows = arrowsAt(plan, step);
  const labelled = arrows.length <= Math.max(12, 2 * plan.ranks);
  const boxes = new Map(plan.boxes.map((b) => [`${b.rank}.${b.level}`, b]));
  const paths = arrows.map(([from, , to]) => arrowPath(at(from), at(to), radius, labelled ? Math.min(34, side / 11) : 10, side));
  arrows.forEach(([, level, , , , by], i) => {
    const waits = by === "slot" && level < step - 1;
    drawing.append(svg("path", {class: waits ? "arrow waits" : "arrow", d: paths[i].line}), svg("path", {class: "arrow-head", d: paths[i].head}));
  });
  const everybody = Array.from({length: plan.ranks}, (_, rank) => rank);
  for (const rank of everybody) drawing.append(node(plan, rank, at(rank), radius));
  const missing = (count) => {
    if (count > 0) drawing.append(svg("text", {class: "tick", x: 0, y: side - 4}, `${count} without a label: see the table`));
  };
  if (!labelled) {
    missing(arrows.length);
    return drawing;
  }
  const small = width < 400 || plan.ranks > 10, w = small ? 32 : 40, h = small ? 20 : 24;
  const places = placesFor(paths, {w, h, width, height: side, ranks: everybody.map((rank) => ({...at(rank), w: 2 * radius, h: 2 * radius}))});
  missing(places.filter((place) => place === null).length);
  for (const [i, place] of places.entries()) {
    if (place === null) continue;
    const [from, level, , , chunk, by] = arrows[i], {x, y} = place;
    const pill = svg("g", {class: "pill"},
      svg("rect", {x: x - w / 2, y: y - h / 2, width: w, height: h, rx: 4, class: "pill-back"}),
      svg("text", {x, y: y + (small ? 1 : -1), "text-anchor": "middle"}, `c${chunk}`),
      stripes(x - w / 2 + 3, y + 3, w - 6, h / 2 - 6, by === "pull" ? [from] : boxes.get(`${from}.${level}`)?.holds ?? [from], plan.ranks, false));
    drawing.append(pill);
    if (moved) {
      pill.animate([{transform: `translate(${paths[i].start.x - x}px, ${paths[i].start.y - y}px)`}, {transform: "none"}],
        {duration: 420, easing: "ease-out"});
    }
  }
  return drawing;
}

/** [rank][column] = {holds, written} after `step` steps. */
export function buffersAt(plan, step) {
  const cells = plan.starts.map((columns, rank) => {
    const row = Array.from({length: plan.columns}, () => null);
    for (const column of columns) row[column] = {holds: [rank], written: false};
    return row;
  });
  for (const box of [...plan.boxes].filter((b) => b.level < step).sort((a, b) => a.level - b.level)) {
    for (const [rank, column] of box.writes ?? []) cells[rank][column] = {holds: box.holds, written: true};
  }
  return cells;
}

/** How many contributions the result of `rank` has. */
export function wanted(plan, rank) {
  if (!plan.reduces) return 1;
  return plan.collective === "inclusive_scan" ? rank + 1 : plan.collective === "exclusive_scan" ? rank : plan.ranks;
}

/** The buffers: a row for each rank, a cell for each block, a stripe for each contribution. */
export function drawBuffers(plan, step, width) {
  const left = 52, top = 22, gap = plan.columns > 8 ? 2 : 4;
  const cell = Math.min(90, (width - left - 4) / Math.max(1, plan.columns));
  const height = plan.ranks > 8 ? 22 : 34;
  const drawing = svg("svg", {viewBox: `0 0 ${width} ${top + plan.ranks * (height + gap)}`, width, height: top + plan.ranks * (height + gap), class: "buffers"});
  for (let c = 0; c < plan.columns; ++c) {
    if (cell > 18 || c % 2 === 0) drawing.append(svg("text", {x: left + (c + 0.5) * cell, y: 14, "text-anchor": "middle", class: "tick"}, `${cell > 26 ? "c" : ""}${c}`));
  }
  buffersAt(plan, step).forEach((row, rank) => {
    const y = top + rank * (height + gap);
    drawing.append(svg("text", {x: 0, y: y + height / 2 + 4}, `rank ${rank}`));
    row.forEach((content, c) => {
      const x = left + c * cell, w = cell - gap;
      const done = content?.written && content.holds.length >= wanted(plan, rank);
      drawing.append(svg("rect", {x, y, width: w, height, class: "cell"}));
      if (content) drawing.append(...stripes(x + 1, y + 1, w - 2, height - 2, content.holds, plan.ranks, !content.written));
      drawing.append(svg("rect", {x, y, width: w, height, class: done ? "cell-edge done" : "cell-edge"}));
    });
  });
  return drawing;
}

/** Bytes sent and read so far beside the formula, a bar for each rank. */
export function drawBytes(plan, step, width) {
  const left = 58, right = 12, row = plan.ranks > 8 ? 17 : 24, top = 6;
  const all = plan.bytes.map((b) => b.sent + b.fetched);
  const most = Math.max(1, ...all, ...plan.bytes.map((b) => b.sent_by_formula + b.fetched_by_formula));
  const scale = (value) => value / most * (width - left - right);
  const height = top + plan.ranks * row + 4;
  const drawing = svg("svg", {viewBox: `0 0 ${width} ${height}`, width, height, class: "bytes"});
  bytesAt(plan, step).forEach(({sent, fetched}, rank) => {
    const y = top + rank * row, formula = plan.bytes[rank].sent_by_formula + plan.bytes[rank].fetched_by_formula;
    drawing.append(
      svg("text", {x: 0, y: y + row / 2 + 3}, `rank ${rank}`),
      svg("rect", {x: left, y: y + 2, width: scale(sent), height: row - 6, class: "sent"}),
      svg("rect", {x: left + scale(sent), y: y + 2, width: scale(fetched), height: row - 6, class: "fetched"}),
      svg("line", {x1: left + scale(formula), x2: left + scale(formula), y1: y, y2: y + row - 2, class: "formula"}));
  });
  return drawing;
}

/** [rank] = {sent, fetched} after `step` steps. */
export function bytesAt(plan, step) {
  const sums = Array.from({length: plan.ranks}, () => ({sent: 0, fetched: 0}));
  for (const box of plan.boxes) {
    if (box.level >= step) continue;
    sums[box.rank].sent += (box.sends ?? 0) * plan.chunk_bytes;
    sums[box.rank].fetched += (box.fetches ?? 0) * plan.chunk_bytes;
  }
  return sums;
}
