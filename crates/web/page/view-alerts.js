// What alert rules found, with the evidence.

import { poll } from "./ask.js";
import { badge, card, empty, failure, h, table } from "./elements.js";
import { clock, exact } from "./format.js";

const COLOURS = { critical: "loss", warning: "wait", info: "hop" };

export const alerts = {
  title: "Alerts",
  mount(root, context) {
    const current = h("div", { id: "alerts" }, h("p", { class: "hint" }, "Asking for alerts …"));
    const past = h("div", { id: "transitions" });
    root.append(
      card("What is wrong in the network", "Rules that are evaluated on flow records and events as they come: docs/alerts.md.", current),
      card("Timeline", "Alerts that fired and were resolved, the latest first.", past));
    let drawn = "";
    const show = (document, error) => {
      if (error) {
        drawn = "";
        return current.replaceChildren(failure(error));
      }
      // What has not changed stays, so that it can be selected.
      if (JSON.stringify(document) === drawn) return;
      drawn = JSON.stringify(document);
      current.replaceChildren(alertList(document));
      past.replaceChildren(timeline(document.transitions));
    };
    poll("alerts", {}, 3000, show, context.signal);
  },
};

function alertList({ rules, alerts: all }) {
  if (!rules) return empty("No rule is evaluated", "The default set is on unless ", h("code", {}, "defaults = false"), " in [alerts] of the collector's configuration.");
  if (!all.length) return empty("Nothing is wrong", `${exact(rules)} rules are evaluated, and none of them found anything.`);
  return h("ul", { class: "alerts" }, all.map(alertItem));
}

function alertItem(alert) {
  const moments = alert.resolved_at
    ? `${clock(alert.fired_at ?? alert.since)} to ${clock(alert.resolved_at)}`
    : `since ${clock(alert.since)}`;
  return h("li", { class: alert.state },
    h("div", {},
      badge(alert.state, alert.state === "firing" ? COLOURS[alert.severity] : null), " ",
      h("strong", {}, alert.rule), " ", h("span", { class: "faint" }, `${alert.severity}, ${moments} (UTC)`)),
    h("p", {}, alert.text),
    alert.rows.length > 0 && h("ul", { class: "rows mono" }, alert.rows.map((row) => h("li", {}, row))),
    alert.notes.map((note) => h("p", { class: "hint" }, note)),
    h("p", { class: "hint" },
      alert.page && h("a", { href: alert.page }, "Show the rows"),
      alert.runbook && [" · ", /^https?:/.test(alert.runbook) ? h("a", { href: alert.runbook, rel: "noreferrer" }, "What to do") : alert.runbook]),
    alert.command && h("code", { class: "command" }, alert.command));
}

function timeline(transitions) {
  if (!transitions.length) return empty("No alert has fired", "Those that fire are listed here when they are resolved, too.");
  return table([
    { title: "time (UTC)", cell: (t) => clock(t.at), class: "nowrap" },
    { title: "", cell: (t) => badge(t.alert?.state ?? "?", t.alert?.state === "firing" ? COLOURS[t.alert.severity] : null) },
    { title: "rule", cell: (t) => t.alert?.rule ?? "–", class: "nowrap" },
    { title: "what", cell: (t) => t.alert?.text ?? "–" },
    { title: "", cell: (t) => t.alert?.page && h("a", { href: t.alert.page }, "rows") },
  ], [...transitions].reverse());
}
