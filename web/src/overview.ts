// A map of the whole gallery, with the views that follow the selection: histogram, classes, items and rows.

import type { About, TableInfo } from "./api";
import { choice, debounced, fill, h, Latest, prose, trouble } from "./dom";
import { exportButton } from "./export";
import { categoryName, chips, Classes, columnName, Histogram, search } from "./filters";
import { capital, type View } from "./item";
import { type Look, lookOf } from "./look";
import { PointGrid } from "./points";
import { changeQuery, readRoute } from "./route";
import { MODES, Scatter, type View2D } from "./scatter";
import type { Selected } from "./selection";
import { RowViews } from "./rows";
import { type Context, hrefOf, picture } from "./tile";
import { count, labelOf, nameOf, number } from "./words";

export interface Overview extends View {
  /** Takes the selection, colours and position of the address. */
  follow(): void;
}

export function overviewView(context: Context, about: About): Overview {
  const place = h("div", {}, h("p", { class: "status", role: "status" }, "Loading the table of the gallery …"));
  const element = h("section", { class: "overview" }, h("h1", {}, "Map of the gallery"), place);
  let page: Parts | null = null;
  const load = async (): Promise<void> => {
    try {
      const table = await context.table.info();
      page = new Parts(context, about, table);
      fill(place, [page.element]);
      await page.start();
    } catch (error) {
      fill(place, [trouble(error, () => void load())]);
    }
  };
  void load();
  return { element, follow: () => page?.follow() };
}

class Parts {
  readonly element: HTMLElement;
  private readonly chips;
  private readonly search;
  private readonly histogram;
  private readonly classes;
  private readonly map: MapPanel;
  private readonly rows;
  private readonly problem = h("div");

  constructor(
    private readonly context: Context,
    about: About,
    table: TableInfo,
  ) {
    this.chips = chips(context, table);
    this.search = search(context);
    this.histogram = new Histogram(context, table);
    this.classes = new Classes(context, table, about.label_column);
    this.map = new MapPanel(context, about, table);
    this.rows = new RowViews(context, about, table);
    this.element = h(
      "div",
      {},
      h("div", { class: "bar filters" }, this.chips.element, this.search.element),
      exportButton(context),
      this.problem,
      h("div", { class: "board" }, this.map.element, h("div", { class: "sides" }, this.histogram.element, this.classes.element)),
      this.rows.element,
    );
    context.selection.subscribe((selected) => this.show(selected));
    context.selection.onFailure((error) => fill(this.problem, [trouble(error, () => void context.selection.follow())]));
  }

  async start(): Promise<void> {
    await Promise.all([this.map.start(), this.context.selection.follow()]);
  }

  follow(): void {
    void this.context.selection.follow();
    this.map.follow();
    this.rows.follow();
  }

  private show(selected: Selected): void {
    fill(this.problem, []);
    this.chips.show(selected);
    this.search.show(selected);
    this.map.select(selected);
    this.histogram.show(selected);
    this.classes.show(selected);
    this.rows.show(selected);
  }
}

/** The map with its tools, legend, and a note on the item under the pointer. */
class MapPanel {
  readonly element: HTMLElement;
  private readonly scatter: Scatter;
  private readonly note = h("div", { class: "note", "aria-live": "polite" });
  private readonly legend = h("div", { class: "legend" });
  private readonly colour: HTMLSelectElement;
  private readonly hovering = new Latest();
  private selected: Selected | null = null;
  private look: Look | null = null;
  private by = "";
  private hover = -1;
  private readonly describe = debounced(40, (row: number) => void this.describeRow(row));

  constructor(
    private readonly context: Context,
    private readonly about: About,
    private readonly table: TableInfo,
  ) {
    const columns = table.columns.filter(({ kind, name }) => kind !== "text" && !name.startsWith("map."));
    this.colour = h("select", { "aria-label": "Colour by" }, ...columns.map(({ name }) => h("option", { value: name }, columnName(name))));
    this.colour.addEventListener("change", () => {
      changeQuery({ by: this.colour.value }, "push");
      void this.dress(this.colour.value);
    });
    this.scatter = new Scatter({
      hover: (row) => {
        this.hover = row;
        this.describe(row);
      },
      open: (row) => void this.open(row),
      lasso: (corners) => void context.selection.put({ lasso: corners }),
      settled: (view) => changeQuery({ at: view === null ? null : formatted(view) }, "replace"),
    });
    const { canvas } = this.scatter;
    canvas.setAttribute("aria-label", "Map of all items. Arrow keys move, plus and minus zoom, 0 shows everything, Enter opens the item in the middle. The list below has the same items.");
    const tool = (text: string, name: string, act: () => void): HTMLElement => h("button", { type: "button", "aria-label": text.length > 1 ? null : name, title: name, onclick: act }, text);
    const tools = h(
      "div",
      { class: "tools" },
      choice("Dragging", MODES, (mode) => {
        this.scatter.mode = mode;
        canvas.classList.toggle("drawing", mode !== "move");
      }),
      h("span", { class: "zooms" }, tool("+", "Zoom in", () => this.scatter.zoomBy(1.5)), tool("−", "Zoom out", () => this.scatter.zoomBy(1 / 1.5)), tool("All", "Show everything", () => this.scatter.fit())),
      tool("Select view", "Select the items in view", () => void context.selection.put({ lasso: this.scatter.corners() })),
      h("label", { class: "by" }, "Colour by ", this.colour),
    );
    this.element = table.map.available ? h("section", { class: "atlas", "aria-label": "Map" }, tools, h("div", { class: "plane" }, canvas), this.legend, this.note) : absent(table, context.source.live);
    new MutationObserver(() => void this.dress(this.by)).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  }

