// Figures and tables, each with a caption and a button that saves it.
import {el, freshId} from "./dom.js";
import {saveCsv, saveSvg} from "./save.js";

const WIDEST = 1000, NARROWEST = 280;

/**
 * A figure. `draw(width)` returns an element of SVG for that many pixels, drawn again when the width changes and when
 * update() is called. `describe()`: a sentence for those who cannot see it. `below`: elements under the drawing.
 */
export function figure({name, title, draw, describe, below = []}) {
  const place = el("div", {class: "drawing"});
  const caption = el("figcaption", {}, title);
  let drawn = null;
  const button = el("button", {type: "button", class: "save", "aria-label": `Save the figure "${title}" as SVG`,
    on: {click: () => drawn && saveSvg(name, drawn)}}, "SVG");
  const root = el("figure", {id: freshId(name)}, el("div", {class: "head"}, caption, button), place, ...below);
  let width = 0;
  const update = () => {
    width = Math.round(Math.min(WIDEST, Math.max(NARROWEST, place.clientWidth || 0)));
    drawn = draw(width);
    drawn.setAttribute("role", "img");
    drawn.setAttribute("aria-label", describe ? describe() : title);
    place.replaceChildren(drawn);
  };
  new ResizeObserver(() => {
    const now = Math.round(Math.min(WIDEST, Math.max(NARROWEST, place.clientWidth || 0)));
    if (drawn && now !== width && !root.hidden) update();
  }).observe(place);
  return {root, update};
}

/**
 * A table. update(columns, rows): columns [{label, numeric, wide, format}] (a wide one has long texts), rows of values as they go into the CSV; `mark(row)`
 * says which rows to emphasise.
 */
export function table({name, title, mark = null}) {
  const head = el("thead"), body = el("tbody");
  let columns = [], rows = [];
  const button = el("button", {type: "button", class: "save", "aria-label": `Save the table "${title}" as CSV`,
    on: {click: () => saveCsv(name, [columns.map((c) => c.label), ...rows])}}, "CSV");
  const caption = freshId(name);
  const root = el("div", {class: "table"},
    el("div", {class: "head"}, el("p", {class: "caption", id: caption}, title), button),
    el("div", {class: "scroll", tabindex: 0, role: "region", "aria-labelledby": caption}, el("table", {"aria-labelledby": caption}, head, body)));
  const update = (newColumns, newRows) => {
    columns = newColumns;
    rows = newRows;
    const kind = (c) => (c.numeric ? "numeric" : c.wide ? "wide" : null);
    head.replaceChildren(el("tr", {}, columns.map((c) => el("th", {scope: "col", class: kind(c)}, c.label))));
    body.replaceChildren(...rows.map((row) => el("tr", {class: mark && mark(row) ? "marked" : null}, row.map((value, i) => {
      const c = columns[i];
      const text = value === null || value === undefined ? "" : c.format ? c.format(value) : String(value);
      return el(i === 0 ? "th" : "td", {scope: i === 0 ? "row" : null, class: kind(c)}, text);
    }))));
  };
  return {root, update};
}
