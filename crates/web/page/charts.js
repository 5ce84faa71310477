// Charts as SVG.

import { h, svg } from "./elements.js";
import { count, exact, percent, rate } from "./format.js";

/** Height of the widest band. */
const HEIGHT = 150;
const NODE = 10;
/** So much is seen even of a single report. */
const LEAST = 2;

/**
 * How high each stage is. Reports and frames have scales of their own, which meet where reports become frames: one
 * report becomes several.
 */
function heights(stages) {
  const reports = stages.filter((stage) => stage.unit === "reports");
  const most = Math.max(1, ...reports.map((stage) => stage.count));
  const last = reports.at(-1);
  const frames = stages.filter((stage) => stage.unit !== "reports");
  const mostFrames = Math.max(1, ...frames.map((stage) => stage.count));
  const scale = HEIGHT / most;
  const frameScale = last && last.count > 0 ? (last.count * scale) / mostFrames : HEIGHT / mostFrames;
  return { of: (stage, n) => n * (stage.unit === "reports" ? scale : frameScale), last, frames: frames[0] };
}

const lossKind = (loss) => (loss.lost ? "loss" : "replaced");

/** A band between two vertical edges. */
function band(kind, x0, top0, bottom0, x1, top1, bottom1, title) {
  const m = (x0 + x1) / 2;
  const d = `M${x0},${top0}C${m},${top0} ${m},${top1} ${x1},${top1}V${bottom1}C${m},${bottom1} ${m},${bottom0} ${x0},${bottom0}Z`;
  return svg("path", { d, class: kind }, svg("title", {}, title));
}

/** The way of the reports, for wide screens: bands that go on, and those that bend down are lost, replaced or wait. */
function wideFlow(stages, width) {
  const { of, last, frames } = heights(stages);
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
      const leaves = stage === last && next === frames ? height : Math.min(height, thick(stage, stage.unit === next.unit || stage.unit !== "reports" ? next.count : stage.count));
      const words = stage === last && frames ? `${exact(stage.count)} reports became ${exact(frames.count)} frames` : `${exact(next.count)} went on`;
      drawn.append(band("band", x + NODE, 4, 4 + leaves, right, 4, 4 + thick(next, next.count), words));
      if (stage === last && frames && stage.count > 0) {
        const ratio = frames.count / stage.count;
        drawn.append(svg("text", { x: (x + NODE + right) / 2, y: 4 + height / 2 + 4, "text-anchor": "middle" }, `× ${ratio.toFixed(2)} frames`));
      }
    }
    const ends = [...stage.losses.map((loss) => ({ n: loss.count, kind: lossKind(loss), words: `${exact(loss.count)} ${loss.name}: ${loss.meaning}` }))];
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
    drawn.append(svg("rect", { x, y: 4, width: NODE, height: Math.max(height, 1), rx: 2, class: "node" }, svg("title", {}, `${stage.title}: ${exact(stage.count)} ${stage.unit}`)));
  });
  return drawn;
}

function lossList(stage) {
  const share = (n) => (stage.count ? ` ${percent(n / stage.count)}` : "");
  const items = stage.losses.map((loss) =>
    h("li", { class: lossKind(loss), title: loss.meaning, "data-loss": loss.name }, h("b", {}, exact(loss.count)), `${share(loss.count)} `, h("span", { class: "mono" }, loss.name), loss.rate ? ` ${rate(loss.rate)}` : ""));
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
    const most = { reports: Math.max(1, ...stages.filter((s) => s.unit === "reports").map((s) => s.count)), other: Math.max(1, ...stages.filter((s) => s.unit !== "reports").map((s) => s.count)) };
    return h("div", {}, stages.map((stage) =>
      h("div", { class: "narrow-stage", "data-stage": stage.name },
        h("span", { class: "faint" }, stage.title),
        h("b", { class: "right" }, `${exact(stage.count)} ${stage.unit}`),
        h("span", { class: "bar wide" }, h("i", { "width%": (100 * stage.count) / (most[stage.unit] ?? most.other) })),
        lossList(stage))));
  }
  const columns = (part) => h("div", { class: "stages" }, stages.map((stage) => h("div", { class: "stage", "data-stage": stage.name }, part(stage))));
  return h("div", {},
    columns((stage) => [
      h("span", { class: "name" }, stage.title),
      h("b", { title: `${exact(stage.count)} ${stage.unit}` }, exact(stage.count)),
      h("span", { class: "faint" }, stage.unit),
      h("span", { class: "rate" }, rate(stage.rate)),
      sparkline(rates[stage.name] ?? []),
    ]),
    wideFlow(stages, width),
    columns(lossList));
}

/** Cells from the first to the last, each as dark as it is full. */
export function heatMap(map, width, chosen, choose) {
  const perRow = Math.max(8, Math.min(64, Math.floor(width / 18)));
  const size = Math.floor(width / perRow);
  const rows = Math.ceil(map.cells.length / perRow);
  const ground = (share) => (share === 0 ? "var(--line)" : `color-mix(in srgb, var(--flow) ${Math.round(18 + 82 * share)}%, var(--line))`);
  const cells = map.cells.map((cell, i) => {
    const share = cell.read ? cell.used / cell.read : 0;
    const last = cell.first + cell.count - 1;
    const of = cell.read < cell.count ? ` of the first ${exact(cell.read)}` : ` of ${exact(cell.count)}`;
    const rect = svg("rect", { x: (i % perRow) * size, y: Math.floor(i / perRow) * size, width: size, height: size, class: cell.first === chosen ? "chosen" : null, "data-cell": i },
      svg("title", {}, `elements ${exact(cell.first)} to ${exact(last)}: ${exact(cell.used)}${of} hold something (${percent(share)})`));
    rect.style.fill = ground(share);
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
