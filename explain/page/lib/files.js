// Files that the reader drops or chooses. Their content is data of somebody else: it is parsed as JSON, checked field by field, and shown
// as text only. What cannot be used gives one sentence, and what was on the page stays.
import {el, freshId} from "./dom.js";

const MOST_BYTES = 8 << 20;

/** Why a file cannot be used; the message is for the reader. */
export class Unusable extends Error {}

/** A text of a file, cut to what a page can show. */
export function brief(text, most = 60) {
  const some = typeof text === "string" ? text : JSON.stringify(text) ?? "nothing";
  const clean = some.replace(/[\u0000-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g, " ");
  return clean.length > most ? `${clean.slice(0, most)}…` : clean;
}

/** What a document of one of rondo's programs is: profile, perf, compare, train, plan; null: of another program. */
export function kindOf(document) {
  if (document === null || typeof document !== "object") return null;
  if (document.format === "rondo link profile") return "profile";
  if (document.program === "rondo-perf") return "perf";
  if (document.program === "rondo-compare" || document.program === "compare") return "compare";
  if (document.program === "rondo-train") return "train";
  if (document.program === "rondo-plan") return "plan";
  return null;
}

/** A finite number of the document, or `otherwise`. */
export function numberOf(value, otherwise = NaN) {
  return typeof value === "number" && Number.isFinite(value) ? value : otherwise;
}

function parsed(name, text) {
  try {
    return JSON.parse(text);
  } catch {
    const nan = /^\s*[[{]/.test(text) && /[[:,]\s*-?(NaN|Infinity|nan|inf)\b/.exec(text);
    if (nan) throw new Unusable(`${name} holds ${nan[1]}, which is no number: something went wrong when it was measured.`);
    throw new Unusable(`${name} is not JSON: it is damaged, ends too early, or is another kind of file.`);
  }
}

/** The document in a file. Throws Unusable. */
export async function readFile(file) {
  const name = brief(file.name);
  if (file.size > MOST_BYTES) throw new Unusable(`${name} has ${Math.round(file.size / 1048576)} MiB; the page reads up to ${MOST_BYTES >> 20}.`);
  if (file.size === 0) throw new Unusable(`${name} is empty.`);
  const text = await file.text();
  return {name, text, document: parsed(name, text)};
}

/**
 * A place to drop files on, with a button to choose them; `label` is a text or a list of texts and elements. `take({name, text, document}, batch)` uses a file or throws
 * Unusable, and may return a sentence about what it did. `batch`: an object that the files dropped together share.
 */
export function dropPlace({label, take}) {
  const id = freshId("file");
  const said = el("p", {class: "said", role: "status"});
  const input = el("input", {type: "file", id, accept: ".json,.jsonl,application/json", multiple: true});
  const place = el("div", {class: "drop"}, el("label", {for: id}, label), input, said);
  async function use(files) {
    const sentences = [], batch = {};
    let failed = false;
    for (const file of files) {
      try {
        sentences.push((await take(await readFile(file), batch)) ?? `${brief(file.name)}: read.`);
      } catch (error) {
        failed = true;
        sentences.push(error instanceof Unusable ? error.message : `${brief(file.name)} cannot be used: it is not what rondo writes.`);
      }
    }
    said.className = failed ? "said failed" : "said";
    said.textContent = sentences.join(" ");
  }
  input.addEventListener("change", async () => {
    await use([...input.files]);
    input.value = "";
  });
  const over = (on) => (event) => {
    event.preventDefault();
    place.classList.toggle("over", on);
  };
  place.addEventListener("dragover", over(true));
  place.addEventListener("dragleave", over(false));
  place.addEventListener("drop", (event) => {
    over(false)(event);
    use([...event.dataTransfer.files]);
  });
  return place;
}

/** What explain/page/data/NAME.json holds; "here" is this machine's, where rondo-plan --page wrote the page, else null. */
export function dataOf(name) {
  const block = document.getElementById(`data-${name}`);
  return block ? JSON.parse(block.textContent) : null;
}
