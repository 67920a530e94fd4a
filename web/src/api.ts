// What the page knows of a gallery, wherever it comes from: the service, or data in the file itself.

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

/** Whose cap: of the latent itself, or of the direction of what belongs with it. */
export type Kind = "credible" | "predictive";

export interface Asked {
  mass: number;
  kind: Kind;
  limit: number;
  /** The share of pairs that belong together, for the probability that a hit does; null where kappa_pos is not known. */
  prior: number | null;
  explain: boolean;
}

export interface Found {
  query: { kappa: number; kappa_rank: number };
  threshold: number | null;
  count: number;
  /** False where the count is only a lower bound. */
  count_exact?: boolean;
  truncated: boolean;
  class_entropy: number | null;
  /** The classes of the whole set, the most frequent first. */
  classes?: { label: unknown; count: number }[] | null;
  hits: Hit[];
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
  /** Of all masses that the slider has. */
  caps: Cap[];
}

export interface Rejection {
  available: boolean;
  reason?: string | null;
  curve: { threshold: number; kept: number; score: number }[];
}

/** A query by what was found of it, so that it is not embedded twice; a kappa that is infinite is null in JSON. */
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
  /** Whether new pictures and sentences can be asked about. */
  readonly live: boolean;
  about(): Promise<About>;
  items(order: Order, label: unknown, offset: number, limit: number, signal?: AbortSignal): Promise<Page>;
  /** The items on both sides of a kappa, below which so many lie; and how many of them lie below. */
  border(kappa: number, below: number, limit: number, signal?: AbortSignal): Promise<{ items: Item[]; below: number }>;
  item(id: string, signal?: AbortSignal): Promise<OneItem>;
  /** The address of a picture, for an <img>. */
  picture(item: { id: string; picture?: string | null }, side: number): Promise<string | null>;
  embed(queries: Query[], signal?: AbortSignal): Promise<Posterior[]>;
  search(query: Query, asked: Asked, signal?: AbortSignal): Promise<Found>;
  map(query: Query, mass: number, kind: Kind, limit: number, signal?: AbortSignal): Promise<Neighbourhood>;
  rejection(): Promise<Rejection>;
}

/** An error that can be shown to people as it is. */
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