  async start(): Promise<void> {
    if (!this.table.map.available) return;
    const { query } = readRoute();
    const [x, y] = await Promise.all([this.context.table.column("map.x"), this.context.table.column("map.y"), this.dress(this.chosen(query.get("by")))]);
    this.scatter.show(new PointGrid(x.values, y.values), parsed(query.get("at")));
    void this.describeRow(-1);
  }

  follow(): void {
    if (!this.table.map.available) return;
    const { query } = readRoute();
    const by = this.chosen(query.get("by"));
    if (by !== this.by) void this.dress(by);
    const view = parsed(query.get("at"));
    if (view === null) this.scatter.fit();
    else this.scatter.set(view);
  }

  select(selected: Selected): void {
    this.selected = selected;
    const lasso = selected.filters.find((each) => "lasso" in each);
    this.scatter.mark(lasso !== undefined && "lasso" in lasso ? lasso.lasso : null);
    if (this.look !== null) this.scatter.dress({ ...this.look, mask: selected.mask });
  }

  /** The column to colour by: the given one if it exists, else the labels, else kappa. */
  private chosen(name: string | null): string {
    const names = [...this.colour.options].map((option) => option.value);
    for (const each of [name, this.about.label_column]) if (each !== null && names.includes(each)) return each;
    return "kappa";
  }

  private async dress(name: string): Promise<void> {
    if (name === "" || !this.table.map.available) return;
    this.by = this.colour.value = name;
    const column = await this.context.table.column(name);
    if (this.by !== name) return;
    const { look, legend } = lookOf(this.context, column, name === this.about.label_column, this.element);
    this.look = look;
    fill(this.legend, legend);
    this.scatter.dress({ ...look, mask: this.selected?.mask ?? null });
  }

  private async open(row: number): Promise<void> {
    const [item] = await this.context.table.rows([row]);
    if (item !== undefined) location.hash = hrefOf(item.id);
  }

  private async describeRow(row: number): Promise<void> {
    if (row < 0) {
      fill(this.note, [h("span", { class: "hint" }, "Hover over a point, or use the arrow keys. Drag with Shift to draw a lasso.")]);
      return;
    }
    const found = await this.hovering.run((signal) => this.context.table.rows([row], signal)).catch(() => null);
    const item = found?.[0];
    if (item === undefined || this.hover !== row) return;
    const column = this.context.table.column(this.by);
    const { info, values, missing } = await column;
    const value = values[row] as number;
    const shown = info.kind === "number" ? number(value) : categoryName(info, value === missing ? -1 : value);
    fill(this.note, [
      item.picture !== null && picture(this.context.source, item, 48, labelOf(item.label) || item.id),
      h("span", {}, h("a", { href: hrefOf(item.id) }, nameOf(item)), h("small", {}, `${item.id}, κ ${number(item.kappa)}${this.by === "kappa" ? "" : `, ${this.by}: ${shown}`}`)),
    ]);
  }
}

/** What to do without a map; a file cannot get one by reloading it. */
function absent(table: TableInfo, live: boolean): HTMLElement {
  const reason = table.map.reason ?? "there is no map.";
  return h(
    "section",
    { class: "atlas empty", "aria-label": "Map" },
    h("p", {}, h("strong", {}, ...prose(capital(reason)))),
    live && h("p", {}, `A map places all ${count(table.rows)} items in two dimensions and is stored with the gallery. Reload this page once it is made.`),
    h("p", {}, "The histogram, the classes and the items below work without it."),
  );
}

function formatted({ x, y, zoom }: View2D): string {
  return [x, y, zoom].map((value) => Number(value.toPrecision(6))).join(",");
}

function parsed(text: string | null): View2D | null {
  const [x, y, zoom] = (text ?? "").split(",").map(Number);
  if (x === undefined || y === undefined || zoom === undefined) return null;
  return [x, y, zoom].every(Number.isFinite) && zoom > 0 ? { x, y, zoom } : null;
}
