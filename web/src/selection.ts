// The selection: a list of filters, the rows that pass all of them, and its form in the address (`s=`).

import type { QuestionName } from "./answers";
import type { Numbers, TableInfo } from "./api";
import { changeQuery, hrefTo, readRoute } from "./route";
import type { Table } from "./table";

export type Filter =
  /** Categories by code; -1 is a missing value. */
  | { c: string; in: number[] }
  /** A closed range of numbers. */
  | { c: string; min?: number; max?: number }
  /** A polygon on the map. */
  | { lasso: [number, number][] }
  /** Ids and texts that contain the words; only in one column if it is given. */
  | { find: string; c?: string }
  /** All items of a question, or its ambiguous items between two classes, by code: the service has their rows. */
  | { question: QuestionName; classes?: [number, number] };

/** The rows that pass all filters, ascending, and a mask with 1 for each of them. */
export interface Selected {
  filters: readonly Filter[];
  /** Null if nothing is filtered: all rows. */
  rows: Uint32Array | null;
  mask: Uint8Array | null;
  count: number;
  total: number;
  /** Whether a text search stopped at its limit, so that rows may be missing. */
  truncated: boolean;
}

const MOST_FILTERS = 50;
const MOST_CORNERS = 200;

/** The filters as `s=` has them, or an empty text. */
export function formatFilters(filters: readonly Filter[]): string {
  return filters.length === 0 ? "" : JSON.stringify(filters);
}

/** The filters of `s=`; entries that are not filters are ignored. */
export function parseFilters(text: string | null): Filter[] {
  if (!text) return [];
  try {
    const found: unknown = JSON.parse(text);
    return Array.isArray(found) ? found.slice(0, MOST_FILTERS).flatMap((each) => checked(each) ?? []) : [];
  } catch {
    return [];
  }
}

/** The address of a view with a selection: `linkTo("#/map", [{ c: "kappa", max: 10 }])`. */
export function linkTo(view: string, filters: readonly Filter[], values: Record<string, string> = {}): string {
  return hrefTo(view, { ...values, s: formatFilters(filters) });
}

function checked(value: unknown): Filter | null {
  if (typeof value !== "object" || value === null) return null;
  const { c, in: codes, min, max, lasso, find, question, classes } = value as Record<string, unknown>;
  const number = (each: unknown): each is number => typeof each === "number" && Number.isFinite(each);
  if (typeof c === "string" && Array.isArray(codes)) return { c, in: codes.filter(number) };
  if (typeof find === "string") return typeof c === "string" ? { find, c } : { find };
  if (typeof c === "string" && (number(min) || number(max))) {
    return { c, ...(number(min) ? { min } : {}), ...(number(max) ? { max } : {}) };
  }
  if (Array.isArray(lasso)) {
    const corners = lasso.filter((each): each is [number, number] => Array.isArray(each) && each.length === 2 && each.every(number));
    return corners.length < 3 ? null : { lasso: corners.slice(0, MOST_CORNERS) };
  }
  if (isQuestion(question)) return isPair(classes) ? { question, classes } : { question };
  return null;
}

const QUESTIONS: readonly unknown[] = ["labels", "ambiguous", "outliers"] satisfies QuestionName[];

function isQuestion(value: unknown): value is QuestionName {
  return QUESTIONS.includes(value);
}

/** Whether a value is a pair of codes of classes. */
function isPair(value: unknown): value is [number, number] {
  return Array.isArray(value) && value.length === 2 && value.every((code) => Number.isInteger(code) && code >= 0);
}

type Listener = (selected: Selected) => void;

export class Selection {
  private listeners = new Set<Listener>();
  private failed: ((error: unknown) => void) | null = null;
  private masks = new Map<string, Promise<{ mask: Uint8Array; truncated: boolean }>>();
  private last: Selected | null = null;
  private run = 0;
  private now: Filter[];

  constructor(private readonly table: Table) {
    this.now = parseFilters(readRoute().query.get("s"));
  }

  get filters(): readonly Filter[] {
    return this.now;
  }

  /** Replaces all filters and puts them into the address; "replace" adds no step for Back (while dragging). */
  async set(filters: readonly Filter[], how: "push" | "replace" = "push"): Promise<void> {
    changeQuery({ s: formatFilters(filters), page: null }, how);
    await this.take([...filters]);
  }

  /** Adds a filter, in place of the one on the same column or of the same kind. */
  async put(filter: Filter, how: "push" | "replace" = "push"): Promise<void> {
    await this.set([...this.now.filter((each) => kindOf(each) !== kindOf(filter)), filter], how);
  }

