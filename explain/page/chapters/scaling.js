// Chapter 5: what is left for computing on more and more ranks, and which assumptions decide it.
import {button, controls, picker, slider, toggle} from "../lib/controls.js";
import {el} from "../lib/dom.js";
import {figure, table} from "../lib/figure.js";
import {bytes, counted, digits, percent, time} from "../lib/format.js";
import {guess, guessField} from "../lib/guess.js";
import {legend, plot} from "../lib/plot.js";
import {source} from "../lib/source.js";
import {flag, number, whole, word} from "../lib/state.js";

const WORLDS = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];
const MODELS = [1e8, 3.5e8, 1e9, 3e9, 7e9, 13e9, 34e9, 70e9, 175e9, 405e9, 1e12];
const COMPUTE = [10, 20, 50, 100, 200, 300, 430, 700, 1000, 2000, 5000, 10000, 30000];
const LINKS = [0.1, 1, 5, 10, 12.5, 25, 50, 100, 200, 450, 900];
const HOSTS = [1, 2.5, 5, 12.5, 25, 50, 100, 200, 400];
const DELAYS = [1, 2, 5, 10, 20, 50, 100, 500, 1000];
const BUCKETS = [1, 5, 10, 25, 50, 100, 250, 1000];
const HIDDEN = {all: 1, backward: 2 / 3, nothing: 0};
const gigabytes = (value) => `${digits(value)} GB/s`;

/** Without the assumptions that are off. */
function requestOf(state) {
  return {
    question: "scaling", parameters: state.parameters, gradient_bytes: Number(state.width), compute_ms: state.compute,
    hidden: HIDDEN[state.hidden], link_gb_s: state.link, ranks: WORLDS,
    ...(state.hosts ? {per_host: state.per_host, host_gb_s: state.host_link} : {}),
    ...(state.latency ? {link_us: state.delay, bucket_bytes: state.bucket * 1e6, ...(state.hosts ? {host_us: state.delay} : {})} : {}),
    ...(state.strong ? {strong_from: 8} : {}),
  };
}

const ASSUMPTIONS = [["hosts", "slow links between hosts"], ["latency", "latency of each step"], ["strong", "strong scaling"]];
const none = {hosts: false, latency: false, strong: false};
const LESSON = {parameters: 7e9, width: "2", compute: 430, hidden: "all", link: 50, per_host: 16, host_link: 25, delay: 10, bucket: 25, ...none};

