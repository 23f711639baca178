// The frame: loads rondo, shows the chapter that the fragment names, and keeps fragment and state alike.
import {chapters} from "./chapters/index.js";
import {el} from "./lib/dom.js";
import {fragmentOf, readState, splitFragment} from "./lib/state.js";
import {loadRondo} from "./lib/wasm.js";

const content = document.getElementById("content");

function themeButton() {
  const root = document.documentElement;
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  const button = el("button", {type: "button", class: "theme", on: {click: () => {
    root.dataset.theme = dark() ? "light" : "dark";
    show();
    document.dispatchEvent(new Event("rondo-redraw"));
  }}});
  const show = () => {
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", dark() ? "Use light colours" : "Use dark colours");
  };
  show();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    show();
    document.dispatchEvent(new Event("rondo-redraw"));
  });
  return button;
}

/** What a chapter gets: its state, how to change it, and rondo. */
class Context {
  constructor(chapter, rondo, about, parameters) {
    Object.assign(this, {chapter, about, answer: rondo.answer, answerText: rondo.answerText, listeners: [], unsent: ""});
    this.state = readState(chapter.fields, parameters);
  }

  fragment() {
    return fragmentOf(this.chapter.id, this.chapter.fields, this.state);
  }

  /** Calls `listener(state)` now and after each change. Listeners are called in the order in which they came. */
  onState(listener) {
    this.listeners.push(listener);
    if (this.ready) listener(this.state);
  }

  set(change) {
    this.state = {...this.state, ...change};
    history.replaceState(null, "", this.fragment());
    this.tell();
  }

  tell() {
    for (const listener of this.listeners) listener(this.state);
  }
}

function navigate(current) {
  document.getElementById("chapters").replaceChildren(...chapters.map((chapter, i) =>
    el("li", {}, el("a", {href: `#${chapter.id}`, "aria-current": chapter.id === current ? "page" : null}, `${i + 1}. ${chapter.title}`))));
}

function turnPages(index) {
  const link = (i, text) => (chapters[i] ? el("a", {href: `#${chapters[i].id}`}, text(chapters[i])) : el("span"));
  return el("nav", {class: "turn", "aria-label": "Other chapters"},
    link(index - 1, (c) => `← ${index}. ${c.title}`), link(index + 1, (c) => `${index + 2}. ${c.title} →`));
}

/** The link to what the chapter shows, and what of it no link can carry. */
function linkPlace(context) {
  const link = el("code", {id: "link"}), said = el("p", {class: "hint", role: "status"});
  const address = () => `${location.href.replace(/#.*/, "")}${context.fragment()}`;
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(address());
      said.textContent = location.protocol === "file:" ? "Copied. On another machine, put what begins with # after the address of the page there." : "Copied.";
    } catch {
      getSelection().selectAllChildren(link);
      said.textContent = "The browser allows no copying: the link is selected.";
    }
  };
  const unsent = el("p", {class: "unsent"});
  context.onState(() => {
    link.textContent = context.fragment();
    unsent.textContent = context.unsent;
    unsent.hidden = context.unsent === "";
    said.textContent = "";
  });
  return el("section", {class: "link", "aria-label": "Link to this picture"},
    el("div", {class: "row"}, "This picture as a link: ", link, el("button", {type: "button", class: "save", on: {click: copy}}, "Copy the link")), unsent, said);
}

function start(rondo) {
  const about = rondo.answer({question: "about"});
  let context = null;
  const show = () => {
    const {id, parameters} = splitFragment(location.hash);
    const index = Math.max(0, chapters.findIndex((c) => c.id === id));
    const chapter = chapters[index];
    if (context && context.chapter === chapter) {
      const state = readState(chapter.fields, parameters);
      if (JSON.stringify(state) === JSON.stringify(context.state)) return;
      context.state = state;
      context.tell();
      return;
    }
    navigate(chapter.id);
    document.title = `${chapter.title}: rondo explained`;
    const turned = context !== null;
    context?.chapter.leave?.();
    context = new Context(chapter, rondo, about, parameters);
    const root = el("article", {id: `chapter-${chapter.id}`});
    content.replaceChildren(el("h1", {}, `${index + 1}. ${chapter.title}`), el("p", {class: "lead"}, chapter.lead), root);
    chapter.render(root, context);
    content.append(linkPlace(context), turnPages(index));
    context.ready = true;
    context.tell();
    if (turned) {
      content.focus({preventScroll: true});
      scrollTo(0, 0);
    }
    document.documentElement.dataset.shown = chapter.id;
    requestAnimationFrame(() => performance.mark("shown"));
  };
  addEventListener("hashchange", show);
  document.addEventListener("rondo-redraw", () => context.tell());
  show();
  globalThis.rondo = {answer: rondo.answer, answerText: rondo.answerText};
}

document.getElementById("theme").append(themeButton());
loadRondo().then(start, (error) => {
  content.replaceChildren(el("p", {role: "alert"},
    `The page cannot run rondo in this browser: ${error.message}. It needs WebAssembly and DecompressionStream, which every browser since 2023 has.`));
});
