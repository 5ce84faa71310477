// What happened, as it happens.

import { ask, follow, storeNames } from "./ask.js";
import { badge, card, empty, failure, field, h, noEvents } from "./elements.js";
import { clock, count, exact, nanoseconds, named } from "./format.js";

const KINDS = ["drop", "congested-packet", "loop", "flow-path", "flow-latency", "hop-latency", "queue-occupancy", "queue-congestion", "link-utilization"];
const COLOURS = { drop: "loss", loop: "loss", "congested-packet": "wait", "queue-congestion": "wait", "queue-occupancy": "wait", "flow-path": "hop" };
const MOST = 500;

export const events = {
  title: "Events",
  async mount(root, context) {
    const { kind, flow, prefix, switch: at_switch } = context.parameters;
    const kinds = [kind ?? []].flat();
    const filter = { kind: kinds, flow, prefix, switch: at_switch };
    const body = h("tbody", { id: "events" });
    const note = h("p", { class: "hint", role: "status" });
    const columns = ["time (UTC)", "event", "about", "what"].map((title) => h("th", { scope: "col" }, title));
    const toggle = (name) => context.change({ kind: kinds.includes(name) ? kinds.filter((one) => one !== name) : [...kinds, name] });
    const buttons = KINDS.map((name) => h("button", { type: "button", "aria-pressed": String(kinds.includes(name)), onclick: () => toggle(name) }, name));
    root.append(card("Events", null,
      h("div", { class: "filters" },
        h("div", { class: "group", role: "group", "aria-label": "Kinds of events" }, buttons)),
      h("div", { class: "filters" },
        field("flow", "flow", flow, "10.0.0.1:5000->10.0.0.2:5000/udp", (value) => context.change({ flow: value })),
        field("ends in", "prefix", prefix, "10.0.0.0/8", (value) => context.change({ prefix: value })),
        field("switch", "switch", at_switch, "leaf1 or 1", (value) => context.change({ switch: value }))),
      note,
      h("div", { class: "scroll", tabindex: "0" }, h("table", {}, h("thead", {}, h("tr", {}, columns)), body))));
    let missed = 0;
    const say = () => {
      const words = [`${exact(body.rows.length)} events, the newest first.`, missed > 0 && `${exact(missed)} batches could not be read: their events are missing.`];
      note.textContent = words.filter(Boolean).join(" ");
    };
    const add = (line) => {
      if (line.event) body.prepend(row(line.event, context));
      else if (line.missed) missed += line.missed.overwritten + line.missed.missing + line.missed.damaged;
      else if (line.epoch) body.prepend(remark(`the epoch that began at ${clock(line.epoch.opened)}`));
      else if (line.not_kept) body.prepend(remark(`nothing is kept from ${clock(line.not_kept.from)} to ${clock(line.not_kept.to)}`));
      else if (line.not_written) body.prepend(remark(`${line.not_written.batches} batches of ${line.not_written.list} will appear once the epoch is written`));
      while (body.rows.length > MOST) body.lastElementChild.remove();
    };
    if (!(await storeNames().catch(() => ["int-events"])).includes("int-events")) return note.replaceChildren(noEvents());
    try {
      const lines = await ask("events", { ...filter, at: context.at, number: context.at ? undefined : 200 }, context.signal);
      lines.forEach(add);
      say();
      if (!body.rows.length) {
        note.replaceChildren(empty("No matching events", "They come from the rules of a translator for INT or flow records: ", h("code", {}, "dta-translator run --int udp://:54321"), "."));
      }
    } catch (error) {
      if (!context.signal.aborted) note.replaceChildren(failure(error));
    }
    if (context.at || context.signal.aborted) return;
    follow("events/live", filter, {
      state: context.setState,
      event: (line) => {
        add(line);
        say();
      },
      skipped: (n) => {
        body.prepend(remark(`${exact(n)} events came faster than this page reads, and are not shown`));
      },
    }, context.signal);
  },
};

const remark = (text) => h("tr", {}, h("td", { colspan: "4", class: "faint" }, text));

function row(event, context) {
  const flow = event.flow && h("a", { class: "mono", href: context.link("flow", { flow: event.flow }) }, event.flow);
  const at = [
    event.switch !== null && event.kind !== "flow-path" && `switch ${named(event.switch, event.switch_name)}`,
    event.port !== null && `port ${named(event.port, event.port_name)}`,
    event.queue !== null && `queue ${event.queue}`,
  ].filter(Boolean).join(", ");
  return h("tr", { "data-kind": event.kind },
    h("td", { class: "nowrap mono" }, clock(event.utc) === "–" && event.time ? String(event.time) : clock(event.utc)),
    h("td", {}, badge(event.kind, COLOURS[event.kind])),
    h("td", {}, flow ?? (event.key ? h("span", { class: "mono faint" }, `key ${event.key}`) : ""), flow && at ? h("br") : null, at && h("span", { class: "faint" }, at)),
    h("td", {}, what(event)));
}

function what(event) {
  const figure = (n) => (event.kind.endsWith("latency") ? nanoseconds(n) : count(n));
  switch (event.kind) {
    case "drop":
      return h("span", { class: "loss" }, event.reason_name ?? `reason ${event.reason}`);
    case "congested-packet":
      return [event.occupancy !== null && `queue ${count(event.occupancy)} deep`, event.latency !== null && `${nanoseconds(event.latency)} in the switch`].filter(Boolean).join(", ");
    case "flow-path":
    case "loop": {
      const path = event.path ? event.path.map((hop) => hop ?? "?").join(" → ") : `${event.new} hops`;
      return `${{ new: "new: ", moved: "changed: " }[event.why] ?? ""}${path}${event.looped ? " (a loop)" : ""}`;
    }
    default:
      return event.old === null || event.why === "new" ? figure(event.new) : [figure(event.old), " → ", h("b", {}, figure(event.new))];
  }
}
