// Chapter 2: what a collective costs, from latency and bandwidth: the cost model with the reader's numbers in it.
import {controls, picker, slider} from "../lib/controls.js";
import {el} from "../lib/dom.js";
import {figure, table} from "../lib/figure.js";
import {bandwidth, binary, bytes, digits, formula as written, time, whole as commas} from "../lib/format.js";
import {guess, guessField} from "../lib/guess.js";
import {legend, plot} from "../lib/plot.js";
import {source} from "../lib/source.js";
import {number, short, whole, word} from "../lib/state.js";

const RANKS = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024];
const FEWER = RANKS.filter((n) => n <= 256);
const LATENCIES = [0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];
const BANDWIDTHS = [0.1, 0.125, 0.25, 0.5, 1, 1.25, 2.5, 5, 10, 12.5, 25, 50, 100, 200, 400, 900];
const SIZES = Array.from({length: 28}, (_, i) => 2 ** (i + 5));
const FINE = Array.from({length: 55}, (_, i) => Math.round(2 ** (i / 2 + 5)));
const PER_HOST = [1, 2, 4, 8, 1024];
// Each algorithm has one colour, whatever its rank in speed.
const COLOURS = {ring: 0, star: 1, tree: 2, "two-shot": 3, hierarchical: 4, "hierarchical-tree": 5, "one-shot": 6, "one-shot-direct": 6, "two-shot-direct": 7};

function request(state, change) {
  return {
    question: "bill", collective: state.collective, ranks: state.ranks, per_host: Math.min(state.per_host, state.ranks),
    latency_us: state.latency, bytes_per_second: state.bandwidth * 1e9, ...change,
  };
}

const usable = (row) => row.candidates.filter((c) => c.refused === null);
const timesOf = (row, algorithm) => row.candidates.find((c) => c.algorithm === algorithm);

/** [{from, to, algorithm}]: which is the fastest from size to size. */
function winners(rows) {
  const spans = [];
  for (const row of rows) {
    const best = usable(row)[0]?.algorithm;
    const last = spans[spans.length - 1];
    if (last?.algorithm === best) last.to = row.size_bytes;
    else if (best) spans.push({algorithm: best, from: row.size_bytes, to: row.size_bytes});
  }
  return spans;
}

/** The parts of one prediction: what is counted, its price, and the time. */
function partsOf(bill, candidate) {
  const {links} = bill, t = candidate.terms;
  const price = (us, unit) => (us === 0 ? "0" : `${time(us)}${unit}`);
  const perByte = (us) => (us === 0 ? "0" : bandwidth(1e6 / us));
  return [
    ["the call", "1", price(links.overhead_us, ""), candidate.overhead_us],
    ["hops in memory, one after the other", digits(t.hops), price(links.alpha_us, " each"), candidate.latency_us],
    ["bytes through slots in memory", bytes(t.slot_bytes), perByte(links.slot_us_per_byte), candidate.slots_us],
    ["bytes of buffers read and written", bytes(t.memory_bytes), perByte(links.memory_us_per_byte), candidate.memory_us],
    ["bytes added", bytes(t.reduced_bytes), perByte(links.reduce_us_per_byte), candidate.reduce_us],
    ["copies by the kernel", "", "", candidate.process_copy_us],
    ["hops over the network, one after the other", digits(t.wire_hops), price(links.wire_alpha_us, " each"), t.wire_hops * links.wire_alpha_us],
    ["messages of the busiest rank", digits(t.wire_messages), price(links.wire_message_us, " each"), t.wire_messages * links.wire_message_us],
    [`bytes over the busiest host's link${t.wire_text ? `: ${written(t.wire_text)}` : ""}`, bytes(t.wire_bytes), perByte(links.wire_us_per_byte), t.wire_bytes * links.wire_us_per_byte],
  ].filter(([, , , us]) => us > 0);
}

function formula(bill, row, algorithm) {
  const c = timesOf(row, algorithm);
  const big = partsOf(bill, c).sort((a, b) => b[3] - a[3]).filter(([, , , us]) => us > 0.005 * c.predicted_us).slice(0, 4);
  return `${time(c.predicted_us)} = ${big.map(([, , , us]) => time(us)).join(" + ")}${partsOf(bill, c).length > big.length ? " + …" : ""}: ${big.map(([what, count]) => (count === "1" || count === "" ? what : `${count} ${what.replace(/^bytes /, "")}`)).join("; ")}.`;
}

