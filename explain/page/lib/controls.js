// Controls that set fields of the chapter's state and follow it. Each has a visible name.
import {el, freshId} from "./dom.js";

/** A slider. `values`: the values it may have, in order, instead of every whole number from least to most. */
export function slider(context, name, {label, least = 0, most = 0, values = null, format = String, hint = ""}) {
  const id = freshId(name);
  const output = el("output", {for: id});
  const list = () => (typeof values === "function" ? values() : values);
  const valueAt = (position) => (values ? list()[position] : position);
  const input = el("input", {
    type: "range", id, step: 1,
    on: {input: () => context.set({[name]: valueAt(Number(input.value))})},
  });
  context.onState((state) => {
    const value = state[name];
    const some = list();
    const nearest = some && some.reduce((best, v, i) => (Math.abs(v - value) < Math.abs(some[best] - value) ? i : best), 0);
    input.min = String(some ? 0 : typeof least === "function" ? least(state) : least);
    input.max = String(some ? some.length - 1 : typeof most === "function" ? most(state) : most);
    input.value = String(some ? nearest : value);
    output.textContent = format(value, state);
    input.setAttribute("aria-valuetext", output.textContent);
  });
  return el("div", {class: "control"}, el("label", {for: id}, label), " ", output, input, hint ? el("p", {class: "hint"}, hint) : null);
}

/** A list to choose from. `options(state)`: [{value, label}]. `also`: fields that a choice sets, too. */
export function picker(context, name, {label, options, also = {}}) {
  const id = freshId(name);
  const isNumber = typeof context.chapter.fields[name].usual === "number";
  const select = el("select", {id, on: {change: () => context.set({[name]: isNumber ? Number(select.value) : select.value, ...also})}});
  let shown = "";
  context.onState((state) => {
    const some = typeof options === "function" ? options(state) : options;
    const text = JSON.stringify(some);
    if (text !== shown) {
      shown = text;
      select.replaceChildren(...some.map((o) => el("option", {value: o.value}, o.label ?? o.value)));
    }
    select.value = String(state[name]);
  });
  return el("div", {class: "control"}, el("label", {for: id}, label), select);
}

/** A check box for a flag. */
export function toggle(context, name, {label, hint = "", disabled = null}) {
  const id = freshId(name);
  const input = el("input", {type: "checkbox", id, on: {change: () => context.set({[name]: input.checked})}});
  context.onState((state) => {
    input.checked = state[name];
    if (disabled) input.disabled = disabled(state);
  });
  return el("div", {class: "control check"}, input, el("label", {for: id}, label), hint ? el("p", {class: "hint"}, hint) : null);
}

/** A button. `disabled(state)`: when it cannot be used. */
export function button(context, label, action, {disabled = null, name = null} = {}) {
  const element = el("button", {type: "button", "aria-label": name, on: {click: () => element.getAttribute("aria-disabled") !== "true" && action()}}, label);
  if (disabled) {
    context.onState((state) => {
      element.setAttribute("aria-disabled", String(disabled(state)));  // `disabled` would take the focus away
    });
  }
  return element;
}

export function controls(...children) {
  return el("div", {class: "controls"}, ...children);
}
