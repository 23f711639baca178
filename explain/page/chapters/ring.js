// Chapter 1: the schedule of a collective, step by step, as the verifier has proved it.
import {button, controls, picker, slider} from "../lib/controls.js";
import {el} from "../lib/dom.js";
import {figure, table} from "../lib/figure.js";
import {bytes, counted, formula as written, whole as commas} from "../lib/format.js";
import {guess, guessField} from "../lib/guess.js";
import {source} from "../lib/source.js";
import {short, flag, whole, word} from "../lib/state.js";
import {arrowsAt, bytesAt, drawBuffers, drawBytes, drawRing, sumText} from "./ring_picture.js";
import {proof} from "./ring_proof.js";

const S = 720720 * 64;  // bytes: every number of chunks up to 16 divides it
const PLAY_MS = 900;
let playing = null;

/** The algorithms that do the collective with these hosts. */
function algorithmsOf(about, state) {
  const several = state.per_host < state.ranks;
  const collective = about.collectives.find((c) => c.name === state.collective) ?? about.collectives[0];
  return collective.algorithms.filter((a) => (several ? !a.one_host_only : !a.several_hosts_only)).map((a) => a.name);
}

/** The state's operation. A link may ask for an algorithm that does not do it: then it is the first that does. */
function operationOf(about, state) {
  const some = algorithmsOf(about, state);
  return {
    collective: state.collective, algorithm: some.includes(state.algorithm) ? state.algorithm : some[0], ranks: state.ranks,
    per_host: Math.min(state.per_host, state.ranks), root: Math.min(state.root, state.ranks - 1), size_bytes: S,
  };
}

/** Where each algorithm says what a rank sends and fetches (`volume`), for each of its collectives. */
const FORMULAS = {
  "ring": () => source("comm/algorithms/ring.cpp", "kRingCollectives[] = {"),
  "one-shot": () => source("comm/algorithms/one_shot.cpp", "kOneShotCollectives[] = {"),
  "two-shot": () => source("comm/algorithms/two_shot.cpp", "kTwoShotCollectives[] = {"),
  "one-shot-direct": () => source("comm/algorithms/one_shot_direct.cpp", "kOneShotDirectCollectives[] = {"),
  "two-shot-direct": () => source("comm/algorithms/two_shot_direct.cpp", "kTwoShotDirectCollectives[] = {"),
  "tree": () => source("comm/algorithms/tree.cpp", "kTreeCollectives[] = {"),
  "star": () => source("comm/algorithms/star.cpp", "kStarCollectives[] = {"),
  "copy-engine": () => source("comm/algorithms/copy_engine.cpp", "kCopyEngineCollectives[] = {"),
  "hierarchical": () => source("comm/algorithms/hierarchical.cpp", "kHierarchicalCollectives[] = {"),
  "hierarchical-tree": () => source("comm/algorithms/hierarchical_tree.cpp", "kHierarchicalTreeCollectives[] = {"),
};

/** How often S the busiest rank sends, or, where peers read its buffer, reads. */
function busiest(plan) {
  const most = (field) => plan.bytes.reduce((a, b) => (b[`${field}_by_formula`] > a[`${field}_by_formula`] ? b : a));
  const sender = most("sent"), reader = most("fetched");
  const sends = sender.sent_by_formula > 0;
  return sends ? {verb: "send", value: sender.sent_by_formula / S, formula: sender.sent_formula} :
    {verb: "read from others", value: reader.fetched_by_formula / S, formula: reader.fetched_formula};
}

/** Answers to choose from; the right one is among them, and no two have one value. */
function volumeOptions(plan, {value, formula}) {
  const n = plan.ranks;
  const some = [["S", 1], ["(N−1)/N · S", (n - 1) / n], ["2(N−1)/N · S", 2 * (n - 1) / n], ["(N−1) · S", n - 1], ["N · S", n]];
  if (!some.some(([, v]) => Math.abs(v - value) < 1e-9)) some.push([written(formula), value]);
  const distinct = some.filter(([, v], i) => some.findIndex(([, w]) => Math.abs(v - w) < 1e-9) === i);
  return distinct.map(([label, v]) => ({label: `${label} = ${bytes(v * S)}`, right: Math.abs(v - value) < 1e-9}));
}

