// The page of an item: its content, its kappa, and its neighbourhood.

import type { About, OneItem } from "./api";
import { fill, h, Latest, trouble } from "./dom";
import { Neighbourhood } from "./neighbourhood";
import { strip } from "./strip";
import { type Context, dot, picture } from "./tile";
import { capAngle, labelOf, number, rankInWords, valueOf } from "./words";

export interface View {
  element: HTMLElement;
  /** Takes what has changed in the address; views without it are rebuilt. */
  follow?(): void;
  leave?(): void;
}

export function itemView(context: Context, about: About, id: string): View {
  const neighbourhood = new Neighbourhood(context, about);
  const head = h(
    "div",
    { class: "head", "aria-busy": "true" },
    about.pictures && h("div", { class: "skeleton portrait" }),
    h("div", { class: "skeleton words" }),
  );
  const element = h(
    "section",
    { class: "item" },
    h("p", { class: "back" }, h("a", { href: "#/" }, "← Gallery")),
    h("div", { class: "whole" }, head, neighbourhood.element),
  );
  const loading = new Latest();
  const load = async (): Promise<void> => {
    try {
      const item = await loading.run((signal) => context.source.item(id, signal));
      if (item === null) return;
      head.removeAttribute("aria-busy");
      fill(head, [...portrait(context, about, item)]);
      document.title = `${labelOf(item.label) || item.id} · aureole`;
      neighbourhood.ask({ id });
    } catch (error) {
      fill(head, [h("h1", {}, id), trouble(error, () => void load())]);
      neighbourhood.element.hidden = true;
    }
  };
  void load();
  return {
    element,
    leave() {
      loading.stop();
      neighbourhood.stop();
    },
  };
}

function portrait(context: Context, about: About, item: OneItem): HTMLElement[] {
  const label = labelOf(item.label);
  const scale = strip(about, 320);
  scale.mark([{ kappa: item.kappa, name: "here" }]);
  const title = item.text !== null ? h("h1", { class: "quote" }, item.text) : h("h1", {}, label || item.id);
  const cap = capAngle(item.caps, 0.95);
  const reach = cap === null ? "" : ` 95 % of its posterior lies within ${Math.round((cap * 180) / Math.PI)}° of its direction.`;
  const facts = Object.entries(item.payload).filter(
    ([name]) => name !== about.text_column && name !== about.label_column,
  );
  return [
    ...(item.picture === null ? [] : [h("figure", { class: "portrait" }, picture(context.source, item, 256, label || item.id))]),
    h(
      "div",
      {},
      h("p", { class: "over" }, item.text !== null && label !== "" && dot(context.colour(item.label)), item.text !== null && label, h("code", {}, item.id)),
      title,
      h("p", { class: "big" }, "κ ", h("strong", {}, number(item.kappa))),
      h("p", { class: "lead" }, `${capital(rankInWords(item.kappa_rank))}.${reach}`),
      scale.element,
      facts.length > 0 &&
        h("dl", {}, ...facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, valueOf(value))])),
    ),
  ];
}

export function capital(words: string): string {
  return words.charAt(0).toUpperCase() + words.slice(1);
}
