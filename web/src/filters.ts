// Controls of the selection: search, chips, a histogram with a brush, and a bar for each class.

import { TITLES } from "./answers";
import type { ColumnInfo, TableInfo } from "./api";
import { fill, h, svg, trouble } from "./dom";
import { type Filter, kindOf, type Selected } from "./selection";
import type { Column } from "./table";
import { type Context, dot } from "./tile";
import { count, labelOf, number, percent } from "./words";

const BINS = 50;
const WIDTH = 360;
const HEIGHT = 84;
const MOST_CLASSES = 200;

/** Columns that the service adds, and kappa. */
const NAMES: Record<string, string> = { kappa: "κ", "questions.suspicion": "label suspicion", "questions.outlier": "outlier, −log₁₀ p" };

/** The name of a category for people. */
export function categoryName(info: ColumnInfo | undefined, code: number): string {
  return code < 0 ? "no value" : labelOf(info?.values?.[code]) || "empty";
}

export function columnName(name: string): string {
  return NAMES[name] ?? name;
}

function sentence(filter: Filter, table: TableInfo): string {
  if ("lasso" in filter) return "Area on the map";
  if ("find" in filter) return `Contains “${filter.find}”`;
  if ("question" in filter) return filter.classes === undefined ? TITLES[filter.question] : `${TITLES[filter.question]}, one pair`;
  const name = columnName(filter.c);
  if ("in" in filter) {
    const info = table.columns.find((each) => each.name === filter.c);
    const names = filter.in.slice(0, 3).map((code) => categoryName(info, code));
    return `${name}: ${names.join(", ")}${filter.in.length > 3 ? ` and ${filter.in.length - 3} more` : ""}`;
  }
  if (filter.min === undefined) return `${name} ≤ ${number(filter.max ?? 0)}`;
  if (filter.max === undefined) return `${name} ≥ ${number(filter.min)}`;
  return `${name} ${number(filter.min)} – ${number(filter.max)}`;
}

/** How many items are selected, and each filter with a button that removes it. */
export function chips(context: Context, table: TableInfo): { element: HTMLElement; show(selected: Selected): void } {
  const status = h("p", { class: "selected", role: "status" });
  const list = h("ul", { class: "chips", "aria-label": "Filters" });
  return {
    element: h("div", { class: "selection" }, status, list),
    show({ filters, count: n, total, truncated }) {
      fill(status, [h("strong", {}, count(n)), filters.length === 0 ? ` items` : ` of ${count(total)} items selected`, truncated && " (the search stopped at its limit)"]);
      const parts = filters.map((filter) => {
        const text = sentence(filter, table);
        const remove = h("button", { type: "button", class: "chip", "aria-label": `Remove filter: ${text}` }, text, h("span", { "aria-hidden": "true" }, "×"));
        remove.addEventListener("click", () => void context.selection.drop(filter));
        return h("li", {}, remove);
      });
      if (filters.length > 0) parts.push(h("li", {}, h("button", { type: "button", class: "clear", onclick: () => void context.selection.clear() }, "Clear all")));
      fill(list, parts);
    },
  };
}

/** The search for ids and texts. */
export function search(context: Context): { element: HTMLElement; show(selected: Selected): void } {
  const input = h("input", { type: "search", id: "find", placeholder: "Id or text", autocomplete: "off", maxlength: 200 });
  const form = h("form", { class: "find", role: "search" }, h("label", { for: "find", class: "hidden" }, "Find ids and texts"), input, h("button", { type: "submit" }, "Find"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = input.value.trim();
    if (text !== "") void context.selection.put({ find: text });
    else void context.selection.drop({ find: "" });
  });
  return {
    element: form,
    show({ filters }) {
      const own = filters.find((each) => "find" in each);
      if (document.activeElement !== input) input.value = own !== undefined && "find" in own ? own.find : "";
    },
  };
}

/** A list of columns of one kind, as a select with a label. */
function columnSelect(text: string, columns: ColumnInfo[], chosen: (name: string) => void): HTMLElement {
  const select = h("select", { "aria-label": text }, ...columns.map(({ name }) => h("option", { value: name }, columnName(name))));
  select.addEventListener("change", () => chosen(select.value));
  return select;
}

