// Charts as SVG.

import { counterName, h, svg } from "./elements.js";
import { age, count, exact, percent, rate } from "./format.js";

/** Height of the widest band. */
const HEIGHT = 150;
const NODE = 10;
/** So much is seen even of a single report. */
const LEAST = 2;

/** Stages in which one thing is one band: reports, what becomes of them on the wire and in memory, and what can be asked for. */
const kindOf = (stage) => ({ reports: 0, answers: 2 })[stage.unit] ?? 1;

/**
 * How high each stage is. Each kind of stages has a scale of its own, and they meet where one becomes the other: one report
 * becomes several frames, and several operations one answer.
 */
function heights(stages) {
  const scales = [];
  let meets = HEIGHT;
  stages.forEach((stage, i) => {
    const kind = kindOf(stage);
    if (scales[kind] === undefined) {
      const most = Math.max(1, ...stages.filter((other) => kindOf(other) === kind).map((other) => other.count));
      scales[kind] = meets / most;
    }
    const next = stages[i + 1];
    if (next && kindOf(next) !== kind && stage.count > 0) meets = stage.count * scales[kind];
  });
  return (stage, n) => n * scales[kindOf(stage)];
}

/** How many of one kind become how many of the next, where they do. */
function conversion(stage, next) {
  if (kindOf(next) === 2) return `${(stage.count / Math.max(1, next.count)).toFixed(2)} writes each`;
  return `× ${(next.count / Math.max(1, stage.count)).toFixed(2)} frames`;
}

/** A stage's or a loss's count. */
const counted = ({ count, estimated_by, estimated }) => `${estimated_by || estimated ? "about " : ""}${exact(count)}`;

const stageWords = (stage) => `${stage.title}: ${counted(stage)} ${stage.unit}${stage.estimated_by ? `, estimated by ${stage.estimated_by}` : ""}`;

const lossKind = (loss) => (loss.lost ? "loss" : "replaced");

/** A band between two vertical edges. */
function band(kind, x0, top0, bottom0, x1, top1, bottom1, title) {
  const m = (x0 + x1) / 2;
  const d = `M${x0},${top0}C${m},${top0} ${m},${top1} ${x1},${top1}V${bottom1}C${m},${bottom1} ${m},${bottom0} ${x0},${bottom0}Z`;
  return svg("path", { d, class: kind }, svg("title", {}, title));
}

/** The way of the reports, for wide screens: bands that go on, and those that bend down are lost, replaced or wait. */
function wideFlow(stages, width) {
  const of = heights(stages);
  const column = width / stages.length;
  const total = HEIGHT + 74;
  const drawn = svg("svg", { width, height: total, viewBox: `0 0 ${width} ${total}`, role: "img", "aria-label": "Where the reports went" });
  const thick = (stage, n) => (n > 0 ? Math.max(LEAST, of(stage, n)) : 0);
  stages.forEach((stage, i) => {
    const x = i * column + 6;
    const height = thick(stage, stage.count);
    const next = stages[i + 1];
    if (next) {
      const right = (i + 1) * column + 6;
      const converts = kindOf(stage) !== kindOf(next);
      const leaves = converts ? height : Math.min(height, thick(stage, next.count));
      const words = converts ? `${counted(stage)} ${stage.unit} became ${counted(next)} ${next.unit}` : `${counted(next)} went on`;
      drawn.append(band("band", x + NODE, 4, 4 + leaves, right, 4, 4 + thick(next, next.count), words));
      if (converts && stage.count > 0 && next.count > 0) {
        drawn.append(svg("text", { x: (x + NODE + right) / 2, y: 4 + height / 2 + 4, "text-anchor": "middle" }, conversion(stage, next)));
      }
    }
    const ends = [...stage.losses.map((loss) => ({ n: loss.count, kind: lossKind(loss), words: `${counted(loss)} ${loss.name}: ${loss.meaning}` }))];
    if (stage.waiting) ends.push({ n: stage.waiting, kind: "wait", words: `${exact(stage.waiting)} wait` });
    let from = 4 + height;
    let to = x + NODE + 4;
    for (const { n, kind, words } of ends.reverse()) {
      const width = Math.min(thick(stage, n), column / 3);
      const top = Math.max(4, from - width);
      const bottom = total - 8;
      const d = `M${x + NODE},${top}C${to + width + 26},${top} ${to + width + 8},${top + 20} ${to + width},${bottom}H${to}C${to + 6},${from + 14} ${to + 10},${from} ${x + NODE},${from}Z`;
      drawn.append(svg("path", { d, class: `band-${kind}` }, svg("title", {}, words)));
      from = top;
      to += width + 5;
    }
    drawn.append(svg("rect", { x, y: 4, width: NODE, height: Math.max(height, 1), rx: 2, class: "node" }, svg("title", {}, stageWords(stage))));
  });
  return drawn;
}

