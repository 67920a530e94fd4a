// Two galleries of the same items: how certain each is, both maps, a plot of both kappas with a brush, and what moved most.

import type { ComparedGallery, Comparison, MovedBy } from "./answers";
import { type About, fromBase64 } from "./api";
import { type Area, onPlot } from "./areas";
import { bothKappas, ComparedMaps, Picked } from "./compare_maps";
import { choice, debounced, fill, h, Latest, trouble } from "./dom";
import type { View } from "./item";
import { changeQuery, readRoute } from "./route";
import { linkTo } from "./selection";
import { type Context, tile } from "./tile";
import { count, number, percent, things } from "./words";

const AGAIN = 1500; // milliseconds between polls while the galleries are compared
const MOVERS = 24;
const BRUSHED = 60; // items of a brush that are shown
const MARGIN = 46;
const HINT = "Drag a rectangle over points to see them, fill in its sides, or select some on the maps.";

interface Brush {
  x: [number, number];
  y: [number, number];
}

export function compareView(context: Context, about: About): View {
  const place = h("div", {}, h("p", { class: "status", role: "status" }, "Loading the comparison …"));
  const element = h("section", { class: "compare" }, h("h1", {}, "What do two encoders disagree about?"), place);
  let left = false;
  const theme = new MutationObserver(() => redraw());
  let redraw = (): void => undefined;
  let follow = (): void => undefined;
  theme.observe(document.documentElement, { attributeFilter: ["data-theme"] });
  const load = async (): Promise<void> => {
    try {
      const found = await context.source.comparison();
      if (left) return;
      if (found.available && found.summary !== null) {
        const page = parts(context, about, found);
        redraw = page.redraw;
        follow = page.follow;
        fill(place, page.elements);
        return follow();
      }
      const reason = found.reason ?? "there is no other gallery.";
      fill(place, [h("p", { class: "empty", role: "status" }, reason.charAt(0).toUpperCase() + reason.slice(1))]);
      if (reason.includes("being compared")) window.setTimeout(() => !left && void load(), AGAIN);
    } catch (error) {
      fill(place, [trouble(error, () => void load())]);
    }
  };
  void load();
  return {
    element,
    follow: () => follow(),
    leave() {
      left = true;
      theme.disconnect();
    },
  };
}

interface Parts {
  elements: HTMLElement[];
  redraw(): void;
  /** Takes the selection, the colour and the kind of movers of the address. */
  follow(): void;
}

function parts(context: Context, about: About, found: Comparison): Parts {
  const summary = found.summary as NonNullable<Comparison["summary"]>;
  const names = summary.galleries.map((gallery) => gallery.name) as [string, string];
  const only = summary.only.some((n) => n > 0)
    ? ` ${count(summary.only[0])} are only in the first and ${count(summary.only[1])} only in the second.`
    : "";
  const correlation = summary.rank_correlation === null ? "–" : summary.rank_correlation.toFixed(2);
  const overlap = summary.overlap === null ? "–" : percent(summary.overlap);
  const picked = new Picked(found);
  const maps = new ComparedMaps(context, about, found, names, picked);
  const plot = scatter(context, about, found, names, picked);
  const moved = movers(context, names);
  maps.start().catch((error: unknown) => maps.element.append(trouble(error)));
  const elements = [
    h(
      "p",
      { class: "lead" },
      `${count(summary.items)} ${things(about, summary.items)} are in both galleries.${only} The rank correlation of κ is `,
      h("strong", {}, correlation),
      ", and ",
      h("strong", {}, overlap),
      " of the 10 nearest neighbours are the same.",
    ),
    table(summary.galleries),
    maps.element,
    plot.element,
    moved.element,
  ];
  const redraw = (): void => {
    plot.draw();
    void maps.dress();
  };
  const follow = (): void => {
    picked.follow();
    maps.follow();
    moved.follow();
  };
  return { elements, redraw, follow };
}

function table(galleries: [ComparedGallery, ComparedGallery]): HTMLElement {
  const rows: [string, (gallery: ComparedGallery) => string][] = [
    ["dimensions", (each) => count(each.dim)],
    ["κ, median", (each) => number(each.kappa[1])],
    ["κ, 90 % within", (each) => `${number(each.kappa[0])} to ${number(each.kappa[2])}`],
    ["nearest neighbour has the same label (R@1)", (each) => (each.recall_at_1 === null ? "no labels" : percent(each.recall_at_1))],
    ...["0.5", "0.9", "0.95"].map((mass): [string, (gallery: ComparedGallery) => string] => [
      `caps of ${percent(Number(mass))} contain a match`,
      (each) => (each.coverage === null ? "unknown" : percent(each.coverage[mass] ?? NaN)),
    ]),
  ];
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "Both galleries" },
    h(
      "table",
      { class: "facts-table" },
      h("caption", { class: "hidden" }, "Both galleries"),
      h("thead", {}, h("tr", {}, h("td", {}), ...galleries.map((each) => h("th", { scope: "col" }, each.name)))),
      h("tbody", {}, ...rows.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), ...galleries.map((each) => h("td", {}, value(each)))))),
    ),
  );
}

