// Chapter 3: measurements beside the model: the reader's files, or recorded ones.
import {controls, picker, toggle} from "../lib/controls.js";
import {el} from "../lib/dom.js";
import {figure, table} from "../lib/figure.js";
import {Unusable, brief, dataOf, dropPlace, kindOf} from "../lib/files.js";
import {binary, counted, digits, percent, time, whole} from "../lib/format.js";
import {guess, guessField} from "../lib/guess.js";
import {MOST_ROWS, MOST_SERIES, rowsOf, seriesOf, toldApart} from "../lib/measured.js";
import {legend, plot} from "../lib/plot.js";
import {source} from "../lib/source.js";
import {flag, short} from "../lib/state.js";

const ALL = "all";
const BOUNDS = [0.05, 0.2, 0.5];
const ANSWERS = ["at most 5 %", "5 to 20 %", "20 to 50 %", "more than 50 %"];

const HERE = "here", OWN = "mine";  // ids of sets: this machine's, and (with a number) the reader's
const MOST_ASKED = 1024;  // predictions in one answer

/** What each constant of a profile is, for people. */
const MEANING = {
  overhead_us: "every call", alpha_us: "a hop in memory, from one rank's flag to another", peer_us: "each further peer in a hop",
  slot_us_per_byte: "a byte into a slot, or out of one", one_way_us_per_byte: "more for a byte where only one direction is used",
  memory_cached_us_per_byte: "a byte of buffers that fit the cache", memory_us_per_byte: "a byte of larger buffers",
  reduce_us_per_byte: "adding a byte to another", process_copy_us: "a copy between processes by the kernel", process_copy_us_per_byte: "a byte of such a copy",
  wire_alpha_us: "a hop between hosts", wire_message_us: "a message between hosts", wire_us_per_byte: "a byte on a host's link",
  wire_both_us_per_byte: "more for a byte where both directions are busy",
};

/** Sets of measurements: this machine's, the recorded ones, and what the reader has dropped (kept while the page is open). */
const sets = [];
let dropped = 0;

/** `measured`: all rows of the files, of which the page keeps the first. */
function setOf({id, name, about = "", source: from = "", profile = null, measured = []}) {
  return {id, name, about, from, profile, rows: toldApart(measured.slice(0, MOST_ROWS)), measurements: measured.length};
}

function addSet({name, documents, ...set}) {
  sets.push(setOf({...set, name, measured: documents.flatMap((d) => rowsOf(name, d))}));
}

/** What of a set the page leaves out, and why; empty: nothing. */
function leftOut(set) {
  const series = seriesOf(set.rows).length;
  return [
    set.measurements > set.rows.length ? `The first ${whole(set.rows.length)} of ${whole(set.measurements)} measurements are shown: with more the page would be slow.` : "",
    series > MOST_SERIES ? `"Everything" is the first ${MOST_SERIES} of ${whole(series)} series: more look alike. The list "Show" has each of them.` : "",
  ].filter(Boolean).join(" ");
}

/** The rows of the files that rondo-plan --page put into the page, and a sentence on each that has none. */
function measuredHere(documents) {
  const unusable = [];
  const measured = documents.flatMap((document, i) => {
    try {
      return rowsOf(`File ${i + 1}`, document);
    } catch (error) {
      unusable.push(error instanceof Unusable ? error.message : `File ${i + 1} cannot be used.`);
      return [];
    }
  });
  return {measured, unusable};
}

function fillSets() {
  if (sets.length > 0) return;
  const here = dataOf("here");
  if (here?.measured?.length > 0) {
    const {measured, unusable} = measuredHere(here.measured);
    sets.push(setOf({id: HERE, name: "This machine", about: ["Measured on the machine that wrote this page.", ...unusable].join(" "), profile: here.profile ?? null, measured}));
  } else if (here?.profile) {
    sets.push(setOf({id: HERE, name: "This machine's profile", about: "The link profile of the machine that wrote this page.", profile: here.profile}));
  }
  for (const example of dataOf("examples") ?? []) addSet(example);
}

