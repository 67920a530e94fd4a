// Your own query: two sentences side by side, a picture that you can degrade, or a vector.

import type { About } from "./api";
import { h, prose } from "./dom";
import type { View } from "./item";
import { pictureQuery } from "./query_picture";
import { textQuery } from "./query_text";
import { vectorQuery } from "./query_vector";
import type { Context } from "./tile";

export function queryView(context: Context, about: About): View {
  if (!context.source.live) {
    return missing("This file does not contain an encoder.", "Run `aureole serve` on the gallery to query it with your own pictures or sentences.");
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
        "The service was started without an encoder.",
        "Restart it with `--encoder` to query it with your own pictures or sentences.",
      );
  }
}

function missing(title: string, words: string): View {
  return { element: h("section", { class: "query" }, h("h1", {}, "Query"), h("p", { class: "empty" }, h("strong", {}, title), " ", ...prose(words))) };
}
