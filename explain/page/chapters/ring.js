// Chapter 1: the schedule of a collective, step by step, as the verifier has proved it.
import {controls, picker, slider} from "../lib/controls.js";
import {el, svg} from "../lib/dom.js";
import {figure, table} from "../lib/figure.js";
import {bytes, whole as commas} from "../lib/format.js";
import {guess, guessField} from "../lib/guess.js";
import {source} from "../lib/source.js";
import {whole, word} from "../lib/state.js";

export const chapter = {
  id: "ring",
  title: "The ring",
  lead: "Each rank has a gradient, and all ranks want the sum. How, and how many bytes does it cost?",
  fields: {
    ranks: whole(2, 16, 4),
    guess: guessField(),
  },
  render(root, context) {
    const numbers = table({name: "ring-bytes", title: "Bytes that each rank sends"});
    let plan = null;
    const picture = figure({name: "ring", title: "The ranks", draw: (width) => svg("svg", {viewBox: `0 0 ${width} 100`, width, height: 100},
      Array.from({length: plan.ranks}, (_, r) => svg("circle", {cx: 30 + r * (width - 60) / plan.ranks, cy: 50, r: 12, class: "s0"})))});
    context.onState((state) => {
      plan = context.answer({question: "schedule", collective: "all_reduce", algorithm: "ring", ranks: state.ranks, size_bytes: 46126080});
    });
    root.append(
      controls(slider(context, "ranks", {label: "Ranks", least: 2, most: 16})),
      guess(context, {name: "guess", hidden: [numbers.root], ask: () => ({
        question: "how much does each rank send?",
        options: [{label: "S", right: false}, {label: "2(N-1)/N S", right: true}],
        because: ["Each chunk passes every link once while it is summed, and once while it is handed out: ", source("comm/algorithms/ring.cpp", "kRing"), "."],
      })}),
      picture.root, numbers.root);
    context.onState(() => {
      picture.update();
      numbers.update([{label: "Rank"}, {label: "Sent", numeric: true, format: commas}, {label: "Formula"}],
        plan.bytes.map((b, r) => [r, b.sent, b.sent_formula]));
    });
  },
};
