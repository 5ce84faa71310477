// The flows with most.

import { poll, storeNames } from "./ask.js";
import { bar, card, choice, chooser, empty, failure, field, h, table } from "./elements.js";
import { age, bytes, clock, count, exact, nanoseconds } from "./format.js";

const RANKINGS = [["latency", "Latency"], ["drops", "Drops"], ["packets", "Packets"], ["bytes", "Bytes"], ["reports", "Reports"]];
const figure = { latency: nanoseconds, bytes };

export const top = {
  title: "Top",
  async mount(root, context) {
    const { prefix, number = "20", store, keys } = context.parameters;
    const by = context.parameters.by ?? (await usualRanking());
    if (context.signal.aborted) return;
    const list = h("div", { id: "top" }, h("p", { class: "hint" }, "Ranking flows …"));
    root.append(card("The top flows", null,
      h("div", { class: "filters" },
        chooser("Ranked by", RANKINGS, by, (value) => context.change({ by: value })),
        field("ends in", "prefix", prefix, "10.0.0.0/8", (value) => context.change({ prefix: value })),
        choice("show", ["10", "20", "50", "100"], number, (value) => context.change({ number: value }))),
      list));
    const show = (ranking, error) => {
      if (!error) return list.replaceChildren(...rankingTable(ranking, by, context));
      list.replaceChildren(failure(error));
    };
    poll("top", { by, prefix, number, store, keys, at: context.at }, context.at ? 0 : 3000, show, context.signal);
  },
};

/** By latency with INT; else by the first ranking that a store has the name of. */
async function usualRanking() {
  const names = await storeNames().catch(() => ["int-values"]);
  return names.includes("int-values") ? "latency" : (["bytes", "packets", "drops", "reports"].find((name) => names.includes(name)) ?? "latency");
}

function rankingTable(ranking, by, context) {
  if (!ranking.flows.length) {
    const others = ranking.others.map((name) => h("a", { href: context.link("top", { ...context.parameters, by: name }) }, name));
    return [empty("No flow has this figure", others.length ? ["There are some by ", others.flatMap((link, i) => (i ? [", ", link] : [link])), "."] : `${exact(ranking.known)} flows are known in ${ranking.keys}.`)];
  }
  const most = Math.max(...ranking.flows.map((flow) => flow.value), 1);
  const words = figure[by] ?? exact;
  const network = (row) => [row.source_network, row.destination_network].filter(Boolean).join(" → ");
  const has = (test) => ranking.flows.some(test);
  const columns = [
    { title: "", right: true, cell: (row) => ranking.flows.indexOf(row) + 1, class: "faint" },
    { title: "flow", cell: (row) => (row.flow ? h("a", { class: "mono", href: context.link("flow", { flow: row.flow }) }, row.flow) : h("span", { class: "mono faint" }, `key ${row.key}`)) },
    { title: by, right: true, cell: (row) => h("span", { title: exact(row.value) }, words(row.value)), class: "nowrap" },
    { title: "", cell: (row) => bar(row.value / most, by === "drops" ? "loss-bar" : "") },
  ];
  if (has((row) => row.age_seconds !== null)) columns.push({ title: "reported", cell: (row) => age(row.age_seconds), class: "faint nowrap" });
  if (has(network)) columns.push({ title: "networks", cell: network });
  const more = ranking.with_figure - ranking.flows.length;
  const notes = [
    `${count(ranking.known)} flows are known from ${ranking.keys}; figures are from ${ranking.store}.`,
    more > 0 && `${exact(more)} more have a figure.`,
    ranking.epoch && `Of the epoch that began at ${clock(ranking.epoch.opened)}.`,
    ranking.missed.overwritten > 0 && `${exact(ranking.missed.overwritten)} batches of keys were overwritten before they were read: their flows may be missing.`,
    ranking.forgotten > 0 && `${exact(ranking.forgotten)} keys were forgotten for lack of room.`,
  ];
  return [table(columns, ranking.flows), h("p", { class: "hint" }, notes.filter(Boolean).join(" "))];
}
