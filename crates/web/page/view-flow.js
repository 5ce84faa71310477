// All that is known of a flow, drawn as its path.

import { ask, storeNames } from "./ask.js";
import { timeLine } from "./charts.js";
import { badge, bar, card, choice, empty, failure, field, h, table } from "./elements.js";
import { age, bits, bytes, clock, count, exact, nanoseconds, named, rate } from "./format.js";
import { SPANS, bucketLength, momentInSeconds } from "./periods.js";

const perSecond = (value) => rate(value);
const bitsPerSecond = (value) => bits(value * 8);

export const flow = {
  title: "A flow",
  async mount(root, context) {
    const wanted = context.parameters.flow;
    const answer = h("div", { id: "flow" });
    root.append(card("A flow", null, h("div", { class: "filters" },
      field("Flow", "flow", wanted, "10.0.0.1:5000->10.0.0.2:5000/udp", (value) => context.change({ flow: value })))), answer);
    if (!wanted) {
      answer.replaceChildren(card(null, null, empty("Which flow?", "Type one above, or choose one of the ", h("a", { href: context.link("top", {}) }, "top flows"), ".")));
      return;
    }
    answer.replaceChildren(h("p", { class: "hint" }, "Reading what is known about it …"));
    try {
      const [summary] = await ask("flow", { flow: wanted, at: context.at }, context.signal);
      answer.replaceChildren(...parts(summary, context));
      showHistory(answer, wanted, summary, context);
      if (!context.at) showTrace(answer, wanted, context);
    } catch (error) {
      if (!context.signal.aborted) answer.replaceChildren(failure(error));
    }
  },
};

const ends = (text) => text.replace(/\/[a-z0-9]+$/, "").split("->");

function parts(summary, context) {
  const nothing = !summary.found && card(null, null, empty("Nothing is known about this flow", "Has it been reported? The sentences below say what was asked."));
  const path = summary.hops.length > 0 && card("Its path", pathHint(summary), copiesBadge(summary.path), drawPath(summary, context));
  const others = summary.others.length > 0 && card("Other switches that reported it", "They are not on the path above.", h("div", { class: "path" }, summary.others.map((hop) => hopBox(hop, {}))));
  const list = factList(summary);
  const facts = list.childElementCount > 0 && card("Figures", null, list);
  const drops = summary.drops.length > 0 && card("Drops", null, table([
    { title: "reason", cell: (d) => d.reason_name ?? `reason ${d.reason}` },
    { title: "packets", right: true, cell: (d) => exact(d.counted) },
    { title: "at switch", cell: (d) => d.switches.join(", ") || "–" },
    { title: "last", cell: (d) => age(d.age_seconds) },
  ], summary.drops));
  const answers = summary.stores.filter((s) => s.path || s.counted !== null || s.value !== null);
  const stores = answers.length > 0 && card("In the stores of reports", null, table([
    { title: "store", cell: (s) => h("a", { href: context.link("memory", { store: s.store }) }, s.store) },
    { title: "holds", cell: (s) => (s.path ? s.path.map((hop) => hop ?? "?").join(" → ") : s.value !== null ? h("span", { class: "mono" }, s.value) : exact(s.counted)) },
  ], answers));
  const unknown = summary.unknown.length > 0 && card("What is not known", null, h("ul", { class: "sentences" }, summary.unknown.map((sentence) => h("li", {}, sentence))));
  const pair = [facts, drops, stores].filter(Boolean);
  return [nothing, path, others, pair.length > 0 && h("div", { class: "columns" }, pair), unknown].filter(Boolean);
}

function pathHint(summary) {
  const { path, at } = summary;
  if (!path) return "Switches that reported the flow; their order is not known.";
  const sure = path.complete ? "Every hop is known" : `${summary.hops.filter((hop) => hop.switch !== null).length} of ${path.length ?? "?"} hops are known`;
  return `${sure}${path.looped ? "; it passes a switch twice" : ""}. Reported ${age(path.age_seconds) || "at an unknown time"}${at ? `, as of ${clock(at)}` : ""}, from ${path.store}.`;
}

/** How many copies in memory hold the path: one alone may be of another flow, with a chance of one in 2³². */
function copiesBadge(path) {
  if (!path) return null;
  const isSure = path.agreeing > 1 || path.copies === 1;
  return h("p", { class: "hint" }, badge(`${path.agreeing} of ${path.copies} copies agree`, isSure ? "hop" : "wait"));
}