function ask(plan) {
  const n = plan.ranks;
  if (plan.bytes.length === 0) {
    const hops = plan.levels - 1;
    const some = [...new Set([1, n - 1, 2 * (n - 1), hops])].sort((a, b) => a - b);
    return {
      question: "A barrier has no data. How many steps later, at the least, does everybody know that everybody has come?",
      options: some.map((v) => ({label: counted(v, "step"), right: v === hops})),
      because: [`By ${plan.algorithm} it takes ${counted(hops, "step")}. Step through it below.`],
    };
  }
  const most = busiest(plan);
  const ringSum = plan.collective === "all_reduce" && plan.algorithm === "ring";
  return {
    question: `S = ${bytes(S)}, N = ${n}. How many bytes does the busiest rank ${most.verb}?`,
    options: volumeOptions(plan, most),
    because: [
      `It is ${written(most.formula)} = ${commas(most.value * S)} bytes. `,
      ringSum ? `A chunk is S/N. Each goes N−1 hops while it is summed, and N−1 hops more while the sum is handed out, and all links work in every step. With more ranks the factor comes near 2 and never reaches it. ` :
        "The counters below come to the same. ",
      FORMULAS[plan.algorithm](), " names the formula of each collective, ", source("comm/algorithms/formulas.hpp", "struct Position {"), " has them.",
    ],
  };
}

function player(context, steps) {
  const stop = () => {
    clearInterval(playing);
    playing = null;
    label();
  };
  const element = el("button", {type: "button", on: {click: () => {
    if (playing) return stop();
    if (context.state.step >= steps()) context.set({step: 0});
    playing = setInterval(() => (context.state.step < steps() ? context.set({step: context.state.step + 1}) : stop()), PLAY_MS);
    label();
  }}});
  const label = () => { element.textContent = playing ? "Stop" : "Play"; };
  label();
  return element;
}