/** The histogram of a number column: all items, and the selected ones in front; dragging selects a range. */
export class Histogram {
  readonly element: HTMLElement;
  private name = "kappa";
  private column: Column | null = null;
  private selected: Selected | null = null;
  private readonly drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "bins", role: "img" });
  private readonly ends = h("div", { class: "ends" });
  private readonly low = h("input", { type: "number", step: "any", "aria-label": "Smallest value" });
  private readonly high = h("input", { type: "number", step: "any", "aria-label": "Largest value" });
  private readonly problem = h("div");
  private readonly brush = svg("rect", { class: "brush", y: 0, height: HEIGHT, visibility: "hidden" });
  private edges: Float64Array = new Float64Array(0);
  private all: number[] = [];

  constructor(
    private readonly context: Context,
    table: TableInfo,
  ) {
    const columns = table.columns.filter(({ kind, name }) => kind === "number" && !name.startsWith("map."));
    const range = h("form", { class: "range" }, this.low, h("span", { "aria-hidden": "true" }, "–"), this.high, h("button", { type: "submit" }, "Select"));
    range.addEventListener("submit", (event) => {
      event.preventDefault();
      this.select(this.low.value === "" ? null : Number(this.low.value), this.high.value === "" ? null : Number(this.high.value));
    });
    this.drawing.addEventListener("pointerdown", (event) => this.drag(event));
    this.element = h(
      "section",
      { class: "side histogram" },
      h("h2", {}, "Values of ", columnSelect("Values of", columns, (name) => void this.take(name))),
      this.drawing,
      this.ends,
      range,
      this.problem,
    );
  }

  async take(name: string): Promise<void> {
    this.name = name;
    try {
      const column = await this.context.table.column(name);
      if (this.name !== name) return;
      fill(this.problem, []);
      this.column = column;
      this.edges = edgesOf(column, name === "kappa");
      this.all = this.counts(column.values, null);
      this.draw();
    } catch (error) {
      fill(this.problem, [trouble(error, () => void this.take(name))]);
    }
  }

  show(selected: Selected): void {
    this.selected = selected;
    if (this.column === null) void this.take(this.name);
    else this.draw();
  }

  private counts(values: Column["values"], rows: Uint32Array | null): number[] {
    const { edges } = this;
    const found = new Float64Array(BINS);
    if (this.name === "kappa") return this.sortedCounts(values, rows);
    const [from, to] = [edges[0] as number, edges[BINS] as number];
    const n = rows === null ? values.length : rows.length;
    for (let i = 0; i < n; i += 1) {
      const value = values[rows === null ? i : (rows[i] as number)] as number;
      if (Number.isNaN(value)) continue;
      const at = Math.floor((BINS * (value - from)) / (to - from));
      const bin = Math.min(BINS - 1, Math.max(0, at));
      found[bin] = (found[bin] as number) + 1;
    }
    return Array.from(found);
  }

  /** Rows are in the order of kappa: the edges are found by bisection. */
  private sortedCounts(values: Column["values"], rows: Uint32Array | null): number[] {
    const n = rows === null ? values.length : rows.length;
    const below = (edge: number): number => {
      let [from, to] = [0, n];
      while (from < to) {
        const middle = (from + to) >> 1;
        if ((values[rows === null ? middle : (rows[middle] as number)] as number) < edge) from = middle + 1;
        else to = middle;
      }
      return from;
    };
    const ends = Array.from(this.edges, (edge, i) => (i === 0 ? 0 : i === BINS ? n : below(edge)));
    return ends.slice(1).map((end, i) => end - (ends[i] as number));
  }

  private draw(): void {
    const { column, selected } = this;
    if (column === null || selected === null) return;
    const own = selected.rows === null ? this.all : this.counts(column.values, selected.rows);
    const most = Math.max(1, ...this.all);
    // the square root keeps a small selection visible
    const tall = (n: number): number => (HEIGHT - 4) * Math.sqrt(n / most);
    const bars = (counts: number[], name: string): SVGElement[] =>
      counts.map((n, i) => svg("rect", { class: name, x: (i * WIDTH) / BINS + 0.5, width: WIDTH / BINS - 1, y: HEIGHT - tall(n), height: tall(n) }));
    this.drawing.replaceChildren(...bars(this.all, "all"), ...bars(own, "own"), this.brush);
    const name = columnName(this.name);
    const [low, high] = [this.edges[0] as number, this.edges[BINS] as number];
    this.drawing.setAttribute("aria-label", `Histogram of ${name} from ${number(low)} to ${number(high)}: ${count(selected.count)} of ${count(selected.total)} items selected`);
    fill(this.ends, [h("span", {}, number(low)), h("span", {}, "height: square root of the count"), h("span", {}, number(high))]);
    const filter = selected.filters.find((each) => kindOf(each) === `column ${this.name}` && !("in" in each)) as { min?: number; max?: number } | undefined;
    this.low.value = filter?.min === undefined ? "" : String(filter.min);
    this.high.value = filter?.max === undefined ? "" : String(filter.max);
    this.cover(filter === undefined ? null : [this.x(filter.min ?? low), this.x(filter.max ?? high)]);
  }

  private cover(range: [number, number] | null): void {
    this.brush.setAttribute("visibility", range === null ? "hidden" : "visible");
    if (range === null) return;
    this.brush.setAttribute("x", String(Math.min(...range)));
    this.brush.setAttribute("width", String(Math.max(1, Math.abs(range[1] - range[0]))));
  }

  private x(value: number): number {
    const scale = this.name === "kappa" ? Math.log : (each: number): number => each;
    const [from, to] = [scale(this.edges[0] as number), scale(this.edges[BINS] as number)];
    return WIDTH * Math.min(1, Math.max(0, (scale(value) - from) / (to - from)));
  }

  private value(x: number): number {
    const [low, high] = [this.edges[0] as number, this.edges[BINS] as number];
    const share = Math.min(1, Math.max(0, x / WIDTH));
    return Number((this.name === "kappa" ? low * (high / low) ** share : low + share * (high - low)).toPrecision(4));
  }

  private drag(event: PointerEvent): void {
    if (this.column === null) return;
    event.preventDefault();
    this.drawing.setPointerCapture(event.pointerId);
    const at = (each: PointerEvent): number => {
      const box = this.drawing.getBoundingClientRect();
      return ((each.clientX - box.left) / box.width) * WIDTH;
    };
    const start = at(event);
    const move = (each: PointerEvent): void => this.cover([start, at(each)]);
    const up = (each: PointerEvent): void => {
      this.drawing.removeEventListener("pointermove", move);
      const [from, to] = [Math.min(start, at(each)), Math.max(start, at(each))];
      // at an end of the picture, the range is open
      if (to - from < 3) this.select(null, null);
      else this.select(from <= 1 ? null : this.value(from), to >= WIDTH - 1 ? null : this.value(to));
    };
    this.drawing.addEventListener("pointermove", move);
    this.drawing.addEventListener("pointerup", up, { once: true });
  }

  private select(min: number | null, max: number | null): void {
    if (min === null && max === null) void this.context.selection.drop({ c: this.name, min: 0 });
    else void this.context.selection.put({ c: this.name, ...(min === null ? {} : { min }), ...(max === null ? {} : { max }) });
  }
}

