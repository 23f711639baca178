// Chapter 4: a measured training step, and the same step with other buckets, another wire or more ranks.
import {button, controls, picker, slider, toggle} from "../lib/controls.js";
import {el} from "../lib/dom.js";
import {figure, table} from "../lib/figure.js";
import {Unusable, brief, dataOf, dropPlace, kindOf, numberOf} from "../lib/files.js";
import {bandwidth, bytes, counted, digits, percent, time} from "../lib/format.js";
import {guess, guessField} from "../lib/guess.js";
import {plot} from "../lib/plot.js";
import {source} from "../lib/source.js";
import {flag, number, short, whole, word} from "../lib/state.js";
import {timeline, timelineLegend} from "../lib/timeline.js";

const CAPS = [0, 0.125, 0.25, 0.5, 1, 2, 4, 5, 10, 25, 50, 100, 250, 1000];
const SPEEDS = [1e6, 1e7, 2.5e7, 5e7, 1e8, 2.5e8, 5e8, 1e9, 2.5e9, 5e9, 1e10, 2.5e10, 5e10, 1e11, 4e11];
const LATENCIES = [0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 20000];
const RANKS = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024];
const USUAL = {cap: 0.5, ranks: 2, speed: 2.5e8, latency: 200};  // as explain/page/data/step.json was recorded
const RECORDED = "recorded", DROPPED = "dropped";  // runs; rondo-plan --page adds here1, here2, ...
const TYPES = {fp32: 4, bf16: 2, fp16: 2, fp64: 8};

/** --pace's text as numbers; null: of another form. */
function paceOf(text) {
  const found = /^([\d.]+)(B|KB|MB|GB)\/s(?:,([\d.]+)(ns|us|ms|s))?$/.exec(text ?? "");
  if (!found) return null;
  const speed = Number(found[1]) * {B: 1, KB: 1e3, MB: 1e6, GB: 1e9}[found[2]];
  const latency = found[3] === undefined ? 0 : Number(found[3]) * {ns: 1e-3, us: 1, ms: 1e3, s: 1e6}[found[4]];
  return Number.isFinite(speed) && Number.isFinite(latency) ? {speed, latency} : null;
}

const list = (value, what, name) => {
  if (!Array.isArray(value) || value.length === 0) throw new Unusable(`${name} has no ${what}: the page needs a whole run of rondo-train --json of at least two ranks.`);
  return value;
};

