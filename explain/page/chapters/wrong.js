// Chapter 6: the mistakes that data parallelism invites, each as a broken run beside a healthy one. Both really ran.
import {picker} from "../lib/controls.js";
import {coded, el} from "../lib/dom.js";
import {figure, table} from "../lib/figure.js";
import {Unusable, brief, dataOf, dropPlace, kindOf, numberOf} from "../lib/files.js";
import {digits, whole} from "../lib/format.js";
import {guess, guessField} from "../lib/guess.js";
import {legend, plot} from "../lib/plot.js";
import {source} from "../lib/source.js";
import {word} from "../lib/state.js";

/** What a reader should know of each; the runs are in explain/page/data/pitfalls.json. */
const PITFALLS = {
  "unshuffled": {
    title: "The sampler does not shuffle", question: "the data is sorted: text first, digits after it. What does the loss do if samples come in that order?",
    options: [["it falls as before", false], ["it falls, and jumps where the data changes", true], ["it is no number from then on", false]],
    symptom: "Batches are alike for a long time, then others come: the loss jumps at each border, in every epoch, and the model forgets what came before.",
    first: "whether the sampler shuffles (shuffle=True), and how the data is sorted: files one after the other, classes, dates.",
    link: () => source("trainer/lessons/sabotage.hpp", "inline bool shuffles("),
  },
  "same-data": {
    title: "Every rank reads the same samples", question: "two ranks read rank 0's samples. What does the loss show?",
    options: [["an error in the first step", false], ["it falls more slowly, nothing else", true], ["it rises", false]],
    symptom: "Nothing is wrong in any number: N ranks learn what one would have learned. rondo compares hashes of samples, and warns.",
    first: "the rank and the number of ranks that the sampler was made with.",
    link: () => source("trainer/lessons/sabotage.hpp", "inline uint64_t rank_that_reads("),
  },
  "no-set-epoch": {
    title: "set_epoch is never called", question: "every epoch then has the order of the first. Which curve is lower after eight epochs?",
    options: [["the healthy one, by far", false], ["the broken one, by far", false], ["chance decides: the loss does not show it", true]],
    symptom: "The same samples share a batch in every epoch. Over a few epochs the losses show nothing: only the warning is a symptom.",
    first: "whether set_epoch(epoch) is called before each epoch, on every rank, with the same number.",
    link: () => source("trainer/lessons/sabotage.hpp", "inline uint64_t order_of_epoch("),
  },
  "sum": {
    title: "Gradients are summed, not averaged", question: "four ranks add up their gradients, and nobody divides by four. What is that the same as?",
    options: [["a batch four times as large", false], ["a learning rate four times as high", true], ["nothing: the optimizer divides", false]],
    symptom: "The same code learns on one rank and fails on four: steps are N times as long. Near the highest rate that works, the loss jumps and never settles, or stops being a number.",
    first: "who divides, by what: the ranks (DDP), or the loss terms of all ranks (right for uneven batches, too). Exactly once.",
    link: () => source("trainer/lessons/sabotage.hpp", "inline double gradient_factor("),
  },
  "uneven-inputs": {
    title: "One rank has fewer samples", question: "rank 1 runs out of data first. What happens to rank 0?",
    options: [["it goes on alone", false], ["in most systems it hangs in an all-reduce; here it ends with an error", true], ["it repeats rank 1's last batch", false]],
    symptom: "The run stands still near the end of an epoch, at 100 % of a core or none. rondo's ranks tell each other what they have, and end together.",
    first: "how many samples each rank has. Files of equal length, one sampler for all, or --join: a rank without data takes part with empty batches.",
    link: () => source("trainer/TROUBLESHOOTING.md", "## uneven-inputs"),
  },
  "local-batch-norm": {
    title: "Buffers: each rank keeps its own statistics", question: "batch norm sees two pictures on each of four ranks, instead of all eight. What differs?",
    options: [["nothing: gradients are averaged", false], ["the loss, from the first step on, and the validation", true], ["only the speed", false]],
    symptom: "Batch norm's mean and variance are no gradients: nobody averages them. Few samples make noisy statistics, and each rank saves its own.",
    first: "samples for each rank; below about 16, synchronize the statistics (--sync-batch-norm). Then that buffers are broadcast before they are saved.",
    link: () => source("trainer/TROUBLESHOOTING.md", "## local-batch-norm"),
  },
  "lone-read": {
    title: "One rank alone reads the loss", question: "in step 5 rank 0 asks for the mean loss of all ranks, to print it: `if rank == 0: all_reduce(loss)`. What happens?",
    options: [["it prints the mean", false], ["it prints its own loss", false], ["it waits for ranks that never come, or its call meets another one of theirs", true]],
    symptom: "A hang, or, worse, gradients of one rank added to the loss of another. rondo's ranks compare their calls: all end, and both calls are named.",
    first: "collectives inside an `if rank == 0`: every rank must make the same calls in the same order. Reading a value on the host also makes that rank wait for its device.",
    link: () => source("trainer/lessons/sabotage.hpp", "class LoneReader"),
  },
};

