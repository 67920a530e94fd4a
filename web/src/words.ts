// Formatting of numbers and labels.

import type { About, Cap } from "./api";

const NUMBER = new Intl.NumberFormat("en");

export function count(n: number): string {
  return NUMBER.format(n);
}

export function number(value: number | null): string {
  if (value === null) return "∞"; // in JSON
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "–";
  const size = Math.abs(value);
  if (size >= 1000) return NUMBER.format(Math.round(value));
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

/** 0.973 as "97 %", without a line break before the sign; one decimal below 1 % and above 99 %. */
export function percent(share: number): string {
  const value = 100 * share;
  // never rounded to "0.0" or "100.0"
  if ((value > 0 && value < 1) || (value > 99 && value < 100)) return `${Math.min(99.9, Math.max(0.1, value)).toFixed(1)}\u00a0%`;
  return `${value.toFixed(0)}\u00a0%`;
}

/** A fraction of items with a smaller kappa in words. */
export function rankInWords(rank: number): string {
  if (rank === 0) return "no item of the gallery is less certain";
  if (rank === 1) return "more certain than every item of the gallery";
  if (rank < 0.005) return "among the least certain items of the gallery";
  if (rank > 0.995) return "among the most certain items of the gallery";
  if (rank < 0.5) return `less certain than ${Math.min(99, Math.round(100 * (1 - rank)))}\u00a0% of the gallery`;
  return `more certain than ${Math.min(99, Math.round(100 * rank))}\u00a0% of the gallery`;
}

export function degrees(cosine: number): string {
  const angle = angleOf(cosine) * (180 / Math.PI);
  return `${angle.toFixed(angle < 10 ? 1 : 0)}°`;
}

export function angleOf(cosine: number): number {
  return Math.acos(Math.min(1, Math.max(-1, cosine)));
}

/** The angle of the cap of a mass, interpolated linearly between the known masses. */
export function capAngle(caps: Cap[], mass: number): number | null {
  let before: Cap | null = null;
  for (const cap of caps) {
    if (Math.abs(cap.mass - mass) < 1e-9) return angleOf(cap.cosine);
    if (cap.mass > mass) {
      if (before === null) return angleOf(cap.cosine);
      const t = (mass - before.mass) / (cap.mass - before.mass);
      return (1 - t) * angleOf(before.cosine) + t * angleOf(cap.cosine);
    }
    before = cap;
  }
  return before === null ? null : angleOf(before.cosine);
}

export function labelOf(value: unknown): string {
  return value === null || value === undefined ? "" : String(value);
}

/** A value of a payload column: numbers that are not whole with three digits. */
export function valueOf(value: unknown): string {
  if (typeof value !== "number" || !Number.isFinite(value)) return labelOf(value);
  if (Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  return size >= 1000 ? NUMBER.format(Math.round(value)) : size < 0.001 ? value.toExponential(2) : value.toPrecision(3);
}

/** A one-line name of an item. */
export function nameOf(item: { id: string; label: unknown; text?: string | null }): string {
  return item.text ?? (labelOf(item.label) || item.id);
}

/** The classes sorted by label, numerically for numbers. */
export function sorted<T extends { label: unknown }>(classes: T[]): T[] {
  return [...classes].sort((a, b) => labelOf(a.label).localeCompare(labelOf(b.label), "en", { numeric: true }));
}

/** A probability with two or three decimals; "1.00" only for 1. */
export function probability(value: number): string {
  if (value >= 0.995 && value < 1) return "> 0.99";
  return value < 0.001 ? "< 0.001" : value < 0.01 ? value.toFixed(3) : value.toFixed(2);
}

/** The colour number of each class, in the order of the gallery. */
export function colours(about: About): (label: unknown) => number | null {
  const places = new Map(about.classes.map((each, i) => [labelOf(each.label), i % 10]));
  return (label) => (label === null || label === undefined ? null : (places.get(labelOf(label)) ?? 9));
}

export function shapeOf(about: About): "picture" | "card" | "plain" {
  return about.pictures ? "picture" : about.text_column !== null ? "card" : "plain";
}

export function things(about: About, n: number): string {
  const noun = about.pictures ? "picture" : about.text_column !== null ? "text" : "item";
  return n === 1 ? noun : `${noun}s`;
}
