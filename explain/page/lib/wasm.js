// rondo itself: explain/answer.hpp, compiled to WebAssembly. A request is an object, the answer what JSON has.

const KEPT = 64;
const NOT_SUPPORTED = 52;  // WASI's ENOSYS

async function inflate(base64) {
  const text = atob(base64);
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; ++i) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Response(stream).arrayBuffer();
}

/** What the C library would have of a system: nothing. The answers are pure functions. */
function noSystem(module) {
  const system = {};
  for (const {module: from, name} of WebAssembly.Module.imports(module)) {
    system[from] ??= {};
    system[from][name] = name === "proc_exit" ? () => { throw new Error("rondo ended"); } : () => NOT_SUPPORTED;
  }
  return system;
}

/** Loads rondo from the page and returns answer(request), which is synchronous. */
export async function loadRondo() {
  const module = await WebAssembly.compile(await inflate(document.getElementById("wasm").textContent));
  let rondo = null;
  const start = () => {
    const instance = new WebAssembly.Instance(module, noSystem(module));
    instance.exports._initialize();
    rondo = instance.exports;
  };
  start();

  /** The answer's text to a request's text. */
  function answerText(request) {
    const text = new TextEncoder().encode(request);
    const at = rondo.explain_alloc(text.length);
    new Uint8Array(rondo.memory.buffer, at, text.length).set(text);
    const result = rondo.explain_answer(at, text.length);
    const length = new DataView(rondo.memory.buffer).getUint32(result, true);
    const answer = new TextDecoder().decode(new Uint8Array(rondo.memory.buffer, result + 4, length));
    rondo.explain_free(at);
    rondo.explain_free(result);
    return answer;
  }

  const kept = new Map();
  function answer(request) {
    const text = JSON.stringify(request);
    if (kept.has(text)) return kept.get(text);
    let found;
    try {
      found = JSON.parse(answerText(text));
    } catch (error) {
      // Out of memory, most likely: begin again with an empty one.
      start();
      found = {error: "this is too large for the page"};
    }
    if (kept.size >= KEPT) kept.delete(kept.keys().next().value);
    kept.set(text, found);
    return found;
  }
  return {answer, answerText};
}
