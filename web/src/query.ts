// A question of one's own: two sentences side by side, or a picture that loses what it shows.

import type { About } from "./api";
import { h } from "./dom";
import type { View } from "./item";
import { pictureQuery } from "./query_picture";
import { textQuery } from "./query_text";
import { vectorQuery } from "./query_vector";
import type { Context } from "./tile";

export function queryView(context: Context, about: About): View {
  if (!context.source.live) {
    return missing("This file has no encoder in it.", "Run `aureole serve` on the gallery to ask about pictures or sentences of your own.");
  }
  switch (about.modality) {
    case "image":
      return pictureQuery(context, about);
    case "text":
      return textQuery(context, about);
    case "vector":
      return vectorQuery(context, about);
    default:
      return missing(
        "The service runs without an encoder.",
        "Start it with the one that made the gallery to ask about pictures or sentences of your own.",
      );
  }
}

function missing(title: string, words: string): View {
  return { element: h("section", { class: "query" }, h("h1", {}, "Ask"), h("p", { class: "empty" }, h("strong", {}, title), ` ${words}`)) };
}