function scatter(context: Context, about: About, found: Comparison, names: [string, string], picked: Picked): { element: HTMLElement; draw: () => void } {
  const values = new Float32Array(fromBase64(found.points));
  const side = Math.min(460, innerWidth - 64);
  const canvas = h("canvas", {
    width: side * 2,
    height: side * 2,
    role: "img",
    "aria-label": `Scatter plot of kappa in ${names[0]} (across) and in ${names[1]} (up), both on log scales. The fields below it select a range of each.`,
  });
  canvas.style.width = `${side}px`;
  canvas.style.height = `${side}px`;
  const axes = [0, 1].map((axis) => new Axis(values, axis, side, axis === 1)) as [Axis, Axis];
  const list = h("ul", { class: "grid" });
  const words = h("p", { class: "status", role: "status" }, HINT);
  const offer = h("p", { class: "offer" });
  let brush: Brush | null = null;
  const draw = (): void => paint(canvas, side, values, axes, brush, picked, names);
  let how: "push" | "replace" = "push"; // one step for Back for each rectangle
  let picking = false;
  const pick = debounced(150, () => {
    if (brush === null || readRoute().view !== "compare") return;
    picking = true;
    picked.select(areaOf(brush, axes), how);
    picking = false;
    how = "replace";
  });
  const sides = new Sides(axes, side, names, (given) => {
    brush = given;
    how = "push";
    draw();
    if (given === null) picked.select(null);
    else pick();
  });
  let before: Uint8Array | null = null;
  picked.onChange(() => {
    if (!picking) brush = picked.area?.on === "plot" ? brushOf(picked.area, axes) : null;
    draw();
    if (picked.mask === before) return;
    before = picked.mask;
    if (!picking) sides.show(brush);
    if (before === null) {
      loading.stop();
      fill(words, [HINT]);
      fill(offer, []);
      return fill(list, []);
    }
    const inside = picked.places();
    const where = picked.by === "plot" ? "in the rectangle" : `selected on the map of ${names[picked.by]}`;
    fill(words, [`${count(inside.length)} ${things(about, inside.length)} ${where}.`]);
    list_(inside).catch((error: unknown) => fill(list, [trouble(error)]));
  });
  const loading = new Latest();
  const list_ = async (inside: number[]): Promise<void> => {
    const ids = inside.slice(0, BRUSHED).map((i) => found.ids[i] as string);
    const rows = await loading.run(() => context.source.numbers(ids));
    if (rows === null) return;
    const known = rows.flatMap((row) => (row === null ? [] : [row]));
    const items = await context.table.rows(known);
    const place = new Map(inside.map((i) => [found.ids[i] as string, i]));
    fill(
      list,
      items.map((item) => {
        const i = place.get(item.id) ?? 0;
        return h("li", {}, tile(context, item, h("small", {}, bothKappas(values, i))));
      }),
    );
    const { area } = picked;
    fill(offer, [area !== null && inside.length > 0 && h("a", { href: linkTo("#/map", [{ compared: area }]) }, `Select ${inside.length === 1 ? "it" : `all ${count(inside.length)}`} on the map`)]);
  };
  const at = (event: PointerEvent): [number, number] => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  let from: [number, number] | null = null;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    from = at(event);
    how = "push";
  });
  canvas.addEventListener("pointermove", (event) => {
    if (from === null) return;
    const to = at(event);
    brush = { x: sortedPair(from[0], to[0]), y: sortedPair(from[1], to[1]) };
    sides.show(brush);
    draw();
    pick();
  });
  canvas.addEventListener("pointerup", () => {
    from = null;
  });
  draw();
  const element = h(
    "div",
    { class: "panel scatter" },
    h("h2", {}, "κ in both galleries"),
    canvas,
    h("div", {}, sides.element, words, offer, list),
  );
  return { element, draw };
}

/** A log scale of one of the two kappas. */
class Axis {
  readonly low: number;
  readonly high: number;

