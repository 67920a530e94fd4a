// The rejection curve: accuracy as the least certain items are rejected, with a draggable threshold.

import type { About, Rejection } from "./api";
import { debounced, fill, h, svg, trouble } from "./dom";
import type { View } from "./item";
import { changeQuery, readRoute } from "./route";
import { linkTo } from "./selection";
import type { Context } from "./tile";
import { count, number, percent, things } from "./words";

const LEFT = 56;
const RIGHT = 20;
const TOP = 18;
const BOTTOM = 46;
const AGAIN = 1500; // milliseconds between polls of the service

export function rejectionView(context: Context, about: About): View {
  const place = h("div", {}, h("p", { class: "status", role: "status" }, "Comparing each item with its nearest neighbour …"));
  const element = h(
    "section",
    { class: "rejection" },
    h("h1", {}, "What if you reject the least certain items?"),
    h(
      "p",
      { class: "lead" },
      "Each point of the curve keeps the items with κ above a threshold and shows how many of them have a nearest neighbour of the same class. Drag the line, or move it with the arrow keys.",
    ),
    place,
  );
  let left = false;
  const load = async (): Promise<void> => {
    try {
      const found = await context.source.rejection();
      if (left) return;
      if (found.available && found.curve.length > 1) fill(place, [chart(about, found)]);
      else if (about.label_column === null || found.reason) {
        const why = found.reason ?? "This gallery has no label column, so it is unknown which neighbours are correct.";
        fill(place, [h("p", { class: "empty" }, why)]);
      } else window.setTimeout(() => void load(), AGAIN);
    } catch (error) {
      fill(place, [trouble(error, () => void load())]);
    }
  };
  void load();
  return {
    element,
    leave() {
      left = true;
    },
  };
}