function lossList(stage) {
  const share = (n) => (stage.count ? percent(n / stage.count) : "");
  const items = stage.losses.map((loss) =>
    h("li", { class: lossKind(loss), title: loss.meaning, "data-loss": loss.name }, h("b", {}, counted(loss)), " ", h("span", { class: "nowrap" }, share(loss.count)), " ", counterName(loss.name), loss.rate ? ` ${rate(loss.rate)}` : ""));
  if (stage.waiting) items.push(h("li", { class: "wait" }, h("b", {}, exact(stage.waiting)), " wait"));
  return h("ul", { class: "losses" }, items);
}

/** A line of the last values, the newest right. */
export function sparkline(values, width = 110, height = 22) {
  const known = values.filter((value) => value !== null && value !== undefined);
  const most = Math.max(1e-9, ...known);
  const points = values.map((value, i) => [width - (values.length - 1 - i) * (width / 59), value]).filter(([, value]) => value !== null && value !== undefined);
  const line = points.map(([x, value], i) => `${i ? "L" : "M"}${x.toFixed(1)},${(height - 2 - (value / most) * (height - 4)).toFixed(1)}`).join("");
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, line && svg("path", { d: line, class: "spark" }));
}

/** Where the reports went, as wide as there is room; `rates` has the last minute by stage. */
export function stageFlow(stages, rates, width) {
  if (width < 720) {
    const most = (stage) => Math.max(1, ...stages.filter((other) => kindOf(other) === kindOf(stage)).map((other) => other.count));
    return h("div", {}, stages.map((stage) =>
      h("div", { class: "narrow-stage", "data-stage": stage.name },
        h("span", { class: "faint" }, stage.title),
        h("b", { class: "right", title: stageWords(stage) }, `${counted(stage)} ${stage.unit}`),
        h("span", { class: "bar wide" }, h("i", { "width%": (100 * stage.count) / most(stage) })),
        lossList(stage))));
  }
  const columns = (part) => h("div", { class: "stages" }, stages.map((stage) => h("div", { class: "stage", "data-stage": stage.name }, part(stage))));
  return h("div", {},
    columns((stage) => [
      h("span", { class: "name" }, stage.title),
      h("b", { title: stageWords(stage) }, exact(stage.count)),
      h("span", { class: "faint" }, stage.estimated_by ? `${stage.unit} (about)` : stage.unit),
      h("span", { class: "rate" }, rate(stage.rate)),
      sparkline(rates[stage.name] ?? []),
    ]),
    wideFlow(stages, width),
    columns(lossList));
}

/** Groups that have a colour of their own; the rest is one more. */
export const SERIES = 8;

/**
 * Groups over time, one on the other, and what none of them has on top. `series`: `{ name, points }`, of which a point is the
 * start of a bucket of `per` seconds and its sum; `total` and `before` are points, too, those of the period before moved
 * here. `rate` says a sum per second in words.
 */
