// The gallery from data embedded in the page: some of its items, with directions to compute sets and maps.

import {
  type About,
  type Asked,
  type Cap,
  Failure,
  type Found,
  type Hit,
  type Item,
  type Kind,
  type Matches,
  type Neighbourhood,
  type OneItem,
  type Order,
  type Page,
  type Point,
  type Posterior,
  type Query,
  type Rejection,
  type Source,
} from "./api";
import { angleOf, labelOf } from "./words";

interface StoredItem extends Item {
  rank: number;
  near: [number, number | null][];
  /** With a calibrator. */
  matches?: [number, number][];
  p_value?: number;
}

export interface Stored {
  format: "aureole-explorer-1";
  about: About;
  rejection: Rejection;
  masses: number[];
  items: StoredItem[];
  /** Base64: float32 directions [n, dim], float32 smallest cosines [n, masses], int32 cap counts in the whole gallery. */
  mu: string;
  caps: string;
  counts: string;
}

/** The data embedded in this page, if any. */
export function storedData(): Stored | null {
  const element = document.getElementById("aureole-data");
  return element === null ? null : (JSON.parse(element.textContent ?? "") as Stored);
}

export class StoredFile implements Source {
  readonly live = false;
  private readonly places: Map<string, number>;
  private readonly mu: Float32Array;
  private readonly caps: Float32Array;
  private readonly counts: Int32Array;

  constructor(private readonly data: Stored) {
    this.places = new Map(data.items.map((item, i) => [item.id, i]));
    this.mu = new Float32Array(bytes(data.mu));
    this.caps = new Float32Array(bytes(data.caps));
    this.counts = new Int32Array(bytes(data.counts));
  }

  async about(): Promise<About> {
    return this.data.about;
  }

  async items(order: Order, label: unknown, offset: number, limit: number): Promise<Page> {
    const own = this.data.items.filter((item) => label === null || label === undefined || labelOf(item.label) === labelOf(label));
    const sorted = own.sort((a, b) => (order === "ambiguous" ? a.kappa - b.kappa : b.kappa - a.kappa));
    return { items: sorted.slice(offset, offset + limit), total: sorted.length, offset };
  }

  async border(kappa: number, _: number, limit: number): Promise<{ items: Item[]; below: number }> {
    const { items } = await this.items("ambiguous", null, 0, this.data.items.length);
    const place = items.findIndex((item) => item.kappa >= kappa);
    const from = Math.max(0, (place < 0 ? items.length : place) - limit / 2);
    const some = items.slice(from, from + limit);
    return { items: some, below: some.filter((item) => item.kappa < kappa).length };
  }

  async item(id: string): Promise<OneItem> {
    const place = this.place(id);
    const item = this.at(place);
    return { ...item, kappa_rank: item.rank, caps: this.capsOf(place) };
  }

  async picture(item: { id: string; picture?: string | null }): Promise<string | null> {
    return this.data.items[this.places.get(item.id) ?? -1]?.picture ?? null;
  }

  async embed(): Promise<Posterior[]> {
    throw new Failure("This file does not contain an encoder.", "unavailable");
  }

  async search(query: Query, { mass, limit, prior }: Asked): Promise<Found> {
    const place = this.place(query.id);
    const item = this.at(place);
    const i = this.nearestMass(mass);
    const threshold = this.caps[place * this.data.masses.length + i] ?? 1;
    const known = new Map(item.near);
    const members = this.around(place).filter(([, cosine]) => cosine >= threshold - 1e-6);
    const hits: Hit[] = members.slice(0, limit).map(([other, cosine]) => {
      const positivity = known.get(other) ?? null;
      const positive = positivity === null || prior === null ? null : 1 / (1 + ((1 - prior) / prior) * Math.exp(-positivity));
      return { ...this.at(other), cosine, positivity, positive };
    });
    const whole = this.counts[place * this.data.masses.length + i] ?? members.length;
    return {
      query: { kappa: item.kappa, kappa_rank: item.rank },
      threshold,
      count: whole,
      truncated: whole > hits.length,
      class_entropy: null,
      hits,
    };
  }

  async match(query: Query): Promise<Matches> {
    const { matches, p_value } = this.at(this.place(query.id));
    const probabilities = new Map((matches ?? []).map(([place, value]) => [this.at(place).id, value]));
    return { probabilities, p_value: p_value ?? 1 };
  }

