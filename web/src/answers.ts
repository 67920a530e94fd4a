// The answers to questions about the gallery, as the service sends them.

import type { Item } from "./api";

export type QuestionName = "labels" | "ambiguous" | "outliers";

/** The questions as headings. */
export const TITLES: Record<QuestionName, string> = {
  labels: "Suspicious labels",
  ambiguous: "Confused classes",
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
  /** Whether the gallery has changed since the answers were computed. */
  stale: boolean;
  questions: QuestionSummary[];
  confusions: ConfusedClasses[];
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
}

export interface Answer {
  name: QuestionName;
  total: number;
  offset: number;
  entries: AnswerEntry[];
}
