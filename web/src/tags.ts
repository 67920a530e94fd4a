// Tags, notes, labels that are wrong and duplicates: panels for one item and for the selection, and a view of all tags.

import { type About, Failure } from "./api";
import { type Child, fill, h, trouble } from "./dom";
import type { View } from "./item";
import { linkTo } from "./selection";
import { csv, type Download, lines, MOST_IDS, type TagChange, type TagCount, type TagEntry, type TagKind, type TagsInfo, type TagStore } from "./tag_store";
import type { Context } from "./tile";
import { count, labelOf } from "./words";

const AUTHOR = "aureole-author";
const KEYS = "aureole-shortcuts";
const NAMES: Record<TagKind, string> = { tag: "Tag", note: "Note", relabel: "Needs relabelling", duplicate: "Duplicate of" };
const SHORTCUTS: Record<string, TagKind> = { t: "tag", n: "note", r: "relabel", d: "duplicate" };
const CHUNK = 500; // rows of a request
const MOST_SELECTED = 100_000; // items that are tagged or downloaded at once
const UNDONE = 50; // changes that can be undone

/** The name of a tag in a filter `{tag: ...}`: the tag itself, or a colon and the kind of other entries. */
export function filterName(kind: TagKind, value: string): string {
  return kind === "tag" ? value : `:${kind}`;
}

function ofFilter(name: string): [TagKind, string | null] {
  const kind = name.slice(1) as TagKind;
  return name.startsWith(":") && kind in NAMES ? [kind, null] : ["tag", name];
}

/** Called with how far a long task is. */
type Progress = (words: string) => void;

/** What one page knows of the tags: counts, and the changes that can be undone. */
export class Tagging {
  /** Each with the numbers of its requests. */
  private readonly changes: { numbers: number[]; words: string }[] = [];
  private readonly listeners = new Set<() => void>();

  constructor(
    private readonly context: Context,
    readonly about: About,
  ) {
    context.selection.provideTags((name) => this.rowsOf(name));
  }

  get store(): TagStore {
    return this.context.source.tags;
  }

  get last(): string | null {
    return this.changes.at(-1)?.words ?? null;
  }

  /** Calls the function after every change; returns a function that ends this. */
  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => void this.listeners.delete(listener);
  }

  async add(ids: string[], kind: TagKind, value: string, progress?: Progress): Promise<string> {
    if (kind === "duplicate" && ids.includes(value)) throw new Failure(`${value} cannot be a duplicate of itself.`, "invalid_input");
    const author = await authorName();
    const what = kind === "note" ? "note" : kind === "tag" ? `tag “${value}”` : NAMES[kind].toLowerCase();
    return this.run(`${what}, ${things(ids.length)}`, ids, (some) => this.store.add(some, kind, value, author), progress);
  }

  async remove(ids: string[], kind: TagKind, value: string | null): Promise<string> {
    const author = await authorName();
    return this.run(`removal, ${things(ids.length)}`, ids, (some) => this.store.remove(some, kind, value, author));
  }

  async undo(): Promise<string> {
    const last = this.changes.at(-1);
    if (last === undefined) return "There is nothing to undo.";
    try {
      for (let number = last.numbers.at(-1); number !== undefined; number = last.numbers.at(-1)) {
        last.numbers.pop(); // also if it has been undone elsewhere
        await this.store.undo(number);
      }
    } finally {
      if (last.numbers.length === 0) this.changes.pop();
      await this.changed();
    }
    return `Undone: ${last.words}.`;
  }

  /** Changes items in requests of the permitted size; each is stored completely or not at all. */
  private async run(words: string, ids: string[], act: (some: string[]) => Promise<TagChange>, progress?: Progress): Promise<string> {
    const numbers: number[] = [];
    let done = 0;
    try {
      for (; done < ids.length; done += MOST_IDS) {
        if (done > 0) progress?.(`Saving … ${count(done)} of ${count(ids.length)}`);
        const { number, changed } = await act(ids.slice(done, done + MOST_IDS));
        if (changed > 0) numbers.push(number);
      }
    } catch (error) {
      if (done === 0 || !(error instanceof Error)) throw error;
      throw new Failure(`${error.message} The first ${things(done)} are saved: undo this, or repeat it for the others.`, "unavailable");
    } finally {
      if (numbers.length > 0) {
        this.changes.push({ numbers, words });
        if (this.changes.length > UNDONE) this.changes.shift();
        await this.changed();
      }
    }
    return numbers.length === 0 ? "Nothing to change." : `Saved: ${words}.`;
  }

  private async changed(): Promise<void> {
    for (const listener of this.listeners) listener();
    if (this.context.selection.filters.some((each) => "tag" in each)) await this.context.selection.refresh();
  }

  private async rowsOf(name: string): Promise<number[]> {
    const ids = await this.store.ids(...ofFilter(name));
    const rows: number[] = [];
    for (let i = 0; i < ids.length; i += MOST_IDS) {
      for (const row of await this.context.table.numbers(ids.slice(i, i + MOST_IDS))) if (row !== null) rows.push(row);
    }
    return rows;
  }
}

