// What the reader has set, as fields of a chapter: each reads its own text from the URL's fragment, and makes something
// harmless of anything else. #ring?ranks=8&step=3 is chapter `ring` with two fields that are not at their defaults.

/** A whole number. */
export function whole(least, most, usual) {
  return number(least, most, usual, Math.round);
}

export function number(least, most, usual, rounded = (x) => x) {
  return {
    usual,
    read(text) {
      const value = Number(text);
      return text.trim() !== "" && Number.isFinite(value) ? rounded(Math.min(most, Math.max(least, value))) : usual;
    },
  };
}

/** One of some words, which the field lists. */
export function word(words, usual) {
  return {
    usual,
    words,
    read(text) {
      return words.includes(text) ? text : usual;
    },
  };
}

/** Yes or no. */
export function flag(usual = false) {
  return {usual, read: (text) => (text === "1" ? true : text === "0" ? false : usual)};
}

/** A short text of letters, digits, spaces and . , : - _ ( ) / */
export function short(usual = "", most = 200) {
  return {usual, read: (text) => (text.length <= most && /^[\w .,:()/-]*$/.test(text) ? text : usual)};
}

/** The state of `fields` that a fragment's parameters describe. */
export function readState(fields, parameters) {
  const state = {};
  for (const [name, field] of Object.entries(fields)) {
    const text = parameters.get(name);
    state[name] = text === null ? field.usual : field.read(text);
  }
  return state;
}

/** The fragment for a chapter and its state. */
export function fragmentOf(id, fields, state) {
  const parameters = new URLSearchParams();
  for (const [name, field] of Object.entries(fields)) {
    const value = state[name];
    if (value !== field.usual) parameters.set(name, value === true ? "1" : value === false ? "0" : String(value));
  }
  const text = parameters.toString();
  return `#${id}${text ? `?${text}` : ""}`;
}

/** {id, parameters} of a fragment. */
export function splitFragment(fragment) {
  const [id, ...rest] = fragment.replace(/^#/, "").split("?");
  return {id, parameters: new URLSearchParams(rest.join("?"))};
}
