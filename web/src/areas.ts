// Areas in which items are selected: polygons on a map, and rectangles in the plot of two kappas.

import type { Comparison } from "./answers";
import { fromBase64, type Numbers } from "./api";

const MOST_CORNERS = 200;

/** Where items are selected: a polygon on the first or the second map, or a rectangle of both kappas in the plot. */
export type Area = { on: 0 | 1; lasso: [number, number][] } | { on: "plot"; x: [number, number]; y: [number, number] };

/** An area as the address has it, or null. */
export function parseArea(text: string | null): Area | null {
  try {
    return checkedArea(JSON.parse(text ?? "null"));
  } catch {
    return null;
  }
}

/** The value if it is an area, or null. */
export function checkedArea(value: unknown): Area | null {
  if (typeof value !== "object" || value === null) return null;
  const { on, lasso, x, y } = value as Record<string, unknown>;
  const pair = (each: unknown): each is [number, number] => Array.isArray(each) && each.length === 2 && each.every(Number.isFinite);
  if (on === "plot") return pair(x) && pair(y) ? { on, x, y } : null;
  const corners = Array.isArray(lasso) ? lasso.filter(pair).slice(0, MOST_CORNERS) : [];
  return (on === 0 || on === 1) && corners.length > 2 ? { on, lasso: corners } : null;
}

/** A mask with 1 for each item of the comparison that lies in an area. */
export function maskOf(found: Comparison, area: Area): Uint8Array {
  const n = found.ids.length;
  const mask = new Uint8Array(n);
  const packed = area.on === "plot" ? found.points : found.maps[area.on];
  if (packed === null) return mask;
  const pairs = new Float32Array(fromBase64(packed));
  if (area.on !== "plot") {
    inside(area.lasso, column(pairs, 0), column(pairs, 1), mask);
    return mask;
  }
  for (let i = 0; i < n; i += 1) {
    const [x, y] = [onPlot(pairs[2 * i] as number), onPlot(pairs[2 * i + 1] as number)];
    if (x >= area.x[0] && x <= area.x[1] && y >= area.y[0] && y <= area.y[1]) mask[i] = 1;
  }
  return mask;
}

/** A kappa where the plot shows it: those of 0 and infinity are at its ends. */
export function onPlot(kappa: number): number {
  return Math.max(1e-6, Math.min(1e9, kappa));
}

/** The first or the second numbers of pairs. */
export function column(pairs: Float32Array, at: 0 | 1): Float32Array {
  return Float32Array.from({ length: pairs.length / 2 }, (_, i) => pairs[2 * i + at] as number);
}

/** Sets the mask for points in a polygon, by the even-odd rule. */
export function inside(polygon: [number, number][], x: Numbers, y: Numbers, mask: Uint8Array): void {
  const xs = polygon.map(([value]) => value);
  const ys = polygon.map(([, value]) => value);
  const [left, right] = [Math.min(...xs), Math.max(...xs)];
  const [low, high] = [Math.min(...ys), Math.max(...ys)];
  const n = polygon.length;
  for (let i = 0; i < mask.length; i += 1) {
    const px = x[i] as number;
    const py = y[i] as number;
    if (!(px >= left && px <= right && py >= low && py <= high)) continue;
    let odd = 0;
    for (let a = 0, b = n - 1; a < n; b = a, a += 1) {
      const ay = ys[a] as number;
      const by = ys[b] as number;
      if (ay > py === by > py) continue;
      const ax = xs[a] as number;
      if (px < ((xs[b] as number) - ax) * ((py - ay) / (by - ay)) + ax) odd ^= 1;
    }
    mask[i] = odd;
  }
}