  async drop(filter: Filter): Promise<void> {
    await this.set(this.now.filter((each) => kindOf(each) !== kindOf(filter)));
  }

  async clear(): Promise<void> {
    await this.set([]);
  }

  /** Takes the filters of the address, after Back or a link. */
  async follow(): Promise<void> {
    await this.take(parseFilters(readRoute().query.get("s")));
  }

  /** The rows that are selected now. */
  async current(): Promise<Selected> {
    const same = this.last !== null && formatFilters(this.last.filters) === formatFilters(this.now);
    return same ? (this.last as Selected) : this.evaluate(this.now);
  }

  /** Calls the function after every change; returns a function that ends this. */
  subscribe(listener: Listener): () => void {
    this.listeners.add(listener);
    return () => void this.listeners.delete(listener);
  }

  /** Sets who shows that the filters could not be evaluated. */
  onFailure(show: (error: unknown) => void): void {
    this.failed = show;
  }

  private async take(filters: Filter[]): Promise<void> {
    this.now = filters;
    this.run += 1;
    const run = this.run;
    let found: Selected;
    try {
      found = await this.evaluate(filters);
    } catch (error) {
      if (this.failed === null) throw error;
      if (run === this.run) this.failed(error);
      return;
    }
    if (run !== this.run) return;
    this.last = found;
    for (const listener of this.listeners) listener(found);
  }

  private async evaluate(filters: readonly Filter[]): Promise<Selected> {
    const table = await this.table.info();
    const total = table.rows;
    if (filters.length === 0) return { filters, rows: null, mask: null, count: total, total, truncated: false };
    const parts = await Promise.all(filters.map((filter) => this.maskOf(filter, table)));
    const mask = (parts[0] as { mask: Uint8Array }).mask.slice();
    for (const part of parts.slice(1)) for (let i = 0; i < total; i += 1) mask[i] = (mask[i] as number) & (part.mask[i] as number);
    const rows = rowsOf(mask);
    return { filters, rows, mask, count: rows.length, total, truncated: parts.some((part) => part.truncated) };
  }

  private maskOf(filter: Filter, table: TableInfo): Promise<{ mask: Uint8Array; truncated: boolean }> {
    const key = JSON.stringify(filter);
    let found = this.masks.get(key);
    if (found === undefined) {
      found = this.compute(filter, table).catch((error: unknown) => {
        this.masks.delete(key);
        throw error;
      });
      this.masks.set(key, found);
      const [oldest] = this.masks.keys();
      if (this.masks.size > 8 && oldest !== undefined) this.masks.delete(oldest);
    }
    return found;
  }

  private async compute(filter: Filter, table: TableInfo): Promise<{ mask: Uint8Array; truncated: boolean }> {
    const mask = new Uint8Array(table.rows);
    if ("lasso" in filter) {
      const [x, y] = await Promise.all([this.table.column("map.x"), this.table.column("map.y")]);
      inside(filter.lasso, x.values, y.values, mask);
    } else if ("find" in filter) {
      const found = await this.table.find(filter.find, filter.c ?? null);
      for (const row of found.rows) mask[row] = 1;
      return { mask, truncated: found.truncated };
    } else if ("question" in filter) {
      const found = await this.table.ofQuestion(filter.question, filter.classes ?? null);
      for (const row of found.rows) if (row < mask.length) mask[row] = 1;
      return { mask, truncated: found.truncated };
    } else if ("in" in filter) {
      const { values, missing } = await this.table.column(filter.c);
      const wanted = new Set(filter.in.map((code) => (code < 0 ? missing : code)));
      for (let i = 0; i < mask.length; i += 1) if (wanted.has(values[i] as number)) mask[i] = 1;
    } else {
      const { values } = await this.table.column(filter.c);
      const { min = -Infinity, max = Infinity } = filter;
      for (let i = 0; i < mask.length; i += 1) {
        const value = values[i] as number;
        if (value >= min && value <= max) mask[i] = 1;
      }
    }
    return { mask, truncated: false };
  }
}

/** What a filter acts on: two filters with the same key replace each other. */
export function kindOf(filter: Filter): string {
  if ("lasso" in filter) return "lasso";
  if ("find" in filter) return "find";
  if ("question" in filter) return "question";
  return `column ${filter.c}`;
}

function rowsOf(mask: Uint8Array): Uint32Array {
  let n = 0;
  for (let i = 0; i < mask.length; i += 1) n += mask[i] as number;
  const rows = new Uint32Array(n);
  let at = 0;
  for (let i = 0; i < mask.length; i += 1) if (mask[i] === 1) rows[at++] = i;
  return rows;
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