/** What the chapter needs of a document of rondo-train --json, checked. Throws Unusable. */
function runOf(name, document) {
  if (kindOf(document) !== "train") throw new Unusable(`${name} is not what rondo-train --json writes.`);
  if (Array.isArray(document.scaling)) throw new Unusable(`${name} is from rondo-train --scaling, which records no step: drop a run without it.`);
  const summary = document.summary;
  if (summary === null || typeof summary !== "object") throw new Unusable(`${name} has no summary: the run did not reach its end.`);
  const positive = (value, what) => {
    const found = numberOf(value);
    if (!(found > 0)) throw new Unusable(`${name}: ${what} is ${brief(value)}, and must be a number above 0.`);
    return found;
  };
  const bytesOf = TYPES[document.config?.dtype] ?? 4;
  const pace = paceOf(document.config?.pace);
  const whole = summary.accounting ?? {};
  const apart = whole.control_steps > 0 ? {compute: numberOf(whole.compute_ms, 0), cost: numberOf(whole.cost_ms, 0), step: numberOf(whole.measured_ms, 0)} : null;
  const buckets = list(summary.buckets, "buckets", name).map((b) => {
    const [ready, waited, queued, transfer, exposed] = ["ready_ms", "waited_ms", "queued_ms", "transfer_ms", "exposed_ms"].map((f) => numberOf(b?.[f], -1));
    if (Math.min(ready, waited, queued, transfer, exposed) < 0) throw new Unusable(`${name}: a bucket lacks its times, or has some below 0.`);
    return {ready, launch: ready + waited + queued, finish: ready + waited + queued + transfer, exposed: Math.min(exposed, transfer),
      bytes: numberOf(b.bytes, 0), tensors: numberOf(b.parameters, 0), cost: numberOf(b.cost_ms, transfer), predicted: numberOf(b.predicted_us, 0) / 1e3};
  });
  if (apart) {  // the control run's time, shared out as the run's own buckets took it, as rondo-train does
    const gathers = summary.buckets.reduce((sum, b) => sum + numberOf(b.gather_cost_ms, 0), 0);
    const alone = (apart.cost - gathers) / buckets.reduce((sum, b) => sum + b.cost, 0);
    if (alone > 0 && Number.isFinite(alone)) buckets.forEach((b) => { b.cost *= alone; });
  }
  const tensors = list(summary.tensors, "list of tensors (of a newer rondo-train)", name)
    .map((t) => ({name: String(t?.name ?? ""), shape: Array.isArray(t?.shape) ? t.shape : [], adds_to: t?.adds_to}));
  const gradients = list(summary.gradients, "list of gradients", name)
    .map((g) => ({tensor: String(g?.tensor ?? ""), elements: numberOf(g?.elements, 0), ready_ms: Math.max(0, numberOf(g?.ready_ms, 0))}));
  // What adds to another tensor travels alone, after all others, and perhaps only in part: it has a scale of its own.
  const adding = tensors.filter((t) => t.adds_to >= 0);
  const ratio = (some) => {
    const predicted = some.reduce((sum, b) => sum + b.predicted, 0), cost = some.reduce((sum, b) => sum + b.cost, 0);
    return predicted > 0 && cost > 0 ? Math.min(1000, Math.max(0.001, cost / predicted)) : 1;
  };
  adding.forEach((t, i) => {
    t.scale = ratio(buckets.slice(buckets.length - adding.length + i).slice(0, 1));
  });
  return {
    name, buckets, tensors, gradients, pace,
    apart: apart && Math.min(apart.compute, apart.cost, apart.step) > 0 ? apart : null,
    elementBytes: bytesOf,
    backward: positive(summary.backward_ms, "backward_ms"),
    update: Math.max(0, numberOf(summary.update_ms, 0)),
    ranks: Math.round(positive(summary.ranks, "the number of ranks")),
    scale: ratio(buckets.slice(0, buckets.length - adding.length)),
    hook: document.config?.compress && document.config.compress !== "none" ? "half" : "none",
    cap: numberOf(document.config?.bucket_cap_mb, 25),
    overlaps: document.config?.overlap !== false,
    mapped: summary.buckets.every((b) => String(b.algorithm).endsWith("-direct")),
    diagnosis: typeof summary.diagnosis === "string" ? brief(summary.diagnosis, 200) : "",
  };
}

/** What rondo-plan --page --measured put into the page, and sentences on what of it cannot be shown. */
function runsHere() {
  const runs = [], unusable = [];
  for (const {name, document} of dataOf("here")?.trained ?? []) {
    try {
      runs.push({...runOf(brief(name), document), id: `here${runs.length + 1}`});
    } catch (error) {
      unusable.push(error instanceof Unusable ? error.message : `${brief(name)} cannot be used.`);
    }
  }
  return {runs, unusable};
}

function requestOf(run, state) {
  return {
    question: "replay", tensors: run.tensors, gradients: run.gradients, backward_ms: run.backward, update_ms: run.update,
    element_bytes: run.elementBytes, wire_bytes: state.hook === "half" ? Math.min(2, run.elementBytes) : run.elementBytes,
    ranks: state.ranks, bytes_per_second: state.speed, latency_us: state.latency, scale: run.scale, mapped: run.mapped,
    ...(state.auto ? {auto: true, cap_mb: 25} : {cap_mb: state.cap}),
  };
}

const capName = (mb) => (mb === 0 ? "one per tensor" : `${digits(mb)} MiB`);