function edgesOf({ values }: Column, log: boolean): Float64Array {
  let low = Infinity;
  let high = -Infinity;
  for (let i = 0; i < values.length; i += 1) {
    const value = values[i] as number;
    if (value < low && (!log || value > 0) && value !== -Infinity) low = value;
    if (value > high && value !== Infinity) high = value;
  }
  if (!(low <= high)) [low, high] = [1, 2];
  if (low === high) high = low + Math.max(1e-6, Math.abs(low) * 0.01);
  return Float64Array.from({ length: BINS + 1 }, (_, i) => (log ? low * (high / low) ** (i / BINS) : low + (i / BINS) * (high - low)));
}

/** The categories of a column: how many of each are selected; a click selects them. */
export class Classes {
  readonly element: HTMLElement;
  private name: string;
  private column: Column | null = null;
  private totals: number[] = [];
  private order: number[] = [];
  private selected: Selected | null = null;
  private readonly list = h("ul", { class: "classes" });
  private readonly buttons = new Map<number, { button: HTMLElement; bar: HTMLElement; text: HTMLElement }>();
  private readonly problem = h("div");

  constructor(
    private readonly context: Context,
    table: TableInfo,
    private readonly label: string | null,
  ) {
    const columns = table.columns.filter(({ kind }) => kind === "category");
    columns.sort((a, b) => Number(b.name === label) - Number(a.name === label));
    this.name = columns[0]?.name ?? "";
    this.element = h(
      "section",
      { class: "side", hidden: columns.length === 0 },
      h("h2", {}, "Classes of ", columnSelect("Classes of", columns, (name) => void this.take(name))),
      this.list,
      this.problem,
    );
  }

