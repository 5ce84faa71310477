// The memory itself: a store from its first element to its last, down to the bytes.

import { ask } from "./ask.js";
import { heatMap } from "./charts.js";
import { card, chooser, empty, failure, h, table } from "./elements.js";
import { bytes, exact, percent } from "./format.js";

const ROWS = 16;

export const memory = {
  title: "Memory",
  async mount(root, context) {
    const picture = h("div", { id: "map" }, h("p", { class: "hint" }, "Reading memory …"));
    const elements = h("div", { id: "elements" });
    const { by = "load" } = context.parameters;
    const picker = h("div", { class: "filters" });
    const hint = h("p", { class: "hint" });
    root.append(card("Memory", null, context.at && h("p", { class: "hint" }, "Memory is shown as it is now, whatever moment is chosen."), picker, hint, picture), elements);
    try {
      const stores = await ask("stores", {}, context.signal);
      const store = context.parameters.store ?? stores[0]?.name;
      picker.append(
        h("label", {}, "store", h("select", { name: "store", onchange: (event) => context.change({ store: event.target.value, first: undefined }) },
          stores.map(({ name }) => h("option", { value: name, selected: name === store }, name)))),
        chooser("Coloured by", [["load", "Load"], ["age", "Age"]], by, (value) => context.change({ by: value })),
        h("button", { type: "button", onclick: () => load() }, "Read again"));
      const first = Number(context.parameters.first ?? -1);
      let map = null;
      const draw = () => {
        if (!map || !picture.clientWidth) return;
        const chosen = Number(context.parameters.cell ?? -1);
        picture.replaceChildren(heatMap(map, picture.clientWidth, chosen, by === "age", (cell, rect) => {
          picture.querySelector(".chosen")?.classList.remove("chosen");
          rect.classList.add("chosen");
          context.keep({ store, cell: cell.first, first: cell.first });
          showElements(elements, store, cell.first, map, context);
        }), by === "age"
          ? h("p", { class: "legend" }, "empty or a day old", h("i", { class: "age" }), "just written", h("b", { class: "dot host" }), "age unknown")
          : h("p", { class: "legend" }, "empty", h("i"), "full"));
      };
      const load = async () => {
        map = await ask("memory/map", { store, cells: 1024 }, context.signal);
        const used = map.cells.reduce((sum, cell) => sum + cell.used, 0);
        const read = map.cells.reduce((sum, cell) => sum + cell.read, 0);
        const sample = read < map.elements ? ` of the ${exact(read)} that were read` : "";
        hint.textContent = `${exact(map.elements)} elements of ${map.element_bytes} bytes (${bytes(map.elements * map.element_bytes)}), ${map.primitive}; ${exact(used)}${sample} hold something (${percent(used / read)}). Each square is ${exact(map.cells[0]?.count ?? 0)} of them; click one to see its bytes.`;
        draw();
      };
      await load();
      const resized = new ResizeObserver(draw);
      resized.observe(picture);
      context.signal.addEventListener("abort", () => resized.disconnect());
      if (first >= 0) showElements(elements, store, first, map, context);
    } catch (error) {
      if (!context.signal.aborted) picture.replaceChildren(failure(error));
    }
  },
};

async function showElements(place, store, first, map, context) {
  try {
    const found = await ask("memory", { store, first, count: ROWS }, context.signal);
    const go = (to) => {
      context.keep({ first: to });
      showElements(place, store, to, map, context);
    };
    const last = found.elements;
    const input = h("input", { type: "text", value: String(first), inputmode: "numeric", "aria-label": "first element" });
    input.addEventListener("change", () => /^\d+$/.test(input.value) && go(Math.min(Number(input.value), last - 1)));
    const used = found.rows.filter((row) => row.content !== "empty");
    place.replaceChildren(card(`Elements ${exact(first)} to ${exact(first + found.rows.length - 1)} of ${store}`, "Bytes as they are in memory. What they mean is not checked: most slots do not hold their key.",
      h("div", { class: "filters" },
        h("button", { type: "button", disabled: first === 0, onclick: () => go(Math.max(0, first - ROWS)) }, "← before"),
        h("label", {}, "from element", input),
        h("button", { type: "button", disabled: first + ROWS >= last, onclick: () => go(first + ROWS) }, "after →")),
      used.length === 0 && empty("All of these are empty"),
      table([
        { title: "element", right: true, cell: (row) => exact(row.index) },
        { title: "offset", right: true, cell: (row) => `0x${row.offset.toString(16)}`, class: "mono faint" },
        { title: "bytes", cell: (row) => row.hex, class: "mono" },
        { title: "holds", cell: (row) => row.content, class: "nowrap" },
      ], found.rows)));
  } catch (error) {
    if (!context.signal.aborted) place.replaceChildren(failure(error));
  }
}
