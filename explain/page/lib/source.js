// Links to the place in the tree where a thing is done. explain/bundle.py finds the lines.
import {el} from "./dom.js";

const LINES = "SOURCE_LINES";

/** A link to the line of `path` that contains `text`. Both must be literal strings: they are resolved when the page is built. */
export function source(path, text, label = null) {
  const line = LINES[`${path}|${text}`];
  const place = `${path}:${line}`;
  return el("a", {class: "source", href: `../${path}#L${line}`, title: place}, label ?? place);
}
