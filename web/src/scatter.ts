// The map as an interactive canvas: pan, zoom, lasso, box, hover and keys.

import { type Look, paint, type PointGrid, type Window } from "./points";

export interface View2D {
  /** The centre, in coordinates of the map, and pixels per unit. */
  x: number;
  y: number;
  zoom: number;
}

export type Mode = "move" | "lasso" | "box";

export const MODES: Record<Mode, string> = { move: "Move", lasso: "Lasso", box: "Box" };

export interface ScatterActions {
  hover(row: number, x: number, y: number): void;
  open(row: number): void;
  lasso(corners: [number, number][]): void;
  /** Some time after the view has changed; null if everything is shown. */
  settled(view: View2D | null): void;
}

const IDLE = 140; // milliseconds after which the picture is repainted
const OVER = 0.25; // of the view, painted beyond each edge
const NEAR = 10; // pixels
const DEEPEST = 4000; // largest zoom, as a multiple of the whole map

interface Painted {
  picture: HTMLCanvasElement;
  window: Window;
}

export class Scatter {
  readonly canvas = document.createElement("canvas");
  mode: Mode = "move";
  private readonly drawing = this.canvas.getContext("2d") as CanvasRenderingContext2D;
  private width = 1;
  private height = 1;
  private scale = 1;
  private view: View2D = { x: 0, y: 0, zoom: 1 };
  private fitted = 1;
  /** Whether everything is shown, at any size of the canvas. */
  private whole = true;
  private grid: PointGrid | null = null;
  private look: Look | null = null;
  private scene: Painted | null = null;
  private base: Painted | null = null;
  private timer = 0;
  private frame = 0;
  private stale = false;
  private trail: [number, number][] = [];
  private outline: [number, number][] | null = null;
  private readonly fingers = new Map<number, { x: number; y: number }>();
  private moved = 0;
  private pointed = -1;

