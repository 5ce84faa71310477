// Asks the collector.

export function query(parameters) {
  const all = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters ?? {})) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") all.append(name, one);
    }
  }
  const text = all.toString();
  return text ? `?${text}` : "";
}

/** The document at a path; throws a problem with `title` and `detail`. */
export async function ask(path, parameters, signal) {
  let response;
  try {
    response = await fetch(`/api/v1/${path}${query(parameters)}`, { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw { title: "The collector does not answer", detail: "This page retries automatically.", away: true };
  }
  const missing = response.headers.get("dta-unreachable");
  globalThis.document.dispatchEvent(new CustomEvent("unreachable", { detail: missing ? missing.split(",") : [] }));
  const document = await response.json().catch((error) => {
    // A view that closes, or a collector that ends, may cut an answer off in its middle.
    if (error.name === "AbortError") throw error;
    if (response.ok) throw { title: "The answer was cut off", detail: "This page retries automatically.", away: true };
    return { title: "No answer", detail: `HTTP status ${response.status}` };
  });
  if (!response.ok) throw document;
  return document;
}

let known = null;

/** The names of the stores, asked for once: they hardly change. */
export function storeNames() {
  known ??= ask("stores")
    .then((stores) => stores.map((store) => store.name))
    .catch((error) => {
      known = null;
      throw error;
    });
  return known;
}

/** Follows a feed until `signal` aborts. `handlers`: by the event's name, and `state` for `live` and `away`. */
export function follow(path, parameters, handlers, signal) {
  let source;
  let pause = 500;
  const open = () => {
    if (signal.aborted) return;
    source = new EventSource(`/api/v1/${path}${query(parameters)}`);
    source.onopen = () => {
      pause = 500;
      handlers.state?.("live");
    };
    source.onerror = () => {
      // A browser tries again by itself after some errors and never after others.
      source.close();
      handlers.state?.("away");
      setTimeout(open, pause);
      pause = Math.min(pause * 2, 10000);
    };
    for (const [name, handle] of Object.entries(handlers)) {
      if (name !== "state") source.addEventListener(name, (event) => handle(JSON.parse(event.data)));
    }
  };
  signal.addEventListener("abort", () => source?.close());
  open();
}

/** Asks now and every so many milliseconds until `signal` aborts. */
export const poll = (path, parameters, every, handle, signal) => repeat(() => ask(path, parameters, signal), every, handle, signal);

/** The same with anything that has an answer. */
export function repeat(work, every, handle, signal) {
  const again = async () => {
    if (signal.aborted) return;
    try {
      const answer = await work();
      if (!signal.aborted) handle(answer, null);
    } catch (error) {
      if (signal.aborted) return;
      handle(null, error);
    }
    if (every) setTimeout(again, document.hidden ? every * 5 : every);
  };
  return again();
}
