// Which view is shown, with what: the address holds all of it.

import { ask } from "./ask.js";
import { h } from "./elements.js";
import { alerts } from "./view-alerts.js";
import { overview } from "./view-overview.js";
import { top } from "./view-top.js";
import { flows } from "./view-flows.js";
import { map } from "./view-map.js";
import { flow } from "./view-flow.js";
import { events } from "./view-events.js";
import { drops } from "./view-drops.js";
import { memory } from "./view-memory.js";

/** In the order of the keys 1, 2, …: a view has a `title` and mounts itself. */
const VIEWS = { overview, alerts, flows, top, map, flow, events, drops, memory };
const KEYS = `1–${Object.keys(VIEWS).length}`;
const main = document.getElementById("main");
const state = document.getElementById("state");
const moment = document.getElementById("at");
const now = document.getElementById("now");
let shown = new AbortController();

/** The address as a view and its parameters. */
export function place() {
  const [path, text] = location.hash.replace(/^#\/?/, "").split("?");
  const parameters = {};
  for (const [name, value] of new URLSearchParams(text ?? "")) {
    parameters[name] = name in parameters ? [parameters[name], value].flat() : value;
  }
  return { view: path in VIEWS ? path : "overview", parameters };
}

export function address(view, parameters) {
  const all = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of [value].flat()) if (one !== undefined && one !== null && one !== "") all.append(name, one);
  }
  const text = all.toString();
  return `#/${view}${text ? `?${text}` : ""}`;
}

function setState(kind, text) {
  state.className = `state ${kind}`;
  state.textContent = text ?? { live: "live", away: "no answer, trying again" }[kind] ?? "";
}

function show() {
  shown.abort();
  shown = new AbortController();
  const { view, parameters } = place();
  const at = parameters.at ?? "";
  const links = Object.entries(VIEWS).map(([name, { title }]) =>
    h("a", { href: address(name, at ? { at } : {}), "aria-current": name === view ? "page" : null }, title));
  document.getElementById("views").replaceChildren(...links);
  document.querySelector("nav [aria-current]").scrollIntoView({ block: "nearest", inline: "nearest" });
  document.title = `${VIEWS[view].title} – ${document.getElementById("title").textContent}`;
  moment.value = at;
  now.hidden = !at;
  setState(at ? "past" : "", at ? "another moment" : "");
  main.replaceChildren();
  main.dataset.view = view;
  VIEWS[view].mount(main, {
    parameters,
    at: at || undefined,
    signal: shown.signal,
    setState,
    /** Where a view with these parameters is, at the same moment. */
    link: (name, more) => address(name, at ? { ...more, at } : more),
    /** Changes parameters of this view. */
    change: (more) => {
      location.hash = address(view, { ...parameters, ...more });
    },
    /** Keeps parameters in the address without showing the view anew. */
    keep: (more) => {
      Object.assign(parameters, more);
      history.replaceState(null, "", address(view, parameters));
    },
  });
}

function setMoment(at) {
  const { view, parameters } = place();
  location.hash = address(view, { ...parameters, at });
}

document.getElementById("moment").addEventListener("submit", (event) => {
  event.preventDefault();
  setMoment(moment.value.trim());
});
moment.addEventListener("change", () => setMoment(moment.value.trim()));
now.addEventListener("click", () => setMoment(""));

const stored = localStorage.getItem("theme");
const dark = matchMedia("(prefers-color-scheme: dark)");
const setTheme = (theme) => (document.documentElement.dataset.theme = theme);
setTheme(stored ?? (dark.matches ? "dark" : "light"));
dark.addEventListener("change", () => localStorage.getItem("theme") ?? setTheme(dark.matches ? "dark" : "light"));
document.getElementById("theme").addEventListener("click", () => {
  const other = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("theme", other);
  setTheme(other);
});

// A number goes to a view, / to its first field.
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.matches("input, select, textarea")) return;
  const name = Object.keys(VIEWS)[Number(event.key) - 1];
  if (name) location.hash = address(name, moment.value ? { at: moment.value } : {});
  else if (event.key === "/") {
    const input = main.querySelector("input, select");
    if (input) {
      event.preventDefault();
      input.focus();
    }
  }
});

document.addEventListener("unreachable", ({ detail }) => {
  const missing = document.getElementById("missing");
  missing.hidden = !detail.length;
  missing.textContent = `${detail.join(", ")} ${detail.length === 1 ? "does" : "do"} not answer: all sums here are incomplete.`;
});
addEventListener("hashchange", show);
ask("health")
  .then((health) => {
    document.getElementById("title").textContent = `DTA · ${health.collector}`;
    document.getElementById("footer").textContent =
      `Direct Telemetry Access ${health.version} · ${health.collectors.join(", ")} · keys ${KEYS} change the view, / jumps to its first field`;
    document.title = `${VIEWS[place().view].title} – DTA · ${health.collector}`;
  })
  .catch(() => {});
show();