const MOST_LOSSES = 400, MOST_RUNS = 4;  // shown of the reader's

/** The losses of a document of rondo-train --json. Throws Unusable. */
function runOf(name, document) {
  if (kindOf(document) !== "train") throw new Unusable(`${name} is not what rondo-train --json writes.`);
  if (Array.isArray(document.scaling)) throw new Unusable(`${name} is from rondo-train --scaling, which records no losses: drop a run without it.`);
  if (!Array.isArray(document.steps)) throw new Unusable(`${name} has no steps.`);
  const curve = document.steps.map((s) => [numberOf(s?.step), numberOf(s?.loss)]).filter(([step, loss]) => Number.isFinite(step) && Number.isFinite(loss));
  if (curve.length < 2) throw new Unusable(`${name} has fewer than two steps with a loss.`);
  const each = Math.ceil(curve.length / MOST_LOSSES);
  return {
    title: name, curve: curve.filter((_, i) => i % each === 0), losses: curve.length, command: "", warnings: Array.isArray(document.summary?.warnings) ? document.summary.warnings.map((w) => brief(w, 200)) : [],
    error: typeof document.error === "string" ? brief(document.error, 300) : "",
  };
}

export const chapter = {
  id: "wrong",
  title: "What goes wrong",
  lead: "Most mistakes of data parallelism raise no error. What do they look like, and what should one check first?",
  fields: {mistake: word(Object.keys(PITFALLS), "unshuffled"), guess: guessField()},
  render(root, context) {
    const recorded = dataOf("pitfalls");
    const own = [];
    const about = () => PITFALLS[context.state.mistake];
    const runs = () => (own.length ? own : recorded.pitfalls.find((p) => p.name === context.state.mistake)?.runs ?? []);
    // What explodes would press everything else flat: it leaves the figure, and stays in the table.
    const highest = () => 2.5 * Math.max(...runs().flatMap((r) => r.curve.slice(0, 3).map(([, y]) => y)));
    const series = () => runs().map((r, i) => ({name: r.title, colour: i, strong: i === 1, marks: r.curve.length < 5,
      points: r.curve.filter(([, y]) => y <= highest()).map(([x, y]) => ({x, y}))}));
    const names = el("div"), left = el("p", {class: "hint"});
    const curves = figure({
      name: "pitfall", title: "The loss of both runs",
      describe: () => runs().map((r) => `${r.title}: ${r.curve.length ? `from ${digits(r.curve[0][1])} to ${digits(r.curve.at(-1)[1])} in step ${r.curve.at(-1)[0]}` : "no step ended"}`).join("; "),
      draw: (width) => plot({
        width, x: {label: "step", from: 1}, y: {label: "loss", from: 0}, series: series(),
        verticals: runs().filter((r) => r.error && r.curve.length).map((r) => ({x: r.curve.at(-1)[0], label: "ends with an error"})),
      }),
      below: [names, left],
    });
    const numbers = table({name: "pitfall", title: "What the runs said"});
    const points = table({name: "pitfall-losses", title: "The losses"});
    const said = el("section", {"aria-live": "polite"});
    const commands = el("div");
    const details = el("details", {}, el("summary", {}, "The losses as a table"), points.root);
    const back = el("button", {type: "button", on: {click: () => {
      own.length = 0;
      context.set({});
    }}}, "Back to the recorded runs");
    root.append(
      picker(context, "mistake", {label: "Mistake", options: Object.entries(PITFALLS).map(([value, {title}]) => ({value, label: title})), also: {guess: -1}}),
      guess(context, {
        name: "guess", hidden: [curves.root, numbers.root, said, commands, details],
        ask: () => ({question: about().question, options: about().options.map(([label, right]) => ({label, right})), because: [el("strong", {}, "Symptom: "), ...coded(about().symptom)]}),
      }),
      curves.root, said, numbers.root, commands, details,
      dropPlace({
        label: "Your own runs: drop files of rondo-train --json here, a healthy one first",
        take: ({name, document}) => {
          const run = runOf(name, document);
          own.push(run);
          const gone = own.length > MOST_RUNS ? own.shift() : null;
          context.set({guess: context.state.guess < 0 ? 9 : context.state.guess});
          return `${name}: ${whole(run.losses)} losses${run.losses > run.curve.length ? `, of which ${run.curve.length} are shown` : ""}.${gone ? ` ${gone.title} is no longer shown: ${MOST_RUNS} runs are the most.` : ""}`;
        },
      }),
      back);
    let before = context.state.mistake;
    context.onState((state) => {
      if (state.mistake !== before) {
        before = state.mistake;
        own.length = 0;
      }
      back.hidden = own.length === 0;
      context.unsent = own.length === 0 ? "" : "The link does not hold the runs that you dropped: who opens it sees the recorded ones, and has to drop yours, too.";
      names.replaceChildren(legend(series()));
      const fewer = runs().filter((r) => r.losses > r.curve.length).map((r) => `${r.title}: ${r.curve.length} of ${whole(r.losses)} losses are shown, one in ${Math.ceil(r.losses / MOST_LOSSES)}.`);
      left.textContent = [...fewer, runs().some((r) => r.curve.some(([, y]) => y > highest())) ? `Losses above ${digits(highest())} lie outside the figure.` : ""].join(" ").trim();
      if (!curves.root.hidden) curves.update();
      said.replaceChildren(...(own.length ? [] : [
        el("p", {class: "note"}, el("strong", {}, "Check first: "), coded(about().first)),
        el("p", {}, "How this run was broken: ", about().link())]));
      numbers.update([{label: "Run"}, {label: "Steps", numeric: true}, {label: "Last loss", numeric: true, format: digits}, {label: "Validation", numeric: true, format: digits}, {label: "Warnings", wide: true}, {label: "Error", wide: true}],
        runs().map((r) => [r.title, r.curve.length ? r.curve.at(-1)[0] : 0, r.curve.at(-1)?.[1], r.validation_loss, r.warnings.join("; ") || "none", r.error || "none"]));
      points.update([{label: "Run"}, {label: "Step", numeric: true}, {label: "Loss", numeric: true}], runs().flatMap((r) => r.curve.map(([step, loss]) => [r.title, step, loss])));
      commands.replaceChildren(...(own.length ? [] : [
        el("p", {}, "Recorded by ", source("scripts/record-lessons", "PITFALLS = ["), ` on ${brief(recorded.origin.date)}, ${brief(recorded.origin.processor)}. To repeat:`),
        ...runs().map((r) => el("p", {}, el("code", {}, r.command)))]));
    });
  },
};
