// The selected items as a grid and as a sortable table, by pages.

import type { About, ColumnInfo, Item, TableInfo } from "./api";
import { choice, fill, h, Latest, trouble } from "./dom";
import { columnName } from "./filters";
import { changeQuery, readRoute } from "./route";
import type { Selected } from "./selection";
import { type Context, dot, hrefOf, picture, tile } from "./tile";
import { count, labelOf, number } from "./words";

const PAGE = { items: 60, rows: 50 };
type Shape = keyof typeof PAGE;
const SHAPES: Record<Shape, string> = { items: "Items", rows: "Table" };

export class RowViews {
  readonly element: HTMLElement;
  private shape: Shape = "items";
  private column = "kappa";
  private descending = false;
  private page = 0;
  private selected: Selected | null = null;
  private sorted: Uint32Array | null = null;
  private readonly loading = new Latest();
  private readonly place = h("div", { class: "page" });
  private readonly status = h("span", { role: "status" });
  private readonly before = h("button", { type: "button", onclick: () => this.turn(-1) }, "Previous");
  private readonly after = h("button", { type: "button", onclick: () => this.turn(1) }, "Next");
  private readonly sorting: HTMLSelectElement;
  private readonly toggle: HTMLElement;

  constructor(
    private readonly context: Context,
    private readonly about: About,
    private readonly table: TableInfo,
  ) {
    const names = table.columns.filter(({ kind, name }) => kind !== "text" && !name.startsWith("map.")).map(({ name }) => name);
    this.sorting = h(
      "select",
      { "aria-label": "Sort by" },
      ...names.flatMap((name) => [h("option", { value: name }, `${columnName(name)}, ascending`), h("option", { value: `-${name}` }, `${columnName(name)}, descending`)]),
    );
    this.sorting.addEventListener("change", () => this.sort(this.sorting.value));
    this.toggle = choice("Show as", SHAPES, (shape) => {
      changeQuery({ as: shape === "items" ? null : shape, page: null }, "push");
      this.follow();
    });
    this.element = h(
      "section",
      { class: "linked" },
      h("div", { class: "bar" }, h("h2", {}, "Selected items"), this.toggle, h("label", { class: "by" }, "Sort by ", this.sorting)),
      this.place,
      h("div", { class: "pager" }, this.before, this.status, this.after),
    );
    this.read();
  }

  show(selected: Selected): void {
    this.selected = selected;
    this.read();
    this.sorted = null;
    void this.draw();
  }

  /** Takes the form, the order and the page of the address. */
  follow(): void {
    const before = `${this.shape} ${this.column} ${this.descending} ${this.page}`;
    this.read();
    if (before !== `${this.shape} ${this.column} ${this.descending} ${this.page}`) {
      this.sorted = null;
      void this.draw();
    }
  }

  private read(): void {
    const { query } = readRoute();
    this.shape = query.get("as") === "rows" ? "rows" : "items";
    const sort = query.get("sort") ?? "kappa";
    this.descending = sort.startsWith("-");
    const name = sort.replace(/^-/, "");
    this.column = this.table.columns.some((each) => each.name === name && each.kind !== "text") ? name : "kappa";
    this.page = Math.max(0, Math.floor(Number(query.get("page")) || 0));
    this.sorting.value = `${this.descending ? "-" : ""}${this.column}`;
    const input = this.toggle.querySelector<HTMLInputElement>(`input[value=${this.shape}]`);
    if (input !== null) input.checked = true;
  }

  private sort(value: string): void {
    changeQuery({ sort: value === "kappa" ? null : value, page: null }, "push");
    this.follow();
  }

  private turn(by: number): void {
    changeQuery({ page: String(this.page + by) }, "push");
    this.follow();
  }

  /** The row numbers in order; null if it is that of the table. */
  private async order(selected: Selected): Promise<Uint32Array | null> {
    if (this.column === "kappa") return selected.rows;
    if (this.sorted !== null) return this.sorted;
    const { values, info, missing } = await this.context.table.column(this.column);
    const rows = selected.rows?.slice() ?? Uint32Array.from({ length: selected.total }, (_, i) => i);
    const keys = new Float64Array(selected.total);
    const ranks = info.kind === "category" ? ranksOf(info) : null;
    const sign = this.descending ? -1 : 1;
    for (const row of rows) {
      const value = values[row] as number;
      const absent = ranks === null ? Number.isNaN(value) : value === missing;
      keys[row] = absent ? Infinity : sign * (ranks === null ? value : (ranks[value] as number));
    }
    rows.sort((a, b) => {
      const [first, second] = [keys[a] as number, keys[b] as number];
      return first < second ? -1 : first > second ? 1 : a - b;
    });
    this.sorted = rows;
    return rows;
  }

