// The data of a gallery and its source: the service, or data embedded in the file.

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
  /** The calibrator of match probabilities; files of earlier versions do not have the field. */
  calibrator?: { threshold: number; limit: number; queries: number } | null;
  version: string;
}

export interface View {
  crop?: number;
  blur?: number;
}

export interface Query {
  id?: string;
  text?: string;
  image?: string;
  vector?: number[];
  mu?: number[];
  kappa?: number;
  view?: View;
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

export interface Source {
  /** Whether new pictures and sentences can be embedded. */
  readonly live: boolean;
  about(): Promise<About>;
  items(order: Order, label: unknown, offset: number, limit: number, signal?: AbortSignal): Promise<Page>;
  /** The items on both sides of a kappa threshold, and how many of them lie below it. */
  border(kappa: number, below: number, limit: number, signal?: AbortSignal): Promise<{ items: Item[]; below: number }>;
  item(id: string, signal?: AbortSignal): Promise<OneItem>;
  /** The URL of a picture, for an <img>. */
  picture(item: { id: string; picture?: string | null }, side: number): Promise<string | null>;
  embed(queries: Query[], signal?: AbortSignal): Promise<Posterior[]>;
  search(query: Query, asked: Asked, signal?: AbortSignal): Promise<Found>;
  /** Needs a calibrator. */
  match(query: Query): Promise<Matches>;
  map(query: Query, mass: number, kind: Kind, limit: number, signal?: AbortSignal): Promise<Neighbourhood>;
  rejection(): Promise<Rejection>;
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

export function isAborted(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}