interface Target {
  /** The ids of the items that the buttons act on. */
  ids(progress: Progress): Promise<string[]>;
  /** In words. */
  name(): string;
}

/** Buttons that act on some items, and what has been changed. */
class Panel {
  readonly status = h("p", { class: "status", role: "status" });
  readonly buttons = h("div", { class: "tag-buttons" });
  private info: TagsInfo | null = null;
  private busy = false;
  private readonly stop: () => void;
  private readonly onKey = (event: KeyboardEvent): void => this.press(event);

  constructor(
    private readonly tagging: Tagging,
    private readonly target: Target,
    private readonly changed: (info: TagsInfo) => void,
  ) {
    this.stop = tagging.subscribe(() => void this.load());
    document.addEventListener("keydown", this.onKey);
    void this.load();
  }

  leave(): void {
    this.stop();
    document.removeEventListener("keydown", this.onKey);
  }

  async load(): Promise<void> {
    try {
      this.info = await this.tagging.store.about();
      this.draw(this.info);
      this.changed(this.info);
    } catch (error) {
      fill(this.status, [trouble(error, () => void this.load())]);
    }
  }

  private draw(info: TagsInfo): void {
    if (!info.writable) {
      fill(this.buttons, [h("p", { class: "hint" }, info.reason === null ? "Tags cannot be changed here." : sentence(info.reason))]);
      return;
    }
    const on = shortcutsOn();
    const focused = document.activeElement;
    const again = focused instanceof HTMLElement && this.buttons.contains(focused) ? focused.dataset.kind : undefined;
    const button = (kind: string, text: string, key: string, act: () => void, disabled = false): HTMLElement =>
      h("button", { type: "button", class: "button", "data-kind": kind, disabled, "aria-keyshortcuts": on ? key : null, onclick: act }, text, on && h("kbd", { "aria-hidden": "true" }, key));
    fill(this.buttons, [
      ...Object.entries(SHORTCUTS).map(([key, kind]) => button(kind, NAMES[kind], key, () => void this.ask(kind))),
      button("undo", "Undo", "u", () => void this.undo(), this.tagging.last === null),
    ]);
    if (again !== undefined) this.buttons.querySelector<HTMLElement>(`[data-kind="${again}"]`)?.focus();
  }

  private press(event: KeyboardEvent): void {
    const at = event.target;
    const typing = at instanceof HTMLElement && (at.isContentEditable || /^(input|textarea|select)$/i.test(at.tagName));
    const plain = !event.ctrlKey && !event.metaKey && !event.altKey && !event.repeat;
    if (typing || !plain || !shortcutsOn() || !this.info?.writable || document.querySelector("dialog[open]") !== null) return;
    if (!this.buttons.isConnected) return;
    const kind = SHORTCUTS[event.key];
    if (kind === undefined && event.key !== "u") return;
    event.preventDefault();
    if (kind === undefined) void this.undo();
    else void this.ask(kind);
  }

  private async ask(kind: TagKind): Promise<void> {
    const value = await askValue(kind, this.target.name(), this.info?.counts ?? [], this.tagging.about);
    if (value !== null) await this.act(async (progress) => this.tagging.add(await this.target.ids(progress), kind, value, progress));
  }

  undo(): Promise<void> {
    return this.act(() => this.tagging.undo());
  }

