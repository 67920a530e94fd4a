// The gallery, from the service.

import type { Answer, QuestionName, Questions } from "./answers";
import {
  type About,
  type Asked,
  type Calibration,
  Failure,
  type Found,
  fromBase64,
  type Item,
  type Kind,
  type Match,
  type Matches,
  type Neighbourhood,
  type Numbers,
  numbersOf,
  type OneItem,
  type Order,
  type Page,
  type Posterior,
  type Query,
  type Rejection,
  type Source,
  type TableInfo,
} from "./api";

const KEY = "aureole-key";
const MATCHES = 100; // nearest items with a probability

export class Service implements Source {
  readonly live = true;
  private asked: Promise<string> | null = null;
  private readonly blobs = new Map<string, Promise<string | null>>();

  /** askKey prompts for the API key; its argument is true if the previous one was rejected. */
  constructor(private readonly askKey: (refused: boolean) => Promise<string>) {}

  about(): Promise<About> {
    return this.get("v1/about");
  }

  items(order: Order, label: unknown, offset: number, limit: number, signal?: AbortSignal): Promise<Page> {
    const asked = new URLSearchParams({ order, offset: String(offset), limit: String(limit) });
    if (label !== null && label !== undefined) asked.set("label", String(label));
    return this.get(`v1/items?${asked}`, signal);
  }

  item(id: string, signal?: AbortSignal): Promise<OneItem> {
    return this.get(`v1/items/${encodeURIComponent(id)}`, signal);
  }

  async picture(item: { id: string; picture?: string | null }, side: number): Promise<string | null> {
    if (item.picture === null) return null;
    const url = `v1/pictures/${encodeURIComponent(item.id)}?side=${side}`;
    if (key() === null) return url;
    // an <img> cannot send the key
    let blob = this.blobs.get(url);
    if (blob === undefined) {
      blob = this.call(url, {}).then(
        async (answer) => URL.createObjectURL(await answer.blob()),
        () => null,
      );
      this.blobs.set(url, blob);
    }
    return blob;
  }

  async embed(queries: Query[], signal?: AbortSignal): Promise<Posterior[]> {
    const ask = async (body: unknown): Promise<Posterior[]> =>
      (await this.post<{ posteriors: Posterior[] }>("v1/embed", body, signal)).posteriors;
    if (queries[0]?.text !== undefined) return ask({ texts: queries.map((query) => query.text) });
    return (await Promise.all(queries.map(ask))).flat();
  }

  search(query: Query, asked: Asked, signal?: AbortSignal): Promise<Found> {
    return this.post("v1/search", { query, ...asked }, signal);
  }

  async match(query: Query): Promise<Matches> {
    const body = { query, threshold: 0, limit: MATCHES };
    const found = await this.post<{ p_value: number; matches: { id: string; probability: number }[] }>("v1/match", body);
    return { p_value: found.p_value, probabilities: new Map(found.matches.map((each) => [each.id, each.probability])) };
  }

  map(query: Query, mass: number, kind: Kind, limit: number, signal?: AbortSignal): Promise<Neighbourhood> {
    return this.post("v1/map", { query, mass, kind, limit }, signal);
  }

  calibration(): Promise<Calibration> {
    return this.get("v1/calibration");
  }

  rejection(): Promise<Rejection> {
    return this.get("v1/rejection");
  }

  table(): Promise<TableInfo> {
    return this.get("v1/table");
  }

  async column(name: string): Promise<{ values: Numbers; version: string }> {
    const answer = await this.call(`v1/table/columns/${encodeURIComponent(name)}`, {});
    const version = (answer.headers.get("ETag") ?? "").replace(/^W\//, "").replace(/"/g, "");
    return { values: numbersOf(answer.headers.get("X-Aureole-Type") ?? "f4", await answer.arrayBuffer()), version };
  }

  async rows(numbers: number[], signal?: AbortSignal): Promise<(Item | null)[]> {
    return (await this.post<{ items: (Item | null)[] }>("v1/table/rows", { rows: numbers }, signal)).items;
  }

  async find(text: string, column: string | null, signal?: AbortSignal): Promise<Match> {
    const asked = new URLSearchParams({ text });
    if (column !== null) asked.set("column", column);
    return unpacked(await this.get(`v1/table/find?${asked}`, signal));
  }

  async ids(numbers: number[], version: string): Promise<string[]> {
    return (await this.post<{ ids: string[] }>("v1/table/ids", { rows: numbers, version })).ids;
  }

  async questionRows(name: QuestionName, classes: [number, number] | null): Promise<Match> {
    return unpacked(await this.get(`v1/questions/${name}/rows?${pairOf(classes)}`));
  }

  questions(): Promise<Questions> {
    return this.get("v1/questions");
  }

  question(name: QuestionName, offset: number, limit: number, classes: [number, number] | null, signal?: AbortSignal): Promise<Answer> {
    return this.get(`v1/questions/${name}?offset=${offset}&limit=${limit}&${pairOf(classes)}`, signal);
  }

  private async get<T>(url: string, signal?: AbortSignal): Promise<T> {
    return (await this.call(url, signal ? { signal } : {})).json() as Promise<T>;
  }

  private async post<T>(url: string, body: unknown, signal?: AbortSignal): Promise<T> {
    const init = sent(body);
    if (signal) init.signal = signal;
    return (await this.call(url, init)).json() as Promise<T>;
  }

  private async call(url: string, init: RequestInit): Promise<Response> {
    for (;;) {
      const used = key();
      const headers = new Headers(init.headers);
      if (used !== null) headers.set("Authorization", `Bearer ${used}`);
      const answer = await this.reach(url, { ...init, headers });
      if (answer.ok) return answer;
      if (answer.status !== 401) throw await failure(answer);
      if (key() !== used) continue; // another request has obtained a new key meanwhile
      this.asked ??= this.askKey(used !== null).finally(() => {
        this.asked = null;
      });
      sessionStorage.setItem(KEY, await this.asked);
    }
  }

  private async reach(url: string, init: RequestInit): Promise<Response> {
    try {
      return await fetch(url, init);
    } catch (error) {
      if (error instanceof DOMException) throw error;
      throw new Failure("The service does not respond. Check that `aureole serve` is still running, then try again.", "unreachable");
    }
  }
}

/** A POST request with a JSON body. */
function sent(body: unknown): RequestInit {
  return { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
}

/** The parameters of a pair of classes, or nothing. */
function pairOf(classes: [number, number] | null): string {
  return classes === null ? "" : `one=${classes[0]}&two=${classes[1]}`;
}

function unpacked({ rows, count, truncated }: { rows: string; count: number; truncated: boolean }): Match {
  return { rows: new Uint32Array(fromBase64(rows)), count, truncated };
}

function key(): string | null {
  return sessionStorage.getItem(KEY);
}

async function failure(answer: Response): Promise<Failure> {
  try {
    const body = (await answer.json()) as { error: { code: string; message: string } };
    return new Failure(body.error.message, body.error.code);
  } catch {
    return new Failure(`The service responded with status ${answer.status}.`, "internal");
  }
}
