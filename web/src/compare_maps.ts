// The maps of two galleries side by side: what is selected or pointed at on one is marked on the other.

import type { Comparison } from "./answers";
import { type About, fromBase64, type TableInfo } from "./api";
import { type Area, column, maskOf, parseArea } from "./areas";
import { choice, debounced, fill, h, Latest, prose } from "./dom";
import { columnName } from "./filters";
import { lookOf } from "./look";
import { PointGrid } from "./points";
import { changeQuery, readRoute } from "./route";
import { type Mode, MODES, Scatter } from "./scatter";
import type { Column } from "./table";
import { type Context, hrefOf, picture } from "./tile";
import { count, labelOf, nameOf, number, things } from "./words";

/** The items that are selected in the comparison, and the one that is pointed at: places in `ids`. */
export class Picked {
  mask: Uint8Array | null = null;
  area: Area | null = null;
  pointed = -1;
  private readonly listeners: (() => void)[] = [];

  constructor(private readonly found: Comparison) {}

  onChange(act: () => void): void {
    this.listeners.push(act);
  }

  /** Where the items were selected: on the first or the second map, or in the plot. */
  get by(): 0 | 1 | "plot" {
    return this.area?.on ?? "plot";
  }

  /** Selects the items of an area and puts it into the address; "replace" adds no step for Back (while dragging). */
  select(area: Area | null, how: "push" | "replace" = "push"): void {
    changeQuery({ sel: area === null ? null : JSON.stringify(area) }, how);
    this.follow();
  }

  /** Takes the area of the address. */
  follow(): void {
    const area = parseArea(readRoute().query.get("sel"));
    if (JSON.stringify(area) === JSON.stringify(this.area)) return;
    this.area = area;
    this.mask = area === null ? null : maskOf(this.found, area);
    for (const act of this.listeners) act();
  }

  point(place: number): void {
    if (place === this.pointed) return;
    this.pointed = place;
    for (const act of this.listeners) act();
  }

  places(): number[] {
    const found: number[] = [];
    this.mask?.forEach((value, i) => value === 1 && found.push(i));
    return found;
  }
}

const NAMES = ["first map", "second map"] as const;

/** Both kappas of an item, from pairs: "κ 9.1 → 12.4". */
export function bothKappas(pairs: Float32Array, place: number): string {
  return `κ ${number(pairs[2 * place] as number)} → ${number(pairs[2 * place + 1] as number)}`;
}

/** One of the maps; null if the gallery has none. */
interface Side {
  scatter: Scatter;
  grid: PointGrid;
  kappa: Float32Array;
  absent: number;
}

export class ComparedMaps {
  readonly element: HTMLElement;
  private readonly sides: (Side | null)[];
  private readonly kappas: Float32Array;
  private readonly note = h("div", { class: "note", "aria-live": "polite" });
  private readonly legends = [h("div", { class: "legend" }), h("div", { class: "legend" })];
  private readonly colour = h("select", { "aria-label": "Colour by" });
  private readonly words = h("span", { class: "hint" });
  private readonly clear = h("button", { type: "button", disabled: true, onclick: () => this.picked.select(null) }, "Clear selection");
  private readonly hovering = new Latest();
  private readonly describe = debounced(40, () => void this.describeItem());
  private rows: (number | null)[] = [];
  private shown: { mask: Uint8Array | null } | null = null;

  constructor(
    private readonly context: Context,
    private readonly about: About,
    private readonly found: Comparison,
    names: [string, string],
    private readonly picked: Picked,
  ) {
    this.kappas = new Float32Array(fromBase64(found.points));
    this.sides = found.maps.map((packed, at) => (packed === null ? null : this.side(new Float32Array(fromBase64(packed)), at as 0 | 1)));
    const modes = choice("Dragging", MODES, (mode: Mode) => {
      for (const side of this.sides) {
        if (side === null) continue;
        side.scatter.mode = mode;
        side.scatter.canvas.classList.toggle("drawing", mode !== "move");
      }
    });
    const some = this.sides.some((side) => side !== null);
    this.element = h(
      "section",
      { class: "panel both", "aria-label": "Both maps" },
      h("h2", {}, "Both maps"),
      some && h("div", { class: "tools" }, modes, this.clear, this.words, h("label", { class: "by" }, "Colour by ", this.colour)),
      h("div", { class: "planes" }, ...this.sides.map((side, at) => this.plane(side, at as 0 | 1, names[at] as string))),
      some && this.note,
    );
    this.colour.addEventListener("change", () => {
      changeQuery({ by: this.colour.value }, "push");
      void this.dress();
    });
    picked.onChange(() => this.show());
    if (some) void this.describeItem();
  }

  /** Colours the points; call it again when the theme has changed. */
  async start(): Promise<void> {
    if (this.sides.every((side) => side === null)) return;
    const table = await this.context.table.info();
    this.rows = await this.context.source.numbers(this.found.ids);
    this.offer(table);
    await this.dress();
  }

  /** Takes the colour of the address. */
  follow(): void {
    const before = this.colour.value;
    this.colour.value = this.chosen();
    if (this.colour.value !== before) void this.dress();
  }