  /** Runs a change and reports it. */
  async act(work: (progress: Progress) => Promise<string>): Promise<void> {
    if (this.busy) return;
    this.busy = true;
    fill(this.status, ["Saving …"]);
    try {
      fill(this.status, [await work((words) => fill(this.status, [words]))]);
    } catch (error) {
      fill(this.status, [trouble(error)]);
    } finally {
      this.busy = false;
    }
  }
}

/** The tags of one item, with buttons to change them. */
export function itemTags(tagging: Tagging, id: string): View {
  const list = h("ul", { class: "tags", "aria-label": "Tags of this item" });
  const target = { ids: async () => [id], name: () => "this item" };
  let run = 0;
  const panel = new Panel(tagging, target, (info) => void show(info));
  const show = async (info: TagsInfo): Promise<void> => {
    if (!info.available) {
      fill(list, []);
      return;
    }
    run += 1;
    const own = run;
    const entries = await tagging.store.entries([id]);
    if (own !== run) return;
    fill(list, entries.map((entry) => chip(entry, info.writable ? () => void panel.act(() => tagging.remove([id], entry.kind, entry.value)) : null)));
  };
  const element = h("section", { class: "tagging", "aria-label": "Tags" }, list, panel.buttons, panel.status);
  return { element, leave: () => panel.leave() };
}

function chip(entry: TagEntry, remove: (() => void) | null): HTMLElement {
  const by = [entry.author, entry.time.slice(0, 10)].filter((each) => each !== "").join(", ");
  const target = h("a", { href: `#/item/${encodeURIComponent(entry.value)}` }, entry.value);
  const words: Child[] = {
    tag: [entry.value],
    note: [h("span", { class: "note-text" }, entry.value)],
    relabel: [h("strong", {}, "needs relabelling"), entry.value !== "" && ` → ${entry.value}`],
    duplicate: [h("strong", {}, "duplicate of"), " ", target],
  }[entry.kind];
  const name = `Remove ${entry.kind === "tag" ? `the tag ${entry.value}` : entry.kind === "note" ? "this note" : NAMES[entry.kind].toLowerCase()}`;
  return h("li", { class: `tag-chip ${entry.kind}`, title: by }, h("span", {}, ...words), remove !== null && h("button", { type: "button", "aria-label": name, onclick: remove }, "×"));
}

/** Buttons that act on the selected rows; at most 100,000 at once. */
export function selectionTags(tagging: Tagging, context: Context): View {
  const heading = h("p", { class: "tag-target" });
  let selected = 0;
  const target = {
    ids: (progress: Progress) => selectedIds(context, progress),
    name: () => things(selected),
  };
  const panel = new Panel(tagging, target, () => undefined);
  const menu = exportMenu(tagging, context);
  const show = (rows: number, filtered: boolean): void => {
    selected = filtered ? rows : 0;
    const none = !filtered || rows === 0;
    const many = rows > MOST_SELECTED;
    panel.buttons.hidden = none || many;
    fill(heading, [
      none
        ? "Select items to tag them."
        : many
          ? `${things(rows)} are selected, but at most ${count(MOST_SELECTED)} can be tagged at once.`
          : `${things(rows)} selected:`,
    ]);
  };
  show(0, false);
  const stop = context.selection.subscribe((now) => show(now.count, now.rows !== null));
  void context.selection.current().then(
    (now) => show(now.count, now.rows !== null),
    () => undefined,
  );
  const element = h("section", { class: "tagging", "aria-label": "Tag the selection" }, heading, panel.buttons, menu, panel.status);
  return {
    element,
    leave() {
      stop();
      panel.leave();
    },
  };
}

async function selectedIds(context: Context, progress: Progress): Promise<string[]> {
  const rows = await selectedRows(context, "tagged");
  const ids: string[] = [];
  for (let i = 0; i < rows.length; i += MOST_IDS) {
    if (i > 0) progress(`Reading the ids … ${count(i)} of ${count(rows.length)}`);
    ids.push(...(await context.table.ids(rows.subarray(i, i + MOST_IDS))));
  }
  return ids;
}

async function selectedRows(context: Context, what: string): Promise<Uint32Array> {
  const { rows } = await context.selection.current();
  if (rows === null || rows.length === 0) throw new Failure("No items are selected.", "invalid_input");
  if (rows.length > MOST_SELECTED) throw new Failure(`At most ${count(MOST_SELECTED)} items can be ${what} at once.`, "invalid_input");
  return rows;
}

