// Where tags are kept: next to the gallery, by the service, or in this browser, for a page that is a file.

import { Failure } from "./api";

export type TagKind = "tag" | "note" | "relabel" | "duplicate";

export interface TagEntry {
  id: string;
  kind: TagKind;
  value: string;
  author: string;
  time: string;
}

export interface TagCount {
  kind: TagKind;
  value: string;
  count: number;
}

export interface TagsInfo {
  available: boolean;
  writable: boolean;
  /** Why nobody can write. */
  reason: string | null;
  counts: TagCount[];
}

export interface TagChange {
  number: number;
  changed: number;
}

export interface Download {
  name: string;
  title: string;
  load(): Promise<Blob>;
}

export interface TagStore {
  /** Where the tags are, for the reader. */
  place(): string;
  about(): Promise<TagsInfo>;
  entries(ids: string[]): Promise<TagEntry[]>;
  ids(kind: TagKind, value: string | null): Promise<string[]>;
  /** At most MOST_IDS ids. */
  add(ids: string[], kind: TagKind, value: string, author: string): Promise<TagChange>;
  remove(ids: string[], kind: TagKind, value: string | null, author: string): Promise<TagChange>;
  undo(number: number): Promise<TagChange>;
  downloads(): Download[];
}

export const MOST_IDS = 10_000;
const LONGEST: Record<TagKind, number> = { tag: 64, note: 4000, relabel: 256, duplicate: 1024 };
const SINGLE: readonly string[] = ["relabel", "duplicate"];

type Call = (url: string, init: RequestInit) => Promise<Response>;

/** The tags of the service. */
export class ServiceTags implements TagStore {
  constructor(private readonly call: Call) {}

  place(): string {
    return "Stored next to the gallery.";
  }

  async about(): Promise<TagsInfo> {
    try {
      return await this.ask("v1/tags");
    } catch (error) {
      if (!(error instanceof Failure) || error.code !== "not_found") throw error;
      return { available: false, writable: false, reason: "This version of the service has no tags.", counts: [] };
    }
  }

  async entries(ids: string[]): Promise<TagEntry[]> {
    const query = new URLSearchParams(ids.slice(0, 100).map((id) => ["id", id]));
    return (await this.ask<{ entries: TagEntry[] }>(`v1/tags/entries?${query}`)).entries;
  }

  async ids(kind: TagKind, value: string | null): Promise<string[]> {
    const query = new URLSearchParams({ kind, ...(value === null ? {} : { value }) });
    return (await this.ask<{ ids: string[] }>(`v1/tags/ids?${query}`)).ids;
  }

  add(ids: string[], kind: TagKind, value: string, author: string): Promise<TagChange> {
    return this.send("v1/tags", { ids, kind, value, author });
  }

  remove(ids: string[], kind: TagKind, value: string | null, author: string): Promise<TagChange> {
    return this.send("v1/tags/remove", { ids, kind, value, author });
  }

  undo(number: number): Promise<TagChange> {
    return this.ask(`v1/tags/changes/${number}`, { method: "DELETE" });
  }

  downloads(): Download[] {
    const formats = { csv: "CSV", jsonl: "JSON lines", parquet: "Parquet" };
    const parts = { entries: ["tags", "All tags"], queue: ["relabel", "Relabel queue"] } as const;
    return Object.entries(parts).flatMap(([what, [name, title]]) =>
      Object.entries(formats).map(([format, words]) => ({
        name: `${name}.${format}`,
        title: `${title}, ${words}`,
        load: async () => (await this.call(`v1/tags/export?what=${what}&format=${format}`, {})).blob(),
      })),
    );
  }

  private send<T>(url: string, body: unknown): Promise<T> {
    return this.ask(url, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });
  }

  private async ask<T>(url: string, init: RequestInit = {}): Promise<T> {
    return (await this.call(url, init)).json() as Promise<T>;
  }
}

interface Reversible {
  added: TagEntry[];
  removed: TagEntry[];
}

/** Tags in the storage of the browser, or only in memory if it has none for this page. */
export class BrowserTags implements TagStore {
  private memory: TagEntry[] = [];
  private stored = true;
  private readonly changes: (Reversible | null)[] = [];

  /** The key names the gallery. */
  constructor(private readonly key: string) {
    this.read();
  }

  place(): string {
    return this.stored
      ? "Stored in this browser only. Download them and add them to the gallery with: aureole tags import."
      : "This browser does not store anything for this page: download the tags before you close it.";
  }

  async about(): Promise<TagsInfo> {
    const counts = new Map<string, TagCount>();
    for (const { kind, value } of this.read()) {
      const name = kind === "tag" || kind === "relabel" ? value : "";
      const key = `${kind} ${name}`;
      const found = counts.get(key) ?? { kind, value: name, count: 0 };
      found.count += 1;
      counts.set(key, found);
    }
    const sorted = [...counts.values()].sort((a, b) => a.kind.localeCompare(b.kind) || b.count - a.count);
    return { available: true, writable: true, reason: null, counts: sorted };
  }

  async entries(ids: string[]): Promise<TagEntry[]> {
    const wanted = new Set(ids);
    return this.read().filter(({ id }) => wanted.has(id));
  }

