// The gallery: a histogram of kappa, the least and most certain items of each class, and all items by certainty.

import type { About, Item, Order } from "./api";
import { choice, fill, h, trouble } from "./dom";
import type { View } from "./item";
import { changeQuery, readRoute } from "./route";
import { strip } from "./strip";
import { type Context, dot, tile } from "./tile";
import { count, labelOf, things } from "./words";

const LANE = 12;
const PAGE = 60;
const FIRST_LANES = 12;
const TITLES: Record<Order, string> = { ambiguous: "Least certain", certain: "Most certain" };

export interface Held {
  rows: number;
  here: number;
}

export interface Gallery extends View {
  /** Takes the order and the class of the address. */
  follow(): void;
}

export function galleryView(context: Context, about: About, held: Held | null): Gallery {
  let order: Order | null = null;
  const lanes = h("div", { class: "lanes" });
  const grid = new Grid(context, about);
  const follow = (): void => {
    const { query } = readRoute();
    const before = order;
    order = query.get("order") === "certain" ? "certain" : "ambiguous";
    if (order !== before) drawLanes(context, about, lanes, order);
    grid.follow(order, query.get("class"));
    const input = toggle.querySelector<HTMLInputElement>(`input[value=${order}]`);
    if (input !== null) input.checked = true;
  };
  const toggle = choice("Order", { ambiguous: "Least certain first", certain: "Most certain first" }, (chosen) => {
    changeQuery({ order: chosen === "certain" ? chosen : null }, "push");
    follow();
  });
  const element = h(
    "section",
    { class: "gallery" },
    h(
      "header",
      { class: "intro" },
      h(
        "div",
        {},
        h("h1", {}, "How certain is the encoder about each item?"),
        h("p", { class: "lead" }, intro(about, held)),
      ),
      strip(about).element,
    ),
    h("div", { class: "bar" }, toggle),
    lanes,
    grid.element,
  );
  return { element, follow };
}

function className(label: unknown): string {
  return labelOf(label) || "no label";
}

function intro(about: About, held: Held | null): string {
  const what = `${count(about.rows)} ${things(about, about.rows)}`;
  const classes = about.classes.length > 0 ? ` in ${count(about.classes.length)} classes` : "";
  const here = held === null ? "" : ` This file contains ${count(held.here)} of them, from the least to the most certain.`;
  return `${what}${classes}, each with a mean direction and a concentration κ: the higher κ, the more certain the item.${here}`;
}

function drawLanes(context: Context, about: About, place: HTMLElement, order: Order): void {
  const both: [Order, Order] = order === "ambiguous" ? ["ambiguous", "certain"] : ["certain", "ambiguous"];
  const classes = about.classes;
  if (classes.length === 0) {
    fill(
      place,
      both.map((each) => lane(TITLES[each], null, [scroller(context, each, null, about.rows, TITLES[each])])),
    );
    return;
  }
  const draw = (from: number, to: number): HTMLElement[] =>
    classes.slice(from, to).map(({ label, count: size }) => {
      const name = className(label);
      const heading = h("span", {}, dot(context.colour(label)), name, h("small", {}, count(size)));
      // an item appears in one half only
      const first = Math.ceil(size / 2);
      const halves = both.map((each, i) => scroller(context, each, label, i === 0 ? first : size - first, `${name}, ${TITLES[each]}`));
      return lane(name, heading, halves);
    });
  const heads = h("div", { class: "lane heads", "aria-hidden": "true" }, h("span"), h("div", { class: "halves" }, ...both.map((each) => h("span", {}, TITLES[each]))));
  fill(place, [heads, ...draw(0, FIRST_LANES)]);
  if (classes.length > FIRST_LANES) {
    const more = h("button", { type: "button", class: "more" }, `Show all ${classes.length} classes`);
    more.addEventListener("click", () => more.replaceWith(...draw(FIRST_LANES, classes.length)));
    place.append(more);
  }
}

function lane(name: string, heading: HTMLElement | null, parts: HTMLElement[]): HTMLElement {
  return h("section", { class: "lane" }, h("h2", {}, heading ?? name), h("div", { class: "halves" }, ...parts));
}