export function stackedBars({ series, total, before, from, until, per, rate }, width) {
  const [height, top, bottom] = [230, 8, 22];
  // Where each exporter counts a flow, the groups are more than the total.
  const stacks = new Map();
  series.forEach(({ points }) => points.forEach(([start, value]) => stacks.set(start, (stacks.get(start) ?? 0) + value)));
  const most = Math.max(1e-9, ...stacks.values(), ...[...total, ...(before ?? [])].map(([, value]) => value));
  const x = (seconds) => ((seconds - from) / (until - from)) * width;
  const y = (value) => top + (1 - value / most) * (height - top - bottom);
  const drawn = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "stacked", role: "img", "aria-label": "Sums over time" });
  for (const share of [0, 0.5, 1]) {
    drawn.append(svg("path", { d: `M0,${y(share * most)}H${width}`, class: "grid" }));
    if (share) drawn.append(svg("text", { x: 2, y: y(share * most) + 12, class: "small" }, rate((share * most) / per)));
  }
  const moment = (seconds) => momentText(seconds, until - from);
  const columns = new Map(total.map(([start, value]) => [start, { left: value, at: 0 }]));
  const put = (start, value, kind, name) => {
    const column = columns.get(start);
    if (!column || value <= 0) return;
    const [left, right] = [Math.max(0, x(start)), Math.min(width, x(start + per))];
    const title = `${name}: ${rate(value / per)} from ${moment(start)} UTC`;
    drawn.append(svg("rect", { x: left, y: y(column.at + value), width: Math.max(1, right - left - 1), height: y(column.at) - y(column.at + value), class: kind }, svg("title", {}, title)));
    column.at += value;
    column.left -= value;
  };
  series.forEach(({ name, points }, i) => points.forEach(([start, value]) => put(start, value, `series-${i}`, name)));
  columns.forEach(({ left }, start) => put(start, left, "series-others", "others"));
  if (before?.length) {
    const line = before.map(([start, value], i) => `${i ? "L" : "M"}${x(start + per / 2).toFixed(1)},${y(value).toFixed(1)}`).join("");
    drawn.append(svg("path", { d: line, class: "before" }, svg("title", {}, "the period before")));
  }
  for (const share of [0, 0.5, 1]) {
    const anchor = { 0: "start", 0.5: "middle", 1: "end" }[share];
    drawn.append(svg("text", { x: share * width, y: height - 5, class: "small", "text-anchor": anchor }, `${moment(from + share * (until - from))}${share === 1 ? " UTC" : ""}`));
  }
  return drawn;
}

const momentText = (seconds, span) => new Date(seconds * 1000).toISOString().slice(span > 86400 ? 5 : 11, span > 86400 ? 16 : 19).replace("T", " ");

/** A value over time: `points` have `from`, `to`, `value` (null: a gap), and a `note` for people. */
export function timeLine({ title, words, points }, from, until, width) {
  const [height, top, bottom] = [120, 16, 20];
  const most = Math.max(1e-9, ...points.map((point) => point.value ?? 0));
  const x = (seconds) => ((seconds - from) / (until - from)) * (width - 8) + 4;
  const y = (value) => top + (1 - value / most) * (height - top - bottom);
  const drawn = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "stacked", role: "img", "aria-label": `${title} over time` });
  for (const share of [0, 1]) {
    drawn.append(svg("path", { d: `M0,${y(share * most)}H${width}`, class: "grid" }));
    drawn.append(svg("text", { x: share * width, y: height - 4, class: "small", "text-anchor": share ? "end" : "start" }, `${momentText(from + share * (until - from), until - from)}${share ? " UTC" : ""}`));
  }
  drawn.append(svg("text", { x: 2, y: top - 4, class: "small" }, words(most)));
  const known = points.filter((point) => point.value !== null);
  const middle = (point) => x((point.from + point.to) / 2);
  const line = points.map((point, i) => (point.value === null ? "" : `${i && points[i - 1].value !== null ? "L" : "M"}${middle(point).toFixed(1)},${y(point.value).toFixed(1)}`)).join("");
  drawn.append(svg("path", { d: line, class: "line" }));
  for (const point of known) {
    drawn.append(svg("circle", { cx: middle(point).toFixed(1), cy: y(point.value).toFixed(1), r: 3, class: point.isUnsure ? "point unsure" : "point" },
      svg("title", {}, `${words(point.value)} from ${momentText(point.from, 0)} to ${momentText(point.to, 0)} UTC${point.note}`)));
  }
  return drawn;
}