function chart(about: About, found: Rejection): HTMLElement {
  const [width, height] = innerWidth < 600 ? [380, 290] : [720, 340];
  const curve = [...found.curve].sort((a, b) => b.kept - a.kept);
  const scores = curve.map((point) => point.score);
  const low = Math.max(0, Math.floor(20 * Math.min(...scores) - 0.2) / 20);
  const high = 1;
  const x = (rejected: number): number => LEFT + rejected * (width - LEFT - RIGHT);
  const y = (score: number): number => TOP + ((high - score) / (high - low || 1)) * (height - TOP - BOTTOM);
  const path = curve.map((point, i) => `${i === 0 ? "M" : "L"}${x(1 - point.kept).toFixed(1)},${y(point.score).toFixed(1)}`);
  const area = `${path.join("")}L${x(1 - (curve.at(-1)?.kept ?? 0)).toFixed(1)},${y(low)}L${LEFT},${y(low)}Z`;
  const grey = svg("rect", { class: "dropped", x: LEFT, y: TOP, height: height - TOP - BOTTOM, width: 0 });
  const rule = svg("line", { y1: TOP, y2: height - BOTTOM });
  const knob = svg("circle", { r: 9 });
  const handle = svg(
    "g",
    {
      class: "handle",
      tabindex: "0",
      role: "slider",
      "aria-label": "Kappa threshold",
      "aria-valuemin": 0,
      "aria-valuemax": curve.length - 1,
    },
    rule,
    knob,
  );
  const drawing = svg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, class: "chart" },
    ...axes(x, y, low, high, width, height),
    grey,
    svg("path", { class: "area", d: area }),
    svg("path", { class: "curve", d: path.join("") }),
    handle,
  );
  const words = h("div", { class: "verdict", role: "status" });
  // not after a move to another view
  const keep = debounced(200, (threshold: number) => readRoute().view === "threshold" && changeQuery({ kappa: threshold.toPrecision(6) }, "replace"));
  const link = h("a", {}, "Select the rejected items on the map");
  let at = start(curve, Number(readRoute().query.get("kappa") ?? NaN));
  const move = (to: number): void => {
    at = Math.min(curve.length - 1, Math.max(0, to));
    const point = curve[at];
    const whole = curve[0];
    if (point === undefined || whole === undefined) return;
    const below = Math.round((1 - point.kept) * about.rows);
    const px = x(1 - point.kept);
    rule.setAttribute("x1", String(px));
    rule.setAttribute("x2", String(px));
    knob.setAttribute("cx", String(px));
    knob.setAttribute("cy", String(y(point.score)));
    grey.setAttribute("width", String(px - LEFT));
    link.setAttribute("href", linkTo("#/map", [{ c: "kappa", max: point.threshold }]));
    const text = `kappa ${number(point.threshold)}: ${percent(point.kept)} kept, ${percent(point.score)} correct`;
    handle.setAttribute("aria-valuenow", String(at));
    handle.setAttribute("aria-valuetext", text);
    fill(words, [
      fact(`κ ≥ ${number(point.threshold)}`, "threshold"),
      fact(percent(point.kept), `kept; ${count(below)} ${things(about, below)} rejected`),
      fact(percent(point.score), `have a nearest neighbour of the same class (R@1); ${percent(whole.score)} if none is rejected`),
    ]);
  };
  const choose = (to: number): void => {
    move(to);
    keep(curve[at]?.threshold ?? 0);
  };
  const follow = (event: PointerEvent): void => {
    const box = drawing.getBoundingClientRect();
    const wanted = (((event.clientX - box.left) / box.width) * width - LEFT) / (width - LEFT - RIGHT);
    let best = 0;
    curve.forEach((point, i) => {
      if (Math.abs(1 - point.kept - wanted) < Math.abs(1 - (curve[best]?.kept ?? 0) - wanted)) best = i;
    });
    choose(best);
  };
  drawing.addEventListener("pointerdown", (event) => {
    drawing.setPointerCapture(event.pointerId);
    event.preventDefault();
    (handle as unknown as HTMLElement).focus();
    follow(event);
  });
  drawing.addEventListener("pointermove", (event) => {
    if (drawing.hasPointerCapture(event.pointerId)) follow(event);
  });
  handle.addEventListener("keydown", (event) => {
    const key = (event as KeyboardEvent).key;
    const steps: Record<string, number> = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 };
    const step = key === "Home" ? -at : key === "End" ? curve.length : steps[key];
    if (step === undefined) return;
    event.preventDefault();
    choose(at + step);
  });
  move(at);
  return h("div", {}, h("div", { class: "outcome" }, h("div", { class: "panel" }, drawing), words), h("p", { class: "offer" }, link));
}

/** The point of the curve with the threshold of the address, or else with 80 % kept. */
function start(curve: Rejection["curve"], threshold: number): number {
  if (Number.isNaN(threshold)) return curve.reduce((best, point, i) => (point.kept >= 0.8 ? i : best), 0);
  const away = curve.map((point) => Math.abs(point.threshold - threshold));
  return away.indexOf(Math.min(...away));
}

function fact(value: string, words: string): HTMLElement {
  return h("p", {}, h("strong", {}, value), ` ${words}`);
}

function axes(
  x: (share: number) => number,
  y: (score: number) => number,
  low: number,
  high: number,
  width: number,
  height: number,
): SVGElement[] {
  const parts: SVGElement[] = [];
  const step = high - low > 0.5 ? 0.2 : high - low > 0.2 ? 0.1 : 0.05;
  for (let score = high; score >= low - 1e-9; score -= step) {
    parts.push(
      svg("line", { class: "rule", x1: LEFT, x2: width - RIGHT, y1: y(score), y2: y(score) }),
      svg("text", { x: LEFT - 8, y: y(score) + 4, "text-anchor": "end" }, percent(score)),
    );
  }
  for (const share of [0, 0.2, 0.4, 0.6, 0.8, 1]) {
    parts.push(svg("text", { x: x(share), y: height - BOTTOM + 20, "text-anchor": "middle" }, percent(share)));
  }
  parts.push(
    svg("text", { class: "axis", x: x(0.5), y: height - 6, "text-anchor": "middle" }, "fraction rejected, least certain first"),
  );
  return parts;
}