  async ids(kind: TagKind, value: string | null): Promise<string[]> {
    const found = this.read().filter((each) => each.kind === kind && (value === null || each.value === value));
    return [...new Set(found.map(({ id }) => id))];
  }

  async add(ids: string[], kind: TagKind, value: string, author: string): Promise<TagChange> {
    const text = checked(kind, value);
    if (kind === "duplicate" && ids.includes(text)) throw new Failure(`${text} cannot be a duplicate of itself.`, "invalid_input");
    const time = `${new Date().toISOString().slice(0, 19)}Z`;
    const wanted = new Set(ids);
    const all = this.read();
    const same = (each: TagEntry): boolean => wanted.has(each.id) && each.kind === kind;
    const having = new Set(all.filter((each) => same(each) && each.value === text).map(({ id }) => id));
    const removed = SINGLE.includes(kind) ? all.filter((each) => same(each) && each.value !== text) : [];
    const added = ids.filter((id) => !having.has(id)).map((id) => ({ id, kind, value: text, author, time }));
    return this.change({ added, removed });
  }

  async remove(ids: string[], kind: TagKind, value: string | null): Promise<TagChange> {
    const wanted = new Set(ids);
    const removed = this.read().filter((each) => wanted.has(each.id) && each.kind === kind && (value === null || each.value === value));
    return this.change({ added: [], removed });
  }

  async undo(number: number): Promise<TagChange> {
    const found = this.changes[number - 1];
    if (!found) throw new Failure("This change has been undone already.", "invalid_input");
    this.changes[number - 1] = null;
    return this.change({ added: found.removed, removed: found.added });
  }

  downloads(): Download[] {
    return [
      { name: "tags.csv", title: "All tags, CSV", load: async () => new Blob([csv(this.read())], { type: "text/csv" }) },
      { name: "tags.jsonl", title: "All tags, JSON lines", load: async () => new Blob([lines(this.read())], { type: "application/jsonl" }) },
    ];
  }

  private change({ added, removed }: Reversible): TagChange {
    const gone = new Set(removed.map(identity));
    const left = this.read().filter((each) => !gone.has(identity(each)));
    this.memory = [...left, ...added];
    this.changes.push({ added, removed });
    try {
      localStorage.setItem(this.key, JSON.stringify(this.memory));
    } catch {
      this.stored = false; // no storage for files, or it is full
    }
    return { number: this.changes.length, changed: added.length + removed.length };
  }

  /** The entries, with those that another tab has added meanwhile. */
  private read(): TagEntry[] {
    if (!this.stored) return this.memory;
    try {
      const found: unknown = JSON.parse(localStorage.getItem(this.key) ?? "[]");
      this.memory = Array.isArray(found) ? found.filter(isEntry) : [];
    } catch (error) {
      if (!(error instanceof SyntaxError)) this.stored = false;
    }
    return this.memory;
  }
}

function isEntry(value: unknown): value is TagEntry {
  if (typeof value !== "object" || value === null) return false;
  const { id, kind, value: text, author, time } = value as Record<string, unknown>;
  return [id, text, author, time].every((each) => typeof each === "string") && typeof kind === "string" && kind in LONGEST;
}

function identity({ id, kind, value }: TagEntry): string {
  return JSON.stringify([id, kind, value]);
}

function checked(kind: TagKind, value: string): string {
  const text = kind === "note" ? value.normalize("NFC").trim() : kind === "duplicate" ? value : value.normalize("NFC").replace(/\s+/g, " ").trim();
  if (text === "" && kind !== "relabel") throw new Failure("The text must not be empty.", "invalid_input");
  if (text.length > LONGEST[kind]) throw new Failure(`The text has ${text.length} characters, but the limit is ${LONGEST[kind]}.`, "invalid_input");
  if (kind === "tag" && text.startsWith(":")) throw new Failure("A tag must not start with a colon.", "invalid_input");
  return text;
}

/** Rows as CSV; a text that a spreadsheet could read as a formula gets a leading apostrophe. */
export function csv(rows: readonly object[]): string {
  const names = Object.keys(rows[0] ?? { id: "", kind: "", value: "", author: "", time: "" });
  const cell = (value: unknown): string => {
    if (typeof value === "number") return String(value);
    const text = String(value ?? "");
    const safe = /^[=+\-@\t\r\n＝＋－＠']/.test(text) ? `'${text}` : text;
    return `"${safe.replace(/"/g, '""')}"`;
  };
  const line = (values: unknown[]): string => values.map(cell).join(",");
  return [line(names), ...rows.map((row) => line(names.map((name) => (row as Record<string, unknown>)[name])))].join("\n") + "\n";
}

export function lines(rows: readonly object[]): string {
  return rows.map((row) => `${JSON.stringify(row)}\n`).join("");
}

/** A short name for a list of ids: the same gallery has the same name. */
export function fingerprint(ids: readonly string[]): string {
  let [a, b] = [0x811c9dc5, 0x1b873593];
  for (const id of ids) {
    for (let i = 0; i <= id.length; i += 1) {
      const code = i < id.length ? id.charCodeAt(i) : 65536;
      a = Math.imul(a ^ code, 0x01000193);
      b = Math.imul(b ^ code, 0x85ebca6b) + i;
    }
  }
  return `${ids.length}-${(a >>> 0).toString(36)}${(b >>> 0).toString(36)}`;
}