/** The model's times for rows: those of the file where there is no profile, else the profile's. */
function predictionsOf(context, set, plain) {
  const priced = set.rows.map((row, index) => ({row, index})).filter(({row}) => row.algorithm !== null && row.ranks >= 1);
  const predictions = set.rows.map((row) => row.predicted_us);
  const groups = [...new Set(priced.map(({row}) => JSON.stringify(row.pace)))].flatMap((pace) => {
    const alike = priced.filter(({row}) => JSON.stringify(row.pace) === pace && (set.profile !== null || !(row.predicted_us > 0)));
    return Array.from({length: Math.ceil(alike.length / MOST_ASKED)}, (_, i) => [pace, alike.slice(i * MOST_ASKED, (i + 1) * MOST_ASKED)]);
  });
  for (const [pace, some] of groups) {
    const found = context.answer({
      question: "predict", ...(set.profile !== null ? {profile: set.profile} : {}), ...(JSON.parse(pace) ?? {}),
      rows: some.map(({row}) => ({collective: row.collective, algorithm: row.algorithm, ranks: row.ranks, size_bytes: row.size_bytes, library_memory: row.library_memory})),
    });
    if (found.error) continue;
    found.rows.forEach((r, k) => {
      predictions[some[k].index] = r.error ? NaN : plain ? r.uncorrected_us : r.us;
    });
  }
  return predictions;
}

const median = (values) => {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length === 0 ? NaN : (sorted[Math.floor((sorted.length - 1) / 2)] + sorted[Math.ceil((sorted.length - 1) / 2)]) / 2;
};

/** How far a prediction is from the measurement: 0.25 for a quarter too high or too low, as a factor. */
const off = (row) => (row.predicted >= row.us ? row.predicted / row.us : row.us / row.predicted) - 1;

/** Takes a file: a profile is set beside the set that is shown, the measurements of files dropped together become a set of their own. */
function take(context, {name, text, document}, batch) {
  if (kindOf(document) === "profile") {
    const found = context.answer({question: "profile", profile: text});
    if (found.error) throw new Unusable(`${name} cannot be used: ${found.error}.`);
    const shown = sets.find((s) => s.id === context.state.set) ?? sets[0];
    const id = `${OWN}${++dropped}`;
    sets.push({...shown, id, name: `${shown.name}, with the profile ${name}`, profile: text, about: `${shown.about} The predictions are those of ${name}.`});
    context.set({set: id, show: ALL});
    return `${name} is a link profile, "${brief(found.name, 80)}": the predictions are its own now.`;
  }
  const rows = rowsOf(name, document);
  batch.names = [...(batch.names ?? []), name];
  batch.rows = [...(batch.rows ?? []), ...rows];
  const several = batch.names.length > 1;
  const set = setOf({id: batch.id ?? `${OWN}${++dropped}`, name: brief(batch.names.join(", "), 80), about: several ? "Your files." : "Your file.", measured: batch.rows});
  if (several) sets[sets.findIndex((s) => s.id === set.id)] = set;
  else sets.push(set);
  batch.id = set.id;
  context.set({set: set.id, show: ALL});
  const series = seriesOf(rows);
  return `${name}: ${counted(rows.length, "measurement")} of ${series.slice(0, MOST_SERIES).join(", ")}${series.length > MOST_SERIES ? ` and ${whole(series.length - MOST_SERIES)} more` : ""}. ${leftOut(set)}`.trim();
}