function drawPath(summary, context) {
  const [source, destination] = ends(summary.flow);
  const slowest = Math.max(0, ...summary.hops.map((hop) => hop.latency?.value ?? 0));
  const drops = (hop) => summary.drops.filter((drop) => drop.switches.includes(hop.switch));
  const end = (text, network) => h("div", { class: "end" }, h("b", { class: "mono" }, text), network && h("span", { class: "faint" }, network));
  const boxes = summary.hops.flatMap((hop) => [
    h("div", { class: `wire${hop.switch === null ? " unknown" : ""}` }),
    hopBox(hop, { slowest, drops: drops(hop) }),
  ]);
  return h("div", { class: "path" }, end(source, summary.source_network), boxes, h("div", { class: "wire" }), end(destination, summary.destination_network));
}

function hopBox(hop, { slowest = 0, drops = [] }) {
  const facts = [];
  const fact = (name, value, title) => value !== null && value !== undefined && facts.push(h("dt", {}, name), h("dd", { title }, value));
  const measured = (m, words) => m && words(m.value);
  if (hop.latency) fact("latency", [nanoseconds(hop.latency.value), " ", h("span", { class: "faint" }, age(hop.latency.age_seconds))]);
  if (hop.port !== null || hop.port_name) fact("out of port", named(hop.port, hop.port_name));
  fact("link use", measured(hop.utilization, count));
  for (const queue of hop.queues ?? []) {
    const words = [queue.occupancy && `${count(queue.occupancy.value)} deep`, queue.congestion && `congestion ${count(queue.congestion.value)}`].filter(Boolean).join(", ");
    if (words) fact(`queue ${queue.queue ?? "?"}`, words);
  }
  for (const [name, n] of Object.entries(hop.counters ?? {})) fact(name, count(n));
  for (const drop of drops) fact("drops", h("span", { class: "loss" }, `${drop.counted === null ? "" : exact(drop.counted)} ${drop.reason_name ?? `reason ${drop.reason}`}`));
  const value = hop.latency?.value ?? 0;
  const kinds = ["hop-box", value > 0 && value === slowest && "slowest", drops.length > 0 && "dropping", hop.switch === null && "unknown"];
  return h("div", { class: kinds.filter(Boolean).join(" "), "data-switch": hop.switch },
    h("h3", {}, hop.switch === null ? "unknown switch" : named(hop.switch, hop.switch_name), hop.switch_name && h("span", { class: "faint" }, ` ${hop.switch}`)),
    slowest > 0 && bar(value / slowest),
    h("dl", {}, facts));
}

function factList(summary) {
  const facts = [];
  const fact = (name, value) => value !== null && value !== undefined && facts.push(h("dt", {}, name), h("dd", {}, value));
  fact("latency of all hops", summary.latency && [nanoseconds(summary.latency.value), " ", h("span", { class: "faint" }, age(summary.latency.age_seconds))]);
  fact("reports", summary.reports !== null ? exact(summary.reports) : null);
  fact("packets", summary.packets !== null ? exact(summary.packets) : null);
  fact("bytes", summary.bytes !== null ? bytes(summary.bytes) : null);
  for (const seen of summary.exporters) fact(`seen by ${seen.exporter_name ?? seen.exporter}`, `${bytes(seen.bytes)}, ${count(seen.packets)} packets, ${exact(seen.records)} records`);
  fact("congested packets", summary.congested && `${exact(summary.congested.packets)}, the last at switch ${summary.congested.switch ?? "?"} ${age(summary.congested.age_seconds)}`);
  return h("dl", { class: "facts" }, facts);
}

const HISTORY = { latency: ["Latency", nanoseconds], reports: ["Reports", perSecond], packets: ["Packets", perSecond], bytes: ["Bytes", bitsPerSecond], count: ["Count", perSecond], value: ["Value", count] };