  async take(name: string): Promise<void> {
    if (name === "") return;
    this.name = name;
    try {
      const column = await this.context.table.column(name);
      if (this.name !== name) return;
      fill(this.problem, []);
      this.column = column;
      this.totals = this.counts(column, null);
      this.order = this.totals.map((_, i) => i).filter((i) => this.totals[i] !== 0);
      this.order.sort((a, b) => (this.totals[b] as number) - (this.totals[a] as number) || a - b);
      this.build();
      this.draw();
    } catch (error) {
      fill(this.problem, [trouble(error, () => void this.take(name))]);
    }
  }

  show(selected: Selected): void {
    this.selected = selected;
    if (this.column === null) void this.take(this.name);
    else this.draw();
  }

  /** The last count is of missing values. */
  private counts({ values, info, missing }: Column, rows: Uint32Array | null): number[] {
    const size = info.values?.length ?? 0;
    const found = new Uint32Array(size + 1);
    const n = rows === null ? values.length : rows.length;
    for (let i = 0; i < n; i += 1) {
      const code = values[rows === null ? i : (rows[i] as number)] as number;
      const at = code === missing ? size : code;
      found[at] = (found[at] as number) + 1;
    }
    return Array.from(found);
  }

  private code(place: number): number {
    return place === this.totals.length - 1 ? -1 : place;
  }

  private build(): void {
    this.buttons.clear();
    const items = this.order.slice(0, MOST_CLASSES).map((place) => {
      const code = this.code(place);
      const value = this.column?.info.values?.[code];
      const bar = h("span", { class: "part" });
      const text = h("small", {});
      const button = h(
        "button",
        { type: "button", onclick: () => this.toggle(code) },
        this.name === this.label ? dot(this.context.colour(value)) : null,
        h("span", { class: "name" }, categoryName(this.column?.info, code)),
        text,
        h("span", { class: "share", "aria-hidden": "true" }, bar),
      );
      this.buttons.set(place, { button, bar, text });
      return h("li", {}, button);
    });
    const rest = this.order.length - MOST_CLASSES;
    if (rest > 0) items.push(h("li", { class: "fine" }, `${count(rest)} smaller classes are not listed; use the search.`));
    fill(this.list, items);
  }

  private draw(): void {
    const { column, selected } = this;
    if (column === null || selected === null) return;
    const own = selected.rows === null ? this.totals : this.counts(column, selected.rows);
    const most = Math.max(1, ...this.totals);
    const chosen = this.chosen();
    for (const [place, { button, bar, text }] of this.buttons) {
      const [n, all] = [own[place] as number, this.totals[place] as number];
      bar.style.width = `${(100 * n) / all}%`;
      (bar.parentElement as HTMLElement).style.width = `${Math.max(2, (100 * all) / most)}%`;
      fill(text, [selected.rows === null ? count(all) : `${count(n)} of ${count(all)}`]);
      button.setAttribute("aria-pressed", String(chosen.includes(this.code(place))));
      button.title = `${percent(n / all)} of this class selected`;
    }
  }

  private chosen(): number[] {
    const found = this.context.selection.filters.find((each) => kindOf(each) === `column ${this.name}`);
    return found !== undefined && "in" in found ? found.in : [];
  }

  private toggle(code: number): void {
    const before = this.chosen();
    const next = before.includes(code) ? before.filter((each) => each !== code) : [...before, code];
    if (next.length === 0) void this.context.selection.drop({ c: this.name, in: [] });
    else void this.context.selection.put({ c: this.name, in: next });
  }
}
