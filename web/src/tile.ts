// An item as a tile: its picture, text or name, its kappa, and a link to its page.

import type { Item, Source } from "./api";
import { type Child, h } from "./dom";
import type { Selection } from "./selection";
import type { Table } from "./table";
import { labelOf, nameOf, number } from "./words";

export interface Context {
  source: Source;
  colour: (label: unknown) => number | null;
  /** How items look: pictures, cards with a text, or names. */
  shape: "picture" | "card" | "plain";
  table: Table;
  selection: Selection;
}

export function hrefOf(id: string): string {
  return `#/item/${encodeURIComponent(id)}`;
}

/** A lazily loaded picture. */
export function picture(source: Source, item: Pick<Item, "id" | "picture">, side: number, alt: string): HTMLImageElement {
  const image = h("img", { alt, width: side, height: side, loading: "lazy", decoding: "async" });
  image.addEventListener("load", () => image.classList.toggle("tiny", image.naturalWidth <= 64));
  image.addEventListener("error", () => image.classList.add("missing"));
  void source.picture(item, Math.max(64, side * 2)).then((url) => {
    if (url === null) image.classList.add("missing");
    else image.src = url;
  });
  return image;
}

export function dot(colour: number | null): HTMLElement {
  return h("span", { class: colour === null ? "dot" : `dot c${colour}`, "aria-hidden": "true" });
}

export function tile(context: Context, item: Item, ...facts: Child[]): HTMLAnchorElement {
  const label = labelOf(item.label);
  const kappa = `κ ${number(item.kappa)}`;
  const below = facts.length > 0 ? facts : [h("span", { class: "kappa" }, kappa)];
  if (item.picture !== null) {
    const alt = `${label || item.id}, ${kappa}`;
    return h(
      "a",
      { class: "tile", href: hrefOf(item.id), title: alt },
      picture(context.source, item, 72, alt),
      h("span", { class: "facts" }, ...below),
    );
  }
  const name = nameOf(item);
  return h(
    "a",
    { class: item.text === null ? "tile plain" : "tile card", href: hrefOf(item.id), title: item.id },
    h("span", { class: "text" }, item.text === null && dot(context.colour(item.label)), name),
    item.text !== null && label !== "" && h("span", { class: "label" }, dot(context.colour(item.label)), label),
    item.text === null && label !== "" && h("span", { class: "label" }, item.id),
    h("span", { class: "facts" }, ...below),
  );
}
