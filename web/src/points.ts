// Points on the map: a grid to find them, and their picture as pixels, as discs or as density.

import type { Numbers } from "./api";

/** Part of the map, in its coordinates. */
export interface Window {
  left: number;
  right: number;
  low: number;
  high: number;
}

/** How rows are coloured: a place in the palette for each row. */
export interface Look {
  codes: Uint8Array;
  /** [n, 3] */
  palette: Uint8Array;
  /** Whether the mean of two codes is a code between them: numbers, not categories. */
  ordered: boolean;
  /** 1 for rows that are selected; null if there is no selection. */
  mask: Uint8Array | null;
  faint: [number, number, number];
}

const SIDE = 512; // cells of the grid along each axis
export const MOST_DISCS = 40_000;

export class PointGrid {
  readonly whole: Window;
  private readonly starts: Uint32Array;
  private readonly order: Uint32Array;

  constructor(
    readonly x: Numbers,
    readonly y: Numbers,
  ) {
    this.whole = bounds(x, y);
    const n = x.length;
    const starts = new Uint32Array(SIDE * SIDE + 2);
    const cells = new Uint32Array(n);
    for (let i = 0; i < n; i += 1) {
      const cell = this.cell(x[i] as number, y[i] as number);
      cells[i] = cell;
      starts[cell + 2] = (starts[cell + 2] as number) + 1;
    }
    for (let i = 2; i < starts.length; i += 1) starts[i] = (starts[i] as number) + (starts[i - 1] as number);
    const order = new Uint32Array(n);
    for (let i = 0; i < n; i += 1) {
      const next = (cells[i] as number) + 1;
      if (next > SIDE * SIDE) continue; // without a position
      order[starts[next] as number] = i;
      starts[next] = (starts[next] as number) + 1;
    }
    this.starts = starts;
    this.order = order;
  }

  /** The rows in a window and a margin of at most one cell, in runs. */
  each(window: Window, act: (row: number) => void): void {
    const { order } = this;
    this.runs(window, (from, to) => {
      for (let i = from; i < to; i += 1) act(order[i] as number);
    });
  }

  /** The rows in a window, or those of the whole map if it covers most of it: then their order is 0, 1, ... */
  rows(window: Window): { order: Uint32Array; all: boolean } {
    const { order } = this;
    const n = this.count(window);
    if (3 * n > order.length) return { order, all: true };
    const found = new Uint32Array(n);
    let at = 0;
    this.runs(window, (from, to) => {
      found.set(order.subarray(from, to), at);
      at += to - from;
    });
    return { order: found, all: false };
  }

  /** About how many rows are in a window: those of its cells. */
  count(window: Window): number {
    let found = 0;
    this.runs(window, (from, to) => {
      found += to - from;
    });
    return found;
  }

  /** The row nearest to a point within a distance, or -1; rows that are not selected count only if no other is near. */
  nearest(px: number, py: number, away: number, mask: Uint8Array | null): number {
    const best = [-1, -1];
    const least = [away ** 2, away ** 2];
    this.each({ left: px - away, right: px + away, low: py - away, high: py + away }, (row) => {
      const far = ((this.x[row] as number) - px) ** 2 + ((this.y[row] as number) - py) ** 2;
      const kind = mask === null || mask[row] === 1 ? 0 : 1;
      if (far < (least[kind] as number)) [best[kind], least[kind]] = [row, far];
    });
    return (best[0] as number) >= 0 ? (best[0] as number) : (best[1] as number);
  }

  private runs(window: Window, act: (from: number, to: number) => void): void {
    const { left, right, low, high } = this.whole;
    const place = (value: number, from: number, to: number): number =>
      Math.min(SIDE - 1, Math.max(0, Math.floor((SIDE * (value - from)) / (to - from))));
    if (window.right < left || window.left > right || window.high < low || window.low > high) return;
    const [a, b] = [place(window.left, left, right), place(window.right, left, right)];
    const [c, d] = [place(window.low, low, high), place(window.high, low, high)];
    for (let row = c; row <= d; row += 1) {
      const from = this.starts[row * SIDE + a] as number;
      const to = this.starts[row * SIDE + b + 1] as number;
      if (to > from) act(from, to);
    }
  }

  private cell(px: number, py: number): number {
    if (!(Number.isFinite(px) && Number.isFinite(py))) return SIDE * SIDE;
    const { left, right, low, high } = this.whole;
    const a = Math.min(SIDE - 1, Math.floor((SIDE * (px - left)) / (right - left)));
    const b = Math.min(SIDE - 1, Math.floor((SIDE * (py - low)) / (high - low)));
    return b * SIDE + a;
  }
}

/** A picture of a window: discs if there are few points, else the density of each pixel. */
export function paint(grid: PointGrid, look: Look, window: Window, width: number, height: number, scale: number): ImageData {
  const visible = grid.count(window);
  const image = new ImageData(width, height);
  if (visible > MOST_DISCS) density(grid, look, window, image);
  else {
    const radius = Math.min(5, Math.max(1.6, 0.3 * Math.sqrt((width * height) / (scale ** 2 * Math.max(1, visible)))));
    discs(grid, look, window, image, radius * scale);
  }
  return image;
}

