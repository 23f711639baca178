// Elements. Text from outside (files, links) becomes text nodes only: nothing here takes HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false).map((c) => (c instanceof Node ? c : String(c))));
  return element;
}

/** An HTML element: el("p", {class: "note"}, "text", child). Attributes: `on` holds listeners, false and null are left out. */
export function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An element of SVG, likewise. */
export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** A text of this page as nodes: what stands between backticks is code. */
export function coded(text) {
  return text.split("`").map((part, i) => (i % 2 === 1 ? el("code", {}, part) : part));
}

let ids = 0;
/** An id that no other element has. */
export function freshId(stem) {
  return `${stem}-${++ids}`;
}
