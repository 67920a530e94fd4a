// The gallery from data embedded in the page: some of its items, with directions to compute sets and maps.

import {
  type About,
  type Asked,
  type Calibration,
  type Cap,
  type ColumnInfo,
  Failure,
  type Found,
  fromBase64,
  type Hit,
  type Item,
  type Kind,
  type Match,
  type Matches,
  type Neighbourhood,
  type Numbers,
  numbersOf,
  type OneItem,
  type Order,
  type Page,
  type Point,
  type Posterior,
  type Query,
  type Rejection,
  type Source,
  type TableInfo,
} from "./api";
import type { Answer, Questions } from "./answers";
import { labelOf } from "./words";

const NO_ANSWERS = "this file has no answers: open the gallery with aureole serve.";

interface StoredItem extends Item {
  rank: number;
  /** With a calibrator. */
  matches?: [number, number][];
  p_value?: number;
}

/** The sets and maps of the items, as Python computed them; arrays are compressed (zlib), in base64. */
interface StoredSets {
  /** The caps that are stored: predictive first, if kappa_pos is known. */
  kinds: Kind[];
  /** Angles, float32 [n, kinds, masses]. */
  caps: string;
  /** Items of the whole gallery in the set, uint16 [n, kinds, masses]; 10,001 if there are more than 10,000. */
  counts: string;
  labels: unknown[];
  /** (Number of the label + 1, count) of ten labels, uint16 [n, kinds, masses, 20], as differences from the mass before. */
  classes: string;
  /** Angle at the rim of the map, float32 [n, kinds]. */
  reach: string;
  /** Items on the map: uint16 places, float32 angles (negative: none) and uint16 turns, each [n, points]. */
  point_places: string;
  point_angles: string;
  point_turns: string;
  /** The nearest items: uint16 places, float32 angles and P(match) (NaN: unknown), each [n, near]. */
  near_places: string;
  near_angles: string;
  near_positive: string;
}

interface Sets {
  caps: Float32Array;
  counts: Uint16Array;
  classes: Uint16Array;
  reach: Float32Array;
  pointPlaces: Uint16Array;
  pointAngles: Float32Array;
  pointTurns: Uint16Array;
  nearPlaces: Uint16Array;
  nearAngles: Float32Array;
  nearPositive: Float32Array;
}

type StoredColumn = ColumnInfo & { type?: "f4" | "u2" | "u4"; data?: string };

export interface Stored {
  format: "aureole-explorer-2";
  about: About;
  rejection: Rejection;
  calibration: Calibration;
  masses: number[];
  /** In the order of kappa. */
  items: StoredItem[];
  /** The items as a table, in the same order; number and category columns have their values in base64. */
  table: TableInfo & { columns: StoredColumn[] };
  sets: StoredSets;
}

const MOST_COUNTED = 10_000;
const LABELS = 10; // per set
const NEAREST = 60; // items that are always on the map
const TURN = 2 ** 16;

/** The data embedded in this page, if any. */
export function storedData(): Stored | null {
  const element = document.getElementById("aureole-data");
  return element === null ? null : (JSON.parse(element.textContent ?? "") as Stored);
}

export class StoredFile implements Source {
  readonly live = false;
  private readonly places: Map<string, number>;
  private unpacked: Promise<Sets> | null = null;

  constructor(private readonly data: Stored) {
    this.places = new Map(data.items.map((item, i) => [item.id, i]));
  }

  async about(): Promise<About> {
    return this.data.about;
  }

  async items(order: Order, label: unknown, offset: number, limit: number): Promise<Page> {
    const own = this.data.items.filter((item) => label === null || label === undefined || labelOf(item.label) === labelOf(label));
    const sorted = order === "ambiguous" ? own : own.reverse();
    return { items: sorted.slice(offset, offset + limit), total: sorted.length, offset };
  }

  async item(id: string): Promise<OneItem> {
    const place = this.place(id);
    const item = this.at(place);
    const kind = this.data.sets.kinds.indexOf("credible");
    return { ...item, kappa_rank: item.rank, caps: this.capsOf(await this.sets(), place, kind) };
  }