  constructor(private readonly actions: ScatterActions) {
    const { canvas } = this;
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "application");
    new ResizeObserver(() => this.resize()).observe(canvas);
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.up(event));
    canvas.addEventListener("pointercancel", (event) => this.fingers.delete(event.pointerId));
    canvas.addEventListener("pointerleave", () => this.fingers.size === 0 && this.point(-1, 0, 0));
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("dblclick", (event) => this.zoomAt(event.shiftKey ? 0.5 : 2, event.offsetX, event.offsetY));
  }

  show(grid: PointGrid, view: View2D | null): void {
    this.grid = grid;
    this.scene = this.base = null;
    this.resize();
    if (view === null) this.fit();
    else this.set(view);
    this.paintSoon();
  }

  dress(look: Look): void {
    this.look = look;
    this.base = null;
    this.paintSoon();
  }

  /** Which rows are selected: 1 for each of them; null for all. */
  mask(mask: Uint8Array | null): void {
    if (this.look !== null) this.dress({ ...this.look, mask });
  }

  /** Selects what lies in a polygon, as the lasso does. */
  select(corners: [number, number][]): void {
    this.actions.lasso(corners);
  }

  /** The polygon that is selected now. */
  mark(polygon: [number, number][] | null): void {
    this.outline = polygon;
    this.draw();
  }

  fit(): void {
    if (this.grid === null) return;
    const { left, right, low, high } = this.grid.whole;
    this.set({ x: (left + right) / 2, y: (low + high) / 2, zoom: this.fitted });
    this.whole = true;
  }

  set(view: View2D): void {
    const zoom = Math.min(DEEPEST * this.fitted, Math.max(0.5 * this.fitted, view.zoom));
    this.view = { ...view, zoom };
    this.whole = false;
    this.changed();
  }

  zoomBy(factor: number): void {
    this.zoomAt(factor, this.width / 2, this.height / 2);
  }

  /** The corners of what is in view. */
  corners(): [number, number][] {
    const { left, right, low, high } = this.window(0);
    return [[left, low], [right, low], [right, high], [left, high]];
  }

  /** The row in the middle of the view, or -1. */
  middle(): number {
    const away = Math.min(this.width, this.height) / 2 / this.view.zoom;
    return this.grid?.nearest(this.view.x, this.view.y, away, this.look?.mask ?? null) ?? -1;
  }

  private window(over: number): Window {
    const wide = ((0.5 + over) * this.width) / this.view.zoom;
    const tall = ((0.5 + over) * this.height) / this.view.zoom;
    return { left: this.view.x - wide, right: this.view.x + wide, low: this.view.y - tall, high: this.view.y + tall };
  }

  private screen(x: number, y: number): [number, number] {
    return [(x - this.view.x) * this.view.zoom + this.width / 2, (this.view.y - y) * this.view.zoom + this.height / 2];
  }

  private onMap(x: number, y: number): [number, number] {
    return [(x - this.width / 2) / this.view.zoom + this.view.x, this.view.y - (y - this.height / 2) / this.view.zoom];
  }

  private resize(): void {
    const { clientWidth, clientHeight } = this.canvas;
    if (clientWidth === 0 || clientHeight === 0) return;
    const before = this.fitted;
    this.width = clientWidth;
    this.height = clientHeight;
    this.scale = Math.min(2, devicePixelRatio || 1);
    this.canvas.width = Math.round(clientWidth * this.scale);
    this.canvas.height = Math.round(clientHeight * this.scale);
    if (this.grid === null) return;
    const { left, right, low, high } = this.grid.whole;
    this.fitted = Math.min(this.width / (right - left), this.height / (high - low));
    if (this.whole) this.view = { x: (left + right) / 2, y: (low + high) / 2, zoom: this.fitted };
    else if (before !== this.fitted && before !== 1) this.view.zoom *= this.fitted / before;
    this.paintSoon();
  }

  private changed(): void {
    this.draw();
    clearTimeout(this.timer);
    const { scene } = this;
    const now = this.window(0);
    const far = scene === null || Math.abs(Math.log2((scene.window.right - scene.window.left) / (now.right - now.left) / (1 + 2 * OVER))) > 1;
    this.timer = window.setTimeout(() => this.settle(), far ? IDLE / 2 : IDLE);
  }

  private settle(): void {
    // the first picture is painted before the view settles
    if (this.stale || this.scene === null || !same(this.scene.window, this.window(OVER))) this.paintSoon();
    this.actions.settled(this.whole ? null : this.view);
  }

  /** Paints once, however many changes come before the next frame. */
  private paintSoon(): void {
    this.stale = true;
    this.draw();
  }

  /** Repaints the view and a margin. */
  private paint(): void {
    this.stale = false;
    const { grid, look } = this;
    if (grid === null || look === null || this.width < 2) return;
    const window = this.window(OVER);
    const size = (length: number): number => Math.round(length * this.scale * (1 + 2 * OVER));
    this.scene = this.painted(grid, look, window, size(this.width), size(this.height), this.scale);
    // what lies around the view, for the first frames after it moves there
    if (this.base !== null || this.view.zoom < 1.4 * this.fitted) return;
    setTimeout(() => {
      if (this.base === null && this.look !== null) this.base = this.painted(grid, this.look, grid.whole, 768, 768, 1);
    }, 60);
  }

  private painted(grid: PointGrid, look: Look, window: Window, width: number, height: number, scale: number): Painted {
    const picture = document.createElement("canvas");
    picture.width = width;
    picture.height = height;
    picture.getContext("2d")?.putImageData(paint(grid, look, window, width, height, scale), 0, 0);
    return { picture, window };
  }

  private draw(): void {
    if (this.frame !== 0) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      if (this.stale) this.paint();
      this.render();
    });
  }

  private render(): void {
    const { drawing } = this;
    drawing.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    drawing.clearRect(0, 0, this.width, this.height);
    drawing.imageSmoothingEnabled = true;
    const now = this.window(0);
    const held = this.scene?.window;
    const covered = held !== undefined && held.left <= now.left && held.right >= now.right && held.low <= now.low && held.high >= now.high;
    if (this.base !== null && !covered) this.place(this.base);
    if (this.scene !== null) {
      const [x, y, w, h] = this.box(this.scene.window);
      if (!covered) drawing.clearRect(x, y, w, h);
      this.place(this.scene);
    }
    const style = getComputedStyle(this.canvas);
    drawing.strokeStyle = style.getPropertyValue("--accent");
    drawing.fillStyle = style.getPropertyValue("--accent");
    drawing.lineWidth = 2;
    const shape = this.trail.length > 0 ? this.shape() : this.outline;
    if (shape !== null) this.polygon(shape);
    if (this.pointed >= 0 && this.grid !== null) {
      const [x, y] = this.screen(this.grid.x[this.pointed] as number, this.grid.y[this.pointed] as number);
      drawing.strokeStyle = style.getPropertyValue("--ink");
      drawing.beginPath();
      drawing.arc(x, y, 8, 0, 2 * Math.PI);
      drawing.stroke();
    }
  }

  private polygon(corners: [number, number][]): void {
    const { drawing } = this;
    drawing.beginPath();
    corners.forEach(([x, y], i) => drawing[i === 0 ? "moveTo" : "lineTo"](...this.screen(x, y)));
    drawing.closePath();
    drawing.globalAlpha = 0.08;
    drawing.fill();
    drawing.globalAlpha = 1;
    drawing.stroke();
  }

  private box({ left, right, low, high }: Window): [number, number, number, number] {
    const [x, y] = this.screen(left, high);
    return [x, y, (right - left) * this.view.zoom, (high - low) * this.view.zoom];
  }

  private place({ picture, window }: Painted): void {
    this.drawing.drawImage(picture, ...this.box(window));
  }

  private shape(): [number, number][] {
    const [first, last] = [this.trail[0], this.trail.at(-1)];
    if (this.mode !== "box" || first === undefined || last === undefined) return this.trail;
    return [first, [last[0], first[1]], last, [first[0], last[1]]];
  }

  private down(event: PointerEvent): void {
    this.canvas.focus({ preventScroll: true });
    this.canvas.setPointerCapture(event.pointerId);
    this.fingers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    this.moved = 0;
    if (this.selects(event) && this.fingers.size === 1) this.trail = [this.onMap(event.offsetX, event.offsetY)];
    else this.trail = [];
  }

  private selects(event: PointerEvent): boolean {
    return this.mode !== "move" || event.shiftKey;
  }

  private move(event: PointerEvent): void {
    const { offsetX: x, offsetY: y } = event;
    const before = this.fingers.get(event.pointerId);
    if (before === undefined) {
      const [px, py] = this.onMap(x, y);
      this.point(this.grid?.nearest(px, py, NEAR / this.view.zoom, this.look?.mask ?? null) ?? -1, x, y);
      return;
    }
    this.moved += Math.hypot(x - before.x, y - before.y);
    if (this.fingers.size === 2) {
      const other = [...this.fingers].find(([id]) => id !== event.pointerId)?.[1];
      if (other !== undefined) {
        const factor = Math.hypot(x - other.x, y - other.y) / Math.max(1, Math.hypot(before.x - other.x, before.y - other.y));
        this.zoomAt(factor, (x + other.x) / 2, (y + other.y) / 2);
      }
    } else if (this.trail.length > 0) {
      this.trail.push(this.onMap(x, y));
      this.draw();
    } else if (this.moved > 3) {
      this.set({ ...this.view, x: this.view.x - (x - before.x) / this.view.zoom, y: this.view.y + (y - before.y) / this.view.zoom });
    }
    before.x = x;
    before.y = y;
  }

  private up(event: PointerEvent): void {
    if (!this.fingers.delete(event.pointerId)) return;
    const shape = this.shape();
    const trail = this.trail.length > 0;
    this.trail = [];
    if (trail && this.moved > 8) {
      this.actions.lasso(simple(shape, 1 / this.view.zoom));
    } else if (this.moved <= 3) {
      const [px, py] = this.onMap(event.offsetX, event.offsetY);
      const row = this.grid?.nearest(px, py, NEAR / this.view.zoom, this.look?.mask ?? null) ?? -1;
      const same = row === this.pointed;
      this.point(row, event.offsetX, event.offsetY);
      // on touch, the first tap shows the item and the second opens it
      if (row >= 0 && (same || event.pointerType !== "touch")) this.actions.open(row);
    }
    this.draw();
  }

  private point(row: number, x: number, y: number): void {
    if (row === this.pointed) return;
    this.pointed = row;
    this.canvas.classList.toggle("pointing", row >= 0);
    this.draw();
    this.actions.hover(row, x, y);
  }

  private wheel(event: WheelEvent): void {
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 16 : 1;
    this.zoomAt(2 ** (-(event.deltaY * lines) / 300), event.offsetX, event.offsetY);
  }

  private zoomAt(factor: number, x: number, y: number): void {
    const [px, py] = this.onMap(x, y);
    const zoom = Math.min(DEEPEST * this.fitted, Math.max(0.5 * this.fitted, this.view.zoom * factor));
    this.set({ x: px - (x - this.width / 2) / zoom, y: py + (y - this.height / 2) / zoom, zoom });
  }

  private key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    const factor = { "+": 1.5, "=": 1.5, "-": 1 / 1.5 }[event.key];
    if (step !== undefined) {
      const [dx = 0, dy = 0] = step;
      const far = (0.12 * Math.min(this.width, this.height)) / this.view.zoom;
      this.set({ ...this.view, x: this.view.x + dx * far, y: this.view.y + dy * far });
    } else if (factor !== undefined) this.zoomBy(factor);
    else if (event.key === "0" || event.key === "Home") this.fit();
    else if (event.key === "Enter" && this.pointed >= 0) this.actions.open(this.pointed);
    else if (event.key === "Escape") this.point(-1, 0, 0);
    else return;
    event.preventDefault();
    if (step !== undefined || factor !== undefined) {
      const row = this.middle();
      const [x, y] = row < 0 || this.grid === null ? [0, 0] : this.screen(this.grid.x[row] as number, this.grid.y[row] as number);
      this.point(row, x, y);
    }
  }
}

function same(one: Window, two: Window): boolean {
  return one.left === two.left && one.right === two.right && one.low === two.low && one.high === two.high;
}

/** A polygon of at most 100 corners, rounded to a tenth of a pixel, so that it fits into an address. */
function simple(corners: [number, number][], pixel: number): [number, number][] {
  const step = Math.max(1, corners.length / 100);
  const digits = Math.max(0, Math.min(12, Math.ceil(-Math.log10(pixel / 10))));
  const found: [number, number][] = [];
  for (let i = 0; i < corners.length; i += step) {
    const [x, y] = corners[Math.floor(i)] as [number, number];
    found.push([Number(x.toFixed(digits)), Number(y.toFixed(digits))]);
  }
  return found;
}
