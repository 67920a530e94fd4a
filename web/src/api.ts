// The data of a gallery and its source: the service, or data embedded in the file.

import type { Answer, QuestionName, Questions } from "./answers";

export interface Item {
  id: string;
  kappa: number;
  label: unknown;
  text: string | null;
  picture: string | null;
  payload: Record<string, unknown>;
}

export interface Cap {
  mass: number;
  cosine: number;
}

export interface OneItem extends Item {
  kappa_rank: number;
  caps: Cap[];
}

export interface About {
  rows: number;
  dim: number;
  engine: string;
  modality: "image" | "text" | "vector" | null;
  kappa_pos: number | null;
  label_column: string | null;
  text_column: string | null;
  pictures: boolean;
  kappa: { quantiles: [number, number][]; median: number };
  classes: { label: unknown; count: number }[];
  /** Whether the gallery has a conformal calibration. */
  conformal: boolean;
  /** The calibrator of match probabilities. */
  calibrator: { threshold: number; limit: number; queries: number } | null;
  /** The prior probability that two items match. */
  prior: number;
  version: string;
}

export interface Query {
  id?: string;
  text?: string;
  image?: string;
  vector?: number[];
  mu?: number[];
  kappa?: number;
}

export interface Posterior {
  mu: number[];
  kappa: number;
  kappa_rank: number;
}

export interface Hit extends Item {
  cosine: number;
  positivity: number | null;
  positive: number | null;
  explanation?: string | null;
}

/** The cap of the latent itself, or of the direction of a matching item. */
export type Kind = "credible" | "predictive";

export interface Asked {
  mass: number;
  kind: Kind;
  /** With the conformal calibration of the gallery; only with predictive caps. */
  guarantee?: "model" | "conformal";
  limit: number;
  /** The prior probability that a pair matches; null if kappa_pos is unknown. */
  prior: number | null;
  explain: boolean;
}

export interface Found {
  query: { kappa: number; kappa_rank: number };
  threshold: number | null;
  count: number;
  /** False if the count is only a lower bound. */
  count_exact?: boolean;
  truncated: boolean;
  class_entropy: number | null;
  /** The classes of the whole set, most frequent first. */
  classes?: { label: unknown; count: number }[] | null;
  hits: Hit[];
}

export interface Matches {
  /** The match probability of the nearest items, by id. */
  probabilities: Map<string, number>;
  /** How common such a query is among those without a match. */
  p_value: number;
}

export interface Point {
  id: string;
  label: unknown;
  x: number;
  y: number;
  cosine: number;
  kappa: number;
  inside: boolean;
  text?: string | null;
  picture?: string | null;
}

export interface Neighbourhood {
  points: Point[];
  cap: { radius: number };
  /** For all masses of the slider. */
  caps: Cap[];
  /** The angle at the rim of the map. */
  reach: number;
}

/** The coverage of predictive caps on held-out pairs. */
export interface Calibration {
  available: boolean;
  pairs: number;
  /** The measured share of matches for each claimed mass, and the mass that guarantees it. */
  curve: { claimed: number; measured: number; level: number }[];
}

export interface Rejection {
  available: boolean;
  reason?: string | null;
  curve: { threshold: number; kept: number; score: number }[];
}

/** The query by its posterior, so that it is not embedded twice; an infinite kappa is null in JSON. */
export function known(posterior: Posterior, query: Query): Query {
  return Number.isFinite(posterior.kappa) ? { mu: posterior.mu, kappa: posterior.kappa } : query;
}

export type Order = "ambiguous" | "certain";

export interface Page {
  items: Item[];
  total: number;
  offset: number;
}

/** Values of a column: float32 numbers, or the codes of categories. */
export type Numbers = Float32Array | Uint16Array | Uint32Array;

export interface ColumnInfo {
  name: string;
  kind: "number" | "category" | "text";
  /** The categories, by code. */
  values?: unknown[];
  low?: number | null;
  high?: number | null;
}

/** The gallery as a table; its rows are in the order of kappa, ties by id. */
export interface TableInfo {
  version: string;
  rows: number;
  columns: ColumnInfo[];
  map: { available: boolean; method?: string | null; reason?: string | null };
}

export interface Match {
  rows: Uint32Array;
  count: number;
  truncated: boolean;
}

export interface Source {
  /** Whether new pictures and sentences can be embedded. */
  readonly live: boolean;
  about(): Promise<About>;
  items(order: Order, label: unknown, offset: number, limit: number, signal?: AbortSignal): Promise<Page>;
  item(id: string, signal?: AbortSignal): Promise<OneItem>;
  /** The URL of a picture, for an <img>. */
  picture(item: { id: string; picture?: string | null }, side: number): Promise<string | null>;
  embed(queries: Query[], signal?: AbortSignal): Promise<Posterior[]>;
  search(query: Query, asked: Asked, signal?: AbortSignal): Promise<Found>;
  /** Needs a calibrator. */
  match(query: Query): Promise<Matches>;
  map(query: Query, mass: number, kind: Kind, limit: number, signal?: AbortSignal): Promise<Neighbourhood>;
  calibration(): Promise<Calibration>;
  rejection(): Promise<Rejection>;
  table(): Promise<TableInfo>;
  /** One value per row; text columns are not available. */
  column(name: string): Promise<{ values: Numbers; version: string }>;
  /** At most 500 items by row number; null for one that has been deleted. */
  rows(numbers: number[], signal?: AbortSignal): Promise<(Item | null)[]>;
  /** The rows whose id or text contains a text, ignoring case. */
  find(text: string, column: string | null, signal?: AbortSignal): Promise<Match>;
  /** The ids of at most 10,000 rows of this version of the table. */
  ids(numbers: number[], version: string): Promise<string[]>;
  questions(): Promise<Questions>;
  /** The items that a question found; `classes` are codes of a pair of confused classes. */
  question(name: QuestionName, offset: number, limit: number, classes: [number, number] | null, signal?: AbortSignal): Promise<Answer>;
  /** The rows of all items that a question found. */
  questionRows(name: QuestionName, classes: [number, number] | null): Promise<Match>;
}

export function numbersOf(type: string, buffer: ArrayBuffer): Numbers {
  return type === "u2" ? new Uint16Array(buffer) : type === "u4" ? new Uint32Array(buffer) : new Float32Array(buffer);
}

export function fromBase64(text: string): ArrayBuffer {
  return Uint8Array.from(atob(text), (char) => char.charCodeAt(0)).buffer;
}

/** An error whose message can be shown to the user. */
export class Failure extends Error {
  constructor(
    message: string,
    readonly code: string,
  ) {
    super(message);
  }
}