  constructor(
    values: Float32Array,
    private readonly column: number,
    private readonly side: number,
    private readonly up: boolean,
  ) {
    let [low, high] = [Infinity, -Infinity];
    for (let i = column; i < values.length; i += 2) {
      const value = onPlot(values[i] as number);
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
    if (!(high > low)) [low, high] = [low / 2, low * 2];
    this.low = Math.log(low) - 0.03 * Math.log(high / low);
    this.high = Math.log(high) + 0.03 * Math.log(high / low);
  }

  /** The position of a kappa in pixels. */
  at(value: number): number {
    const share = (Math.log(onPlot(value)) - this.low) / (this.high - this.low);
    const length = this.side - MARGIN - 8;
    return this.up ? 8 + (1 - share) * length : MARGIN + share * length;
  }

  /** The kappa at a position, with four digits. */
  value(at: number): number {
    const length = this.side - MARGIN - 8;
    const share = this.up ? 1 - (at - 8) / length : (at - MARGIN) / length;
    return Number(Math.exp(this.low + share * (this.high - this.low)).toPrecision(4));
  }

  of(values: Float32Array, i: number): number {
    return this.at(values[2 * i + this.column] as number);
  }

  /** 1, 2 and 5 times powers of ten, at most six of them. */
  ticks(): number[] {
    const all: number[] = [];
    for (let power = Math.floor(this.low / Math.LN10); power <= Math.ceil(this.high / Math.LN10); power += 1) {
      for (const digit of [1, 2, 5]) {
        const value = digit * 10 ** power;
        if (Math.log(value) >= this.low && Math.log(value) <= this.high) all.push(value);
      }
    }
    const step = Math.ceil(all.length / 6);
    return all.filter((_, i) => i % step === 0);
  }
}

/** The sides of the rectangle as kappas in four fields; an empty one is open. */
class Sides {
  readonly element: HTMLElement;
  private readonly inputs: HTMLInputElement[];

  constructor(
    private readonly axes: [Axis, Axis],
    private readonly side: number,
    names: [string, string],
    take: (brush: Brush | null) => void,
  ) {
    const rows = names.map((name) => {
      const [low, high] = ["Smallest", "Largest"].map((which) => h("input", { type: "number", step: "any", min: 0, "aria-label": `${which} κ in ${name}` }));
      return [low, high] as [HTMLInputElement, HTMLInputElement];
    });
    this.inputs = rows.flat();
    const ranges = rows.map(([low, high], i) => h("div", { class: "range" }, h("span", { class: "by" }, `κ in ${names[i]}`), low, h("span", { "aria-hidden": "true" }, "–"), high));
    this.element = h("form", { class: "ranges" }, ...ranges, h("button", { type: "submit" }, "Select"));
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      take(this.read());
    });
  }

  show(brush: Brush | null): void {
    const [x, y] = this.axes;
    const values = brush === null ? [] : [x.value(brush.x[0]), x.value(brush.x[1]), y.value(brush.y[1]), y.value(brush.y[0])];
    this.inputs.forEach((input, i) => (input.value = values[i] === undefined ? "" : String(values[i])));
  }

  private read(): Brush | null {
    const [x, y] = this.axes;
    if (this.inputs.every((input) => input.value === "")) return null;
    const at = (i: number, axis: Axis, open: number): number => {
      const text = this.inputs[i]?.value ?? "";
      return text === "" ? open : axis.at(Number(text));
    };
    // the pixels of y run downwards
    return { x: sortedPair(at(0, x, 0), at(1, x, this.side)), y: sortedPair(at(3, y, 0), at(2, y, this.side)) };
  }
}

function within(brush: Brush, axes: [Axis, Axis], values: Float32Array, i: number): boolean {
  const [x, y] = [axes[0].of(values, i), axes[1].of(values, i)];
  return x >= brush.x[0] && x <= brush.x[1] && y >= brush.y[0] && y <= brush.y[1];
}

/** The kappas of a rectangle; the y axis points up. */
function areaOf({ x, y }: Brush, [across, up]: [Axis, Axis]): Area {
  return { on: "plot", x: [across.value(x[0]), across.value(x[1])], y: [up.value(y[1]), up.value(y[0])] };
}

function brushOf({ x, y }: Extract<Area, { on: "plot" }>, [across, up]: [Axis, Axis]): Brush {
  return { x: [across.at(x[0]), across.at(x[1])], y: [up.at(y[1]), up.at(y[0])] };
}

