// Calibration: the coverage of caps on held-out pairs, and what to do if a gallery has none.

import type { About, Calibration } from "./api";
import { fill, h, svg, trouble } from "./dom";
import type { View } from "./item";
import type { Context } from "./tile";
import { count, percent } from "./words";

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [480, 420, 58, 16, 14, 50];

/** What sets cannot promise without a calibration; null if the gallery has one. */
export function calibrationBanner(about: About): HTMLElement | null {
  if (about.conformal !== false) return null;
  return h(
    "p",
    { class: "trouble banner", role: "note" },
    h("strong", {}, "This gallery is not calibrated."),
    " A set of 95 % may contain fewer matches than that. ",
    h("a", { href: "#/calibration" }, "How to calibrate it"),
  );
}

export function calibrationView(context: Context, about: About): View {
  const place = h("div", {}, h("p", { class: "status", role: "status" }, "Loading the calibration …"));
  const element = h(
    "section",
    { class: "calibration" },
    h("h1", {}, "Do sets contain as many matches as they claim?"),
    h(
      "p",
      { class: "lead" },
      "The mass of a set is a claim of the model. Held-out matching pairs show how often the match really was inside. Below the diagonal, sets are too small to rely on; above it, larger than needed.",
    ),
    place,
  );
  const load = async (): Promise<void> => {
    try {
      const found = await context.source.calibration();
      fill(place, found.available ? shown(context, found) : [advice(about)]);
    } catch (error) {
      fill(place, [trouble(error, () => void load())]);
    }
  };
  void load();
  return { element };
}

/** The share of held-out matches inside caps of this mass, interpolated between the points of the curve; null without a calibration. */
export function coverage({ curve }: Calibration, mass: number): number | null {
  const at = curve.findIndex(({ claimed }) => claimed >= mass - 1e-9);
  const after = curve[at];
  if (after === undefined) return null;
  const before = curve[at - 1] ?? after;
  const step = after.claimed - before.claimed;
  const share = step > 0 ? Math.min(1, (mass - before.claimed) / step) : 1;
  return (1 - share) * before.measured + share * after.measured;
}

function advice(about: About): HTMLElement {
  return h(
    "div",
    { class: "empty" },
    h("p", {}, h("strong", {}, "This gallery has no calibration. "), "Nothing measured says whether its sets contain as many matches as they claim."),
    h("p", {}, "To calibrate it, keep a table of matching rows that the head was not trained on (two or more rows of each group), and build the gallery with it:"),
    h("pre", {}, h("code", {}, "aureole index build items.parquet --head head --group-column group --conformal held-out.parquet --out gallery.lance")),
    h("p", {}, "In Python: ", h("code", {}, "index.conformal = au.ConformalMass.fit(posterior, partner, kappa_pos)")),
    about.kappa_pos === null ? h("p", {}, "The gallery does not record kappa_pos, which a calibration needs: build it with the head.") : null,
  );
}

function shown(context: Context, found: Calibration): HTMLElement[] {
  const at = found.curve.find((point) => Math.abs(point.claimed - 0.9) < 1e-9) ?? found.curve.at(-1);
  const rows = found.curve
    .filter((point) => [0.5, 0.8, 0.9, 0.95, 0.99].some((mass) => Math.abs(mass - point.claimed) < 1e-9))
    .map((point) =>
      h("tr", {}, h("th", { scope: "row" }, percent(point.claimed)), h("td", {}, percent(point.measured)), h("td", {}, point.level >= 1 ? "all items" : percent(point.level))),
    );
  const heads = ["claimed", "measured", "conformal mass"].map((name) => h("th", { scope: "col" }, name));
  return [
    h(
      "div",
      { class: "outcome" },
      h("div", { class: "panel" }, chart(found)),
      h(
        "div",
        { class: "verdict", role: "status" },
        at ? h("p", {}, h("strong", {}, percent(at.measured)), ` of the matches are inside sets that claim ${percent(at.claimed)}`) : null,
        h("p", {}, `Measured on ${count(found.pairs)} held-out pairs.`),
        h("table", { class: "coverage" }, h("thead", {}, h("tr", {}, ...heads)), h("tbody", {}, ...rows)),
        h(
          "p",
          { class: "fine" },
          context.source.live
            ? "The conformal mass is what a search uses when you turn on Guaranteed for the matches of an item or a query: new pairs like these are then inside as often as claimed."
            : "The conformal mass contains new pairs like these as often as claimed. Serve the gallery to search with it.",
        ),
      ),
    ),
  ];
}

function chart(found: Calibration): SVGElement {
  const x = (share: number): number => LEFT + share * (WIDTH - LEFT - RIGHT);
  const y = (share: number): number => TOP + (1 - share) * (HEIGHT - TOP - BOTTOM);
  const path = found.curve.map((p, i) => `${i === 0 ? "M" : "L"}${x(p.claimed).toFixed(1)},${y(p.measured).toFixed(1)}`).join("");
  const ticks = [0, 0.2, 0.4, 0.6, 0.8, 1].flatMap((share) => [
    svg("line", { class: "rule", x1: LEFT, x2: WIDTH - RIGHT, y1: y(share), y2: y(share) }),
    svg("text", { x: LEFT - 8, y: y(share) + 4, "text-anchor": "end" }, percent(share)),
    svg("text", { x: x(share), y: HEIGHT - BOTTOM + 20, "text-anchor": "middle" }, percent(share)),
  ]);
  return svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart still", role: "img", "aria-label": "Measured share of matches against the claimed mass" },
    ...ticks,
    svg("line", { class: "faint", x1: x(0), y1: y(0), x2: x(1), y2: y(1) }),
    svg("path", { class: "curve", d: path }),
    ...found.curve.map((p) => svg("circle", { class: "spot", cx: x(p.claimed), cy: y(p.measured), r: 4 })),
    svg("text", { class: "axis", x: x(0.5), y: HEIGHT - 8, "text-anchor": "middle" }, "claimed mass of the set"),
  );
}