export const chapter = {
  id: "bill",
  title: "The bill",
  lead: "A network has a latency and a bandwidth. What does a collective cost on it, and which algorithm is the cheapest?",
  fields: {
    collective: word(["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "gather", "scatter", "barrier"], "all_reduce"),
    ranks: whole(2, 1024, 8),
    per_host: whole(1, 1024, 1),
    latency: number(0.01, 1e6, 10),
    bandwidth: number(0.001, 1e5, 10),
    size: whole(32, 2 ** 32, 2 ** 16),
    algorithm: short("ring", 20),
    guess: guessField(),
    bus: guessField(),
  },
  render(root, context) {
    let lines = null, at = null, row = null, algorithm = "";
    context.onState((state) => {
      lines = context.answer(request(state, {sizes: state.ranks > 128 ? SIZES : FINE}));  // many ranks take longer
      at = context.answer(request(state, {sizes: [state.size]}));
      row = at.rows[0];
      const some = usable(row).map((c) => c.algorithm);
      algorithm = some.includes(state.algorithm) ? state.algorithm : some[0];
      state.algorithm = algorithm;
    });
    const series = () => usable(lines.rows[0]).map((c) => c.algorithm).sort((a, b) => COLOURS[a] - COLOURS[b]).map((name) => ({
      name, colour: COLOURS[name] ?? 7, strong: name === algorithm,
      points: lines.rows.map((r) => ({x: r.size_bytes, y: timesOf(r, name).predicted_us})),
    }));
    const names = el("div");
    const times = figure({
      name: "bill", title: "Predicted time of each algorithm",
      draw: (width) => plot({
        width, height: Math.min(440, Math.max(260, width * 0.55)), series: series(), verticals: [{x: context.state.size, label: binary(context.state.size)}],
        x: {label: "bytes of a rank's larger buffer", log: true, base: 2, format: binary}, y: {label: "time", log: true, format: time},
      }),
      describe: () => `Time over size for ${series().map((s) => s.name).join(", ")}. ${winnersText()}`,
      below: [names],
    });
    const winnersText = () => winners(lines.rows).map((w) => `${w.algorithm} from ${binary(w.from)} to ${binary(w.to)}`).join(", ") + ".";
    const won = el("p");
    const compared = table({name: "bill", title: "At your size", mark: (r) => r[0] === algorithm});
    const parts = table({name: "bill-parts", title: "The bill of one algorithm"});
    const sentence = el("p", {class: "note"});
    const answer = el("section", {}, times.root, won, compared.root,
      el("h2", {}, "The formula with your numbers in it"),
      controls(picker(context, "algorithm", {label: "Algorithm", options: () => usable(row).map((c) => ({value: c.algorithm}))})),
      sentence, parts.root);
    root.append(
      controls(
        picker(context, "collective", {label: "Collective", options: chapter.fields.collective.words.map((value) => ({value}))}),
        slider(context, "ranks", {label: "Ranks", values: RANKS}),
        slider(context, "per_host", {label: "Ranks on a host", values: PER_HOST, format: (v, s) => (v >= s.ranks ? "all: no network" : String(v))}),
        slider(context, "latency", {label: "Latency of the network", values: LATENCIES, format: time}),
        slider(context, "bandwidth", {label: "Bandwidth of a host", values: BANDWIDTHS, format: (v) => `${digits(v)} GB/s`}),
        slider(context, "size", {label: "Size", values: SIZES, format: binary})),
      guess(context, {name: "guess", hidden: [answer], ask: (state) => {
        const some = usable(row);
        const best = some[0], second = some[1];
        return {
          question: `${state.collective}, ${commas(state.ranks)} ranks, ${binary(state.size)}: which is the fastest?`,
          options: some.map((c) => c.algorithm).sort((a, b) => COLOURS[a] - COLOURS[b]).map((name) => ({label: name, right: name === best.algorithm})),
          because: [`${best.algorithm} takes ${time(best.predicted_us)}`, second ? `, ${second.algorithm}, the next, ${time(second.predicted_us)}` : "",
            ". Small messages pay for hops, large ones for bytes; make the size larger and smaller. The prices: ", source("comm/tuner/cost.hpp", "Price price(const Question& question"), "."],
        };
      }}),
      answer, ...busSection(context));
    context.onState((state) => {
      times.update();
      names.replaceChildren(legend(series()));
      won.replaceChildren(el("strong", {}, "Where each is the fastest: "), winnersText());
      const volumes = new Map(at.volumes.map((v) => [v.algorithm, v]));
      const best = usable(row)[0].predicted_us;
      const sent = (v) => (v === undefined ? null : (v.sent > 0 ? v.sent : v.fetched) * state.size);
      const said = (v) => (v === undefined ? "" : written(v.sent > 0 ? v.sent_formula : v.fetched_formula));
      compared.update(
        [{label: "Algorithm"}, {label: "Time", numeric: true, format: time}, {label: "Times the fastest", numeric: true, format: (v) => digits(v)},
          {label: "Busiest rank moves", numeric: true, format: bytes}, {label: "Formula"}, {label: "algbw", numeric: true, format: bandwidth}, {label: "busbw", numeric: true, format: bandwidth}],
        usable(row).map((c) => {
          const v = volumes.get(c.algorithm), speed = state.size / c.predicted_us * 1e6;
          return state.collective === "barrier" ? [c.algorithm, c.predicted_us, c.predicted_us / best, null, "", null, null] :
            [c.algorithm, c.predicted_us, c.predicted_us / best, sent(v), said(v), speed, speed * at.bus_factor];
        }));
      sentence.textContent = formula(at, row, algorithm);
      parts.update([{label: "What", wide: true}, {label: "How many", numeric: true}, {label: "Price", numeric: true}, {label: "Time", numeric: true, format: time}],
        [...partsOf(at, timesOf(row, algorithm)), ["together", "", "", timesOf(row, algorithm).predicted_us]]);
    });
  },
};

/** algbw and busbw over the number of ranks: one slider moves both. */
function busSection(context) {
  const RING = "ring", SLOW = 1e9;
  let points = [];
  const measure = () => FEWER.map((n) => {
    const bill = context.answer({question: "bill", collective: "all_reduce", ranks: n, per_host: 1, latency_us: 1, bytes_per_second: SLOW, sizes: [2 ** 30]});
    const us = timesOf(bill.rows[0], RING).predicted_us;
    return {n, algbw: 2 ** 30 / us * 1e6, busbw: 2 ** 30 / us * 1e6 * bill.bus_factor, factor: bill.bus_factor};
  });
  const lines = () => [
    {name: "algbw = S / time", colour: 1, marks: true, points: points.map((p) => ({x: p.n, y: p.algbw / 1e9}))},
    {name: "busbw = algbw · 2(N−1)/N", colour: 0, marks: true, points: points.map((p) => ({x: p.n, y: p.busbw / 1e9}))},
  ];
  const names = el("div");
  const drawing = figure({
    name: "busbw", title: "An all_reduce of 1 GiB by the ring, one rank on a host, links of 1 GB/s and 1 µs",
    draw: (width) => plot({
      width, series: lines(), verticals: [{x: context.state.ranks, label: `${context.state.ranks} ranks`}],
      horizontals: [{y: SLOW / 1e9, label: "the link"}],
      x: {label: "ranks", log: true, base: 2, ticks: FEWER.filter((n) => Number.isInteger(Math.log2(n))), format: String},
      y: {label: "GB/s", from: 0, to: SLOW / 1e9 * 1.15},
    }),
    describe: () => `algbw falls from ${digits(points[0].algbw / 1e9)} to ${digits(points[points.length - 1].algbw / 1e9)} GB/s, busbw stays.`,
    below: [names],
  });
  const numbers = el("p", {class: "note"});
  const shown = el("section", {}, controls(slider(context, "ranks", {label: "Ranks", values: RANKS})), drawing.root, numbers,
    el("p", {}, "So busbw can be compared with what the link can do, whatever the number of ranks, and algbw cannot: that is why nccl-tests and rondo-perf print both."));
  context.onState((state) => {
    points = points.length > 0 ? points : measure();
    drawing.update();
    names.replaceChildren(legend(lines()));
    const nearest = points.reduce((a, b) => (Math.abs(b.n - state.ranks) < Math.abs(a.n - state.ranks) ? b : a));
    numbers.textContent = `${nearest.n} ranks: algbw ${bandwidth(nearest.algbw)}, times 2(N−1)/N = ${digits(nearest.factor, 4)}: busbw ${bandwidth(nearest.busbw)}.`;
  });
  return [
    el("h2", {}, "algbw and busbw"),
    guess(context, {name: "bus", hidden: [shown], ask: () => ({
      question: "the same gradient is summed over more and more ranks by the ring. What happens to S / time, which is called algbw?",
      options: [{label: "It stays", right: false}, {label: "It falls to half, and no further", right: true}, {label: "It falls like 1/N", right: false}, {label: "It grows", right: false}],
      because: ["Each rank sends 2(N−1)/N · S. The time grows with this factor, from S to nearly 2S, and no further. busbw is what the links really carry: algbw times the factor. It stays a little below the link's 1 GB/s, because memory works, too."],
    })}),
    shown,
  ];
}