/** Groups by two to four columns: each column's values as nodes, and what they have in common as bands. */
export function groupSankey({ titles, rows, words }, width) {
  const [height, top, gap, node, most] = [300, 26, 4, 9, 12];
  const total = rows.reduce((sum, row) => sum + row.value, 0) || 1;
  // The smaller values of a column are one.
  const columns = titles.map((_, i) => {
    const sums = new Map();
    rows.forEach((row) => sums.set(row.values[i], (sums.get(row.values[i]) ?? 0) + row.value));
    const ordered = [...sums.entries()].sort((a, b) => b[1] - a[1]);
    const shown = ordered.slice(0, ordered.length > most ? most - 1 : most);
    const rest = ordered.slice(shown.length).reduce((sum, [, value]) => sum + value, 0);
    return { values: rest ? [...shown, [null, rest]] : shown, names: new Set(shown.map(([name]) => name)) };
  });
  const scale = (height - top - gap * Math.max(...columns.map(({ values }) => values.length))) / total;
  const x = (i) => (i * (width - node)) / (titles.length - 1);
  const nodes = columns.map(({ values }) => {
    let y = top;
    return new Map(values.map(([name, value]) => {
      const place = { y, in: y, out: y, height: value * scale, value };
      y += place.height + gap;
      return [name, place];
    }));
  });
  const of = (i, row) => (columns[i].names.has(row.values[i]) ? row.values[i] : null);
  const label = (name) => name ?? "others";
  const drawn = svg("svg", { width, height: height + 6, viewBox: `0 0 ${width} ${height + 6}`, role: "img", "aria-label": `Flows by ${titles.join(", ")}` });
  for (let i = 0; i + 1 < titles.length; i++) {
    const pairs = new Map();
    rows.forEach((row) => {
      const pair = JSON.stringify([of(i, row), of(i + 1, row)]);
      pairs.set(pair, (pairs.get(pair) ?? 0) + row.value);
    });
    const order = (side, name) => [...nodes[side].keys()].indexOf(name);
    const bands = [...pairs.entries()].map(([pair, value]) => [...JSON.parse(pair), value]).sort((a, b) => order(i, a[0]) - order(i, b[0]) || order(i + 1, a[1]) - order(i + 1, b[1]));
    for (const [left, right, value] of bands) {
      const [a, b, thick] = [nodes[i].get(left), nodes[i + 1].get(right), value * scale];
      drawn.append(band(`sankey series-${order(i, left) % SERIES}`, x(i) + node, a.out, a.out + thick, x(i + 1), b.in, b.in + thick, `${label(left)} → ${label(right)}: ${words(value)} (${percent(value / total)})`));
      a.out += thick;
      b.in += thick;
    }
  }
  titles.forEach((title, i) => {
    const anchor = i === titles.length - 1 ? "end" : "start";
    const side = i === titles.length - 1 ? width - node - 4 : x(i) + node + 4;
    drawn.append(svg("text", { x: i === titles.length - 1 ? width : x(i), y: 12, class: "small", "text-anchor": anchor }, title));
    for (const [name, place] of nodes[i]) {
      drawn.append(svg("rect", { x: x(i), y: place.y, width: node, height: Math.max(1, place.height), class: "node" }, svg("title", {}, `${title} ${label(name)}: ${words(place.value)} (${percent(place.value / total)})`)));
      if (place.height >= 9) drawn.append(svg("text", { x: side, y: place.y + place.height / 2 + 4, class: "small strong", "text-anchor": anchor }, `${label(name)}  ${words(place.value)}`));
    }
  });
  return drawn;
}