export const chapter = {
  id: "ring",
  title: "The ring",
  lead: "Every rank has a gradient, and every rank wants the sum of all of them. How do they get it, and how many bytes does each of them send?",
  fields: {
    collective: word(["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter", "all_to_all", "barrier", "all_gather_v",
      "reduce_scatter_v", "all_to_all_v", "gather_v", "scatter_v", "inclusive_scan", "exclusive_scan"], "all_reduce"),
    algorithm: short("ring", 20),
    ranks: whole(2, 16, 4),
    per_host: whole(1, 16, 16),
    root: whole(0, 15, 0),
    step: whole(0, 4096, 1),
    guess: guessField(),
    rank: whole(0, 15, 1),
    bad: whole(0, 4096, 1),
    how: word(["drop", "double", "swap"], "drop"),
    broken: short(""),
    prove: flag(),
  },
  leave() {
    clearInterval(playing);
    playing = null;
  },
  render(root, context) {
    const about = context.about;
    let plan = null, operation = null, before = 0;
    const steps = () => plan.levels;
    context.onState((state) => {
      operation = operationOf(about, state);
      const found = context.answer({question: "schedule", ...operation});
      if (!found.error) plan = found;
      const last = plan.boxes.filter((b) => b.rank === Math.min(state.rank, plan.ranks - 1)).map((b) => b.step);
      // What a link says beyond this schedule's end is its end.
      Object.assign(state, {algorithm: operation.algorithm, step: Math.min(state.step, plan.levels), rank: Math.min(state.rank, plan.ranks - 1), root: operation.root});
      if (!last.includes(state.bad)) state.bad = last[Math.min(1, last.length - 1)] ?? 0;
    });
    const choice = controls(
      picker(context, "collective", {label: "Collective", options: about.collectives.map((c) => ({value: c.name}))}),
      picker(context, "algorithm", {label: "Algorithm", options: (state) => algorithmsOf(about, state).map((value) => ({value}))}),
      slider(context, "ranks", {label: "Ranks", least: 2, most: 16}),
      slider(context, "per_host", {label: "Ranks on a host", values: [1, 2, 3, 4, 8, 16], format: (v, state) => (v >= state.ranks ? "all" : String(v))}),
      slider(context, "root", {label: "Root, where there is one", least: 0, most: (state) => state.ranks - 1}));
    const stepping = el("div", {class: "stepper"},
      slider(context, "step", {label: "Step", least: 0, most: () => steps(), format: (v) => `${v} of ${steps()}`}),
      el("div", {class: "row"},
        button(context, "First", () => context.set({step: 0}), {disabled: (s) => s.step === 0, name: "First step"}),
        button(context, "← Back", () => context.set({step: context.state.step - 1}), {disabled: (s) => s.step === 0, name: "One step back"}),
        button(context, "Forward →", () => context.set({step: context.state.step + 1}), {disabled: (s) => s.step >= steps(), name: "One step forward"}),
        button(context, "Last", () => context.set({step: steps()}), {disabled: (s) => s.step >= steps(), name: "Last step"}),
        player(context, steps)));
    const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
    let moved = false;
    const title = () => `${plan.collective} by ${plan.algorithm}, ${counted(plan.ranks, "rank")}`;
    const arrowsHint = el("p", {class: "hint"});
    const ring = figure({
      name: "ring", title: "What travels at this step",
      draw: (width) => drawRing(plan, context.state.step, width, moved),
      describe: () => `${title()}, step ${context.state.step} of ${steps()}: the table "This step" says the same in words.`,
      below: [arrowsHint],
    });
    const buffers = figure({
      name: "buffers", title: "What each rank holds after it",
      draw: (width) => drawBuffers(plan, context.state.step, width),
      describe: () => `The result buffers of ${counted(plan.ranks, "rank")} after step ${context.state.step}: a stripe in a cell for each contribution.`,
      below: [el("p", {class: "hint"}, "A stripe is one rank's contribution, in its colour and place. Pale: the rank's own input. A thick edge: the finished result.")],
    });
    const now = table({name: "step", title: "This step"});
    const growing = figure({
      name: "bytes", title: "Bytes sent, and read from others, so far; the line is the formula",
      draw: (width) => drawBytes(plan, context.state.step, width),
      describe: () => `Bytes of each rank after step ${context.state.step}; the table has the numbers.`,
    });
    const counters = table({name: "ring-bytes", title: "The same in numbers"});
    const volume = el("section", {}, el("h2", {}, "What it costs"), growing.root, counters.root);
    root.append(
      choice, stepping, el("div", {class: "pair"}, ring.root, buffers.root), now.root,
      guess(context, {name: "guess", hidden: [volume], ask: () => ask(plan)}), volume,
      proof(context, {ask: () => operation, plan: () => plan}),
      el("p", {}, "The ring as a program that one can read in a minute: ", source("comm/algorithms/teaching_ring.cpp", "TeachingResult teaching_ring_all_reduce"),
        "; as rondo runs it: ", source("comm/algorithms/ring.cpp", "kRing{"), "; what a step is: ", source("comm/schedule/schedule.hpp", "struct Step {"), "."));
    context.onState((state) => {
      const arrows = arrowsAt(plan, state.step);
      arrowsHint.textContent = [
        arrows.length === 0 ? "Nothing travels." : "A label is the chunk, and whose contributions it holds.",
        arrows.some(([, level, , , , by]) => by === "slot" && level < state.step - 1) ? "Dashed: it left at an earlier step, and lies in a slot until it is read." : "",
      ].join(" ").trim();
      moved = state.step === before + 1 && !still();
      before = state.step;
      ring.update();
      moved = false;
      buffers.update();
      now.update(
        [{label: "Rank"}, {label: "It does"}, {label: "Chunk", numeric: true}, {label: "From"}, {label: "To"}, {label: "What it then has"}],
        plan.boxes.filter((b) => b.level === state.step - 1).sort((a, b) => a.rank - b.rank).map((b) => [
          b.rank, b.name, b.chunk, b.from?.join(", "), b.to?.join(", "), sumText(b.holds, plan.reduces) + (b.finishes ? ", finished" : "")]));
      now.root.hidden = state.step === 0;
      if (plan.bytes.length > 0) growing.update();
      growing.root.hidden = counters.root.hidden = plan.bytes.length === 0;
      const so_far = bytesAt(plan, state.step);
      counters.update(
        [{label: "Rank"}, {label: "Sent so far", numeric: true, format: commas}, {label: "In the end", numeric: true, format: commas},
          {label: "Formula"}, {label: "Read so far", numeric: true, format: commas}, {label: "In the end", numeric: true, format: commas}, {label: "Formula"}],
        plan.bytes.map((b, r) => [r, so_far[r].sent, b.sent, written(b.sent_formula), so_far[r].fetched, b.fetched, written(b.fetched_formula)]));
    });
  },
};