function discs(grid: PointGrid, look: Look, window: Window, image: ImageData, radius: number): void {
  const { width, height } = image;
  const pixels = new Uint32Array(image.data.buffer);
  const reach = Math.ceil(radius);
  const offsets: [number, number][] = [];
  for (let dy = -reach; dy <= reach; dy += 1) for (let dx = -reach; dx <= reach; dx += 1) if (dx * dx + dy * dy <= radius * radius) offsets.push([dx, dy]);
  const colours = packed(look.palette, 235);
  const faint = pack(look.faint, 110);
  const kx = width / (window.right - window.left);
  const ky = height / (window.high - window.low);
  const draw = (row: number, colour: number): void => {
    const px = Math.round(((grid.x[row] as number) - window.left) * kx);
    const py = Math.round((window.high - (grid.y[row] as number)) * ky);
    for (const [dx, dy] of offsets) {
      const x = px + dx;
      const y = py + dy;
      if (x >= 0 && x < width && y >= 0 && y < height) pixels[y * width + x] = colour;
    }
  };
  const { mask, codes } = look;
  // the selected lie on top
  if (mask !== null) grid.each(window, (row) => mask[row] === 0 && draw(row, faint));
  grid.each(window, (row) => (mask === null || mask[row] === 1) && draw(row, colours[codes[row] as number] as number));
}

function density(grid: PointGrid, look: Look, window: Window, image: ImageData): void {
  const { width, height } = image;
  const { mask, codes, ordered } = look;
  const n = width * height;
  const { others, counts, held, votes } = scratch(n);
  const { left, high } = window;
  const kx = width / (window.right - left);
  const ky = height / (high - window.low);
  const { x, y } = grid;
  // in the order of the rows if most are in view: memory is then read in sequence
  const { order, all } = grid.rows(window);
  for (let k = 0; k < order.length; k += 1) {
    const row = all ? k : (order[k] as number);
    const px = ((x[row] as number) - left) * kx;
    const py = (high - (y[row] as number)) * ky;
    if (!(px >= 0 && px < width && py >= 0 && py < height)) continue;
    const at = (py | 0) * width + (px | 0);
    if (mask !== null && mask[row] === 0) {
      others[at] = (others[at] as number) + 1;
      continue;
    }
    counts[at] = (counts[at] as number) + 1;
    const code = codes[row] as number;
    if (ordered) held[at] = (held[at] as number) + code;
    else if (votes[at] === 0) {
      held[at] = code;
      votes[at] = 1;
    } else votes[at] = (votes[at] as number) + (held[at] === code ? 1 : -1);
  }
  let most = 1;
  for (let i = 0; i < n; i += 1) {
    const here = (counts[i] as number) + (others[i] as number);
    if (here > most) most = here;
  }
  const alpha = Uint8Array.from({ length: Math.min(65536, most + 1) }, (_, c) => 70 + (185 * Math.log1p(c)) / Math.log1p(most));
  const pixels = new Uint32Array(image.data.buffer);
  const colours = packed(look.palette, 0);
  const faint = pack(look.faint, 0);
  for (let i = 0; i < n; i += 1) {
    const own = counts[i] as number;
    if (own > 0) {
      const code = ordered ? Math.round((held[i] as number) / own) : (held[i] as number);
      pixels[i] = ((colours[code] as number) | ((alpha[own] as number) << 24)) >>> 0;
    } else if (others[i] !== 0) {
      pixels[i] = (faint | (((alpha[others[i] as number] as number) >> 1) << 24)) >>> 0;
    }
  }
}

interface Scratch {
  others: Uint16Array;
  counts: Uint16Array;
  /** The sum of the codes, or the leading category. */
  held: Uint32Array;
  /** Of the leading category, by the vote of Boyer and Moore. */
  votes: Uint16Array;
}

let kept: Scratch | null = null;

/** Arrays of zeros for n pixels; the same ones for every picture. */
function scratch(n: number): Scratch {
  if (kept !== null && kept.counts.length >= n) {
    for (const each of Object.values(kept) as Uint16Array[]) each.fill(0, 0, n);
  } else {
    kept = { others: new Uint16Array(n), counts: new Uint16Array(n), held: new Uint32Array(n), votes: new Uint16Array(n) };
  }
  return kept;
}

function packed(palette: Uint8Array, alpha: number): Uint32Array {
  const n = palette.length / 3;
  return Uint32Array.from({ length: n }, (_, i) => pack([...palette.subarray(3 * i, 3 * i + 3)] as [number, number, number], alpha));
}

function pack([red, green, blue]: [number, number, number], alpha: number): number {
  return ((alpha << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

function bounds(x: Numbers, y: Numbers): Window {
  let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
  for (let i = 0; i < x.length; i += 1) {
    const px = x[i] as number;
    const py = y[i] as number;
    if (px < left) left = px;
    if (px > right) right = px;
    if (py < low) low = py;
    if (py > high) high = py;
  }
  if (!(right >= left && high >= low)) return { left: 0, right: 1, low: 0, high: 1 };
  const pad = (from: number, to: number): number => 0.02 * (to - from) || 0.5;
  const [wide, tall] = [pad(left, right), pad(low, high)];
  return { left: left - wide, right: right + wide, low: low - tall, high: high + tall };
}