export const chapter = {
  id: "machine",
  title: "My machine",
  lead: "A model predicts, a machine decides. How far apart are they, and where?",
  fields: {set: short("", 40), show: short(ALL, 100), plain: flag(), guess: guessField()},
  render(root, context) {
    fillSets();
    const lost = el("p", {class: "lost"});
    let set = null, rows = [], names = [], shown = [], chosen = [];
    context.onState((state) => {
      const found = sets.find((s) => s.id === state.set);
      lost.hidden = found !== undefined || state.set === "";
      lost.textContent = lost.hidden ? "" : state.set.startsWith(OWN) ? "The link to this picture was made with files that it cannot carry: drop those files below. Until then, here is another set." :
        `This page has no measurements "${brief(state.set)}": the link was made with another page. Here is another set.`;
      set = found ?? sets[0];
      state.set = set.id;
      context.unsent = set.id === HERE ? "The link shows this machine's numbers only in this page: send the file of the page with it." :
        set.id.startsWith(OWN) ? "The link does not hold the files that you dropped: who opens it has to drop them, too." : "";
      names = seriesOf(set.rows);
      if (!names.includes(state.show)) state.show = ALL;
      if (set.profile === null) state.plain = false;
      const predictions = predictionsOf(context, set, state.plain);
      rows = set.rows.map((row, i) => ({...row, predicted: predictions[i]}));
      shown = state.show === ALL ? names.slice(0, MOST_SERIES) : [state.show];
      chosen = rows.filter((row) => shown.includes(row.series));
    });
    const both = () => chosen.filter((row) => row.predicted > 0);
    const lines = () => shown.flatMap((name) => {
      const some = chosen.filter((row) => row.series === name).sort((a, b) => a.size_bytes - b.size_bytes);
      const colour = names.indexOf(name);
      const measured = {name: `${name}, measured`, colour, line: false, marks: true, points: some.map((r) => ({x: r.size_bytes, y: r.us, low: r.low, high: r.high}))};
      const predicted = {name: `${name}, predicted`, colour, points: some.filter((r) => r.predicted > 0).map((r) => ({x: r.size_bytes, y: r.predicted}))};
      if (predicted.points.length === 0) return [{...measured, line: true}];
      return [measured, predicted];
    });
    const keys = el("div"), keysBelow = el("div");
    const size = {label: "bytes of a rank's larger buffer", log: true, base: 2, format: binary};
    const times = figure({
      name: "machine", title: "Measured, and predicted",
      draw: (width) => plot({width, height: Math.min(440, Math.max(260, width * 0.55)), series: lines(), x: size, y: {label: "time", log: true, format: time}}),
      describe: () => `Time over size of ${shown.join(", ")}: ${worstText()}`, below: [keys],
    });
    const ratios = () => shown.map((name) => ({
      name, colour: names.indexOf(name), marks: true,
      points: both().filter((r) => r.series === name).sort((a, b) => a.size_bytes - b.size_bytes).map((r) => ({x: r.size_bytes, y: r.predicted / r.us})),
    })).filter((s) => s.points.length > 0);
    const wrong = figure({
      name: "machine-ratio", title: "Predicted over measured: where the model is wrong, and by how much",
      draw: (width) => plot({width, series: ratios(), horizontals: [{y: 1, label: "right"}], x: size, y: {label: "predicted / measured", log: true, base: 2, from: Math.min(0.5, ...both().map((r) => r.predicted / r.us)), to: Math.max(2, ...both().map((r) => r.predicted / r.us)), format: (v) => digits(v, 2)}}),
      describe: () => worstText(), below: [keysBelow],
    });
    const worstText = () => {
      const some = both();
      if (some.length === 0) return "Nothing here has both a measurement and a prediction.";
      const worst = some.reduce((a, b) => (off(b) > off(a) ? b : a));
      const low = worst.predicted < worst.us, typical = median(some.map(off));
      const within = typical > 1 ? `a factor of ${digits(typical + 1)}` : percent(typical);
      return `${some.length > 1 ? `Half of ${counted(some.length, "prediction")} are within ${within}. The worst: ` : ""}${worst.series} at ${binary(worst.size_bytes)}, predicted ${time(worst.predicted)}, measured ${time(worst.us)}: ${digits(off(worst) + 1)} times too ${low ? "low" : "high"}.`;
    };
    const verdict = el("p", {class: "note"});
    const listed = table({name: "machine", title: "The same in numbers", mark: (r) => r[6] !== null && (r[6] > 1.5 || r[6] < 1 / 1.5)});
    const builtIn = el("p", {class: "hint"}, "These measurements come without a profile: this is the built-in one, of a machine of which nothing is known. It knows no network.");
    const constants = table({name: "profile", title: "The profile: what the model knows of the machine"});
    const none = el("p", {class: "note"}, "This profile comes without measurements: choose an example, or drop a file of rondo-perf --json.");
    const results = el("section", {}, times.root, wrong.root, verdict, listed.root, none);
    const about = el("p", {class: "hint"});
    root.append(
      controls(
        picker(context, "set", {label: "Measurements", options: () => sets.map((s) => ({value: s.id, label: s.name}))}),
        picker(context, "show", {label: "Show", options: () => [{value: ALL, label: "everything"}, ...names.map((value) => ({value}))]}),
        toggle(context, "plain", {label: "Without corrections", hint: "The profile's constants alone.", disabled: () => set.profile === null})),
      lost, about,
      dropPlace({label: ["Your own: drop or choose files of ", el("code", {}, "rondo-perf --json"), ", ", el("code", {}, "rondo-perf --calibrate"), ", or ", el("code", {}, "scripts/compare --json")], take: (file, batch) => take(context, file, batch)}),
      guess(context, {name: "guess", hidden: [results], ask: () => {
        const typical = median(both().map(off));
        const at = Number.isNaN(typical) ? -1 : BOUNDS.filter((b) => typical > b).length;
        return {
          question: `"${set.name}": how far from the measurement is a typical prediction?`,
          options: ANSWERS.map((label, i) => ({label, right: i === at})),
          because: [worstText(), " A prediction is a sum of products, a constant times hops or bytes: ", source("comm/tuner/cost.cpp", "Price price("), "."],
        };
      }}),
      results,
      el("h2", {}, "What a profile is"),
      el("p", {}, "Ten constants of a machine, and four of the links between hosts, that ", el("code", {}, "rondo-perf --calibrate"), " fits to timings, and a table of what they leave unexplained (",
        source("comm/tuner/profile.hpp", "struct LinkProfile {"), "). Everything that the model predicts, and with it which algorithm runs, follows from them."),
      builtIn, constants.root);
    context.onState(() => {
      about.replaceChildren(set.about, " ", set.from ? el("code", {}, set.from) : "", el("strong", {}, leftOut(set)));
      none.hidden = rows.length > 0;
      for (const part of [times.root, listed.root, verdict]) part.hidden = rows.length === 0;
      wrong.root.hidden = both().length === 0;
      if (rows.length > 0) {
        times.update();
        keys.replaceChildren(legend(lines()));
      }
      if (both().length > 0) {
        wrong.update();
        keysBelow.replaceChildren(legend(ratios()));
      }
      verdict.textContent = worstText();
      listed.update(
        [{label: "Size", format: binary}, {label: "What"}, {label: "Measured", numeric: true, format: time}, {label: "from", numeric: true, format: time}, {label: "to", numeric: true, format: time},
          {label: "Predicted", numeric: true, format: time}, {label: "Predicted / measured", numeric: true, format: (v) => digits(v)}],
        chosen.map((r) => [r.size_bytes, r.series, r.us, ...[r.low, r.high, r.predicted, r.predicted / r.us].map((v) => (v > 0 ? v : null))]));
      const profile = set.profile === null ? null : context.answer({question: "profile", profile: set.profile});
      const bill = context.answer({question: "bill", collective: "all_reduce", ranks: 2, sizes: []});
      const values = profile && !profile.error ? profile.constants.map((c) => [c.name, c.value]) : Object.keys(MEANING).filter((name) => !name.startsWith("wire_")).map((name) => [name, bill.links[name]]);
      builtIn.hidden = profile && !profile.error;
      constants.update([{label: "Constant"}, {label: "Price of"}, {label: "µs", numeric: true, format: (v) => digits(v)}],
        values.map(([name, value]) => [name, MEANING[name] ?? "", value]));
    });
  },
};
