// Elements of the page. Text is always text: nothing that comes from the network is parsed as HTML.

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" && "value" in element) element.value = value;
    else if (name === "width%") element.style.width = `${Math.min(100, Math.max(0, value))}%`;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

export const card = (title, hint, ...children) =>
  h("section", { class: "card" }, title && h("h2", {}, title), hint && h("p", { class: "hint" }, hint), children);

/** `columns`: `{ title, cell, right, class }`; `cell` makes what is in it from a row. */
export function table(columns, rows) {
  const head = columns.map((c) => h("th", { scope: "col", class: c.right ? "right" : null }, c.title));
  const body = rows.map((row) =>
    h("tr", {}, columns.map((c) => h("td", { class: [c.right && "right", c.class].filter(Boolean).join(" ") || null }, c.cell(row)))));
  return h("div", { class: "scroll", tabindex: "0" }, h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

export const bar = (share, kind) => h("span", { class: `bar ${kind ?? ""}`, "aria-hidden": "true" }, h("i", { "width%": share * 100 }));

/** The dotted name of a counter, which may go on in another line after each of its words. */
export const counterName = (name) => h("span", { class: "mono" }, name.split(/(?<=[._-])/).flatMap((word, i) => (i ? [h("wbr"), word] : [word])));

/** What to do where there is nothing. */
export const empty = (title, ...advice) => h("div", { class: "empty" }, h("strong", {}, title), advice);

/** Where the store is missing that a translator's rules for INT and flow records fill. */
export const noEvents = () =>
  empty("There is no store for events", "This collector has no store ", h("code", {}, "int-events"), ", which a translator fills from INT or flow records: ", h("code", {}, "dta-collector config --example"), " shows it.");

export const failure = (error) =>
  h("section", { class: "card failed", role: "alert" }, h("h2", {}, error.title ?? "No answer"), h("p", { class: "hint" }, error.detail ?? String(error)));

export const badge = (text, kind) => h("span", { class: `badge ${kind ?? ""}` }, text);

export function chooser(label, choices, chosen, choose) {
  const button = ([value, text]) =>
    h("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => choose(value) }, text);
  return h("div", { class: "group", role: "group", "aria-label": label }, choices.map(button));
}

/** One of several words. */
export const choice = (label, options, chosen, choose, unit) =>
  h("label", {}, label, h("select", { name: label, onchange: (event) => choose(event.target.value) }, options.map((value) => h("option", { value, selected: value === chosen }, value))), unit);

/** A field that acts when Enter is pressed or it is left. */
export function field(label, name, value, placeholder, change) {
  const input = h("input", { type: "text", name, value: value ?? "", placeholder, autocomplete: "off", spellcheck: "false" });
  input.addEventListener("change", () => change(input.value.trim()));
  return h("label", {}, label, input);
}
