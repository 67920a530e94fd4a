// Colours of the points of the map, and their legend.

import { type Child, h } from "./dom";
import { categoryName, columnName } from "./filters";
import type { Look as Painted } from "./points";
import type { Column } from "./table";
import { type Context, dot } from "./tile";
import { number } from "./words";

export type Look = Omit<Painted, "mask">;

const STEPS = 64;
const STOPS = 5; // --s0 … --s4
const OWN = 10; // --c0 … --c9
const LISTED = 12;

/** The colours of a column and their legend; categories of the label column have the colours of the page. */
export function lookOf(context: Context, column: Column, labels: boolean, element: HTMLElement): { look: Look; legend: Child[] } {
  const style = getComputedStyle(element);
  const faint = rgb(style.getPropertyValue("--soft"));
  if (column.info.kind === "number") return numbers(column, style, faint);
  const { values, info, missing } = column;
  const names = info.values ?? [];
  const colour = (code: number): number | null => (labels ? context.colour(names[code]) : code % OWN);
  const codes = new Uint8Array(values.length);
  const table = names.map((_, code) => colour(code) ?? OWN);
  for (let i = 0; i < values.length; i += 1) {
    const code = values[i] as number;
    codes[i] = code === missing ? OWN : (table[code] as number);
  }
  const own = Array.from({ length: OWN }, (_, i) => rgb(style.getPropertyValue(`--c${i}`)));
  const legend: Child[] = names.slice(0, LISTED).map((_, code) => h("span", {}, dot(colour(code)), categoryName(info, code)));
  if (names.length > LISTED) legend.push(h("span", {}, `and ${names.length - LISTED} more`));
  if (names.length > OWN) legend.push(h("small", {}, "colours repeat: click on a class to see it alone"));
  return { look: { codes, palette: Uint8Array.from([...own, faint].flat()), ordered: false, faint }, legend };
}

function numbers({ values, info }: Column, style: CSSStyleDeclaration, faint: [number, number, number]): { look: Look; legend: Child[] } {
  const log = info.name === "kappa";
  const [low, high] = ends(values);
  const scale = (value: number): number => (log ? Math.log(Math.max(value, 1e-9)) : value);
  const [from, to] = [scale(low), Math.max(scale(high), scale(low) + 1e-9)];
  const codes = new Uint8Array(values.length);
  for (let i = 0; i < values.length; i += 1) {
    const value = values[i] as number;
    const at = (STEPS - 1) * ((scale(value) - from) / (to - from));
    codes[i] = Number.isNaN(value) ? STEPS : Math.round(Math.min(STEPS - 1, Math.max(0, at)));
  }
  const stops = Array.from({ length: STOPS }, (_, i) => rgb(style.getPropertyValue(`--s${i}`)));
  const colours = Array.from({ length: STEPS }, (_, i) => {
    const at = (i / (STEPS - 1)) * (STOPS - 1);
    const before = stops[Math.min(STOPS - 2, Math.floor(at))] as [number, number, number];
    const after = stops[Math.min(STOPS - 1, Math.floor(at) + 1)] as [number, number, number];
    const share = at - Math.min(STOPS - 2, Math.floor(at));
    return before.map((value, k) => Math.round((1 - share) * value + share * (after[k] as number)));
  });
  const legend = [
    h("span", {}, `${columnName(info.name)} ${number(low)}`),
    h("span", { class: "ramp", "aria-hidden": "true" }),
    h("span", {}, number(high)),
    h("small", {}, log ? "logarithmic, from the 1st to the 99th percentile" : "from the 1st to the 99th percentile"),
  ];
  return { look: { codes, palette: Uint8Array.from([...colours.flat(), ...faint]), ordered: true, faint }, legend };
}

/** The 1st and 99th percentile of at most 20,000 evenly spaced values. */
function ends(values: Column["values"]): [number, number] {
  const step = Math.max(1, Math.floor(values.length / 20_000));
  const some: number[] = [];
  for (let i = 0; i < values.length; i += step) {
    const value = values[i] as number;
    if (Number.isFinite(value)) some.push(value);
  }
  some.sort((a, b) => a - b);
  if (some.length === 0) return [0, 1];
  const at = (share: number): number => some[Math.round(share * (some.length - 1))] as number;
  return [at(0.01), at(0.99)];
}

/** A colour of the style sheet, written #rrggbb, as numbers. */
function rgb(text: string): [number, number, number] {
  const value = Number.parseInt(text.trim().slice(1), 16) || 0;
  return [value >> 16, (value >> 8) & 255, value & 255];
}
