// Flow records: the largest groups, over time, beside the period before.

import { ask, query, repeat, storeNames } from "./ask.js";
import { SERIES, groupSankey, stackedBars } from "./charts.js";
import { bar, card, choice, chooser, empty, failure, field, h, table } from "./elements.js";
import { bits, bytes, count, exact, percent } from "./format.js";
import { SPANS, bucketLength, momentInSeconds } from "./periods.js";

const SUMS = [["bytes", "Bytes"], ["packets", "Packets"], ["flows", "Records"]];
const GROUPS = [["flow", "Flow"], ["src", "Source"], ["dst", "Destination"], ["protocol,dst-port", "Service"], ["exporter", "Exporter"], ["exporter,in-if", "Interface"], ["dst-as", "AS"], ["src,dst,dst-port", "From → to → port"]];
/** Groups of the period before, among which those of this one are looked up. */
const BEFORE = 1000;
const words = { bytes, packets: count, flows: count };
const rates = { bytes: (perSecond) => bits(perSecond * 8), packets: (perSecond) => `${count(perSecond)}/s`, flows: (perSecond) => `${count(perSecond)}/s` };

export const flows = {
  title: "Flows",
  async mount(root, context) {
    const { by = "bytes", group = "flow", where, exporter, span = "15m", number = "10", before = "yes" } = context.parameters;
    const columns = h("datalist", { id: "columns" });
    const condition = field("where", "where", where, "dst-port = 443 and src in 10.0.0.0/8", (value) => context.change({ where: value }));
    const grouping = field("columns", "group", GROUPS.some(([name]) => name === group) ? "" : group, "dst-as,in-if", (value) => context.change({ group: value }));
    const list = h("div", { id: "flows" }, h("p", { class: "hint" }, "Summing up flow records …"));
    root.append(card("The largest flows", "By the records that exporters sent. A flow that several exporters saw counts once, by the one with most bytes.",
      h("div", { class: "filters" },
        chooser("Ranked by", SUMS, by, (value) => context.change({ by: value })),
        chooser("Grouped by", GROUPS, group, (value) => context.change({ group: value })),
        grouping),
      h("div", { class: "filters" },
        condition,
        field("exporter", "exporter", exporter, "edge1 or 192.0.2.1", (value) => context.change({ exporter: value })),
        choice("of the last", Object.keys(SPANS), span, (value) => context.change({ span: value })),
        choice("show", ["5", "10", "20", "50"], number, (value) => context.change({ number: value })),
        h("label", {}, h("input", { type: "checkbox", name: "before", checked: before === "yes", onchange: (event) => context.change({ before: event.target.checked ? "yes" : "no" }) }), "beside the period before")),
      columns, list));
    if (!(await storeNames().catch(() => ["flow-records"])).includes("flow-records")) {
      return list.replaceChildren(empty("There is no store for flow records", "This collector has no store ", h("code", {}, "flow-records"), ", in which a translator keeps NetFlow, IPFIX and sFlow: ", h("code", {}, "dta-collector config --example"), " shows it."));
    }
    complete(condition, grouping, columns, context.signal);
    const length = SPANS[span] ?? SPANS["15m"];
    const per = bucketLength(length);
    const asked = { by, where, exporter };
    const sums = async () => {
      const until = context.at ? momentInSeconds(context.at) : Date.now() / 1000;
      const period = (end) => ({ since: (end - length).toFixed(3), until: end.toFixed(3) });
      const find = (more) => ask("flows", { ...asked, ...more }, context.signal);
      const now = { ...period(until), per: `${per}s` };
      const earlier = period(until - length);
      const largest = await find({ ...now, group, number });
      const total = await find({ ...now, group: "total" });
      const past = before === "yes" && { groups: await find({ ...earlier, group, number: BEFORE }), total: await find({ ...earlier, group: "total", per: `${per}s` }) };
      return { largest, total, past, until, length, per, asked: { ...asked, ...now, group, number } };
    };
    const show = (found, error) => list.replaceChildren(...(error ? [failure(error)] : summary(found, by, list.clientWidth, context)));
    repeat(sums, context.at ? 0 : length <= 3600 ? 10000 : 60000, show, context.signal);
  },
};

/** Offers the columns of records where a name of one is being written. */
async function complete(condition, grouping, offered, signal) {
  const columns = await ask("flows/columns", {}, signal).catch(() => []);
  for (const input of [condition, grouping].map((label) => label.querySelector("input"))) {
    input.setAttribute("list", offered.id);
    const offer = () => {
      const [, written, begun] = /^(.*?)([\w-]*)$/s.exec(input.value);
      const fitting = columns.filter((column) => column.name.startsWith(begun) && column.name !== begun);
      offered.replaceChildren(...fitting.map((column) => h("option", { value: written + column.name, label: column.help })));
    };
    input.addEventListener("input", offer);
    input.addEventListener("focus", offer);
  }
}

