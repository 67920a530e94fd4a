// The map around a query: distance from the centre is the exact angle, so the cap is a circle.

import type { Item, Point } from "./api";
import { fill, h, svg } from "./dom";
import { type Context, hrefOf, picture } from "./tile";
import { angleOf, degrees, labelOf, nameOf, number } from "./words";

const SIZE = 440;
const EDGE = 14; // room for the dots at the rim

export interface AngleMap {
  element: HTMLElement;
  /** Replaces the points; the map extends to the given angle. */
  place(points: Point[], widest: number): void;
  /** The angle of the cap. */
  cap(angle: number): void;
}

export function angleMap(context: Context): AngleMap {
  let points: Point[] = [];
  let reach = 0; // unknown until there are points: until then the circle has no size
  let angle = 0;
  let chosen = -1;
  const scale = (value: number): number => (reach === 0 ? 0 : ((SIZE / 2 - EDGE) * value) / reach);
  const rings = svg("g", { class: "rings" });
  const disc = svg("circle", { class: "cap", r: 0 });
  const dots = svg("g", { class: "dots" });
  const halo = svg("circle", { class: "halo", r: 9, visibility: "hidden" });
  const drawing = svg(
    "svg",
    { viewBox: `${-SIZE / 2} ${-SIZE / 2} ${SIZE} ${SIZE}`, tabindex: "0", role: "application" },
    disc,
    rings,
    dots,
    halo,
    svg("g", { class: "centre" }, svg("circle", { r: 7 }), svg("circle", { r: 2.5 })),
  );
  drawing.setAttribute(
    "aria-label",
    "Map of the neighbourhood. Arrow keys move from the nearest item outwards, Enter opens an item.",
  );
  const note = h("div", { class: "note", "aria-live": "polite" });
  const elements: SVGCircleElement[] = [];

  const colour = (): void => {
    elements.forEach((element, i) => {
      const point = points[i];
      if (point === undefined) return;
      const inside = angleOf(point.cosine) <= angle + 1e-12;
      const own = context.colour(point.label);
      element.setAttribute("class", `${inside ? "in" : "out"} ${own === null ? "" : `c${own}`}`);
    });
  };
  const describe = (i: number): void => {
    chosen = i;
    const point = points[i];
    if (point === undefined) {
      halo.setAttribute("visibility", "hidden");
      fill(note, [h("span", { class: "hint" }, "Hover over an item, or use the arrow keys.")]);
      return;
    }
    halo.setAttribute("visibility", "visible");
    halo.setAttribute("cx", String(scale(point.x)));
    halo.setAttribute("cy", String(-scale(point.y)));
    const inside = angleOf(point.cosine) <= angle + 1e-12;
    const item: Pick<Item, "id" | "picture"> = { id: point.id, picture: point.picture ?? null };
    fill(note, [
      item.picture !== null && picture(context.source, item, 48, labelOf(point.label) || point.id),
      h(
        "span",
        {},
        h("a", { href: hrefOf(point.id) }, nameOf({ text: null, ...point })),
        h("small", {}, `κ ${number(point.kappa)}, ${degrees(point.cosine)} away, ${inside ? "in" : "outside"} the set`),
      ),
    ]);
  };
  const nearest = (event: MouseEvent): number => {
    const box = drawing.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width - 0.5) * SIZE;
    const y = ((event.clientY - box.top) / box.height - 0.5) * SIZE;
    let best = -1;
    let least = 16 ** 2;
    points.forEach((point, i) => {
      const away = (scale(point.x) - x) ** 2 + (-scale(point.y) - y) ** 2;
      if (away < least) [best, least] = [i, away];
    });
    return best;
  };
  const open = (): void => {
    const point = points[chosen];
    if (point !== undefined) location.hash = hrefOf(point.id);
  };
  drawing.addEventListener("pointermove", (event) => {
    const found = nearest(event);
    if (found !== chosen && found >= 0) describe(found);
    drawing.classList.toggle("pointing", found >= 0);
  });
  drawing.addEventListener("click", (event) => {
    const found = nearest(event);
    if (found < 0) return;
    const same = found === chosen;
    describe(found);
    // on touch, the first tap selects and the second opens
    if (same || (event as PointerEvent).pointerType !== "touch") open();
  });
  drawing.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Enter") open();
    if (step === undefined || points.length === 0) return;
    event.preventDefault();
    describe(Math.min(points.length - 1, Math.max(0, chosen + step)));
  });

  return {
    element: h("div", { class: "map" }, drawing, note),
    place(given, widest) {
      // nearest first: the order of the arrow keys
      points = [...given].sort((a, b) => b.cosine - a.cosine);
      reach = Math.min(Math.PI, Math.max(0.02, widest));
      drawRings(rings, reach, scale);
      elements.length = 0;
      for (const point of points) {
        elements.push(svg("circle", { cx: scale(point.x), cy: -scale(point.y), r: points.length > 150 ? 4 : 5 }));
      }
      fill(dots, [...elements].reverse());
      disc.setAttribute("r", String(scale(angle)));
      colour();
      describe(-1);
    },
    cap(given) {
      angle = given;
      disc.setAttribute("r", String(scale(angle)));
      colour();
      if (chosen >= 0) describe(chosen);
    },
  };
}

/** Circles at round angles, labelled in degrees. */
function drawRings(place: SVGGElement, reach: number, scale: (angle: number) => number): void {
  const whole = (reach * 180) / Math.PI;
  const step = [0.5, 1, 2, 5, 10, 15, 30, 45].find((each) => whole / each <= 4.5) ?? 60;
  const rings: SVGElement[] = [];
  for (let at = step; at <= whole; at += step) {
    const r = scale((at * Math.PI) / 180);
    rings.push(svg("circle", { r }), svg("text", { x: 0, y: -r - 3, "text-anchor": "middle" }, `${at}°`));
  }
  fill(place, rings);
}