function paint(canvas: HTMLCanvasElement, side: number, values: Float32Array, axes: [Axis, Axis], brush: Brush | null, picked: Picked, names: [string, string]): void {
  const context = canvas.getContext("2d");
  if (context === null) return;
  const style = getComputedStyle(document.documentElement);
  const colour = (name: string): string => style.getPropertyValue(name).trim();
  context.setTransform(2, 0, 0, 2, 0, 0);
  context.clearRect(0, 0, side, side);
  context.strokeStyle = colour("--line");
  context.fillStyle = colour("--soft");
  context.font = "12px system-ui, sans-serif";
  for (const tick of axes[0].ticks()) {
    const x = axes[0].at(tick);
    line(context, x, 8, x, side - MARGIN);
    context.textAlign = "center";
    context.fillText(number(tick), x, side - MARGIN + 16);
  }
  for (const tick of axes[1].ticks()) {
    const y = axes[1].at(tick);
    line(context, MARGIN, y, side - 8, y);
    context.textAlign = "right";
    context.fillText(number(tick), MARGIN - 6, y + 4);
  }
  context.textAlign = "right";
  context.fillText(cut(`κ in ${names[0]} →`), side - 8, side - 10);
  context.textAlign = "left";
  context.fillText(cut(`κ in ${names[1]} ↑`), 2, side - 10);
  const size = values.length > 8000 ? 2 : 3;
  context.globalAlpha = values.length > 8000 ? 0.35 : 0.6;
  const [plain, accent] = [colour("--soft"), colour("--accent")];
  const chosen = (i: number): boolean => (brush === null ? picked.mask?.[i] === 1 : within(brush, axes, values, i));
  const draw = (i: number): void => context.fillRect(axes[0].of(values, i) - size / 2, axes[1].of(values, i) - size / 2, size, size);
  // the selected lie on top
  context.fillStyle = plain;
  for (let i = 0; 2 * i < values.length; i += 1) if (!chosen(i)) draw(i);
  context.fillStyle = accent;
  for (let i = 0; 2 * i < values.length; i += 1) if (chosen(i)) draw(i);
  context.globalAlpha = 1;
  if (picked.pointed >= 0) {
    context.strokeStyle = colour("--ink");
    context.beginPath();
    context.arc(axes[0].of(values, picked.pointed), axes[1].of(values, picked.pointed), 7, 0, 2 * Math.PI);
    context.stroke();
  }
  if (brush !== null) {
    context.strokeStyle = colour("--accent");
    context.strokeRect(brush.x[0], brush.y[0], brush.x[1] - brush.x[0], brush.y[1] - brush.y[0]);
  }
}

function line(context: CanvasRenderingContext2D, x0: number, y0: number, x1: number, y1: number): void {
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
}

function cut(text: string): string {
  return text.length > 30 ? `${text.slice(0, 12)}…${text.slice(-16)}` : text;
}

function sortedPair(a: number, b: number): [number, number] {
  return a < b ? [a, b] : [b, a];
}

const MOVED: Record<MovedBy, string> = { kappa: "Rank of κ", up: "More certain", down: "Less certain", neighbours: "Neighbours" };

function movers(context: Context, names: [string, string]): { element: HTMLElement; follow: () => void } {
  const list = h("ul", { class: "grid" });
  const loading = new Latest();
  const show = async (by: MovedBy): Promise<void> => {
    try {
      const found = await loading.run((signal) => context.source.movers(by, 0, MOVERS, signal));
      if (found === null) return;
      fill(
        list,
        found.entries.map((each) => {
          const kappas = each.kappa.map((kappa) => (kappa === null ? "∞" : number(kappa))).join(" → ");
          const change = each.rank_change;
          const moved = by === "neighbours" ? `${percent(each.overlap)} the same` : `rank ${change < 0 ? "−" : "+"}${Math.round(Math.abs(100 * change))}\u00a0%`;
          return h("li", {}, tile(context, each.item, h("span", { class: "kappa" }, `κ ${kappas}`), h("small", {}, moved)));
        }),
      );
    } catch (error) {
      fill(list, [trouble(error, () => void show(by))]);
    }
  };
  let shown: MovedBy | null = null;
  const follow = (): void => {
    const wanted = readRoute().query.get("moved") ?? "";
    const by = wanted in MOVED ? (wanted as MovedBy) : "kappa";
    if (by === shown) return;
    shown = by;
    const input = choices.querySelector<HTMLInputElement>(`input[value=${by}]`);
    if (input !== null) input.checked = true;
    void show(by);
  };
  const choices = choice("Moved by", MOVED, (by) => {
    changeQuery({ moved: by === "kappa" ? null : by }, "push");
    follow();
  });
  const element = h(
    "div",
    { class: "panel" },
    h("h2", {}, "What moved most"),
    h("p", { class: "lead" }, `κ in ${names[0]} → in ${names[1]}. Two encoders have no common scale of κ, so ranks are compared.`),
    choices,
    list,
  );
  return { element, follow };
}