function summary({ largest, total, past, until, length, per, asked }, by, width, context) {
  if (!largest.groups.length) {
    return [empty("No flow records from this time", "Routers send them to a translator that runs with ", h("code", {}, "--flows udp://0.0.0.0:2055"), "; choose a longer time, or another condition.")];
  }
  const names = Object.keys(largest.groups[0].values);
  const label = (values) => names.map((name) => values[name]).join(" ") || "total";
  const shown = largest.groups.slice(0, SERIES);
  const totals = total.groups[0]?.series ?? [];
  const chart = stackedBars({
    series: shown.map((group) => ({ name: label(group.values), points: pointsOf(group.series, by) })),
    total: pointsOf(totals, by),
    before: past ? pointsOf(past.total.groups[0]?.series ?? [], by).map(([start, value]) => [start + length, value]) : null,
    from: until - length,
    until,
    per,
    rate: rates[by],
  }, width);
  const columns = names.length > 1 && names.length <= 4 && h("div", { id: "sankey" }, groupSankey({
    titles: names.map((name) => name.replaceAll("_", "-")),
    rows: largest.groups.map((group) => ({ values: names.map((name) => String(group.values[name])), value: group.sums[by] })),
    words: words[by],
  }, width));
  return [chart, columns, groupTable(largest, past, by, names, label, context), notes(largest, past, by, asked)].filter(Boolean);
}

/** Starts of time buckets in seconds, and their sums. */
const pointsOf = (series, by) => series.map((bucket) => [bucket.start / 1e9, bucket[by]]);

function groupTable(largest, past, by, names, label, context) {
  const earlier = new Map(past ? past.groups.groups.map((group) => [label(group.values), group.sums[by]]) : []);
  const isWhole = past && past.groups.group_count <= past.groups.groups.length;
  const before = (group) => earlier.get(label(group.values)) ?? (isWhole ? 0 : null);
  const columns = [
    { title: "", cell: (group) => h("i", { class: `swatch ${seriesClass(largest.groups.indexOf(group))}` }) },
    ...names.map((name) => ({ title: name.replaceAll("_", "-"), class: "mono", cell: (group) => valueLink(name.replaceAll("_", "-"), group.values[name], context) })),
    ...SUMS.map(([sum, title]) => ({ title: title.toLowerCase(), right: true, class: "nowrap", cell: (group) => h("span", { title: exact(group.sums[sum]), "data-sum": sum }, words[sum](group.sums[sum])) })),
    { title: "share", class: "nowrap", cell: (group) => [bar(group.sums[by] / Math.max(1, largest.total[by])), percent(group.sums[by] / Math.max(1, largest.total[by]))] },
  ];
  if (past) {
    columns.push({ title: "before", right: true, class: "nowrap", cell: (group) => (before(group) === null ? "–" : words[by](before(group))) });
    columns.push({ title: "change", right: true, class: "nowrap", cell: (group) => change(group.sums[by], before(group)) });
  }
  if (["src", "dst", "src_port", "dst_port", "protocol"].every((name) => names.includes(name))) {
    columns.push({ title: "", cell: (group) => h("a", { href: context.link("flow", { flow: flowText(group.values) }) }, "path") });
  }
  return table(columns, largest.groups);
}

const seriesClass = (place) => (place < SERIES ? `series-${place}` : "series-others");

/** A value that filters when it is chosen, if the language of conditions can say it. */
function valueLink(column, value, context) {
  if (/[\s()=!<>]/.test(value)) return String(value);
  const { where } = context.parameters;
  const condition = `${column} = ${value}`;
  return h("a", { href: context.link("flows", { ...context.parameters, where: where ? `(${where}) and ${condition}` : condition }), title: "only these" }, String(value));
}

function change(now, before) {
  if (before === null) return "–";
  if (before === 0) return "new";
  const share = now / before - 1;
  return `${share > 0 ? "+" : share < 0 ? "−" : ""}${percent(Math.abs(share))}`;
}

function flowText(values) {
  const end = (address, port) => (address.includes(":") ? `[${address}]:${port}` : `${address}:${port}`);
  return `${end(values.src, values.src_port)}->${end(values.dst, values.dst_port)}/${values.protocol}`;
}

function notes(largest, past, by, asked) {
  const earlier = past && past.groups.total[by];
  const all = [
    `${counted(largest.group_count, "group")} of ${counted(largest.total.flows, "record")}: ${bytes(largest.total.bytes)}, ${counted(largest.total.packets, "packet")}.`,
    past && `In the period before: ${words[by](earlier)} (${change(largest.total[by], earlier)}).`,
    largest.beyond.flows > 0 && `${exact(largest.beyond.flows)} records are in no group, as there were too many groups.`,
    largest.missing + largest.overwritten + largest.torn > 0 && `${exact(largest.missing + largest.overwritten + largest.torn)} batches of records could not be read.`,
    largest.unreachable.length > 0 && `Records are missing from collectors that do not answer: ${largest.unreachable.join(", ")}.`,
  ];
  const save = (id, text, format, more) => h("a", { id, class: "button", download: `flows.${format}`, href: `/api/v1/flows${query({ ...asked, ...more, format })}` }, text);
  return h("div", { class: "filters" }, h("p", { class: "hint" }, all.filter(Boolean).join(" ")),
    save("csv", "Download CSV", "csv", { per: undefined }), save("csv-series", "CSV over time", "csv", {}),
    save("parquet", "Parquet", "parquet", { per: undefined }), save("parquet-series", "Parquet over time", "parquet", {}));
}

const counted = (n, noun) => `${exact(n)} ${noun}${n === 1 ? "" : "s"}`;
