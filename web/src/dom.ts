// Helpers that create elements. Text is inserted as text; nothing here parses HTML.

export type Child = Node | string | null | undefined | false;
type Value = string | number | boolean | null | undefined | ((event: Event) => void);

export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Record<string, Value> = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  dress(element, attributes, children);
  return element;
}

export function svg<K extends keyof SVGElementTagNameMap>(
  tag: K,
  attributes: Record<string, Value> = {},
  ...children: Child[]
): SVGElementTagNameMap[K] {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  dress(element, attributes, children);
  return element;
}

function dress(element: Element, attributes: Record<string, Value>, children: Child[]): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.replace(/^on/, ""), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  fill(element, children);
}

/** Replaces the children of an element. */
export function fill(element: Element, children: Child[]): void {
  element.replaceChildren(
    ...children.filter((child): child is Node | string => child !== null && child !== undefined && child !== false),
  );
}

/** Calls the function once no call has come for the given milliseconds. */
export function debounced<A extends unknown[]>(wait: number, act: (...given: A) => void): (...given: A) => void {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = window.setTimeout(() => act(...given), wait);
  };
}

/** One request at a time: a new request aborts the previous one. */
export class Latest {
  private controller: AbortController | null = null;

  async run<T>(ask: (signal: AbortSignal) => Promise<T>): Promise<T | null> {
    this.controller?.abort();
    const own = new AbortController();
    this.controller = own;
    try {
      const answer = await ask(own.signal);
      return own.signal.aborted ? null : answer;
    } catch (error) {
      if (own.signal.aborted) return null;
      throw error;
    }
  }

  stop(): void {
    this.controller?.abort();
  }
}

/** A text whose parts in backticks are code. */
export function prose(text: string): Child[] {
  return text.split("`").map((part, i) => (i % 2 === 1 ? h("code", {}, part) : part));
}

/** An error message, optionally with a retry button. */
export function trouble(error: unknown, retry?: () => void): HTMLElement {
  const message = error instanceof Error ? error.message : String(error);
  return h(
    "p",
    { class: "trouble", role: "alert" },
    ...prose(message),
    retry && " ",
    retry && h("button", { type: "button", onclick: retry }, "Try again"),
  );
}

/** A group of radio buttons that looks like one control; without a start, the first is checked. */
export function choice<K extends string>(name: string, options: Record<K, string>, chosen: (value: K) => void, start?: K): HTMLElement {
  const group = `choice-${Math.random().toString(36).slice(2)}`;
  const inputs = (Object.entries(options) as [K, string][]).map(([value, text], i) =>
    h(
      "label",
      {},
      h("input", { type: "radio", name: group, value, checked: start === undefined ? i === 0 : value === start, onchange: () => chosen(value) }),
      h("span", {}, text),
    ),
  );
  return h("fieldset", { class: "choice" }, h("legend", { class: "hidden" }, name), ...inputs);
}