  async dress(): Promise<void> {
    const name = this.colour.value;
    if (name === "") return;
    const column = await this.context.table.column(name);
    if (this.colour.value !== name) return;
    this.sides.forEach((side, at) => {
      if (side === null) return;
      const { look, legend } = lookOf(this.context, name === "kappa" ? { ...column, values: side.kappa } : this.taken(column), name === this.about.label_column, this.element);
      const away = side.absent > 0 ? h("small", {}, `${count(side.absent)} ${things(this.about, side.absent)} are not on this map`) : null;
      fill(this.legends[at] as HTMLElement, [...legend, away]);
      side.scatter.dress({ ...look, mask: this.picked.mask });
    });
  }

  private offer(table: TableInfo): void {
    const columns = table.columns.filter(({ kind, name }) => kind !== "text" && !name.startsWith("map."));
    fill(this.colour, columns.map(({ name }) => h("option", { value: name }, columnName(name))));
    this.colour.value = this.chosen();
  }

  /** The column to colour by: that of the address if it exists, else the labels, else kappa. */
  private chosen(): string {
    const names = [...this.colour.options].map((option) => option.value);
    const wanted = [readRoute().query.get("by"), this.about.label_column];
    return wanted.find((name): name is string => name !== null && names.includes(name)) ?? "kappa";
  }

  /** The values of a column of the first gallery, in the order of the comparison. */
  private taken({ info, values, missing }: Column): Column {
    const own = info.kind === "number" ? new Float32Array(this.rows.length) : new Uint32Array(this.rows.length);
    const none = info.kind === "number" ? NaN : missing;
    this.rows.forEach((row, i) => {
      own[i] = row === null ? none : (values[row] as number);
    });
    return { info, values: own, missing };
  }

  private side(xy: Float32Array, at: 0 | 1): Side {
    const [x, y, kappa] = [column(xy, 0), column(xy, 1), column(this.kappas, at)];
    const absent = x.reduce((total, value) => total + Number(Number.isNaN(value)), 0);
    const scatter = new Scatter({
      hover: (place) => this.picked.point(place),
      open: (place) => {
        location.hash = hrefOf(this.found.ids[place] as string);
      },
      lasso: (corners) => this.picked.select({ on: at, lasso: corners }),
      settled: () => undefined,
      contents: () => undefined,
    });
    const grid = new PointGrid(x, y);
    scatter.show(grid, null);
    return { scatter, grid, kappa, absent };
  }

  private plane(side: Side | null, at: 0 | 1, name: string): HTMLElement {
    const where = NAMES[at];
    if (side === null) {
      const how = `\`aureole index map\` creates the map of this gallery. Then restart the service.`;
      return h("div", { class: "atlas empty" }, h("p", {}, h("strong", {}, `${name} has no map yet.`)), h("p", {}, ...prose(how)));
    }
    const { canvas } = side.scatter;
    canvas.setAttribute("aria-label", `Map of ${name}. Arrow keys move, plus and minus zoom, 0 shows everything, Enter opens the item in the middle, which is marked on the other map too.`);
    const tool = (text: string, title: string, act: () => void): HTMLElement => h("button", { type: "button", "aria-label": `${title}, ${where}`, title, onclick: act }, text);
    return h(
      "div",
      { class: "atlas" },
      h(
        "div",
        { class: "tools" },
        h("h3", {}, name),
        h("span", { class: "zooms" }, tool("+", "Zoom in", () => side.scatter.zoomBy(1.5)), tool("−", "Zoom out", () => side.scatter.zoomBy(1 / 1.5)), tool("All", "Show all", () => side.scatter.fit())),
        tool("Select view", "Select view", () => this.selectView(side)),
      ),
      h("div", { class: "plane" }, canvas),
      this.legends[at],
    );
  }

  private selectView({ scatter }: Side): void {
    scatter.select(scatter.corners());
  }

  private show(): void {
    const { mask, area, pointed } = this.picked;
    const changed = this.shown === null || this.shown.mask !== mask;
    this.shown = { mask };
    this.clear.disabled = mask === null;
    const selected = this.picked.places().length;
    fill(this.words, [mask !== null && `${count(selected)} ${things(this.about, selected)} selected, listed below.`]);
    this.sides.forEach((side, at) => {
      if (side === null) return;
      side.scatter.ring(pointed);
      if (!changed) return;
      side.scatter.mask(mask);
      side.scatter.mark(area !== null && area.on !== "plot" && area.on === at ? area.lasso : null);
    });
    this.describe();
  }

  private async describeItem(): Promise<void> {
    const place = this.picked.pointed;
    const id = this.found.ids[place];
    if (id === undefined) {
      fill(this.note, [h("span", { class: "hint" }, "Hover over a point to see it on both maps. Drag with Shift to draw a lasso.")]);
      return;
    }
    const row = this.rows[place] ?? null;
    const found = row === null ? null : await this.hovering.run((signal) => this.context.table.rows([row], signal)).catch(() => null);
    if (this.picked.pointed !== place) return;
    const item = found?.[0];
    fill(this.note, [
      item !== undefined && item.picture !== null && picture(this.context.source, item, 48, labelOf(item.label) || id),
      h("span", {}, h("a", { href: hrefOf(id) }, item === undefined ? id : nameOf(item)), h("small", {}, `${id}, ${bothKappas(this.kappas, place)}`)),
    ]);
  }
}
