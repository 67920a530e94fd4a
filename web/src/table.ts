// The gallery's table in the browser: columns as typed arrays, rows by number (the order of kappa), loaded when needed.

import type { QuestionName } from "./answers";
import { type ColumnInfo, Failure, type Item, type Match, type Numbers, type Source, type TableInfo } from "./api";

const CHUNK = 500; // rows of a request
const DELETED: Item = { id: "", kappa: NaN, label: null, text: "This item was deleted; reload the page.", picture: null, payload: {} };
const CACHED = 5000; // rows that are kept

export interface Column {
  info: ColumnInfo;
  values: Numbers;
  /** The code of a missing category; numbers that are missing are NaN. */
  missing: number;
}

export class Table {
  private asked: Promise<TableInfo> | null = null;
  private readonly columns = new Map<string, Promise<Column>>();
  private readonly items = new Map<number, Item>();

  constructor(private readonly source: Source) {}

  /** The columns and the number of rows. */
  info(): Promise<TableInfo> {
    this.asked ??= this.source.table().catch((error: unknown) => {
      this.asked = null;
      throw error;
    });
    return this.asked;
  }

  /** The values of a number or category column, one per row. */
  column(name: string): Promise<Column> {
    let found = this.columns.get(name);
    if (found === undefined) {
      found = this.load(name).catch((error: unknown) => {
        this.columns.delete(name);
        throw error;
      });
      this.columns.set(name, found);
    }
    return found;
  }

  /** The items of these rows, in this order. */
  async rows(numbers: ArrayLike<number>, signal?: AbortSignal): Promise<Item[]> {
    const wanted = Array.from(numbers);
    const missing = wanted.filter((row) => !this.items.has(row));
    for (let i = 0; i < missing.length; i += CHUNK) {
      const some = missing.slice(i, i + CHUNK);
      const found = await this.source.rows(some, signal);
      some.forEach((row, k) => this.items.set(row, found[k] ?? DELETED));
    }
    const found = wanted.map((row) => this.items.get(row) as Item);
    for (const row of this.items.keys()) {
      if (this.items.size <= CACHED) break;
      this.items.delete(row);
    }
    return found;
  }

  /** The rows whose id or text contains the words, ignoring case. */
  find(text: string, column: string | null = null, signal?: AbortSignal): Promise<Match> {
    return this.source.find(text, column, signal);
  }

  /** The ids of these rows, in this order; at most MOST_IDS. */
  async ids(rows: ArrayLike<number>): Promise<string[]> {
    return this.source.ids(Array.from(rows), (await this.info()).version);
  }

  /** The rows of all items of a question. */
  ofQuestion(name: QuestionName, classes: [number, number] | null): Promise<Match> {
    return this.source.questionRows(name, classes);
  }

  /** Forgets everything, because the rows have changed or a column was added. */
  refresh(): void {
    this.asked = null;
    this.columns.clear();
    this.items.clear();
  }

  private async load(name: string): Promise<Column> {
    const table = await this.info();
    const info = table.columns.find((each) => each.name === name);
    if (info === undefined) throw new Failure(`The gallery has no column ${name}.`, "not_found");
    const { values, version } = await this.source.column(name);
    if (version !== table.version || values.length !== table.rows) {
      this.refresh();
      throw new Failure("The gallery has changed. Reload the page.", "conflict");
    }
    return { info, values, missing: values instanceof Uint16Array ? 65535 : 4294967295 };
  }
}
