// The guess before the answer. What is in `hidden` stays hidden until the reader has guessed, or asked to be shown.
import {coded, el, freshId} from "./dom.js";
import {whole} from "./state.js";

const SHOWN = 9;  // without a guess

/** The field of the state that holds the guess. */
export const guessField = () => whole(-1, SHOWN, -1);

/**
 * `ask(state)`: {question, options: [{label, right}], because: [nodes or text]}, for the present state; at most nine options.
 * `name`: the field. `hidden`: elements to show after the guess. A guess stays with the question it was made for: where the
 * question's options change, its place in the list is what is kept.
 */
export function guess(context, {name, ask, hidden = []}) {
  const title = freshId("guess");
  const question = el("p", {class: "question", id: title});
  const options = el("div", {class: "options", role: "group", "aria-labelledby": title});
  const verdict = el("div", {class: "verdict", role: "status"});
  let shown = "";
  context.onState((state) => {
    const asked = ask(state);
    const at = state[name];
    const done = at >= 0;
    const text = JSON.stringify([asked.question, asked.options, at]);
    for (const element of hidden) element.hidden = !done;
    const because = done ? [asked.because].flat() : [];
    if (text !== shown) {
      const focused = options.contains(document.activeElement) ? [...options.children].indexOf(document.activeElement) : -1;
      shown = text;
      question.replaceChildren(el("strong", {}, "Your guess: "), ...coded(asked.question));
      options.replaceChildren(
        ...asked.options.map((o, i) =>
          el("button", {
            type: "button", "aria-pressed": String(at === i), class: done && o.right ? "right" : done && at === i ? "wrong" : null,
            on: {click: () => context.set({[name]: i})},
          }, o.label)),
        el("button", {type: "button", class: "plain", on: {click: () => context.set({[name]: done ? -1 : SHOWN})}}, done ? "Guess again" : "Show me"));
      if (focused >= 0) options.children[focused]?.focus();
    }
    const chosen = asked.options[at];
    const begin = !done ? [] : chosen === undefined ? [] : [el("strong", {}, chosen.right ? "Right. " : "Not quite. ")];
    verdict.replaceChildren(...(done ? [el("p", {}, ...begin, ...because)] : []));
  });
  return el("section", {class: "guess", "aria-labelledby": title}, question, options, verdict);
}
