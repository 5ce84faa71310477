// Where the reports went, and what needs attention.

import { ask, follow, poll } from "./ask.js";
import { stageFlow } from "./charts.js";
import { badge, bar, card, empty, failure, h, table } from "./elements.js";
import { age, bytes, clock, count, exact, percent } from "./format.js";

const MINUTE = 60;

export const overview = {
  title: "Overview",
  mount(root, context) {
    if (context.at) return mountPast(root, context);
    const notices = h("div", {});
    const way = h("div", { id: "waterfall" }, h("p", { class: "hint" }, "Reading counters …"));
    const stores = h("div", { id: "stores" });
    const sessions = h("div", { id: "sessions" });
    const sources = h("div", { id: "sources" });
    const members = h("div", { id: "members" });
    root.append(
      notices,
      card("Where did the reports go?", "From reporters to what can be queried: blue goes on, red was lost, grey was replaced by something newer, amber is waiting.", way),
      card("Stores", "How full each store is, and the share of keys that survive at that load.", stores),
      members,
      card("Sessions", "Translators that may write into memory.", sessions),
      sources);

    let reading = null;
    const rates = {};
    const draw = () => {
      if (!reading) return;
      if (!reading.stages.some((stage) => stage.count > 0)) {
        way.replaceChildren(empty("No report has come yet", "Send some: ", h("code", {}, "dta-manager run-testbed --keep"), " or ", h("code", {}, "dta-reporter send"), "."));
        return;
      }
      way.replaceChildren(stageFlow(reading.stages, rates, way.clientWidth));
    };
    follow("waterfall/live", {}, {
      state: context.setState,
      problem: (problem) => context.setState("away", problem.detail),
      waterfall: (document) => {
        reading = document;
        for (const { name, rate } of document.stages) {
          rates[name] = [...(rates[name] ?? []), rate].slice(-MINUTE);
        }
        context.setState("live", `live, ${clock(document.time).slice(-12, -4)}`);
        draw();
      },
    }, context.signal);
    const resized = new ResizeObserver(draw);
    resized.observe(way);
    context.signal.addEventListener("abort", () => resized.disconnect());

    let isGroup = false;
    poll("health", {}, 10000, (health) => {
      if (!health) return;
      notices.replaceChildren(...noticeCard(health));
      // Each of several collectors measures its stores for this.
      if (health.collectors.length > 1 && !isGroup) {
        isGroup = true;
        poll("members", {}, 10000, (rows) => rows && members.replaceChildren(memberCard(rows)), context.signal);
      }
    }, context.signal);
    poll("stores", {}, 10000, (rows, error) => stores.replaceChildren(error ? failure(error) : storeTable(rows, context)), context.signal);
    poll("sources", {}, 10000, (rows, error) => sources.replaceChildren(...(error || !rows.length ? [] : [sourceCard(rows, context)])), context.signal);
    poll("sessions", {}, 3000, (rows, error) => sessions.replaceChildren(error ? failure(error) : sessionTable(rows)), context.signal);
  },
};

function noticeCard({ notices, unreachable }) {
  const away = unreachable.map((address) => ({ severity: "problem", about: address, text: "this collector does not answer", advice: "its data is missing from this page" }));
  const all = [...away, ...notices];
  if (!all.length) return [];
  const item = (notice) => h("li", { class: notice.severity }, h("strong", {}, notice.about), `: ${notice.text}. `, h("span", { class: "faint" }, `${notice.advice}.`));
  return [card("What needs attention", null, h("ul", { class: "notices" }, all.map(item)))];
}

function storeTable(rows, context) {
  return table([
    { title: "store", cell: (s) => h("a", { href: context.link("memory", { store: s.name }) }, s.name) },
    { title: "kind", cell: (s) => s.kind, class: "faint nowrap" },
    { title: "size", right: true, cell: (s) => bytes(s.bytes), class: "nowrap" },
    { title: "used", right: true, cell: (s) => h("span", { title: exact(s.used) }, count(s.used)) },
    { title: "of", right: true, cell: (s) => h("span", { title: exact(s.capacity) }, count(s.capacity)) },
    { title: "load", cell: (s) => [bar(s.load), percent(s.load)], class: "nowrap" },
    { title: "survival", right: true, cell: (s) => (s.survival === null ? h("span", { class: "faint" }, "–") : h("span", { class: s.survival < 0.9 ? "loss" : null }, percent(s.survival))) },
    { title: "copies", right: true, cell: (s) => s.redundancy ?? "–" },
  ], rows);
}