  async map(query: Query, mass: number, _: Kind, limit: number): Promise<Neighbourhood> {
    const place = this.place(query.id);
    const radius = angleOf(this.caps[place * this.data.masses.length + this.nearestMass(mass)] ?? 1);
    const all = this.around(place).filter(([, cosine], i) => i < 60 || angleOf(cosine) <= 1.3 * radius);
    const first = all.slice(0, limit / 4);
    const rest = all.slice(limit / 4);
    const step = Math.max(1, rest.length / (limit - first.length));
    for (let i = 0; i < rest.length && first.length < limit; i += step) first.push(rest[Math.floor(i)] as [number, number]);
    return { points: this.project(place, first, radius), cap: { radius }, caps: this.capsOf(place) };
  }

  async rejection(): Promise<Rejection> {
    return this.data.rejection;
  }

  private place(id: string | undefined): number {
    const place = this.places.get(id ?? "");
    if (place === undefined) throw new Failure(`Item ${id ?? ""} is not in this file.`, "not_found");
    return place;
  }

  private at(place: number): StoredItem {
    return this.data.items[place] as StoredItem;
  }

  private capsOf(place: number): Cap[] {
    const n = this.data.masses.length;
    return this.data.masses.map((mass, i) => ({ mass, cosine: this.caps[place * n + i] ?? -1 }));
  }

  private nearestMass(mass: number): number {
    const away = this.data.masses.map((each) => Math.abs(each - mass));
    return away.indexOf(Math.min(...away));
  }

  private direction(place: number): Float32Array {
    const dim = this.data.about.dim;
    return this.mu.subarray(place * dim, (place + 1) * dim);
  }

  /** All items with their cosine to one item, nearest first. */
  private around(place: number): [number, number][] {
    const own = this.direction(place);
    const found = this.data.items.map((_, i): [number, number] => [i, Math.min(1, dot(own, this.direction(i)))]);
    return found.sort((a, b) => b[1] - a[1] || (a[0] === place ? -1 : b[0] === place ? 1 : 0));
  }

  /** Azimuthal projection: exact angles from the centre, directions from the first two principal axes of the tangent vectors. */
  private project(place: number, chosen: [number, number][], radius: number): Point[] {
    const own = this.direction(place);
    const tangents = chosen.map(([i, cosine]) => {
      const across = Float64Array.from(this.direction(i), (value, k) => value - cosine * (own[k] ?? 0));
      const length = Math.sqrt(dot(across, across));
      const angle = i === place ? 0 : Math.atan2(length, cosine);
      return across.map((value) => (length > 0 ? (value / length) * angle : 0));
    });
    const first = axis(tangents, []);
    const second = axis(tangents, [first]);
    return chosen.map(([i, cosine], k) => {
      const item = this.at(i);
      const tangent = tangents[k] as Float64Array;
      const [u, v] = [dot(tangent, first), dot(tangent, second)];
      const length = Math.hypot(u, v);
      const angle = i === place ? 0 : angleOf(cosine);
      const [x, y] = length > 0 ? [(angle * u) / length, (angle * v) / length] : [angle, 0];
      const { id, label, kappa, text, picture } = item;
      return { id, label, kappa, text, picture, x, y, cosine, inside: angle <= radius };
    });
  }
}

type Numbers = Float32Array | Float64Array;

function dot(a: Numbers, b: Numbers): number {
  let sum = 0;
  for (let i = 0; i < a.length; i += 1) sum += (a[i] ?? 0) * (b[i] ?? 0);
  return sum;
}

/** The principal axis of vectors orthogonal to the given axes, by power iteration from a fixed start. */
function axis(vectors: Float64Array[], before: Float64Array[]): Float64Array {
  const dim = vectors[0]?.length ?? 0;
  let found = Float64Array.from({ length: dim }, (_, i) => Math.cos(1 + 3 * i + before.length));
  for (let round = 0; round < 60; round += 1) {
    const next = new Float64Array(dim);
    for (const vector of vectors) {
      const along = dot(vector, found);
      for (let i = 0; i < dim; i += 1) next[i] = (next[i] ?? 0) + along * (vector[i] ?? 0);
    }
    for (const other of before) {
      const along = dot(next, other);
      for (let i = 0; i < dim; i += 1) next[i] = (next[i] ?? 0) - along * (other[i] ?? 0);
    }
    const length = Math.sqrt(dot(next, next));
    if (length === 0) return found;
    found = next.map((value) => value / length);
  }
  return found;
}

function bytes(text: string): ArrayBuffer {
  return Uint8Array.from(atob(text), (char) => char.charCodeAt(0)).buffer;
}