/** Cells from the first to the last, each as dark as it is full. */
export function heatMap(map, width, chosen, byAge, choose) {
  const perRow = Math.max(8, Math.min(64, Math.floor(width / 18)));
  const size = Math.floor(width / perRow);
  const rows = Math.ceil(map.cells.length / perRow);
  const ground = (share) => (share === 0 ? "var(--line)" : `color-mix(in srgb, var(--flow) ${Math.round(18 + 82 * share)}%, var(--line))`);
  // By orders of magnitude: from a second, full colour, to a day.
  const ofAge = (cell) => (cell.used === 0 ? "var(--line)" : cell.age_seconds === null ? "var(--replaced-band)" : `color-mix(in srgb, var(--hop) ${Math.round(100 - 85 * Math.min(1, Math.log10(1 + cell.age_seconds) / Math.log10(86400)))}%, var(--line))`);
  const cells = map.cells.map((cell, i) => {
    const share = cell.read ? cell.used / cell.read : 0;
    const newest = cell.age_seconds === null ? "" : `, the newest ${age(cell.age_seconds)}`;
    const last = cell.first + cell.count - 1;
    const of = cell.read < cell.count ? ` of the first ${exact(cell.read)}` : ` of ${exact(cell.count)}`;
    const rect = svg("rect", { x: (i % perRow) * size, y: Math.floor(i / perRow) * size, width: size, height: size, class: cell.first === chosen ? "chosen" : null, "data-cell": i },
      svg("title", {}, `elements ${exact(cell.first)} to ${exact(last)}: ${exact(cell.used)}${of} hold something (${percent(share)})${newest}`));
    rect.style.fill = byAge ? ofAge(cell) : ground(share);
    rect.addEventListener("click", () => choose(cell, rect));
    return rect;
  });
  const height = rows * size;
  const drawn = svg("svg", { width: perRow * size, height, viewBox: `0 0 ${perRow * size} ${height}`, class: "heat", tabindex: "0", role: "group", "aria-label": "Memory; arrow keys move, Enter shows the elements" }, cells);
  let at = Math.max(0, map.cells.findIndex((cell) => cell.first === chosen));
  drawn.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: perRow, ArrowUp: -perRow }[event.key];
    if (step) {
      event.preventDefault();
      cells[at].classList.remove("chosen");
      at = Math.max(0, Math.min(cells.length - 1, at + step));
      cells[at].classList.add("chosen");
    } else if (event.key === "Enter") choose(map.cells[at], cells[at]);
  });
  return drawn;
}

/** Shortest distance of two nodes in a row, of two lines of a row, and of rows: few are farther apart. */
const SPACING = { switch: 64, exporter: 64, host: 26 };
const LINE = 40;
const rowHeight = (rows) => Math.max(84, Math.min(200, 460 / rows));

/** Where each node is: hosts below, what is further from them above; neighbours are near each other. */
function placeNodes({ nodes, links }, width) {
  const highest = Math.max(0, ...nodes.map((node) => node.tier ?? 0));
  const tiers = new Map();
  for (const node of nodes) {
    const tier = node.tier ?? highest + 1;
    tiers.set(tier, [...(tiers.get(tier) ?? []), node.id]);
  }
  const neighbours = new Map(nodes.map((node) => [node.id, new Set()]));
  for (const { from, to } of links) {
    neighbours.get(from).add(to);
    neighbours.get(to).add(from);
  }
  const rows = [...tiers.entries()].sort(([a], [b]) => b - a).map(([, row]) => row.sort((a, b) => a.localeCompare(b, "en", { numeric: true })));
  const share = new Map();
  const place = (row) => row.forEach((id, i) => share.set(id, (i + 0.5) / row.length));
  rows.forEach(place);
  // Each node goes to the middle of its neighbours, over and over: few links cross then.
  for (let sweep = 0; sweep < 12; sweep++) {
    for (const row of sweep % 2 ? rows : [...rows].reverse()) {
      const middle = new Map(row.map((id) => {
        const others = [...neighbours.get(id)];
        return [id, others.length ? others.reduce((sum, other) => sum + share.get(other), 0) / others.length : share.get(id)];
      }));
      row.sort((a, b) => middle.get(a) - middle.get(b));
      place(row);
    }
  }
  const kinds = new Map(nodes.map((node) => [node.id, node.kind]));
  const places = new Map();
  const rowGap = rowHeight(rows.length);
  let y = 34;
  for (const row of rows) {
    const perLine = Math.max(1, Math.floor(width / SPACING[kinds.get(row[0])]));
    const lines = Math.ceil(row.length / perLine);
    // Neighbours in a row are in the same column of several lines.
    const columns = Math.ceil(row.length / lines);
    const spacing = width / columns;
    row.forEach((id, i) => {
      const line = i % lines;
      places.set(id, { x: (Math.floor(i / lines) + 0.5 + (lines > 1 ? (line / lines - 0.5) * 0.5 : 0)) * spacing, y: y + line * LINE, spacing });
    });
    y += (lines - 1) * LINE + rowGap;
  }
  return { places, height: y - rowGap + LINE };
}