/** A row of items by certainty that scrolls sideways and loads more on scrolling. */
function scroller(context: Context, order: Order, label: unknown, size: number, name: string): HTMLElement {
  const row = h("ul", { "aria-label": name, onkeydown: rove }, ...skeletons(context, Math.min(LANE, size)));
  let loaded = 0;
  let busy = false;
  const next = async (): Promise<void> => {
    if (busy || loaded >= size) return;
    busy = true;
    try {
      if (!row.isConnected) return whenNear(row, () => void next()); // another order was chosen, or another page
      const page = await context.source.items(order, label, loaded, Math.min(LANE, size - loaded));
      if (loaded === 0) fill(row, []);
      row.append(...tiles(context, page.items));
      // one Tab stop per row; arrow keys move within it
      row.querySelectorAll("a").forEach((link, i) => link.setAttribute("tabindex", i === 0 ? "0" : "-1"));
      loaded = page.items.length === 0 ? size : loaded + page.items.length;
    } catch (error) {
      fill(row, [h("li", {}, trouble(error, () => void next()))]);
    } finally {
      busy = false;
    }
  };
  row.addEventListener("scroll", () => {
    if (row.scrollLeft + row.clientWidth > row.scrollWidth - 200) void next();
  });
  whenNear(row, () => void next());
  return row;
}

/** Empty tiles of the size of those to come. */
function skeletons(context: Context, n: number): HTMLElement[] {
  return Array.from({ length: n }, () => h("li", { class: `skeleton ${context.shape}`, "aria-hidden": "true" }));
}

function rove(event: Event): void {
  const row = event.currentTarget as HTMLElement;
  const links = [...row.querySelectorAll("a")];
  const at = links.indexOf(document.activeElement as HTMLAnchorElement);
  const key = (event as KeyboardEvent).key;
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: links.length - 1 }[key];
  const next = to === undefined ? undefined : links[to];
  if (next === undefined) return;
  event.preventDefault();
  links[at]?.setAttribute("tabindex", "-1");
  next.setAttribute("tabindex", "0");
  next.focus();
}

function tiles(context: Context, items: Item[]): HTMLElement[] {
  return items.map((item) => h("li", {}, tile(context, item)));
}

function whenNear(element: HTMLElement, act: () => void): void {
  const observer = new IntersectionObserver(
    (entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      observer.disconnect();
      act();
    },
    { rootMargin: "200px" },
  );
  observer.observe(element);
}

/** All items, or those of a class, by certainty; pages load on scrolling. */
class Grid {
  readonly element: HTMLElement;
  private readonly list = h("ul", { class: "grid" });
  private readonly status = h("p", { class: "status", role: "status" });
  private readonly more = h("button", { type: "button", class: "more", onclick: () => void this.next() }, "Show more");
  private readonly filter: HTMLSelectElement;
  private order: Order | null = null;
  private label: unknown = null;
  private loaded = 0;
  private run = 0;
  private busy = false;
  private pages = 0;

  constructor(
    private readonly context: Context,
    private readonly about: About,
  ) {
    if (about.text_column !== null && !about.pictures) this.list.classList.add("cards");
    this.filter = h(
      "select",
      { "aria-label": "Class" },
      h("option", { value: "" }, "All classes"),
      ...about.classes.map(({ label }) => h("option", { value: className(label) }, className(label))),
    );
    this.filter.addEventListener("change", () => {
      changeQuery({ class: this.filter.value }, "push");
      if (this.order !== null) this.follow(this.order, this.filter.value);
    });
    this.element = h(
      "section",
      { class: "all" },
      h("div", { class: "bar" }, h("h2", {}, "All items by certainty"), about.classes.length > 0 && this.filter),
      this.list,
      this.status,
      this.more,
    );
    new IntersectionObserver(
      // the first pages load automatically, later ones on request
      (entries) => void (entries.some((entry) => entry.isIntersecting) && this.pages % 10 !== 0 && this.next()),
      { rootMargin: "400px" },
    ).observe(this.more);
  }

  /** Shows the items of a class, or of all without its name, in an order. */
  follow(order: Order, name: string | null): void {
    const found = this.about.classes.find(({ label }) => className(label) === name);
    const label = found?.label ?? null;
    if (order === this.order && label === this.label) return;
    this.filter.value = found === undefined ? "" : className(label);
    this.order = order;
    this.label = label;
    this.start();
  }

  private start(): void {
    this.loaded = 0;
    this.pages = 0;
    this.run += 1;
    this.busy = false;
    this.more.hidden = true;
    fill(this.list, []);
    whenNear(this.element, () => void this.next());
  }

  private async next(): Promise<void> {
    if (this.busy || this.order === null) return;
    this.busy = true;
    const run = this.run;
    try {
      const page = await this.context.source.items(this.order, this.label, this.loaded, PAGE);
      if (run !== this.run) return;
      this.list.append(...tiles(this.context, page.items));
      this.loaded += page.items.length;
      this.pages += 1;
      this.more.hidden = page.items.length === 0 || this.loaded >= page.total;
      fill(this.status, [page.total === 0 ? "No items." : `${count(this.loaded)} of ${count(page.total)}`]);
    } catch (error) {
      if (run === this.run) fill(this.status, [trouble(error, () => void this.next())]);
    } finally {
      if (run === this.run) this.busy = false;
    }
  }
}
