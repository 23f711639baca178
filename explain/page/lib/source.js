// Links to the place in the tree where a thing is done. explain/bundle.py finds the lines. A browser opens a file from disk at its
// beginning, whatever the fragment says: so the link's text has the line, too.
import {el} from "./dom.js";

const LINES = "SOURCE_LINES", TREE = "SOURCE_TREE";

/** A link to the line of `path` that contains `text`. Both must be literal strings: they are resolved when the page is built. */
export function source(path, text, label = null) {
  const line = LINES[`${path}|${text}`];
  const place = `${path}:${line}`;
  return el("a", {class: "source", href: `${TREE}${path}#L${line}`, title: place}, label ?? place);
}