/** The view of all tags: counts that lead to the items, undo, and downloads. */
export function tagsView(tagging: Tagging): View {
  const list = h("ul", { class: "tag-list" });
  const place = h("p", { class: "hint" });
  const status = h("p", { class: "status", role: "status" });
  const undo = h("button", { type: "button", class: "button" }, "Undo");
  undo.addEventListener("click", () => {
    void tagging.undo().then(
      (words) => fill(status, [words]),
      (error: unknown) => fill(status, [trouble(error)]),
    );
  });
  const load = async (): Promise<void> => {
    try {
      const info = await tagging.store.about();
      undo.toggleAttribute("disabled", tagging.last === null);
      fill(place, [info.available ? tagging.store.place() : "", !info.writable && info.reason !== null && ` ${sentence(info.reason)}`]);
      fill(list, info.counts.length === 0 ? [h("li", { class: "empty" }, "No tags yet. Open an item, or select items on the map, to add some.")] : grouped(info.counts).map(countLine));
    } catch (error) {
      fill(status, [trouble(error, () => void load())]);
    }
  };
  const stop = tagging.subscribe(() => void load());
  void load();
  const switches = h("input", { type: "checkbox", checked: shortcutsOn() });
  switches.addEventListener("change", () => keep(KEYS, switches.checked ? "on" : "off"));
  const element = h(
    "section",
    { class: "tags-view" },
    h("h1", {}, "Tags"),
    h("p", { class: "lead" }, "What people noted about items. Follow a tag to see its items."),
    list,
    place,
    h("div", { class: "tag-buttons" }, undo, exportMenu(tagging, null)),
    status,
    h("label", { class: "check" }, switches, " Keyboard shortcuts: t tag, n note, r needs relabelling, d duplicate, u undo"),
    h("p", { class: "hint" }, `Your name: ${kept(AUTHOR) || "none"} `, h("button", { type: "button", class: "link", onclick: () => void askAuthor().then(() => location.reload()) }, "Change")),
  );
  return { element, leave: stop };
}

/** One line for each tag, and one for each other kind. */
function grouped(counts: TagCount[]): TagCount[] {
  const found = counts.filter(({ kind }) => kind === "tag");
  for (const kind of ["relabel", "duplicate", "note"] as const) {
    const total = counts.filter((each) => each.kind === kind).reduce((sum, each) => sum + each.count, 0);
    if (total > 0) found.push({ kind, value: "", count: total });
  }
  return found;
}

function countLine(each: TagCount): HTMLElement {
  const name = each.kind === "tag" ? each.value : NAMES[each.kind];
  return h("li", {}, h("a", { href: linkTo("#/map", [{ tag: filterName(each.kind, each.value) }]) }, name), " ", h("small", {}, count(each.count)));
}

/** A menu of downloads; with a context, also of the selected items. */
function exportMenu(tagging: Tagging, context: Context | null): HTMLElement {
  const note = h("p", { class: "status", role: "status" });
  const own: Download[] = context === null ? [] : selectionDownloads(context, (words) => fill(note, [words]));
  const save = async ({ name, load }: Download): Promise<void> => {
    fill(note, [`Preparing ${name} …`]);
    try {
      const url = URL.createObjectURL(await load());
      h("a", { href: url, download: name }).click();
      setTimeout(() => URL.revokeObjectURL(url), 60_000);
      fill(note, [`Saved ${name}.`]);
    } catch (error) {
      fill(note, [trouble(error)]);
    }
  };
  const summary = h("summary", { class: "button" }, "Export");
  const buttons = [...own, ...tagging.store.downloads()].map((each) => h("li", {}, h("button", { type: "button", class: "link", onclick: () => void save(each) }, each.title)));
  const menu = h("details", { class: "export" }, summary, h("div", {}, h("ul", {}, ...buttons), note));
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    menu.open = false;
    summary.focus();
  });
  menu.addEventListener("focusout", ({ relatedTarget }) => {
    if (relatedTarget instanceof Node && !menu.contains(relatedTarget)) menu.open = false;
  });
  return menu;
}

