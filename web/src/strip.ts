// A histogram of log kappa, with marks.

import type { About } from "./api";
import { h, svg } from "./dom";
import { number } from "./words";

const HEIGHT = 56;
const BINS = 60;

export interface Mark {
  kappa: number;
  name: string;
}

export interface Strip {
  element: HTMLElement;
  mark(marks: Mark[]): void;
}

/** The histogram at a width in SVG units: the fewer, the larger its labels. */
export function strip(about: About, width = innerWidth < 600 ? 360 : 600): Strip {
  // an infinite kappa is null in JSON
  const quantiles = about.kappa.quantiles.filter(([, kappa]) => Number.isFinite(kappa));
  const low = Math.max(1e-3, quantiles[0]?.[1] ?? 1);
  const high = Math.max(low * 1.0001, quantiles.at(-1)?.[1] ?? 1);
  // the quantiles are of the stored float32
  const first = (quantiles[0]?.[1] ?? 0) * (1 - 1e-6);
  const last = quantiles.length < about.kappa.quantiles.length ? Infinity : (quantiles.at(-1)?.[1] ?? Infinity) * (1 + 1e-6);
  const place = (kappa: number): number => {
    const at = Math.log(Math.max(kappa, 1e-9) / low) / Math.log(high / low);
    return width * Math.min(1, Math.max(0, at));
  };
  const heights = histogram(quantiles, low, high);
  const most = Math.max(...heights, 1e-9);
  const bars = heights.map((height, i) =>
    svg("rect", {
      x: (i * width) / BINS + 0.5,
      width: width / BINS - 1,
      y: HEIGHT - (HEIGHT - 8) * (height / most),
      height: (HEIGHT - 8) * (height / most),
    }),
  );
  const marks = svg("g", { class: "marks" });
  const picture = svg(
    "svg",
    {
      viewBox: `0 -14 ${width} ${HEIGHT + 14}`,
      role: "img",
      "aria-label": `Histogram of kappa, from ${number(low)} to ${number(high)}, median ${number(about.kappa.median)}`,
    },
    svg("g", { class: "bars" }, ...bars),
    svg("line", { class: "base", x1: 0, x2: width, y1: HEIGHT, y2: HEIGHT }),
    marks,
  );
  const element = h(
    "figure",
    { class: "strip" },
    picture,
    h(
      "figcaption",
      {},
      h("span", {}, `κ ${number(low)}`, h("small", {}, "least certain")),
      h("span", {}, `median ${number(about.kappa.median)}`),
      h("span", {}, `${number(high)}`, h("small", {}, "most certain")),
    ),
  );
  return {
    element,
    mark(given) {
      const inside: SVGElement[] = [];
      const outside: [string[], string[]] = [[], []];
      for (const { kappa, name } of given) {
        const value = kappa ?? Infinity; // an infinite kappa is null in JSON
        if (value < first) outside[0].push(name);
        else if (value > last) outside[1].push(name);
        else {
          const x = place(value);
          const anchor = x < 40 ? "start" : x > width - 40 ? "end" : "middle";
          inside.push(svg("line", { x1: x, x2: x, y1: 0, y2: HEIGHT }));
          inside.push(svg("text", { x: Math.min(width - 2, Math.max(2, x)), y: -3, "text-anchor": anchor }, name));
        }
      }
      outside.forEach((names, i) => {
        if (names.length === 0) return;
        const [edge, tip, anchor, where] = i === 0 ? [11, 0, "start", "below all items"] : [width - 11, width, "end", "above all items"];
        inside.push(svg("path", { class: "beyond", d: `M${edge},${HEIGHT - 18}L${tip},${HEIGHT - 9}L${edge},${HEIGHT}Z` }));
        inside.push(svg("text", { x: tip, y: -3, "text-anchor": anchor }, `${names.join(" and ")}, ${where}`));
      });
      marks.replaceChildren(...inside);
    },
  };
}

/** The fraction of the gallery in each bin of log kappa, by linear interpolation of its quantiles. */
function histogram(quantiles: [number, number][], low: number, high: number): number[] {
  const below = (kappa: number): number => {
    let before: [number, number] | null = null;
    for (const [share, value] of quantiles) {
      if (value >= kappa) {
        if (before === null || value === before[1]) return share;
        return before[0] + ((share - before[0]) * (kappa - before[1])) / (value - before[1]);
      }
      before = [share, value];
    }
    return 1;
  };
  const edges = Array.from({ length: BINS + 1 }, (_, i) => low * (high / low) ** (i / BINS));
  const shares = edges.map(below);
  shares[0] = 0;
  shares[BINS] = 1;
  return shares.slice(1).map((share, i) => share - (shares[i] ?? 0));
}