/** The stores of members, side by side. */
function memberCard(rows) {
  const away = rows.filter((member) => member.unreachable !== null);
  const names = [...new Set(rows.flatMap((member) => member.stores.map((store) => store.name)))];
  const part = (member, name) => {
    const store = member.stores.find((one) => one.name === name);
    if (!store) return "–";
    return [h("div", { class: "faint" }, store.part ?? "all"), bar(store.load), h("span", { title: `${exact(store.used)} of ${exact(store.capacity)}` }, percent(store.load))];
  };
  const hint = `This page combines their answers. ${away.length ? `${exact(away.length)} of ${exact(rows.length)} do not answer: what they have is missing.` : "All of them answer."}`;
  return card("Collectors", hint, table([
    { title: "collector", class: "mono", cell: (member) => member.address },
    { title: "", cell: (member) => (member.unreachable === null ? badge("answers", "hop") : badge("unreachable", "loss")) },
    { title: "sessions", right: true, cell: (member) => exact(member.sessions) },
    ...names.map((name) => ({ title: name, class: "nowrap", cell: (member) => part(member, name) })),
  ], rows), away.length > 0 && h("ul", { class: "notices" }, away.map((member) => h("li", { class: "problem" }, h("strong", {}, member.address), `: ${member.unreachable}`))));
}

function sessionTable(rows) {
  if (!rows.length) return empty("No session", "No translator has a key to this collector's memory. Start one: ", h("code", {}, "dta-translator run"), ".");
  const pair = (p) => h("span", { class: p.state === "error" ? "loss nowrap" : "nowrap" }, `${p.purpose} (${p.transport}) ${p.state}  `);
  return table([
    { title: "session", cell: (s) => s.name },
    { title: "translator", cell: (s) => h("span", { class: "mono" }, s.translator) },
    { title: "frames by", cell: (s) => s.frames_by ?? "–" },
    { title: "renews within", right: true, cell: (s) => (s.expires_in === null ? "never" : `${Math.round(s.expires_in)} s`) },
    { title: "stores", cell: (s) => s.stores.join(", ") },
    { title: "queue pairs", cell: (s) => s.queue_pairs.map(pair) },
  ], rows);
}

/** Sources of which no sign of life came for so many seconds: three times what switches keep alive with. */
const SILENT = 180;
const MOST_SOURCES = 50;

function sourceCard(rows, context) {
  const isSilent = (s) => s.age_seconds !== null && s.age_seconds > SILENT;
  const silent = rows.filter(isSilent).length;
  const more = rows.length > MOST_SOURCES ? ` The ${MOST_SOURCES} silent for longest are shown.` : "";
  return card("Switches and exporters", `${exact(rows.length)} are known by their events or flow records; ${exact(silent)} ${silent === 1 ? "is" : "are"} silent for more than ${SILENT / 60} min.${more}`, table([
    { title: "", cell: (s) => s.kind, class: "faint" },
    { title: "name", cell: (s) => h("a", { href: context.link("map", { around: `${s.kind}:${s.number}` }) }, s.name ?? s.number) },
    { title: "last sign of life", cell: (s) => h("span", { class: isSilent(s) ? "wait" : null }, s.age_seconds === null ? "by a clock of its own" : age(s.age_seconds)), class: "nowrap" },
    { title: "events", right: true, cell: (s) => exact(s.events) },
    { title: "flow records in 1 h", right: true, cell: (s) => exact(s.records) },
  ], rows.slice(0, MOST_SOURCES)));
}

async function mountPast(root, context) {
  try {
    const past = await ask("stats", { at: context.at }, context.signal);
    if (!past.stores.length) {
      root.append(card("Then", null, empty("No store has a history", "Give stores epochs: ", h("code", {}, 'epoch = "60s"'), " in their tables of the collector's configuration.")));
      return;
    }
    const lost = (s) => Object.entries(s.lost).map(([name, n]) => h("div", { class: "loss nowrap" }, `${exact(n)} `, h("span", { class: "mono" }, name)));
    root.append(card("What became of the reports of that moment", "By the epochs of each store. Losses are those of all stores together.", table([
      { title: "store", cell: (s) => s.store },
      { title: "epochs", cell: (s) => (s.from ? `${clock(s.from)} to ${clock(s.to)}` : h("span", { class: "faint" }, s.not_written ? "not written yet" : "nothing is kept")), class: "nowrap" },
      { title: "sent", right: true, cell: (s) => exact(s.sent) },
      { title: "landed", right: true, cell: (s) => exact(s.landed) },
      { title: "share", cell: (s) => (s.sent ? [bar(s.landed / s.sent), percent(s.landed / s.sent)] : "–"), class: "nowrap" },
      { title: "lost", cell: lost },
    ], past.stores), past.without_epochs.length > 0 && h("p", { class: "hint" }, `Without epochs, so without history: ${past.without_epochs.join(", ")}.`)));
  } catch (error) {
    if (!context.signal.aborted) root.append(failure(error));
  }
}
