// Dropped packets, by place and reason.

import { poll, storeNames } from "./ask.js";
import { bar, card, empty, failure, field, h, noEvents, table } from "./elements.js";
import { clock, exact, named, percent } from "./format.js";

export const drops = {
  title: "Drops",
  async mount(root, context) {
    const { prefix, flow, switch: at_switch } = context.parameters;
    const list = h("div", { id: "drops" }, h("p", { class: "hint" }, "Counting drops …"));
    root.append(card("Dropped packets", "Counted from events in the rings or, for another moment, in its epoch.",
      h("div", { class: "filters" },
        field("ends in", "prefix", prefix, "10.0.0.0/8", (value) => context.change({ prefix: value })),
        field("switch", "switch", at_switch, "leaf1 or 1", (value) => context.change({ switch: value }))),
      list));
    const show = (summary, error) => list.replaceChildren(...(error ? [failure(error)] : dropTable(summary, context)));
    if (!(await storeNames().catch(() => ["int-events"])).includes("int-events")) return list.replaceChildren(noEvents());
    poll("drops", { prefix, flow, switch: at_switch, at: context.at }, context.at ? 0 : 3000, show, context.signal);
  },
};

function dropTable(summary, context) {
  const missed = summary.missed_batches > 0 && h("p", { class: "hint" }, `${exact(summary.missed_batches)} batches of drops could not be read: they are not counted.`);
  if (!summary.events) return [empty("No drop is known", "Switches report drops with INT (drop reports) or flow records."), missed].filter(Boolean);
  const most = summary.places[0].events;
  return [
    table([
      { title: "reason", cell: (p) => h("span", { class: "loss" }, p.reason_name ?? `reason ${p.reason ?? "?"}`) },
      { title: "switch", cell: (p) => named(p.switch, p.switch_name) },
      { title: "out of port", cell: (p) => named(p.port, p.port_name) },
      { title: "drops", right: true, cell: (p) => exact(p.events) },
      { title: "", cell: (p) => [bar(p.events / most, "loss-bar"), percent(p.events / summary.events)], class: "nowrap" },
      { title: "flows", right: true, cell: (p) => exact(p.flows) },
      { title: "for instance", cell: (p) => (p.example ? h("a", { class: "mono", href: context.link("flow", { flow: p.example }) }, p.example) : "–") },
      { title: "last (UTC)", cell: (p) => clock(p.last), class: "nowrap" },
    ], summary.places),
    h("p", { class: "hint" }, `${exact(summary.events)} drops${summary.first ? ` since ${clock(summary.first)}` : ""}.`),
    missed,
  ].filter(Boolean);
}