/** What epochs held of it, and its flow records over time. */
async function showHistory(answer, wanted, summary, context) {
  const place = h("div", { id: "history" }, h("p", { class: "hint" }, "Reading its history …"));
  const { span = "1h" } = context.parameters;
  answer.append(card("Its history", "By the epochs of stores, and by flow records. Counts are rates, each over its epoch.",
    h("div", { class: "filters" }, choice("of the last", Object.keys(SPANS), span, (value) => context.change({ span: value }))), place));
  const until = context.at ? momentInSeconds(context.at) : Date.now() / 1000;
  const from = until - (SPANS[span] ?? SPANS["1h"]);
  try {
    const history = await ask("flow/history", { flow: wanted, since: from.toFixed(3), until: context.at && until.toFixed(3) }, context.signal);
    const lines = history.series.map(({ figure, store, points }) => {
      const isCount = ["reports", "packets", "bytes", "count"].includes(figure);
      const line = points.map((point) => {
        const [begin, end] = [point.from / 1000, (point.to ?? until * 1000) / 1000];
        const value = point.value === null ? null : isCount ? point.value / Math.max(1, end - begin) : point.value;
        const doubt = point.copies !== null && point.value !== null && ` (${point.agreeing} of ${point.copies} copies agree)`;
        return { from: Math.max(from, begin), to: Math.min(until, end), value, note: doubt || "", isUnsure: point.copies > 1 && point.agreeing < 2 };
      });
      return { title: `${HISTORY[figure][0]} (${store})`, words: HISTORY[figure][1], points: line };
    });
    if (summary.exporters.length) lines.push(await recordLine(summary.flow, from, until, context));
    const draw = () => {
      if (!place.clientWidth) return;
      place.replaceChildren(h("div", {}, lines.map((line) => [h("h3", {}, line.title), timeLine(line, from, until, place.clientWidth)]),
        lines.some((line) => line.points.some((point) => point.isUnsure)) && h("p", { class: "hint" }, "Hollow: only one copy holds it."),
        h("ul", { class: "sentences" }, history.unknown.map((sentence) => h("li", {}, sentence)))));
    };
    if (!lines.length) place.replaceChildren(empty("Nothing is kept of it", history.unknown.join(" ") || "No epoch of this time holds it."));
    else {
      const resized = new ResizeObserver(draw);
      resized.observe(place);
      context.signal.addEventListener("abort", () => resized.disconnect());
      draw();
    }
  } catch (error) {
    if (!context.signal.aborted) place.replaceChildren(failure(error));
  }
}

async function recordLine(flow, from, until, context) {
  const [, src, sport, dst, dport, protocol] = /^\[?(.*?)\]?:(\d+)->\[?(.*?)\]?:(\d+)\/(\w+)$/.exec(flow);
  const per = bucketLength(until - from);
  const where = `src = ${src} and dst = ${dst} and src-port = ${sport} and dst-port = ${dport} and protocol = ${protocol}`;
  const found = await ask("flows", { where, group: "total", per: `${per}s`, since: from.toFixed(3), until: until.toFixed(3) }, context.signal);
  const points = (found.groups[0]?.series ?? []).map((bucket) => ({ from: bucket.start / 1e9, to: bucket.start / 1e9 + per, value: (bucket.bytes * 8) / per, note: "" }));
  return { title: "Bytes (flow records)", words: bits, points };
}

/** Its trace through hosts, where hosts trace: from point to point, as long as each took. */
async function showTrace(answer, wanted, context) {
  const names = await storeNames().catch(() => []);
  if (!names.includes("trace-events")) return;
  const [trace] = await ask("trace", { flow: wanted }, context.signal).catch(() => [null]);
  if (!trace?.found || context.signal.aborted) return;
  const point = (hop) => {
    const found = trace.points.find((one) => one.hop === hop);
    return [found?.host_name ?? (found?.host != null ? `host ${found.host}` : null), found?.name ?? `point ${hop}`].filter(Boolean).join(": ");
  };
  const longest = Math.max(1, ...trace.segments.map((segment) => segment.times?.median ?? 0));
  const signed = (ns) => (ns < 0 ? `-${nanoseconds(-ns)}` : nanoseconds(ns));
  const columns = [
    { title: "from", cell: (s) => point(s.from) },
    { title: "to", cell: (s) => point(s.to) },
    { title: "median", right: true, cell: (s) => (s.times ? signed(s.times.median) : "–"), class: "nowrap" },
    { title: "", cell: (s) => s.times && bar(s.times.median / longest) },
    { title: "99 %", right: true, cell: (s) => (s.times ? signed(s.times.p99) : "–"), class: "nowrap" },
    { title: "possible error", right: true, cell: (s) => (s.bound === null ? "–" : `± ${nanoseconds(s.bound)}`), class: "nowrap faint" },
    { title: "packets", right: true, cell: (s) => exact(s.packets) },
  ];
  const total = trace.total ? ` In total it takes ${signed(trace.total.median)} (median).` : "";
  const drops = trace.drops.map((drop) => h("li", { class: "loss" }, `${exact(drop.counted ?? drop.listed)} dropped on ${drop.host_name ?? `host ${drop.host}`}: ${drop.reason_name ?? `reason ${drop.reason ?? "?"}`}`));
  answer.append(card("Through hosts", `By ${exact(trace.sampled)} sampled packets.${total}`, table(columns, trace.segments),
    drops.length > 0 && h("ul", { class: "losses" }, drops),
    trace.lacks.length > 0 && h("ul", { class: "sentences" }, trace.lacks.map((sentence) => h("li", {}, sentence)))));
}
