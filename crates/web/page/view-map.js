// The network as the paths of recent flows connect it.

import { repeat, ask } from "./ask.js";
import { networkMap } from "./charts.js";
import { bar, card, choice, empty, failure, field, h, table } from "./elements.js";
import { age, bytes, count, exact } from "./format.js";

const LINKS = 20;
const FLOWS = "flows";
const BYTES = "bytes of these flows";

export const map = {
  title: "Map",
  mount(root, context) {
    const { around, number = "100", flows = "2000" } = context.parameters;
    const picture = h("div", { id: "network" }, h("p", { class: "hint" }, "Reading paths …"));
    const links = h("div", { id: "links" });
    const hint = h("p", { class: "hint" });
    root.append(
      card("The network", null, context.at && h("p", { class: "hint" }, "The map always shows the present, whatever moment is chosen."),
        h("div", { class: "filters" },
          field("around", "around", around, "leaf1, switch:6 or 10.0.0.1", (value) => context.change({ around: value })),
          around && h("button", { type: "button", onclick: () => context.change({ around: undefined }) }, "Show all"),
          choice("busiest", ["50", "100", "200", "500"], number, (value) => context.change({ number: value })),
          choice("by the last", ["500", "2000", "10000"], flows, (value) => context.change({ flows: value }), "flows")),
        hint, picture),
      links);
    let found = null;
    let drawn = "";
    const draw = () => {
      if (!found?.nodes.length || !picture.clientWidth) return;
      const state = JSON.stringify([picture.clientWidth, found.nodes, found.links]);
      if (state === drawn) return;
      drawn = state;
      const use = findUse(found.links);
      picture.replaceChildren(networkMap(found, use, around, (id) => context.link("map", { ...context.parameters, around: id }), picture.clientWidth), legend(use));
      links.replaceChildren(card("The busiest links", null, linkTable(found, use, context)));
    };
    const show = (answer, error) => {
      if (error) {
        drawn = "";
        return picture.replaceChildren(failure(error));
      }
      found = answer;
      hint.textContent = describe(answer);
      if (answer.nodes.length) return draw();
      drawn = "";
      links.replaceChildren();
      picture.replaceChildren(around
        ? empty("Nothing on the map has that name", "Give the id of a node, or a part of its name or address.")
        : empty("No path is known", "The map is made of the paths that INT, flow records or postcards report."));
    };
    const resized = new ResizeObserver(draw);
    resized.observe(picture);
    context.signal.addEventListener("abort", () => resized.disconnect());
    return repeat(() => ask("map", { around, number, flows }, context.signal), 10000, show, context.signal);
  },
};

function describe(answer) {
  const part = answer.nodes.length < answer.node_count ? ` ${exact(answer.nodes.length)} of ${exact(answer.node_count)} nodes are shown.` : "";
  const missed = answer.missed_batches > 0 ? ` ${exact(answer.missed_batches)} batches of events could not be read: drops and ports in them are missing.` : "";
  const paths = answer.flows > 0 ? `By the paths of ${exact(answer.with_path)} of the ${exact(answer.flows)} flows that were reported last (${answer.keys}).` : "";
  const recorded = answer.recorded > 0 ? ` ${exact(answer.recorded)} flows are in records of exporters: the order in which they pass several is unknown.` : "";
  return `${paths}${recorded}${part}${missed}`.trim();
}

/** What links are coloured by: the first of these that some link has. */
function findUse(links) {
  const kinds = [["utilization", "utilization, as switches report it", count], ["bytes", BYTES, bytes], ["flows", FLOWS, exact]];
  const [name, title, words] = kinds.find(([kind]) => links.some((link) => link[kind])) ?? kinds[2];
  const most = Math.max(1, ...links.map((link) => link[name] ?? 0));
  return { title, of: (link) => (link[name] ?? 0) / most, words: (link) => (link[name] === null ? "–" : words(link[name])) };
}

const MARKS = { switch: "switch", exporter: "exporter", host: "host", dropping: "drops packets" };

const legend = (use) => h("p", { class: "legend" }, "least", h("i"), `most: ${use.title}`,
  Object.entries(MARKS).map(([kind, title]) => h("span", { class: "nowrap" }, h("b", { class: `dot ${kind}` }), ` ${title}`)));

function linkTable({ nodes, links }, use, context) {
  const named = new Map(nodes.map((node) => [node.id, node.name ?? node.id]));
  const node = (id) => h("a", { href: context.link("map", { ...context.parameters, around: id }) }, named.get(id));
  const has = (test) => links.some(test);
  return table([
    { title: "from", cell: (link) => node(link.from) },
    has((link) => link.ports.length) && { title: "by port", cell: (link) => link.ports.join(", ") || "–" },
    { title: "to", cell: (link) => node(link.to) },
    use.title !== FLOWS && { title: "flows", right: true, cell: (link) => exact(link.flows) },
    use.title !== BYTES && has((link) => link.bytes !== null) && { title: "bytes", right: true, cell: (link) => bytes(link.bytes), class: "nowrap" },
    { title: "use", cell: (link) => [bar(use.of(link)), use.words(link)], class: "nowrap" },
    has((link) => link.utilization_age_seconds !== null) && { title: "reported", cell: (link) => age(link.utilization_age_seconds), class: "faint nowrap" },
    { title: "drops", right: true, cell: (link) => (link.drops ? h("span", { class: "loss" }, exact(link.drops)) : "0") },
  ].filter(Boolean), [...links].sort((a, b) => use.of(b) - use.of(a)).slice(0, LINKS));
}