function selectionDownloads(context: Context, progress: Progress): Download[] {
  const items = async (): Promise<object[]> => {
    const rows = await selectedRows(context, "downloaded");
    const found: object[] = [];
    for (let i = 0; i < rows.length; i += CHUNK) {
      if (i > 0 && i % MOST_IDS === 0) progress(`Reading … ${count(i)} of ${count(rows.length)}`);
      for (const { id, kappa, label, text } of await context.table.rows(rows.subarray(i, i + CHUNK))) {
        found.push({ id, kappa, label: labelOf(label), text: text ?? "" });
      }
    }
    return found;
  };
  const found: Download[] = [
    { name: "selection.csv", title: "Selected items, CSV", load: async () => new Blob([csv(await items())], { type: "text/csv" }) },
    { name: "selection.jsonl", title: "Selected items, JSON lines", load: async () => new Blob([lines(await items())], { type: "application/jsonl" }) },
  ];
  if (context.source.parquet !== undefined) {
    found.push({ name: "selection.parquet", title: "Selected items, Parquet", load: async () => context.table.parquet(await selectedRows(context, "downloaded")) });
  }
  return found;
}

function askValue(kind: TagKind, target: string, counts: TagCount[], about: About): Promise<string | null> {
  const words: Record<TagKind, string> = {
    tag: "Tag",
    note: "Note",
    relabel: "The label it should have (optional)",
    duplicate: "Id of the item that it duplicates",
  };
  const known = kind === "tag" ? counts.filter((each) => each.kind === "tag").map(({ value }) => value) : [];
  if (kind === "relabel") known.push(...about.classes.map(({ label }) => labelOf(label)));
  const options = h("datalist", { id: "tag-values" }, ...known.slice(0, 200).map((value) => h("option", { value })));
  const longest = { tag: 64, note: 4000, relabel: 256, duplicate: 1024 }[kind];
  const field =
    kind === "note"
      ? h("textarea", { id: "tag-value", rows: 4, maxlength: longest, required: true })
      : h("input", { type: "text", id: "tag-value", list: "tag-values", maxlength: longest, autocomplete: "off", required: kind !== "relabel" });
  return ask(`${NAMES[kind]}: ${target}`, words[kind], field, kind === "note" ? null : options);
}

/** The name that changes are signed with, asked for once; it may be empty. */
async function authorName(): Promise<string> {
  return kept(AUTHOR) ?? (await askAuthor());
}

let remembered: string | null = null; // where nothing can be stored

async function askAuthor(): Promise<string> {
  const field = h("input", { type: "text", id: "tag-value", maxlength: 64, autocomplete: "name", value: kept(AUTHOR) ?? "" });
  const name = ((await ask("Your name", "Shown with your tags (optional)", field, null)) ?? "").trim();
  remembered = name;
  keep(AUTHOR, name);
  return name;
}

/** A dialog with one field; null if it was cancelled. */
function ask(title: string, words: string, field: HTMLInputElement | HTMLTextAreaElement, more: HTMLElement | null): Promise<string | null> {
  return new Promise((done) => {
    const before = document.activeElement;
    const cancel = h("button", { type: "button", class: "cancel" }, "Cancel");
    const form = h("form", { method: "dialog" }, h("h2", {}, title), h("label", { for: field.id }, words), field, more, h("div", { class: "tag-buttons" }, h("button", { type: "submit", class: "button" }, "Save"), cancel));
    const dialog = h("dialog", { "aria-label": title, class: "tag-dialog" }, form);
    const close = (value: string | null): void => {
      dialog.remove();
      if (before instanceof HTMLElement && before.isConnected) before.focus();
      done(value);
    };
    cancel.addEventListener("click", () => close(null));
    dialog.addEventListener("cancel", () => close(null));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      close(field.value);
    });
    document.body.append(dialog);
    dialog.showModal();
    field.focus();
  });
}

function shortcutsOn(): boolean {
  return kept(KEYS) !== "off";
}

function kept(key: string): string | null {
  try {
    return localStorage.getItem(key) ?? (key === AUTHOR ? remembered : null);
  } catch {
    return key === AUTHOR ? remembered : null;
  }
}

function keep(key: string, value: string): void {
  try {
    localStorage.setItem(key, value);
  } catch {
    // no storage for this page
  }
}

function things(n: number): string {
  return n === 1 ? "1 item" : `${count(n)} items`;
}

function sentence(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