  async picture(item: { id: string; picture?: string | null }): Promise<string | null> {
    return this.data.items[this.places.get(item.id) ?? -1]?.picture ?? null;
  }

  async embed(): Promise<Posterior[]> {
    throw new Failure("This file does not contain an encoder.", "unavailable");
  }

  async search(query: Query, { mass, kind, limit }: Asked): Promise<Found> {
    const place = this.place(query.id);
    const item = this.at(place);
    const sets = await this.sets();
    const at = this.setOf(place, kind, mass);
    const angle = sets.caps[at] ?? 0;
    const near = sets.nearPlaces.length / this.data.items.length;
    const hits: Hit[] = [];
    for (let i = place * near; i < (place + 1) * near && hits.length < limit; i += 1) {
      const away = sets.nearAngles[i] ?? 0;
      if (away > angle) break;
      const positive = sets.nearPositive[i] ?? NaN;
      const scores = { cosine: Math.cos(away), positivity: null, positive: Number.isNaN(positive) ? null : positive };
      hits.push({ ...this.at(sets.nearPlaces[i] ?? 0), ...scores });
    }
    const counted = sets.counts[at] ?? 0;
    const count = Math.min(counted, MOST_COUNTED);
    return {
      query: { kappa: item.kappa, kappa_rank: item.rank },
      threshold: Math.cos(angle),
      count,
      count_exact: counted <= MOST_COUNTED,
      truncated: count > hits.length,
      class_entropy: null,
      classes: this.data.about.label_column === null ? null : this.classesOf(sets, at),
      hits,
    };
  }

  async match(query: Query): Promise<Matches> {
    const { matches, p_value } = this.at(this.place(query.id));
    const probabilities = new Map((matches ?? []).map(([place, value]) => [this.at(place).id, value]));
    return { probabilities, p_value: p_value ?? 1 };
  }

  async map(query: Query, mass: number, kind: Kind): Promise<Neighbourhood> {
    const place = this.place(query.id);
    const sets = await this.sets();
    const row = this.rowOf(place, kind);
    const radius = sets.caps[this.setOf(place, kind, mass)] ?? 0;
    const reach = sets.reach[row] ?? Math.PI;
    const n = sets.pointPlaces.length / this.data.items.length;
    const points: Point[] = [];
    for (let i = place * n; i < (place + 1) * n; i += 1) {
      const angle = sets.pointAngles[i] ?? -1;
      if (angle < 0 || (angle > reach && points.length >= NEAREST)) continue;
      const { id, label, kappa, text, picture } = this.at(sets.pointPlaces[i] ?? 0);
      const turn = ((sets.pointTurns[i] ?? 0) / TURN) * 2 * Math.PI;
      const [x, y] = [angle * Math.cos(turn), angle * Math.sin(turn)];
      points.push({ id, label, kappa, text, picture, x, y, cosine: Math.cos(angle), inside: angle <= radius });
    }
    return { points, cap: { radius }, caps: this.capsOf(sets, place, this.kindOf(kind)), reach };
  }

  async calibration(): Promise<Calibration> {
    return this.data.calibration;
  }

  async rejection(): Promise<Rejection> {
    return this.data.rejection;
  }

  async table(): Promise<TableInfo> {
    return this.data.table;
  }

  async column(name: string): Promise<{ values: Numbers; version: string }> {
    const found = (this.data.table.columns as StoredColumn[]).find((each) => each.name === name);
    if (found?.data === undefined) throw new Failure(`This file does not contain the column ${name}.`, "not_found");
    return { values: numbersOf(found.type ?? "f4", fromBase64(found.data)), version: this.data.table.version };
  }

  async rows(numbers: number[]): Promise<Item[]> {
    return numbers.map((row) => this.at(row));
  }