  private async draw(): Promise<void> {
    const { selected } = this;
    if (selected === null) return;
    const size = PAGE[this.shape];
    const last = Math.max(0, Math.ceil(selected.count / size) - 1);
    this.page = Math.min(this.page, last);
    const from = this.page * size;
    const to = Math.min(selected.count, from + size);
    this.place.setAttribute("aria-busy", "true");
    try {
      const items = await this.loading.run(async (signal) => {
        const order = await this.order(selected);
        const flip = this.column === "kappa" && this.descending;
        const numbers = Array.from({ length: to - from }, (_, i) => {
          const at = flip ? selected.count - 1 - from - i : from + i;
          return order === null ? at : (order[at] as number);
        });
        return this.context.table.rows(numbers, signal);
      });
      if (items === null) return;
      fill(this.place, [items.length === 0 ? h("p", { class: "empty" }, "No item passes these filters. Remove one of them.") : this.shape === "items" ? this.grid(items) : this.rows(items)]);
      fill(this.status, [items.length === 0 ? "" : `${count(from + 1)} – ${count(to)} of ${count(selected.count)}`]);
      this.before.disabled = this.page === 0;
      this.after.disabled = this.page >= last;
      this.place.dataset["count"] = String(selected.count);
    } catch (error) {
      fill(this.place, [trouble(error, () => void this.draw())]);
    }
    this.place.removeAttribute("aria-busy");
  }

  private grid(items: Item[]): HTMLElement {
    const cards = this.about.text_column !== null && !this.about.pictures;
    return h("ul", { class: cards ? "grid cards" : "grid" }, ...items.map((item) => h("li", {}, tile(this.context, item))));
  }

  private rows(items: Item[]): HTMLElement {
    const columns = this.table.columns.filter(({ name }) => name !== "kappa" && name !== "id" && !name.startsWith("map.") && items.some((item) => name in item.payload));
    const head = (info: Pick<ColumnInfo, "name" | "kind">): HTMLElement => {
      const own = info.name === this.column;
      const sort = own ? (this.descending ? "descending" : "ascending") : null;
      const next = own && !this.descending ? `-${info.name}` : info.name;
      const name = columnName(info.name);
      const content = info.kind === "text" ? name : h("button", { type: "button", onclick: () => this.sort(next) }, name, h("span", { "aria-hidden": "true" }, own ? (this.descending ? " ↓" : " ↑") : ""));
      return h("th", { scope: "col", "aria-sort": sort, class: info.kind === "number" ? "number" : "" }, content);
    };
    const row = (item: Item): HTMLElement =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, h("a", { href: hrefOf(item.id) }, item.picture !== null && picture(this.context.source, item, 32, ""), item.id)),
        h("td", { class: "number" }, number(item.kappa)),
        ...columns.map(({ name, kind }) => {
          const value = item.payload[name];
          const text = typeof value === "number" && !Number.isInteger(value) ? number(value) : labelOf(value);
          return h("td", { class: kind === "number" ? "number" : "" }, name === this.about.label_column && dot(this.context.colour(value)), text);
        }),
      );
    return h(
      "div",
      { class: "table", tabindex: "0", role: "region", "aria-label": "Table of the selected items" },
      h("table", {}, h("thead", {}, h("tr", {}, head({ name: "id", kind: "text" }), head({ name: "kappa", kind: "number" }), ...columns.map(head))), h("tbody", {}, ...items.map(row))),
    );
  }
}

/** The rank of each category by name. */
function ranksOf(info: ColumnInfo): Uint32Array {
  const names = (info.values ?? []).map(labelOf);
  const ranks = new Uint32Array(names.length);
  names.map((_, i) => i).sort((a, b) => (names[a] as string).localeCompare(names[b] as string, "en", { numeric: true })).forEach((code, rank) => (ranks[code] = rank));
  return ranks;
}