/** A network: `use` says how busy a link is, `href` where a node leads. */
export function networkMap(map, use, around, href, width) {
  const { places, height } = placeNodes(map, width);
  const most = Math.max(1, ...map.links.map((link) => link.flows));
  const touching = new Map(map.nodes.map((node) => [node.id, []]));
  const names = new Map(map.nodes.map((node) => [node.id, node.name ?? node.id]));
  const frame = { width, height, viewBox: `0 0 ${width} ${height}` };
  // Links that are lit up are drawn once more, on a layer of their own: all others need not be drawn again.
  const lit = svg("svg", { ...frame, class: "lit-links", "aria-hidden": "true" });
  // The busiest links are above the others.
  const lines = [...map.links].sort((a, b) => a.drops - b.drops || use.of(a) - use.of(b)).map((link) => {
    const [a, b] = [places.get(link.from), places.get(link.to)];
    const [dx, dy] = [b.x - a.x, b.y - a.y];
    // The two directions of a link bend apart.
    const bend = 7 / Math.max(1, Math.hypot(dx, dy));
    const d = `M${a.x.toFixed(1)},${a.y.toFixed(1)}Q${((a.x + b.x) / 2 - dy * bend).toFixed(1)},${((a.y + b.y) / 2 + dx * bend).toFixed(1)} ${b.x.toFixed(1)},${b.y.toFixed(1)}`;
    const title = `${names.get(link.from)} → ${names.get(link.to)}${link.ports.length ? ` by port ${link.ports.join(", ")}` : ""}: ${exact(link.flows)} flows, use ${use.words(link)}${link.drops ? `, ${exact(link.drops)} drops` : ""}`;
    const line = svg("path", { d, class: link.drops ? "link dropping" : "link", "stroke-width": (0.7 + 4 * Math.sqrt(link.flows / most)).toFixed(1), "data-from": link.from, "data-to": link.to }, svg("title", {}, title));
    if (!link.drops) line.style.stroke = `color-mix(in srgb, var(--flow) ${Math.round(12 + 88 * use.of(link))}%, var(--line))`;
    touching.get(link.from).push(line);
    touching.get(link.to).push(line);
    return line;
  });
  const nodes = map.nodes.map((node) => {
    const { x, y, spacing } = places.get(node.id);
    const text = node.kind === "host" || !node.name ? node.id.slice(node.id.indexOf(":") + 1) : node.name;
    const title = `${node.kind} ${text}${node.kind === "host" && node.name ? ` (${node.name})` : ""}: ${exact(node.flows)} flows${node.drops ? `, ${exact(node.drops)} drops` : ""}`;
    const size = node.kind === "host" ? 6 : 11;
    const shape = node.kind === "switch" ? svg("rect", { x: x - size, y: y - size, width: 2 * size, height: 2 * size, rx: 4 }) : svg("circle", { cx: x, cy: y, r: size });
    const kinds = ["map-node", node.kind, node.drops > 0 && "dropping", node.id === around && "chosen"].filter(Boolean).join(" ");
    const anchor = svg("a", { href: href(node.id), class: kinds, "data-node": node.id, "aria-label": title }, shape, svg("title", {}, title),
      text.length * 6.6 < spacing && svg("text", { x, y: node.kind === "host" ? y + 19 : y - 16, "text-anchor": "middle", class: "small" }, text),
      node.drops > 0 && svg("text", { x: x + size + 3, y: y + 4, class: "drops" }, count(node.drops)));
    const light = () => lit.replaceChildren(...touching.get(node.id).map((line) => svg("path", { d: line.getAttribute("d"), "stroke-width": line.getAttribute("stroke-width") })));
    for (const event of ["pointerenter", "focus"]) anchor.addEventListener(event, light);
    for (const event of ["pointerleave", "blur"]) anchor.addEventListener(event, () => lit.replaceChildren());
    return anchor;
  });
  const drawn = svg("svg", { ...frame, role: "group", "aria-label": "Map of the network; a node shows what is around it" }, lines, nodes);
  return h("div", { class: "network" }, drawn, lit);
}
