// "Prove it": the verifier in the browser, on the schedule as it is or as the reader has broken it.
import {button, controls, picker} from "../lib/controls.js";
import {el} from "../lib/dom.js";
import {counted} from "../lib/format.js";
import {source} from "../lib/source.js";

const HOW = [["drop", "leave it out"], ["double", "do it twice"], ["swap", "swap it with the next step"]];
const MOST = 8;

/** The changes in the state's text: 1.2.drop,3.0.swap. */
export function breaksOf(text) {
  return text.split(",").map((one) => /^(\d{1,2})\.(\d{1,4})\.(drop|double|swap)$/.exec(one)).filter(Boolean).slice(0, MOST)
    .map(([, rank, step, how]) => ({rank: Number(rank), step: Number(step), how}));
}

/** The steps of one rank, in order. `plan.boxes` puts waits in a row into one box. */
function stepsOf(plan, rank) {
  return plan.boxes.filter((b) => b.rank === rank).sort((a, b) => a.step - b.step);
}

/** `ask(state)`: the operation as a request. `plan()`: the present plan. */
export function proof(context, {ask, plan}) {
  const verdict = el("div", {class: "proof", role: "status"});
  const list = el("p", {class: "hint"});
  const rank = picker(context, "rank", {label: "Break a step of rank", options: () => Array.from({length: plan().ranks}, (_, r) => ({value: String(r)}))});
  const step = picker(context, "bad", {label: "The step", options: (state) => stepsOf(plan(), Number(state.rank)).map((b) =>
    ({value: String(b.step), label: `${b.step}: ${b.name}${b.chunk === undefined ? "" : ` c${b.chunk}`}`}))});
  const how = picker(context, "how", {label: "What to do with it", options: HOW.map(([value, label]) => ({value, label}))});
  const add = () => {
    const {rank: r, bad, how: h, broken} = context.state;
    context.set({broken: [...broken.split(",").filter(Boolean), `${r}.${bad}.${h}`].slice(-MOST).join(","), prove: true});
  };
  // Of another operation, changes may remain that this one has no place for.
  const fits = (b) => b.rank < plan().ranks && stepsOf(plan(), b.rank).some((box) => box.step >= b.step);
  context.onState((state) => {
    const breaks = breaksOf(state.broken).filter(fits);
    list.textContent = breaks.length === 0 ? "The schedule is as rondo runs it." :
      `Changed: ${breaks.map((b) => `rank ${b.rank}, step ${b.step}: ${HOW.find(([value]) => value === b.how)[1]}`).join("; ")}. The pictures above show it unbroken.`;
    if (!state.prove) {
      verdict.replaceChildren();
      return;
    }
    const began = performance.now();
    const found = context.answer({question: "verify", ...ask(state), break: breaks});
    const ms = performance.now() - began;
    verdict.dataset.ms = String(ms);
    if (found.error) {
      verdict.replaceChildren(el("p", {class: "bad"}, `This cannot be checked: ${found.error}.`));
    } else if (found.verified) {
      verdict.replaceChildren(
        el("p", {}, el("strong", {class: "good"}, "Proved. "), `Every result holds every contribution exactly once, nobody waits in a circle, no slot is left over. `,
          `The verifier carried out ${counted(found.moves, "move")} of ${counted(found.steps, "step")} on symbols; `,
          !plan().reduces ? "nothing is added." : found.rank_order ? "contributions are added in rank order." :
            plan().collective === "all_reduce" ? "every rank gets the same bits, though not added in rank order." : "contributions are not added in rank order."));
    } else {
      verdict.replaceChildren(el("p", {}, el("strong", {class: "bad"}, "Refused. "), `${found.why}.`),
        el("p", {class: "hint"}, "The verifier names the first thing that cannot be right: an operation, a rank, a step. Where no step is wrong by itself, somebody waits for ever, or a result lacks a contribution."));
    }
  });
  return el("section", {},
    el("h2", {}, "Prove it"),
    el("p", {}, "A schedule is data, so it can be checked before it runs. The verifier carries out all ranks' programs on symbols instead of numbers (",
      source("comm/schedule/verifier.hpp", "Result<VerifyReport> verify("), "). Break a step and see what it says."),
    controls(rank, step, how),
    el("div", {class: "row"},
      el("button", {type: "button", class: "primary", on: {click: () => context.set({prove: true})}}, "Prove it"),
      button(context, "Break it", add),
      button(context, "Mend it", () => context.set({broken: ""}), {disabled: (state) => state.broken === ""})),
    list, verdict);
}
