// The address: `#/view/rest?key=value`. Views keep in it what reload, Back and sharing must restore.

export interface Route {
  view: string;
  rest: string;
  query: URLSearchParams;
}

export function readRoute(hash = location.hash): Route {
  const at = hash.indexOf("?");
  const path = at < 0 ? hash : hash.slice(0, at);
  const [, view = "", rest = ""] = /^#\/([a-z]*)\/?(.*)$/.exec(path) ?? [];
  return { view, rest: decoded(rest), query: new URLSearchParams(at < 0 ? "" : hash.slice(at + 1)) };
}

/** The hash of a view; values that are null, undefined or empty are left out. */
export function hrefTo(view: string, values: Record<string, string | null | undefined> = {}): string {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(values)) if (value) query.set(key, value);
  const text = query.toString();
  return text === "" ? view : `${view}?${text}`;
}

/** Changes values of the current address, with the event "querychange" and without rebuilding the view; "push" adds a step for Back. */
export function changeQuery(values: Record<string, string | null | undefined>, how: "push" | "replace"): void {
  const { query } = readRoute();
  for (const [key, value] of Object.entries(values)) {
    if (value) query.set(key, value);
    else query.delete(key);
  }
  const path = (location.hash || "#/").split("?")[0] ?? "#/";
  const next = hrefTo(path, Object.fromEntries(query));
  if (next === location.hash) return;
  if (how === "push") history.pushState(null, "", next);
  else history.replaceState(null, "", next);
  dispatchEvent(new Event("querychange"));
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
