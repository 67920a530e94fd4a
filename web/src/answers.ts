// The answers to questions about the gallery, and its comparison with another one, as the service sends them.

import type { Item } from "./api";

export type QuestionName = "labels" | "ambiguous" | "duplicates" | "outliers";

/** The questions as headings. */
export const TITLES: Record<QuestionName, string> = {
  labels: "Suspicious labels",
  ambiguous: "Confused classes",
  duplicates: "Near duplicates",
  outliers: "Outliers",
};

export interface QuestionSummary {
  name: QuestionName;
  available: boolean;
  reason: string | null;
  count: number | null;
}

export interface ConfusedClasses {
  classes: unknown[];
  codes: [number, number];
  /** The mean share of each class in the caps of the other. */
  shares: [number, number];
  count: number;
}

export interface Questions {
  available: boolean;
  reason: string | null;
  /** The share of the rows done, while the gallery is inspected. */
  progress: number | null;
  /** Whether the gallery has changed since the answers were computed. */
  stale: boolean;
  questions: QuestionSummary[];
  confusions: ConfusedClasses[];
  comparison: boolean;
  settings: Record<string, unknown>;
}

export interface AnswerEntry {
  row: number;
  id: string;
  score: number | null;
  item: Item;
  label?: unknown;
  other?: unknown;
  own_share?: number | null;
  other_share?: number | null;
  angle?: number | null;
  p_value?: number | null;
  beyond?: boolean | null;
  partner?: Item | null;
}

export interface Answer {
  name: QuestionName;
  total: number;
  offset: number;
  entries: AnswerEntry[];
}

export interface ComparedGallery {
  name: string;
  dim: number;
  kappa_pos: number | null;
  /** The quantiles of 5, 50 and 95 %. */
  kappa: [number, number, number];
  recall_at_1: number | null;
  coverage: Record<string, number> | null;
}

export interface Comparison {
  available: boolean;
  reason: string | null;
  summary: {
    items: number;
    only: [number, number];
    rank_correlation: number | null;
    overlap: number | null;
    galleries: [ComparedGallery, ComparedGallery];
  } | null;
  ids: string[];
  /** Base64 of float32 pairs: both kappas of each id. */
  points: string;
  /** Base64 of float32 pairs: the coordinates of each id on the map of each gallery, NaN if it is not on it; null without a map. */
  maps: [string | null, string | null];
}

export type MovedBy = "kappa" | "up" | "down" | "neighbours";

export interface Mover {
  id: string;
  item: Item;
  kappa: [number | null, number | null];
  rank_change: number;
  overlap: number;
}

export interface Movers {
  by: MovedBy;
  total: number;
  offset: number;
  entries: Mover[];
}