export const chapter = {
  id: "scaling",
  title: "Scaling out",
  lead: "If eight ranks spend 88 % of their time computing, what do 4,096 do?",
  fields: {
    guess: guessField(), parameters: number(1e6, 1e13, LESSON.parameters), width: word(["4", "2", "1"], LESSON.width),
    compute: number(1, 1e6, LESSON.compute), hidden: word(Object.keys(HIDDEN), LESSON.hidden), link: number(0.01, 10000, LESSON.link),
    hosts: flag(), per_host: whole(2, 256, LESSON.per_host), host_link: number(0.01, 10000, LESSON.host_link),
    latency: flag(), delay: number(0, 1e5, LESSON.delay), bucket: number(0.1, 1e5, LESSON.bucket), strong: flag(), at: whole(2, 4096, 8),
  },
  render(root, context) {
    let answer = null, plain = null;
    context.onState((state) => {
      answer = context.answer(requestOf(state));
      plain = context.answer(requestOf({...state, ...none}));
    });
    const some = () => ASSUMPTIONS.some(([name]) => context.state[name]);
    const series = () => {
      const points = (rows, way) => rows.filter((r) => r[way]).map((r) => ({x: r.ranks, y: r[way].efficiency * 100}));
      const found = [{name: some() ? "without the assumptions" : "efficiency", colour: 0, marks: !some(), points: points(plain.rows, "flat")}];
      if (some()) found.push({name: "flat: one ring of all ranks", colour: 1, marks: true, strong: true, points: points(answer.rows, "flat")});
      if (answer.rows.some((r) => r.hierarchical)) found.push({name: "hierarchical: inside hosts, then across", colour: 2, marks: true, points: points(answer.rows, "hierarchical")});
      return found;
    };
    const names = el("div");
    const picture = figure({
      name: "scaling", title: "Efficiency: the part of a step in which a rank computes",
      describe: () => answer.rows.map((r) => `${r.ranks} ranks: ${percent(r.flat.efficiency)}`).join(", "),
      draw: (width) => plot({
        width, x: {label: "ranks", log: true, base: 2, from: 2, to: 4096}, y: {label: "efficiency, %", from: 0, to: 100}, series: series(),
        horizontals: [{y: 50, label: "half is lost"}],
        verticals: some() && answer.half_lost_flat ? [{x: answer.half_lost_flat, label: `flat: below half at ${answer.half_lost_flat}`}] : [],
      }),
      below: [names],
    });
    const numbers = table({name: "scaling", title: "The numbers", mark: (row) => row[0] === String(context.state.at)});
    const effects = table({name: "scaling-assumptions", title: "Each assumption alone"});
    const formula = el("p", {class: "note"});
    const remark = el("p", {class: "note", role: "status"});
    const lesson = context.answer(requestOf(LESSON));
    const ask = () => ({
      question: "a model of 7 billion parameters in bf16, links of 50 GB/s, 430 ms of compute in a step, all of which can hide communication: 8 ranks reach 88 %. And 256 ranks?",
      options: [["77 %", true], ["about half", false], ["about 3 %, 8/256", false], ["88 %", false]].map(([label, right]) => ({label, right})),
      because: [`88, 82, 79 and 77 % on 8, 16, 32 and 256 ranks: each sends 2(N-1)/N of 14 GB, which is 24.5 GB on 8 and never more than 28 GB. Alone, the model of the lesson has no point at which it breaks down; the assumptions below make one. `,
        source("comm/tuner/cost.cpp", "Price price(const Question& question")],
    });
    root.append(
      guess(context, {name: "guess", ask, hidden: [picture.root, numbers.root, effects.root, formula, remark]}),
      el("div", {class: "row"}, button(context, "The lesson's example", () => context.set({...LESSON, at: 8})),
        button(context, "200 ms of compute: 41 %", () => context.set({...LESSON, compute: 200, at: 8}))),
      controls(
        slider(context, "parameters", {label: "Parameters", values: MODELS, format: (v) => (v >= 1e12 ? `${digits(v / 1e12)} T` : v >= 1e9 ? `${digits(v / 1e9)} B` : `${digits(v / 1e6)} M`)}),
        picker(context, "width", {label: "Bytes of a gradient", options: [{value: "4", label: "4: fp32"}, {value: "2", label: "2: bf16, fp16"}, {value: "1", label: "1: fp8"}]}),
        slider(context, "compute", {label: "Compute in a step", values: COMPUTE, format: (v) => time(v * 1e3)}),
        picker(context, "hidden", {label: "Compute that can hide communication",
          options: [{value: "all", label: "all of it"}, {value: "backward", label: "backward: two thirds"}, {value: "nothing", label: "none: no overlap"}]}),
        slider(context, "link", {label: "Link of each rank", values: LINKS, format: gigabytes}),
        slider(context, "at", {label: "Ranks in the formula", values: WORLDS})),
      el("h2", {}, "Assumptions"),
      controls(
        toggle(context, "hosts", {label: "Slow links between hosts", hint: "The ranks of a host share its link."}),
        slider(context, "per_host", {label: "Ranks on a host", values: [2, 4, 8, 16, 32, 64]}),
        slider(context, "host_link", {label: "Link of each host", values: HOSTS, format: gigabytes}),
        toggle(context, "latency", {label: "Latency of each step", hint: "Of each hop of each bucket's all-reduce."}),
        slider(context, "delay", {label: "Latency of a hop", values: DELAYS, format: time}),
        slider(context, "bucket", {label: "Bytes of a bucket", values: BUCKETS, format: (v) => bytes(v * 1e6)}),
        toggle(context, "strong", {label: "Strong scaling", hint: "The global batch stays as on 8 ranks: more ranks compute less each."})),
      remark, picture.root, formula, numbers.root, effects.root,
      el("p", {}, "Prices are those of rondo's cost model with links alone: memory and adding up cost nothing. It adds what passes a host's link to what passes the ranks' own, as if neither hid the other. Flat is ", source("comm/algorithms/ring.cpp", "Terms ring_all_reduce_terms("),
        ", hierarchical is ", source("comm/algorithms/hierarchical.cpp", "WireTerms hierarchical_all_reduce_wire("), ". ",
        `The lesson also names 41 % for 8 ranks, without the compute it stands for: 200 ms give it by the same formula (200 / ${digits(lesson.rows[2].flat.comm_ms)}). `,
        "With strong scaling, 16 ranks have 41 %, too."));

    context.onState((state) => {
      const row = answer.rows.find((r) => r.ranks === WORLDS.reduce((best, n) => (Math.abs(n - state.at) < Math.abs(best - state.at) ? n : best)));
      const hidden = HIDDEN[state.hidden] * row.compute_ms;
      formula.replaceChildren(
        el("strong", {}, `${counted(row.ranks, "rank")}: `), `each sends 2(N-1)/N x ${bytes(answer.gradient_bytes)} = ${bytes(row.sent_bytes)}`,
        answer.all_reduces > 1 ? ` in ${counted(answer.all_reduces, "all-reduce")}` : "", `, which takes ${digits(row.flat.comm_ms)} ms by a ring`,
        row.flat.latency_ms > 0 ? ` (${digits(row.flat.latency_ms)} ms of it latency)` : "", row.flat.host_ms > 0 ? ` (${digits(row.flat.host_ms)} ms of it on the links of hosts)` : "",
        `. Step = compute + max(0, communication - hidden) = ${digits(row.compute_ms)} + max(0, ${digits(row.flat.comm_ms)} - ${digits(hidden)}) = ${digits(row.flat.step_ms)} ms. `,
        `Efficiency = compute / step = ${digits(row.compute_ms)} / ${digits(row.flat.step_ms)} = `, el("strong", {}, percent(row.flat.efficiency)), ".");
      const last = plain.rows.at(-1).flat.efficiency, sixteen = plain.rows[3].flat.efficiency;
      remark.textContent = !some()
        ? `With constant compute and equal links, no rank ever sends twice its gradients: ${percent(sixteen)} on 16 ranks, ${percent(last)} on 4,096. Switch on an assumption.`
        : answer.half_lost_flat
          ? `From ${answer.half_lost_flat} ranks on, more than half of the time is lost${answer.half_lost_hierarchical === answer.half_lost_flat ? "" : `; hierarchically from ${answer.half_lost_hierarchical ?? "none of these"} on`}. `
            + (state.hosts && !state.latency && !state.strong ? "Slow links make a cliff where the second host begins, and a plain after it." : "")
            + (state.latency && !state.hosts && !state.strong ? "Latency grows with every rank that the ring passes." : "")
            + (state.strong && !state.hosts && !state.latency ? "The bytes stay, the work for each rank shrinks." : "")
          : "Even so, never is half of the time lost.";
      names.replaceChildren(legend(series()));
      picture.update();
      const ms = {numeric: true, format: digits}, share = {numeric: true, format: percent};
      const both = answer.rows.some((r) => r.hierarchical);
      numbers.update([{label: "Ranks"}, {label: "Hosts", numeric: true}, {label: "Sent by each", numeric: true, format: bytes}, {label: "Compute, ms", ...ms}, {label: "Flat, ms", ...ms},
        {label: "Efficiency", ...share}, ...(both ? [{label: "Hierarchical, ms", ...ms}, {label: "Efficiency, hierarchical", ...share}] : [])],
        answer.rows.map((r) => [String(r.ranks), r.hosts, r.sent_bytes, r.compute_ms, r.flat.comm_ms, r.flat.efficiency, ...(both ? [r.hierarchical?.comm_ms, r.hierarchical?.efficiency] : [])]));
      const alone = [["none", {}], ...ASSUMPTIONS.map(([name, title]) => [title, {[name]: true}])].map(([title, change]) => {
        const found = context.answer(requestOf({...state, ...none, ...change}));
        return [title, found.half_lost_flat ?? "never", found.half_lost_hierarchical ?? "never", found.rows[4].flat.efficiency, found.rows.at(-1).flat.efficiency];
      });
      effects.update([{label: "Assumption"}, {label: "Half is lost from", numeric: true}, {label: "hierarchical", numeric: true}, {label: "32 ranks", ...share}, {label: "4,096 ranks", ...share}], alone);
    });
  },
};
