// What page_test.py runs in the page to look at it: contrast, names, sizes. Each returns a list of sentences, empty where all is well.
(() => {
  const shown = (element) => element.checkVisibility({checkOpacity: true, checkVisibilityCSS: true}) && element.getClientRects().length > 0;
  const short = (element) => `${element.tagName.toLowerCase()}${element.id ? `#${element.id}` : ""}.${[...element.classList].join(".")} "${element.textContent.trim().slice(0, 40)}"`;

  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const known = new Map();  // few colours, many elements
  /** [r, g, b, a] of any colour that CSS has. */
  function rgba(colour) {
    if (!known.has(colour)) known.set(colour, drawn(colour));
    return known.get(colour);
  }
  function drawn(colour) {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  }
  function background(element) {
    for (let at = element; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] > 0.99) return colour;
    }
    return [255, 255, 255, 1];
  }
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ratio = (a, b) => {
    const [x, y] = [luminance(a), luminance(b)].sort((p, q) => q - p);
    return (x + 0.05) / (y + 0.05);
  };

  /** WCAG AA: 4.5 for text, 3 for large text; for text of a drawing on the page's background, too. */
  function contrast() {
    const bad = new Set();
    for (const element of document.querySelectorAll("body *")) {
      const text = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim() !== "");
      if (!text || ["SCRIPT", "STYLE", "OPTION", "title"].includes(element.tagName) || !shown(element)) continue;
      if (element.disabled || element.closest(".skip")) continue;
      const style = getComputedStyle(element);
      const drawn = element instanceof SVGElement;
      const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
      const found = ratio(rgba(drawn ? style.fill : style.color), background(drawn ? element.closest("svg").parentElement : element));
      if (found < (large ? 3 : 4.5)) bad.add(`${short(element)} has a contrast of ${found.toFixed(2)}`);
    }
    return [...bad];
  }

  /** What is drawn with a colour of its own, against the page: 3 for graphics. */
  function graphics() {
    const bad = new Set();
    for (const element of document.querySelectorAll("svg .line, svg .axis, svg .arrow, svg .formula, svg .mark:not(text), svg .series circle")) {
      if (!shown(element)) continue;
      const style = getComputedStyle(element);
      const found = ratio(rgba(style.stroke === "none" ? style.fill : style.stroke), background(element.closest("svg").parentElement));
      if (found < 3) bad.add(`${short(element)} of ${element.closest("figure")?.id} has a contrast of ${found.toFixed(2)}`);
    }
    return [...bad];
  }

  function structure() {
    const bad = [];
    const ids = new Set();
    for (const element of document.querySelectorAll("[id]")) {
      if (ids.has(element.id)) bad.push(`the id ${element.id} is there twice`);
      ids.add(element.id);
    }
    for (const element of document.querySelectorAll("[aria-labelledby], [for]")) {
      for (const id of (element.getAttribute("aria-labelledby") ?? element.getAttribute("for")).split(" ")) {
        if (!document.getElementById(id)) bad.push(`${short(element)} refers to ${id}, which is not there`);
      }
    }
    let level = 0;
    for (const heading of document.querySelectorAll("h1, h2, h3, h4")) {
      const now = Number(heading.tagName[1]);
      if (now > level + 1) bad.push(`${short(heading)} follows a heading of level ${level}`);
      level = now;
    }
    if (document.querySelectorAll("h1").length !== 1) bad.push("there is not one h1");
    for (const drawing of document.querySelectorAll("figure .drawing > svg")) {
      if (drawing.getAttribute("role") !== "img" || !(drawing.getAttribute("aria-label")?.length > 10)) bad.push(`the drawing of ${drawing.closest("figure").id} is not described`);
    }
    for (const table of document.querySelectorAll("table")) {
      if (!table.querySelector("th[scope=col]")) bad.push(`${short(table)} has no heads`);
    }
    return bad;
  }

  /** Nothing wider than the window, but what scrolls by itself. */
  function width() {
    const bad = [];
    const most = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth > most) bad.push(`the page is ${document.documentElement.scrollWidth} wide, the window ${most}`);
    for (const element of document.querySelectorAll("main *")) {
      if (!shown(element) || element.closest(".scroll") || element.closest("svg")) continue;
      const box = element.getBoundingClientRect();
      if (box.right > most + 1) bad.push(`${short(element)} ends at ${Math.round(box.right)} of ${most}`);
    }
    return bad;
  }

  /** Text of drawings inside the drawing. */
  function drawings() {
    const bad = new Set();
    for (const drawing of document.querySelectorAll("figure .drawing > svg")) {
      if (!shown(drawing)) continue;
      const frame = drawing.getBoundingClientRect();
      for (const text of drawing.querySelectorAll("text")) {
        const box = text.getBoundingClientRect();
        if (box.width > 0 && (box.left < frame.left - 1.5 || box.right > frame.right + 1.5 || box.top < frame.top - 2 || box.bottom > frame.bottom + 2)) {
          bad.add(`"${text.textContent}" leaves the drawing of ${drawing.closest("figure").id}`);
        }
      }
    }
    return [...bad];
  }

  /** Words of a drawing on other words of it; labels of arrows on ranks or on each other. */
  function overlaps() {
    const bad = new Set();
    for (const drawing of document.querySelectorAll("figure .drawing > svg")) {
      if (!shown(drawing)) continue;
      const own = [...drawing.querySelectorAll(".pill-back, circle.rank")];
      const words = [...drawing.querySelectorAll("text")].filter((t) => !t.closest(".pill") && !t.classList.contains("rank-name"));
      const boxes = [...own, ...words].map((e) => [e, e.getBoundingClientRect()]).filter(([, box]) => box.width > 0);
      boxes.forEach(([a, p], i) => boxes.slice(i + 1).forEach(([b, q]) => {
        const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left), high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
        if (wide > 2 && high > 4) bad.add(`"${a.parentElement.textContent.slice(0, 20)}" and "${b.textContent || b.parentElement.textContent}" overlap in the drawing of ${drawing.closest("figure").id}`);
      }));
    }
    return [...bad].slice(0, 5);
  }

  /** Tables that a wide window has no room for. */
  const scrolled = () => [...document.querySelectorAll(".scroll")].filter((e) => shown(e) && e.scrollWidth > e.clientWidth).map((e) => `${short(e)} must be scrolled`);

  /** Targets for a finger: 24 pixels at least (WCAG 2.2, AA), but links in a text. */
  function targets() {
    return [...document.querySelectorAll("button, select, input, #chapters a")].filter(shown).filter((e) => e.getBoundingClientRect().height < 23.5 && e.type !== "checkbox" && e.type !== "file")
      .map((e) => `${short(e)} is ${e.getBoundingClientRect().height.toFixed(0)} high`);
  }

  globalThis.checks = {contrast, graphics, structure, width, drawings, overlaps, scrolled, targets};
})();