export const chapter = {
  id: "overlap",
  title: "Hiding it",
  lead: "Gradients can travel while backward still computes others. Which pieces should travel together?",
  fields: {
    guess: guessField(), run: short(RECORDED, 20), cap: number(0, 4096, USUAL.cap), auto: flag(), hook: word(["none", "half"], "none"), ranks: whole(2, 4096, USUAL.ranks),
    speed: number(1e6, 1e12, USUAL.speed), latency: number(0, 1e6, USUAL.latency),
  },
  render(root, context) {
    let run = null, answer = null, problem = "", dropped = null;
    const recorded = {...runOf("the recorded run", dataOf("step")), id: RECORDED, origin: dataOf("step").origin};
    const here = runsHere();
    const origin = el("p", {class: "note"}), lost = el("p", {class: "lost"});
    const other = button(context, "The recorded run", () => use(recorded));
    const said = el("p", {class: "note", role: "status"});
    const until = () => 1.02 * Math.max(run.backward, ...run.buckets.map((b) => b.finish), ...answer.layout.map((b) => b.finish_ms));
    const rowTitle = (b, i) => `bucket ${i}: ${bytes(b.bytes)}, ${counted(b.tensors, "tensor")}`;
    const ready = () => run.gradients.map((g) => g.ready_ms);
    const measured = figure({
      name: "step-measured", title: "Measured: the step of that run (medians)",
      describe: () => `Backward takes ${digits(run.backward)} ms; ${counted(run.buckets.length, "bucket")}, the last arrives after ${digits(run.buckets.at(-1).finish)} ms.`,
      draw: (width) => timeline({width, backward: run.backward, ready: ready(), until: until(),
        rows: run.buckets.map((b, i) => ({...b, name: `bucket ${i}`, title: rowTitle(b, i)}))}),
      below: [timelineLegend()],
    });
    const replayed = figure({
      name: "step-replayed", title: "Predicted: the same step, with what is set above",
      describe: () => `${counted(answer.buckets, "bucket")}; ${digits(answer.exposed_ms)} ms are exposed.`,
      draw: (width) => timeline({width, backward: run.backward, ready: ready(), until: until(), rows: answer.layout.map((b, i) => ({
        name: `bucket ${i}`, ready: b.ready_ms, launch: b.launch_ms, finish: b.finish_ms, exposed: b.exposed_ms, title: `${rowTitle(b, i)}, ${b.algorithm}`}))}),
    });
    const caps = figure({
      name: "step-caps", title: "What each bucket cap would expose",
      describe: () => answer.caps.map((c) => `${capName(c.cap_mb)}: ${digits(c.exposed_ms)} ms`).join(", "),
      draw: (width) => plot({
        width, height: 240,
        x: {label: "bucket cap", from: 0, to: answer.caps.length - 1, ticks: answer.caps.map((_, i) => i),
          format: (i) => (answer.caps[i].cap_mb === 0 ? "each" : digits(answer.caps[i].cap_mb))},
        y: {label: "exposed, ms", from: 0},
        series: [{name: "exposed", marks: true, points: answer.caps.map((c, i) => ({x: i, y: c.exposed_ms}))}],
        verticals: [{x: answer.caps.findIndex((c) => c.cap_mb === answer.suggested.cap_mb), label: "suggested"}],
      }),
    });
    const gain = table({name: "step-gain", title: "What overlap saved in that run"});
    const rows = table({name: "step-buckets", title: "The predicted buckets"});
    const capTable = table({name: "step-caps", title: "The caps", mark: (row) => row[0] === capName(answer.suggested.cap_mb)});
    const ask = () => {
      const travel = run.buckets.reduce((sum, b) => sum + b.finish - b.launch, 0);
      const share = run.buckets.reduce((sum, b) => sum + b.exposed, 0) / travel;
      return {
        question: `backward takes ${digits(run.backward)} ms, and this run's ${run.buckets.length} buckets travel ${digits(travel)} ms in all, one after the other. How much of that does the step wait for?`,
        options: [["none of it", 0, 0.05], ["a quarter", 0.05, 0.4], ["half", 0.4, 0.65], ["nearly all", 0.65, 9]]
          .map(([label, from, to]) => ({label, right: share >= from && share < to})),
        because: [`It waited for ${percent(share)} of it. A bucket starts when its last gradient is final and the bucket before it has arrived; what is under way after backward is exposed, unless the update of buckets that have arrived hides it. `,
          source("trainer/report/prediction.cpp", "std::vector<ReplayedBucket> replay(")],
      };
    };
    const use = (found) => {
      context.set({run: found.id, auto: false, hook: found.hook, ranks: found.ranks, cap: Math.min(4096, Math.max(0, found.cap)),
        ...(found.pace ? {speed: Math.min(1e12, Math.max(1e6, found.pace.speed)), latency: Math.min(1e6, found.pace.latency)} : {})});
    };
    const drop = dropPlace({
      label: "Your own run: drop the file of rondo-train --json here",
      take: ({name, document}) => {
        const found = runOf(name, document);
        const tried = context.answer(requestOf(found, {...context.state, ranks: found.ranks, auto: false, cap: 25}));
        if (tried.error) throw new Unusable(`${name} cannot be replayed: ${brief(tried.error, 120)}.`);
        dropped = {...found, id: DROPPED};
        use(dropped);
        return `${name}: a step on ${counted(found.ranks, "rank")}. ${found.pace ? "" : "Its links are not known: set them above."}`;
      },
    });
    const largest = () => answer.caps.at(-1).cap_mb;

    context.onState((state) => {
      run = [recorded, ...here.runs, dropped].find((r) => r?.id === state.run) ?? recorded;
      lost.hidden = run.id === state.run;
      lost.textContent = lost.hidden ? "" : state.run === DROPPED ? "The link to this picture was made with a file that it cannot carry: drop that file below. Until then, this is the recorded run." :
        `This page has no run ${brief(state.run)}: the link was made with another. This is the recorded run.`;
      context.unsent = run.id === RECORDED ? "" : run.id === DROPPED ? `The link does not hold your file ${run.name}: who opens it has to drop the file, too.` :
        `The link shows ${run.name} only in this page: send the file of the page with it.`;
      const found = context.answer(requestOf(run, state));
      problem = found.error ? `This cannot be replayed: ${brief(found.error, 120)}. The figures show the last that could.` : "";
      if (!found.error) answer = found;
    });
    root.append(
      el("p", {}, "Below is a step of a small GPT that really ran. Each gradient is final at another moment of backward. ",
        "Gradients are put into buckets, each an all-reduce; rondo cuts them at a cap. ", source("trainer/ddp/layout.cpp", "BucketLayout make_layout(")),
      origin, lost, here.unusable.length > 0 ? el("p", {class: "note"}, here.unusable.join(" ")) : "",
      guess(context, {name: "guess", ask, hidden: [measured.root, gain.root, replayed.root, caps.root, rows.root, capTable.root, said]}),
      measured.root, gain.root,
      controls(
        slider(context, "cap", {label: "Bucket cap", values: CAPS, format: capName}),
        toggle(context, "auto", {label: "Cut by --bucket-cap-mb auto", hint: "where the model of the step exposes least"}),
        picker(context, "hook", {label: "Communication hook", options: [{value: "none", label: "none"}, {value: "half", label: "bf16 or fp16: two bytes each"}]}),
        slider(context, "ranks", {label: "Ranks", values: RANKS}),
        slider(context, "speed", {label: "Bandwidth of each rank", values: SPEEDS, format: bandwidth}),
        slider(context, "latency", {label: "Latency of a hop", values: LATENCIES, format: time})),
      el("div", {class: "row"},
        button(context, "Why not one bucket?", () => context.set({cap: Math.min(4096, Math.max(100, largest())), auto: false})),
        button(context, "Why not one per tensor?", () => context.set({cap: 0, auto: false})),
        button(context, "As it ran", () => use(run)),
        ...here.runs.map((found) => button(context, `This machine's ${found.name}`, () => use(found))),
        other),
      said, replayed.root, caps.root, rows.root, capTable.root, drop,
      el("p", {}, "The prediction is what ", el("code", {}, "rondo-train"), " prints as a suggestion: prices from the cost model, multiplied by what this run measured over what was predicted; cuts by ",
        source("trainer/ddp/bucket_plan.cpp", "BucketPlan cut_buckets("), "; the step itself in ", source("trainer/step/step.cpp", "Result<StepResult> TrainingStep<T>::run("), "."));
    context.onState((state) => {
      other.hidden = run === recorded && here.runs.length === 0;
      const where = run.origin;
      origin.textContent = where
        ? `Recorded on ${brief(where.date)}, ${brief(where.processor)}, ${brief(String(where.cores))} cores, links slowed down by --pace: ${brief(where.command, 300)}`
        : `${run.id === DROPPED ? "Your file" : "A run of this machine"}: ${run.name}. ${run.diagnosis}`;
      if (!answer) return;
      const all = (algorithm) => answer.layout.every((b) => b.algorithm === algorithm);
      const hops = all("ring") ? 2 * (state.ranks - 1) : all("two-shot-direct") ? 2 : 0;
      const travel = answer.layout.reduce((sum, b) => sum + b.cost_ms, 0);
      const parts = [`${counted(answer.buckets, "bucket")}, ${digits(travel)} ms on the wire, of which ${digits(answer.exposed_ms)} ms are exposed. `];
      if (!state.auto && state.cap === 0) {
        parts.push(hops > 0 ? `One per tensor starts earliest, but each all-reduce waits for ${hops} hops: ${answer.buckets} x ${hops} x ${time(state.latency)} = ${time(answer.buckets * hops * state.latency)} of latency alone.` :
          `One per tensor starts earliest, but each of the ${answer.buckets} all-reduces pays for its hops, however little it holds.`);
      } else if (!state.auto && state.cap >= largest()) {
        const at = answer.layout.reduce((most, b, i) => (b.exposed_ms > answer.layout[most].exposed_ms ? i : most), 0), late = answer.layout[at];
        parts.push(`With a cap above the whole model only the first and the last bucket stay small (1 MiB). Bucket ${at}, ${bytes(late.bytes)}, is ready after ${digits(late.ready_ms)} of ${digits(run.backward)} ms and starts after ${digits(late.launch_ms)}: ${digits(late.exposed_ms)} ms of it are exposed.`);
      } else {
        parts.push(`Of the caps below, ${capName(answer.suggested.cap_mb)} would be suggested: it exposes ${digits(answer.suggested.exposed_ms)} ms.`);
      }
      const sum = (of) => run.buckets.reduce((total, b) => total + of(b), 0);
      parts.push(` The run itself had ${digits(sum((b) => b.finish - b.launch))} ms on the wire and ${digits(sum((b) => b.exposed))} ms exposed. `, run.overlaps
        ? "Prices go by a bucket's bytes: what held up single ones, such as ranks that share cores, is not in them."
        : "It ran with --no-overlap, each bucket after backward; the prediction is of a step that overlaps.");
      said.textContent = problem || parts.join("");
      for (const drawn of [measured, replayed, caps]) drawn.update();
      const ms = {numeric: true, format: digits};
      gain.root.hidden = gain.root.hidden || run.apart === null;
      if (run.apart) {
        const {compute, cost, step} = run.apart;
        gain.update([{label: "A step of that run", wide: true}, {label: "ms", ...ms}], [
          ["Computing alone", compute], ["Communication alone", cost], ["One after the other", compute + cost],
          [run.overlaps ? "Measured, with overlap" : "Measured, with --no-overlap", step], ["The longer of the two: the least possible", Math.max(compute, cost)],
          ["Saved by overlap", compute + cost - step]]);
      }
      rows.update([{label: "Bucket"}, {label: "Tensors", numeric: true}, {label: "Bytes", numeric: true, format: bytes}, {label: "By"}, {label: "Ready, ms", ...ms},
        {label: "Starts, ms", ...ms}, {label: "Ends, ms", ...ms}, {label: "Exposed, ms", ...ms}, {label: "Holds", wide: true}],
        answer.layout.map((b, i) => [String(i), b.tensors, b.bytes, b.algorithm, b.ready_ms, b.launch_ms, b.finish_ms, b.exposed_ms,
          brief(b.pieces.slice(0, 3).map((p) => (p.elements === p.of ? p.tensor : `part of ${p.tensor}`)).join(", ") + (b.tensors > 3 ? ` and ${b.tensors - 3} more` : ""), 90)]));
      capTable.update([{label: "Cap"}, {label: "Buckets", numeric: true}, {label: "Exposed, ms", ...ms}], answer.caps.map((c) => [capName(c.cap_mb), c.buckets, c.exposed_ms]));
    });
  },
};