  async find(text: string, column: string | null): Promise<Match> {
    const wanted = text.toLowerCase();
    const { text_column: own } = this.data.about;
    const rows = this.data.items.flatMap(({ id, text: words, payload }, row) => {
      const texts = Object.entries(payload).filter(([name]) => column === null || name === column);
      const values = texts.map(([, value]) => value).filter((value) => typeof value === "string");
      if (column === null || column === "id") values.push(id);
      if (words !== null && (column === null || column === own)) values.push(words);
      return values.some((each) => String(each).toLowerCase().includes(wanted)) ? [row] : [];
    });
    return { rows: Uint32Array.from(rows), count: rows.length, truncated: false };
  }

  async questions(): Promise<Questions> {
    return { available: false, reason: NO_ANSWERS, stale: false, questions: [], confusions: [], settings: {} };
  }

  async question(): Promise<Answer> {
    throw new Failure(NO_ANSWERS, "not_found");
  }

  async questionRows(): Promise<Match> {
    throw new Failure(NO_ANSWERS, "not_found");
  }

  async ids(numbers: number[]): Promise<string[]> {
    return numbers.map((row) => this.at(row).id);
  }

  private place(id: string | undefined): number {
    const place = this.places.get(id ?? "");
    if (place === undefined) throw new Failure(`Item ${id ?? ""} is not in this file.`, "not_found");
    return place;
  }

  private at(place: number): StoredItem {
    return this.data.items[place] as StoredItem;
  }

  private sets(): Promise<Sets> {
    this.unpacked ??= unpack(this.data);
    return this.unpacked;
  }

  private kindOf(kind: Kind): number {
    return Math.max(0, this.data.sets.kinds.indexOf(kind));
  }

  private rowOf(place: number, kind: Kind): number {
    return place * this.data.sets.kinds.length + this.kindOf(kind);
  }

  /** The place of a set in the arrays. */
  private setOf(place: number, kind: Kind, mass: number): number {
    const away = this.data.masses.map((each) => Math.abs(each - mass));
    return this.rowOf(place, kind) * this.data.masses.length + away.indexOf(Math.min(...away));
  }

  private capsOf({ caps }: Sets, place: number, kind: number): Cap[] {
    const start = (place * this.data.sets.kinds.length + kind) * this.data.masses.length;
    return this.data.masses.map((mass, i) => ({ mass, cosine: Math.cos(caps[start + i] ?? Math.PI) }));
  }

  private classesOf({ classes }: Sets, at: number): { label: unknown; count: number }[] {
    const found: { label: unknown; count: number }[] = [];
    for (let i = at * 2 * LABELS; i < (at + 1) * 2 * LABELS; i += 2) {
      const code = classes[i] ?? 0;
      if (code > 0) found.push({ label: this.data.sets.labels[code - 1], count: classes[i + 1] ?? 0 });
    }
    return found;
  }
}

async function unpack({ sets, masses }: Stored): Promise<Sets> {
  const [caps, counts, classes, reach] = await Promise.all([sets.caps, sets.counts, sets.classes, sets.reach].map(inflate));
  const points = await Promise.all([sets.point_places, sets.point_angles, sets.point_turns].map(inflate));
  const near = await Promise.all([sets.near_places, sets.near_angles, sets.near_positive].map(inflate));
  const summed = new Uint16Array(classes as ArrayBuffer);
  const each = 2 * LABELS;
  for (let i = 0; i < summed.length; i += 1) {
    if (Math.floor(i / each) % masses.length > 0) summed[i] = (summed[i] ?? 0) + (summed[i - each] ?? 0);
  }
  return {
    caps: new Float32Array(caps as ArrayBuffer),
    counts: new Uint16Array(counts as ArrayBuffer),
    classes: summed,
    reach: new Float32Array(reach as ArrayBuffer),
    pointPlaces: new Uint16Array(points[0] as ArrayBuffer),
    pointAngles: new Float32Array(points[1] as ArrayBuffer),
    pointTurns: new Uint16Array(points[2] as ArrayBuffer),
    nearPlaces: new Uint16Array(near[0] as ArrayBuffer),
    nearAngles: new Float32Array(near[1] as ArrayBuffer),
    nearPositive: new Float32Array(near[2] as ArrayBuffer),
  };
}

async function inflate(text: string): Promise<ArrayBuffer> {
  const stream = new Blob([fromBase64(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}
